"""Reports of the controller on models, engines and itself, in the types of `edged.api_types`."""

from __future__ import annotations

import time

import msgspec

from edged.api_types import (
    AlarmInfo,
    EngineInfo,
    Explanation,
    InputShapes,
    JudgementInfo,
    LanguageModelInfo,
    ModelInfo,
    PartChange,
    ShapeRange,
    Shapes,
    StatusInfo,
    TensorInfo,
)
from edged.backends.contract import Composition
from edged.backends.profile import Profile
from edged.config import Health
from edged.engines import views
from edged.engines.alarms import Alarm
from edged.engines.controller import Controller
from edged.engines.engine import EngineState, PlannedEngine, Request
from edged.engines.ensembles import PlannedEnsemble
from edged.engines.plan import PlannedModel
from edged.engines.readiness import Readiness, ReadyState, held_up, readiness
from edged.errors import Unsuitable
from edged.language.model import LanguageState, PlannedLanguageModel
from edged.models.ensemble import ports, specs
from edged.models.finding import Reason
from edged.models.model import Model
from edged.models.shapes import ties
from edged.serving.extents import Seen
from edged.store import key as keys
from edged.store.judgement import Judgement
from edged.store.record import EngineRecord
from edged.store.store import Store
from edged.tensors import TensorSpec
from edged.version import __version__

SERVING = "serving"
_MOST_VALUE, _BEGINNING = 4096, 60  # characters: a longer value, such as a character list, is cut to 60


def model(planned: PlannedModel, alarms: tuple[Alarm, ...], asking: Health, shapes: Shapes | None) -> ModelInfo:
    """Report a model, with the alarms that concern it."""
    read, slot, state = planned.model, planned.slot, public_readiness(planned, asking)
    refused, serving = Reason.of(planned.problem), planned.engines.get(planned.serving or "")
    return ModelInfo(
        name=planned.entry.name,
        version=planned.version,
        digest=read.digest if read else "",
        state=state.state.value,
        reason=state.reason,
        family=(read.recognition.family or "") if read else "",
        engine=slot.current.engine.key if slot.current else "",
        backend=slot.current.engine.backend if slot.current else "",
        inputs=tensors(read.inspection.signature.inputs) if read else (),
        outputs=tensors(read.inspection.signature.outputs) if read else (),
        settings={key: _shortened(value) for key, value in planned.entry.settings.items()},
        swaps=slot.swaps,
        alarms=tuple(_alarm(each) for each in alarms if each.model == planned.entry.name),
        notes=(*read.notes, *(warning.line() for warning in planned.warnings)) if read else (),
        shapes=shapes,
        repair=read.repair if read else None,
        category=refused.category,
        stage=refused.stage,
        precision=serving.recipe.precision if serving else "",
        precision_reason=views.precision_reason(planned) if serving else "",
    )


def _shortened(value: str) -> str:
    """Return a setting's value for a report. A value of thousands of characters is cut, because every report contains
    all settings."""
    return value if len(value) <= _MOST_VALUE else f"{value[:_BEGINNING]}... ({len(value)} characters)"


def ensemble(planned: PlannedEnsemble, alarms: tuple[Alarm, ...], state: Readiness) -> ModelInfo:
    """Report an ensemble, with the alarms that concern it. The reported tensors are the tensors of the ensemble's
    configuration."""
    rows, config = planned.config.max_batch_size, planned.config
    return ModelInfo(
        name=planned.entry.name,
        version=planned.version,
        digest="",
        state=state.state.value,
        reason=state.reason,
        family="",
        engine="",
        backend="",
        inputs=tensors(specs(ports(config.inputs, rows))),
        outputs=tensors(specs(ports(config.outputs, rows))),
        settings=planned.entry.settings,
        swaps=0,
        alarms=tuple(_alarm(each) for each in alarms if each.model == planned.entry.name),
        notes=planned.notes,
        parts=planned.part_names,
    )


LANGUAGE = "language model"
_LANGUAGE_INPUTS = tuple(
    TensorSpec(name, datatype, (1,))
    for name, datatype in (
        ("text_input", "BYTES"),
        ("stream", "BOOL"),
        ("sampling_parameters", "BYTES"),
        ("exclude_input_in_output", "BOOL"),
    )
)
_LANGUAGE_OUTPUTS = (TensorSpec("text_output", "BYTES", (1,)),)


