"""What is printed is data: whatever models, cameras and other boxes call themselves, a terminal only shows it."""

from __future__ import annotations

import io

import pytest
from rich.table import Table

from edged.cli import common, formatting
from edged.cli.common import DataConsole

_EVIL = "door\x1b[2J\x07\x9b1m\u2028\udcff"
_SHOWN = "door\\x1b[2J\\x07\\x9b1m\\u2028\\udcff"


def _table() -> Table:
    table = Table("NAME", "STATE", box=None)
    table.add_row(_EVIL, "ready")
    return table


def test_no_text_of_a_table_reaches_the_terminal_as_a_command() -> None:
    file = io.StringIO()
    DataConsole(file=file, force_terminal=True, color_system=None, width=80).print(_table())
    assert f"{_SHOWN}  ready" in file.getvalue()
    assert "\x1b[2J" not in file.getvalue()


def test_nor_does_it_where_no_terminal_is(capsys: pytest.CaptureFixture[str]) -> None:
    common.show(_table())
    common.show(_EVIL)
    printed = capsys.readouterr().out
    assert printed.count(_SHOWN) == 2
    assert "\x1b" not in printed


def test_nor_what_is_told_of_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    common.say(_EVIL)
    assert capsys.readouterr().err == f"{_SHOWN}\n"


def test_brackets_and_colons_are_what_they_are_and_lines_stay_lines(capsys: pytest.CaptureFixture[str]) -> None:
    common.show("[red]door[/] :smile:\n\tfront\u00e9")
    assert capsys.readouterr().out == "[red]door[/] :smile:\n        front\u00e9\n"


def test_skipped_frames_are_shares_of_what_came_whatever_a_box_says_came() -> None:
    assert formatting.skipped({"stale": 1, "newer": 3, "gone": 0}, 10) == "newer 30%, stale 10%"
    assert formatting.skipped({"newer": 3}, 0) == "newer 100%"


def test_print_closed_pipe_raises_broken_pipe() -> None:
    class Closed(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        DataConsole(file=Closed()).print("door")
