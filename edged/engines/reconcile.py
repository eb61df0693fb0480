"""Decides what to do next. Pure and level-triggered: each turn reads the whole state, so a lost event does no harm."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Set

import msgspec

from edged.backends.contract import ONE_INSTANCE, Parallelism, Recipe
from edged.backends.registry import TIMING_KERNELS
from edged.engines.engine import MAKING, EngineState

# A serving engine is replaced only if the gain exceeds the noise of the timings.
_GAIN = 0.95
_REVIEW_SECONDS = 600.0  # between two reviews of one engine
_FALLBACK_SECONDS = 120.0  # without requests until a fallback engine is closed


class EngineView(msgspec.Struct, frozen=True):
    """One engine that a model should have. Times are monotonic seconds.

    `cost` is the time of one inference of the engine divided by that of the reference. Engine and reference were timed
    alternately, so costs of different days can be compared. If the model is busy, the times are those with all
    instances at work. A lower precision that the settings do not name increases the cost (`views.cost`). Two kinds of
    engines of lower precision must not serve. An engine is doubted if the float32 engine of the same backend and device
    was rejected. An engine is outpaced if it is not faster than a float32 engine.
    """

    key: str
    recipe: Recipe
    state: EngineState
    lane: str = "cpu"  # engines of one lane are made one after the other
    usable: bool = False  # in the store, accepted and whole, also while it is being made again
    is_doubted: bool = False
    is_outpaced: bool = False
    edition: str = ""  # identifies the build
    apart: str = ""  # the separate host that it belongs in; empty for the shared host
    cost: float | None = None
    parallelism: Parallelism = ONE_INSTANCE  # the form in which `cost` was timed: the best for the demand
    retry_at: float = 0.0  # when an absent engine, or one whose build failed, may be made
    open_at: float = 0.0  # when opening it may be tried (again)
    request: str = ""  # "build", "verify": commands; "review": the daemon's own request to verify it again
    was_loaded: bool = False  # other work used much of the box while it was timed
    reviewed_at: float = -math.inf  # when the daemon last asked for a review
    adoptable: str = ""  # key of a stored engine to try first: built ahead, or for another driver
    failures: int = 0  # failed attempts in a row to make it


class FallbackView(msgspec.Struct, frozen=True):
    """The slot for requests that the serving engine cannot run. In such a request, a shape is outside the engine's
    range, or an input is given that is a constant in the engine."""

    is_open: bool = False
    is_stale: bool = False  # its engine is of another model than the serving engine
    answered_at: float = 0.0  # when it was opened or gave its last answer
    waits: bool = False  # requests wait for it
    opening: bool = False
    open_at: float = 0.0  # when opening may be tried again
    why: str = ""  # why its engine is not open
    problem: str = ""  # why the model on disk cannot be opened
    is_settled: bool = True  # the serving engine is of the model on disk
    has_defaults: bool = False  # requests may give inputs that are constants in all engines but the reference
    outside: str = ""  # the message for a request that the serving engine does not take


class ModelView(msgspec.Struct, frozen=True):
    """One model: its engines in order of preference, and the state of its slots."""

    name: str
    engines: tuple[EngineView, ...]
    serving: str | None = None  # key
    edition: str = ""  # of the serving engine
    apart: str = ""  # the separate host that it is open in
    parallelism: Parallelism = ONE_INSTANCE  # the form in which it is open
    cost: float | None = None  # of the serving engine in that form, even if another form is better
    opening: bool = False
    reading: bool = False  # its content may change
    holds: bool = False  # it serves while its file is being read; only its fallback slot may change
    superseded: bool = False  # its file has changed
    outdated: bool = False  # the serving engine is of the right model, but was built before the device changed
    is_slow: bool = False  # the serving engine has been much slower than usual for a while
    lowering: bool = False  # an optimised engine was rejected, and a less optimised one is not planned yet
    is_hopeless: bool = False  # nothing serves, and no engine can ever be opened
    fallback: FallbackView = FallbackView()


class _OfModel(msgspec.Struct, frozen=True):
    model: str


class _OfEngine(_OfModel, frozen=True):
    key: str


class Open(_OfEngine, frozen=True):
    """Open an engine with this parallelism and install it in the model's slot."""

    parallelism: Parallelism = ONE_INSTANCE


