"""Names of models, cameras and boxes cannot send control characters to a terminal."""

from __future__ import annotations

import io

import pytest
from rich.table import Table

from edged import formatting
from edged.cli import common
from edged.cli.common import DataConsole

_EVIL = "door\x1b[2J\x07\x9b1m\u2028\udcff"
_SHOWN = "door\\x1b[2J\\x07\\x9b1m\\u2028\\udcff"


def test_console_escapes_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("NAME", "STATE", box=None)
    table.add_row(_EVIL, "ready")
    terminal = io.StringIO()
    DataConsole(file=terminal, force_terminal=True, color_system=None, width=80).print(table)
    common.show(table)
    common.show(_EVIL)
    common.say(_EVIL)
    printed = capsys.readouterr()
    assert f"{_SHOWN}  ready" in terminal.getvalue()
    assert "\x1b[2J" not in terminal.getvalue()
    assert (printed.out.count(_SHOWN), "\x1b" in printed.out, printed.err) == (2, False, f"{_SHOWN}\n")
    assert formatting.shown("größe a\nb\x1b[31m\u202e") == "größe a\\nb\\x1b[31m\\u202e"


def test_show_prints_markup_literally_and_keeps_lines(capsys: pytest.CaptureFixture[str]) -> None:
    common.show("[red]door[/] :smile:\n\tfront\u00e9")
    assert capsys.readouterr().out == "[red]door[/] :smile:\n        front\u00e9\n"


def test_skipped_are_shares_of_received_frames() -> None:
    assert formatting.skipped({"stale": 1, "newer": 3, "gone": 0}, 10) == "newer 30%, stale 10%"
    assert formatting.skipped({"newer": 3}, 0) == "newer 100%"


def test_print_closed_pipe_raises_broken_pipe() -> None:
    class Closed(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        DataConsole(file=Closed()).print("door")
