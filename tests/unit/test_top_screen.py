"""`edged top` at a terminal and without one: output, keys, and the restored terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from edged.cli.app import app
from tests.unit.client_daemon import Running
from tests.unit.programs import program
from tests.waiting import wait

pytestmark = pytest.mark.timeout(90)

ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"
SHOW_CURSOR = b"\x1b[?25h"


def call(*line: str) -> Result:
    return CliRunner().invoke(app, ["top", *line], env={"EDGED_TARGET": ""})


class Terminal:
    """The program at a terminal of its own, and everything that it has written."""

    def __init__(self, *targets: str, columns: int = 90, lines: int = 12) -> None:
        self._ours, self._its = pty.openpty()
        fcntl.ioctl(self._its, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.before = termios.tcgetattr(self._its)
        self.written = b""
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        environment["TERM"] = "xterm-256color"
        command = [sys.executable, "-m", "edged", "top", "--interval", "0.2"]
        command += [word for target in targets for word in ("--target", target)]
        self.process = subprocess.Popen(
            command, stdin=self._its, stdout=self._its, stderr=self._its, env=environment, start_new_session=True
        )

    def shows(self, text: str, seconds: float = 30.0) -> None:
        """Waits until it is written from now on, whatever colours it has."""
        start, end = len(self.written), time.monotonic() + seconds
        while text not in _plain(self.written[start:]):
            assert time.monotonic() < end, _plain(self.written[start:])[-2000:]
            self._read(0.2)

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def ended(self) -> int:
        """Its exit status."""
        end = time.monotonic() + 30
        while self._read(0.1) or self.process.poll() is None:
            assert time.monotonic() < end
        return self.process.wait()

    def picture(self) -> str:
        """The last that it has drawn wholly, each of which begins at the top left."""
        self._read(0.2)
        return _plain(self.written.split(b"\x1b[H")[-2])

    @property
    def modes(self) -> list[Any]:
        return termios.tcgetattr(self._its)

    def _read(self, seconds: float) -> bool:
        """Whether it wrote anything."""
        if not select.select([self._ours], [], [], seconds)[0]:
            return False
        self.written += os.read(self._ours, 65536)
        return True

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._its)


def _plain(written: bytes) -> str:
    return re.sub(r"\x1b(\[[0-9;?]*[A-Za-z]|[()][A-Z0-9])", "", written.decode(errors="replace"))


def is_restored(terminal: Terminal) -> bool:
    """Whether the terminal shows what it did before, with a cursor and keys as they were."""
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
    assert 30 < float(doors[4]) < 70  # by the daemon's own clock, however late the answers are
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


def test_top_json_goes_on_until_interrupted(running: Running) -> None:
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


@pytest.mark.parametrize("columns", [80, 120])
def test_screen_of_one_box_has_a_line_for_each_row(running: Running, columns: int) -> None:
    with Terminal(running.target, columns=columns, lines=30) as terminal:
        terminal.shows("doors  ready")
        wait(lambda: "doors  ready" in terminal.picture(), "a whole picture")
        lines = terminal.picture().splitlines()
    assert [line.split()[0] for line in lines if line.strip()] == ["edged", "cpu", "making", "MODEL", "doors", "q"]
    assert max(map(len, lines)) <= columns


def test_screen_of_several_boxes_has_a_line_for_each_box(running: Running, tmp_path: Path) -> None:
    with Terminal(running.target, f"unix:{tmp_path}/away", columns=80, lines=30) as terminal:
        terminal.shows("silent")
        wait(lambda: "here" in terminal.picture(), "both were asked")
        lines = terminal.picture().splitlines()
    heading = next(i for i, line in enumerate(lines) if line.startswith("BOX"))
    assert [line.split()[1] for line in lines[heading + 1 : heading + 3]] == ["here", "silent"]
    assert max(map(len, lines)) <= 80


def test_screen_keys_sort_and_quit(running: Running) -> None:
    with Terminal(running.target) as terminal:
        terminal.shows("s sort: name")
        terminal.shows("doors  ready")
        terminal.press("s")
        terminal.shows("s sort: busiest")
        terminal.press("\x1b[B\x1b[AjkG ")  # nothing to scroll to: nothing happens
        terminal.shows("s sort: busiest")
        terminal.press("q")
        assert terminal.ended() == 0
        assert is_restored(terminal)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGHUP, 129)]
)
def test_screen_signal_restores_the_terminal(running: Running, number: int, status: int) -> None:
    with Terminal(running.target) as terminal:
        terminal.shows("doors  ready")
        terminal.process.send_signal(number)
        assert terminal.ended() == status
        assert is_restored(terminal)


def test_screen_missing_daemon_is_awaited(tmp_path: Path) -> None:
    target = f"unix:{tmp_path}/s"
    with Terminal(target) as terminal:
        with Running(target):
            terminal.shows("doors  ready")
        terminal.shows("no answer since")
        assert "doors  ready" in terminal.picture()  # the last that is known
        with Running(target):
            wait(lambda: "no answer" not in terminal.picture(), "it is back")
            terminal.press("q")
            assert terminal.ended() == 0
        assert is_restored(terminal)
