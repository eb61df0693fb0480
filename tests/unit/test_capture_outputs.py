"""The outputs of one camera: the state of its zones over time, and sinks that fail."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from edged.capture.outputs import Outputs
from edged.client.result import Detection, Result, Timings
from edged.client.sinks.sink import Answered, Sink
from edged.config.cameras import Camera, Sinks, Zone
from edged.ipc.capture_messages import Begin, FromCapture, Happened

WHOLE = Zone(points=((0, 0), (1, 0), (1, 1), (0, 1)), on_seconds=0, off_seconds=3)


def result() -> Result:
    box = Detection(40, 40, 60, 60, 0.9, 0, "person")
    return Result("hall", 1, "m", 100, 100, (box,), {}, 1.0, Timings(), "", "", 0, None)


def outputs(folder: Path, camera: Camera) -> tuple[Outputs, list[FromCapture]]:
    sent: list[FromCapture] = []
    return Outputs(Begin("hall", camera, "", str(folder)), sent.append), sent


def test_pass_time_frees_zones_if_the_frames_of_a_streaming_camera_are_not_answered(tmp_path: Path) -> None:
    made, sent = outputs(tmp_path, Camera(source="x", model="m", zones={"door": WHOLE}))
    made.on_result(result())
    now = time.monotonic()
    made.pass_time(now + 30, is_streaming=True)
    assert made.zones()["door"].occupied
    made.pass_time(now + 70, is_streaming=True)
    assert [each.kind for each in sent if isinstance(each, Happened)] == ["occupied", "free"]
    made.close()


def test_on_result_error_of_any_class_in_a_sink_is_its_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Sink):
        def on_answer(self, answered: Answered) -> None:
            raise RuntimeError("no context")

        def close(self) -> None:
            raise RuntimeError("not open")

    monkeypatch.setattr("edged.capture.outputs.JsonLines", lambda path: Broken())
    made, _ = outputs(tmp_path, Camera(source="x", model="m", sinks=Sinks(lines="/x")))
    made.on_result(result())
    assert made.problems() == {"lines": "no context"}
    made.close()
