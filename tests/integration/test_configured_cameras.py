"""Configured cameras that the daemon opens in child processes: states, zones, events, outputs, reload, commands."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Iterator

import pytest

from edged.errors import AlreadyExists, InvalidInput, NotFound
from edged.shapes import MODEL_PATH, Scene
from edged.vision.draw import encode_jpeg
from tests.integration.camera_box import CameraBox
from tests.unit.mqtt_broker import Broker

pytestmark = pytest.mark.timeout(240)

CONFIG = """
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
lines = "HOME/hall.jsonl"
mqtt = "mqtt://127.0.0.1:{mqtt}/edged?rate=100"
[cameras.gone]
source = "rtsp://user:secret@127.0.0.1:1/main"
model = "shapes"
lost_seconds = 1
"""


def config(mqtt: int, track: bool = False, more: str = "") -> str:
    return CONFIG.format(model=MODEL_PATH, mqtt=mqtt, track=str(track).lower()) + more


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    pytest.importorskip("paho.mqtt.client")
    with Broker() as at:
        yield at


@pytest.fixture(scope="module")
def box(broker: Broker) -> Iterator[CameraBox]:
    with CameraBox(builds=False, config=config(broker.port), endpoints=1).running() as made:
        yield made


def test_configured_camera_streams_with_zones(box: CameraBox) -> None:
    hall = box.reaches("hall", "streaming")
    assert (hall.configured, hall.removable, hall.source, hall.model) == (True, False, "scene:7", "shapes")
    box.until(lambda: box.camera("hall").zones["left"].visits > 0)
    assert (box.camera("hall").width, box.camera("hall").height) == (640, 480)


def test_lost_camera_raises_an_alarm_without_its_password(box: CameraBox) -> None:
    gone = box.reaches("gone", "lost")
    assert gone.source == "rtsp://127.0.0.1:1/main"
    box.until(lambda: any(alarm.camera == "gone" for alarm in box.api.status().alarms))
    (alarm,) = (alarm for alarm in box.api.status().alarms if alarm.camera == "gone")
    assert alarm.kind == "camera_lost"
    assert "secret" not in json.dumps([each.json() for each in box.api.cameras()])
    assert "secret" not in box.log.read_text()


def test_outputs_get_results_and_events(box: CameraBox, broker: Broker) -> None:
    box.until(lambda: (box.home / "hall.jsonl").exists() and (box.home / "hall.jsonl").stat().st_size > 0)
    line = json.loads((box.home / "hall.jsonl").read_text().splitlines()[0])
    assert line["camera"] == "hall"
    box.until(lambda: any((box.state / "events" / "hall").glob("*_left.jpg")))
    broker.wait_for("edged/hall/availability", b"online")
    box.until(lambda: "edged/hall/zone/left" in broker.retained)
    entities = [topic for topic in broker.retained if topic.startswith("homeassistant/")]
    assert any("/zone_left/config" in topic for topic in entities)
    kinds = [event.kind for event in box.api.events()]
    assert {"camera_state", "zone_changed"} <= set(kinds)


def test_metrics_have_states_and_zones(box: CameraBox) -> None:
    metrics = urllib.request.urlopen(box.addresses[2], timeout=10).read().decode()
    assert 'edged_camera_state{camera="hall",model="shapes",state="streaming"} 1.0' in metrics
    assert 'edged_zone_visits_total{camera="hall",zone="left"}' in metrics


def _write(box: CameraBox, text: str) -> None:
    box.config.write_text(text.replace("HOME", str(box.home)))


def test_reload_restarts_only_the_changed_camera(box: CameraBox, broker: Broker) -> None:
    box.reaches("hall", "streaming")
    more = '[cameras.yard]\nsource = "scene:9"\nmodel = "shapes"\nmax_fps = 2\n'
    _write(box, config(broker.port, track=True, more=more))
    answered = box.camera("hall").answered
    (changed,) = box.api.reload()
    assert changed.key == "cameras"
    assert box.reaches("yard", "streaming").configured
    assert box.reaches("hall", "streaming").tracked
    assert box.camera("hall").answered >= answered
    _write(box, config(broker.port))
    box.api.reload()
    assert "yard" not in [each.camera for each in box.api.cameras() if each.configured]


def test_commands_add_change_and_remove(box: CameraBox) -> None:
    client = box.api
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


def test_removed_camera_leaves_no_entities_at_the_broker(box: CameraBox, broker: Broker) -> None:
    url = f"mqtt://127.0.0.1:{broker.port}/edged"
    box.api.add_camera("attic", {"source": "scene:7", "model": "shapes", "max_fps": "5", "sinks.mqtt": url})
    broker.wait_for("edged/attic/result", seconds=60)
    assert any("_attic/detected" in topic for topic in broker.retained)
    box.api.remove_camera("attic")
    broker.wait_for("edged/attic/availability", b"offline")
    assert not [topic for topic in broker.retained if topic.startswith("homeassistant/") and "_attic/" in topic]


def test_snapshots_of_a_camera_that_writes_no_other_files(box: CameraBox) -> None:
    box.api.add_camera("porch", {"source": "scene:7", "model": "shapes", "max_fps": "5", "events.snapshots": "true"})
    box.until(lambda: any((box.state / "events" / "porch").glob("*_any.jpg")))
    assert "events" not in box.camera("porch").sinks
    box.api.remove_camera("porch")


def test_camera_of_a_missing_file_fails_until_the_file_exists(box: CameraBox) -> None:
    file = box.home / "late.jpg"
    box.api.add_camera("late", {"source": str(file), "model": "shapes"})
    box.reaches("late", "failed")
    file.write_bytes(encode_jpeg(Scene(7).frame(0)[0]))
    box.reaches("late", "streaming")
    box.api.remove_camera("late")


def test_camera_of_a_missing_model_fails_until_the_model_exists(box: CameraBox) -> None:
    client = box.api
    client.add_camera("later", {"source": "scene:3", "model": "later", "max_fps": "5"})
    assert "later" in box.reaches("later", "failed").reason
    client.add_model("later", MODEL_PATH)
    box.reaches("later", "streaming")
    client.remove_camera("later")
    client.remove_model("later")


def test_killed_capture_process_is_restarted(box: CameraBox) -> None:
    box.reaches("hall", "streaming")
    for pid, line in box.children().items():
        if "edged.capture.main" in line:
            os.kill(pid, signal.SIGKILL)
    box.until(lambda: "killed" in box.log.read_text() or "status -9" in box.log.read_text())
    box.reaches("hall", "streaming")