class Make(_OfEngine, frozen=True):
    """Build, verify and time an engine."""


class Adopt(_OfEngine, frozen=True):
    """Verify another stored engine, and adopt it if its answers are right. That engine was built in advance on another
    box, or for another driver."""

    source: str


class Verify(_OfEngine, frozen=True):
    """Verify and time a stored engine again."""


class Review(_OfEngine, frozen=True):
    """Request that an engine be verified and timed again."""


class Replan(_OfModel, frozen=True):
    """Plan a model again, because it should have other engines now."""


class Read(_OfModel, frozen=True):
    """Read a model that changed on disk."""


class Refuse(_OfModel, frozen=True):
    """Refuse a model that no engine can serve."""


class OpenFallback(_OfEngine, frozen=True):
    """Open an engine and install it in the model's fallback slot."""


class CloseFallback(_OfModel, frozen=True):
    """Close the engine in the model's fallback slot, to free its memory. The next request for the slot waits about a
    second."""


class RefuseFallback(_OfModel, frozen=True):
    """Refuse the requests that wait for the fallback slot."""

    why: str


Work = Make | Adopt | Verify  # work that needs a child; one at a time in each lane
Action = Open | Review | Replan | Read | Refuse | OpenFallback | CloseFallback | RefuseFallback | Work


def reconcile(
    models: Iterable[ModelView],
    now: float,
    busy: Set[str],
    *,
    slow: Set[str] = frozenset(),
    paused: bool = False,
    by_command: bool = False,
    is_idle: bool = False,
    is_starting: bool = False,
) -> list[Action]:
    """Return the actions that bring the box nearer to the desired state.

    Each lane makes one engine at a time; `busy` are the lanes that make one now. If the build in a busy lane takes
    long, the lane is also in `slow`, and a second job may run in parallel. While `paused`, nothing is made: nothing can
    be stored, or a new driver needs a reboot. `by_command`: only a command starts a build; actions that take seconds
    need no command. `is_idle`: the box has had little load for a while. `is_starting`: the first models are being
    examined, and engines are made only by command.
    """
    every = list(models)
    models = [model for model in every if not model.holds]
    actions: list[Action] = [Read(model.name) for model in every if model.superseded]
    actions += [Replan(model.name) for model in models if model.lowering]
    actions += filter(None, (_open(model, now) for model in models))
    actions += [review for model in models for review in _reviews(model, now, is_idle and not busy)]
    if not paused:
        actions += _make(models, now, busy, slow, by_command, is_starting)
    actions += filter(None, (_fallback(model, now) for model in every))
    return actions + [Refuse(model.name) for model in models if model.is_hopeless]


# -- the serving engine ---------------------------------------------------------------------------------------------


def _open(model: ModelView, now: float) -> Open | None:
    """Return the action that opens the best engine; None if that engine serves already or cannot be opened now."""
    if model.opening:
        return None
    able = [e for e in model.engines if _can_open(e) and e.open_at <= now]
    if not able and model.serving is None:  # no faster engine can be opened, so an outpaced one may serve
        able = [e for e in model.engines if e.usable and e.is_outpaced and not e.is_doubted and e.open_at <= now]
    if not able:
        return None
    serving = next((e for e in model.engines if e.key == model.serving), None)
    if model.outdated and serving is None:
        return _replace_outdated(model, able)
    # An engine that must not serve is replaced at once.
    if serving is None or (serving not in able and (_is_wrong(serving) or serving.is_outpaced)):
        return _opened(model, _first_choice(able))
    best = min(able, key=_cost)
    is_in_form = serving.parallelism == model.parallelism
    if (best is not serving or not is_in_form) and _is_better(best, serving.cost if is_in_form else model.cost):
        return _opened(model, best)
    rebuilt = serving in able and serving.usable and serving.edition != model.edition
    moves = serving in able and serving.apart != model.apart
    return _opened(model, serving) if rebuilt or moves else None


