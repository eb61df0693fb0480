"""Decides which work of one model runs next. Pure: no clock, no IO.

Each camera has a queue with its newest frame, or with every frame in order. Requests share one bounded queue per
priority. Among the priorities that have work, only the highest is served. Of its queues, the next is the queue that has
used the engine least in proportion to its weight. This is stride scheduling: each frame or request that a queue runs
adds 1/weight to its `turn`. An idle queue gains no credit. Work of several queues can run together, as one batch.
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
from edged.models.triton_config import QueuePolicy

_REMEMBERED = 256  # if twice as many queues are empty, at most this many of them are kept: see `_rest`


class Waiting(Protocol):
    """A frame or a request that waits."""

    @property
    def is_wanted(self) -> bool:
        """Whether the client still waits for the work."""

    @property
    def expires(self) -> float:
        """The time after which the work is too late; infinity means never."""

    @property
    def received(self) -> float:
        """The time at which the work was received."""

    @property
    def is_frame(self) -> bool:
        """Whether the work is a frame of a camera."""

    @property
    def group(self) -> Hashable | None:
        """The group: work of equal groups may run together, and work of group None runs alone."""

    @property
    def rows(self) -> int:
        """The number of rows that the work adds to a batch."""


Work = TypeVar("Work", bound=Waiting)


class Share(msgspec.Struct, frozen=True):
    """A queue's share of the engine. Queues of equal `priority` share it in proportion to `weight`. Higher priorities
    go first."""

    weight: float = 1.0
    priority: int = 0


class Batching(msgspec.Struct, frozen=True):
    """How batches form: `limit` is the maximum number of rows, `wait` the seconds that the first row may wait.

    A frame is one row. A batch starts as soon as it has one of the `preferred` numbers of rows.
    """

    limit: int = 1
    wait: float = 0.0
    preferred: tuple[int, ...] = ()

    def goal(self, available: int) -> int:
        """Return how many of the available rows to run now; 0 to wait for more."""
        reached = [size for size in self.preferred if size <= min(available, self.limit)]
        if reached:
            return max(reached)
        return self.limit if available >= self.limit else 0


class Choice(msgspec.Struct, Generic[Work], frozen=True):
    """The work to run now as one batch, and the work that is too late. `again_at` is the time to choose again if no
    work arrives earlier."""

    work: tuple[Work, ...] = ()
    late: tuple[Work, ...] = ()
    again_at: float = math.inf


_EQUAL = Share()
_ALONE = Batching()


class _CameraQueue(Generic[Work]):
    __slots__ = ("key", "number", "share", "turn", "work")

    def __init__(self, key: Hashable, share: Share) -> None:
        self.key, self.share = key, share
        self.work: deque[Work] = deque()
        self.turn = 0.0
        self.number = 0  # increases with each turn: among equals, the queue that has waited longest goes first

    @property
    def order(self) -> tuple[int, float, int]:
        return -self.share.priority, self.turn, self.number


class Schedule(Generic[Work]):
    """The waiting work of one model. Times are seconds of any one clock."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._queues: dict[Hashable, _CameraQueue[Work]] = {}  # with work
        self._idle: dict[Hashable, _CameraQueue[Work]] = {}  # without work; kept because each keeps its turn
        self._again: deque[Work] = deque()  # to retry: each runs before all other work, and alone
        self._reached: dict[int, float] = {}  # the highest turn taken so far, by priority
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return sum(len(queue.work) for queue in self._queues.values()) + len(self._again)

    def __bool__(self) -> bool:
        """Whether work waits. This runs after every request, so it does not compute `len`."""
        return bool(self._queues or self._again)

    @property
    def queues(self) -> int:
        """The number of queues with work plus the work to retry: a lower bound of `len` that is cheap to compute."""
        return len(self._queues) + len(self._again)

    def offer(self, camera: Hashable, work: Work, share: Share = _EQUAL) -> Work | None:
        """Put a camera's newest frame in its queue. Return the waiting frame that it replaced, or None."""
        waiting = self._queues.get(camera)
        if waiting is None:
            self._append(camera, work, share)
            return None
        self._adopt(waiting, share)
        overtaken = waiting.work.pop()
        waiting.work.append(work)
        return overtaken

    def queue(self, camera: Hashable, work: Work, share: Share = _EQUAL) -> None:
        """Queue a frame behind the camera's waiting frames. The caller limits their number."""
        self._append(camera, work, share)

    def push(self, work: Work, priority: int = 0, limit: int = 0) -> None:
        """Queue a request behind the waiting requests of its priority. Raises Overloaded if `limit` requests of this
        priority already wait (0: the schedule's own limit)."""
        most = limit or self._limit
        key = ("requests", priority)
        requests = self._queues.get(key)
        if requests is not None and len(requests.work) >= most:
            requests.work = deque(each for each in requests.work if each.is_wanted)
            if len(requests.work) >= most:
                raise Overloaded(f"{most} requests already wait for this model; send fewer at a time")
        self._append(key, work, Share(priority=priority))

    @property
    def first_again(self) -> Work | None:
        """The work that is retried next; None if there is no work to retry."""
        return self._again[0] if self._again else None

    def retry(self, work: Work) -> None:
        """Queue work ahead of all other work: its batch failed, its host was lost, or it did not fit in memory."""
        self._again.append(work)

    def choose(self, now: float = 0.0, frames: Batching = _ALONE, requests: Batching = _ALONE) -> Choice[Work]:
        """Choose the work to run next. The choice has no work if none waits, or if a batch should wait for more.

        Cancelled work is dropped when its turn comes.
        """
        late: list[Work] = []
        _sift(self._again, now, late)
        if self._again:
            return Choice((self._again.popleft(),), tuple(late))
        again_at = math.inf
        patient: list[Hashable] = []  # groups that wait for more work
        while (first := self._next(now, late, excluded=patient)) is not None:
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

    def withdraw(self, camera: Hashable, work: Work) -> bool:
        """Remove work from its queue; return whether it was still waiting."""
        waiting = self._queues.get(camera)
        if waiting is None or work not in waiting.work:
            return False
        waiting.work.remove(work)
        if not waiting.work:
            self._rest(waiting)
        return True

    def drain(self) -> Iterator[Work]:
        """Empty the schedule; return the work that is still wanted."""
        queues = [self._again, *(queue.work for queue in self._queues.values())]
        self._again = deque()
        self._queues.clear()
        return (work for queue in queues for work in queue if work.is_wanted)

    # -- queues ------------------------------------------------------------------------------------------------------

    def _append(self, key: Hashable, work: Work, share: Share) -> None:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._idle.pop(key) if key in self._idle else _CameraQueue(key, share)
            self._queues[key] = queue
            queue.turn = max(queue.turn, self._reached.get(queue.share.priority, 0.0))
            queue.number = next(self._numbers)
        self._adopt(queue, share)
        queue.work.append(work)

    def _adopt(self, queue: _CameraQueue[Work], share: Share) -> None:
        """Set the share of a queue. Each priority counts turns separately, so the turn of a queue changes with the
        queue's priority. The queue stays as far ahead of the highest turn taken in its priority as it was before."""
        if share.priority != queue.share.priority:
            ahead = queue.turn - self._reached.get(queue.share.priority, 0.0)
            queue.turn = max(0.0, ahead) + self._reached.get(share.priority, 0.0)
        queue.share = share

    def _rest(self, queue: _CameraQueue[Work]) -> None:
        """Move an empty queue to the idle queues. If there are too many idle queues, keep only queues that have had
        more than their share. Of these, keep the queues that became idle last."""
        del self._queues[queue.key]
        self._idle[queue.key] = queue
        if len(self._idle) > 2 * _REMEMBERED:
            ahead = [each for each in self._idle.values() if each.turn > self._reached.get(each.share.priority, 0.0)]
            self._idle = {each.key: each for each in ahead[-_REMEMBERED:]}

    def _next(
        self, now: float, late: list[Work], group: Hashable | None = None, excluded: Sequence[Hashable] = ()
    ) -> _CameraQueue[Work] | None:
        """Return the queue whose turn it is, or None if all queues are empty. The first work of the queue is wanted and
        in time. Late work is added to `late`.

        If `group` is given, only queues of that group are considered, otherwise all except those of `excluded` groups.
        """
        while True:
            queues: Iterable[_CameraQueue[Work]] = self._queues.values()
            if group is not None:
                queues = [queue for queue in queues if queue.work[0].group == group]
            elif excluded:
                queues = [queue for queue in queues if queue.work[0].group not in excluded]
            best = min(queues, key=_ORDER, default=None)
            if best is None or not _sift(best.work, now, late):
                return best
            if not best.work:
                self._rest(best)

    def _take(self, queue: _CameraQueue[Work]) -> Work:
        share = queue.share
        self._reached[share.priority] = max(self._reached.get(share.priority, 0.0), queue.turn)
        queue.turn += 1 / share.weight
        queue.number = next(self._numbers)
        work = queue.work.popleft()
        if not queue.work:
            self._rest(queue)
        return work

    def _together(self, group: Hashable, goal: int, now: float, late: list[Work]) -> tuple[Work, ...]:
        """Take work of a group, in the order of the queues, until `goal` rows are reached; take at least one frame or
        request."""
        chosen: list[Work] = []
        rows = 0
        while rows < goal and (queue := self._next(now, late, group)) is not None:
            rows += queue.work[0].rows
            if chosen and rows > goal:
                break
            chosen.append(self._take(queue))
        return tuple(chosen)

    def _available(self, group: Hashable, wait: float) -> tuple[int, float]:
        """Return how many rows of a group could run now, and the time until which these rows may wait for more. That
        time is -infinity if some of the work would expire by then."""
        rows, since, expires = 0, math.inf, math.inf
        for queue in self._queues.values():
            for work in queue.work:
                if work.group != group:
                    break  # later work in this queue must wait for this one
                if work.is_wanted:
                    rows, since, expires = rows + work.rows, min(since, work.received), min(expires, work.expires)
        due = since + wait
        return rows, due if due < expires else -math.inf


_ORDER = operator.attrgetter("order")


def _sift(line: deque[Work], now: float, late: list[Work]) -> bool:
    """Drop late and cancelled work from the head of a queue; return whether any was dropped."""
    before = len(line)
    while line and not (line[0].is_wanted and line[0].expires > now):
        work = line.popleft()
        if work.is_wanted:
            late.append(work)
    return len(line) < before


class TensorBatching(msgspec.Struct, frozen=True):
    """How a model's tensor requests are batched, and how they wait.

    Priority levels are 1 (first) to `levels`. If `levels` is 0, there is a single level. A request without a level gets
    `default_level`. `policies` maps levels to their policies. All other levels have `policy`.
    """

    batching: Batching = Batching()
    policy: QueuePolicy = QueuePolicy()
    levels: int = 0
    default_level: int = 0
    policies: dict[int, QueuePolicy] = {}

    def level(self, wanted: int) -> int:
        """Return the level that a request asks for, or the default level if the model has no such level."""
        return wanted if 1 <= wanted <= self.levels else self.default_level

    def of(self, level: int) -> QueuePolicy:
        return self.policies.get(level, self.policy)
