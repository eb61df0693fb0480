"""Describes results as JSON, and publishes results and events on a PUB socket.

Topics are `results/MODEL/CAMERA` and `events/KIND`. A message is built only if its topic has a subscriber. A slow
subscriber misses messages and does not delay others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import msgspec
import zmq

from edged import tasks
from edged.api.endpoints.zmq_socket import BoundSocket
from edged.api.grpc.status import status_of
from edged.errors import EdgedError
from edged.events import Event, EventLog
from edged.ipc.messages import Times
from edged.serving.stream import Delivery, SkipReport
from edged.serving.stream_camera import Skips
from edged.serving.work import Answered, SecondStep
from edged.vision.content_json import content_fields
from edged.vision.detections import Detections
from edged.vision.roboflow import roboflow

_WAITING = 256  # limit of messages in ZeroMQ's queue to each subscriber
_LONGEST_TOPIC = 1024
_MOST_TOPICS = 4096

Fields = dict[str, Any]
_encoder = msgspec.json.Encoder()


class Publisher:
    """Publishes from `start` until `stop`; drops messages at other times."""

    def __init__(self, events: EventLog, most_topics: int = _MOST_TOPICS) -> None:
        """`most_topics`: how many subscribed topics are recorded."""
        self._events, self._most_topics = events, most_topics
        self._socket: BoundSocket | None = None
        self._topics: set[bytes] = set()
        self._unrecorded = 0  # subscribed topics beyond `most_topics`
        self._task: asyncio.Task[None] | None = None

    def start(self, address: str) -> str:
        """Listen, and return the address. Raises ConfigError."""
        self._socket = BoundSocket(
            zmq.XPUB, address, "[zmq] publish", self._received, hwm=_WAITING, max_message=_LONGEST_TOPIC
        )
        self._task = tasks.keep("publisher of events", self._publish_events)
        return self._socket.address

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._topics.clear()
        self._unrecorded = 0

    def wants(self, topic: str) -> bool:
        """Whether the topic has a subscriber. Always True if clients subscribe to more than `most_topics` topics,
        because further topics are not recorded."""
        if self._unrecorded:
            return True
        if not self._topics:
            return False
        name = topic.encode()
        return any(name.startswith(each) for each in self._topics)

    def send(self, topic: str, payload: bytes) -> None:
        """Send to all subscribers of the topic."""
        if self._socket is not None:
            self._socket.send((topic.encode(), payload))

    def result(self, model: str, camera: str, fields: Callable[[], Fields]) -> None:
        """Publish the result of a frame if the result's topic has a subscriber; call `fields` only then."""
        if self.wants(topic := f"results/{model}/{camera}"):
            self.send(topic, encode(fields()))

    def _received(self, frames: list[zmq.Frame]) -> None:
        """Record that a topic got its first subscriber or lost its last subscriber. Ignore other messages."""
        word = frames[0].bytes
        kind, topic = word[:1], word[1:]
        if kind == b"\x01":
            if len(self._topics) < self._most_topics:
                self._topics.add(topic)
            else:
                self._unrecorded += 1
        elif kind == b"\x00":
            if topic in self._topics:
                self._topics.remove(topic)
            else:
                self._unrecorded = max(0, self._unrecorded - 1)

    async def _publish_events(self) -> None:
        """Publish events as they happen, without events from before the start."""
        epoch = self._events.epoch
        async with aclosing(self._events.follow(self._events.last)) as events:
            async for event in events:
                if self.wants(topic := f"events/{_kind(event)}"):
                    self.send(topic, encode(_event(event, epoch)))


def _kind(event: Event) -> str:
    return str(type(event.what).__struct_config__.tag)


def _event(event: Event, epoch: str) -> Fields:
    """Return the fields of `edged.v1.Event`. The fields that only this kind of event has are nested in the field with
    the name of the kind."""
    fields: Fields = msgspec.to_builtins(event)
    what = fields.pop("what")
    kind = what.pop("type")
    return {**fields, "epoch": epoch, "kind": kind, kind: what}


