"""`edged infer` and `edged stream` as a user meets them: what is printed where, and the exit status."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

from edged.cli import infer, stream
from edged.cli.meter import Meter
from tests.unit.client_daemon import Running

pytestmark = pytest.mark.timeout(60)

# The two commands as a program of their own, as the whole command line mounts them.
PROGRAM = (
    "import typer; from edged.cli import infer, stream; app = typer.Typer(); infer.register(app);"
    "stream.register(app); app()"
)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with Running(f"unix:{tmp_path}/edged.sock") as running:
        yield running


@pytest.fixture
def picture(tmp_path: Path) -> str:
    path = tmp_path / "street.jpg"
    assert cv2.imwrite(str(path), np.full((48, 64, 3), 90, np.uint8))
    return str(path)


@pytest.fixture
def video(tmp_path: Path) -> str:
    path = tmp_path / "v.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 25, (64, 48))
    for number in range(40):
        writer.write(np.full((48, 64, 3), number, np.uint8))
    writer.release()
    return str(path)


def call(*words: str) -> Result:
    app = typer.Typer()
    infer.register(app)
    stream.register(app)
    return CliRunner().invoke(app, list(words))


def program(*words: str, **options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=os.environ | {"TERM": "dumb"}, **options)  # type: ignore[call-overload]


# --- infer ----------------------------------------------------------------------------------------------------------


def test_infer_prints_a_table(running: Running, picture: str) -> None:
    result = call("infer", "shapes", picture, "--target", running.target, "--score", "0.3")
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0] == ["label", "score", "x1", "y1", "x2", "y2"]
    assert lines[1] == ["a", "[red]", "dot", "0.75", "10", "20", "30", "60"]
    assert "2 detections in 3.5 ms by null (640x480 pixels)" in result.stdout
    assert running.daemon.frames[0].thresholds.score == pytest.approx(0.3)


def test_infer_prints_outputs_and_nothing_found(running: Running, picture: str) -> None:
    assert "uint8" in call("infer", "tensors", picture, "-t", running.target).stdout
    assert "0 detections" in call("infer", "empty", picture, "-t", running.target).stdout


def test_infer_json(running: Running, picture: str) -> None:
    result = call("infer", "shapes", picture, "--json", "-t", running.target)
    found = json.loads(result.stdout)
    assert list(found) == ["image", "predictions"]
    assert found["predictions"][0]["class"] == "a [red] dot"


def test_infer_saves_a_painted_picture(running: Running, picture: str, tmp_path: Path) -> None:
    saved = tmp_path / "out.png"
    assert call("infer", "shapes", picture, "--save", str(saved), "-t", running.target).exit_code == 0
    painted = cv2.imread(str(saved))
    assert painted is not None
    assert painted.shape == (48, 64, 3)
    assert int(painted.max()) > 120
    for wrong in ("out.xyz", "none/out.png"):
        result = call("infer", "shapes", picture, "--save", str(tmp_path / wrong), "-t", running.target)
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("model", "picture_name", "status", "words"),
    [
        ("missing", "", 1, "edged: there is no model 'missing'"),
        ("shapes", "none.jpg", 1, "edged: there is no picture"),
        ("building", "", 1, "edged: model 'building' has no engine yet; wait"),
    ],
)
def test_infer_fails_in_one_line(
    running: Running, picture: str, model: str, picture_name: str, status: int, words: str
) -> None:
    result = call("infer", model, picture_name or picture, "-t", running.target)
    assert result.exit_code == status
    assert result.stdout == ""
    assert result.stderr.startswith(words)
    assert result.stderr.count("\n") == 1


def test_infer_without_a_daemon(picture: str, tmp_path: Path) -> None:
    result = call("infer", "shapes", picture, "-t", f"{tmp_path}/none.sock")
    assert (result.exit_code, result.stdout) == (1, "")
    assert (
        result.stderr == f"edged: no edged daemon answers at unix:{tmp_path}/none.sock; start one with: edged serve\n"
    )


def test_infer_with_a_wrong_target(picture: str) -> None:
    result = call("infer", "shapes", picture, "-t", "http://box")
    assert result.exit_code == 2


# --- stream ---------------------------------------------------------------------------------------------------------


def summary(text: str) -> dict[str, int]:
    counts = re.findall(r"(\d+) (frames sent|answered|skipped|failed|without)", text.splitlines()[-1])
    return {name.split()[-1]: int(count) for count, name in counts}


def test_stream_prints_lines_and_a_summary(running: Running, video: str) -> None:
    result = call("stream", "shapes", video, "-t", running.target)
    assert result.exit_code == 0, result.output
    assert re.search(r"fps  age 1[23] ms  skipped \d+  2 detections  null", result.stdout.splitlines()[0])
    account = summary(result.stdout)
    assert account["sent"] == 40 == account["answered"] + account["skipped"] + account["failed"]


def test_stream_json(running: Running, video: str) -> None:
    result = call("stream", "flaky", video, "--json", "--no-pace", "--camera", "door", "-t", running.target)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["sequence"] for line in lines] == list(range(1, 41))
    first, third = lines[0], lines[2]
    assert (first["camera"], first["skipped"], first["error"], first["age_ms"]) == ("door", 0, None, 12.5)
    assert first["image"] == {"width": 64, "height": 48}
    assert len(first["predictions"]) == 2
    assert third["error"] == {"code": "UNAVAILABLE", "message": "the engine host died; send the next frame"}
    assert summary(result.stderr) == {"sent": 40, "answered": 27, "skipped": 0, "failed": 13}


def test_stream_stops_after_some_seconds(running: Running, video: str) -> None:
    start = time.monotonic()
    result = call("stream", "shapes", video, "--seconds", "0.5", "-t", running.target)
    assert result.exit_code == 0
    assert time.monotonic() - start < 1.4
    account = summary(result.stdout)
    assert 5 < account["sent"] < 25
    assert account["sent"] == account["answered"] + account["skipped"]


def test_stream_of_a_folder_skips_nothing(running: Running, picture: str) -> None:
    folder = Path(picture).parent / "many"
    folder.mkdir()
    for number in range(9):
        (folder / f"{number}.jpg").write_bytes(Path(picture).read_bytes())
    (folder / "broken.jpg").write_bytes(b"?")
    result = call("stream", "slow", str(folder), "-t", running.target)
    assert summary(result.stdout) == {"sent": 9, "answered": 9, "skipped": 0, "failed": 0}
    assert ", 1 damaged" in result.stdout


@pytest.mark.parametrize(("model", "words"), [("missing", "no model 'missing'"), ("failing", "no frame was answered")])
def test_stream_that_only_fails(running: Running, picture: str, model: str, words: str) -> None:
    result = call("stream", model, picture, "-t", running.target)
    assert result.exit_code == 1
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_stream_of_nothing(running: Running) -> None:
    result = call("stream", "shapes", "/nowhere", "-t", running.target)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "edged: there is no picture, folder, video or camera '/nowhere'\n"


def test_ctrl_c_prints_the_summary(running: Running, video: str) -> None:
    process = program("stream", "shapes", video, "--json", "-t", running.target)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["sequence"] >= 1
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert all(json.loads(line) for line in out.splitlines())
    assert summary(err)["sent"] >= 1
    assert err.count("\n") == 1, err


def test_a_closed_pipe_is_quiet(running: Running, video: str) -> None:
    process = program("stream", "shapes", video, "--json", "-t", running.target)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(20) == 141
    assert "Traceback" not in err
    assert "BrokenPipe" not in err


def test_the_daemon_going_away_ends_the_stream(tmp_path: Path, video: str) -> None:
    with Running(f"unix:{tmp_path}/edged.sock") as running:
        process = program("stream", "shapes", video, "--json", "-t", running.target)
        assert process.stdout is not None
        process.stdout.readline()
    _, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert err.splitlines()[-1].startswith("edged: ")
    assert "Traceback" not in err


def test_the_live_line_on_a_terminal(running: Running, video: str) -> None:
    master, slave = pty.openpty()
    command = [sys.executable, "-c", PROGRAM, "stream", "shapes", video, "-t", running.target]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    text = b""
    with open(master, "rb", buffering=0) as terminal:
        try:
            while chunk := terminal.read(4096):
                text += chunk
        except OSError:  # how Linux reports that the other end is closed
            pass
    assert process.wait(20) == 0
    assert re.search(rb"fps  age .*2 detections  null.*40 frames sent", text, re.DOTALL), text


def test_help_is_there_without_a_daemon() -> None:
    for name in ("infer", "stream"):
        result = call(name, "--help")
        assert result.exit_code == 0
        assert "--target" in result.stdout


def test_the_commands_do_not_import_grpc_before_they_run() -> None:
    code = "import sys, edged.cli.infer, edged.cli.stream; assert not {'grpc', 'cv2', 'av'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_the_meter_before_any_result() -> None:
    assert Meter().line() == "waiting for the first result"
