"""Has engines made for the shapes that requests have, where a model's settings want it: `shapes.policy = learn`.

Level-triggered. A wider range is aimed at once no request has called for a still wider one for a while, and no engine
of the range before is on its way. What serves, serves on; engines of the new range are built, verified in its shapes
and timed like any others. The range is proved, and kept on disk, when one of them is ready. Where none can be made it
is given up, and the engines of the range before, which the store still has, go on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from edged.backends.contract import Signature
from edged.backends.profile import Profile, Range, Shape
from edged.engines.desired import RANGED
from edged.engines.plan import PlannedEngine, PlannedModel
from edged.engines.shape_book import ShapeBook, largest_bytes, told
from edged.engines.states import MAKING, EngineState
from edged.errors import Unsuitable
from edged.models.model import Model
from edged.serving.extents import Kind, Seen, Traffic
from edged.tasks import TaskGroup
from edged.tensors import ANY_SHAPE, TensorSpec

_LOG = logging.getLogger("edged.engines")
_WRITE_SECONDS = 60.0  # between two writings of what came
_FORGIVE_SECONDS = 3600.0  # until a range that no engine could be made of is aimed at again
_OVER = (EngineState.FAILED, EngineState.REJECTED, EngineState.UNSUITABLE, EngineState.QUARANTINED)


@dataclass
class _Pupil:
    """What is known of one model, of one content."""

    model: Model
    traffic: Traffic
    demand: Demand | None = None
    aimed: Profile | None = None  # and not proved yet
    refused: dict[Profile, float] = field(default_factory=dict)  # aimed at in vain, and when it may be tried again
    looked: int = -1  # version of the traffic that the demand follows from
    written: float = 0.0
    noted: int = 0  # requests that were written
    state: str = ""


class Learning:
    """`replan` plans a model anew, with the range that the book has for it by then."""

    def __init__(self, book: ShapeBook, replan: Callable[[PlannedModel], None], tasks: TaskGroup) -> None:
        self._book, self._replan, self._tasks = book, replan, tasks
        self._pupils: dict[str, _Pupil] = {}

    def look(self, models: Iterable[PlannedModel], now: float) -> None:
        """`now` in monotonic seconds. Before what is to be made is decided."""
        known, self._pupils = self._pupils, {}
        for planned in models:
            if planned.model is None or planned.model.is_static or planned.is_being_read:
                if planned.entry.name in known:
                    self._pupils[planned.entry.name] = known[planned.entry.name]
                continue
            pupil = self._pupil(planned, planned.model, known.get(planned.entry.name))
            self._pupils[planned.entry.name] = pupil
            if planned.model.shape_policy.kind == "learn":
                self._teach(planned, pupil, now)
            self._note(pupil, now)

    def state(self, name: str) -> str:
        """A line on what is being learnt of a model's shapes; empty where nothing is."""
        pupil = self._pupils.get(name)
        return pupil.state if pupil is not None else ""

    async def stop(self) -> None:
        """Writes what came since it was written last."""
        for pupil in self._pupils.values():
            if self._take(pupil):
                await asyncio.to_thread(self._book.write, pupil.model)

    def _pupil(self, planned: PlannedModel, model: Model, known: _Pupil | None) -> _Pupil:
        if known is not None and known.model.digest == model.digest and known.model.entry == model.entry:
            known.model = model
            return known
        if known is not None:
            self._book.unaim(known.model)
        seen = self._book.page(model).seen
        planned.traffic = Traffic(seen)
        return _Pupil(model, planned.traffic, noted=seen.requests)

    # -- what is aimed at -------------------------------------------------------------------------------------------

    def _teach(self, planned: PlannedModel, pupil: _Pupil, now: float) -> None:
        if pupil.aimed is not None:
            self._follow(planned, pupil, pupil.aimed, now)
            return
        if not any(engine.recipe.backend in RANGED for engine in planned.engines.values()):
            pupil.state = "no backend here builds for a range of shapes, so that there is nothing to learn"
            return
        self._want(pupil, now)
        demand, policy = pupil.demand, pupil.model.shape_policy
        if demand is None:
            pupil.state = "" if not pupil.refused else pupil.state
            return
        page, clock = self._book.page(pupil.model), time.time()
        times = recent(page.widened, clock)
        if not demand.is_due(now, policy.quiet_s):
            pupil.state = f"requests call for engines of {_words(demand.profile)}; they are built when no others come"
        elif len(times) >= policy.per_hour:
            pupil.state = f"requests call for engines of {_words(demand.profile)}; {len(times)} were begun in this hour"
        elif not _is_busy(planned):
            self._begin(planned, pupil, demand.profile, (*times, clock))

    @staticmethod
    def _want(pupil: _Pupil, now: float) -> None:
        """What requests call for, looked at again where they had shapes that none had before."""
        version = pupil.traffic.look()
        forgiven = [profile for profile, again in pupil.refused.items() if again <= now]
        if version == pupil.looked and not forgiven:
            return
        pupil.looked = version
        for profile in forgiven:
            del pupil.refused[profile]
        wanted = _wanted(pupil)
        if wanted is None or wanted in pupil.refused:
            pupil.demand = None
        else:
            pupil.demand = Demand(wanted, now, now) if pupil.demand is None else pupil.demand.updated(wanted, now)

    def _begin(self, planned: PlannedModel, pupil: _Pupil, profile: Profile, times: tuple[float, ...]) -> None:
        page = msgspec.structs.replace(self._book.page(pupil.model), widened=times)
        self._book.change(pupil.model, page)
        pupil.aimed, pupil.demand = profile, None
        pupil.state = f"engines of {_words(profile)} are being built"
        _LOG.info("model %s: its requests call for engines of %s", planned.entry.name, _words(profile))
        self._book.aim(pupil.model, profile)
        self._replan(planned)

    def _follow(self, planned: PlannedModel, pupil: _Pupil, aimed: Profile, now: float) -> None:
        """Whether what was aimed at is proved, or can never be."""
        engines = _of(planned, aimed)
        if any(engine.state is EngineState.READY for engine in engines):
            page = msgspec.structs.replace(self._book.page(pupil.model), told=told(pupil.model), learnt=str(aimed))
            self._book.change(pupil.model, page)
            self._save(pupil)
            self._book.unaim(pupil.model)
            pupil.aimed, pupil.state, pupil.looked = None, "", -1
        elif all(engine.state in _OVER for engine in engines):
            why = engines[0].reason if engines else "no backend here builds for a range of shapes any more"
            _LOG.warning("model %s: no engine of %s can be made: %s", planned.entry.name, _words(aimed), why)
            pupil.refused[aimed] = now + _FORGIVE_SECONDS
            pupil.aimed, pupil.looked = None, -1
            pupil.state = f"no engine of {_words(aimed)} can be made: {why}"
            self._book.unaim(pupil.model)
            self._replan(planned)

    # -- what came --------------------------------------------------------------------------------------------------

    def _note(self, pupil: _Pupil, now: float) -> None:
        if now - pupil.written < _WRITE_SECONDS:
            return
        pupil.written = now
        if self._take(pupil):
            self._save(pupil)

    def _take(self, pupil: _Pupil) -> bool:
        """Takes what came into the book; whether there was anything."""
        seen = pupil.traffic.seen()
        if seen.requests == pupil.noted:
            return False
        pupil.noted = seen.requests
        self._book.change(pupil.model, msgspec.structs.replace(self._book.page(pupil.model), seen=seen))
        return True

    def _save(self, pupil: _Pupil) -> None:
        self._tasks.start(asyncio.to_thread(self._book.write, pupil.model))