def _opened(model: ModelView, engine: EngineView) -> Open:
    return Open(model.name, engine.key, engine.parallelism)


def _first_choice(able: list[EngineView]) -> EngineView:
    """Return the engine to open if none serves. The same rule decides whether a serving engine is replaced, so a
    restart opens the engine that served before."""
    chosen = able[0]
    for engine in able[1:]:
        if _is_better(engine, chosen.cost):
            chosen = engine
    return chosen


def _replace_outdated(model: ModelView, able: list[EngineView]) -> Open | None:
    """Return the action that replaces an engine of the previous device. Return None while an engine that could replace
    it must still be made."""
    if any(e.state is EngineState.ABSENT or (e.state in MAKING and not e.usable) for e in model.engines):
        return None
    return _opened(model, _first_choice(able))


def _can_open(engine: EngineView) -> bool:
    # A reference needs no build. Only an attempt shows whether it opens; `open_at` says when to try again. The verdict
    # on a reference does not matter, because its answers are right by definition, even if they differ from run to run.
    return (engine.usable and not engine.is_doubted and not engine.is_outpaced) or engine.recipe.is_reference


def _cost(engine: EngineView) -> float:
    return math.inf if engine.cost is None else engine.cost


def _is_wrong(engine: EngineView) -> bool:
    return engine.state is EngineState.REJECTED or engine.is_doubted


def _is_better(candidate: EngineView, cost: float | None) -> bool:
    if candidate.cost is None:
        return False
    return cost is None or candidate.cost < cost * _GAIN


def _reviews(model: ModelView, now: float, is_idle: bool) -> Iterator[Review]:
    """Yield reviews of engines whose timings may be wrong. Engines that were timed under load are reviewed once the box
    is idle. A serving engine that became slow is reviewed at once, because another engine may be faster now."""
    for engine in model.engines:
        is_due = engine.usable and not engine.request and now - engine.reviewed_at >= _REVIEW_SECONDS
        is_slow = model.is_slow and engine.key == model.serving
        if is_due and (is_slow or (is_idle and engine.was_loaded)):
            yield Review(model.name, engine.key)


# -- the fallback slot ----------------------------------------------------------------------------------------------


def _fallback(model: ModelView, now: float) -> OpenFallback | CloseFallback | RefuseFallback | None:
    slot = model.fallback
    if slot.is_open:
        is_idle = not slot.waits and now - slot.answered_at >= _FALLBACK_SECONDS
        return CloseFallback(model.name) if slot.is_stale or is_idle else None
    if not slot.waits or slot.opening:
        return None
    if not slot.is_settled:  # requests wait until the change is complete
        return _refuse(model, f"the model on disk cannot be opened: {slot.problem}") if slot.problem else None
    if now < slot.open_at:
        return _refuse(model, slot.why) if slot.why else None
    fit = [e for e in model.engines if not e.recipe.profile and (e.recipe.is_reference or not slot.has_defaults)]
    able = [e for e in fit if _can_open(e) and e.open_at <= now and not e.is_doubted]
    if able:
        return OpenFallback(model.name, min(able, key=_cost).key)
    if any(e.recipe.is_reference and e.open_at < math.inf for e in model.engines):
        return None  # wait until the reference may be opened again
    return _refuse(model, slot.outside)


def _refuse(model: ModelView, why: str) -> RefuseFallback:
    is_widening = any(e.recipe.profile and e.state in MAKING for e in model.engines)
    return RefuseFallback(
        model.name, why + ("; an engine for a wider range is being built; try again later" if is_widening else "")
    )


# -- engines to make ------------------------------------------------------------------------------------------------


