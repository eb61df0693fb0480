"""What a box does right now, mirroring `GetLoadResponse` in protos/operations.proto."""

from __future__ import annotations

from edged.client.cameras import CameraInfo, camera_info
from edged.client.commands import StatusInfo, status
from edged.client.operations import Info
from edged.proto import operations_pb2 as pb


class ModelLoad(Info, frozen=True):
    """What a model does: `answered` and `failed` requests and frames since it was loaded, `infer_ms` the median of one
    inference lately and `baseline_ms` its lowest while the engine served, None where that is not known;
    `waiting` for the engine now. `degraded` are the kinds of its alarms. Nothing serves it while `backend` is empty."""

    name: str
    state: str
    reason: str
    degraded: tuple[str, ...]
    engine: str
    backend: str
    precision: str
    device: str
    answered: int
    failed: int
    infer_ms: float | None
    baseline_ms: float | None
    waiting: int


class HostLoad(Info, frozen=True):
    """An engine host, with its memory and what it may take, 0 for no limit, in bytes; `losses` of its backend since the
    daemon was started. One that is gone and not started again yet has the pid 0."""

    backend: str
    pid: int
    resident_bytes: int
    limit_bytes: int
    sessions: int
    losses: int


class DeviceLoad(Info, frozen=True):
    """The box: share of the processors in use, 0 to 1; memory in bytes, 0 where it does not tell; degrees Celsius by
    zone; `power_mode` where it has such. `daemon_bytes` is the memory of the daemon itself."""

    cpu_busy: float
    memory_bytes: int
    memory_free_bytes: int
    temperatures: dict[str, float]
    power_mode: str
    daemon_bytes: int


class LoadInfo(Info, frozen=True):
    """A box at one moment: `mono_s` of its clock that is never set, so that the difference of two is time between."""

    status: StatusInfo
    mono_s: float
    models: tuple[ModelLoad, ...]
    cameras: tuple[CameraInfo, ...]
    hosts: tuple[HostLoad, ...]
    device: DeviceLoad


def load_info(message: pb.GetLoadResponse) -> LoadInfo:
    device = message.device
    return LoadInfo(
        status=status(message.status),
        mono_s=message.mono_s,
        models=tuple(_model(each) for each in message.models),
        cameras=tuple(camera_info(each) for each in message.cameras),
        hosts=tuple(
            HostLoad(each.backend, each.pid, each.resident_bytes, each.limit_bytes, each.sessions, each.losses)
            for each in message.hosts
        ),
        device=DeviceLoad(
            cpu_busy=device.cpu_busy,
            memory_bytes=device.memory_bytes,
            memory_free_bytes=device.memory_free_bytes,
            temperatures=dict(sorted(device.temperatures.items())),
            power_mode=device.power_mode,
            daemon_bytes=device.daemon_bytes,
        ),
    )


def _model(message: pb.ModelLoad) -> ModelLoad:
    return ModelLoad(
        name=message.name,
        state=message.state,
        reason=message.reason,
        degraded=tuple(message.degraded),
        engine=message.engine,
        backend=message.backend,
        precision=message.precision,
        device=message.device,
        answered=message.answered,
        failed=message.failed,
        infer_ms=message.infer_ms if message.HasField("infer_ms") else None,
        baseline_ms=message.baseline_ms if message.HasField("baseline_ms") else None,
        waiting=message.waiting,
    )
