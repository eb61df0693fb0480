"""What operators see: models, engines, explanations and the device, mirroring protos/operations.proto.

`edged.client.commands` and `edged.client.events` have what they command and what happens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from edged.models import repair
from edged.proto import operations_pb2 as pb


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
    that serves takes, None where it takes any shape; what engines that need a range are built for, None where nothing
    tells it; what requests had, None where none came."""

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


class Verdict(Info, frozen=True):
    """How an engine's answers compare with the reference."""

    accepted: bool
    reason: str
    figures: dict[str, float]


class Composition(Info, frozen=True):
    """What a runtime made of a model, as far as it tells: how many layers compute in which precision; how many nodes of
    each operator an execution provider runs, by provider; what does not run on the engine's device although it should;
    what was left in float32, and why; anything else worth reading."""

    layers: dict[str, int] = {}
    nodes: dict[str, dict[str, int]] = {}
    fallback: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class EngineInfo(Info, frozen=True):
    """An engine, built or wanted. `latency_ms` and `reference_ms` are medians of one inference, of it and of
    unoptimised ONNX Runtime in turns with it, when it was verified: in a child of low priority, so that only their
    ratio says anything. `load` is the share of the processors, 0 to 1, that others used meanwhile; None where a figure
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
        """How many times as fast as the reference it is; None where that was not measured."""
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


_FIRST = ("format", "model", "recipe.")


def _in_order(parts: Mapping[str, str]) -> dict[str, str]:
    """Key parts as the key has them, format version first: on the wire a map has no order."""
    ranks = {name: next((i for i, p in enumerate(_FIRST) if name.startswith(p)), len(_FIRST)) for name in parts}
    return {name: parts[name] for name in sorted(parts, key=lambda name: (ranks[name], name))}


def alarm_info(message: pb.Alarm) -> AlarmInfo:
    return AlarmInfo(message.kind, message.message, message.model, message.engine, message.since_unix_s)


def model_info(message: pb.ModelStatus) -> ModelInfo:
    return ModelInfo(
        name=message.name,
        version=message.version,
        digest=message.digest,
        state=message.state,
        reason=message.reason,
        family=message.family,
        engine=message.engine,
        backend=message.backend,
        inputs=tuple(_tensor(tensor) for tensor in message.inputs),
        outputs=tuple(_tensor(tensor) for tensor in message.outputs),
        settings=dict(message.settings),
        swaps=message.swaps,
        alarms=tuple(alarm_info(alarm) for alarm in message.alarms),
        notes=tuple(message.notes),
        shapes=_shapes(message.shapes) if message.HasField("shapes") else None,
        repair=_repair(message.repair) if message.HasField("repair") else None,
        category=message.category,
        stage=message.stage,
        precision=message.precision,
        precision_reason=message.precision_reason,
    )


def _repair(message: pb.RepairRecord) -> repair.Record:
    return repair.Record(
        digest=message.digest,
        original=message.original,
        source=message.source,
        made=message.made,
        steps=tuple(_repair_step(step) for step in message.steps),
        left_out=tuple(message.left_out),
        edged=message.edged,
    )


def _repair_step(message: pb.RepairStep) -> repair.Done:
    told = message.proof
    proof = repair.Proof(told.by, told.detail, told.questions, dict(sorted(told.figures.items())))
    return repair.Done(message.step, message.before, message.after, proof, tuple(message.details))


def _shapes(message: pb.Shapes) -> Shapes:
    inputs = tuple(
        InputShapes(
            each.name,
            tuple(each.dims),
            _range(each.serving) if each.HasField("serving") else None,
            _range(each.wanted) if each.HasField("wanted") else None,
            _range(each.seen) if each.HasField("seen") else None,
        )
        for each in message.inputs
    )
    return Shapes(message.policy, inputs, tuple(message.ties), message.learning, message.requests)


def _range(message: pb.ShapeRange) -> ShapeRange:
    return ShapeRange(tuple(message.minimum), tuple(message.usual), tuple(message.maximum))


def engine_info(message: pb.Engine) -> EngineInfo:
    verdict = message.verdict
    return EngineInfo(
        key=message.key,
        model=message.model,
        backend=message.backend,
        precision=message.precision,
        state=message.state,
        reason=message.reason,
        parts=_in_order(message.parts),
        latency_ms=message.latency_ms if message.HasField("latency_ms") else None,
        reference_ms=message.reference_ms if message.HasField("reference_ms") else None,
        bytes=message.bytes,
        created_unix_s=message.created_unix_s,
        build_s=message.build_s if message.HasField("build_s") else None,
        device=message.device,
        verdict=Verdict(verdict.accepted, verdict.reason, dict(sorted(verdict.figures.items())))
        if message.HasField("verdict")
        else None,
        pinned=message.pinned,
        used_unix_s=message.used_unix_s,
        load=message.load if message.HasField("load") else None,
        adopted_from=message.adopted_from,
        effort=message.effort,
        standard=message.standard,
        composition=_composition(message.composition),
        ahead=message.ahead,
    )


def _composition(message: pb.Composition) -> Composition:
    return Composition(
        layers=dict(sorted(message.layers.items())),
        nodes={name: dict(sorted(message.nodes[name].counts.items())) for name in sorted(message.nodes)},
        fallback=tuple(message.fallback),
        kept=tuple(message.kept),
        notes=tuple(message.notes),
    )


def explanation(message: pb.Explanation) -> Explanation:
    return Explanation(
        wanted=message.wanted,
        backend=message.backend,
        precision=message.precision,
        state=message.state,
        nearest=message.nearest,
        changes=tuple(PartChange(change.part, change.old, change.new) for change in message.changes),
        summary=message.summary,
    )


def device_info(message: pb.GetDeviceResponse) -> DeviceInfo:
    return DeviceInfo(dict(message.facts), message.digest)


def _tensor(message: pb.TensorInfo) -> TensorInfo:
    return TensorInfo(message.name, message.datatype, tuple(message.shape))
