"""Which work goes next for one model. Pure: no clock of its own, no IO, nothing runs here.

Work waits in lanes. A camera's lane holds its newest frame, or every frame in order; requests share one bounded lane.
Among the lanes of the highest priority that have work, the one goes next that had least of the engine in proportion to
its weight (stride scheduling: a lane's `turn` grows by 1/weight with each piece that it was given). A lane that had
nothing to do gains nothing by it. Frames of several lanes can go together, as one batch.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from edged.errors import Overloaded

# Lanes without work are remembered while what they had counts against them, as many as this and up to twice as many.
_REMEMBERED = 256


class Waiting(Protocol):
    """Work that may have lost its client, or its worth."""

    @property
    def is_wanted(self) -> bool: ...

    @property
    def expires(self) -> float:
        """The time after which it is not worth doing; infinity for never."""

    @property
    def received(self) -> float:
        """Since when it waits."""

    @property
    def is_frame(self) -> bool:
        """Whether it is a camera's."""

    @property
    def group(self) -> Hashable | None:
        """It may go together with others of its group; None goes alone."""

    @property
    def rows(self) -> int:
        """How much of a batch it takes."""


Work = TypeVar("Work", bound=Waiting)


class Share(msgspec.Struct, frozen=True):
    """A lane's part of the engine: in proportion to `weight` among those of its `priority`; higher ones go first."""

    weight: float = 1.0
    priority: int = 0


class Batching(msgspec.Struct, frozen=True):
    """How many rows may go together, and how many seconds the first may wait for the others; a frame is one row.

    As soon as there are as many as one of the `preferred` numbers, so many go.
    """

    limit: int = 1
    wait: float = 0.0
    preferred: tuple[int, ...] = ()

    def goal(self, available: int) -> int:
        """How many of the available rows go now; 0 where it is worth waiting for more."""
        reached = [size for size in self.preferred if size <= min(available, self.limit)]
        if reached:
            return max(reached)
        return self.limit if available >= self.limit else 0


class Choice(msgspec.Struct, Generic[Work], frozen=True):
    """What goes now, together; what is too late for that; and when to ask again if nothing else happens before."""

    work: tuple[Work, ...] = ()
    late: tuple[Work, ...] = ()
    again_at: float = math.inf


_EQUAL = Share()
_ALONE = Batching()


class _Lane(Generic[Work]):
    __slots__ = ("key", "number", "share", "turn", "work")

    def __init__(self, key: Hashable, share: Share) -> None:
        self.key, self.share = key, share
        self.work: deque[Work] = deque()
        self.turn = 0.0
        self.number = 0  # since it last began to wait: the longest wait decides between equals

    @property
    def order(self) -> tuple[int, float, int]:
        return -self.share.priority, self.turn, self.number


