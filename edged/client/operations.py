"""What operators see: models, engines, explanations and the device, mirroring protos/operations.proto."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

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


class ModelInfo(Info, frozen=True):
    """A model in the daemon: `state` is loading, ready, refused or failed, and `reason` why it is not ready."""

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


class Verdict(Info, frozen=True):
    """How an engine's answers compare with the reference."""

    accepted: bool
    reason: str
    figures: dict[str, float]


class EngineInfo(Info, frozen=True):
    """An engine, built or wanted. `latency_ms` is the median of one inference on this device, `reference_ms` that of
    unoptimised ONNX Runtime measured in turns with it; None where a figure was not measured yet."""

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


class EventInfo(Info, frozen=True):
    """Something that happened in the daemon. `sequence` counts from 1 since its start, without gaps."""

    sequence: int
    unix_s: float
    kind: str
    model: str
    engine: str
    detail: dict[str, str]


class DeviceInfo(Info, frozen=True):
    """The facts about this box that decide whether an engine is valid, and their digest."""

    facts: dict[str, str]
    digest: str


_FIRST = ("format", "model", "recipe.")


def _in_order(parts: Mapping[str, str]) -> dict[str, str]:
    """Key parts as the key has them, format version first: on the wire a map has no order."""
    ranks = {name: next((i for i, p in enumerate(_FIRST) if name.startswith(p)), len(_FIRST)) for name in parts}
    return {name: parts[name] for name in sorted(parts, key=lambda name: (ranks[name], name))}


def event_info(message: pb.Event) -> EventInfo:
    return EventInfo(
        message.sequence, message.unix_s, message.kind, message.model, message.engine, dict(message.detail)
    )


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
    )


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
        verdict=Verdict(verdict.accepted, verdict.reason, dict(verdict.figures))
        if message.HasField("verdict")
        else None,
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
