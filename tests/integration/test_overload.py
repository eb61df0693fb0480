"""More cameras than the engine can serve: fair, fresh and ordered results, and every frame accounted for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from edged.proto import cameras_pb2 as pb
from tests.integration.daemon import Daemon
from tests.overload import jain, offer, slow_model

_SECONDS = 4.0


@pytest.mark.long
def test_overloaded_engine_is_shared_fairly_by_weight(tmp_path: Path) -> None:
    path = slow_model(tmp_path / "slow.onnx", 300)
    options = {f"camera {index}": pb.StreamOptions(weight=1 + 2 * (index % 2)) for index in range(12)}
    with Daemon("--model", f"slow={path}") as daemon:
        daemon.ready("slow")
        cameras = asyncio.run(offer(daemon.unix, "slow", options, fps=30, seconds=_SECONDS))
        with daemon.client() as client:
            listed = {each.camera: each for each in client.cameras()}
    answered = sum(camera.answered for camera in cameras.values())
    assert answered < sum(camera.sent for camera in cameras.values()) / 2, "the engine was not too slow"
    light = [camera for index, camera in enumerate(cameras.values()) if index % 2 == 0]
    heavy = [camera for index, camera in enumerate(cameras.values()) if index % 2]
    assert jain([camera.answered for camera in light]) > 0.95
    assert jain([camera.answered for camera in heavy]) > 0.95
    round_ms = _SECONDS * 1e3 * (len(light) + 3 * len(heavy)) / answered
    for name, camera in cameras.items():
        assert camera.accounted == camera.sent
        assert (camera.failed, camera.late) == (0, 0)
        assert set(camera.skipped) <= {"overtaken"}
        assert max(camera.ages_ms) <= 3 * round_ms + 1000  # tolerates a short pause of the machine
        report = listed[name]
        assert (report.received, report.answered) == (camera.sent, camera.answered)
        assert (report.skipped, report.failed, report.dropped) == (dict(camera.skipped), 0, 0)
        assert report.age_p50_ms is not None
        assert report.connections == 0
