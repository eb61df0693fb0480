"""Which piece of work goes next for one model. Pure: no clock, no IO, nothing runs here.

Work waits in lanes. A camera's lane holds one frame: a newer one overtakes it. Tensor requests share a bounded
first-in-first-out lane. Lanes with work take turns, so that neither a fast camera nor a flood of requests starves
another. Work whose client has gone is dropped when its turn comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from typing import Generic, Protocol, TypeVar

from edged.errors import Overloaded


class Wanted(Protocol):
    """Work that may have lost its client."""

    @property
    def is_wanted(self) -> bool: ...


Work = TypeVar("Work", bound=Wanted)


class Schedule(Generic[Work]):
    """Waiting work of one model."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._newest: dict[Hashable, Work] = {}  # one waiting frame per camera
        self._requests: deque[Work] = deque()
        self._again: deque[Work] = deque()  # lost with its host once; goes first
        self._turns: deque[Hashable | None] = deque()  # lanes with work, next first; None is the requests' lane

    def __len__(self) -> int:
        return len(self._newest) + len(self._requests) + len(self._again)

    def offer(self, lane: Hashable, work: Work) -> Work | None:
        """Puts a frame into its camera's lane; returns the frame it overtook, if one was waiting."""
        overtaken = self._newest.get(lane)
        self._newest[lane] = work
        if overtaken is None:
            self._turns.append(lane)
        return overtaken

    def push(self, work: Work) -> None:
        """Queues a request; Overloaded when too many wait."""
        if len(self._requests) >= self._limit:
            self._forget_unwanted()
        if len(self._requests) >= self._limit:
            raise Overloaded(f"{self._limit} requests are waiting for this model already; send fewer at a time")
        if not self._requests:
            self._turns.append(None)
        self._requests.append(work)

    def retry(self, work: Work) -> None:
        """Puts work that was lost with its host before everything else."""
        self._again.append(work)

    def choose(self) -> Work | None:
        """The next piece of work, or None when nothing wanted waits."""
        while self._again:
            work = self._again.popleft()
            if work.is_wanted:
                return work
        while self._turns:
            lane = self._turns.popleft()
            taken = self._take_request() if lane is None else self._newest.pop(lane)
            if taken.is_wanted:
                return taken
        return None

    def withdraw(self, lane: Hashable) -> Work | None:
        """Takes back the frame that waits in a lane, if one does."""
        if lane not in self._newest:
            return None
        self._turns.remove(lane)
        return self._newest.pop(lane)

    def drain(self) -> Iterator[Work]:
        """Empties the schedule."""
        while (work := self.choose()) is not None:
            yield work

    def _forget_unwanted(self) -> None:
        wanted = deque(work for work in self._requests if work.is_wanted)
        if not wanted and self._requests:
            self._turns.remove(None)
        self._requests = wanted

    def _take_request(self) -> Work:
        work = self._requests.popleft()
        if self._requests:
            self._turns.append(None)
        return work
