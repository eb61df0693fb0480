"""Results as JSON, and the publisher's messages to subscribers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from edged.api.endpoints.publisher import Echo, Fields, Publisher, delivered, encode, only_skips
from edged.client import result as client_result
from edged.errors import NotFound
from edged.events import EventLog, ModelRead, ModelRemoved
from edged.ipc import messages as m
from edged.serving.stream import Delivery, SkipReport
from edged.serving.stream_camera import Skips
from edged.serving.work import Answered, EngineRef, FrameWork, OutputTensor, SecondStep
from edged.vision.content import Classes
from edged.vision.detections import Detections
from edged.vision.family import Recognition, recognise
from tests.unit.zmq_peers import folder as folder
from tests.unit.zmq_peers import peer
from tests.waiting import run, until

ECHO = Echo("door", 7, "yolo", 123)
OBJECT = Detections.of([[10, 20, 30, 60]], [0.5], [1])


def engine(*names: str) -> EngineRef:
    known = recognise((), (), {}, {})
    fields = {name: getattr(known, name) for name in Recognition.__struct_fields__}
    return EngineRef("key", "fake", "digest", Recognition(**{**fields, "names": names}))


def answered(found: Detections | None, *more: Any, names: tuple[str, ...] = ("a", "b")) -> Answered:
    outputs, *classes = more or ((),)
    packed = None if found is None else found.pack()
    return Answered(engine(*names), packed, outputs, 640, 480, 1.5, m.Times(1, 2, 3, 4), *classes)


def fields_of(answer: Any, ids: tuple[int, ...] = ()) -> dict[str, Any]:
    """Return the JSON fields of a result."""

    async def make() -> bytes:
        skips = (Skips(3, 5, 3, "overtaken"),)
        return encode(delivered(ECHO, Delivery("door", ECHO, FrameWork(b""), answer, skips, 12.5, 99, ids)))

    fields: dict[str, Any] = json.loads(run(make()))
    return fields


def test_delivered_result_repeats_its_frame_and_reports_skips() -> None:
    fields = fields_of(answered(OBJECT))
    assert [fields[name] for name in ("camera", "sequence", "model", "captured_unix_ns")] == ["door", 7, "yolo", 123]
    assert (fields["age_ms"], fields["received_unix_ns"], fields["skipped"]) == (12.5, 99, 3)
    assert fields["skips"] == [{"first": 3, "last": 5, "count": 3, "reason": "overtaken"}]
    assert fields["timings"]["total_ms"] >= 0
    assert (fields["timings"]["queue_ms"], fields["timings"]["infer_ms"]) == (1.5, 3)
    assert (fields["engine"], fields["backend"], "error" in fields) == ("key", "fake", False)


def test_delivered_detections_have_roboflows_fields_and_ids_of_tracks() -> None:
    fields = fields_of(answered(OBJECT), (41,))
    assert fields["image"] == {"width": 640, "height": 480}
    (one,) = fields["predictions"]
    assert (one["x"], one["y"], one["width"], one["height"]) == (20, 40, 20, 40)
    assert (one["class"], one["class_id"], one["confidence"], one["tracker_id"]) == ("b", 1, 0.5, 41)
    assert "tracker_id" not in fields_of(answered(OBJECT), (-1,))["predictions"][0]


def test_delivered_second_step_has_the_fields_that_the_client_gives_it() -> None:
    """A program may read `edged stream --json` on one box and HTTP or ZeroMQ on the next."""
    nested = answered(None, (), Classes((1,), (0.75,)))
    second = SecondStep("reader", (0,), (nested,), 2, nested.engine, 0.5, m.Times(1, 2, 3, 4), 7.0)
    fields = fields_of(msgspec.structs.replace(answered(OBJECT), second=second))
    assert fields["second"] == {
        "model": "reader",
        "engine": "key",
        "backend": "fake",
        "crops": 1,
        "left_out": 2,
        "timings": {
            "queue_ms": 0.5,
            "decode_ms": 1,
            "prepare_ms": 2,
            "infer_ms": 3,
            "postprocess_ms": 4,
            "total_ms": 7.0,
        },
    }
    assert set(fields["second"]) == set(client_result.SecondStep.__struct_fields__)
    assert fields["predictions"][0]["nested"]["top"] == "b"


def test_delivered_classes_and_raw_outputs() -> None:
    found = Classes((1, 0), (0.75, 0.25))
    fields = fields_of(answered(None, (), found))
    assert fields["top"] == "b"
    assert fields["predictions"][1] == {"class": "a", "class_id": 0, "confidence": 0.25}
    raw = fields_of(answered(None, (OutputTensor("y", "FP32", (1, 2), bytes(8)),)))
    assert raw["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [1, 2]}]


def test_delivered_error_has_a_status_a_code_and_a_line() -> None:
    error = {"code": 5, "reason": "NOT_FOUND", "name": "NotFound", "message": "no such model"}
    assert fields_of(NotFound("no such model"))["error"] == error


def test_only_skips_has_count_and_reasons() -> None:
    fields = only_skips(SkipReport("door", (Skips(1, 2, 2, "stale"), Skips(3, 3, 1, "rate"))))
    assert (fields["camera"], fields["only_skips"], fields["skipped"]) == ("door", True, 3)
    assert [skips["reason"] for skips in fields["skips"]] == ["stale", "rate"]


# -- the publisher --------------------------------------------------------------------------------------------------


@asynccontextmanager
async def published(folder: Path, **about: int) -> AsyncIterator[tuple[Publisher, EventLog]]:
    events = EventLog()
    events.emit(ModelRead("before the start"), "old")
    publisher = Publisher(events, **about)
    publisher.start(f"ipc://{folder}/events")
    try:
        yield publisher, events
    finally:
        await publisher.stop()


async def subscribed(link: zmq.asyncio.Socket, publisher: Publisher, topic: str) -> None:
    link.subscribe(topic.encode())
    await until(lambda: publisher.wants(topic), "the subscription arrives")


async def received(link: zmq.asyncio.Socket) -> tuple[bytes, dict[str, Any]]:
    topic, payload = await asyncio.wait_for(link.recv_multipart(), 20)
    return topic, json.loads(payload)


async def test_publisher_result_without_subscriber_is_not_built(folder: Path) -> None:
    def never() -> Fields:
        raise AssertionError("no subscriber")

    async with published(folder) as (publisher, _), peer(folder, zmq.SUB, "events") as link:
        publisher.result("m", "c", never)
        await subscribed(link, publisher, "results/m/door")
        publisher.result("m", "window", never)
        publisher.result("m", "door", lambda: {"n": 1})
        assert await received(link) == (b"results/m/door", {"n": 1})
        link.unsubscribe(b"results/m/door")
        await until(lambda: not publisher.wants("results/m/door"), "the subscription ends")
        publisher.result("m", "door", never)


async def test_wants_after_the_last_subscriber_left_is_false(folder: Path) -> None:
    async with published(folder) as (publisher, _):
        async with peer(folder, zmq.SUB, "events") as one, peer(folder, zmq.SUB, "events") as two:
            await subscribed(one, publisher, "results/")
            two.subscribe(b"results/")
            await subscribed(two, publisher, "both/")  # arrives after the first subscription
            one.close()
            await asyncio.sleep(0.1)
            assert publisher.wants("results/m/c"), "the other one still subscribes"
        await until(lambda: not publisher.wants("results/m/c"), "no subscriber is left")


async def test_wants_topic_beyond_the_recorded_ones_as_long_as_it_is_subscribed(folder: Path) -> None:
    async with published(folder, most_topics=2) as (publisher, _), peer(folder, zmq.SUB, "events") as link:
        await subscribed(link, publisher, "results/m/a")
        await subscribed(link, publisher, "results/m/b")
        assert not publisher.wants("results/last/door")
        await subscribed(link, publisher, "results/last/door")
        link.unsubscribe(b"results/m/a")
        await asyncio.sleep(0.1)
        assert publisher.wants("results/last/door")
        link.unsubscribe(b"results/last/door")
        await until(lambda: not publisher.wants("results/last/door"), "the subscription ends")
        assert publisher.wants("results/m/b")


async def test_publisher_events_are_published_when_emitted(folder: Path) -> None:
    async with published(folder) as (publisher, events), peer(folder, zmq.SUB, "events") as link:
        await subscribed(link, publisher, "events/model_read")
        events.emit(ModelRemoved(), "another kind")
        events.emit(ModelRead("digest"), "yolo")
        topic, fields = await received(link)
        assert topic == b"events/model_read"
        assert (fields["model"], fields["kind"], fields["model_read"]) == (
            "yolo",
            "model_read",
            {"digest": "digest"},
        )
        assert (fields["sequence"], fields["epoch"]) == (3, events.epoch)


def test_publisher_slow_subscriber_misses_results_without_delaying(folder: Path) -> None:
    async def main() -> None:
        async with published(folder) as (publisher, _), peer(folder, zmq.SUB, "events") as link:
            link.setsockopt(zmq.RCVHWM, 1)
            link.setsockopt(zmq.RCVBUF, 1 << 12)
            await subscribed(link, publisher, "results/")
            for number in range(5000):
                publisher.result("m", "c", lambda number=number: {"n": number, "more": "x" * 5000})
                if number % 100 == 0:
                    await asyncio.sleep(0)
            got = []
            while await link.poll(300):
                got.append((await received(link))[1]["n"])
            assert 0 < len(got) < 5000
            assert got == sorted(got)

    run(main(), 60)


async def test_publisher_that_is_not_started_drops_messages() -> None:
    publisher = Publisher(EventLog())
    assert not publisher.wants("")
    publisher.send("results/m/c", b"lost")
    await publisher.stop()
