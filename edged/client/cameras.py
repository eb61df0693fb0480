"""How cameras fare, as the daemon tells it, mirroring `CameraStatus` in protos/operations.proto."""

from __future__ import annotations

from edged.client.operations import Info
from edged.proto import operations_pb2 as pb


class CameraInfo(Info, frozen=True):
    """One camera that looks through one model.

    Counts of frames are since the daemon first saw it: received = answered + failed + skipped + dropped + those under
    way; `skipped` is by reason, `dropped` are those whose connection ended first. `fps_in`, `fps_answered` are of the
    last seconds; ages are milliseconds from capture to answer, of the latest answers, None before the first. Times are
    seconds since the epoch, 0 for never. `mode` is freshest or every_frame, `lane` how its frames come.
    """

    camera: str
    model: str
    lane: str
    mode: str
    tracked: bool
    connections: int
    received: int
    answered: int
    failed: int
    dropped: int
    skipped: dict[str, int]
    fps_in: float
    fps_answered: float
    age_p50_ms: float | None
    age_p99_ms: float | None
    width: int
    height: int
    last_error: str
    last_error_unix_s: float
    last_frame_unix_s: float


def camera_list(message: pb.ListCamerasResponse) -> list[CameraInfo]:
    return [camera_info(each) for each in message.cameras]


def camera_info(message: pb.CameraStatus) -> CameraInfo:
    return CameraInfo(
        camera=message.camera,
        model=message.model,
        lane=message.lane,
        mode=message.mode,
        tracked=message.tracked,
        connections=message.connections,
        received=message.received,
        answered=message.answered,
        failed=message.failed,
        dropped=message.dropped,
        skipped=dict(message.skipped),
        fps_in=message.fps_in,
        fps_answered=message.fps_answered,
        age_p50_ms=message.age_p50_ms if message.HasField("age_p50_ms") else None,
        age_p99_ms=message.age_p99_ms if message.HasField("age_p99_ms") else None,
        width=message.width,
        height=message.height,
        last_error=message.last_error,
        last_error_unix_s=message.last_error_unix_s,
        last_frame_unix_s=message.last_frame_unix_s,
    )
