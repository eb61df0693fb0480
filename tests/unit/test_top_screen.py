"""`edged top` at a terminal and without one: output, keys, and the restored terminal."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from edged.cli.app import app
from tests.programs import program
from tests.terminal import Terminal
from tests.unit.client_daemon import Running
from tests.waiting import wait

pytestmark = pytest.mark.timeout(90)

ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"
SHOW_CURSOR = b"\x1b[?25h"


def call(*line: str) -> Result:
    return CliRunner().invoke(app, ["top", *line], env={"EDGED_TARGET": ""})


def top(*targets: str, columns: int = 90, lines: int = 12) -> Terminal:
    words = [word for target in targets for word in ("--target", target)]
    return Terminal("top", "--interval", "0.2", *words, columns=columns, lines=lines)


def is_restored(terminal: Terminal) -> bool:
    """Return whether the terminal shows what it showed before, with its cursor and its modes."""
    written = terminal.written
    return (
        ENTER in written
        and written.rindex(LEAVE) > written.rindex(ENTER)
        and SHOW_CURSOR in written[written.rindex(ENTER) :]
        and terminal.modes == terminal.before
    )


# --- without a terminal ---------------------------------------------------------------------------------------------


def test_top_without_terminal_prints_one_picture(running: Running) -> None:
    result = call("--target", running.target)
    assert result.exit_code == 0, result.output
    first, *rest = result.stdout.splitlines()
    assert first == f"edged 0.1.0 at {running.target}, up 1 h 2 min, 2 of 3 models ready"
    (doors,) = [line.split() for line in rest if line.startswith("doors")]
    assert doors[:4] == ["doors", "ready", "openvino", "fp32"]
    assert 30 < float(doors[4]) < 70  # by the daemon's clock, so late answers do not change it
    assert "\x1b" not in result.stdout


def test_top_json_once_has_each_box(running: Running, tmp_path: Path) -> None:
    result = call("--once", "--json", "--target", running.target, "--target", f"unix:{tmp_path}/none")
    here, away = map(json.loads, result.stdout.splitlines())
    assert result.exit_code == 1
    assert (here["box"], here["ok"], here["error"]) == (running.target, True, "")
    assert here["result"]["models"][0]["name"] == "doors"
    assert 30 < here["result"]["requests_per_second"]["doors"] < 70
    assert (away["ok"], away["result"]) == (False, None)
    assert "no edged daemon answers" in away["error"]


def test_top_invalid_options_and_missing_daemon_fail(tmp_path: Path) -> None:
    for line in (("--interval", "0"), ("--interval", "x"), ("--group", "north")):
        assert call(*line).exit_code == 2
    result = call("--target", f"unix:{tmp_path}/none")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("edged: no edged daemon answers at")


def test_top_json_continues_until_interrupted(running: Running) -> None:
    process = program("top", "--json", "-i", "0.2", "--target", running.target)
    try:
        assert process.stdout is not None
        looks = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert [look["ok"] for look in looks] == [True] * 3
    assert (process.returncode, err) == (130, "")


# --- at a terminal --------------------------------------------------------------------------------------------------


def test_screen_of_several_boxes_has_a_line_for_each_row(running: Running, tmp_path: Path) -> None:
    with top(running.target, f"unix:{tmp_path}/away", columns=80, lines=30) as terminal:
        terminal.shows("silent")
        wait(lambda: "here" in terminal.picture() and "doors  ready" in terminal.picture(), "a whole picture")
        lines = terminal.picture().splitlines()
    first, *rows = [line.split() for line in lines if line.strip()]
    assert (first[:2], rows[0][1], rows[1][1], rows[-1][0]) == (["BOX", "ANSWER"], "here", "silent", "q")
    assert max(map(len, lines)) <= 80


def test_screen_keys_sort_and_quit(running: Running) -> None:
    with top(running.target) as terminal:
        terminal.shows("s sort: name")
        terminal.shows("doors  ready")
        terminal.press("s")
        terminal.shows("s sort: busiest")
        terminal.press("\x1b[B\x1b[AjkG ")  # there is nothing to scroll
        terminal.shows("s sort: busiest")
        terminal.press("q")
        assert terminal.ended() == 0
        assert is_restored(terminal)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGHUP, 129)]
)
def test_screen_signal_restores_the_terminal(running: Running, number: int, status: int) -> None:
    with top(running.target) as terminal:
        terminal.shows("doors  ready")
        terminal.process.send_signal(number)
        assert terminal.ended() == status
        assert is_restored(terminal)


def test_screen_missing_daemon_is_awaited(tmp_path: Path) -> None:
    target = f"unix:{tmp_path}/s"
    with top(target) as terminal:
        with Running(target):
            terminal.shows("doors  ready")
        terminal.shows("no answer since")
        assert "doors  ready" in terminal.picture()  # the last known state
        with Running(target):
            wait(lambda: "no answer" not in terminal.picture(), "it is back")
            terminal.press("q")
            assert terminal.ended() == 0
        assert is_restored(terminal)
