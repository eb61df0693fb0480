"""What Triton's example clients do, with NVIDIA's own client in a process of its own, against models of theirs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import triton_models
from tests.integration.daemon import Daemon

FIRST, SECOND = np.arange(16), np.full(16, 3)
NAMES = ("classes", "repeat_int32", "simple", "simple_identity", "simple_int8", "simple_sequence", "simple_string")


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    daemon = Daemon(builds=False)
    triton_models.write_all(daemon.models)
    with daemon:
        for name in NAMES:
            daemon.ready(name)
        yield daemon


def ask(address: str, *flows: str) -> Any:
    """What each flow saw, all of them unless they are named."""
    # A process of its own: two definitions of the protocol's messages cannot live in one.
    peer = Path(__file__).with_name("triton_flows.py")
    done = subprocess.run([sys.executable, str(peer), address, *flows], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def seen(daemon: Daemon) -> Any:
    return ask(daemon.unix)


@pytest.mark.parametrize("client", ["every_call", "every_call_with_asyncio"])
def test_every_call_of_the_client_is_answered(seen: Any, client: str) -> None:
    found = seen[client]
    assert found == {
        "live": True,
        "ready": True,
        "model": True,
        "extensions": found.get("extensions"),
        "inputs": [["INPUT0", [-1, 16]], ["INPUT1", [-1, 16]]],
        "config": ["simple", 8],
        "index": sorted(NAMES),
        "statistics": "simple",
        "log": True,
        "trace": "7",
        "regions": 0,
        "cuda": 0,
        "cuda_register": "StatusCode.UNIMPLEMENTED",
        "load": "StatusCode.FAILED_PRECONDITION",  # models come and go with the folder
        "unload": "StatusCode.FAILED_PRECONDITION",
    }
    assert {"classification", "sequence", "system_shared_memory", "binary_tensor_data"} <= set(found["extensions"])
    assert "cuda_shared_memory" not in found["extensions"]


def test_a_request_is_answered_with_its_id_and_the_outputs_it_wants(seen: Any) -> None:
    found = seen["single"]
    assert found["right"]
    assert (found["id"], found["version"], found["only"]) == ("seven", "1", [True, True])
    assert found["options"]
    assert found["in time"]
    assert found["compressed"][0] == "StatusCode.UNIMPLEMENTED"
    assert found["unknown"][0] == "StatusCode.NOT_FOUND"


def test_requests_without_waiting_are_answered_each_to_its_caller(seen: Any) -> None:
    assert seen["asynchronous"] == {"errors": [], "ids": list(range(20)), "right": True}


def test_the_client_for_asyncio_is_answered_alike(seen: Any) -> None:
    found = seen["with_asyncio"]
    assert found["live"]
    assert found["metadata"] == "simple"
    assert found["right"]
    assert found["streamed"]
    assert found["ids"] == ["0", "1", "2", "3", "4"]
    assert "nobody" in found["lost"]


def test_clients_may_ping_as_they_like(seen: Any) -> None:
    assert seen["keepalive_and_channel_options"] == {"right": True, "again": True, "custom": True}


def test_inputs_and_outputs_can_be_used_again(seen: Any) -> None:
    assert seen["reused_objects"] == [True] * 4


def test_small_numbers_and_strings_are_computed_with(seen: Any) -> None:
    assert seen["other_datatypes"] == {"int8": True, "sum": True, "identity": True}


def test_typed_contents_are_answered_with_raw_ones(seen: Any) -> None:
    assert seen["typed_contents"] == (FIRST + SECOND).tolist()


def test_classes_have_their_labels(seen: Any) -> None:
    assert seen["classification"] == [
        ["0.750000:3", "0.500000:1:square", "0.250000:0:circle"],
        ["4.000000:0:circle", "3.000000:1:square", "2.000000:2:triangle"],
    ]


def test_sequences_on_one_stream_keep_their_own_sums(seen: Any) -> None:
    found, sums = seen["sequences"], np.cumsum([0, 11, 7, 5, 3, 2, 0, 1])
    assert found["sums"] == {"1001": (1 + sums).tolist(), "mine": (1 - sums).tolist()}
    assert found["outputs"] == ["OUTPUT"]
    assert found["after the end"][0] == found["without an id"][0] == "StatusCode.INVALID_ARGUMENT"


def test_a_decoupled_model_answers_with_a_response_for_each_row(seen: Any) -> None:
    rows = [[value, index] for index, value in enumerate([4, 2, 0, 1])]
    found = seen["decoupled"]
    assert found["plain"] == [[row, row[1] == 3, "r"] for row in rows]
    assert found["with an empty end"] == [*([row, False, "r"] for row in rows), [[], True, "r"]]
    assert found["unary"][0] == "StatusCode.UNIMPLEMENTED"


def test_inputs_and_outputs_may_lie_in_shared_memory(seen: Any) -> None:
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


def test_a_request_of_a_stream_that_fails_leaves_the_others_alone(seen: Any) -> None:
    found = seen["streams_that_fail"]
    assert "nobody" in found["lost"]
    assert found["found"]
    assert found["status"][0] == "StatusCode.NOT_FOUND"


def test_shared_memory_is_not_for_clients_that_come_by_tcp(daemon: Daemon) -> None:
    found = ask(daemon.tcp, "single", "shared_memory")
    assert found["single"]["right"]
    assert "unix socket" in found["shared_memory"]["failed"]


@pytest.mark.long
def test_shared_memory_over_tcp_only_if_allowed(tmp_path: Path) -> None:
    (tmp_path / "edged.toml").write_text("allow_shared_memory_over_tcp = true\n")
    daemon = Daemon("--config", str(tmp_path / "edged.toml"), builds=False)
    triton_models.simple(daemon.models)
    with daemon:
        daemon.ready("simple")
        assert ask(daemon.tcp, "shared_memory")["shared_memory"]["right"]
