"""A camera's state, derived from its frames, the error of its source and the daemon's answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edged.capture.capture import CameraHealth, Capture
from edged.config.cameras import Camera
from edged.ipc.capture_messages import Begin, FromCapture, Report, State
from edged.proto import cameras_pb2 as pb
from tests.unit.scripted_daemon import ScriptedDaemon, answer
from tests.waiting import wait


def test_camera_connects_streams_and_is_lost() -> None:
    health = CameraHealth(15.0, 100.0)
    assert health.state(101.0, "") == (State.CONNECTING, "")
    assert health.state(101.0, "refused") == (State.CONNECTING, "refused")
    health.frame(102.0)
    assert health.state(102.0, "")[0] is State.CONNECTING  # no answer yet
    health.works()
    assert health.state(103.0, "") == (State.STREAMING, "")
    assert health.state(108.0, "")[0] is State.CONNECTING
    assert health.state(117.0, "refused") == (State.LOST, "refused")
    health.frame(118.0)
    assert health.state(118.0, "")[0] is State.STREAMING


def test_camera_that_never_gives_a_frame_is_lost() -> None:
    state, why = CameraHealth(15.0, 100.0).state(115.0, "")
    assert state is State.LOST
    assert why
    assert CameraHealth(0.0, 100.0).state(1000.0, "")[0] is State.CONNECTING


def test_camera_with_a_low_rate_streams_between_its_frames() -> None:
    health = CameraHealth(15.0, 100.0, max_fps=0.05)
    assert health.state(120.0, "")[0] is State.CONNECTING
    health.frame(120.0)
    health.works()
    assert health.state(159.0, "")[0] is State.STREAMING
    assert health.state(160.0, "")[0] is State.LOST
    assert CameraHealth(0.0, 100.0, max_fps=0.05).state(1000.0, "")[0] is State.CONNECTING


def test_camera_whose_source_has_a_low_rate_streams_between_its_frames() -> None:
    health = CameraHealth(15.0, 100.0)
    health.works()
    for now in (100.0, 110.0, 120.0):
        health.frame(now)
    assert health.state(131.0, "")[0] is State.STREAMING
    assert health.state(135.0, "")[0] is State.LOST
    health.frame(135.0)
    health.frame(135.1)
    assert health.state(141.0, "")[0] is State.CONNECTING


def test_outage_of_a_camera_that_is_never_lost_is_no_usual_gap() -> None:
    health = CameraHealth(0.0, 0.0)
    health.works()
    for now in (1.0, 3601.0):
        health.frame(now)
    assert health.state(3650.0, "")[0] is State.STREAMING
    assert health.state(3662.0, "")[0] is State.CONNECTING


def test_camera_that_the_daemon_refuses_fails_until_it_works() -> None:
    health = CameraHealth(15.0, 100.0)
    health.frame(101.0)
    health.failed("no model")
    assert health.state(102.0, "") == (State.FAILED, "no model")
    health.works()
    assert health.state(102.0, "") == (State.STREAMING, "")


def test_camera_whose_first_frames_are_refused_connects_with_the_reason() -> None:
    health = CameraHealth(15.0, 100.0)
    health.frame(101.0)
    health.error = "wrong size"
    assert health.state(102.0, "") == (State.CONNECTING, "wrong size")
    assert health.state(102.0, "refused") == (State.CONNECTING, "refused")
    health.works()
    assert health.state(102.0, "") == (State.STREAMING, "")


def test_camera_of_a_file_that_ended_is_ended() -> None:
    health = CameraHealth(15.0, 100.0)
    health.ended()
    assert health.state(1000.0, "")[0] is State.ENDED


@pytest.mark.parametrize(("loop", "state"), [(True, State.FAILED), (False, State.ENDED)])
def test_camera_of_a_folder_without_usable_pictures_says_why_and_does_not_spin(
    tmp_path: Path, loop: bool, state: State
) -> None:
    (tmp_path / "damaged.jpg").write_bytes(b"no picture")
    sent: list[FromCapture] = []
    calls = 0

    def detect(frames: Iterator[pb.Frame], _: Any) -> Iterator[pb.Result]:
        nonlocal calls
        calls += 1
        yield from (answer(frame) for frame in frames)

    target = f"unix:{tmp_path}/daemon.sock"
    with ScriptedDaemon(target, detect):
        camera = Camera(source=str(tmp_path), model="m", loop=loop)
        capture = Capture(Begin("hall", camera, target, str(tmp_path)), sent.append)
        capture.start()
        wait(lambda: any(isinstance(each, Report) and each.state is state and each.error for each in sent))
        capture.stop()
    assert calls <= 2
