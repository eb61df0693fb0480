"""The cameras of the demonstration, and its snapshot."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import cv2
import numpy as np
import pytest

from edged.client.result import Detection, Result, Timings
from edged.demo.cameras import FPS, HEIGHT, WIDTH, DrawnCamera, OwnCamera, Pace, open_camera
from edged.demo.view import paint_snapshot
from edged.vision.draw import encode_jpeg
from edged.vision.image import decode


def _result(camera: str) -> Result:
    found = (Detection(2, 2, 40, 30, 0.9, 1, "square"),)
    return Result(camera, 1, "shapes", 64, 48, found, {}, 1.0, Timings(infer_ms=2.0), "key", "openvino", 0, None)


def test_pace_after_a_delay_does_not_catch_up() -> None:
    pace = Pace(50.0)
    started = time.monotonic()
    for _ in range(6):
        assert pace.wait()
    assert time.monotonic() - started >= 0.099
    time.sleep(0.1)  # five frames are missed, and at most one is made up for
    late = time.monotonic()
    for _ in range(3):
        pace.wait()
    assert time.monotonic() - late >= 0.019


def test_drawn_camera_sends_jpeg_and_returns_the_truth() -> None:
    camera = DrawnCamera("cam1", 7)
    before = time.time_ns()
    frames = [next(camera) for _ in range(3)]
    assert [before <= frame.captured_unix_ns <= time.time_ns() for frame in frames] == [True] * 3
    newest = frames[-1].image
    assert newest == camera.newest
    assert isinstance(newest, bytes)
    assert decode(newest).shape == (HEIGHT, WIDTH, 3)
    truth = camera.truth(2)
    assert truth
    assert len(truth) == 5
    assert camera.truth(2) is None  # it is returned only once
    assert camera.truth(1) is None  # an older frame, which was skipped
    assert camera.truth(3) is not None


def test_open_camera_scenes_differ_and_alternate() -> None:
    one, two = open_camera(1, 2, None), open_camera(2, 2, None)
    started = time.monotonic()
    assert next(one).image != next(two).image
    assert time.monotonic() - started >= 0.5 / FPS - 0.01


def test_drawn_camera_interrupted_ends_at_once() -> None:
    camera = DrawnCamera("cam1", 7, offset=60.0)
    threading.Timer(0.05, camera.interrupt).start()
    started = time.monotonic()
    assert list(camera) == []
    assert time.monotonic() - started < 30


def test_own_camera_repeats_pictures_with_capture_times(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"{number}.jpg").write_bytes(encode_jpeg(np.full((48, 64, 3), number * 90, np.uint8)))
    with OwnCamera("cam1", str(tmp_path)) as camera:
        frames = [next(camera) for _ in range(5)]
        assert len({frame.image for frame in frames if isinstance(frame.image, bytes)}) == 2
        assert all(frame.captured_unix_ns for frame in frames)
        assert camera.newest == frames[-1].image
        assert camera.truth(1) is None
        camera.interrupt()
        assert list(camera) == []
    (tmp_path / "0.jpg").unlink()
    (tmp_path / "1.jpg").write_bytes(b"no picture")
    assert list(OwnCamera("cam1", str(tmp_path))) == []


@pytest.mark.parametrize(("count", "size"), [(1, (48, 64)), (2, (48, 128)), (3, (96, 128)), (4, (96, 128))])
def test_paint_snapshot_holds_every_camera(count: int, size: tuple[int, int]) -> None:
    picture = np.full((48, 64, 3), 200, np.uint8)
    kinds = (encode_jpeg(picture), picture, picture[:, :, 0])
    jpeg = paint_snapshot((kinds[n % 3], _result(f"cam{n}")) for n in range(count))
    painted = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
    assert painted is not None
    assert painted.shape == (*size, 3)
