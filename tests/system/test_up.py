"""`edged up` as a new user runs it, and other commands on terminals of 80 and 120 columns."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import models, programs
from tests.terminal import Terminal

pytestmark = pytest.mark.timeout(240)  # a busy machine may take long to start a daemon


class Home:
    """A user without a daemon, models or configuration."""

    def __init__(self, place: Path) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("EDGED_", "XDG_"))}
        folders = {"RUNTIME_DIRECTORY": "r", "STATE_DIRECTORY": "s", "CACHE_DIRECTORY": "c", "HOME": "h"}
        for name in folders.values():
            (place / name).mkdir()
        self.place, self.state = place, place / "s"
        self.environment = inherited | {name: str(place / folder) for name, folder in folders.items()}
        self.environment |= {"CONFIGURATION_DIRECTORY": str(place / "h"), "TMPDIR": str(place)}
        self.environment["EDGED_PAGE_LISTEN"] = "localhost:0"  # tests run in parallel
        self.environment["EDGED_ENGINES_BUILD"] = "command"  # the reference serves; builds would slow down the tests

    def edged(self, *words: str) -> subprocess.CompletedProcess[str]:
        return programs.edged(*words, environment=self.environment, folder=self.place)

    def terminal(self, *words: str, columns: int = 80) -> Terminal:
        return Terminal(*words, columns=columns, lines=30, environment=self.environment)


@pytest.fixture
def home() -> Iterator[Home]:
    with tempfile.TemporaryDirectory(prefix="edu-", dir="/tmp") as place:
        yield Home(Path(place))


def is_served(home: Home) -> bool:
    """Return True if a daemon of this user answers."""
    return home.edged("status").returncode == 0


def too_wide(terminal: Terminal, columns: int) -> list[str]:
    """Return lines wider than the terminal, except lines with addresses and paths, which are not broken."""
    lines = re.split(r"[\r\n]+", terminal.text)
    return [line for line in lines if len(line.rstrip()) > columns and "/" not in line]


@pytest.mark.parametrize("columns", [80, pytest.param(120, marks=pytest.mark.long)])
def test_up_with_nothing_starts_a_daemon_and_a_camera_and_stops_with_ctrl_c(home: Home, columns: int) -> None:
    with home.terminal("up", columns=columns) as terminal:
        terminal.shows("page     http://localhost:", 90)
        terminal.shows("frames a second answered", 90)
        address, token = re.findall(r"(http://localhost:\d+)/#token=(\S+)", terminal.text)[0]
        with urllib.request.urlopen(address, timeout=10) as page:
            assert page.status == 200
        request = urllib.request.Request(f"{address}/session", headers={"Cookie": f"edged-token={token}"})
        with urllib.request.urlopen(request, timeout=10) as session:
            assert b'"operate"' in session.read()
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.ended(60) == 0
        assert "stopped; models, engines and cameras are kept" in terminal.text
        assert too_wide(terminal, columns) == []
    assert "up" not in home.edged("tokens", "list", "--state", str(home.state)).stdout
    assert not list(home.place.glob("edged-up-*"))
    assert not is_served(home)


@pytest.mark.long
def test_up_again_uses_the_kept_model_and_camera(home: Home) -> None:
    for _ in range(2):
        with home.terminal("up") as terminal:
            terminal.shows("frames a second answered", 90)
            terminal.process.send_signal(signal.SIGINT)
            assert terminal.ended(60) == 0
    assert "model    shapes, which this box already has" in terminal.text


def test_up_with_a_running_daemon_uses_it_and_does_not_stop_it(home: Home) -> None:
    with home.terminal("up") as first:
        first.shows("frames a second answered", 90)
        with home.terminal("up", "shapes", "scene:9", "--name", "second") as second:
            second.shows("already running; it is used", 60)
            second.shows("frames a second answered", 60)
            second.process.send_signal(signal.SIGINT)
            assert second.ended() == 0
            assert "stopped" not in second.text
        listed = home.edged("cameras").stdout
        assert re.search(r"^scene +shapes +streaming", listed, re.M)
        assert re.search(r"^second +shapes", listed, re.M)


def test_up_invalid_argument_names_it_and_leaves_no_daemon(home: Home) -> None:
    (home.place / "no.onnx").write_text("this is not a model")
    models.save(models.conv(), home.place / "conv.onnx")
    for words, why in (
        (["missing.onnx"], "model file 'missing.onnx' does not exist"),
        (["nothing"], "'nothing' is neither a file nor a model of this box; the models of this box: none; if it"),
        (["no.onnx"], "no.onnx"),
        (["conv.onnx", "rtsp://"], "source has no host"),
    ):
        done = home.edged("up", *words)
        assert done.returncode in (1, 2), done.stderr
        assert why in done.stderr
        assert "Traceback" not in done.stderr
        assert not is_served(home)


@pytest.mark.long
def test_stream_top_and_doctor_fit_the_terminal(home: Home) -> None:
    with home.terminal("up") as up:
        up.shows("frames a second answered", 90)
        for columns in (80, 120):
            with home.terminal("top", columns=columns) as top:
                top.shows("scene", 60)
                top.press("s")
                top.shows("scene", 60)  # the previous screen is complete
                picture = top.picture()
                top.press("q")
                assert top.ended() == 0
                assert "shapes" in picture
                assert [line for line in picture.splitlines() if len(line.rstrip()) > columns] == []
            with home.terminal("stream", "shapes", "scene:3", "--seconds", "2", columns=columns) as stream:
                assert stream.ended(60) == 0
                assert "frames" in stream.text
                assert too_wide(stream, columns) == []
            with home.terminal("doctor", columns=columns) as doctor:
                doctor.ended(90)
                assert "shapes" in doctor.text
                assert too_wide(doctor, columns) == []


@pytest.mark.long
@pytest.mark.parametrize("columns", [80, 120])
def test_demo_fits_the_terminal(home: Home, columns: int) -> None:
    del home.environment["EDGED_ENGINES_BUILD"]
    with home.terminal("demo", "--seconds", "5", "--cameras", "2", columns=columns) as demo:
        assert demo.ended(220) == 0
        assert "Now try your own model and camera: edged up" in demo.text
        assert too_wide(demo, columns) == []
