"""Configured cameras that go dark, freeze, change their size, fall silent or hang up, over HTTP and RTSP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edged.shapes import MODEL_PATH
from tests.integration.camera_box import CameraBox
from tests.integration.mjpeg_camera import MjpegCamera
from tests.unit.client_rtsp import RtspCamera

pytest.importorskip("av")
pytestmark = pytest.mark.timeout(180)

CONFIG = """
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


class Box(CameraBox):
    """A daemon with one camera over HTTP and one over RTSP."""

    def __init__(self, yard: MjpegCamera, gate: RtspCamera) -> None:
        config = CONFIG.format(model=MODEL_PATH, mjpeg=yard.url, rtsp=gate.url)
        super().__init__(builds=False, config=config)
        self.yard = yard

    def streams_well(self) -> None:
        self.yard.behaviour = "moves"
        self.until(lambda: self.camera("yard").state == "streaming" and self.alarms("yard") == [])


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    with MjpegCamera() as yard, RtspCamera(100) as gate, Box(yard, gate).running() as made:
        made.streams_well()
        yield made


def test_dark_camera_raises_an_alarm_until_it_is_bright_again(box: Box) -> None:
    box.yard.behaviour = "dark"
    box.until(lambda: box.alarms("yard") == ["camera_dark"])
    box.streams_well()


def test_frozen_camera_raises_an_alarm_until_it_moves_again(box: Box) -> None:
    box.yard.behaviour = "frozen"
    box.until(lambda: box.alarms("yard") == ["camera_frozen"])
    box.streams_well()


def test_camera_that_changes_its_size_continues_to_stream(box: Box) -> None:
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


def test_camera_passwords_are_neither_reported_nor_logged(box: Box) -> None:
    assert "secret" not in "".join(str(each.json()) for each in box.api.cameras())
    assert "secret" not in box.log.read_text()
