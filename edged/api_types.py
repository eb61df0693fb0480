"""What the daemon reports of models, engines, cameras, load and events: it fills these types, the client returns them.

`edged.message_mapper` copies them to and from the messages of protos/operations.proto, whose fields have these names.
"""

from __future__ import annotations

from typing import Any

import msgspec

from edged import events
from edged.backends.contract import Composition as Composition
from edged.models import repair
from edged.store.record import Verdict as Verdict


class Info(msgspec.Struct, frozen=True):
    """Base of what the operations return."""

    def json(self) -> dict[str, Any]:
        """Plain values, in the order of the fields."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


class TensorInfo(Info, frozen=True):
    """An input or output; -1 is a dynamic dimension."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class AlarmInfo(Info, frozen=True):
    """Something that is wrong now, since `since_unix_s`: `kind` is slow, quarantined, builds_paused, state_unwritable,
    reboot_pending, unserved, untracked, fallback, not_finite or no_candidate; `model` and `engine`, a key, are empty
    when it is not about one."""

    kind: str
    message: str
    model: str
    engine: str
    since_unix_s: float


class ShapeRange(Info, frozen=True):
    """Shapes of one input: the smallest, the usual one, the largest."""

    minimum: tuple[int, ...]
    usual: tuple[int, ...]
    maximum: tuple[int, ...]


class InputShapes(Info, frozen=True):
    """An input with open dimensions: `dims` as the model declares them, by name where they are open; what the engine
    that serves takes, None if it takes any shape; what engines that need a range are built for, None if nothing
    tells it; what requests had, None if none came."""

    name: str
    dims: tuple[str, ...]
    serving: ShapeRange | None = None
    wanted: ShapeRange | None = None
    seen: ShapeRange | None = None


class Shapes(Info, frozen=True):
    """The shapes of a model with open dimensions. `policy` is any, refuse or learn; `ties` are the dimensions that
    several inputs have in common, a line each; `learning` says what is being learnt from `requests`, which were
    answered."""

    policy: str
    inputs: tuple[InputShapes, ...]
    ties: tuple[str, ...] = ()
    learning: str = ""
    requests: int = 0


class ModelInfo(Info, frozen=True):
    """A model in the daemon: `state` is loading, ready, refused or failed, and `reason` why it is not ready; `alarms`
    tell what is wrong with it or its engines, `notes` what its config.pbtxt says to no effect and what is odd about it.
    Of one that is refused `category` and `stage` say why and where as docs/admission.md lists them; they are empty
    where it is none of those. `precision_reason` says why the engine that serves has its precision. A version beside
    the one that answers for the model is called NAME:VERSION."""

    name: str
    version: str
    digest: str
    state: str
    reason: str
    family: str
    engine: str
    backend: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    settings: dict[str, str]
    swaps: int
    alarms: tuple[AlarmInfo, ...] = ()
    notes: tuple[str, ...] = ()
    shapes: Shapes | None = None
    repair: repair.Record | None = None
    category: str = ""
    stage: str = ""
    precision: str = ""
    precision_reason: str = ""


class EngineInfo(Info, frozen=True):
    """An engine, built or wanted. `latency_ms` and `reference_ms` are medians of one inference, of it and of
    unoptimised ONNX Runtime in turns with it, when it was verified: in a child of low priority, so that only their
    ratio says anything. `load` is the share of the processors, 0 to 1, that others used meanwhile; None if a figure
    was not measured yet. `pinned` ones are never evicted; `used_unix_s` is when it was last made or opened, 0 when that
    is not known. `adopted_from` is the key of an engine built for another driver whose files these are; `effort`, full,
    reduced or least, is how hard the builder tried; `standard` the digest of what its answers were held to; `ahead` the
    device that it was built for on another box."""

    key: str
    model: str
    backend: str
    precision: str
    state: str
    reason: str
    parts: dict[str, str]
    latency_ms: float | None
    reference_ms: float | None
    bytes: int
    created_unix_s: float
    build_s: float | None
    device: str
    verdict: Verdict | None
    pinned: bool = False
    used_unix_s: float = 0.0
    load: float | None = None
    adopted_from: str = ""
    effort: str = ""
    standard: str = ""
    composition: Composition = Composition()
    ahead: str = ""

    @property
    def speed(self) -> float | None:
        """How many times as fast as the reference it is; None if that was not measured."""
        return self.reference_ms / self.latency_ms if self.latency_ms and self.reference_ms else None


class PartChange(Info, frozen=True):
    """A key part that differs."""

    part: str
    old: str
    new: str


class Explanation(Info, frozen=True):
    """Why a wanted engine is there or is not: what changed since the nearest one in the store."""

    wanted: str
    backend: str
    precision: str
    state: str
    nearest: str
    changes: tuple[PartChange, ...]
    summary: str


class DeviceInfo(Info, frozen=True):
    """The facts about this box that decide whether an engine is valid, and their digest."""

    facts: dict[str, str]
    digest: str


class EngineProgress(Info, frozen=True):
    """One engine that a command is about, as it is now.

    While it is made, `phase` says what is done, `fraction` how much of that, 0 to 1, where it is known; `elapsed_s`
    counts since it began and `estimate_s` is what it will take in all, None if it was never made before. `done`:
    nothing more will come of the command for it; `succeeded`: it is as it was commanded to be.
    """

    key: str
    model: str
    backend: str
    precision: str
    device: str
    state: str
    reason: str
    phase: str = ""
    fraction: float | None = None
    elapsed_s: float = 0.0
    estimate_s: float | None = None
    done: bool = False
    succeeded: bool = False


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
    it is not in force and what to do; empty if it is."""

    key: str
    told: str
    problem: str


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


class ModelLoad(Info, frozen=True):
    """What a model does: `answered` and `failed` requests and frames since it was loaded, `infer_ms` the median of one
    inference lately and `baseline_ms` its lowest while the engine served, None if that is not known;
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


class EventInfo(Info, frozen=True):
    """Something that happened. `sequence` counts from 1 in each run of the daemon, without gaps; `epoch` names the run.

    `what` is one of the types in `edged.events` and tells more, each its own; `kind` is its name. An event that this
    client is too old to know has the kind "unknown" and no `what`.
    """

    epoch: str
    sequence: int
    unix_s: float
    kind: str
    model: str
    engine: str
    what: events.What | None

    def json(self) -> dict[str, Any]:
        """Plain values: these fields but `what`, then those of `what` beside them."""
        plain = super().json()
        told = plain.pop("what") or {}
        return {**plain, **{name: value for name, value in told.items() if name != "type"}}
