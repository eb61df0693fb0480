"""Reports about models, engines, cameras, load and events: the daemon fills these types, the client returns them.

`edged.message_mapper` copies them to and from the messages of protos/operations.proto, whose fields have the same
names.
"""

from __future__ import annotations

from typing import Any

import msgspec

from edged import events
from edged.backends.contract import UNOPTIMISED
from edged.backends.contract import Composition as Composition
from edged.models import repair
from edged.store.record import Speed as Speed
from edged.store.record import Verdict as Verdict


class Info(msgspec.Struct, frozen=True):
    """Base of the types that operations return."""

    def json(self) -> dict[str, Any]:
        """Return the fields as values for JSON, in the order of the fields."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


class TensorInfo(Info, frozen=True):
    """An input or output of a model. `datatype` is a name of the Open Inference Protocol, such as FP32. -1 in `shape`
    is a dynamic dimension."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class AlarmInfo(Info, frozen=True):
    """A problem that has existed since `since_unix_s`, in seconds since the epoch. docs/observability.md lists the
    kinds, such as slow or camera_lost. `model`, `engine` (a key) and `camera` name what has the problem; each is empty
    if it does not apply."""

    kind: str
    message: str
    model: str
    engine: str
    since_unix_s: float
    camera: str = ""


class ShapeRange(Info, frozen=True):
    """The smallest and the largest shape of one input, and the usual shape, for which engines are optimised."""

    minimum: tuple[int, ...]
    usual: tuple[int, ...]
    maximum: tuple[int, ...]


class InputShapes(Info, frozen=True):
    """An input with open (dynamic) dimensions. `dims` are the dimensions that the model declares; an open dimension is
    shown by its name. `serving` is the range of shapes that the serving engine accepts, None if it accepts any.
    `wanted` is the range that engines are built for, None if unknown. `seen` is the range of the shapes in requests,
    None before the first request."""

    name: str
    dims: tuple[str, ...]
    serving: ShapeRange | None = None
    wanted: ShapeRange | None = None
    seen: ShapeRange | None = None


class Shapes(Info, frozen=True):
    """The shapes of a model with open dimensions. `policy` says what happens to requests outside the range of shapes:
    any, refuse or learn (docs/shapes.md). `ties` has a line for each dimension that several inputs share. `learning`
    describes in one line how far the daemon has learnt the range, and is empty if there is nothing to report.
    `requests` is the number of answered requests from which the daemon has learnt so far."""

    policy: str
    inputs: tuple[InputShapes, ...]
    ties: tuple[str, ...] = ()
    learning: str = ""
    requests: int = 0


class CollectedCamera(Info, frozen=True):
    """The collected frames of one camera. `calibrate` is the number of frames for the calibration of engines, `judge`
    the number of frames on which engines are judged. `bytes` is the size of all frames. `first_unix_s` and
    `last_unix_s` are the times of the first and the last frame, in seconds since the epoch."""

    camera: str
    calibrate: int
    judge: int
    bytes: int
    first_unix_s: float
    last_unix_s: float


class CollectedFrame(Info, frozen=True):
    """One collected frame. `name` is its file on the box. `use` is calibrate, judge or gap. A gap frame is not used,
    because it was taken near the time of a change between calibrate frames and judge frames. `offset_s` counts from the
    start of the collection, `taken_unix_s` from the epoch."""

    name: str
    camera: str
    use: str
    offset_s: float
    taken_unix_s: float
    bytes: int


class FrameCollection(Info, frozen=True):
    """Frames of live cameras that were or are collected for a model.

    `state` is collecting, ending, finished or damaged. `problem` says why no frame is kept at present, or why the
    frames are not used. `asked` are the requested cameras; empty means all. `wanted` is the requested number of frames.
    `kept` is the number of kept frames; of these, `calibrate` and `judge` are the numbers for each use. `waiting`
    frames are not examined yet. `duplicates` were dropped because they look like a kept frame. `unusable` frames were
    dropped because they cannot be decoded or are too large. The daemon has collected for `spent_s` of `over_s` seconds.
    `id` is the id of a finished collection. `folder` is the path on the box. `frames` is empty unless the caller
    requests single frames.
    """

    model: str
    state: str
    problem: str = ""
    asked: tuple[str, ...] = ()
    wanted: int = 0
    kept: int = 0
    calibrate: int = 0
    judge: int = 0
    waiting: int = 0
    duplicates: int = 0
    unusable: int = 0
    bytes: int = 0
    spent_s: float = 0.0
    over_s: float = 0.0
    started_unix_s: float = 0.0
    id: str = ""
    folder: str = ""
    cameras: tuple[CollectedCamera, ...] = ()
    frames: tuple[CollectedFrame, ...] = ()


