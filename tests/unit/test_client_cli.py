"""The commands chat, infer, stream and engines show: their output, the stream it goes to, and the exit status."""

from __future__ import annotations

import itertools
import json
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import msgspec
import pytest
import typer
from rich.table import Table
from typer.testing import CliRunner, Result

from edged.api_types import ChatText, CollectedCamera, Composition, EngineInfo, FrameCollection, Verdict
from edged.cli import common, local
from edged.cli.app import app
from edged.cli.targets import is_daemon_addressed
from edged.client.client import Client
from edged.errors import EdgedError, InvalidInput
from tests.programs import program
from tests.terminal import Terminal
from tests.unit.client_daemon import Running
from tests.unit.media import jpeg
from tests.unit.media import video as make_video

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def picture(tmp_path: Path) -> str:
    path = tmp_path / "street.jpg"
    path.write_bytes(jpeg(90))
    return str(path)


@pytest.fixture
def video(tmp_path: Path) -> str:
    return str(make_video(tmp_path / "v.avi", range(40), 25))


def call(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def wrong(result: Result) -> str:
    """Return the single line on standard error of a failed command."""
    assert (result.exit_code != 0, result.stdout) == (True, "")
    assert result.stderr.startswith("edged: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


# --- chat -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [["--target", "unix:/a", "--target", "unix:/b"], ["--inventory", "boxes.toml"]])
def test_chat_with_several_boxes_is_refused(where: list[str]) -> None:
    """Without the check, the daemon of this machine would get the question."""
    result = call("chat", "qwen", "Who is at the gate?", *where)
    assert (result.exit_code, "one box" in wrong(result)) == (common.USAGE, True)


def test_chat_escapes_control_characters_of_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = [ChatText("a\x1b[2J\n", "stop", "qwen", 1, 0, 1)]
    monkeypatch.setattr(Client, "chat", lambda *args, **options: iter(answer))
    assert call("chat", "qwen", "Who?", "--target", "unix:/a").stdout == "a\\x1b[2J\n\n"


# --- infer ----------------------------------------------------------------------------------------------------------


def test_infer_prints_a_table_or_json(running: Running, picture: str) -> None:
    result = call("infer", "shapes", picture, "--target", running.target, "--score", "0.3")
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0] == ["label", "score", "x1", "y1", "x2", "y2"]
    assert lines[1] == ["a", "[red]", "dot", "0.75", "10", "20", "30", "60"]
    assert "2 detections in 3.5 ms by null (640x480 pixels)" in result.stdout
    assert running.daemon.frames[0].thresholds.score == pytest.approx(0.3)
    found = json.loads(call("infer", "shapes", picture, "--json", "-t", running.target).stdout)
    assert list(found) == ["image", "predictions"]
    assert found["predictions"][0]["class"] == "a [red] dot"


def test_infer_pipeline_prints_what_the_second_model_found(running: Running, picture: str) -> None:
    printed = call("infer", "pipeline", picture, "--target", running.target).stdout
    assert "READER" in printed.upper()
    assert "AB 123 50%" in printed
    assert "1 without a crop for reader" in printed


def test_pipelines_prints_a_row_for_each_or_json(running: Running) -> None:
    printed = call("pipelines", "--target", running.target).stdout
    for word in ("plates", "ready", "cars", "reader", "plate", "7 (1 failed)", "20", "3"):
        assert word in printed
    (found,) = json.loads(call("pipelines", "--json", "--target", running.target).stdout)
    assert (found["name"], found["detect"], found["crops_left_out"]) == ("plates", "cars", 3)


def test_infer_prints_raw_outputs_or_zero_detections(running: Running, picture: str) -> None:
    assert "uint8" in call("infer", "tensors", picture, "-t", running.target).stdout
    assert "0 detections" in call("infer", "empty", picture, "-t", running.target).stdout


def test_infer_saves_a_painted_picture(running: Running, picture: str, tmp_path: Path) -> None:
    saved = tmp_path / "out.png"
    assert call("infer", "shapes", picture, "--save", str(saved), "-t", running.target).exit_code == 0
    painted = cv2.imread(str(saved))
    assert painted is not None
    assert painted.shape == (48, 64, 3)
    assert int(painted.max()) > 120
    for name in ("out.xyz", "none/out.png"):
        assert name in wrong(call("infer", "shapes", picture, "--save", str(tmp_path / name), "-t", running.target))


@pytest.mark.parametrize(
    ("model", "picture_name", "about"),
    [("missing", "", "'missing'"), ("shapes", "none.jpg", "none.jpg"), ("building", "", "'building'")],
)
def test_infer_fails_in_one_line(running: Running, picture: str, model: str, picture_name: str, about: str) -> None:
    assert about in wrong(call("infer", model, picture_name or picture, "-t", running.target))


# --- stream ---------------------------------------------------------------------------------------------------------


def summary(text: str) -> dict[str, int]:
    (line,) = (line for line in text.splitlines() if re.match(r"\d+ frames? sent", line))
    counts = re.findall(r"(\d+) (frames? sent|answered|skipped|failed|without)", line)
    return {name.split()[-1]: int(count) for count, name in counts}


def test_stream_prints_lines_and_a_summary(running: Running, video: str) -> None:
    result = call("stream", "shapes", video, "-t", running.target)
    assert result.exit_code == 0, result.output
    assert re.search(r"fps  age 1[23] ms  skipped \d+  2 detections  null", result.stdout.splitlines()[0])
    account = summary(result.stdout)
    assert account["sent"] == 40 == account["answered"] + account["skipped"] + account["failed"]
    found = re.findall(r"(\w+) (\d+)", result.stdout.splitlines()[-1].removeprefix("detections in all frames: "))
    assert sum(int(count) for _, count in found) == 2 * account["answered"]


def test_stream_json_prints_one_object_per_frame(running: Running, video: str) -> None:
    result = call("stream", "flaky", video, "--json", "--no-pace", "--camera", "door", "-t", running.target)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["sequence"] for line in lines] == list(range(1, 41))
    steps = {round(after["position_s"] - before["position_s"], 3) for before, after in itertools.pairwise(lines)}
    assert lines[0]["position_s"] == 0.0
    assert len(steps) == 1, "the frames of a video have equal distances"
    first, third = lines[0], lines[2]
    assert (first["camera"], first["skipped"], first["error"], first["age_ms"]) == ("door", 0, None, 12.5)
    assert first["image"] == {"width": 64, "height": 48}
    assert len(first["predictions"]) == 2
    assert third["error"] == {"code": "UNAVAILABLE", "message": "the engine host died; send the next frame"}
    assert summary(result.stderr) == {"sent": 40, "answered": 27, "skipped": 0, "failed": 13}