class Echo(msgspec.Struct, frozen=True):
    """The fields of a frame that are copied into its result, named as in `edged.v1.Frame`."""

    camera: str = ""
    sequence: int = 0
    model: str = ""
    captured_unix_ns: int = 0


def encode(fields: Fields) -> bytes:
    return _encoder.encode(fields)


def delivered(echo: Echo, delivery: Delivery[Any]) -> Fields:
    """Return the result of one frame as fields for JSON. The field `outputs` only describes raw outputs."""
    fields: Fields = {
        **msgspec.structs.asdict(echo),
        "received_unix_ns": delivery.received_ns,
        "age_ms": round(delivery.age_ms, 3),
        "skipped": delivery.skipped,
        "skips": _skips(delivery.skips),
    }
    total_ms = (time.monotonic() - delivery.work.received) * 1e3
    if isinstance(delivery.answer, EdgedError):
        fields["timings"] = {"total_ms": round(total_ms, 3)}
        fields["error"] = failure(delivery.answer)
        return fields
    return {**fields, **answered(delivery.answer, delivery.tracker_ids, total_ms)}


def answered(answer: Answered, tracker_ids: tuple[int, ...] = (), total_ms: float = 0.0) -> Fields:
    """Return the fields of a model's answer to a picture, with the timings and the engine. Detections are in Roboflow's
    JSON format. `tracker_ids` has one number for each detection (negative: no track), or is empty."""
    fields: Fields = {
        "timings": _timings(answer.queue_ms, answer.times, total_ms),
        "engine": answer.engine.key,
        "backend": answer.engine.backend,
        "image": {"width": answer.width, "height": answer.height},
        **_found(answer),
    }
    if answer.detections is not None:
        for prediction, number in zip(fields["predictions"], tracker_ids, strict=False):
            if number >= 0:
                prediction["tracker_id"] = number
    if answer.second is not None:
        fields["second"] = _second(answer.second, fields["predictions"])
    return fields


def _timings(queue_ms: float, times: Times, total_ms: float) -> dict[str, float]:
    timings = {
        "queue_ms": queue_ms,
        "decode_ms": times.decode_ms,
        "prepare_ms": times.prepare_ms,
        "infer_ms": times.infer_ms,
        "postprocess_ms": times.postprocess_ms,
        "total_ms": total_ms,
    }
    return {name: round(value, 3) for name, value in timings.items()}


def _found(answer: Answered) -> Fields:
    """Return the fields of an answer to a picture or a crop: detections, content, or descriptions of raw outputs."""
    names = answer.engine.recognition.names
    if answer.detections is not None:
        found = roboflow(Detections.unpack(answer.detections), names, answer.width, answer.height)
        return {"predictions": found["predictions"]}
    if answer.content is not None:
        return content_fields(answer.content, names)
    return {
        "outputs": [{"name": o.name, "datatype": o.datatype, "shape": list(map(int, o.shape))} for o in answer.outputs]
    }


def _second(second: SecondStep, predictions: list[Fields]) -> Fields:
    """Add the answers of a pipeline's second model to the predictions, and return the fields of the second step."""
    for row, answer in zip(second.rows, second.answers, strict=True):
        nested = {"error": failure(answer)} if isinstance(answer, EdgedError) else _found(answer)
        predictions[row]["nested"] = nested
    return {
        "model": second.model,
        "engine": second.engine.key if second.engine is not None else "",
        "backend": second.engine.backend if second.engine is not None else "",
        "crops": len(second.rows),
        "left_out": second.left_out,
        "timings": _timings(second.queue_ms, second.times, second.total_ms),
    }


def only_skips(report: SkipReport) -> Fields:
    """Return a result that answers no frame and reports skipped frames."""
    return {"camera": report.camera, "only_skips": True, "skipped": report.skipped, "skips": _skips(report.skips)}


def failure(error: EdgedError) -> Fields:
    """Return an error's gRPC status code, its code in edged (docs/errors.md), and its message."""
    status, name = status_of(error).value, type(error).__name__
    return {"code": status, "reason": error.code.value, "name": name, "message": str(error)}


def _skips(runs: tuple[Skips, ...]) -> list[Fields]:
    return [msgspec.structs.asdict(run) for run in runs]
