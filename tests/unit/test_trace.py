"""Request traces: settings, the choice of requests, records, and files."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.errors import InvalidInput
from edged.ipc.messages import Times
from edged.serving.trace import TraceFiles, TraceRecord, TraceSettings, Tracing, shown
from edged.serving.work import Answered, InputTensor, OutputTensor, TensorWork
from tests.fake_link import engine_ref

ALL = {"trace_level": ["TIMESTAMPS"], "trace_rate": ["1"]}
STEPS = ["REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]


def tracing_with(*changes: dict[str, list[str]], folder: Path = Path("unused")) -> Tracing:
    tracing = Tracing(folder)
    for values in changes:
        tracing.change(values)
    return tracing


def picked(tracing: Tracing, model: str, requests: int) -> list[int]:
    """Return the numbers, from 1, of the requests that are traced."""
    return [number for number in range(1, requests + 1) if tracing.begin(model, "1", "") is not None]


# -- settings ---------------------------------------------------------------------------------------------------------


def test_settings_are_shown_as_they_were_set() -> None:
    values = {
        "trace_file": ["mine.json"],
        "trace_level": ["TIMESTAMPS", "TENSORS"],
        "trace_rate": ["3"],
        "trace_count": ["7"],
        "log_frequency": ["2"],
        "trace_mode": ["triton"],
    }
    assert shown(tracing_with(values).settings()) == values


@pytest.mark.parametrize(
    ("words", "levels"),
    [
        (["OFF"], ["OFF"]),
        (["MAX"], ["TIMESTAMPS"]),
        (["MIN"], ["TIMESTAMPS"]),
        (["TENSORS", "TIMESTAMPS", "TENSORS"], ["TIMESTAMPS", "TENSORS"]),
    ],
)
def test_settings_levels_have_older_names(words: list[str], levels: list[str]) -> None:
    assert shown(tracing_with({"trace_level": words}).settings())["trace_level"] == levels


PATHS = ("", ".", "..", "../x", "/etc/passwd", "a/b", ".hidden", "a\x00b", "a\nb", "a b", "x" * 101, "-x", "ü")


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        *(("trace_file", [name]) for name in PATHS),
        ("trace_rate", ["0"]),
        ("trace_rate", ["-1"]),
        ("trace_rate", ["1", "2"]),
        ("trace_rate", ["many"]),
        ("trace_rate", ["1.5"]),
        ("trace_rate", ["99999999999999999999"]),
        ("trace_rate", ["٣"]),  # a digit that int() accepts
        ("trace_count", ["-2"]),
        ("log_frequency", ["-1"]),
        ("trace_level", ["LOUD"]),
        ("trace_level", ["TIMESTAMPS", "LOUD"]),
        ("trace_mode", ["opentelemetry"]),
        ("trace_colour", ["red"]),
    ],
)
def test_settings_that_are_invalid_are_refused_by_name_and_change_nothing(setting: str, values: list[str]) -> None:
    tracing = tracing_with()
    with pytest.raises(InvalidInput, match=setting):
        tracing.change({"trace_level": ["TENSORS"], setting: values})
    assert (tracing.settings(), tracing.is_on) == (TraceSettings(), False)


@given(
    st.dictionaries(
        st.sampled_from([*shown(TraceSettings()), "trace_colour"]) | st.text(),
        st.lists(st.text() | st.integers().map(str), max_size=3),
    )
)
def test_settings_of_any_text_are_accepted_or_refused(values: dict[str, list[str]]) -> None:
    with contextlib.suppress(InvalidInput):
        settings = tracing_with(values).settings()
        assert settings.rate >= 1
        assert "/" not in settings.file


def test_settings_of_a_model_replace_those_of_all_one_by_one() -> None:
    tracing = Tracing(Path("unused"))
    tracing.change({"trace_rate": ["3"]}, "own")
    tracing.change({"trace_level": ["TENSORS"], "trace_rate": ["5"], "trace_file": ["all.json"]})
    assert tracing.settings("own") == TraceSettings("all.json", ("TENSORS",), 3)
    tracing.change({"trace_rate": []}, "own")
    assert tracing.settings("own") == tracing.settings() == TraceSettings("all.json", ("TENSORS",), 5)


def test_settings_that_are_removed_are_the_defaults_again() -> None:
    tracing = tracing_with({**ALL, "trace_count": ["5"]})
    tracing.change({"trace_level": ["TENSORS"]}, "own")
    tracing.change({"trace_level": [], "trace_rate": [], "trace_count": []})
    assert tracing.is_on  # one model is still traced
    tracing.change({"trace_level": []}, "own")
    assert (tracing.settings(), tracing.settings("own"), tracing.is_on) == (TraceSettings(), TraceSettings(), False)


# -- the choice of requests -------------------------------------------------------------------------------------------


@given(rate=st.integers(1, 50), count=st.integers(-1, 20), requests=st.integers(0, 300))
def test_begin_traces_every_request_of_the_rate_until_the_count(rate: int, count: int, requests: int) -> None:
    tracing = tracing_with({**ALL, "trace_rate": [str(rate)], "trace_count": [str(count)]})
    due = list(range(rate, requests + 1, rate))
    expected = due if count < 0 else due[:count]
    assert picked(tracing, "m", requests) == expected
    assert tracing.settings().count == (-1 if count < 0 else count - len(expected))


def test_begin_without_settings_traces_nothing_and_makes_no_folder(tmp_path: Path) -> None:
    tracing = tracing_with(folder=tmp_path / "traces")
    assert picked(tracing, "m", 5000) == []
    assert not (tmp_path / "traces").exists()


def test_begin_counts_models_with_settings_separately() -> None:
    tracing = tracing_with({**ALL, "trace_rate": ["2"], "trace_count": ["3"]})
    tracing.change({"trace_rate": ["1"]}, "own")
    tracing.change({"trace_level": ["OFF"]}, "quiet")
    assert [picked(tracing, model, 10) for model in ("own", "quiet", "other")] == [[1, 2, 3], [], [2, 4, 6]]
    assert (tracing.settings("own").count, tracing.settings("other").count) == (0, 0)


def test_begin_counts_again_after_the_count_is_set_again() -> None:
    tracing = tracing_with({**ALL, "trace_count": ["2"]})
    assert picked(tracing, "m", 4) == [1, 2]
    tracing.change({"log_frequency": ["1"]})
    assert picked(tracing, "m", 4) == []
    tracing.change({"trace_count": ["2"]})
    assert picked(tracing, "m", 4) == [1, 2]
    tracing.change({"trace_rate": ["2"]}, "own")
    assert picked(tracing, "own", 6) == [2, 4]
    tracing.change({"trace_count": ["2"]}, "other")
    assert picked(tracing, "own", 6) == []
    tracing.change({"trace_count": ["2"]})
    assert picked(tracing, "own", 6) == [2, 4]


# -- records ----------------------------------------------------------------------------------------------------------


def work_of(datatype: str = "FP32", shape: tuple[int, ...] = (1,), data: bytes = b"\x00\x00\x80\x3f") -> TensorWork:
    return TensorWork((InputTensor("x", datatype, shape, data),), None)


ANSWER = Answered(
    engine_ref("key"),
    None,
    (OutputTensor("y", "INT32", (2,), b"\x01\x00\x00\x00\x02\x00\x00\x00"),),
    0,
    0,
    queue_ms=1.5,
    times=Times(prepare_ms=0.25, infer_ms=4.0, postprocess_ms=0.5),
)


async def trace(
    folder: Path, settings: dict[str, list[str]], *works: TensorWork, answer: Answered | None = ANSWER
) -> None:
    """Trace requests of model m, version 3, with these settings."""
    tracing = tracing_with({"trace_rate": ["1"], **settings}, folder=folder)
    for number, work in enumerate(works):
        request = tracing.begin("m", "3", f"id {number}")
        assert request is not None
        request.end(work, answer)
    await tracing.close()


def entries(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found


def numbers(path: Path) -> list[int]:
    return sorted({entry["id"] for entry in entries(path)})


async def test_trace_steps_have_the_durations_of_the_answer(tmp_path: Path) -> None:
    before = time.monotonic_ns()
    await trace(tmp_path, ALL, work_of())
    head, stamps = entries(tmp_path / "trace.json")
    assert head == {"id": 1, "model_name": "m", "model_version": 3, "request_id": "id 0"}
    at = {stamp["name"]: stamp["ns"] for stamp in stamps["timestamps"]}
    assert list(at) == [*STEPS, "REQUEST_END"]
    took = [at[later] - at[earlier] for earlier, later in itertools.pairwise(STEPS[1:])]
    assert took == pytest.approx([1.5e6, 0.25e6, 4e6, 0.5e6], abs=2)
    assert before <= at["REQUEST_START"] <= at["REQUEST_END"] <= time.monotonic_ns()


async def test_trace_of_a_request_without_an_answer_ends(tmp_path: Path) -> None:
    await trace(tmp_path, {"trace_level": ["TIMESTAMPS", "TENSORS"]}, work_of(), answer=None)
    _, tensor, stamps = entries(tmp_path / "trace.json")
    assert tensor["activity"] == "TENSOR_QUEUE_INPUT"
    assert [stamp["name"] for stamp in stamps["timestamps"]] == ["REQUEST_START", "QUEUE_START", "REQUEST_END"]


@pytest.mark.parametrize(
    ("datatype", "data", "shown"),
    [
        ("FP32", b"\x00\x00\x80\x3f", "1.0"),
        ("FP32", b"\x00\x00\xc0\x7f", "nan"),
        ("BF16", b"\x80\x3f\x00\xc0", "1.0,-2.0"),
        ("BYTES", b"\x02\x00\x00\x00hi\x01\x00\x00\x00\xff", '"hi","\ufffd"'),
        ("BYTES", b"\x02\x00\x00\x00hi\x09\x00\x00\x00cut", '"hi"'),
        ("BOOL", b"\x01\x00", "True,False"),
        ("UINT8", b"", ""),
        ("UINT8", bytes(1 << 20), ",".join("0" * 4096)),
    ],
    ids=["FP32", "NaN", "BF16", "BYTES", "BYTES cut short", "BOOL", "empty", "large"],
)
async def test_trace_tensors_are_written_in_decimal(tmp_path: Path, datatype: str, data: bytes, shown: str) -> None:
    await trace(tmp_path, {"trace_level": ["TENSORS"]}, work_of(datatype, (len(data),), data))
    _, given, answered = entries(tmp_path / "trace.json")
    assert given["tensor"] == {"name": "x", "data": shown, "shape": str(len(data)), "dtype": datatype}
    assert answered["activity"] == "TENSOR_BACKEND_OUTPUT"
    assert answered["tensor"] == {"name": "y", "data": "1,2", "shape": "2", "dtype": "INT32"}


async def test_trace_frequency_divides_traces_into_files(tmp_path: Path) -> None:
    await trace(tmp_path, {**ALL, "log_frequency": ["2"], "trace_file": ["t"]}, *(work_of() for _ in range(5)))
    assert {path.name: numbers(path) for path in tmp_path.iterdir()} == {"t.0": [1, 2], "t.1": [3, 4], "t.2": [5]}


async def test_traces_beyond_the_queue_are_dropped_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    await trace(tmp_path, ALL, *(work_of() for _ in range(1500)), answer=None)
    assert len(numbers(tmp_path / "trace.json")) == 1000
    assert "500 traces were dropped" in caplog.text


# -- files ------------------------------------------------------------------------------------------------------------


def write(files: TraceFiles, *numbers: int) -> None:
    for number in numbers:
        stamps = (("REQUEST_START", number), ("REQUEST_END", number + 1))
        files.write([(TraceSettings(file="t.json"), TraceRecord(number, "m", "1", "", stamps, ()))])


def test_files_are_valid_json_after_every_write(tmp_path: Path) -> None:
    place, files = tmp_path / "t.json", TraceFiles(tmp_path)
    place.write_text("of a daemon that was killed in mid-write" * 100)
    for number in range(1, 6):
        write(files, number)
        assert numbers(place) == list(range(1, number + 1))
    files.restart("t.json")
    write(files, 6)
    assert numbers(place) == [6]
    place.unlink()
    write(files, 7)
    assert numbers(place) == [7]


@pytest.mark.parametrize("limits", [{"file_bytes": 1000}, {"folder_bytes": 1000 + 9000}], ids=str)
def test_files_do_not_exceed_their_limits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, limits: dict[str, int]
) -> None:
    (tmp_path / "other").write_bytes(bytes(9000))
    write(TraceFiles(tmp_path, **limits), *range(1, 50))
    assert (tmp_path / "t.json").stat().st_size <= 1000
    assert 2 < len(numbers(tmp_path / "t.json")) < 20
    assert caplog.text.count("traces are dropped") == 1
    assert f"traces are dropped: {tmp_path / 't.json' if 'file_bytes' in limits else tmp_path} has" in caplog.text


@pytest.mark.parametrize("is_link", [True, False], ids=["a link as file", "a file as folder"])
def test_files_that_cannot_be_written_are_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_link: bool
) -> None:
    target, folder = tmp_path / "precious", tmp_path / "traces"
    target.write_text("precious")
    if is_link:
        folder.mkdir()
        (folder / "t.json").symlink_to(target)
    else:
        folder.write_text("in the way")
    write(TraceFiles(folder), *range(5))
    assert target.read_text() == "precious"
    assert caplog.text.count("cannot write") == 1
