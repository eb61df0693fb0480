"""Checks of live answers in a real daemon: a camera that is inverted and an engine that was altered raise the alarm,
and nothing else does."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import cv2
import numpy as np
import pytest

from edged.api_types import AlarmInfo, DriftInfo, EventInfo, ModelInfo
from edged.shapes import MODEL_PATH, Scene
from edged.vision.image import Image
from tests.integration.asking import scrape, value
from tests.integration.daemon import Daemon, children, wait_for
from tests.spoiled import shift_scores

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

METRICS = '[metrics]\nlisten = "127.0.0.1:0"\n'
CONFIG = """
[drift]
every_seconds = 0.1
cpu_percent = 100
busy_percent = 100
learn_hours = 1e-6
"""
_SECONDS = 180.0
_FRAMES = 40


class Camera:
    """Streams frames of a scene to the model `shapes`; `change` is applied to each picture."""

    def __init__(self, daemon: Daemon, name: str, seed: int) -> None:
        self.change: Callable[[Image], Image] = lambda picture: picture
        self.data: bytes | None = None  # sent instead of pictures
        self._daemon, self._name, self._stop = daemon, name, threading.Event()
        scene = Scene(seed, 320, 240)
        self._pictures = [scene.frame(7 * index)[0] for index in range(_FRAMES)]
        self._thread = threading.Thread(target=self._run)

    def _frames(self) -> Iterator[bytes]:
        for picture in itertools.cycle(self._pictures):
            if self._stop.is_set():
                return
            yield self.data or cv2.imencode(".jpg", self.change(picture))[1].tobytes()
            time.sleep(0.1)

    def _run(self) -> None:
        with self._daemon.client() as client:
            for _ in client.stream("shapes", self._frames(), camera=self._name):
                pass

    def __enter__(self) -> Camera:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)


def drift(daemon: Daemon) -> DriftInfo:
    with daemon.client() as client:
        found = next(model for model in client.models() if model.name == "shapes").drift
    assert found is not None
    return found


def alarms(daemon: Daemon) -> list[AlarmInfo]:
    with daemon.client() as client:
        return [alarm for alarm in client.status().alarms if alarm.kind == "answers_drift"]


def checked(daemon: Daemon, more: int) -> DriftInfo:
    """Wait for more checks; return what they found."""
    wait_for("a model is checked", lambda: any(model.drift for model in _models(daemon)), _SECONDS)
    before = drift(daemon).checks
    wait_for("checks", lambda: drift(daemon).checks >= before + more, _SECONDS)
    return drift(daemon)


def _models(daemon: Daemon) -> list[ModelInfo]:
    with daemon.client() as client:
        return list(client.models())


def inverted(picture: Image) -> Image:
    return np.bitwise_not(picture)


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with Daemon("--model", f"shapes={MODEL_PATH}", builds=False, config=METRICS + CONFIG, endpoints=1) as daemon:
        daemon.ready("shapes")
        yield daemon


def test_inverted_camera_raises_the_alarm_until_it_is_as_before(daemon: Daemon) -> None:
    with Camera(daemon, "hall", 3) as hall, Camera(daemon, "yard", 8):
        assert checked(daemon, 40).agreement == 1.0
        assert not alarms(daemon)
        hall.change = inverted
        (alarm,) = wait_for("the alarm is raised", lambda: alarms(daemon), _SECONDS)
        assert (alarm.model, alarm.camera) == ("shapes", "hall")
        place = next((daemon.state / "drift" / "shapes").glob("*-hall"))
        assert str(place) in alarm.message
        assert cv2.imread(str(place / "picture.jpg")) is not None
        answers = json.loads((place / "answers.json").read_text())
        assert answers["served"] == answers["reference"]
        found = scrape(daemon.addresses[2])
        assert (value(found, "edged_drift_checks_total", model="shapes", outcome="agreed") or 0) >= 40
        assert value(found, "edged_drift_agreement_ratio", model="shapes") == 1.0
        assert value(found, "edged_model_degraded", model="shapes", reason="answers_drift") == 1.0
        hall.change = lambda picture: picture
        wait_for("the alarm is cleared", lambda: not alarms(daemon), _SECONDS)
        kinds = [event.kind for event in _events(daemon)]
        assert kinds.index("alarm_raised") < kinds.index("alarm_cleared")


def _events(daemon: Daemon) -> list[EventInfo]:
    with daemon.client() as client:
        return list(client.events())


def test_engine_altered_below_the_verification_threshold_raises_the_alarm() -> None:
    daemon = Daemon(config=CONFIG)
    folder = daemon.models / "shapes"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.onnx").write_bytes(MODEL_PATH.read_bytes())
    (folder / "edged.toml").write_text('backends = "onnxruntime"\nprecisions = "fp32"\n')
    with daemon:
        engines = daemon.settled("shapes")
        daemon.stop()
        altered = [e.key for e in engines if (daemon.cache / "engines" / e.key / "model.onnx").exists()]
        for key in altered:
            shift_scores(daemon.cache / "engines" / key, 0.01)
        daemon.start()
        (serving,) = [e for e in daemon.settled("shapes") if e.state == "serving"]
        assert serving.key in altered, "the reference serves, which was not altered"
        with Camera(daemon, "hall", 3):
            (alarm,) = wait_for("the alarm is raised", lambda: alarms(daemon), _SECONDS)
            assert (alarm.model, alarm.engine, alarm.camera) == ("shapes", serving.key, "")
            assert "higher on average" in alarm.message
            assert drift(daemon).differed == 0, "no single check is beyond the bounds"
            with daemon.client() as client:
                list(client.verify("shapes"))
                again = next(e for e in client.engines("shapes") if e.key == serving.key)
            assert again.verdict is not None
            assert again.verdict.accepted, "its verification does not notice it"
        daemon.stop()
        daemon.start()
        daemon.ready("shapes")
        wait_for("the alarm outlives a restart", lambda: alarms(daemon), _SECONDS)


def test_unchanged_engine_and_cameras_raise_nothing_in_a_long_run(stored: Daemon) -> None:
    (stored.home / "edged.toml").write_text(CONFIG.replace("HOME", str(stored.home)))
    stored._arguments = (*stored._arguments, "--config", str(stored.home / "edged.toml"))
    with stored as daemon:
        daemon.settled("shapes")
        with Camera(daemon, "hall", 3), Camera(daemon, "yard", 8), Camera(daemon, "gate", 5):
            found = checked(daemon, 150)
        assert (found.differed, found.failed) == (0, 0)
        assert found.agreement == 1.0
        assert not alarms(daemon)
        assert not [event for event in _events(daemon) if event.kind == "alarm_raised"]
        assert [path.name for path in (daemon.state / "drift" / "shapes").iterdir()] == ["history.json"]


def test_faults_show_in_the_report_and_the_next_checks_go_on(daemon: Daemon) -> None:
    """A child that is killed, a camera that vanishes, a model that is removed during a check."""
    with Camera(daemon, "yard", 8):
        with Camera(daemon, "hall", 3):
            checked(daemon, 4)
            before = drift(daemon).failed

            def killed() -> bool:
                for pid, line in children(daemon.pid).items():
                    if "edged.jobs.server" in line:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                return drift(daemon).failed > before

            wait_for("a check fails", killed, _SECONDS)
            checked(daemon, 4)
        checked(daemon, 3)
        found = drift(daemon)
        assert (found.camera, found.outcome) == ("yard", "agreed")
        assert not alarms(daemon)
    daemon.config.write_text(daemon.config.read_text().replace("every_seconds = 0.1", "every_seconds = 0"))
    with daemon.client() as client:
        client.reload()
    wait_for("no model is checked", lambda: all(model.drift is None for model in _models(daemon)), _SECONDS)


def test_removed_model_leaves_no_history(daemon: Daemon) -> None:
    with daemon.client() as client:
        client.add_model("other", MODEL_PATH)
    daemon.ready("other")
    place = daemon.state / "drift" / "other"
    with daemon.client() as client:
        frames = (cv2.imencode(".jpg", Scene(3).frame(index)[0])[1].tobytes() for index in itertools.count())

        def sent() -> Iterator[bytes]:
            for frame in frames:
                yield frame
                time.sleep(0.05)
                if (place / "history.json").exists():
                    return

        for _ in client.stream("other", sent(), camera="hall"):
            pass
        assert (place / "history.json").stat().st_mode & 0o777 == 0o600
        assert (place.stat().st_mode & 0o777, place.parent.stat().st_mode & 0o777) == (0o700, 0o700)
        client.remove_model("other")
    wait_for("its folder is removed", lambda: not place.exists(), 30)