def _make(
    models: list[ModelView], now: float, busy: Set[str], slow: Set[str], by_command: bool, is_starting: bool
) -> list[Work]:
    """Return the next job of every lane that is free, or whose slow build allows a second job.

    These rules determine the order of the jobs, the most important rule first:

    - jobs that a command requested come first
    - engines without failures come before engines with failures
    - models that no engine serves come before other models
    - verifications and adoptions (seconds) come before builds (minutes)
    - models with fewer finished engines come before models with more
    """
    wanted: list[tuple[tuple[bool, bool, bool, int, int], str, Work]] = []
    making = {engine.key for model in models for engine in model.engines if engine.state in MAKING}
    for model in models:
        for engine in () if model.reading else model.engines:
            # Models of the same content have the same engines.
            action = _next(model, engine, now) if engine.key not in making else None
            commanded = engine.request in ("build", "verify")
            if not commanded and (is_starting or (by_command and _is_build(engine, action))):
                continue
            is_free = engine.lane not in busy or (engine.lane in slow and _may_overtake(engine, action))
            if action is not None and is_free:
                rank = (
                    not commanded,
                    engine.failures > 0,
                    model.serving is not None,
                    _slowness(action),
                    _finished(model),
                )
                wanted.append((rank, engine.lane, action))
    chosen: dict[str, Work] = {}
    for _, lane, action in sorted(wanted, key=lambda item: item[0]):
        chosen.setdefault(lane, action)
    return list(chosen.values())


def _next(model: ModelView, engine: EngineView, now: float) -> Work | None:
    """Return the job that an engine needs or that was requested; None if there is no job now."""
    if engine.state in MAKING:
        return None
    if engine.request == "build" or (engine.request and engine.usable):
        if engine.retry_at > now:  # a full disk stays full for a while
            return None
        return _obtain(model, engine) if engine.request == "build" else Verify(model.name, engine.key)
    if engine.state in (EngineState.ABSENT, EngineState.FAILED) and engine.retry_at <= now:
        return _obtain(model, engine)
    if engine.state is EngineState.EVICTED and _is_missed(model, engine):
        return Make(model.name, engine.key)
    return None


def _obtain(model: ModelView, engine: EngineView) -> Work:
    """Return an adoption if possible, otherwise a build: an adoption takes seconds, a build up to an hour."""
    if engine.adoptable and not engine.usable:
        return Adopt(model.name, engine.key, engine.adoptable)
    return Make(model.name, engine.key)


def _is_build(engine: EngineView, action: Work | None) -> bool:
    """Whether a job builds an engine. The reference is only verified and timed."""
    return isinstance(action, Make) and not engine.recipe.is_reference


def _may_overtake(engine: EngineView, action: Work | None) -> bool:
    """Whether a job may run in parallel with a build. A builder that times kernels must run alone."""
    return not isinstance(action, Make) or engine.recipe.backend not in TIMING_KERNELS


def _is_missed(model: ModelView, engine: EngineView) -> bool:
    """Whether an evicted engine must be built again. This is so if no other optimised engine is usable or can still be
    made, and no other evicted engine was faster.

    An engine that is not clearly faster than the reference is not built again: it would not serve, so it might be
    evicted again.
    """
    if engine.cost is not None and engine.cost >= _GAIN:
        return False
    rivals = [e for e in model.engines if not e.recipe.is_reference and e.key != engine.key]
    if any(e.usable or e.state in MAKING or e.state in (EngineState.ABSENT, EngineState.FAILED) for e in rivals):
        return False
    evicted = [e for e in rivals if e.state is EngineState.EVICTED]
    return all((engine.cost or math.inf, engine.key) < (e.cost or math.inf, e.key) for e in evicted)


def _slowness(action: Work) -> int:
    return 1 if isinstance(action, Make) else 0


def _finished(model: ModelView) -> int:
    return sum(e.state in (EngineState.READY, EngineState.REJECTED) for e in model.engines)
