"""The life of engines: the reference answers at once, better engines are built, verified and swapped in; a restart uses
the store."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import cv2
import pytest

from edged.shapes import MODEL_PATH, Scene
from tests.integration.daemon import Daemon, wait_for
from tests.waiting import is_running

_SCENE = Scene(11)
_FRAMES = [cv2.imencode(".jpg", _SCENE.frame(i)[0])[1].tobytes() for i in range(30)]


@pytest.fixture
def fresh() -> Iterator[Daemon]:
    """A daemon that builds its engines while a test runs."""
    with Daemon("--model", f"shapes={MODEL_PATH}") as daemon:
        yield daemon


@pytest.fixture
def daemon(stored: Daemon) -> Iterator[Daemon]:
    """A daemon with its engines in the store."""
    with stored as daemon:
        yield daemon


class Cameras:
    """Streams frames from several cameras, and counts the results."""

    def __init__(self, daemon: Daemon, count: int, pause: float = 0.02) -> None:
        self._stop, self._pause = threading.Event(), pause
        self.sent, self.answered, self.skipped = [0] * count, [0] * count, [0] * count
        self.errors: list[Any] = []
        self.engines: set[str] = set()
        self._threads = [threading.Thread(target=self._run, args=(daemon, i)) for i in range(count)]

    def _frames(self, index: int) -> Iterator[bytes]:
        for picture in itertools.cycle(_FRAMES):
            if self._stop.is_set():
                return
            self.sent[index] += 1
            yield picture
            time.sleep(self._pause)

    def _run(self, daemon: Daemon, index: int) -> None:
        try:
            with daemon.client() as client:
                for result in client.stream("shapes", self._frames(index), camera=f"camera-{index}"):
                    self.answered[index] += 1
                    self.skipped[index] += result.skipped
                    self.engines.add(result.engine)
                    if result.error is not None:
                        self.errors.append(result.error)
        except Exception as error:
            self.errors.append(error)

    def __enter__(self) -> Cameras:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)


def cost(engine: Any) -> float:
    """Return what engines are chosen by: the latency relative to the reference's, measured at the same time."""
    assert engine.latency_ms is not None
    assert engine.reference_ms is not None
    return float(engine.latency_ms / engine.reference_ms)


@pytest.mark.long
def test_swap_fails_no_request_and_every_frame_is_accounted_for(fresh: Daemon) -> None:
    fresh.ready("shapes")
    with Cameras(fresh, 3, pause=0.1) as cameras:  # a pause, to leave processor time for the builds
        engines = fresh.settled("shapes")
        time.sleep(0.5)
    assert cameras.errors == []
    assert len(cameras.engines) > 1, "no swap happened under load"
    for sent, answered, skipped in zip(cameras.sent, cameras.answered, cameras.skipped, strict=True):
        assert sent == answered + skipped
        assert answered > 0
    usable = [e for e in engines if e.verdict is not None and e.verdict.accepted]
    assert len(usable) >= 2
    serving = next(e for e in engines if e.state == "serving")
    # The fastest, within the margin that a swap must gain.
    assert cost(serving) <= min(cost(e) for e in usable) / 0.95


def test_restart_serves_from_the_store_and_builds_nothing(daemon: Daemon) -> None:
    before = {e.key: e.created_unix_s for e in daemon.settled("shapes")}
    assert daemon.stop() == 0
    daemon.start()
    daemon.ready("shapes")
    with daemon.client() as client:
        after = client.engines("shapes")
        explained = client.explain("shapes")
    assert {e.key: e.created_unix_s for e in after} == before
    assert next(e for e in after if e.state == "serving").backend in ("onnxruntime", "openvino")
    assert all("nothing changed" in item.summary or "its key is the same" in item.summary for item in explained)


@pytest.mark.long
def test_engine_altered_on_disk_is_never_served_and_is_rebuilt(daemon: Daemon) -> None:
    serving = next(e for e in daemon.settled("shapes") if e.state == "serving")
    daemon.stop()
    folder = daemon.cache / "engines" / serving.key
    blob = max(folder.iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 0x10
    blob.write_bytes(data)
    daemon.start()
    again = {e.key: e for e in daemon.settled("shapes")}
    assert again[serving.key].state in ("ready", "serving")
    assert again[serving.key].created_unix_s > serving.created_unix_s
    assert "does not match its record" in daemon.log.read_text()


def test_killed_host_is_replaced_and_every_frame_is_accounted_for(daemon: Daemon) -> None:
    daemon.settled("shapes")
    with Cameras(daemon, 2) as cameras:
        for _ in range(2):
            old = wait_for("a host serves", daemon.hosts)
            time.sleep(0.5)
            for pid in old:
                os.kill(pid, 9)
            wait_for("another host serves", lambda old=old: [p for p in daemon.hosts() if p not in old])
            time.sleep(0.5)
    assert cameras.errors == []
    for sent, answered, skipped in zip(cameras.sent, cameras.answered, cameras.skipped, strict=True):
        assert sent == answered + skipped


def test_killed_daemon_leaves_no_process_and_starts_again(daemon: Daemon) -> None:
    daemon.ready("shapes")
    left = wait_for("a host runs", daemon.children)
    daemon.kill()
    wait_for("its children have exited", lambda: not any(is_running(pid) for pid in left))
    daemon.start()
    daemon.ready("shapes")
    assert any(e.state == "serving" for e in daemon.settled("shapes"))
    assert not [path for path in (daemon.cache / "staging").iterdir() if path.is_dir()]


def test_daemon_process_maps_no_runtime(daemon: Daemon) -> None:
    daemon.settled("shapes")
    with open(f"/proc/{daemon.pid}/maps") as maps:
        mapped = maps.read()
    for runtime in ("onnxruntime", "openvino", "libonnx", "onnx_cpp2py"):
        assert runtime not in mapped


def test_stopping_ends_streams_and_leaves_nothing_behind(daemon: Daemon) -> None:
    daemon.ready("shapes")
    left = daemon.children()
    with Cameras(daemon, 1):
        time.sleep(0.5)
        assert daemon.stop() == 0
    assert not any(is_running(pid) for pid in left)
    assert not list(daemon.home.glob("*.sock"))
