"""Which of a model's engines is preferred: the fastest, with lower precision than float32 only for a reason. Pure.

A precision that the settings name counts as float32. Any other has to be much faster, and is only trusted if the
float32 engine of its backend answers rightly: both have the runtime's faults, and lower precision hides them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from edged.backends.contract import Recipe
from edged.engines.plan import PlannedEngine, PlannedModel
from edged.engines.states import EngineState
from edged.models import settings as model_settings

# Times as fast as the fastest float32 engine that one of lower precision has to be.
LEAST_GAIN = 1.3
EXACT = "fp32"


def cost(engine: PlannedEngine, settings: Mapping[str, str]) -> float | None:
    """Return the time of one inference as a share of the reference's, raised for a precision that the settings do not
    name. None if it was not measured."""
    measured = engine.record.cost if engine.record is not None else None
    if measured is None or not _is_unasked(engine.recipe, settings):
        return measured
    return measured * LEAST_GAIN


def is_doubted(engine: PlannedEngine, engines: Collection[PlannedEngine]) -> bool:
    """Whether it must not serve although its answers pass, since the float32 engine of its backend was rejected."""
    if engine.recipe.precision == EXACT:
        return False
    place = engine.recipe.backend, engine.recipe.device
    exact = [each for each in engines if (each.recipe.backend, each.recipe.device) == place and _is_exact(each.recipe)]
    return any(e.state is EngineState.REJECTED for e in exact) and not any(e.is_usable for e in exact)


def reason(planned: PlannedModel) -> str:
    """Return in a few words why the serving engine has its precision; empty while nothing serves."""
    serving = planned.engines.get(planned.serving or "")
    if serving is None:
        return ""
    rivals = [each for each in planned.engines.values() if each.recipe.precision != EXACT]
    if serving.recipe.precision != EXACT:
        gain = _gain(serving, planned)
        asked = not _is_unasked(serving.recipe, planned.entry.settings)
        return "as set" if asked else "decoded alike" + (f", {gain:.1f}x as fast as fp32" if gain else "")
    said = sorted({f"{each.recipe.precision} {why}" for each in rivals if (why := _against(each, planned))})
    return "; ".join(["exact", *said])


def _against(engine: PlannedEngine, planned: PlannedModel) -> str:
    """Return why an engine of lower precision does not serve; empty if unknown."""
    if engine.state is EngineState.REJECTED:
        return "answers differ"
    if is_doubted(engine, planned.engines.values()):
        return f"not trusted, {engine.recipe.backend} in fp32 answers wrongly"
    gain = _gain(engine, planned) if engine.is_usable else None
    return f"{gain:.1f}x as fast" if gain is not None else ""


def _gain(engine: PlannedEngine, planned: PlannedModel) -> float | None:
    """Return how many times as fast as the fastest float32 engine it is; both were timed against the reference."""
    own = engine.record.cost if engine.record is not None else None
    exact = [
        e.record.cost for e in planned.engines.values() if e.recipe.precision == EXACT and e.record and e.is_usable
    ]
    known = [each for each in exact if each is not None]
    return min(known) / own if own and known else None


def _is_exact(recipe: Recipe) -> bool:
    return recipe.precision == EXACT and not recipe.is_reference


def _is_unasked(recipe: Recipe, settings: Mapping[str, str]) -> bool:
    return recipe.precision != EXACT and recipe.precision not in (model_settings.precisions(settings) or ())