class DriftInfo(Info, frozen=True):
    """The drift checks of a model. In a check, the reference also answers a live frame, and the two answers are
    compared (docs/drift.md).

    `checks` counts the checks since the daemon started. `differed` counts those whose answers differed beyond the
    bounds, `failed` those without a result. `agreement` is the mean agreement in the latest checks of the serving
    engine, 0 to 1; None before the first check. `every_s` is the present time between checks. `outcome` is the result
    of the last check: agreed, differed, empty (nothing to compare) or failed, with `reason`. `waiting` says why no
    check is made at present.
    """

    checks: int
    differed: int
    failed: int
    every_s: float
    agreement: float | None = None
    last_unix_s: float = 0.0
    camera: str = ""
    outcome: str = ""
    reason: str = ""
    waiting: str = ""


class ModelInfo(Info, frozen=True):
    """A model in the daemon. `state` is loading, ready, refused or failed; `reason` says why the model is not ready.
    `swaps` counts how often one engine replaced another. `alarms` are problems of the model or its engines. `notes` say
    which settings of the model's config.pbtxt have no effect, and what else is unusual about the model. `category` and
    `stage` say why and where a model was refused, as in docs/admission.md; otherwise they are empty. `precision_reason`
    says why the serving engine has its precision. `parts` are the models of an ensemble, which has no engine; empty for
    other models. `frames` is the model's collection of frames from live cameras, None without a collection. `drift` is
    None unless live answers are checked. A further version of a model is called NAME:VERSION."""

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
    parts: tuple[str, ...] = ()
    frames: FrameCollection | None = None
    drift: DriftInfo | None = None


class ChatText(Info, frozen=True):
    """A part of an answer of a language model. Only the last part has `finish_reason` (stop or length) and the number
    of `prompt_tokens`, of which `cached_tokens` were known from an earlier request. `tokens` is the number of tokens in
    the answer so far."""

    text: str
    finish_reason: str
    model: str
    prompt_tokens: int
    cached_tokens: int
    tokens: int


class LanguageModelInfo(Info, frozen=True):
    """A language model. `state` is loading, ready or refused; `reason` says why the model is not ready. `context` is
    the largest number of tokens of a prompt and its answer together. `first_token_ms` and `tokens_per_s` were measured
    on this box; 0 if unknown."""

    name: str
    version: str
    state: str
    reason: str
    context: int
    takes_pictures: bool
    has_tools: bool
    runtime: str
    runtime_version: str
    first_token_ms: float
    tokens_per_s: float


class GalleryInfo(Info, frozen=True):
    """The gallery of an embedding model, which gives names to embeddings. `names` has the number of pictures of each
    name. `bytes` is the size of all embeddings. `problem` says why the gallery is not used; empty if it is used."""

    model: str
    names: dict[str, int]
    bytes: int
    problem: str = ""


class PipelineInfo(Info, frozen=True):
    """A pipeline of two models. `detect` is the model that receives frames, `then` the model that receives crops of the
    detections. `crop` is box or corners. `margin` is added on each side, as a share of the box. Only detections of
    `classes` (empty for all) get a crop, and at most `most` in each frame. `state` and `reason` are as in `ModelInfo`.
    Frames and crops are counted since the daemon started. `crops_left_out` counts detections of these classes that got
    no crop."""

    name: str
    detect: str
    then: str
    crop: str
    margin: float
    classes: tuple[str, ...]
    most: int
    state: str
    reason: str
    answered: int
    failed: int
    crops_answered: int
    crops_failed: int
    crops_left_out: int


class JudgementInfo(Info, frozen=True):
    """The comparison of an engine with the reference on frames of the box's cameras. The engine was not calibrated with
    these frames. `outcome` is alike, different, too_few (too few objects) or no_frames (the frames no longer exist).
    `reason` says why the engine is refused; empty if it is not refused. `bounds` has the limits of those `figures` that
    decide the outcome. `skipped` counts frames that could not be read."""

    collection: str
    outcome: str
    reason: str
    frames: int
    skipped: int
    objects: int
    figures: dict[str, float]
    bounds: dict[str, float]


ELSEWHERE = "builds it for all equal boxes"  # the end of the reason of an engine that another box builds