def language(planned: PlannedLanguageModel, alarms: tuple[Alarm, ...] = ()) -> ModelInfo:
    """Report a language model as a model, with the alarms that concern it. The inputs and outputs in the report are the
    tensors that clients of ModelStreamInfer send and receive."""
    about, entry = language_model(planned), planned.entry
    measured = f", {about.first_token_ms:.0f} ms to the first token, {about.tokens_per_s:.0f} tokens/s"
    notes = [f"context of {about.context} tokens{measured if about.tokens_per_s else ''}"] if about.context else []
    notes += [f"chosen by measurement: {planned.choice}"] if planned.choice else []
    return ModelInfo(
        name=entry.name,
        version=entry.version,
        digest=planned.digest,
        state=about.state,
        reason=about.reason,
        family=f"{LANGUAGE} ({planned.files.kind})" if planned.files is not None else LANGUAGE,
        engine="",
        backend=about.runtime,
        inputs=tensors(_LANGUAGE_INPUTS),
        outputs=tensors(_LANGUAGE_OUTPUTS),
        settings=entry.settings,
        swaps=planned.swaps,
        alarms=tuple(_alarm(each) for each in alarms if each.model == entry.name),
        notes=(*notes, *entry.unread),
    )


def language_model(planned: PlannedLanguageModel) -> LanguageModelInfo:
    """Report a language model: its state, context length, abilities, runtime and measured speed."""
    host, figures, files = planned.host, planned.figures, planned.files
    is_ready = planned.state is LanguageState.READY
    return LanguageModelInfo(
        name=planned.entry.name,
        version=planned.version,
        state=planned.state.value,
        reason="" if is_ready else str(planned.problem or "it is being loaded"),
        context=planned.context,
        takes_pictures=files.takes_pictures if files is not None else False,
        has_tools=host.opened.has_tools if host is not None else False,
        runtime=host.form.runtime if host is not None else "",
        runtime_version=host.version if host is not None else "",
        first_token_ms=round(figures.first_s * 1e3, 2) if figures is not None else 0.0,
        tokens_per_s=round(figures.tokens_per_s, 1) if figures is not None else 0.0,
    )


def public_readiness(planned: PlannedModel, asking: Health) -> Readiness:
    """Return whether a model answers, as operators see it.

    A model is refused if its newest content cannot be served, even while its earlier content answers. A loading model
    has a reason only if something prevents it from being opened.
    """
    if planned.problem:
        return Readiness(ReadyState.REFUSED, str(planned.problem))
    ready = readiness(planned, asking)
    return Readiness(ready.state, held_up(planned)) if ready.state is ReadyState.LOADING else ready


def tensors(specs: tuple[TensorSpec, ...]) -> tuple[TensorInfo, ...]:
    """Return a report for each input or output."""
    return tuple(TensorInfo(spec.name, spec.datatype, spec.dims) for spec in specs)


def _alarm(raised: Alarm) -> AlarmInfo:
    return AlarmInfo(raised.kind.value, raised.message, raised.model, raised.engine, raised.since_unix_s, raised.camera)