class Schedule(Generic[Work]):
    """Waiting work of one model. Times are any clock's, in seconds, as long as it is the same for all."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lanes: dict[Hashable, _Lane[Work]] = {}  # with work
        self._idle: dict[Hashable, _Lane[Work]] = {}  # without, but ahead of the others
        self._again: deque[Work] = deque()  # lost with its host once; goes first, and alone
        self._reached: dict[int, float] = {}  # how far the turns of each priority are
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return sum(len(lane.work) for lane in self._lanes.values()) + len(self._again)

    def __bool__(self) -> bool:
        """Whether anything waits; asked after every request, so it counts nothing."""
        return bool(self._lanes or self._again)

    def offer(self, lane: Hashable, work: Work, share: Share = _EQUAL) -> Work | None:
        """Puts a camera's newest frame into its lane; returns the frame it overtook, if one was waiting."""
        waiting = self._lanes.get(lane)
        if waiting is None:
            self._append(lane, work, share)
            return None
        self._adopt(waiting, share)
        overtaken = waiting.work.pop()
        waiting.work.append(work)
        return overtaken

    def queue(self, lane: Hashable, work: Work, share: Share = _EQUAL) -> None:
        """Puts a frame behind those of its camera. Whoever calls it bounds how many."""
        self._append(lane, work, share)

    def push(self, work: Work, priority: int = 0, limit: int = 0) -> None:
        """Queues a request behind those of its priority; Overloaded when too many of them wait."""
        most = limit or self._limit
        key = ("requests", priority)
        requests = self._lanes.get(key)
        if requests is not None and len(requests.work) >= most:
            requests.work = deque(each for each in requests.work if each.is_wanted)
            if len(requests.work) >= most:
                raise Overloaded(f"{most} requests are waiting for this model already; send fewer at a time")
        self._append(key, work, Share(priority=priority))

    @property
    def first_again(self) -> Work | None:
        """What goes before everything else, if there is any."""
        return self._again[0] if self._again else None

    def retry(self, work: Work) -> None:
        """Puts work that was lost with its host before everything else."""
        self._again.append(work)

    def choose(self, now: float = 0.0, frames: Batching = _ALONE, requests: Batching = _ALONE) -> Choice[Work]:
        """The work whose turn it is; without any when nothing waits, or when it is worth waiting for more.

        What nobody wants any more is dropped when its turn comes.
        """
        late: list[Work] = []
        _sift(self._again, now, late)
        if self._again:
            return Choice((self._again.popleft(),), tuple(late))
        again_at = math.inf
        patient: list[Hashable] = []  # groups that wait for more; the others need not wait with them
        while (first := self._next(now, late, besides=patient)) is not None:
            head = first.work[0]
            batching = frames if head.is_frame else requests
            if head.group is None or head.rows >= batching.limit:
                return Choice((self._take(first),), tuple(late))
            available, due = self._available(head.group, batching.wait)
            goal = batching.goal(available)
            if goal or now >= due:
                return Choice(self._together(head.group, goal or batching.limit, now, late), tuple(late))
            again_at = min(again_at, due)
            patient.append(head.group)
        return Choice(late=tuple(late), again_at=again_at)

    def withdraw(self, lane: Hashable, work: Work) -> bool:
        """Takes back work that waits in a lane; whether it still did."""
        waiting = self._lanes.get(lane)
        if waiting is None or work not in waiting.work:
            return False
        waiting.work.remove(work)
        if not waiting.work:
            self._rest(waiting)
        return True

    def drain(self) -> Iterator[Work]:
        """Empties the schedule; what nobody wants any more is left out."""
        lanes = [self._again, *(lane.work for lane in self._lanes.values())]
        self._again = deque()
        self._lanes.clear()
        return (work for lane in lanes for work in lane if work.is_wanted)

    # -- lanes ------------------------------------------------------------------------------------------------------

    def _append(self, key: Hashable, work: Work, share: Share) -> None:
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._idle.pop(key) if key in self._idle else _Lane(key, share)
            self._lanes[key] = lane
            lane.turn = max(lane.turn, self._reached.get(lane.share.priority, 0.0))
            lane.number = next(self._numbers)
        self._adopt(lane, share)
        lane.work.append(work)

    def _adopt(self, lane: _Lane[Work], share: Share) -> None:
        """Turns are counted in each priority for itself: a lane that changes takes along only how far ahead it was."""
        if share.priority != lane.share.priority:
            ahead = lane.turn - self._reached.get(lane.share.priority, 0.0)
            lane.turn = max(0.0, ahead) + self._reached.get(share.priority, 0.0)
        lane.share = share

    def _rest(self, lane: _Lane[Work]) -> None:
        """A lane has nothing to do: it is remembered as long as it has had more than its turn."""
        del self._lanes[lane.key]
        self._idle[lane.key] = lane
        if len(self._idle) > 2 * _REMEMBERED:
            ahead = [each for each in self._idle.values() if each.turn > self._reached.get(each.share.priority, 0.0)]
            self._idle = {each.key: each for each in ahead[-_REMEMBERED:]}

    def _next(
        self, now: float, late: list[Work], group: Hashable | None = None, besides: Sequence[Hashable] = ()
    ) -> _Lane[Work] | None:
        """The lane whose turn it is, with first work that is wanted and in time; what is too late goes to `late`.

        Of one group alone, if any is named, and of none of those `besides`.
        """
        while True:
            lanes: Iterable[_Lane[Work]] = self._lanes.values()
            if group is not None:
                lanes = [lane for lane in lanes if lane.work[0].group == group]
            elif besides:
                lanes = [lane for lane in lanes if lane.work[0].group not in besides]
            best = min(lanes, key=_ORDER, default=None)
            if best is None or not _sift(best.work, now, late):
                return best
            if not best.work:
                self._rest(best)

    def _take(self, lane: _Lane[Work]) -> Work:
        share = lane.share
        self._reached[share.priority] = max(self._reached.get(share.priority, 0.0), lane.turn)
        lane.turn += 1 / share.weight
        lane.number = next(self._numbers)
        work = lane.work.popleft()
        if not lane.work:
            self._rest(lane)
        return work

    def _together(self, group: Hashable, goal: int, now: float, late: list[Work]) -> tuple[Work, ...]:
        """Work of a group in the order of its turns, as much as the goal has room for; the first always."""
        chosen: list[Work] = []
        rows = 0
        while rows < goal and (lane := self._next(now, late, group)) is not None:
            rows += lane.work[0].rows
            if chosen and rows > goal:
                break
            chosen.append(self._take(lane))
        return tuple(chosen)

    def _available(self, group: Hashable, wait: float) -> tuple[int, float]:
        """The rows of a group that could go now, and until when they may wait for more: not at all where one of them
        would be too late by then."""
        rows, since, expires = 0, math.inf, math.inf
        for lane in self._lanes.values():
            for work in lane.work:
                if work.group != group:
                    break  # those behind it have to wait for it
                if work.is_wanted:
                    rows, since, expires = rows + work.rows, min(since, work.received), min(expires, work.expires)
        due = since + wait
        return rows, due if due < expires else -math.inf


_ORDER = operator.attrgetter("order")


def _sift(line: deque[Work], now: float, late: list[Work]) -> bool:
    """Drops from the head of a line what is not worth doing any more; whether there was any."""
    before = len(line)
    while line and not (line[0].is_wanted and line[0].expires > now):
        work = line.popleft()
        if work.is_wanted:
            late.append(work)
    return len(line) < before