def _wanted(pupil: _Pupil) -> Profile | None:
    """The range that its requests call for; None where there is nothing to be gained."""
    model = pupil.model
    try:
        profile = model.profile
    except Unsuitable:
        profile = Profile()
    signature, most = model.inspection.signature, model.shape_policy.most_bytes
    # Where pictures come, their shapes are the ones to be fast at, whatever tensors are sent beside them.
    wider = widened(profile, signature, pupil.traffic.seen(), most, usual=model.picture is None)
    return None if wider == profile else wider


def _of(planned: PlannedModel, profile: Profile) -> list[PlannedEngine]:
    text = str(profile)
    return [engine for engine in planned.engines.values() if engine.recipe.profile == text]


def _is_busy(planned: PlannedModel) -> bool:
    """Whether an engine of a range is on its way, which would be made in vain."""
    return any(engine.recipe.profile and engine.state in MAKING for engine in planned.engines.values())


def _words(profile: Profile) -> str:
    return ", ".join(f"{each.name} {_shape(each.minimum)} to {_shape(each.maximum)}" for each in profile.ranges)


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


_HOUR = 3600.0
_PATIENCE = 10  # times the quiet time that is waited for quiet at most
_MOST_DIMENSIONS = 8  # of a tensor in the builders


def widened(now: Profile, signature: Signature, seen: Seen, most_bytes: int, *, usual: bool) -> Profile:
    """The range that takes what came, or `now` itself where that is enough, or more cannot be had.

    The most frequent kinds of requests come first; one whose range would let the inputs take more than `most_bytes` is
    left out, and so is one without elements. `now` is empty where nothing told a range so far. `usual` says whether
    the shapes to be fast at are to be those of the most frequent kind; otherwise they stay.
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
    # Rounded only where the range has to give way: what somebody set stays as it was set.
    least = tuple(n if s >= n else r for n, s, r in zip(now.minimum, shape, low, strict=True))
    most = tuple(n if s <= n else r for n, s, r in zip(now.maximum, shape, high, strict=True))
    return Range(spec.name, least, now.optimum, most)


def _fast_at(range_: Range, shape: Shape) -> Range:
    return msgspec.structs.replace(range_, optimum=shape)


def up(n: int) -> int:
    """The next size to round up to."""
    step = _step(n)
    return 1 << (n - 1).bit_length() if 0 < n < 16 else -(-n // step) * step


def down(n: int) -> int:
    """The next size to round down to."""
    return 1 << (n.bit_length() - 1) if 0 < n < 16 else n // _step(n) * _step(n)


def _step(n: int) -> int:
    """A quarter of the octave that a size lies in."""
    return 1 << max(0, n.bit_length() - 3)


class Demand(msgspec.Struct, frozen=True):
    """A wider range that requests call for: since when, and since when it has been this very one. Seconds."""

    profile: Profile
    since: float
    settled: float

    def updated(self, wanted: Profile, now: float) -> Demand:
        """What is called for now."""
        return self if wanted == self.profile else Demand(wanted, self.since, now)

    def is_due(self, now: float, quiet: float) -> bool:
        """Whether it has not grown for long enough, or for too long not to."""
        return now - self.settled >= quiet or now - self.since >= _PATIENCE * quiet


def recent(times: tuple[float, ...], now: float) -> tuple[float, ...]:
    """Of the times at which ranges were widened, those of the last hour. A clock that was set back forgets."""
    return tuple(time for time in times if now - _HOUR < time <= now)