def engines(models: dict[str, PlannedModel], store: Store, only: str, *, by_command: bool = False) -> list[EngineInfo]:
    """Report every engine that a model should have, then stored engines that no model should have. `only`: the name of
    a model, to report only its engines; empty for all models. `by_command`: the configuration allows builds by command
    only."""
    reports = [
        _as_opened(
            planned,
            engine,
            _report(
                engine.digest,
                name,
                _state(engine, planned.serving),
                _reason(planned, engine, by_command),
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
    adoptable = {engine.adoptable for planned in models.values() for engine in planned.engines.values()}
    serving = {planned.serving: name for name, planned in models.items()}
    for key, record in store.records().items():
        if key not in wanted and only in ("", record.model):
            state, reason = _unwanted(key, record, serving, adoptable)
            reports.append(_report(key, record.model, state, reason, record.parts, record, store))
    return reports


def _reason(planned: PlannedModel, engine: PlannedEngine, by_command: bool) -> str:
    """Return the reason for the engine's state. For a ready engine of lower precision, return why it does not serve.
    `by_command`: the configuration allows builds by command only."""
    is_awaited = engine.state is EngineState.ABSENT and engine.request is Request.NONE
    if engine.reason:
        return engine.reason
    if by_command and is_awaited and not engine.recipe.is_reference:
        return f"built by command only (engines.build): edged engines rebuild {planned.entry.name}"
    return views.why_not(engine, planned) if engine.state is EngineState.READY else ""


def status(controller: Controller) -> StatusInfo:
    """Report the state of the daemon: models, engines, disk space, running builds and alarms."""
    models, eviction = controller.served(), controller.maker.eviction
    chats = controller.language.models.values()
    return StatusInfo(
        version=__version__,
        epoch=controller.events.epoch,
        uptime_s=round(time.monotonic() - controller.started, 1),
        models=len(models) + len(chats),
        serving=sum(controller.readiness(planned).is_ready for planned in models)
        + sum(planned.state is LanguageState.READY for planned in chats),
        engines=sum(bool(record.files) for record in controller.store.records().values()),
        engine_bytes=controller.store.size,
        budget_bytes=eviction.budget_bytes,
        free_bytes=eviction.free_bytes,
        paused=eviction.paused,
        building=tuple(controller.commands.making()),
        alarms=tuple(map(_alarm, controller.alarms.active())),
    )


def explain(planned: PlannedModel, store: Store) -> list[Explanation]:
    """Return, for each engine that the model should have, whether the store has it, and how the nearest stored engine
    differs."""
    name = planned.entry.name
    digest = planned.model.digest if planned.model else ""
    # Only engines of this model, by content or by name.
    kin = {k: r for k, r in store.records().items() if r.model == name or r.parts.get("model") == digest}
    return [_explain(engine, planned.serving, kin) for engine in planned.engines.values()]


def _unwanted(key: str, record: EngineRecord, serving: dict[str | None, str], adoptable: set[str]) -> tuple[str, str]:
    """Return the state and reason of a stored engine that no model should have."""
    if key in serving:
        return SERVING, f"serves model {serving[key]} until its successor for the changed device is ready"
    if key in adoptable:
        origin = f"built ahead for {record.ahead}" if record.is_unproven else "built for another driver"
        return EngineState.QUARANTINED.value, f"{origin}; it is tried before it is used here"
    return EngineState.STALE.value, record.verdict.reason


def _as_opened(planned: PlannedModel, engine: PlannedEngine, found: EngineInfo) -> EngineInfo:
    """Return the report with two additions. If the engine serves, add the number of its instances. Add the providers
    that ran its nodes when it was last opened."""
    current = planned.slot.current
    if current is not None and current.engine.key == engine.digest:
        found = msgspec.structs.replace(found, instances=current.parallelism.instances)
    if not engine.nodes:
        return found
    made = found.composition
    composition = msgspec.structs.replace(made, nodes=engine.nodes, fallback=(*made.fallback, *engine.misplaced))
    return msgspec.structs.replace(found, composition=composition)


def _state(engine: PlannedEngine, serving: str | None) -> str:
    if engine.digest == serving:
        return SERVING
    return EngineState.QUARANTINED.value if engine.quarantined else engine.state.value


def _report(
    key: str,
    model: str,
    state: str,
    reason: str,
    parts: dict[str, str],
    record: EngineRecord | None,
    store: Store,
) -> EngineInfo:
    return EngineInfo(
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
        speeds=record.speeds if record else (),
        judgement=_judgement(record.judgement) if record and record.judgement else None,
        shared_by=record.shared_by if record else "",
    )


def _judgement(found: Judgement) -> JudgementInfo:
    """Return the fields of a judgement that lists of engines show."""
    return JudgementInfo(**{name: getattr(found, name) for name in JudgementInfo.__struct_fields__})


def _explain(engine: PlannedEngine, serving: str | None, records: dict[str, EngineRecord]) -> Explanation:
    wanted, state = engine.key.parts, _state(engine, serving)
    differing: tuple[keys.PartChange, ...] = ()
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
        others = ((digest, record.parts) for digest, record in records.items())
        near = keys.nearest(wanted, others) or ""
        differing = keys.changes(records[near].parts, wanted) if near else ()
        summary = _summary(state, differing, near)
    parts = tuple(PartChange(change.part, change.old or "", change.new or "") for change in differing)
    return Explanation(engine.digest, engine.recipe.backend, engine.recipe.precision, state, near, parts, summary)


def _summary(state: str, differing: tuple[keys.PartChange, ...], near: str) -> str:
    if not near:
        return f"{state}: the store has no engine of this model and backend yet"
    text = "; ".join(str(change) for change in differing if change.part not in ("model",))
    if any(change.part == "model" for change in differing):
        text = f"the model's content changed{'; ' if text else ''}{text}"
    return f"{state}: {text}"


def shape_report(planned: PlannedModel, learning: str = "") -> Shapes | None:
    """Report the shapes of a model. Return None if each input has one shape, or if the model could not be read."""
    model = planned.model
    if model is None or model.is_static:
        return None
    current, seen = planned.slot.current, planned.traffic.seen()
    serving, wanted = current.engine.profile if current is not None else Profile(), _wanted_range(model)
    signature = model.inspection.signature
    return Shapes(
        model.shape_policy.kind,
        tuple(
            InputShapes(
                spec.name,
                tuple(map(str, spec.shape)),
                _range(serving, spec.name),
                _range(wanted, spec.name),
                _range(seen, spec.name),
            )
            for spec in signature.inputs
            if not spec.is_static
        ),
        tuple(map(str, ties(signature))),
        learning,
        seen.requests,
    )


def _wanted_range(model: Model) -> Profile:
    try:
        return model.profile
    except Unsuitable:
        return Profile()


def _range(known: Profile | Seen, name: str) -> ShapeRange | None:
    found = known.range(name)
    return ShapeRange(found.minimum, found.optimum, found.maximum) if found is not None else None
