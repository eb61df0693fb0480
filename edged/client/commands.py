"""What operators command of engines and how it goes, mirroring protos/operations.proto."""

from __future__ import annotations

from edged.client.operations import AlarmInfo, Info, alarm_info
from edged.proto import operations_pb2 as pb


class EngineProgress(Info, frozen=True):
    """One engine that a command is about, as it is now.

    While it is made, `phase` says what is done, `fraction` how much of that, 0 to 1, where it is known; `elapsed_s`
    counts since it began and `estimate_s` is what it will take in all, None where it was never made before. `done`:
    nothing more will come of the command for it; `succeeded`: it is as it was commanded to be.
    """

    key: str
    model: str
    backend: str
    precision: str
    device: str
    state: str
    reason: str
    phase: str
    fraction: float | None
    elapsed_s: float
    estimate_s: float | None
    done: bool
    succeeded: bool


class StatusInfo(Info, frozen=True):
    """The whole box: `serving` of its `models` answer; `engines` are in the store and take `engine_bytes` of the
    `budget_bytes` that they may take, 0 for no limit, while `free_bytes` of the disk are free. `paused` says why
    nothing is built now, `building` what is being made, `alarms` what is wrong."""

    version: str
    epoch: str
    uptime_s: float
    models: int
    serving: int
    engines: int
    engine_bytes: int
    budget_bytes: int
    free_bytes: int
    paused: str
    building: tuple[EngineProgress, ...]
    alarms: tuple[AlarmInfo, ...]


class ReloadedKey(Info, frozen=True):
    """A key of the daemon's configuration whose value is another than before: `told` says what changed, `problem` why
    it is not in force and what to do; empty where it is."""

    key: str
    told: str
    problem: str


def selector(model: str | None, engine: str | None, everything: bool) -> pb.Selector:
    """Which engines are meant; the daemon refuses what makes no sense."""
    return pb.Selector(model=model or "", engine=engine or "", everything=everything)


def progress(message: pb.EngineProgress) -> EngineProgress:
    making = message.making
    return EngineProgress(
        key=message.key,
        model=message.model,
        backend=message.backend,
        precision=message.precision,
        device=message.device,
        state=message.state,
        reason=message.reason,
        phase=making.phase,
        fraction=making.fraction if making.HasField("fraction") else None,
        elapsed_s=making.elapsed_s,
        estimate_s=making.estimate_s if making.HasField("estimate_s") else None,
        done=message.done,
        succeeded=message.succeeded,
    )


def status(message: pb.GetStatusResponse) -> StatusInfo:
    return StatusInfo(
        version=message.version,
        epoch=message.epoch,
        uptime_s=message.uptime_s,
        models=message.models,
        serving=message.serving,
        engines=message.engines,
        engine_bytes=message.engine_bytes,
        budget_bytes=message.budget_bytes,
        free_bytes=message.free_bytes,
        paused=message.paused,
        building=tuple(progress(each) for each in message.building),
        alarms=tuple(alarm_info(each) for each in message.alarms),
    )
