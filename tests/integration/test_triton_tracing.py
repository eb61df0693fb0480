"""TraceSetting and LogSettings of a real daemon, checked in the files that it writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.integration import onnx_files
from tests.integration.daemon import Daemon, wait_for
from tests.integration.inference_calls import Calls, refusal, request


@pytest.fixture(scope="module")
def traced() -> Iterator[Daemon]:
    daemon = Daemon(builds=False)
    for name in ("one", "two"):
        onnx_files.identity(daemon.models / f"{name}.onnx", "FP32")
    with daemon:
        daemon.settled("one")
        daemon.settled("two")
        yield daemon


@pytest.fixture
def calls(traced: Daemon) -> Iterator[Calls]:
    with Calls(traced.unix) as calls:
        yield calls
        clear = dict.fromkeys(calls.trace().keys() - {"trace_mode"}, ())
        for model in ("one", "two", ""):
            calls.trace(model, **clear)


def _ask(calls: Calls, model: str, times: int = 1) -> None:
    for number in range(times):
        calls.infer(request(model, np.ones((2, 4), np.float32), id=str(number)))


def _entries(daemon: Daemon, name: str, at_least: int = 1) -> list[dict[str, Any]]:
    """Return the entries of a trace file once it has enough requests."""
    path = daemon.state / "traces" / name

    def read() -> list[dict[str, Any]]:
        text = path.read_text() if path.exists() else ""
        found: list[dict[str, Any]] = json.loads(text) if text.rstrip().endswith("]") else []
        return found if len({entry["id"] for entry in found}) >= at_least else []

    return wait_for(f"{name} holds {at_least} traces", read, 20)


def test_every_third_request_of_one_model_is_traced(traced: Daemon, calls: Calls) -> None:
    settings = {"trace_level": ["TIMESTAMPS"], "trace_rate": ["3"], "trace_file": ["third.json"]}
    assert {name: calls.trace("one", **settings)[name] for name in settings} == settings
    _ask(calls, "one", 9)
    _ask(calls, "two", 9)
    entries = _entries(traced, "third.json", 3)
    heads = [entry for entry in entries if "model_name" in entry]
    assert [(head["model_name"], head["model_version"], head["request_id"]) for head in heads] == [
        ("one", 1, number) for number in ("2", "5", "8")
    ]
    for entry in entries:
        at = [stamp["ns"] for stamp in entry.get("timestamps", ())]
        assert at == sorted(at)
    assert calls.trace("two")["trace_level"] == ["OFF"]


def test_trace_ignores_an_invalid_request(traced: Daemon, calls: Calls) -> None:
    daemon_file = "failed.json"
    calls.trace(trace_level=["TIMESTAMPS"], trace_rate=["1"], trace_file=[daemon_file])
    with pytest.raises(grpc.RpcError):
        calls.infer(request("one", np.ones((2, 4), np.float32), "nonsense"))
    _ask(calls, "one")
    assert len({entry["id"] for entry in _entries(traced, daemon_file)}) == 1  # the invalid request is not traced


@pytest.mark.parametrize("name", ["../escaped", "/tmp/escaped"])
def test_trace_file_outside_the_folder_is_refused(traced: Daemon, calls: Calls, name: str) -> None:
    assert refusal(calls.trace, trace_file=[name])[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert calls.trace()["trace_file"] == ["trace.json"]
    assert not list(traced.home.rglob("escaped*"))
    assert not Path("/tmp/escaped").exists()


def test_trace_settings_of_an_unknown_model_are_not_found(calls: Calls) -> None:
    assert refusal(calls.trace, "nobody", trace_rate=["1"])[0] is grpc.StatusCode.NOT_FOUND


def test_stop_writes_pending_traces(tmp_path: Path) -> None:
    with Daemon(builds=False) as daemon:
        onnx_files.identity(daemon.models / "m.onnx", "FP32")
        daemon.ready("m")
        with Calls(daemon.unix) as calls:
            calls.trace(trace_level=["TIMESTAMPS"], trace_rate=["1"])
            _ask(calls, "m")
        assert daemon.stop() == 0
        assert len({entry["id"] for entry in json.loads((daemon.state / "traces" / "trace.json").read_text())}) == 1


def test_verbose_log_has_every_call_and_the_default_has_none(traced: Daemon, calls: Calls) -> None:
    def reported() -> int:
        return traced.log.read_text().count("inference.GRPCInferenceService/ModelInfer: OK")

    before = reported()
    _ask(calls, "one")
    assert calls.log(log_verbose_level=1)["log_verbose_level"] == 1
    _ask(calls, "one", 3)
    calls.log(log_verbose_level=0)
    _ask(calls, "one")
    assert reported() == before + 3
