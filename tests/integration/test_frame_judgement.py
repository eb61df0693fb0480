"""A real daemon judges engines on collected frames, and reports on them; frames that are damaged, few or gone."""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import cv2
import onnx
import pytest

from edged.api_types import EngineInfo
from edged.models.collected import Collection, Frame, folder_of, id_of
from edged.serving.frame_files import FrameFiles
from edged.shapes import MODEL_PATH, Scene
from edged.store import sealed
from edged.store.record import EngineRecord
from tests.integration import web
from tests.integration.daemon import Daemon, wait_for

pytestmark = pytest.mark.timeout(400)

_OVER_S = 80.0  # eight blocks of ten seconds; those with odd numbers are for judging
_PER_BLOCK = 4


def collect(state: Path, model: str, *, shapes: int = 6, damaged: int = 0) -> Collection:
    """Write a finished collection of drawn frames of two cameras, as the daemon does."""
    files, frames = FrameFiles(state / "frames"), list[Frame]()
    folder = folder_of(state, model)
    folder.mkdir(mode=0o700, parents=True)
    for number in range(8 * _PER_BLOCK):
        picture = Scene(number, 640, 480, shapes=shapes).frame(0)[0]
        data = cv2.imencode(".jpg", picture)[1].tobytes()
        digest = hashlib.sha256(data).hexdigest()
        offset = number // _PER_BLOCK * 10.0 + 2.0 + number % _PER_BLOCK
        name, camera = f"{number:04}-{digest[:12]}.jpg", ("hall", "door")[number % 2]
        (folder / name).write_bytes(data)
        frames.append(Frame(name, camera, offset, time.time(), "boot", 100.0 + offset, number, digest, len(data)))
    whole = Collection(("hall", "door"), len(frames), _OVER_S, time.time(), tuple(frames), True, id_of(frames))
    files.save(model, whole)
    for frame in whole.frames_for("judge")[:damaged]:
        (folder / frame.name).write_bytes(b"\xff\xd8 cut off")
    return whole


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with Daemon(listen=("unix:HOME/edged.sock",), endpoints=1, config="[page]\nlisten = 'localhost:0'\n") as found:
        yield found


def added(daemon: Daemon, model: str, **settings: str) -> dict[str, EngineInfo]:
    """Add the embedded detector and wait for its engines; return those by precision. Its content differs from that of
    other models, which would otherwise share its engines."""
    file = daemon.home / f"{model}.onnx"
    proto = onnx.load(MODEL_PATH)
    proto.doc_string = model
    onnx.save(proto, file)
    with daemon.client() as client:
        client.add_model(model, file, {"backends": "openvino", "precisions": "fp32,int8", **settings})
    return {engine.precision: engine for engine in daemon.settled(model) if not engine.is_reference}


def record(daemon: Daemon, key: str) -> EngineRecord:
    data = (daemon.cache / "engines" / key / "record.json").read_bytes()
    return sealed.unseal(data, EngineRecord)


def run(daemon: Daemon, *words: str) -> subprocess.CompletedProcess[str]:
    command = daemon.command(*words, "--target", daemon.unix)
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=daemon.home)


class Images(HTMLParser):
    """Counts pictures, and refuses scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.count = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag != "script"
        self.count += tag == "img"


@pytest.mark.long
def test_engine_is_judged_on_held_out_frames_and_reported(daemon: Daemon) -> None:
    collection = collect(daemon.state, "judged", damaged=1)
    daemon.stop()
    daemon.start()
    engine = added(daemon, "judged")["int8"]
    assert engine.judgement is not None, engine.reason
    held_out = len(collection.frames_for("judge"))
    found = engine.judgement
    assert (found.collection, found.frames, found.skipped) == (collection.id, held_out - 1, 1)
    assert found.outcome == "alike", found.reason
    assert found.objects > 50
    assert found.figures["recall"] >= found.bounds["recall"] == 0.9
    stored = record(daemon, engine.key)
    assert stored.judgement is not None
    assert {tally.name for tally in stored.judgement.cameras} == {"hall", "door"}
    assert len(stored.judgement.classes) > 1
    assert len(stored.blocks.engine) == len(stored.blocks.reference) >= 3

    shown = run(daemon, "engines", "show", engine.key[:12])
    assert f"{held_out - 1} frames of collection {collection.id}, 1 could not be read" in " ".join(shown.stdout.split())
    told = json.loads(run(daemon, "engines", "report", engine.key[:12], "--json").stdout)
    assert told["judgement"]["figures"] == found.figures
    assert run(daemon, "engines", "report", engine.key[:12], "-o", "report.html").returncode == 0
    page = daemon.home / "report.html"
    assert page.stat().st_mode & 0o777 == 0o600
    assert page.stat().st_size < 3 << 20
    worst = len(stored.judgement.worst)
    assert worst > 0
    assert Images(page.read_text()).count == 2 * worst
    status, headers, body = web.ask(daemon.addresses[1], "GET", f"/engines/{engine.key}/report", b"", {})
    assert (status, headers["cache-control"]) == (200, "no-store")
    assert "default-src 'none'" in headers["content-security-policy"]
    assert Images(body.decode()).count == 2 * worst
    assert run(daemon, "engines", "report", engine.key, "-o", "bare.html", "--no-pictures").returncode == 0
    assert Images((daemon.home / "bare.html").read_text()).count == 0

    for frame in collection.frames:  # as when their retention ends
        (folder_of(daemon.state, "judged") / frame.name).unlink()
    assert run(daemon, "engines", "report", engine.key, "-o", "gone.html").returncode == 0
    text = (daemon.home / "gone.html").read_text()
    assert Images(text).count == 0
    assert f"{worst} of {worst} frames have no picture" in text


@pytest.mark.long
def test_engine_with_too_few_objects_is_refused_and_fp32_serves(daemon: Daemon) -> None:
    collect(daemon.state, "few", shapes=1)
    daemon.stop()
    daemon.start()
    # Frames with one object calibrate badly: on drawn pictures with many objects int8 may be outside its usual limit.
    engines = added(daemon, "few", **{"verify.objects": "1000", "verify.int8.box_score": "0.6"})
    assert engines["int8"].state == "rejected"
    assert "edged samples collect few" in engines["int8"].reason
    assert engines["int8"].judgement is not None
    assert engines["int8"].judgement.outcome == "too_few"
    assert engines["fp32"].judgement is None
    with daemon.client() as client:
        client.set_model("few", {"verify.objects": "5"})

        def accepted() -> EngineInfo | None:
            found = next(each for each in client.engines("few") if each.precision == "int8")
            return found if found.state in ("ready", "serving") else None

        engine = wait_for("the engine is judged by the new limit", accepted, 120)
    assert engine is not None
    assert engine.judgement is not None
    assert engine.judgement.outcome == "alike"


@pytest.mark.long
def test_engine_without_a_collection_says_that_it_was_not_judged(daemon: Daemon) -> None:
    engine = added(daemon, "plain")["int8"]
    assert engine.judgement is None
    assert engine.verdict is not None
    assert engine.verdict.accepted
    shown = " ".join(run(daemon, "engines", "show", engine.key[:12]).stdout.split())
    assert "not judged on frames of cameras" in shown
    assert run(daemon, "engines", "report", engine.key[:12]).returncode == 0
    assert (daemon.home / f"engine-{engine.key[:12]}.html").exists()
