"""Log records as text lines, JSON objects and journal entries."""

from __future__ import annotations

import io
import json
import logging
import os
import socket
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from edged import logs
from edged.logs.formats import JsonLines, PriorityLines, TextLines, about, priority
from edged.logs.output import Journal, Level, Output, goes_there


def record(
    message: str, *values: object, level: int = logging.INFO, name: str = "edged.x", **extra: str
) -> logging.LogRecord:
    """Return a record as a logger creates it."""
    return logging.getLogger(name).makeRecord(
        name, level, __file__, 7, message, values, sys.exc_info() if sys.exc_info()[0] else None, "f", extra or None
    )


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (record("model %s: read, digest %s", "door", "12"), {"model": "door"}),
        (record("model %s: engine %s (%s) serves", "d", "e1", "null"), {"model": "d", "engine": "e1"}),
        (record("engine %s of model %s: %5.1f ms", "e1", "d", 2.0), {"model": "d", "engine": "e1"}),
        (record("at %d %% of camera %.80r", 5, "yard"), {"camera": "yard"}),
        (record("engine host %s (pid %d)", "null", 3), {}),
        (record("remodel %s", "d"), {}),
        (record("model %s: engine %s", "d"), {"model": "d"}),  # one argument is missing, which logging only reports
        (record("%s", "all", model="d", event="alarm_raised"), {"event": "alarm_raised", "model": "d"}),
        (record("model %s", "d", model="", engine=""), {"model": "d"}),
    ],
)
def test_about_returns_names_from_template_and_extra(made: logging.LogRecord, expected: dict[str, str]) -> None:
    assert about(made) == expected


def test_text_line_escapes_control_characters() -> None:
    line = TextLines().format(record("model %s: read", "a\nb\x1b[2J\u2028\x9b", level=logging.WARNING))
    assert line.endswith(" W edged.x: model a\\nb\\x1b[2J\\u2028\\x9b: read")
    assert line[:4].isdecimal()


@pytest.mark.parametrize("form", [TextLines(), PriorityLines()])
def test_lines_traceback_never_looks_like_another_record(form: logging.Formatter) -> None:
    forged = "2026-05-01 10:00:00,000 W edged.access: all is well"
    try:
        raise ValueError(f"of a client\n{forged}\x1b[2J")
    except ValueError:
        lines = form.format(record("failed", level=logging.ERROR)).split("\n")
    assert "Traceback" in lines[1]
    assert all(line.removeprefix("<3>").startswith("  ") for line in lines[1:])
    assert lines[-1].endswith(f"  {forged}\\x1b[2J")


def test_json_line_is_one_object() -> None:
    try:
        raise KeyError("x")
    except KeyError:
        line = JsonLines().format(record("model %s: bad name\n%s", "d", "\udcff", level=logging.ERROR, camera="c"))
    assert "\n" not in line
    found = json.loads(line)
    assert found.pop("time").endswith("Z")
    assert found.pop("exception").endswith("KeyError: 'x'")
    assert found == {
        "level": "error",
        "logger": "edged.x",
        "message": "model d: bad name\n\\udcff",
        "model": "d",
        "camera": "c",
    }


def test_priority_lines_each_have_the_priority() -> None:
    try:
        raise KeyError("x")
    except KeyError:
        lines = PriorityLines().format(record("it\nfailed", level=logging.ERROR)).splitlines()
    assert lines[0] == "<3>edged.x: it\\nfailed"
    assert len(lines) > 3
    assert all(line.startswith("<3>") for line in lines)


def test_priority_of_levels_is_that_of_syslog() -> None:
    levels = (logging.CRITICAL, logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG, 1)
    assert [priority(level) for level in levels] == [2, 3, 4, 6, 7, 7]


@pytest.fixture
def listening() -> Iterator[tuple[socket.socket, str]]:
    """A socket like the journal's, and its path."""
    with (
        tempfile.TemporaryDirectory(prefix="edt-") as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal,
    ):
        journal.bind(f"{folder}/socket")
        journal.settimeout(10)
        yield journal, f"{folder}/socket"


def _entry(data: bytes) -> dict[str, str]:
    """Parse an entry as the journal does: https://systemd.io/JOURNAL_NATIVE_PROTOCOL."""
    found = {}
    while data:
        line, _, data = data.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            (size,) = struct.unpack("<Q", data[:8])
            value, data = data[8 : 8 + size], data[8 + size + 1 :]
        found[name.decode()] = value.decode()
    return found


