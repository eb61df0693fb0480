"""Reports about cameras for operators: counts of all cameras that send frames, and the state of configured cameras."""

from __future__ import annotations

import msgspec

from edged.api_types import CameraInfo, LineInfo, ZoneInfo
from edged.cameras.supervisor import CameraStatus, CameraSupervisor
from edged.config.camera_settings import as_texts
from edged.errors import redact
from edged.ipc.capture_messages import LineState, ZoneState
from edged.serving.camera import CameraRecord, Cameras


def camera_infos(cameras: Cameras, supervisor: CameraSupervisor) -> list[CameraInfo]:
    """Return all configured cameras, and all cameras that send or recently sent frames, by name and model."""
    found = {(info.camera, info.model): info for info in cameras.reports()}
    for name, status in supervisor.status().items():
        key = name, status.definition.camera.model
        found[key] = with_status(found.get(key) or _silent(*key), status)
    return [found[key] for key in sorted(found)]


def camera_info(name: str, cameras: Cameras, supervisor: CameraSupervisor) -> CameraInfo:
    """Return one configured camera. Raises NotFound."""
    supervisor.find(name)
    return next(info for info in camera_infos(cameras, supervisor) if info.configured and info.camera == name)


def _silent(name: str, model: str) -> CameraInfo:
    """Return the report of a camera that has sent no frame yet."""
    return CameraRecord(name, model).report(0.0)


def with_status(info: CameraInfo, status: CameraStatus) -> CameraInfo:
    """Return a camera's counts together with its state. Pure."""
    (camera, is_configured), report = status.definition, status.report
    return msgspec.structs.replace(
        info,
        mode=camera.mode,
        tracked=camera.is_tracked,
        configured=True,
        removable=not is_configured,
        state=report.state.value,
        reason=report.error,
        source=redact(camera.source),
        reconnections=report.reconnections,
        zones={name: _zone(report.zones.get(name, ZoneState())) for name in camera.zones},
        lines={name: _line(report.lines.get(name, LineState())) for name in camera.lines},
        sinks=report.sinks,
        settings=as_texts(camera),
    )


def _zone(state: ZoneState) -> ZoneInfo:
    return ZoneInfo(state.occupied, state.since_unix_s, state.counts, state.visits)


def _line(state: LineState) -> LineInfo:
    return LineInfo(state.entered, state.left)