class EngineInfo(Info, frozen=True):
    """An engine, built or wanted. `latency_ms` is the median time of one inference of this engine, `reference_ms` that
    of unoptimised ONNX Runtime. The two were measured alternately. The box does other work meanwhile, so only the ratio
    of the two is meaningful. `load` is the share of the processors that the other work used, 0 to 1. These three are
    None until they are measured.

    `pinned` engines are never evicted. `used_unix_s` is when the engine was last made or opened, 0 if unknown. If the
    engine uses the files of another engine, `adopted_from` is the key of that other engine, which was built in advance
    or for another driver. `effort` says how much the builder was allowed to optimise: full, reduced or least.
    `standard` is the digest of the limits and golden answers with which the engine was verified. If the engine was
    built in advance on a box with another device, `ahead` is the device that it was built for. `speeds` has the
    measured speed for each number of instances and threads. `instances` is the number of inferences that the engine
    runs at the same time while it serves, otherwise 0. `judgement` is None if the engine was not judged on frames of
    cameras. `shared_by` is the box that built the engine, if the engine came from a shared store.
    """

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
    speeds: tuple[Speed, ...] = ()
    instances: int = 0
    judgement: JudgementInfo | None = None
    shared_by: str = ""

    @property
    def is_built_elsewhere(self) -> bool:
        """Whether the box waits for an engine that another box builds."""
        return self.state == "absent" and self.reason.endswith(ELSEWHERE)

    @property
    def is_reference(self) -> bool:
        """Whether this is the unoptimised model, which needs no build. Other engines are compared with it."""
        return self.parts.get("recipe.optimization") == UNOPTIMISED

    @property
    def speed(self) -> float | None:
        """The engine's speed as a multiple of the reference's; None if not measured."""
        return self.reference_ms / self.latency_ms if self.latency_ms and self.reference_ms else None

    @property
    def unjudged(self) -> str:
        """Why the engine was not judged on frames of cameras; empty if it was."""
        if self.judgement is not None:
            is_gone = self.judgement.outcome == "no_frames"
            return f"the frames of collection {self.judgement.collection} no longer exist" if is_gone else ""
        if self.precision == "fp32":
            return "an fp32 engine differs from the reference by rounding only"
        if self.verdict is None:
            return "the engine is not verified yet"
        if not self.verdict.accepted:
            return "the engine's answers to the golden inputs were rejected before"
        return f"no frames are collected; to collect some: edged samples collect {self.model}"


class PartChange(Info, frozen=True):
    """A part of an engine's key that differs between two engines."""

    part: str
    old: str
    new: str


class Explanation(Info, frozen=True):
    """Why a wanted engine exists or does not exist. `wanted` is the key of the wanted engine. `nearest` is the key of
    the most similar engine in the store, and `changes` are the differences from that engine."""

    wanted: str
    backend: str
    precision: str
    state: str
    nearest: str
    changes: tuple[PartChange, ...]
    summary: str


class RuntimeSupport(Info, frozen=True):
    """The newest ONNX versions that a runtime accepted in a test. `opset` and `ir_version` are 64 if the runtime does
    not check them. They are 0 if the runtime accepts no version; `problem` then says why."""

    backend: str
    version: str = ""
    opset: int = 0
    ir_version: int = 0
    problem: str = ""


class TriedModel(Info, frozen=True):
    """Whether a box could serve a model that it does not have. `problem` says in one line why it could not, and is
    empty if it could. `remedy` says what to do. `backends` says for each backend of the box why this backend cannot run
    the model; the reason is empty if it can."""

    problem: str
    remedy: str
    backends: dict[str, str]
    warnings: tuple[str, ...] = ()


class DeviceInfo(Info, frozen=True):
    """The facts about this box that decide whether an engine is valid, and their digest. `runtimes` are the tested
    runtimes, if the caller requested them."""

    facts: dict[str, str]
    digest: str
    runtimes: tuple[RuntimeSupport, ...] = ()


class EngineProgress(Info, frozen=True):
    """The progress of one engine that is built or verified.

    While the engine is made, `phase` is the current step. `fraction` is the finished share of that step, 0 to 1, None
    if unknown. `elapsed_s` counts from the start. `estimate_s` is the expected total, None the first time. `done`: the
    command for this engine has ended. `succeeded`: the command ended with the result that the caller requested.
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
    """The state of the box. `models` is the number of its models, `serving` how many of them can answer. `engines` is
    the number of engines in the store, which use `engine_bytes` of `budget_bytes` (0: no limit). `free_bytes` is the
    free space on the disk. `paused` says why nothing is built at present, `building` lists the engines that are being
    built. `alarms` are the current problems. `page` is the URL of the daemon's page, empty without a page."""

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
    page: str = ""


