"""Publishes results and events on a PUB socket, with topics `results/MODEL/CAMERA` and `events/KIND`.

A message without subscribers is not built. A slow subscriber misses messages and delays no one.
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
    """Publishes from `start` until `stop`; otherwise it drops messages."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._socket: BoundSocket | None = None
        self._topics: set[bytes] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self, address: str) -> str:
        """Listen, and return the address. ConfigError."""
        self._socket = BoundSocket(
            zmq.XPUB, address, "[zmq] publish", self._received, hwm=_WAITING, max_message=_LONGEST_TOPIC
        )
        self._task = tasks.keep("publisher of events", self._tell)
        return self._socket.address

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._topics.clear()

    def wants(self, topic: str) -> bool:
        """Whether the topic has a subscriber."""
        if not self._topics:
            return False
        name = topic.encode()
        return len(self._topics) >= _MOST_TOPICS or any(name.startswith(each) for each in self._topics)

    def send(self, topic: str, payload: bytes) -> None:
        """Send to all subscribers of the topic."""
        if self._socket is not None:
            self._socket.send((topic.encode(), payload))

    def result(self, model: str, camera: str, fields: Callable[[], Fields]) -> None:
        """Publish the result of a frame if it has a subscriber; only then `fields` is called."""
        if self._topics and self.wants(topic := f"results/{model}/{camera}"):
            self.send(topic, encode(fields()))

    def _received(self, frames: list[zmq.Frame]) -> None:
        """A first subscription to a topic, or the end of the last. Anything else is ignored."""
        word = frames[0].bytes
        if word[:1] == b"\x01" and len(self._topics) < _MOST_TOPICS:
            self._topics.add(word[1:])
        elif word[:1] == b"\x00":
            self._topics.discard(word[1:])

    async def _tell(self) -> None:
        """Publish events as they happen, none from before the start."""
        epoch = self._events.epoch
        async with aclosing(self._events.follow(self._events.last)) as events:
            async for event in events:
                if self._topics and self.wants(topic := f"events/{_kind(event)}"):
                    self.send(topic, encode(_event(event, epoch)))


def _kind(event: Event) -> str:
    return str(type(event.what).__struct_config__.tag)


def _event(event: Event, epoch: str) -> dict[str, Any]:
    """The fields of `edged.v1.Event`, and those of its kind."""
    told: dict[str, Any] = msgspec.to_builtins(event)
    what = told.pop("what")
    kind = what.pop("type")
    return {**told, "epoch": epoch, "kind": kind, kind: what}