def test_stream_with_seconds_stops_in_time(running: Running, video: str) -> None:
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
    assert "at the source: 1 damaged" in result.stdout


@pytest.mark.parametrize(
    ("model", "source", "words"),
    [("missing", "", "'missing'"), ("failing", "", "no frame was answered"), ("shapes", "/nowhere", "'/nowhere'")],
)
def test_stream_without_results_fails_in_one_line(
    running: Running, picture: str, model: str, source: str, words: str
) -> None:
    result = call("stream", model, source or picture, "-t", running.target)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert words in result.stderr


def test_stream_interrupted_completes_video_and_prints_the_summary(
    running: Running, video: str, tmp_path: Path
) -> None:
    av = pytest.importorskip("av")
    saved = tmp_path / "found.mp4"
    process = program("stream", "shapes", video, "--loop", "--json", "--save", str(saved), "-t", running.target)
    assert process.stdout is not None
    for _ in range(15):
        assert json.loads(process.stdout.readline())["sequence"] >= 1
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert all(json.loads(line) for line in out.splitlines())
    assert summary(err)["sent"] >= 1
    assert err.count("\n") == 2, err
    with av.open(str(saved)) as container:
        assert len(list(container.decode(video=0))) >= 5
        assert container.duration


def test_stream_closed_pipe_is_quiet(running: Running, video: str) -> None:
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


