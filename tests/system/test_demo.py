"""`edged demo` as a user runs it: output, files and cleanup."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import msgspec
import pytest

from tests.programs import edged
from tests.waiting import is_running, wait

_DEMO = (sys.executable, "-m", "edged", "demo")
_FIELDS = {
    *("cameras", "seconds", "frames_sent", "frames_answered", "frames_skipped", "frames_failed", "fps"),
    *("p50_ms", "p99_ms", "precision", "recall", "first_answer_s", "engine", "swaps"),
    *("cold_start_s", "warm_start_s", "cache_hit"),
}

pytestmark = pytest.mark.timeout(240)  # a busy machine may take long to build


class Shown(NamedTuple):
    status: int
    out: str
    err: str
    figures: dict[str, Any]
    snapshot: Path
    temporary: Path


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for the temporary files of one demo. Its path is short, because sockets are in it."""
    with tempfile.TemporaryDirectory(prefix="edt-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    """One complete demo."""
    place = tmp_path_factory.mktemp("demo")
    figures, snapshot = place / "new" / "demo.json", place / "demo.jpg"
    with tempfile.TemporaryDirectory(prefix="edt-", ignore_cleanup_errors=True) as folder:
        options = ["--seconds", "6", "--cameras", "2", "--json", str(figures), "--snapshot", str(snapshot)]
        done = edged("demo", *options, environment=_environment(folder), seconds=220)
        read = msgspec.json.decode(figures.read_bytes()) if figures.exists() else {}
        yield Shown(done.returncode, done.stdout, done.stderr, read, snapshot, Path(folder))


def _environment(temporary: Path | str) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(temporary)}


def _using(folder: Path) -> list[int]:
    """Return the processes that were started with this folder, or one in it, as TMPDIR."""
    mark = f"TMPDIR={folder}".encode()
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            environment = (place / "environ").read_bytes()
        except OSError:
            continue
        if any(word.startswith(mark) for word in environment.split(b"\0")):
            found.append(int(place.name))
    return [pid for pid in found if is_running(pid)]


@pytest.mark.long
def test_demo_holds_and_leaves_nothing(shown: Shown) -> None:
    assert (shown.status, shown.err) == (0, "")
    assert "All checks passed" in shown.out
    assert list(shown.temporary.iterdir()) == []
    assert _using(shown.temporary) == []


@pytest.mark.long
def test_demo_figures_add_up(shown: Shown) -> None:
    figures = shown.figures
    assert set(figures) >= _FIELDS
    assert figures["cameras"] == 2
    assert figures["seconds"] >= 6
    parts = figures["frames_answered"], figures["frames_skipped"], figures["frames_failed"]
    assert figures["frames_sent"] == sum(parts)
    assert figures["frames_failed"] == 0
    assert figures["frames_answered"] > 50
    assert figures["fps"] == pytest.approx(figures["frames_answered"] / figures["seconds"], abs=0.1)
    assert 0 < figures["p50_ms"] <= figures["p99_ms"]
    assert min(figures["precision"], figures["recall"]) >= 0.95


@pytest.mark.long
def test_demo_answers_before_the_build_and_restarts_from_the_store(shown: Shown) -> None:
    figures = shown.figures
    assert figures["swaps"] >= 1
    assert figures["cache_hit"] is True
    assert 0 < figures["first_answer_s"] < figures["cold_start_s"]
    assert 0 < figures["warm_start_s"] < figures["cold_start_s"]
    engine = figures["engine"]
    assert engine["state"] == "serving"
    assert engine["key"]
    assert engine["backend"] in ("onnxruntime", "openvino", "tensorrt")
    lines = shown.out.splitlines()
    for words in ("first answer, by onnxruntime unoptimised", "swapped in:", "from the store", "cam2", "fps"):
        assert any(words in line for line in lines), words
    assert "\x1b" not in shown.out


@pytest.mark.long
def test_demo_snapshot_shows_both_cameras(shown: Shown) -> None:
    assert shown.snapshot.read_bytes().startswith(b"\xff\xd8\xff")
    picture = cv2.imread(str(shown.snapshot))
    assert picture is not None
    assert picture.shape == (480, 1280, 3)


def _start(temporary: Path, *options: str) -> subprocess.Popen[str]:
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*_DEMO, *options], env=_environment(temporary), **pipes)


def _await_first_answer(demo: subprocess.Popen[str]) -> None:
    assert demo.stdout is not None
    while "first answer" not in demo.stdout.readline():
        assert demo.poll() is None


@pytest.mark.parametrize("when", ["as it starts", "as it streams"])
def test_demo_interrupted_leaves_nothing(when: str, temporary: Path) -> None:
    demo = _start(temporary, "--seconds", "60")
    if when == "as it starts":
        wait(lambda: any(temporary.iterdir()), "the scratch folder", seconds=60)
    else:
        _await_first_answer(demo)
    demo.send_signal(signal.SIGINT)
    _, err = demo.communicate(timeout=60)
    assert (demo.returncode, err) == (130, "")
    assert list(temporary.iterdir()) == []
    assert _using(temporary) == []


def test_demo_killed_leaves_no_process(temporary: Path) -> None:
    with _start(temporary) as demo:
        _await_first_answer(demo)
        demo.kill()
    wait(lambda: not _using(temporary), "the end of its processes", seconds=30)


def test_demo_daemon_that_dies_is_reported_with_its_frames(tmp_path: Path, temporary: Path) -> None:
    figures = tmp_path / "demo.json"
    demo = _start(temporary, "--seconds", "60", "--cameras", "1", "--json", str(figures))
    _await_first_answer(demo)
    time.sleep(0.5)
    daemon = next(pid for pid in _using(temporary) if "serve" in Path(f"/proc/{pid}/cmdline").read_text().split("\0"))
    os.kill(daemon, signal.SIGKILL)
    _, err = demo.communicate(timeout=100)
    assert demo.returncode == 1
    assert "the daemon ended unexpectedly" in err
    assert len(err.splitlines()) == 1
    read = msgspec.json.decode(figures.read_bytes())
    parts = read["frames_answered"], read["frames_skipped"], read["frames_failed"]
    assert read["frames_sent"] == sum(parts)
    assert read["problems"]
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "status", "error"),
    [
        (["--model", "broken.onnx"], 1, "broken.onnx"),
        (["--model", "nowhere.onnx"], 2, "nowhere.onnx"),
        (["--snapshot", "picture.png"], 2, "picture.png"),
        (["--json", "/proc/none/of/this.json"], 2, "/proc/none"),
    ],
)
def test_demo_unusable_option_is_one_line(
    options: list[str], status: int, error: str, tmp_path: Path, temporary: Path
) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    done = edged("demo", *options, environment=_environment(temporary), folder=tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (status, 1)
    assert error in done.stderr
    assert status == 1 or done.stdout == ""
    assert list(temporary.iterdir()) == []