def test_journal_entry_has_fields_for_searches(listening: tuple[socket.socket, str]) -> None:
    receiver, address = listening
    output = Output(io.StringIO(), Journal(address))
    output.shape("journal")
    output.handle(record("model %s: engine %s", "do=or", "e\nPRIORITY=0", level=logging.WARNING, event="x"))
    found = _entry(receiver.recv(1 << 16))
    output.close()
    assert found["PRIORITY"] == "4"
    assert found["MESSAGE"] == "model do=or: engine e\nPRIORITY=0"
    assert (found["EDGED_MODEL"], found["EDGED_ENGINE"]) == ("do=or", "e\nPRIORITY=0")
    assert (found["EDGED_EVENT"], found["EDGED_LOGGER"], found["SYSLOG_IDENTIFIER"]) == ("x", "edged.x", "edged")
    assert (found["CODE_FILE"], found["CODE_LINE"]) == (__file__, "7")


def test_output_without_journal_writes_priority_lines(tmp_path: Path) -> None:
    stream = io.StringIO()
    output = Output(stream, Journal(str(tmp_path / "nowhere")))
    output.shape("journal")
    output.handle(record("hello", level=logging.ERROR))
    output.close()
    assert stream.getvalue() == "<3>edged.x: hello\n"


def test_journal_that_is_too_busy_loses_counted_lines(listening: tuple[socket.socket, str]) -> None:
    receiver, address = listening
    stream = io.StringIO()
    journal = Journal(address)
    output = Output(stream, journal)
    output.shape("journal")
    sent = 0
    while sent < 2000:  # until the receiver's queue is full
        output.handle(record("line %d", sent))
        sent += 1
        if journal.lost:
            break
    assert journal.lost == 1
    took = [_entry(receiver.recv(1 << 16))["MESSAGE"] for _ in range(sent - 1)]
    output.handle(record("at last"))
    lost, last = (_entry(receiver.recv(1 << 16))["MESSAGE"] for _ in range(2))
    output.close()
    assert took == [f"line {number}" for number in range(sent - 1)]
    assert "1 lines were lost" in lost
    assert last == "at last"
    assert stream.getvalue() == ""


def test_goes_there_is_true_only_for_the_journals_descriptor(tmp_path: Path) -> None:
    with (tmp_path / "a").open("w") as ours, (tmp_path / "b").open("w") as other:
        is_at = os.fstat(ours.fileno())
        named = {"JOURNAL_STREAM": f"{is_at.st_dev}:{is_at.st_ino}"}
        assert goes_there(named, ours.fileno())
        assert not goes_there(named, other.fileno())
        for wrong in ({}, {"JOURNAL_STREAM": ""}, {"JOURNAL_STREAM": "x:y"}, {"JOURNAL_STREAM": "1"}):
            assert not goes_there(wrong, ours.fileno())
        assert isinstance(Output(ours).formatter, TextLines)


def test_output_auto_uses_the_journal_of_standard_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "a").open("w") as stream:
        is_at = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{is_at.st_dev}:{is_at.st_ino}")
        output = Output(stream, Journal(str(tmp_path / "nowhere")))
        output.handle(record("hello"))
        assert (tmp_path / "a").read_text() == "<6>edged.x: hello\n"
        output.shape("text")
        output.handle(record("again"))
        output.close()
    assert (tmp_path / "a").read_text().endswith(" I edged.x: again\n")


def test_output_with_another_formatter_changes_only_text() -> None:
    stream = io.StringIO()
    output = Output(stream)
    output.shape("json")
    output.setFormatter(logging.Formatter("changed %(message)s"))
    output.handle(record("a"))
    assert json.loads(stream.getvalue())["message"] == "a"
    output.shape("text")
    output.setFormatter(logging.Formatter("changed %(message)s"))
    output.handle(record("b"))
    assert stream.getvalue().endswith("changed b\n")


@pytest.mark.parametrize(("level", "enabled"), [("debug", 5), ("info", 4), ("warning", 3), ("error", 2)])
def test_reconfigure_sets_the_level(level: Level, enabled: int) -> None:
    root, ours = logging.getLogger(), logging.getLogger("edged")
    before = root.level, ours.level
    try:
        logs.reconfigure(logs.LogOptions(level=level))
        levels = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
        assert sum(logging.getLogger("edged.y").isEnabledFor(each) for each in levels) == enabled
        assert not logging.getLogger("library").isEnabledFor(logging.DEBUG)
    finally:
        root.setLevel(before[0])
        ours.setLevel(before[1])