def test_stream_continues_after_a_restart_of_the_daemon(tmp_path: Path, video: str) -> None:
    target = f"unix:{tmp_path}/edged.sock"
    with Running(target) as running:
        process = program("stream", "shapes", video, "--loop", "--json", "--track", "--camera", "door", "-t", target)
        assert process.stdout is not None
        before = json.loads(process.stdout.readline())
    with Running(target) as running:
        numbers = [json.loads(process.stdout.readline())["sequence"] for _ in range(60)]
        first = running.daemon.frames[0]
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=20)
    assert numbers == sorted(set(numbers))
    assert first.sequence > before["sequence"]
    assert (first.camera, first.options.track) == ("door", True)
    assert process.returncode == 143
    assert "calling again in 1 s" in err
    account = summary(err)
    assert account["failed"] <= account["sent"] - account["answered"]


def test_stream_several_sinks_get_every_frame(running: Running, video: str, tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    saved, lines = tmp_path / "found.mp4", tmp_path / "found.jsonl"
    words = ("--no-pace", "--json", "--save", str(saved), "--lines", str(lines), "--preview", "0", "-t", running.target)
    result = call("stream", "shapes", video, *words)
    assert result.exit_code == 0, result.output
    assert re.search(r"^preview at http://127\.0\.0\.1:\d+/$", result.stderr, re.MULTILINE)
    printed, written = (
        [json.loads(line)["sequence"] for line in t.splitlines()] for t in (result.stdout, lines.read_text())
    )
    assert printed == written == list(range(1, 41))
    with av.open(str(saved)) as container:
        assert len(list(container.decode(video=0))) == 40


def test_stream_options_reach_the_daemon(running: Running, picture: str) -> None:
    words = ["--max-fps", "5", "--max-staleness", "0.5", "--weight", "2", "--priority", "-1", "--every-frame"]
    words += ["--region", "1,2,3,0", "--rotation", "270", "--by-class", "-t", running.target]
    result = call("stream", "shapes", picture, *words)
    assert result.exit_code == 0, result.output
    (frame,) = running.daemon.frames
    assert (frame.options.max_fps, frame.options.max_staleness_ms, frame.options.priority) == (5, 500, -1)
    assert (frame.options.mode, frame.options.weight, frame.rotation) == (1, 2, 270)
    assert (frame.region.x, frame.region.y, frame.region.width, frame.region.height) == (1, 2, 3, 0)
    assert frame.thresholds.HasField("class_agnostic")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--region", "1,2,3"], "'1,2,3' is not a region"),
        (["--rotation", "45"], "rotation=45"),
        (["--preview", "box"], "'box' is not an address for a preview"),
        (["--mqtt", "mqtt://me:secret@box"], "EDGED_MQTT_PASSWORD"),
        (["--save", "found.avi"], "--save 'found.avi'"),
        (["--save", "/nowhere/found.mp4"], "'/nowhere/found.mp4' cannot be written"),
    ],
)
def test_stream_wrong_options_fail_in_one_line(running: Running, picture: str, words: list[str], expected: str) -> None:
    result = call("stream", "shapes", picture, *words, "-t", running.target)
    assert result.exit_code == 2
    assert expected in wrong(result)
    assert "secret" not in result.stderr


def test_stream_on_a_terminal_shows_a_live_line(running: Running, video: str) -> None:
    with Terminal("stream", "shapes", video, "-t", running.target, columns=160) as terminal:
        assert terminal.ended() == 0
        assert re.search(r"fps  age .*2 detections  null.*40 frames sent", terminal.text, re.DOTALL), terminal.text


# --- engines show ---------------------------------------------------------------------------------------------------