class ReloadedKey(Info, frozen=True):
    """A changed key of the daemon's configuration: `change` describes the change in one line; `problem` says why the
    change is not in force and what to do, and is empty if it is in force."""

    key: str
    change: str
    problem: str


class ZoneInfo(Info, frozen=True):
    """A zone, which is a part of a camera's picture. `counts` has the number of objects of each class in the zone now.
    `since_unix_s` is when the zone last became occupied or free, in seconds since the epoch. `visits` counts how often
    the zone became occupied since the camera started."""

    occupied: bool
    since_unix_s: float
    counts: dict[str, int]
    visits: int


class LineInfo(Info, frozen=True):
    """The objects that crossed a line since the camera started. `entered` and `left` are the two directions; each has
    the number of objects of each class."""

    entered: dict[str, int]
    left: dict[str, int]


class CameraInfo(Info, frozen=True):
    """One camera with one model.

    Frames are counted since the daemon first saw the camera: received = answered + failed + skipped + dropped + frames
    in flight. `skipped` has the number of skipped frames for each reason. `dropped` frames lost their connection before
    the answer. `fps_in` and `fps_answered` are rates of the last seconds. `age_p50_ms` and `age_p99_ms` are percentiles
    of the time from capture to answer, over the latest answers; None before the first. Times are seconds since the
    epoch, 0 for never. `mode` is freshest or every_frame, `protocol` is grpc or zeromq.

    `configured`: the daemon opens the camera itself. `removable`: commands can change the camera. `state` is off,
    starting, connecting, streaming, lost or failed; `reason` says why the camera does not stream. `source` and
    `settings` have no passwords. `sinks` has the problem of each failing sink.
    """

    camera: str
    model: str
    protocol: str
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
    configured: bool = False
    removable: bool = False
    state: str = ""
    reason: str = ""
    source: str = ""
    reconnections: int = 0
    zones: dict[str, ZoneInfo] = {}
    lines: dict[str, LineInfo] = {}
    sinks: dict[str, str] = {}
    settings: dict[str, str] = {}


class ModelLoad(Info, frozen=True):
    """The load of a model. `answered` and `failed` count requests and frames since the model was loaded. `waiting` is
    the number in its queue now. `infer_ms` is the recent median of one inference. `baseline_ms` is the lowest value of
    `infer_ms` for this build of the engine since the model was loaded. Both are None if unknown. `degraded` lists the
    kinds of the model's current alarms. `backend` is empty while no engine serves."""

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
    """An engine host, which is a process that runs engines of one backend. `limit_bytes` is the memory limit of the
    host, 0 for no limit. `losses` counts how often a host of this backend was lost since the daemon started. `pid` is 0
    while the host is gone and not started again yet."""

    backend: str
    pid: int
    resident_bytes: int
    limit_bytes: int
    sessions: int
    losses: int


class DeviceLoad(Info, frozen=True):
    """The load of the box. `cpu_busy` is the share of the processors in use, 0 to 1. Memory is 0 if unknown.
    `temperatures` are in degrees Celsius, by thermal zone. `power_mode` is empty if the box has none. `daemon_bytes` is
    the memory of the daemon itself."""

    cpu_busy: float
    memory_bytes: int
    memory_free_bytes: int
    temperatures: dict[str, float]
    power_mode: str
    daemon_bytes: int


class LoadInfo(Info, frozen=True):
    """The load of a box at `mono_s` seconds of its monotonic clock. The differences between two reports give rates."""

    status: StatusInfo
    mono_s: float
    models: tuple[ModelLoad, ...]
    cameras: tuple[CameraInfo, ...]
    hosts: tuple[HostLoad, ...]
    device: DeviceLoad


class EventInfo(Info, frozen=True):
    """One event. `sequence` counts from 1 in each run of the daemon, without gaps; `epoch` identifies the run.

    `what` is one of the types in `edged.events`, `kind` its name. For an event that this client does not know, `kind`
    is "unknown" and `what` is None.
    """

    epoch: str
    sequence: int
    unix_s: float
    kind: str
    model: str
    engine: str
    what: events.What | None

    def json(self) -> dict[str, Any]:
        """Return plain values; the fields of `what` follow the fields of the event."""
        plain = super().json()
        what = plain.pop("what") or {}
        return {**plain, **{name: value for name, value in what.items() if name != "type"}}
