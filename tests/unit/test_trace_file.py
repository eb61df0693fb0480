"""Files of traces: always whole JSON, never larger than they may be, never anywhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edged.serving.trace import TraceFiles, TraceRecord
from edged.serving.trace_settings import TraceSettings

_ONE = TraceSettings(file="t.json")


def _record(number: int) -> tuple[TraceSettings, TraceRecord]:
    return _ONE, TraceRecord(number, "m", "1", "", (("REQUEST_START", number), ("REQUEST_END", number + 1)), ())


def _numbers(path: Path) -> list[Any]:
    return sorted({entry["id"] for entry in json.loads(path.read_text())})


def test_a_file_is_whole_after_every_write(tmp_path: Path) -> None:
    files = TraceFiles(tmp_path)
    for number in range(1, 6):
        files.write([_record(number)])
        assert _numbers(tmp_path / "t.json") == list(range(1, number + 1))


def test_what_a_file_held_of_an_earlier_time_gives_way(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("of a daemon that was killed in mid-write" * 100)
    TraceFiles(tmp_path).write([_record(1), _record(2)])
    assert _numbers(tmp_path / "t.json") == [1, 2]


def test_a_file_that_is_set_again_begins_again(tmp_path: Path) -> None:
    files = TraceFiles(tmp_path)
    files.write([_record(1)])
    files.begin_anew("t.json")
    files.write([_record(2)])
    assert _numbers(tmp_path / "t.json") == [2]


def test_a_file_that_is_removed_meanwhile_comes_again_whole(tmp_path: Path) -> None:
    files = TraceFiles(tmp_path)
    files.write([_record(1)])
    (tmp_path / "t.json").unlink()
    files.write([_record(2)])
    assert _numbers(tmp_path / "t.json") == [2]


def test_a_file_does_not_outgrow_its_limit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = TraceFiles(tmp_path, file_bytes=1000)
    for number in range(1, 50):
        files.write([_record(number)])
    assert (tmp_path / "t.json").stat().st_size <= 1000
    assert 2 < len(_numbers(tmp_path / "t.json")) < 20
    assert caplog.text.count("traces are dropped") == 1


def test_the_folder_does_not_outgrow_its_limit(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(bytes(9_500))
    files = TraceFiles(tmp_path, folder_bytes=10_000)
    files.write([_record(number) for number in range(1, 50)])
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 10_000
    assert 0 < len(_numbers(tmp_path / "t.json")) < 49


def test_a_link_is_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target = tmp_path / "precious"
    target.write_text("precious")
    folder = tmp_path / "traces"
    folder.mkdir()
    (folder / "t.json").symlink_to(target)
    TraceFiles(folder).write([_record(1)])
    assert target.read_text() == "precious"
    assert "cannot be written" in caplog.text


def test_a_folder_that_cannot_be_written_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "traces").write_text("a file where the folder should be")
    files = TraceFiles(tmp_path / "traces")
    for number in range(5):
        files.write([_record(number)])
    assert caplog.text.count("cannot be written") == 1
