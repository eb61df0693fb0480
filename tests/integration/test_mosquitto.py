"""A configured camera and Mosquitto, with a login and TLS: discovery, will, and a restart of the broker."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from edged.shapes import MODEL_PATH

mqtt = pytest.importorskip("paho.mqtt.client")
MOSQUITTO = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed (apt-get install mosquitto)"),
]

BROKER = """
listener {port} 127.0.0.1
cafile {folder}/tls/ca.pem
certfile {folder}/tls/localhost.pem
keyfile {folder}/tls/localhost.key
password_file {folder}/passwords
allow_anonymous false
persistence false
"""
CONFIG = """
listen = ["unix:{folder}/edged.sock"]
state = "{folder}/state"
cache = "{folder}/cache"
[engines]
build = "command"
[models]
shapes = "{model}"
[cameras.hall]
source = "scene:7"
model = "shapes"
max_fps = 10
[cameras.hall.zones.left]
points = [[0, 0], [0.5, 0], [0.5, 1], [0, 1]]
[cameras.hall.lines.door]
points = [[0.5, 0], [0.5, 1]]
[cameras.hall.sinks]
mqtt = "mqtts://edged@localhost:{port}/site?rate=100&ca={folder}/tls/ca.pem"
mqtt_password_file = "{folder}/password"
"""


class Mosquitto:
    """The broker, and a client that keeps the newest message of each topic."""

    kill_camera: Callable[[], None]

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        edged(folder, "tls", "new", "localhost", "--folder", str(folder / "tls"))
        (folder / "password").write_text("of the broker\n")
        self._configuration = folder / "mosquitto.conf"
        self._configuration.write_text(BROKER.format(folder=folder, port=self.port) + "user root\n")
        command = ["mosquitto_passwd", "-c", "-b", str(folder / "passwords"), "edged", "of the broker"]
        subprocess.run(command, check=True, timeout=10)
        self.topics: dict[str, bytes] = {}
        self.availability: list[bytes] = []
        self._changed = threading.Condition()
        self._client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
        self._client.username_pw_set("edged", "of the broker")
        self._client.tls_set_context(ssl.create_default_context(cafile=str(folder / "tls/ca.pem")))
        self._client.reconnect_delay_set(1, 1)
        self._client.on_connect = lambda client, *_: client.subscribe("#")
        self._client.on_message = self._on_message
        self.start()
        self._client.loop_start()

    def start(self) -> None:
        assert MOSQUITTO is not None
        with (self._folder / "mosquitto.log").open("ab") as log:
            self._process = subprocess.Popen([MOSQUITTO, "-c", str(self._configuration)], stdout=log, stderr=log)
        self._client.connect_async("localhost", self.port)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(10)
        with self._changed:
            self.topics.clear()

    def close(self) -> None:
        self._client.loop_stop()
        self.stop()

    def _on_message(self, _client: object, _data: object, message: mqtt.MQTTMessage) -> None:
        with self._changed:
            self.topics[message.topic] = message.payload
            if message.topic == "site/hall/availability":
                self.availability.append(message.payload)
            self._changed.notify_all()

    def wait_for(self, wanted: Callable[[Mapping[str, bytes]], bool], seconds: float = 40.0) -> dict[str, bytes]:
        with self._changed:
            log = self._folder / "log"
            assert self._changed.wait_for(lambda: wanted(self.topics), seconds), (self.topics, log.read_text()[-3000:])
            return dict(self.topics)


def edged(folder: Path, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "edged", *arguments], check=True, timeout=60, cwd=folder)


def kill_children(pid: int, module: str) -> None:
    """Kill the children that run a module of edged."""
    killed = 0
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        if module.encode() in Path(f"/proc/{child}/cmdline").read_bytes():
            os.kill(int(child), signal.SIGKILL)
            killed += 1
    assert killed


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    folder = tmp_path_factory.mktemp("box")
    made = Mosquitto(folder)
    config = folder / "edged.toml"
    config.write_text(CONFIG.format(folder=folder, port=made.port, model=MODEL_PATH))
    with (folder / "log").open("wb") as log:
        command = [sys.executable, "-m", "edged", "serve", "--config", str(config)]
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    made.kill_camera = lambda: kill_children(process.pid, "edged.capture")
    try:
        made.wait_for(lambda topics: topics.get("site/hall/availability") == b"online")
        yield made
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        process.kill()
        made.close()


def all_is_there(topics: Mapping[str, bytes]) -> bool:
    wanted = {"site/hall/result", "site/hall/zone/left", "site/hall/line/door", "site/hall/detected"}
    return wanted <= topics.keys() and any("line_door" in topic for topic in topics)


def test_home_assistant_entities_name_published_topics(broker: Mosquitto) -> None:
    topics = broker.wait_for(all_is_there)
    entities = {topic: json.loads(text) for topic, text in topics.items() if topic.startswith("homeassistant/")}
    assert len({entity["unique_id"] for entity in entities.values()}) == len(entities) >= 6
    for topic, entity in entities.items():
        assert topic.split("/")[1] in {"binary_sensor", "sensor"}
        assert topic.endswith("/config")
        assert entity["availability_topic"] == "site/hall/availability"
        assert entity["state_topic"] in topics, topic
        assert entity["device"]["identifiers"]


def test_restarted_broker_gets_all_topics_again(broker: Mosquitto) -> None:
    broker.stop()
    time.sleep(1)
    broker.start()
    topics = broker.wait_for(lambda topics: all_is_there(topics) and "site/hall/availability" in topics)
    assert topics["site/hall/availability"] == b"online"


def test_killed_camera_process_is_offline_by_its_will_until_it_restarts(broker: Mosquitto) -> None:
    broker.wait_for(lambda topics: topics.get("site/hall/availability") == b"online")
    before = len(broker.availability)
    broker.kill_camera()
    broker.wait_for(lambda _: broker.availability[before:] == [b"offline", b"online"])
