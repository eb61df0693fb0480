"""The queue of a language model, which decides which request is answered next. Clients take turns, so that a client
with many requests does not delay the others. Requests of low priority wait until no other request waits."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from edged.errors import DeadlineExceeded, EdgedError, Overloaded
from edged.tasks import at_most


class Waiting:
    """The waiting requests of all clients. Pure: it decides which request is next, and `Turns` starts that request."""

    def __init__(self) -> None:
        self._clients: dict[bool, OrderedDict[str, deque[asyncio.Future[None]]]] = {
            False: OrderedDict(),
            True: OrderedDict(),
        }

    def __len__(self) -> int:
        return sum(len(queue) for clients in self._clients.values() for queue in clients.values())

    def add(self, client: str, turn: asyncio.Future[None], *, is_low: bool) -> None:
        self._clients[is_low].setdefault(client, deque()).append(turn)

    def next(self) -> asyncio.Future[None] | None:
        """Remove and return the next request, or None if no request waits. Return the oldest request of the first
        client in the order, and move this client to the end. Return a request of low priority only if no other request
        waits."""
        for clients in (self._clients[False], self._clients[True]):
            if clients:
                client, queue = next(iter(clients.items()))
                turn = queue.popleft()
                del clients[client]
                if queue:
                    clients[client] = queue
                return turn
        return None

    def discard(self, turn: asyncio.Future[None]) -> None:
        """Remove a request whose caller no longer waits. Do nothing if the request is no longer in the queue."""
        for clients in self._clients.values():
            for client, queue in list(clients.items()):
                if turn in queue:
                    queue.remove(turn)
                    if not queue:
                        del clients[client]

    def all(self) -> list[asyncio.Future[None]]:
        return [turn for clients in self._clients.values() for queue in clients.values() for turn in queue]


class Turns:
    """Limits a model to `most` answers that are generated at once, and to `waiting` requests that wait."""

    def __init__(self, most: int, waiting: int) -> None:
        self.most, self.waiting = most, waiting
        self.running = 0
        self._queue = Waiting()

    @property
    def queued(self) -> int:
        """How many requests wait."""
        return len(self._queue)

    @asynccontextmanager
    async def turn(
        self, client: str, model: str, seconds: float = math.inf, *, is_low: bool = False
    ) -> AsyncGenerator[None, None]:
        """Wait for a turn of `client`, and hold the turn until the context ends. Raises Overloaded if too many requests
        wait, DeadlineExceeded if the turn does not come within `seconds`."""
        if self.running >= self.most or self.queued:
            if self.queued >= self.waiting:
                raise Overloaded(
                    f"the queue of model {model!r} is full: {self.queued} requests wait, the limit of setting"
                    f" 'language.waiting', and {self.running} answers are being generated; try again later"
                )
            turn = asyncio.get_running_loop().create_future()
            self._queue.add(client, turn, is_low=is_low)
            try:
                # A request that ends passes its place on to this request, and counts this request in `running`.
                await at_most(None if math.isinf(seconds) else seconds, turn)
            except asyncio.TimeoutError:
                self._leave(turn)
                raise DeadlineExceeded(
                    f"a request to model {model!r} waited in the queue for {seconds:g} s, the time limit; try again"
                    " later, or raise the model's setting 'limits.seconds'"
                ) from None
            except BaseException:
                self._leave(turn)
                raise
        else:
            self.running += 1
        try:
            yield
        finally:
            self._pass_on()

    def refuse(self, error: EdgedError) -> None:
        """Refuse every request that waits."""
        for turn in self._queue.all():
            if not turn.done():
                turn.set_exception(error)
        self._queue = Waiting()

    def _leave(self, turn: asyncio.Future[None]) -> None:
        """Remove a request from the queue. If its turn came at this moment, pass the turn on."""
        self._queue.discard(turn)
        if turn.done() and not turn.cancelled() and turn.exception() is None:
            self._pass_on()

    def _pass_on(self) -> None:
        self.running -= 1
        while self.running < self.most and (turn := self._queue.next()) is not None:
            if not turn.done():  # its client may have gone
                self.running += 1
                turn.set_result(None)
