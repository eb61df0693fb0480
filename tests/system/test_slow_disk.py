"""A daemon with a slow disk: the event loop's thread, which serves cameras, touches no file in the daemon's folders."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import edged
from edged.api.auth.tokens import TokenFile, make
from edged.errors import EdgedError
from edged.shapes import MODEL_PATH, Scene
from tests import models
from tests.integration import onnx_files
from tests.integration.daemon import Daemon, wait_for
from tests.system import disks

pytestmark = pytest.mark.timeout(400)

_PICTURE = Scene(3).frame(0)[0]
_MOST_TIMES, _MOST_SECONDS = 10.0, 0.1  # limits of p95: relative to the median on a fast disk, and absolute
# Runs in the daemon's Python: prints the first thread's stack when that thread touches a file.
_STACKS = """
import faulthandler, signal
faulthandler.register(signal.SIGRTMIN + 5, file=open({calls!r}, "a"), all_threads=False)
"""
_CONFIG = """
[engines]
build = "command"
[health]
probe_seconds = 1
[metrics]
listen = "unix:{home}/metrics.sock"
"""


class Camera(threading.Thread):
    """Requests one picture after another; `took` has the seconds of each answer."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._address, self._stopping = address, threading.Event()
        self.took: list[float] = []
        self.failed: list[str] = []

    def run(self) -> None:
        with edged.Client(self._address) as client:
            while not self._stopping.wait(0.05):
                began = time.perf_counter()
                try:
                    client.infer("shapes", _PICTURE)
                except EdgedError as error:
                    self.failed.append(str(error))
                self.took.append(time.perf_counter() - began)

    def lap(self) -> list[float]:
        """Return the times since the last lap."""
        took, self.took = self.took, []
        return took

    def stop(self) -> None:
        self._stopping.set()
        self.join(10)


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[tuple[Daemon, Path]]:
    """A ready daemon, and the folder of its disk, which is slow while FOLDER.slow exists."""
    disk = tmp_path / "disk"
    for place in ("state/models", "tmp"):
        (disk / place).mkdir(parents=True)
    (tmp_path / "sitecustomize.py").write_text(_STACKS.format(calls=str(disk.with_suffix(".calls"))))
    environment = {
        **os.environ,
        "LD_PRELOAD": disks.library("slow_disk", tmp_path),
        "SLOW_DISK": str(disk),
        "SLOW_DISK_MS": "50",
        "TMPDIR": str(disk / "tmp"),
        "PYTHONPATH": f"{tmp_path}:{Path(__file__).parent.parent.parent}",
    }
    config = tmp_path / "edged.toml"
    daemon = Daemon("--config", str(config), "--model", f"shapes={MODEL_PATH}", environment=environment)
    config.write_text(_CONFIG.format(home=daemon.home))
    daemon.state, daemon.cache, daemon.models = disk / "state", disk / "cache", disk / "state" / "models"
    onnx_files.convolutions(daemon.models / "m.onnx", 6)
    with daemon:
        daemon.ready("shapes")
        daemon.ready("m")
        yield daemon, disk


def touch_everything(daemon: Daemon, folder: Path) -> None:
    """Do everything once that makes a daemon read or write its disk."""
    with daemon.client() as client:
        client.add_model("added", models.save(models.matmul(5, 4), folder / "added.onnx"), {"backends": "onnxruntime"})
        daemon.ready("added")
        for _ in client.rebuild("added"):
            pass
        key = next(e.key for e in client.engines("added") if e.state in ("serving", "ready") and e.latency_ms)
        client.pin(engine=key)
        client.unpin(engine=key)
        client.evict(everything=True)
        for _ in client.rebuild("added", force=True, follow=False):
            pass
        client.cancel("added")
        client.reload()
        client.status()
        client.load()
        for host in daemon.hosts():
            os.kill(host, signal.SIGKILL)
        daemon.ready("shapes")
        with contextlib.suppress(EdgedError):
            client.infer("unknown", _PICTURE)
        onnx_files.convolutions(daemon.models / "m.onnx", 5)
        TokenFile(daemon.state / "access" / "tokens.json").add(make("t", frozenset({"infer"}))[0])
        client.remove_model("added")
        wait_for("the model is removed", lambda: all(m.name != "added" for m in client.models()))
        daemon.ready("m")


@pytest.mark.long
def test_serving_with_a_slow_disk_keeps_a_cameras_answer_time(slow: tuple[Daemon, Path], tmp_path: Path) -> None:
    daemon, disk = slow
    camera = Camera(daemon.unix)
    camera.start()
    time.sleep(3)
    idle = statistics.median(camera.lap())
    disk.with_suffix(".slow").touch()
    touch_everything(daemon, tmp_path)
    under = camera.lap()
    camera.stop()
    assert daemon.stop(60) == 0
    calls = disk.with_suffix(".calls").read_text()
    assert "call " not in calls, calls[:4000]
    assert np.percentile(under, 95) <= max(_MOST_TIMES * idle, _MOST_SECONDS)
