"""Where an optimised engine answers wrongly, one that is optimised less may not. Pure.

Of ONNX Runtime's levels each does all that the one before does, and more; a wrong fusion of one leaves those below it
right. So an engine that was rejected is followed by one of the next lower level, until one is right or none is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from edged.backends.contract import Recipe
from edged.engines.desired import DesiredEngine
from edged.engines.plan import PlannedModel
from edged.engines.states import EngineState
from edged.store.key import EngineKey

_BACKEND, _PRECISION = "onnxruntime", "fp32"  # one of fewer digits is rejected for its digits
_BELOW = {"all": "extended", "extended": "basic"}


def below(recipe: Recipe) -> Recipe | None:
    """The same engine, optimised less; None where there is no such thing."""
    if (recipe.backend, recipe.precision) != (_BACKEND, _PRECISION) or recipe.optimization not in _BELOW:
        return None
    return msgspec.structs.replace(recipe, optimization=_BELOW[recipe.optimization])


def lowered(wanted: Iterable[DesiredEngine], is_rejected: Callable[[DesiredEngine], bool]) -> tuple[DesiredEngine, ...]:
    """What is wanted, and behind each engine that was rejected the one to try instead."""
    found: list[DesiredEngine] = []
    for each in wanted:
        engine: DesiredEngine | None = each
        while engine is not None:
            found.append(engine)
            engine = _instead(engine) if is_rejected(engine) else None
    return tuple(found)


def is_due(planned: PlannedModel) -> bool:
    """Whether an engine was rejected since the model was planned, and another is to be tried instead."""
    return any(
        _key_below(engine.key, lower).digest not in planned.engines
        for engine in planned.engines.values()
        if engine.state is EngineState.REJECTED and (lower := below(engine.recipe)) is not None
    )


def _instead(engine: DesiredEngine) -> DesiredEngine | None:
    lower = below(engine.recipe)
    if lower is None:
        return None
    return msgspec.structs.replace(engine, recipe=lower, key=_key_below(engine.key, lower))


def _key_below(key: EngineKey, lower: Recipe) -> EngineKey:
    return EngineKey({**key.parts, **lower.parts()})
