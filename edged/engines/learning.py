"""Learns the range of shapes of the requests, and plans engines for this range (setting `shapes.policy = learn`).

The module is level-triggered. A wider range becomes the target once the range that requests need has not grown for a
while (or keeps growing for too long), and no engine of the previous range is being made. Engines of the new range are
built, verified and timed like others, while the current engine serves. Once one of them is ready, the range is proven
and stored on disk. If none can be made, the target is dropped, and the engines of the previous range continue to serve.

A range never shrinks. Sizes are rounded outwards, so that few new sizes need another build. Sizes below 16 are rounded
to powers of two. Larger sizes are rounded to multiples of a quarter of the largest power of two that does not exceed
the size. So the rounded maximum of a larger size exceeds the size by less than 25 %. A power of two that divides a size
also divides the rounded size, as models with strides require.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from edged.backends.contract import Signature
from edged.backends.profile import Profile, Range, Shape
from edged.engines.desired import RANGED
from edged.engines.engine import MAKING, EngineState, PlannedEngine
from edged.engines.plan import PlannedModel
from edged.engines.reconcile import Replan
from edged.engines.shape_book import ShapeBook, configured_range, largest_bytes
from edged.errors import Unsuitable
from edged.formatting import many
from edged.models.model import Model
from edged.serving.extents import Kind, Seen, Traffic
from edged.tasks import TaskGroup
from edged.tensors import ANY_SHAPE, TensorSpec

_LOG = logging.getLogger("edged.engines")
_WRITE_SECONDS = 60.0  # between two writes of the observed shapes
_FORGIVE_SECONDS = 3600.0  # before a range that could not be built is tried again
_OVER = (EngineState.FAILED, EngineState.REJECTED, EngineState.UNSUITABLE, EngineState.QUARANTINED)


@dataclass
class _Learning:
    """The state of learning for a model with its current content."""

    model: Model
    traffic: Traffic
    demand: Demand | None = None
    target: Profile | None = None  # the range that is being built, not proven yet
    refused: dict[Profile, float] = field(default_factory=dict)  # ranges that could not be built: when to retry
    looked: int = -1  # version of the traffic from which the demand was computed
    written: float = 0.0
    noted: int = 0  # number of requests at the last write
    state: str = ""


class Learning:
    """Learns the ranges of all models."""

    def __init__(self, book: ShapeBook, tasks: TaskGroup) -> None:
        self._book, self._tasks = book, tasks
        self._replans: list[Replan] = []
        self._models: dict[str, _Learning] = {}

    def look(self, models: Iterable[PlannedModel], now: float) -> list[Replan]:
        """Update the ranges of all models before `reconcile` decides. Return a Replan for each model whose range
        changed. `now` is in monotonic seconds."""
        known, self._models, self._replans = self._models, {}, []
        for planned in models:
            if planned.model is None or planned.model.is_static or planned.is_being_read:
                if planned.entry.name in known:
                    self._models[planned.entry.name] = known[planned.entry.name]
                continue
            learning = self._state_of(planned, planned.model, known.get(planned.entry.name))
            self._models[planned.entry.name] = learning
            if planned.model.shape_policy.kind == "learn":
                self._learn(planned, learning, now)
            self._note(learning, now)
        return self._replans

    def state(self, name: str) -> str:
        """Return one line on the state of learning for a model; empty if there is nothing to report."""
        learning = self._models.get(name)
        return learning.state if learning is not None else ""

    async def stop(self) -> None:
        """Write the shapes observed since the last write."""
        for learning in self._models.values():
            if self._take(learning):
                await asyncio.to_thread(self._book.write, learning.model)

    def _state_of(self, planned: PlannedModel, model: Model, known: _Learning | None) -> _Learning:
        if known is not None and known.model.digest == model.digest and known.model.entry == model.entry:
            known.model = model
            return known
        if known is not None:
            self._book.unaim(known.model)
        seen = self._book.page(model).seen
        planned.traffic = Traffic(seen)
        return _Learning(model, planned.traffic, noted=seen.requests)

    # -- the targeted range -------------------------------------------------------------------------------------------

    def _learn(self, planned: PlannedModel, learning: _Learning, now: float) -> None:
        if learning.target is not None:
            self._check_target(planned, learning, learning.target, now)
            return
        if not any(engine.recipe.backend in RANGED for engine in planned.engines.values()):
            learning.state = "no backend of this model builds engines for a range of shapes, so learning has no effect"
            return
        self._update_demand(learning, now)
        demand, policy = learning.demand, learning.model.shape_policy
        if demand is None:
            learning.state = "" if not learning.refused else learning.state
            return
        page, clock = self._book.page(learning.model), time.time()
        times = recent(page.widened, clock)
        if not demand.is_due(now, policy.quiet_s):
            learning.state = (
                f"requests need engines for {_words(demand.profile)}; they are built once the shapes stop changing"
            )
        elif len(times) >= policy.per_hour:
            learning.state = (
                f"requests need engines for {_words(demand.profile)}; they are built later, because builds for"
                f" {many(len(times), 'range')} began in the last hour (limit: setting 'shapes.per_hour')"
            )
        elif not _is_busy(planned):
            self._begin(planned, learning, demand.profile, (*times, clock))

    @staticmethod
    def _update_demand(learning: _Learning, now: float) -> None:
        """Update the demand if requests had new shapes, or if a refused range may be tried again."""
        version = learning.traffic.look()
        forgiven = [profile for profile, again in learning.refused.items() if again <= now]
        if version == learning.looked and not forgiven:
            return
        learning.looked = version
        for profile in forgiven:
            del learning.refused[profile]
        wanted = _wanted(learning)
        if wanted is None or wanted in learning.refused:
            learning.demand = None
        else:
            learning.demand = (
                Demand(wanted, now, now) if learning.demand is None else learning.demand.updated(wanted, now)
            )

    def _begin(self, planned: PlannedModel, learning: _Learning, profile: Profile, times: tuple[float, ...]) -> None:
        page = msgspec.structs.replace(self._book.page(learning.model), widened=times)
        self._book.change(learning.model, page)
        learning.target, learning.demand = profile, None
        learning.state = f"engines for {_words(profile)} are being built"
        _LOG.info("model %s: requests need engines for %s", planned.entry.name, _words(profile))
        self._book.aim(learning.model, profile)
        self._replans.append(Replan(planned.entry.name))

    def _check_target(self, planned: PlannedModel, learning: _Learning, target: Profile, now: float) -> None:
        """Store the target range once an engine for this range is ready. Drop the range if no engine for it can be
        made."""
        engines = _of(planned, target)
        if any(engine.state is EngineState.READY for engine in engines):
            page = msgspec.structs.replace(
                self._book.page(learning.model), configured=configured_range(learning.model), learnt=str(target)
            )
            self._book.change(learning.model, page)
            self._save(learning)
            self._book.unaim(learning.model)
            learning.target, learning.state, learning.looked = None, "", -1
        elif all(engine.state in _OVER for engine in engines):
            why = engines[0].reason if engines else "no backend of this model builds engines for a range of shapes"
            _LOG.warning("model %s: no engine for %s can be made: %s", planned.entry.name, _words(target), why)
            learning.refused[target] = now + _FORGIVE_SECONDS
            learning.target, learning.looked = None, -1
            learning.state = f"no engine for {_words(target)} can be made: {why}"
            self._book.unaim(learning.model)
            self._replans.append(Replan(planned.entry.name))

    # -- observed shapes --------------------------------------------------------------------------------------------

    def _note(self, learning: _Learning, now: float) -> None:
        if now - learning.written < _WRITE_SECONDS:
            return
        learning.written = now
        if self._take(learning):
            self._save(learning)

    def _take(self, learning: _Learning) -> bool:
        """Copy newly observed shapes into the shape book, which stores them. Return whether there were any."""
        seen = learning.traffic.seen()
        if seen.requests == learning.noted:
            return False
        learning.noted = seen.requests
        self._book.change(learning.model, msgspec.structs.replace(self._book.page(learning.model), seen=seen))
        return True

    def _save(self, learning: _Learning) -> None:
        self._tasks.start(asyncio.to_thread(self._book.write, learning.model))


def _wanted(learning: _Learning) -> Profile | None:
    """Return the range that requests need; None if the current range is wide enough."""
    model = learning.model
    try:
        profile = model.profile
    except Unsuitable:
        profile = Profile()
    signature, most = model.inspection.signature, model.shape_policy.most_bytes
    # A model that takes pictures stays optimised for their shape, even if most requests have other shapes.
    wider = widened(profile, signature, learning.traffic.seen(), most, usual=model.picture is None)
    return None if wider == profile else wider


def _of(planned: PlannedModel, profile: Profile) -> list[PlannedEngine]:
    text = str(profile)
    return [engine for engine in planned.engines.values() if engine.recipe.profile == text]


def _is_busy(planned: PlannedModel) -> bool:
    """Whether an engine for a range is being made. A new range would make this engine obsolete."""
    return any(engine.recipe.profile and engine.state in MAKING for engine in planned.engines.values())


def _words(profile: Profile) -> str:
    return ", ".join(f"{each.name} {_shape(each.minimum)} to {_shape(each.maximum)}" for each in profile.ranges)


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


_HOUR = 3600.0
_PATIENCE = 10  # a demand that still grows is due after this many times the quiet time
_MOST_DIMENSIONS = 8  # of a tensor in TensorRT


def widened(now: Profile, signature: Signature, seen: Seen, most_bytes: int, *, usual: bool) -> Profile:
    """Return the range `now`, widened to the observed shapes. Return `now` unchanged if it contains these shapes, or if
    it cannot be widened.

    The kinds of requests (one shape for each input) are added in order of frequency. A kind is left out if the inputs
    of the wider range could take more than `most_bytes`, or if a tensor has no elements. `now` is empty if no range is
    set yet. `usual`: optimise for the shapes of the most frequent kind; otherwise the optimum stays.
    """
    specs = [spec for spec in signature.inputs if not spec.is_static]
    if not specs or any(spec.shape == ANY_SHAPE or len(spec.shape) > _MOST_DIMENSIONS for spec in specs):
        return now
    found, before = now, now
    for kind in seen.kinds:
        if all(spec.name in kind.shapes and spec.admits(kind.shapes[spec.name]) for spec in specs):
            found = _with(found, signature, specs, kind, most_bytes)
    if found == before:
        return now
    best = next((kind for kind in seen.kinds if _takes(found, specs, kind)), None) if usual or not now.ranges else None
    return found if best is None else Profile(tuple(_fast_at(each, best.shapes[each.name]) for each in found.ranges))


def _with(now: Profile, signature: Signature, specs: list[TensorSpec], kind: Kind, most_bytes: int) -> Profile:
    if _takes(now, specs, kind) or any(0 in kind.shapes[spec.name] for spec in specs):
        return now
    wider = Profile(tuple(_extended(now.range(spec.name), spec, kind.shapes[spec.name]) for spec in specs))
    return now if wider.problem() or largest_bytes(wider, signature) > most_bytes else wider


def _takes(profile: Profile, specs: list[TensorSpec], kind: Kind) -> bool:
    ranges = {spec.name: profile.range(spec.name) for spec in specs}
    return all(each is not None and each.contains(kind.shapes.get(name, ())) for name, each in ranges.items())


def _extended(now: Range | None, spec: TensorSpec, shape: Shape) -> Range:
    fixed = [isinstance(dim, int) for dim in spec.shape]
    low = tuple(n if still else down(n) for n, still in zip(shape, fixed, strict=True))
    high = tuple(n if still else up(n) for n, still in zip(shape, fixed, strict=True))
    if now is None:
        return Range(spec.name, low, shape, high)
    # A bound is rounded only if it has to grow, so a configured bound stays exact.
    least = tuple(n if s >= n else r for n, s, r in zip(now.minimum, shape, low, strict=True))
    most = tuple(n if s <= n else r for n, s, r in zip(now.maximum, shape, high, strict=True))
    return Range(spec.name, least, now.optimum, most)


def _fast_at(range_: Range, shape: Shape) -> Range:
    return msgspec.structs.replace(range_, optimum=shape)


def up(n: int) -> int:
    """Return a size rounded up, as the module docstring describes."""
    step = _step(n)
    return 1 << (n - 1).bit_length() if 0 < n < 16 else -(-n // step) * step


def down(n: int) -> int:
    """Return a size rounded down, as the module docstring describes."""
    return 1 << (n.bit_length() - 1) if 0 < n < 16 else n // _step(n) * _step(n)


def _step(n: int) -> int:
    """Return a quarter of the largest power of two that does not exceed a size; at least 1."""
    return 1 << max(0, n.bit_length() - 3)


class Demand(msgspec.Struct, frozen=True):
    """A wider range that requests need. `since` is when a wider range was first needed, `settled` is when this range
    last changed; both are monotonic seconds."""

    profile: Profile
    since: float
    settled: float

    def updated(self, wanted: Profile, now: float) -> Demand:
        """Return the demand for the range that requests need now."""
        return self if wanted == self.profile else Demand(wanted, self.since, now)

    def is_due(self, now: float, quiet: float) -> bool:
        """Whether the demand has not grown for `quiet` seconds, or has grown for too long."""
        return now - self.settled >= quiet or now - self.since >= _PATIENCE * quiet


def recent(times: tuple[float, ...], now: float) -> tuple[float, ...]:
    """Return the times within the last hour. Times in the future are dropped: the clock was set back."""
    return tuple(time for time in times if now - _HOUR < time <= now)
