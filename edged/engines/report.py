"""What the controller tells about models and engines, as plain data."""

from __future__ import annotations

import time

import msgspec

from edged.backends.contract import Composition
from edged.engines.alarms import Alarm
from edged.engines.commands import Standing
from edged.engines.controller import Controller
from edged.engines.plan import PlannedEngine, PlannedModel, Wish
from edged.engines.readiness import readiness
from edged.engines.states import EngineState
from edged.store.key import PartChange, changes, nearest
from edged.store.record import EngineRecord, Verdict
from edged.store.store import Store
from edged.version import __version__

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
    pinned: bool  # an operator keeps it from being evicted
    used_unix_s: float  # when it was last made or opened; 0 when that is not known
    load: float | None  # share of the processors, 0 to 1, that others used while it was timed
    adopted_from: str  # key of the engine for another driver whose files it has
    effort: str  # how hard its build tried
    standard: str  # digest of what it was held to
    composition: Composition
    ahead: str  # the device that it was built for on another box


class StatusReport(msgspec.Struct, frozen=True):
    """The daemon at a glance. `budget_bytes` 0 is no limit; `paused` says why nothing is built."""

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
    building: tuple[Standing, ...]
    alarms: tuple[Alarm, ...]


class ExplanationReport(msgspec.Struct, frozen=True):
    """Why a wanted engine is, or is not, in the store: the nearest one there is, and what differs from it."""

    wanted: str
    backend: str
    precision: str
    state: str
    nearest: str
    changes: tuple[PartChange, ...]
    summary: str


def engines(
    models: dict[str, PlannedModel], store: Store, only: str, *, by_command: bool = False
) -> list[EngineReport]:
    """Every engine that a model should have, then those in the store that none wants any more. `by_command`: the
    configuration has engines built by command alone."""
    reports = [
        _as_opened(
            engine,
            _report(
                engine.digest,
                name,
                _state(engine, planned.serving),
                _awaited(engine, name) if by_command else engine.reason,
                engine.key.parts,
                engine.record,
                store,
            ),
        )
        for name, planned in models.items()
        if only in ("", name)
        for engine in planned.engines.values()
    ]
    wanted = {key for planned in models.values() for key in planned.engines}
    trials = {engine.trial for planned in models.values() for engine in planned.engines.values()}
    serving = {planned.serving: name for name, planned in models.items()}
    for key, record in store.records().items():
        if key not in wanted and only in ("", record.model):
            state, reason = _unwanted(key, record, serving, trials)
            reports.append(_report(key, record.model, state, reason, record.parts, record, store))
    return reports


def _awaited(engine: PlannedEngine, model: str) -> str:
    """The reason of its state, where none is built by itself."""
    if engine.state is not EngineState.ABSENT or engine.wish is not Wish.NONE or engine.recipe.is_reference:
        return engine.reason
    return engine.reason or f"built by command alone (engines.build): edged engines rebuild {model}"


def status(controller: Controller) -> StatusReport:
    """The daemon at a glance."""
    models, room = controller.models.values(), controller.maker.room
    return StatusReport(
        version=__version__,
        epoch=controller.events.epoch,
        uptime_s=round(time.monotonic() - controller.started, 1),
        models=len(models),
        serving=sum(readiness(planned, controller.health).is_ready for planned in models),
        engines=sum(bool(record.files) for record in controller.store.records().values()),
        engine_bytes=controller.store.size,
        budget_bytes=room.budget_bytes,
        free_bytes=room.free_bytes,
        paused=room.paused,
        building=tuple(controller.commands.making()),
        alarms=controller.alarms.active(),
    )


def explain(planned: PlannedModel, store: Store) -> list[ExplanationReport]:
    """For every engine the model should have: is it there, and if not, what differs from the nearest one."""
    name = planned.entry.name
    digest = planned.model.digest if planned.model else ""
    # Engines of other models explain nothing: only this model's, by its content or by its name.
    kin = {k: r for k, r in store.records().items() if r.model == name or r.parts.get("model") == digest}
    return [_explain(engine, planned.serving, kin) for engine in planned.engines.values()]


def _unwanted(key: str, record: EngineRecord, serving: dict[str | None, str], trials: set[str]) -> tuple[str, str]:
    """State and reason of an engine that is in the store and in no plan."""
    if key in serving:
        return SERVING, f"model {serving[key]} is served by it until its successor for the device as it is now is ready"
    if key in trials:
        origin = f"built ahead for {record.ahead}" if record.is_unproven else "built for another driver"
        return EngineState.QUARANTINED.value, f"{origin}; it is tried before it is used here"
    return EngineState.STALE.value, record.verdict.reason


def _as_opened(engine: PlannedEngine, found: EngineReport) -> EngineReport:
    """Where its nodes run is told as it came up when it was last opened, by which everything else is judged."""
    if not engine.nodes:
        return found
    made = found.composition
    composition = msgspec.structs.replace(made, nodes=engine.nodes, fallback=(*made.fallback, *engine.astray))
    return msgspec.structs.replace(found, composition=composition)


def _state(engine: PlannedEngine, serving: str | None) -> str:
    if engine.digest == serving:
        return SERVING
    return EngineState.QUARANTINED.value if engine.barred else engine.state.value


def _report(
    key: str,
    model: str,
    state: str,
    reason: str,
    parts: dict[str, str],
    record: EngineRecord | None,
    store: Store,
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
        pinned=store.is_pinned(key),
        used_unix_s=store.used(key),
        load=record.load if record else None,
        adopted_from=record.adopted_from if record else "",
        effort=record.build.effort if record else "",
        standard=record.standard if record else "",
        composition=record.composition if record else Composition(),
        ahead=record.ahead if record else "",
    )


def _explain(engine: PlannedEngine, serving: str | None, records: dict[str, EngineRecord]) -> ExplanationReport:
    wanted, state = engine.key.parts, _state(engine, serving)
    differing: tuple[PartChange, ...] = ()
    if engine.digest in records and records[engine.digest].is_unproven:
        near = engine.digest
        summary = f"{state}: in the store, built ahead for {records[near].ahead}; it is tried before it is used"
    elif engine.digest in records:
        near = engine.digest
        unusable = f"{state}: {engine.reason}; its key is the same as when it was built"
        summary = unusable if engine.reason and not engine.is_usable else "in the store: nothing changed"
    elif engine.problem:
        near, summary = "", f"{state}: {engine.problem}"
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
