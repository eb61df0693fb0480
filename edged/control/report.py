"""What the controller tells about models and engines, as plain data."""

from __future__ import annotations

import msgspec

from edged.control.plan import PlannedEngine, PlannedModel
from edged.control.states import EngineState
from edged.store.key import PartChange, changes, nearest
from edged.store.record import EngineRecord, Verdict
from edged.store.store import Store

SERVING = "serving"


class EngineReport(msgspec.Struct, frozen=True):
    """One engine, wanted or stored. Milliseconds, bytes, seconds."""

    key: str
    model: str
    backend: str
    precision: str
    device: str
    state: str
    reason: str
    parts: dict[str, str]
    latency_ms: float | None
    reference_ms: float | None
    bytes: int
    created_unix_s: float
    build_s: float | None
    verdict: Verdict | None


class ExplanationReport(msgspec.Struct, frozen=True):
    """Why a wanted engine is, or is not, in the store: the nearest one there is, and what differs from it."""

    wanted: str
    backend: str
    precision: str
    state: str
    nearest: str
    changes: tuple[PartChange, ...]
    summary: str


def engines(models: dict[str, PlannedModel], store: Store, only: str) -> list[EngineReport]:
    """Every engine that a model should have, then those in the store that none wants any more."""
    reports = [
        _planned(name, engine, planned.serving)
        for name, planned in models.items()
        if only in ("", name)
        for engine in planned.engines.values()
    ]
    wanted = {key for planned in models.values() for key in planned.engines}
    stale = ((key, record) for key, record in store.records().items() if key not in wanted)
    return reports + [_stored(key, record) for key, record in stale if only in ("", record.model)]


def explain(planned: PlannedModel, store: Store) -> list[ExplanationReport]:
    """For every engine the model should have: is it there, and if not, what differs from the nearest one."""
    name = planned.entry.name
    digest = planned.model.digest if planned.model else ""
    # Engines of other models explain nothing: only this model's, by its content or by its name.
    kin = {k: r for k, r in store.records().items() if r.model == name or r.parts.get("model") == digest}
    return [_explain(engine, planned.serving, kin) for engine in planned.engines.values()]


def _planned(model: str, engine: PlannedEngine, serving: str | None) -> EngineReport:
    return _report(engine.digest, model, _state(engine, serving), engine.reason, engine.key.parts, engine.record)


def _stored(key: str, record: EngineRecord) -> EngineReport:
    return _report(key, record.model, EngineState.STALE.value, record.verdict.reason, record.parts, record)


def _state(engine: PlannedEngine, serving: str | None) -> str:
    return SERVING if engine.digest == serving else engine.state.value


def _report(
    key: str,
    model: str,
    state: str,
    reason: str,
    parts: dict[str, str],
    record: EngineRecord | None,
) -> EngineReport:
    return EngineReport(
        key=key,
        model=model,
        backend=parts["recipe.backend"],
        precision=parts["recipe.precision"],
        device=parts["recipe.device"],
        state=state,
        reason=reason,
        parts=dict(parts),
        latency_ms=record.latency_ms if record else None,
        reference_ms=record.reference_ms if record else None,
        bytes=record.size if record else 0,
        created_unix_s=record.build.created_unix_s if record else 0.0,
        build_s=record.build.build_s if record else None,
        verdict=record.verdict if record else None,
    )


def _explain(engine: PlannedEngine, serving: str | None, records: dict[str, EngineRecord]) -> ExplanationReport:
    wanted, state = engine.key.parts, _state(engine, serving)
    differing: tuple[PartChange, ...] = ()
    if engine.digest in records:
        near, summary = engine.digest, "in the store: nothing changed"
    else:
        others = ((key, record.parts) for key, record in records.items())
        near = nearest(wanted, others) or ""
        differing = changes(records[near].parts, wanted) if near else ()
        summary = _summary(state, differing, near)
    return ExplanationReport(
        engine.digest, engine.recipe.backend, engine.recipe.precision, state, near, differing, summary
    )


def _summary(state: str, differing: tuple[PartChange, ...], near: str) -> str:
    if not near:
        return f"{state}: the store holds none of this model and backend yet"
    told = "; ".join(str(change) for change in differing if change.part not in ("model",))
    if any(change.part == "model" for change in differing):
        told = f"the model's content changed{'; ' if told else ''}{told}"
    return f"{state}: {told}"
