"""Cameras of the configuration that go dark, freeze, change their size, fall silent or hang up, over HTTP and RTSP."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edged.api_types import CameraInfo
from edged.client import Client
from edged.shapes import MODEL_PATH
from tests.integration.mjpeg_camera import MjpegCamera
from tests.unit.client_rtsp import RtspCamera

pytest.importorskip("av")
pytestmark = pytest.mark.timeout(180)

CONFIG = """
listen = ["unix:{folder}/edged.sock"]
state = "{folder}/state"
cache = "{folder}/cache"
[engines]
build = "command"
[models]
shapes = "{model}"
[cameras.yard]
source = "{mjpeg}"
model = "shapes"
lost_seconds = 2
dark_seconds = 2
frozen_seconds = 2
[cameras.gate]
source = "{rtsp}"
model = "shapes"
"""


class Box:
    """A daemon with a camera over HTTP and one over RTSP."""

    def __init__(self, folder: Path, yard: MjpegCamera, gate: RtspCamera) -> None:
        self.yard, self.log = yard, folder / "log"
        config = folder / "edged.toml"
        config.write_text(CONFIG.format(folder=folder, model=MODEL_PATH, mjpeg=yard.url, rtsp=gate.url))
        with self.log.open("wb") as log:
            command = [sys.executable, "-m", "edged", "serve", "--config", str(config)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.client = Client(f"unix:{folder}/edged.sock")

    def camera(self, name: str) -> CameraInfo:
        return next(each for each in self.client.cameras() if each.camera == name)

    def alarms(self, name: str) -> list[str]:
        return [alarm.kind for alarm in self.client.status().alarms if alarm.camera == name]

    def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, self.log.read_text()[-4000:]
            time.sleep(0.1)

    def streams_well(self) -> None:
        self.yard.behaviour = "moves"
        self.until(lambda: self.camera("yard").state == "streaming" and self.alarms("yard") == [])


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    with MjpegCamera() as yard, RtspCamera(100) as gate:
        made = Box(tmp_path_factory.mktemp("box"), yard, gate)
        try:
            made.until(lambda: b"listening on" in made.log.read_bytes())
            made.streams_well()
            yield made
        finally:
            made.client.close()
            made.process.terminate()
            made.process.wait(30)


def test_dark_camera_is_an_alarm_until_it_sees_again(box: Box) -> None:
    box.yard.behaviour = "dark"
    box.until(lambda: box.alarms("yard") == ["camera_dark"])
    box.streams_well()


def test_frozen_camera_is_an_alarm_until_it_moves_again(box: Box) -> None:
    box.yard.behaviour = "frozen"
    box.until(lambda: box.alarms("yard") == ["camera_frozen"])
    box.streams_well()


def test_camera_that_changes_its_size_streams_on(box: Box) -> None:
    assert (box.camera("yard").width, box.camera("yard").height) == (640, 480)
    box.yard.behaviour = "small"
    box.until(lambda: (box.camera("yard").width, box.camera("yard").height) == (320, 240))
    assert box.camera("yard").state == "streaming"
    box.streams_well()


def test_camera_that_sends_nothing_is_lost_until_it_sends_again(box: Box) -> None:
    box.yard.behaviour = "silent"
    box.until(lambda: box.alarms("yard") == ["camera_lost"])
    box.streams_well()


def test_camera_that_hangs_up_is_lost_and_opened_again(box: Box) -> None:
    before = box.camera("yard").reconnections
    box.yard.behaviour = "hangs up"
    box.until(lambda: box.alarms("yard") == ["camera_lost"])
    box.streams_well()
    assert box.camera("yard").reconnections > before


def test_rtsp_camera_that_hangs_up_is_opened_again(box: Box) -> None:
    box.until(lambda: box.camera("gate").reconnections >= 1)  # its stream ends after four seconds


def test_passwords_are_neither_told_nor_logged(box: Box) -> None:
    assert "secret" not in "".join(str(each.json()) for each in box.client.cameras())
    assert "secret" not in box.log.read_text()
