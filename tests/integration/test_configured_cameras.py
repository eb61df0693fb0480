"""Cameras that the daemon opens itself, through real processes: states, zones, events, outputs, reload, commands."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edged.api_types import CameraInfo
from edged.client import Client
from edged.errors import AlreadyExists, InvalidInput, NotFound
from edged.shapes import MODEL_PATH
from tests.unit.mqtt_broker import Broker

pytestmark = pytest.mark.timeout(240)

CONFIG = """
listen = ["unix:{folder}/edged.sock"]
state = "{folder}/state"
cache = "{folder}/cache"
[models]
shapes = "{model}"
[metrics]
listen = "127.0.0.1:0"
[cameras.hall]
source = "scene:7"
model = "shapes"
max_fps = 10
track = {track}
[cameras.hall.zones.left]
points = [[0, 0], [0.5, 0], [0.5, 1], [0, 1]]
on_seconds = 0.2
off_seconds = 0.5
[cameras.hall.events]
snapshots = true
[cameras.hall.sinks]
lines = "{folder}/hall.jsonl"
mqtt = "mqtt://127.0.0.1:{mqtt}/edged?rate=100"
[cameras.gone]
source = "rtsp://user:secret@127.0.0.1:1/main"
model = "shapes"
lost_seconds = 1
"""


class Box:
    """A daemon with configured cameras."""

    def __init__(self, folder: Path, mqtt: int) -> None:
        self.folder, self._mqtt = folder, mqtt
        self.config = folder / "edged.toml"
        self.log = folder / "log"
        self.write()
        command = [sys.executable, "-m", "edged", "serve", "--config", str(self.config)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.client = Client(f"unix:{folder}/edged.sock")

    def write(self, track: bool = False, more: str = "") -> None:
        text = CONFIG.format(folder=self.folder, model=MODEL_PATH, mqtt=self._mqtt, track=str(track).lower())
        self.config.write_text(text + more)

    def camera(self, name: str) -> CameraInfo:
        return next(each for each in self.client.cameras() if each.camera == name)

    def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, self.log.read_text()[-4000:]
            time.sleep(0.1)

    def reaches(self, name: str, state: str) -> CameraInfo:
        def is_so() -> bool:
            found = [each for each in self.client.cameras() if each.camera == name]
            return bool(found) and found[0].state == state

        self.until(is_so)
        return self.camera(name)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    pytest.importorskip("paho.mqtt.client")
    with Broker() as at:
        yield at


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory, broker: Broker) -> Iterator[Box]:
    made = Box(tmp_path_factory.mktemp("box"), broker.port)
    try:
        made.until(lambda: b"listening on" in made.log.read_bytes())
        yield made
    finally:
        made.client.close()
        made.process.terminate()
        made.process.wait(30)


def test_configured_camera_streams_with_zones(box: Box) -> None:
    hall = box.reaches("hall", "streaming")
    assert (hall.configured, hall.removable, hall.source, hall.model) == (True, False, "scene:7", "shapes")
    box.until(lambda: box.camera("hall").zones["left"].visits > 0)
    assert (box.camera("hall").width, box.camera("hall").height) == (640, 480)


def test_lost_camera_is_an_alarm_without_its_password(box: Box) -> None:
    gone = box.reaches("gone", "lost")
    assert gone.source == "rtsp://127.0.0.1:1/main"
    box.until(lambda: any(alarm.camera == "gone" for alarm in box.client.status().alarms))
    (alarm,) = (alarm for alarm in box.client.status().alarms if alarm.camera == "gone")
    assert alarm.kind == "camera_lost"
    assert "secret" not in json.dumps([each.json() for each in box.client.cameras()])
    assert "secret" not in box.log.read_text()


def test_outputs_get_results_and_events(box: Box, broker: Broker) -> None:
    box.until(lambda: (box.folder / "hall.jsonl").exists() and (box.folder / "hall.jsonl").stat().st_size > 0)
    line = json.loads((box.folder / "hall.jsonl").read_text().splitlines()[0])
    assert line["camera"] == "hall"
    box.until(lambda: any((box.folder / "state" / "events" / "hall").glob("*_left.jpg")))
    broker.wait_for("edged/hall/availability", b"online")
    box.until(lambda: "edged/hall/zone/left" in broker.retained)
    entities = [topic for topic in broker.retained if topic.startswith("homeassistant/")]
    assert any("/zone_left/config" in topic for topic in entities)
    kinds = [event.kind for event in box.client.events()]
    assert {"camera_state", "zone_changed"} <= set(kinds)


def test_metrics_have_states_and_zones(box: Box) -> None:
    text = box.log.read_text()
    address = next(word.rstrip(",") for word in text.split() if word.startswith("http://127.0.0.1"))
    metrics = urllib.request.urlopen(address, timeout=10).read().decode()
    assert 'edged_camera_state{camera="hall",model="shapes",state="streaming"} 1.0' in metrics
    assert 'edged_zone_visits_total{camera="hall",zone="left"}' in metrics


def test_reload_restarts_only_the_changed_camera(box: Box) -> None:
    box.reaches("hall", "streaming")
    box.write(track=True, more='[cameras.yard]\nsource = "scene:9"\nmodel = "shapes"\nmax_fps = 2\n')
    answered = box.camera("hall").answered
    (changed,) = box.client.reload()
    assert changed.key == "cameras"
    assert box.reaches("yard", "streaming").configured
    assert box.reaches("hall", "streaming").tracked
    assert box.camera("hall").answered >= answered
    box.write()
    box.client.reload()
    assert "yard" not in [each.camera for each in box.client.cameras() if each.configured]


def test_commands_add_change_and_remove(box: Box) -> None:
    client = box.client
    client.add_camera("gate", {"source": "scene:3", "model": "shapes", "max_fps": "5"})
    assert box.reaches("gate", "streaming").removable
    with pytest.raises(AlreadyExists):
        client.add_camera("gate", {"source": "scene:3", "model": "shapes"})
    with pytest.raises(InvalidInput):
        client.set_camera("gate", {"max_fsp": "5"})
    changed = client.set_camera("gate", {"zones.door.points": "[[0, 0], [1, 0], [1, 1]]", "max_fps": ""})
    assert list(changed.zones) == ["door"]
    assert "max_fps" not in changed.settings
    client.set_camera("gate", {"enabled": "false"})
    assert box.reaches("gate", "off").reason == ""
    client.remove_camera("gate")
    with pytest.raises(NotFound):
        client.remove_camera("gate")
    with pytest.raises(InvalidInput):
        client.remove_camera("hall")


def test_camera_of_a_missing_model_fails_and_works_once_it_exists(box: Box) -> None:
    client = box.client
    client.add_camera("later", {"source": "scene:3", "model": "later", "max_fps": "5"})
    assert "later" in box.reaches("later", "failed").reason
    client.add_model("later", MODEL_PATH)
    box.reaches("later", "streaming")
    client.remove_camera("later")
    client.remove_model("later")


def test_process_that_is_killed_is_started_again(box: Box) -> None:
    box.reaches("hall", "streaming")
    subprocess.run(["pkill", "-9", "-P", str(box.process.pid), "-f", "edged.capture.main"], check=True)
    box.until(lambda: "killed" in box.log.read_text() or "status -9" in box.log.read_text())
    box.reaches("hall", "streaming")
