"""From what the core tells to the messages of edged.v1.Operations, and from a selector back."""

from __future__ import annotations

import msgspec

from edged.backends.contract import Composition
from edged.backends.profile import Range
from edged.config import Health
from edged.engines import preference, report
from edged.engines.alarms import Alarm
from edged.engines.commands import Selection, Standing
from edged.engines.plan import PlannedModel
from edged.engines.readiness import Readiness, ReadyState, held_up, readiness
from edged.engines.shape_book import ShapeReport
from edged.events import Event
from edged.models.finding import Reason
from edged.models.repair import Record
from edged.proto import operations_pb2 as pb
from edged.serving.camera import CameraReport
from edged.store.key import PartChange


def selection(selector: pb.Selector) -> Selection:
    """Which engines a client means."""
    return Selection(model=selector.model, engine=selector.engine, everything=selector.everything)


def model_status(
    planned: PlannedModel, alarms: tuple[Alarm, ...], asking: Health, shapes: ShapeReport | None
) -> pb.ModelStatus:
    """A model with those of the alarms that are about it."""
    model, slot, stands = planned.model, planned.slot, model_stands(planned, asking)
    found = Reason.of(planned.problem)
    status = pb.ModelStatus(
        name=planned.entry.name,
        version=planned.version,
        state=stands.state.value,
        reason=stands.reason,
        settings=planned.entry.settings,
        swaps=slot.swaps,
        alarms=[alarm(each) for each in alarms if each.model == planned.entry.name],
        category=found.category,
        stage=found.stage,
    )
    if slot.current is not None:
        status.engine, status.backend = slot.current.engine.key, slot.current.engine.backend
    if (serving := planned.engines.get(planned.serving or "")) is not None:
        status.precision, status.precision_reason = serving.recipe.precision, preference.reason(planned)
    if model is not None:
        status.notes.extend((*model.notes, *(warning.line() for warning in planned.warnings)))
        status.digest, status.family = model.digest, model.recognition.family or ""
        if model.repair is not None:
            status.repair.CopyFrom(repair(model.repair))
        signature = model.inspection.signature
        status.inputs.extend(pb.TensorInfo(name=s.name, datatype=s.datatype, shape=s.dims) for s in signature.inputs)
        status.outputs.extend(pb.TensorInfo(name=s.name, datatype=s.datatype, shape=s.dims) for s in signature.outputs)
    if shapes is not None:
        status.shapes.CopyFrom(_shapes(shapes))
    return status


def model_stands(planned: PlannedModel, asking: Health) -> Readiness:
    """Whether it answers, as operators are told. One that was changed into what cannot be served is refused, also while
    the one before it answers; one that is being loaded needs no reason, unless something is in its way."""
    if planned.problem:
        return Readiness(ReadyState.REFUSED, str(planned.problem))
    ready = readiness(planned, asking)
    return Readiness(ready.state, held_up(planned)) if ready.state is ReadyState.LOADING else ready


def _shapes(report: ShapeReport) -> pb.Shapes:
    return pb.Shapes(
        policy=report.policy,
        inputs=[
            pb.InputShapes(
                name=each.name,
                dims=each.dims,
                serving=_range(each.serving),
                wanted=_range(each.wanted),
                seen=_range(each.seen),
            )
            for each in report.inputs
        ],
        ties=report.ties,
        learning=report.learning,
        requests=report.requests,
    )


def _range(found: Range | None) -> pb.ShapeRange | None:
    if found is None:
        return None
    return pb.ShapeRange(minimum=found.minimum, usual=found.optimum, maximum=found.maximum)


def repair(record: Record) -> pb.RepairRecord:
    """A record and its message have the same fields, but for the format."""
    plain = msgspec.to_builtins(record)
    del plain["format"]
    return pb.RepairRecord(**plain)


def engine(engine: report.EngineReport) -> pb.Engine:
    message = pb.Engine(
        key=engine.key,
        model=engine.model,
        backend=engine.backend,
        precision=engine.precision,
        state=engine.state,
        reason=engine.reason,
        parts=engine.parts,
        latency_ms=engine.latency_ms,
        reference_ms=engine.reference_ms,
        bytes=engine.bytes,
        created_unix_s=engine.created_unix_s,
        build_s=engine.build_s,
        device=engine.device,
        pinned=engine.pinned,
        used_unix_s=engine.used_unix_s,
        load=engine.load,
        adopted_from=engine.adopted_from,
        effort=engine.effort,
        standard=engine.standard,
        composition=_composition(engine.composition),
        ahead=engine.ahead,
    )
    if engine.verdict is not None:
        verdict = engine.verdict
        message.verdict.CopyFrom(pb.Verdict(accepted=verdict.accepted, reason=verdict.reason, figures=verdict.figures))
    return message


def _composition(composition: Composition) -> pb.Composition:
    return pb.Composition(
        layers=composition.layers,
        nodes={provider: pb.Operators(counts=counts) for provider, counts in composition.nodes.items()},
        fallback=composition.fallback,
        kept=composition.kept,
        notes=composition.notes,
    )


def explanation(item: report.ExplanationReport) -> pb.Explanation:
    return pb.Explanation(
        wanted=item.wanted,
        backend=item.backend,
        precision=item.precision,
        state=item.state,
        nearest=item.nearest,
        changes=[part_change(change) for change in item.changes],
        summary=item.summary,
    )


def part_change(change: PartChange) -> pb.PartChange:
    return pb.PartChange(part=change.part, old=change.old or "", new=change.new or "")


def progress(standing: Standing) -> pb.EngineProgress:
    message = pb.EngineProgress(
        key=standing.key,
        model=standing.model,
        backend=standing.backend,
        precision=standing.precision,
        device=standing.device,
        state=standing.state,
        reason=standing.reason,
        done=standing.done,
        succeeded=standing.succeeded,
    )
    if standing.phase:
        making = pb.Making(
            phase=standing.phase,
            fraction=standing.fraction,
            elapsed_s=standing.elapsed_s,
            estimate_s=standing.estimate_s,
        )
        message.making.CopyFrom(making)
    return message


def alarm(raised: Alarm) -> pb.Alarm:
    return pb.Alarm(
        kind=raised.kind.value,
        message=raised.message,
        model=raised.model,
        engine=raised.engine,
        since_unix_s=raised.since_unix_s,
    )


def status(box: report.StatusReport) -> pb.GetStatusResponse:
    return pb.GetStatusResponse(
        version=box.version,
        epoch=box.epoch,
        uptime_s=box.uptime_s,
        models=box.models,
        serving=box.serving,
        engines=box.engines,
        engine_bytes=box.engine_bytes,
        budget_bytes=box.budget_bytes,
        free_bytes=box.free_bytes,
        paused=box.paused,
        building=[progress(standing) for standing in box.building],
        alarms=[alarm(each) for each in box.alarms],
    )


def camera(one: CameraReport) -> pb.CameraStatus:
    """A report and its message have the same fields."""
    return pb.CameraStatus(**msgspec.to_builtins(one))


def event(event: Event, epoch: str) -> pb.Event:
    """A kind is the name of its field on the wire, and what it tells has the same names there: see `edged.events`."""
    what = msgspec.to_builtins(event.what)
    kind = what.pop("type")
    return pb.Event(
        sequence=event.sequence,
        unix_s=event.unix_s,
        epoch=epoch,
        model=event.model,
        engine=event.engine,
        **{kind: what},
    )
