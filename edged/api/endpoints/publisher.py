"""Results and events for whoever listens: a PUB socket over which `results/MODEL/CAMERA` and `events/KIND` are told.

What nobody asked for is not even put together. Whoever reads too slowly misses some; nobody waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import msgspec
import zmq

from edged import tasks
from edged.api.endpoints.result_json import Fields, encode
from edged.api.endpoints.zmq_socket import BoundSocket
from edged.events import Event, EventLog

_WAITING = 256  # messages in ZeroMQ's queue to each subscriber
_LONGEST_TOPIC = 1024
_MOST_TOPICS = 4096


class Publisher:
    """Publishes from `start` until `stop`; before and after, nobody listens."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._socket: BoundSocket | None = None
        self._topics: set[bytes] = set()
        self._teller: asyncio.Task[None] | None = None

    def start(self, address: str) -> str:
        """Listens; where. ConfigError where that is impossible."""
        self._socket = BoundSocket(
            zmq.XPUB, address, "[zmq] publish", self._received, hwm=_WAITING, max_message=_LONGEST_TOPIC
        )
        self._teller = tasks.keep("publisher of events", self._tell)
        return self._socket.address

    async def stop(self) -> None:
        if self._teller is not None:
            self._teller.cancel()
            await asyncio.gather(self._teller, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._topics.clear()

    def wants(self, topic: str) -> bool:
        """Whether anybody listens to it."""
        if not self._topics:
            return False
        name = topic.encode()
        return len(self._topics) >= _MOST_TOPICS or any(name.startswith(each) for each in self._topics)

    def send(self, topic: str, payload: bytes) -> None:
        """Tells all who listen to the topic."""
        if self._socket is not None:
            self._socket.send((topic.encode(), payload))

    def result(self, model: str, camera: str, fields: Callable[[], Fields]) -> None:
        """Tells what became of a camera's frame, if anybody listens; only then `fields` is called."""
        if self._topics and self.wants(topic := f"results/{model}/{camera}"):
            self.send(topic, encode(fields()))

    def _received(self, frames: list[zmq.Frame]) -> None:
        """A subscription that somebody made first, or whose last subscriber has left. Anything else is passed over."""
        word = frames[0].bytes
        if word[:1] == b"\x01" and len(self._topics) < _MOST_TOPICS:
            self._topics.add(word[1:])
        elif word[:1] == b"\x00":
            self._topics.discard(word[1:])

    async def _tell(self) -> None:
        """Events as they happen; those from before the start are not news."""
        epoch = self._events.epoch
        async with aclosing(self._events.follow(self._events.last)) as events:
            async for event in events:
                if self._topics and self.wants(topic := f"events/{_kind(event)}"):
                    self.send(topic, encode(_event(event, epoch)))


def _kind(event: Event) -> str:
    return str(type(event.what).__struct_config__.tag)


def _event(event: Event, epoch: str) -> dict[str, Any]:
    """The fields of `edged.v1.Event`, with those of the kind beside them."""
    told: dict[str, Any] = msgspec.to_builtins(event)
    what = told.pop("what")
    kind = what.pop("type")
    return {**told, "epoch": epoch, "kind": kind, kind: what}
