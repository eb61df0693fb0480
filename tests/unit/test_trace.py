"""Which requests are traced, and what is written of them."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.errors import InvalidInput
from edged.ipc.messages import Times
from edged.serving.trace import Tracing
from edged.serving.work import Answered, EngineRef, InputTensor, OutputTensor, TensorWork
from edged.vision.family import Recognition, Thresholds

_STEPS = ["REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]

_NONE = Recognition(None, "", None, "", (), Thresholds())


def _answer(queue_ms: float, times: Times, data: bytes = b"\x01\x00\x00\x00\x02\x00\x00\x00") -> Answered:
    outputs = (OutputTensor("y", "INT32", (2,), data),)
    return Answered(EngineRef("key", "null", "model", _NONE), None, outputs, 0, 0, queue_ms, times)


def _work(datatype: str = "FP32", shape: tuple[int, ...] = (1,), data: bytes = b"\x00\x00\x80\x3f") -> TensorWork:
    return TensorWork((InputTensor("x", datatype, shape, data),), None)


def _picked(tracing: Tracing, model: str, requests: int) -> list[int]:
    """The numbers, from 1, of the requests that are traced."""
    return [number for number in range(1, requests + 1) if tracing.begin(model, "1", "") is not None]


def _entries(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found


def _trace(folder: Path, settings: Mapping[str, Sequence[str]], requests: int = 1, work: Any = _work) -> None:
    """Requests of model m, answered at once, with nothing else set."""

    async def run() -> None:
        tracing = Tracing(folder)
        tracing.change(settings)
        for number in range(requests):
            if (trace := tracing.begin("m", "3", f"id {number}")) is not None:
                trace.end(work(), _answer(1.5, Times(prepare_ms=0.25, infer_ms=4.0, postprocess_ms=0.5)))
        await tracing.close()

    asyncio.run(run())


def test_nothing_is_traced_unless_it_is_asked_for(tmp_path: Path) -> None:
    tracing = Tracing(tmp_path / "traces")
    assert not tracing.is_on
    assert _picked(tracing, "m", 5000) == []
    assert not (tmp_path / "traces").exists()


@given(rate=st.integers(1, 50), count=st.integers(-1, 20), requests=st.integers(0, 300))
def test_every_request_of_the_rate_is_traced_until_the_count_is_used_up(rate: int, count: int, requests: int) -> None:
    tracing = Tracing(Path("unused"))
    tracing.change({"trace_level": ["TIMESTAMPS"], "trace_rate": [str(rate)], "trace_count": [str(count)]})
    due = list(range(rate, requests + 1, rate))
    expected = due if count < 0 else due[:count]
    assert _picked(tracing, "m", requests) == expected
    assert tracing.settings().count == (-1 if count < 0 else count - len(expected))


def test_a_model_with_settings_of_its_own_is_traced_by_them_and_counts_for_itself() -> None:
    tracing = Tracing(Path("unused"))
    tracing.change({"trace_level": ["TIMESTAMPS"], "trace_rate": ["2"], "trace_count": ["3"]})
    tracing.change({"trace_rate": ["1"]}, "own")
    assert _picked(tracing, "own", 10) == [1, 2, 3]
    assert (tracing.settings("own").count, tracing.settings("other").count) == (0, 3)
    assert _picked(tracing, "other", 10) == [2, 4, 6]


def test_what_is_set_for_all_holds_for_a_model_where_it_has_nothing_of_its_own() -> None:
    tracing = Tracing(Path("unused"))
    tracing.change({"trace_rate": ["3"]}, "own")
    tracing.change({"trace_level": ["TENSORS"], "trace_rate": ["5"], "trace_file": ["all.json"]})
    assert (tracing.settings("own").rate, tracing.settings("own").levels) == (3, ("TENSORS",))
    assert tracing.settings("own").file == "all.json"
    tracing.change({"trace_rate": []}, "own")
    assert tracing.settings("own") == tracing.settings()


def test_one_model_can_be_left_out() -> None:
    tracing = Tracing(Path("unused"))
    tracing.change({"trace_level": ["TIMESTAMPS"], "trace_rate": ["1"]})
    tracing.change({"trace_level": ["OFF"]}, "quiet")
    assert _picked(tracing, "quiet", 5) == []
    assert _picked(tracing, "other", 2) == [1, 2]


def test_everything_taken_back_is_as_it_was_at_the_start() -> None:
    tracing = Tracing(Path("unused"))
    before = tracing.settings()
    tracing.change({"trace_level": ["TIMESTAMPS"], "trace_rate": ["1"], "trace_count": ["5"]})
    tracing.change({"trace_level": ["TENSORS"]}, "own")
    tracing.change({"trace_level": [], "trace_rate": [], "trace_count": []})
    assert tracing.is_on  # of one model there is still something to trace
    tracing.change({"trace_level": []}, "own")
    assert (tracing.settings(), tracing.settings("own"), tracing.is_on) == (before, before, False)


def test_a_count_that_is_set_again_begins_again_and_other_changes_leave_it() -> None:
    tracing = Tracing(Path("unused"))
    tracing.change({"trace_level": ["TIMESTAMPS"], "trace_rate": ["1"], "trace_count": ["2"]})
    assert _picked(tracing, "m", 4) == [1, 2]
    tracing.change({"log_frequency": ["1"]})
    assert _picked(tracing, "m", 4) == []
    tracing.change({"trace_count": ["2"]})
    assert _picked(tracing, "m", 4) == [1, 2]


def test_a_change_that_is_refused_changes_nothing() -> None:
    tracing = Tracing(Path("unused"))
    with pytest.raises(InvalidInput):
        tracing.change({"trace_level": ["TIMESTAMPS"], "trace_rate": ["0"]})
    assert (tracing.settings(), tracing.is_on) == (Tracing(Path("unused")).settings(), False)


def test_the_steps_of_a_request_last_as_long_as_its_answer_says(tmp_path: Path) -> None:
    before = time.monotonic_ns()
    _trace(tmp_path, {"trace_level": ["TIMESTAMPS"], "trace_rate": ["1"]})
    head, stamps = _entries(tmp_path / "trace.json")
    assert head == {"id": 1, "model_name": "m", "model_version": 3, "request_id": "id 0"}
    at = {stamp["name"]: stamp["ns"] for stamp in stamps["timestamps"]}
    assert list(at) == [*_STEPS, "REQUEST_END"]
    took = [at[later] - at[earlier] for earlier, later in itertools.pairwise(_STEPS[1:])]
    assert took == pytest.approx([1.5e6, 0.25e6, 4e6, 0.5e6], abs=2)
    assert before <= at["REQUEST_START"] <= at["REQUEST_END"] <= time.monotonic_ns()


def test_a_request_without_an_answer_ends_all_the_same(tmp_path: Path) -> None:
    async def run() -> None:
        tracing = Tracing(tmp_path)
        tracing.change({"trace_level": ["TIMESTAMPS", "TENSORS"], "trace_rate": ["1"]})
        trace = tracing.begin("m", "1", "")
        assert trace is not None
        trace.end(_work(), None)
        await tracing.close()

    asyncio.run(run())
    head, given_, stamps = _entries(tmp_path / "trace.json")
    assert "request_id" not in head
    assert given_["activity"] == "TENSOR_QUEUE_INPUT"
    assert [stamp["name"] for stamp in stamps["timestamps"]] == ["REQUEST_START", "QUEUE_START", "REQUEST_END"]


def test_tensors_are_written_in_decimal(tmp_path: Path) -> None:
    _trace(tmp_path, {"trace_level": ["TENSORS"], "trace_rate": ["1"]})
    _, given_, answered = _entries(tmp_path / "trace.json")
    assert given_["tensor"] == {"name": "x", "data": "1.0", "shape": "1", "dtype": "FP32"}
    assert answered["activity"] == "TENSOR_BACKEND_OUTPUT"
    assert answered["tensor"] == {"name": "y", "data": "1,2", "shape": "2", "dtype": "INT32"}


@pytest.mark.parametrize(
    ("datatype", "data", "shown"),
    [
        ("BF16", b"\x80\x3f\x00\xc0", "1.0,-2.0"),
        ("BYTES", b"\x02\x00\x00\x00hi\x01\x00\x00\x00\xff", '"hi","\ufffd"'),
        ("BYTES", b"\x02\x00\x00\x00hi\x09\x00\x00\x00cut", '"hi"'),
        ("BOOL", b"\x01\x00", "True,False"),
        ("FP32", b"\x00\x00\xc0\x7f", "nan"),
        ("UINT8", b"", ""),
    ],
)
def test_every_datatype_is_written(tmp_path: Path, datatype: str, data: bytes, shown: str) -> None:
    settings = {"trace_level": ["TENSORS"], "trace_rate": ["1"]}
    _trace(tmp_path, settings, work=lambda: _work(datatype, (2,), data))
    assert _entries(tmp_path / "trace.json")[1]["tensor"]["data"] == shown


def test_of_a_large_tensor_the_start_is_written(tmp_path: Path) -> None:
    settings = {"trace_level": ["TENSORS"], "trace_rate": ["1"]}
    _trace(tmp_path, settings, work=lambda: _work("UINT8", (1 << 20,), bytes(1 << 20)))
    tensor = _entries(tmp_path / "trace.json")[1]["tensor"]
    assert (tensor["shape"], tensor["data"].count("0")) == (str(1 << 20), 4096)


def test_with_a_frequency_there_are_several_files(tmp_path: Path) -> None:
    settings = {"trace_level": ["TIMESTAMPS"], "trace_rate": ["1"], "log_frequency": ["2"], "trace_file": ["t"]}
    _trace(tmp_path, settings, requests=5)
    numbers = {path.name: sorted({e["id"] for e in _entries(path)}) for path in tmp_path.iterdir()}
    assert numbers == {"t.0": [1, 2], "t.1": [3, 4], "t.2": [5]}


def test_what_is_slower_than_the_disk_is_dropped_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        tracing = Tracing(tmp_path)
        tracing.change({"trace_level": ["TIMESTAMPS"], "trace_rate": ["1"]})
        for _ in range(1500):
            trace = tracing.begin("m", "1", "")
            assert trace is not None
            trace.end(_work(), None)
        await tracing.close()

    asyncio.run(run())
    assert len({entry["id"] for entry in _entries(tmp_path / "trace.json")}) == 1000
    assert "500 traces were dropped" in caplog.text
