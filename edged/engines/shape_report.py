"""What is told of a model's open dimensions: which there are, what engines take, what requests had."""

from __future__ import annotations

import msgspec

from edged.backends.profile import Profile, Range
from edged.engines.plan import PlannedModel
from edged.errors import Unsuitable
from edged.models import shapes
from edged.models.model import Model


class InputShapeReport(msgspec.Struct, frozen=True):
    """One input: `dims` as the model declares them; what the serving engine takes, what engines are built for and what
    requests had, each None where there is no such range."""

    name: str
    dims: tuple[str, ...]
    serving: Range | None
    wanted: Range | None
    seen: Range | None


class ShapeReport(msgspec.Struct, frozen=True):
    """One model's open dimensions; see protos/operations.proto."""

    policy: str
    inputs: tuple[InputShapeReport, ...]
    ties: tuple[str, ...]
    learning: str
    requests: int


def shape_report(planned: PlannedModel, learning: str = "") -> ShapeReport | None:
    """The report of a model; None where every input has one shape, or it could not be read."""
    model = planned.model
    if model is None or model.is_static:
        return None
    current, seen = planned.slot.current, planned.traffic.seen()
    serving, wanted = current.engine.profile if current is not None else Profile(), _wanted(model)
    signature = model.inspection.signature
    return ShapeReport(
        model.shape_policy.kind,
        tuple(
            InputShapeReport(
                spec.name,
                tuple(map(str, spec.shape)),
                serving.range(spec.name),
                wanted.range(spec.name),
                seen.range(spec.name),
            )
            for spec in signature.inputs
            if not spec.is_static
        ),
        tuple(map(str, shapes.ties(signature))),
        learning,
        seen.requests,
    )


def _wanted(model: Model) -> Profile:
    try:
        return model.profile
    except Unsuitable:
        return Profile()