def engine(key: str, model: str = "doors", **changes: object) -> EngineInfo:
    built = EngineInfo(
        key=key,
        model=model,
        backend="openvino",
        precision="fp16",
        state="serving",
        reason="",
        parts={"format": "1", "cpu.isa": "6f21", "recipe.optimization": "all"},
        latency_ms=2.5,
        reference_ms=7.25,
        bytes=123_456,
        created_unix_s=1.6e9,
        build_s=3.5,
        device="cpu",
        verdict=Verdict(True, "", {"cosine": 0.999}),
    )
    return msgspec.structs.replace(built, **changes)


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[EngineInfo]:
    """The engines of a daemon: one shared by two equal models, a rejected one, and one that is not built yet."""
    bare = {"latency_ms": None, "reference_ms": None, "bytes": 0, "build_s": None, "verdict": None}
    composition = Composition(
        layers={"fp16": 20, "fp32": 1},
        nodes={"CUDAExecutionProvider": {"Add": 2, "Conv": 20, "Mul": 2}, "CPUExecutionProvider": {"Loop": 1}},
        fallback=("1 Loop runs on the CPU",),
        kept=("Softmax s: its values are small",),
        notes=("not calibrated on a.png: it is empty",),
    )
    made = engine("abcdef0011", device="cuda:0", composition=composition, ahead="sm_86", adopted_from="99" * 16)
    found = [
        made,
        msgspec.structs.replace(made, model="windows"),
        engine("abcdef9911", state="rejected", reason="too far off", verdict=Verdict(False, "too far off", {})),
        engine("1234567890", state="queued", **bare),
    ]
    monkeypatch.setattr(Client, "engines", lambda *_: tuple(found))
    return found


def test_engines_show_has_every_fact_of_an_engine(stored: list[EngineInfo]) -> None:
    result = call("engines", "show", "abcdef00", "-t", "box:1")
    assert result.exit_code == 0, result.output
    rows = dict(re.split("  +", line, maxsplit=1) for line in result.stdout.splitlines())
    assert rows.pop("built").endswith(" in 3.5 s")
    assert rows == {
        "key": "abcdef0011",
        "model": "doors, windows",
        "engine": "openvino on cuda:0, fp16",
        "state": "serving",
        "size": "123456 bytes",
        "speed": "2.90 times the reference (2.500 ms against 7.250 ms, timed alternately)",
        "used": "not known",
        "pinned": "no",
        "adopted": f"from {'99' * 16}, built ahead and verified on this box",
        "built ahead": "for sm_86, on another box",
        "layers": "20 in fp16, 1 in fp32",
        "on CUDAExecutionProvider": "20 Conv, 2 Add, 2 Mul",
        "on CPUExecutionProvider": "1 Loop",
        "fallback": "1 Loop runs on the CPU",
        "kept in fp32": "Softmax s: its values are small",
        "notes": "not calibrated on a.png: it is empty",
        "verdict": "accepted",
        "verdict cosine": "0.999",
        "on frames": "not judged on frames of cameras: no frames are collected; "
        "to collect some: edged samples collect doors",
        **{f"part {name}": value for name, value in stored[0].parts.items()},
    }
    found = json.loads(call("engines", "show", "abcdef0011", "--json", "-t", "box:1").stdout)
    assert found == json.loads(json.dumps({**stored[0].json(), "models": ["doors", "windows"]}))
    assert "openvino on cuda:0" in call("engines", "list", "-t", "box:1").stdout


def test_engines_show_rejected_or_unbuilt_engine(stored: list[EngineInfo]) -> None:
    assert re.search("verdict +rejected: too far off", call("engines", "show", "abcdef99", "-t", "box:1").stdout)
    text = call("engines", "show", "123456", "-t", "box:1").stdout
    assert re.search("speed +not measured", text)
    assert re.search("built +not yet", text)
    assert "verdict" not in text


@pytest.mark.parametrize(
    ("key", "status", "words"),
    [
        ("ffffff", 1, "no engine has a key that begins with 'ffffff'"),
        ("abcdef", 1, "2 engine keys begin with 'abcdef', such as abcdef0011 and abcdef9911"),
        ("abcde", 2, "too short"),
    ],
)
def test_engines_show_fails_in_one_line(stored: list[EngineInfo], key: str, status: int, words: str) -> None:
    result = call("engines", "show", key, "-t", "box:1")
    assert result.exit_code == status
    assert words in wrong(result)


