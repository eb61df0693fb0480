"""Frames of live cameras in a real daemon: collected from two cameras over a restart, roles, limits, removal."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from edged.client import Client
from edged.client.credentials import Credentials
from edged.errors import Forbidden, InvalidInput, ModelNotFound, NotFound, Refused
from edged.shapes import MODEL_PATH, Scene
from tests.integration import onnx_files
from tests.integration.daemon import Daemon, wait_for

FPS = 12.0


def jpeg(seed: int, index: int = 0, side: tuple[int, int] = (640, 480)) -> bytes:
    return cv2.imencode(".jpg", Scene(seed, *side).frame(index)[0])[1].tobytes()


@contextlib.contextmanager
def streaming(box: Daemon, model: str, **cameras: list[bytes] | list[np.ndarray]) -> Iterator[list[str]]:
    """Send the pictures of each camera over and over, as long as the block lasts. Yields the errors of frames."""
    ends, errors = threading.Event(), list[str]()

    def camera(name: str, pictures: list[bytes]) -> None:
        def frames() -> Iterator[bytes]:
            for picture in itertools.cycle(pictures):
                if ends.wait(1 / FPS):
                    return
                yield picture

        with box.client() as client:
            for result in client.stream(model, frames(), camera=name):
                if result.error is not None:
                    errors.append(str(result.error))

    threads = [threading.Thread(target=camera, args=each) for each in cameras.items()]
    for thread in threads:
        thread.start()
    try:
        yield errors
    finally:
        ends.set()
        for thread in threads:
            thread.join()


@pytest.fixture(scope="module")
def box() -> Iterator[Daemon]:
    daemon = Daemon("--model", f"shapes={MODEL_PATH}", builds=False)
    with daemon:
        onnx_files.identity(daemon.models / "plain.onnx", "FP32")
        for model in ("shapes", "plain"):
            daemon.ready(model)
        yield daemon


@pytest.fixture
def client(box: Daemon) -> Iterator[Client]:
    with box.client() as client:
        for each in client.frames():
            client.remove_frames(each.model)
        yield client


def finished(client: Client, model: str = "shapes") -> bool:
    return any(each.state == "finished" for each in client.frames(model))


@pytest.mark.long
def test_frames_of_two_cameras_are_collected_over_a_restart() -> None:
    with Daemon(builds=False) as box:
        with box.client() as client:
            client.add_model("shapes", MODEL_PATH)
            box.ready("shapes")
            assert client.collect_frames("shapes", ["door", "yard"], frames=24, over_s=30.0).state == "collecting"
        moving = {
            name: [jpeg(number, seed) for seed in range(0, 400, 10)] for number, name in enumerate(("door", "yard"))
        }
        with streaming(box, "shapes", **moving, other=[jpeg(9)]) as errors, box.client() as client:
            wait_for("frames are kept", lambda: client.frames("shapes")[0].kept >= 2, 120)
        assert not errors
        box.stop()
        assert not [each for each in (box.state / "frames").rglob("*") if each.stat().st_mode & 0o077]
        box.start()
        box.ready("shapes")
        with box.client() as client, streaming(box, "shapes", **moving):
            wait_for("the collection is finished", lambda: finished(client), 120)
            (found,) = client.frames("shapes", each=True)
            assert 5 <= found.kept <= 24
            assert min(found.calibrate, found.judge) >= 1
            assert {each.camera for each in found.cameras} == {"door", "yard"}
            assert (len(found.id), found.problem) == (12, "")
            info = next(each for each in client.models() if each.name == "shapes")
            assert info.frames is not None
            assert (info.frames.kept, info.frames.frames) == (found.kept, ())
            sent = {hashlib.sha256(picture).digest() for pictures in moving.values() for picture in pictures}
            kept = [Path(found.folder, each.name) for each in found.frames]
            assert {hashlib.sha256(each.read_bytes()).digest() for each in kept} <= sent  # byte for byte
            kinds = [each.kind for each in client.events() if each.kind.startswith("collection")]
            assert kinds == ["collection_finished"]  # of this run of the daemon
            for path in (box.state / "frames").rglob("*"):
                assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
            client.remove_model("shapes", delete=True)
            assert client.frames() == []
            assert not kept[0].exists()


@pytest.mark.long
def test_frames_that_look_the_same_are_dropped(box: Daemon, client: Client) -> None:
    client.collect_frames("shapes", frames=20, over_s=6.0)
    with streaming(box, "shapes", door=[jpeg(1)], yard=[jpeg(2)]):
        wait_for("the collection is finished", lambda: finished(client))
    (found,) = client.frames("shapes")
    assert (found.kept, found.unusable) == (2, 0)
    assert found.duplicates >= 5


@pytest.mark.long
def test_frames_of_strange_cameras_and_pictures_do_no_harm(box: Daemon, client: Client) -> None:
    names = ["../../etc/passwd", "a/b\\c", "ünïcödé ☃", "."]
    client.collect_frames("shapes", names, frames=8, over_s=6.0)
    large = cv2.imencode(".jpg", np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8))[1].tobytes()
    huge = cv2.imencode(".jpg", np.zeros((8192, 8192, 3), np.uint8))[1].tobytes()
    pictures = {name: [jpeg(number, seed) for seed in range(0, 200, 10)] for number, name in enumerate(names)}
    pictures["."] = [b"no picture", huge, large[: len(large) // 2]]
    with streaming(box, "shapes", **pictures) as errors:
        wait_for("the collection is finished", lambda: finished(client), 120)
    assert errors
    (found,) = client.frames("shapes", each=True)
    assert found.frames
    assert {each.camera for each in found.cameras} <= set(names[:3])
    folder = box.state / "frames" / "shapes"
    assert {each.name for each in folder.iterdir()} == {"collection.json", *(each.name for each in found.frames)}
    assert sorted(each.name for each in (box.state / "frames").iterdir()) == [".candidates", "shapes"]


def test_frames_of_raw_pixels_are_kept_as_jpeg(box: Daemon, client: Client) -> None:
    client.collect_frames("shapes", frames=2, over_s=4.0)
    with streaming(box, "shapes", door=[Scene(3).frame(index)[0] for index in range(0, 200, 20)]):
        wait_for("the collection is finished", lambda: finished(client))
    (found,) = client.frames("shapes", each=True)
    decoded = [cv2.imread(str(Path(found.folder, each.name))) for each in found.frames]
    assert [each.shape for each in decoded if each is not None] == [(480, 640, 3)] * found.kept


def test_frames_wrong_requests_are_refused(box: Daemon, client: Client) -> None:
    with pytest.raises(ModelNotFound):
        client.collect_frames("missing")
    with pytest.raises(InvalidInput, match="takes no pictures"):
        client.collect_frames("plain")
    for wrong in ({"frames": 10_001}, {"over_s": 0.5}, {"over_s": 1e9}, {"over_s": float("nan")}):
        with pytest.raises(InvalidInput):
            client.collect_frames("shapes", **wrong)
    with pytest.raises(InvalidInput):
        client.collect_frames("shapes", [f"camera {number}" for number in range(10_000)])
    with pytest.raises(InvalidInput):
        client.collect_frames("shapes", ["a\nb"])
    for call in (client.stop_collecting, client.remove_frames):
        with pytest.raises(NotFound):
            call("shapes")
        with pytest.raises(InvalidInput):
            call("")
    client.collect_frames("shapes")
    with pytest.raises(Refused):
        client.collect_frames("shapes")
    (found,) = client.frames()
    assert (found.wanted, found.over_s) == (500, 86400)
    assert "sent no frames" in found.problem
    client.stop_collecting("shapes")
    wait_for("an empty collection is removed", lambda: client.frames() == [])


def test_frames_are_listed_for_readers_and_commands_are_audited(box: Daemon, client: Client) -> None:
    with Client(box.tcp, credentials=Credentials(token=box.token("onlooker", "read"))) as reader:
        client.collect_frames("shapes")
        assert len(reader.frames()) == 1
    lines = [json.loads(each) for each in (box.state / "audit" / "audit.jsonl").read_text().splitlines()]
    assert any(each["method"].endswith("CollectFrames") and each["outcome"] == "OK" for each in lines)


def test_frames_reader_may_not_collect() -> None:
    environment = {**os.environ, "EDGED_ACCESS_LOOPBACK": "read"}
    with Daemon(builds=False, environment=environment) as box, Client(box.tcp) as reader:
        assert reader.frames() == []
        for call in (reader.collect_frames, reader.stop_collecting, reader.remove_frames):
            with pytest.raises(Forbidden):
                call("shapes")


def test_frames_command_line(box: Daemon, client: Client) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = box.command("samples", *arguments, "--target", box.unix)
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert "no frames yet" in run("list").stdout
    assert run("show", "shapes").returncode == 1
    assert run("collect", "shapes", "--over", "soon").returncode == 2
    begun = run("collect", "shapes", "--camera", "door", "--frames", "4", "--over", "4s")
    assert "collecting 4 frames of door" in begun.stdout
    with streaming(box, "shapes", door=[jpeg(4, index) for index in range(0, 200, 20)]):
        wait_for("the collection is finished", lambda: finished(client))
    shown = run("show", "shapes")
    assert str(box.state / "frames" / "shapes") in shown.stdout
    assert "door" in shown.stdout
    as_json = json.loads(run("show", "shapes", "--json").stdout)
    assert len(as_json["frames"]) == as_json["kept"]
    assert json.loads(run("list", "--json").stdout)[0]["state"] == "finished"
    facts = subprocess.run(
        box.command("models", "show", "shapes", "--target", box.unix), capture_output=True, text=True, check=False
    )
    assert "finished: " in facts.stdout
    assert run("stop", "shapes").returncode == 1
    assert "removed all frames" in run("remove", "shapes").stdout
    assert client.frames() == []


@pytest.mark.long
def test_frames_of_the_configuration_are_collected_after_a_reload() -> None:
    with Daemon("--model", f"shapes={MODEL_PATH}", config="[frames]\nlimit_mb = 64\n", builds=False) as box:
        box.ready("shapes")
        with box.client() as client, streaming(box, "shapes", door=[jpeg(5, index) for index in range(0, 200, 20)]):
            assert client.frames() == []
            box.config.write_text("[frames.collect.shapes]\nframes = 3\nover_hours = 0.001\n")
            client.reload()
            wait_for("the collection is finished", lambda: finished(client))
            client.remove_frames("shapes")
            wait_for("it begins again", lambda: client.frames())
            box.config.write_text("[frames]\nlimit_mb = 64\n")
            client.reload()
            wait_for("it ends", lambda: not client.frames() or finished(client))
