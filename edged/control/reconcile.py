"""What to do next, from what is. Pure and level-triggered: the same question gets the same answer, and a lost event
costs nothing, since everything is looked at again each time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from edged.backend.contract import Recipe
from edged.control.states import EngineState

# A running engine is replaced only by one that is faster by more than the noise of measuring.
_GAIN = 0.95


_UNDECIDED = frozenset({EngineState.ABSENT, EngineState.QUEUED, EngineState.BUILDING, EngineState.VERIFYING})


class EngineView(msgspec.Struct, frozen=True):
    """One engine that a model should have. Times are monotonic seconds.

    `cost` is the time of one inference as a share of the reference's, measured in turns with it: whatever else the box
    was doing then slowed both, so costs of engines that were timed at different moments can be compared.
    """

    key: str
    recipe: Recipe
    state: EngineState
    cost: float | None = None
    retry_at: float = 0.0  # of a failed build
    open_at: float = 0.0  # when opening it may be tried (again)


class ModelView(msgspec.Struct, frozen=True):
    """One model: its engines in order of preference, and what its slot does."""

    name: str
    engines: tuple[EngineView, ...]
    serving: str | None = None  # key
    opening: bool = False
    outdated: bool = False  # what serves is the right model, but was built for the device as it was


class Open(msgspec.Struct, frozen=True):
    """Open an engine and install it in the model's slot."""

    model: str
    key: str


class Make(msgspec.Struct, frozen=True):
    """Build, verify and time an engine."""

    model: str
    key: str


Action = Open | Make


def reconcile(models: Iterable[ModelView], now: float, making: bool) -> list[Action]:
    """The actions that bring the box nearer to what it should be. One engine is made at a time."""
    models = list(models)
    actions: list[Action] = [action for model in models if (action := _open(model, now)) is not None]
    if not making:
        actions += _make(models, now)
    return actions


def _open(model: ModelView, now: float) -> Open | None:
    """What should serve, if it does not already."""
    if model.opening:
        return None
    able = [e for e in model.engines if _can_open(e) and e.open_at <= now]
    if not able:
        return None
    serving = next((e for e in model.engines if e.key == model.serving), None)
    if model.outdated and serving is None:
        return _replace_outdated(model, able)
    if serving is None:
        return Open(model.name, _first_choice(able).key)
    best = min(able, key=lambda e: math.inf if e.cost is None else e.cost)
    return Open(model.name, best.key) if best.key != serving.key and _is_better(best, serving) else None


def _first_choice(able: list[EngineView]) -> EngineView:
    """Where nothing serves: by the same rule as while running, so that a restart ends at the same engine."""
    chosen = able[0]
    for engine in able[1:]:
        if _is_better(engine, chosen):
            chosen = engine
    return chosen


def _replace_outdated(model: ModelView, able: list[EngineView]) -> Open | None:
    """An engine of the device as it was goes on serving until everything that could take over has had its chance."""
    if any(e.state in _UNDECIDED for e in model.engines):
        return None
    return Open(model.name, _first_choice(able).key)


def _can_open(engine: EngineView) -> bool:
    # A reference needs no build. Whether it can be opened at all is found by trying; `open_at` says when to try again.
    return engine.state is EngineState.READY or engine.recipe.is_reference


def _is_better(candidate: EngineView, serving: EngineView) -> bool:
    if candidate.cost is None:
        return False
    return serving.cost is None or candidate.cost < serving.cost * _GAIN


def _make(models: list[ModelView], now: float) -> list[Action]:
    """The next engine to make: the model with the fewest engines first, its engines in their order.

    A model that nothing serves yet comes before all: the first thing made for it may be the first that answers.
    """
    for model in sorted(models, key=lambda m: (m.serving is not None, _finished(m))):
        for engine in model.engines:
            if engine.state is EngineState.ABSENT or (engine.state is EngineState.FAILED and engine.retry_at <= now):
                return [Make(model.name, engine.key)]
    return []


def _finished(model: ModelView) -> int:
    return sum(e.state in (EngineState.READY, EngineState.REJECTED) for e in model.engines)