# --- shared by commands ---------------------------------------------------------------------------------------------


def test_show_without_terminal_prints_tables_unfolded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    table = Table(show_header=False, box=None, pad_edge=False)
    long = " ".join(["word"] * 100)
    table.add_row("digest", "d" * 200)
    table.add_row("words", long)
    table.add_row("short", "[red]x")
    common.show(table)
    common.show(long)
    assert capsys.readouterr().out == f"digest  {'d' * 200}\nwords   {long}\nshort   [red]x\n{long}\n"


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        (PermissionError(13, "Permission denied", "/proc/x"), "edged: cannot use /proc/x: Permission denied"),
        (OSError(28, "No space left on device"), "edged: No space left on device"),
        (OSError("odd"), "edged: odd"),
        (FileNotFoundError(2, "No such file", b"/a"), "edged: cannot use /a: No such file"),
    ],
)
def test_command_os_error_is_one_line(raised: OSError, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> None:
        raise raised

    with pytest.raises(typer.Exit) as ended:
        common.command(fails)()
    assert ended.value.exit_code == 1
    assert capsys.readouterr().err == words + "\n"


def test_is_daemon_addressed_folders_come_before_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EDGED_TARGET", "box:1")
    assert is_daemon_addressed(None)
    assert is_daemon_addressed("box:2", None)
    assert not is_daemon_addressed(None, None, tmp_path)
    with pytest.raises(InvalidInput, match="a daemon has its own folders"):
        is_daemon_addressed("box:2", tmp_path)
    monkeypatch.setenv("EDGED_TARGET", " ")
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    assert not is_daemon_addressed(None, None)  # no daemon listens


def test_local_box_unusable_cache_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EdgedError, match=f"^cannot use {tmp_path}/file: ") as raised:
        local.LocalBox(tmp_path, tmp_path / "file").engines("")
    assert not isinstance(raised.value, InvalidInput)


@pytest.mark.parametrize("ask", [lambda box: box.engines(""), lambda box: box.plans()])
def test_local_box_reads_the_store_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ask: Callable[[local.LocalBox], object]
) -> None:
    rescans: list[Path] = []
    monkeypatch.setattr(local.Store, "rescan", lambda store: rescans.append(store.root))
    ask(local.LocalBox(tmp_path, tmp_path / "cache"))
    assert rescans == [tmp_path / "cache"]


def test_engines_report_is_readable_only_by_its_owner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Client, "engine_report", lambda *_, **__: b"<html>")
    place = tmp_path / "report.html"
    place.touch(mode=0o644)
    assert call("engines", "report", "abcdef0011", "-o", str(place), "-t", "box:1").exit_code == 0
    assert (place.read_bytes(), place.stat().st_mode & 0o777) == (b"<html>", 0o600)
    assert call("engines", "report", "abcdef0011", "-o", "/dev/null", "-t", "box:1").exit_code == 0


# --- samples --------------------------------------------------------------------------------------------------------


def test_samples_list_fits_a_terminal_and_show_names_silent_cameras(monkeypatch: pytest.MonkeyPatch) -> None:
    camera = CollectedCamera("hall", 20, 19, 1, 1e9, 1e9)
    about = {"asked": ("hall", "yrd"), "wanted": 500, "kept": 41, "calibrate": 20, "judge": 19, "bytes": 214_800_000}
    found = FrameCollection("doors", "collecting", spent_s=90_000, over_s=86_400, cameras=(camera,), **about)  # type: ignore[arg-type]
    monkeypatch.setattr(Client, "frames", lambda *_, **__: [found])
    listed = call("samples", "list", "-t", "box:1").stdout
    assert max(map(len, listed.splitlines())) < 80
    assert "100% of 1 d 0 h" in listed
    shown = call("samples", "show", "doors", "-t", "box:1").stdout
    assert "no frames of yrd yet" in shown
    assert "collecting for 1 d 0 h of 1 d 0 h" in shown
