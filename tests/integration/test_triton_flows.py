"""NVIDIA's client against a daemon: the calls of Triton's example clients, with models like theirs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import ensemble_files, triton_models
from tests.integration import onnx_files
from tests.integration.daemon import Daemon, wait_for

FIRST, SECOND = np.arange(16), np.full(16, 3)
DATATYPES = [name for name in onnx_files.DTYPES if name != "BF16"]  # the client has no numpy dtype for it
MODELS = (
    "classes",
    "ensemble",
    "repeat_int32",
    "simple",
    "simple_identity",
    "simple_int8",
    "simple_sequence",
    "simple_string",
)
IDENTITIES = tuple(f"id_{datatype}" for datatype in DATATYPES)


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    daemon = Daemon(builds=False)
    triton_models.write_all(daemon.models)
    steps = [
        ("simple", "INPUT0=A INPUT1=B", "OUTPUT0=sum OUTPUT1=difference"),
        ("simple", "INPUT0=sum INPUT1=difference", "OUTPUT0=C OUTPUT1=D"),
    ]
    text = ensemble_files.config(steps, ["A INT32 16", "B INT32 16"], ["C INT32 16", "D INT32 16"], "max_batch_size: 8")
    ensemble_files.write(daemon.models, "ensemble", text)
    for datatype in DATATYPES:
        onnx_files.identity(daemon.models / f"id_{datatype}.onnx", datatype)
    with daemon:
        for name in (*MODELS, *IDENTITIES):
            daemon.ready(name)
        yield daemon


def ask(address: str, *flows: str) -> Any:
    """Return the findings of the named flows, or of all flows."""
    # In a child process: two definitions of the protocol's messages cannot be loaded into one process.
    peer = Path(__file__).with_name("triton_flows.py")
    done = subprocess.run([sys.executable, str(peer), address, *flows], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def seen(daemon: Daemon) -> Any:
    return ask(daemon.unix)


@pytest.mark.parametrize("client", ["every_call", "every_call_with_asyncio"])
def test_every_call_succeeds(seen: Any, client: str) -> None:
    found = seen[client]
    assert found == {
        "live": True,
        "ready": True,
        "model": True,
        "server": "edged",
        "extensions": found.get("extensions"),
        "inputs": [["INPUT0", [-1, 16]], ["INPUT1", [-1, 16]]],
        "config": ["simple", 8],
        "index": sorted((*MODELS, *IDENTITIES)),
        "statistics": "simple",
        "log": True,
        "trace": "7",
        "regions": 0,
        "cuda": 0,
        "cuda_register": "StatusCode.UNIMPLEMENTED",
        "load": "StatusCode.FAILED_PRECONDITION",  # models follow the folder
        "unload": "StatusCode.FAILED_PRECONDITION",
    }
    assert {"classification", "sequence", "system_shared_memory", "binary_tensor_data"} <= set(found["extensions"])
    assert "cuda_shared_memory" not in found["extensions"]


@pytest.mark.parametrize("datatype", DATATYPES)
def test_values_of_every_datatype_are_bit_equal(seen: Any, datatype: str) -> None:
    assert seen["every_datatype"][datatype] == [True, ["0", *map(str, range(8))]]


def test_ensemble_answers_in_every_way(seen: Any) -> None:
    found = seen["ensemble"]
    code, words = found.pop("wrong")
    assert code == "StatusCode.INVALID_ARGUMENT"
    assert "input 'B' is missing" in words
    assert found == {
        "ready": True,
        "C": [(2 * FIRST).tolist()],
        "D": [(2 * SECOND).tolist()],
        "id": "seven",
        "streamed": ["None", [(2 * FIRST).tolist()], "eight"],
        "config": ["ensemble", ["simple", "simple"]],
        "shapes": [[-1, 16], [-1, 16]],
        "shared": [(2 * SECOND).tolist()],
        "classes": ["30:15"],
    }


def test_statistics_count_requests(seen: Any) -> None:
    found = seen["figures"]
    assert (found["counted"], found["statistics of"]) == (6, sorted((*MODELS, *IDENTITIES)))


def test_trace_settings_are_applied_and_cleared(seen: Any, daemon: Daemon) -> None:
    found = seen["figures"]
    wanted = {"trace_level": ["TIMESTAMPS"], "trace_rate": ["2"], "trace_file": ["client.json"], "trace_count": ["3"]}
    assert {name: found["trace set"][name] for name in wanted} == wanted
    assert found["trace after"]["trace_count"] == ["0"]
    assert found["trace cleared"] == found["trace of all"]
    assert found["trace of all"]["trace_level"] == ["OFF"]
    path = daemon.state / "traces" / "client.json"
    wait_for("the traces are written", path.exists, 20)

    def traced() -> list[str]:
        return [entry["request_id"] for entry in json.loads(path.read_text()) if "request_id" in entry]

    wait_for("three requests are traced", lambda: len(traced()) == 3, 20)
    assert traced() == ["1", "3", "5"]


def test_log_settings_are_applied(seen: Any) -> None:
    found = seen["figures"]
    assert found["log set"]["log_verbose_level"] == {"uint32_param": 1}
    assert found["log set"]["log_info"] == {"bool_param": False}
    assert found["log reset"] == found["log"]
    assert found["log"]["log_format"] == {"string_param": "default"}


def test_infer_returns_the_id_and_the_requested_outputs(seen: Any) -> None:
    found = seen["single"]
    assert found["right"]
    assert (found["id"], found["version"], found["only"]) == ("seven", "1", [True, True])
    assert found["options"]
    assert found["in time"]
    assert found["compressed"][0] == "StatusCode.UNIMPLEMENTED"
    assert found["unknown"][0] == "StatusCode.NOT_FOUND"


def test_async_infer_calls_back_once_for_each_request(seen: Any) -> None:
    assert seen["asynchronous"] == {"errors": [], "ids": list(range(20)), "right": True}


def test_asyncio_client_infers_and_streams(seen: Any) -> None:
    found = seen["with_asyncio"]
    assert found["right"]
    assert found["streamed"]
    assert found["ids"] == ["0", "1", "2", "3", "4"]
    assert "missing" in found["lost"]


def test_frequent_keepalive_pings_are_accepted(seen: Any) -> None:
    assert seen["keepalive_and_channel_options"] == {"right": True, "again": True, "custom": True}


def test_reused_inputs_and_outputs_give_equal_results(seen: Any) -> None:
    assert seen["reused_objects"] == [True] * 4


def test_int8_and_string_models_compute(seen: Any) -> None:
    assert seen["other_datatypes"] == {"int8": True, "sum": True, "identity": True}


def test_typed_contents_get_raw_contents(seen: Any) -> None:
    assert seen["typed_contents"] == (FIRST + SECOND).tolist()


def test_classification_returns_labels(seen: Any) -> None:
    assert seen["classification"] == [
        ["0.750000:3", "0.500000:1:square", "0.250000:0:circle"],
        ["4.000000:0:circle", "3.000000:1:square", "2.000000:2:triangle"],
    ]


def test_sequences_on_one_stream_have_separate_states(seen: Any) -> None:
    found, sums = seen["sequences"], np.cumsum([0, 11, 7, 5, 3, 2, 0, 1])
    assert found["sums"] == {"1001": (1 + sums).tolist(), "mine": (1 - sums).tolist()}
    assert found["outputs"] == ["OUTPUT"]
    assert found["after the end"][0] == found["without an id"][0] == "StatusCode.INVALID_ARGUMENT"


def test_decoupled_model_sends_a_response_for_each_row(seen: Any) -> None:
    rows = [[value, index] for index, value in enumerate([4, 2, 0, 1])]
    found = seen["decoupled"]
    assert found["plain"] == [[row, row[1] == 3, "r"] for row in rows]
    assert found["with an empty end"] == [*([row, False, "r"] for row in rows), [[], True, "r"]]
    assert found["unary"][0] == "StatusCode.UNIMPLEMENTED"


def test_shared_memory_holds_inputs_and_outputs(seen: Any) -> None:
    found = seen["shared_memory"]
    assert found["right"]
    assert found["raw"] == [0, 0]
    assert found["mixed"]
    assert found["status"] == [["given", "/edt_given", "128"], ["taken", "/edt_taken", "128"]]
    assert found["twice"][0] == "StatusCode.ALREADY_EXISTS"
    assert found["small"][0] == "StatusCode.INVALID_ARGUMENT"
    assert found["gone"][1][0] == "StatusCode.NOT_FOUND"
    assert found["all"] == [None, 0]
    assert seen["strings_in_shared_memory"] == ["a", "", "Größe"]


def test_stream_failed_request_does_not_affect_the_others(seen: Any) -> None:
    found = seen["streams_that_fail"]
    assert "missing" in found["lost"]
    assert found["found"]
    assert found["status"][0] == "StatusCode.NOT_FOUND"


def test_shared_memory_over_tcp_is_refused(daemon: Daemon) -> None:
    found = ask(daemon.tcp, "single", "shared_memory")
    assert found["single"]["right"]
    assert "unix socket" in found["shared_memory"]["failed"]


@pytest.mark.long
def test_shared_memory_over_tcp_works_if_allowed() -> None:
    daemon = Daemon(builds=False, config="allow_shared_memory_over_tcp = true\n")
    triton_models.simple(daemon.models)
    with daemon:
        daemon.ready("simple")
        assert ask(daemon.tcp, "shared_memory")["shared_memory"]["right"]
