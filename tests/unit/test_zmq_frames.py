"""The ZeroMQ lane and the publisher, in one loop with their peers: every frame told of, nobody held up by anybody."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zmq
import zmq.asyncio

from edged.api.endpoints.publisher import Publisher
from edged.api.endpoints.result_json import Fields
from edged.api.endpoints.zmq_frames import FrameEndpoint
from edged.api.endpoints.zmq_socket import BoundSocket, place
from edged.client.shared import SharedRing
from edged.errors import ConfigError, NotFound
from edged.events import EventLog, ModelRead, ModelRemoved
from edged.serving.camera import Cameras
from edged.serving.slot import Slot
from edged.vision.detections import Detections
from tests.fake_link import FakeLink
from tests.waiting import run, until

PICTURE = Detections.of([[0, 0, 2, 2]], [0.5], [3]).pack()  # what the link hands back


class Box:
    """A daemon's insides around the lane: one model, `door`, behind a link that answers when it is told to."""

    def __init__(self) -> None:
        self.link = FakeLink()
        self.slot = Slot("door")
        self.slot.install(self.link.session())
        self.cameras = Cameras()
        self.events = EventLog()
        self.tracking = None
        self.publisher = Publisher(self.events)
        self.lane: FrameEndpoint
        self.answering: asyncio.Task[None] | None = None

    def find(self, name: str) -> Any:
        if name != "door":
            raise NotFound(f"there is no model {name!r}")
        return SimpleNamespace(model=None, slot=self.slot)

    def slot_of(self, name: str) -> Slot:
        slot: Slot = self.find(name or "door").slot
        return slot

    async def answer_all(self) -> None:
        while True:
            while self.link.jobs:
                self.link.answer()
            await asyncio.sleep(0.001)


@asynccontextmanager
async def lane(folder: Path, answers: bool = True, **limits: Any) -> AsyncIterator[Box]:
    box = Box()
    controller: Any = SimpleNamespace(slot=box.slot_of, find=box.find, tracking=None)
    box.lane = FrameEndpoint(controller, box.cameras, f"ipc://{folder}/frames", box.publisher, **limits)
    box.lane.start()
    if answers:
        box.answering = asyncio.create_task(box.answer_all())
    try:
        yield box
    finally:
        await box.lane.stop(0.2)
        if box.answering is not None:
            box.answering.cancel()


@asynccontextmanager
async def peer(folder: Path, kind: int = zmq.DEALER, name: str = "frames") -> AsyncIterator[zmq.asyncio.Socket]:
    context = zmq.asyncio.Context()
    link = context.socket(kind)
    link.linger = 0
    link.connect(f"ipc://{folder}/{name}")
    try:
        yield link
    finally:
        link.close()
        context.term()


def frame(number: int, camera: str = "c", **more: Any) -> bytes:
    return json.dumps({"camera": camera, "sequence": number, "model": "door", **more}).encode()


async def result(link: zmq.asyncio.Socket) -> dict[str, Any]:
    parts = await asyncio.wait_for(link.recv_multipart(), 20)
    if parts[0] == b"":
        parts = parts[1:]
    fields: dict[str, Any] = json.loads(parts[0])
    return fields


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="edz-") as name:  # a socket's path is short
        yield Path(name)


@pytest.mark.parametrize("kind", [zmq.DEALER, zmq.REQ])
def test_frames_are_answered_in_their_order(folder: Path, kind: int) -> None:
    async def main() -> None:
        async with lane(folder), peer(folder, kind) as link:
            for number in range(20):
                await link.send_multipart([frame(number, captured_unix_ns=5), PICTURE])
                told = await result(link)
                assert (told["camera"], told["sequence"], told["model"]) == ("c", number, "door")
                assert told["captured_unix_ns"] == 5
                assert told["predictions"][0]["class_id"] == 3
                assert told["skipped"] == 0

    run(main())


def test_a_camera_that_is_too_fast_is_told_of_every_frame(folder: Path) -> None:
    async def main() -> None:
        async with lane(folder, answers=False) as box, peer(folder) as link:
            for number in range(1, 51):
                await link.send_multipart([frame(number), PICTURE])
            record = None

            def came() -> bool:
                nonlocal record
                record = next(iter(box.cameras._records.values()), None)
                return record is not None and record.received == 50

            await until(came)
            box.answering = asyncio.create_task(box.answer_all())
            seen: list[int] = []
            while len(seen) < 50:
                told = await result(link)
                for run_ in told["skips"]:
                    seen += range(run_["first"], run_["last"] + 1)
                    assert run_["reason"] == "overtaken"
                seen += [told["sequence"]] if "sequence" in told else []
            assert sorted(seen) == list(range(1, 51))
            assert seen[-1] == 50, "the newest was answered"

    run(main())


def test_a_picture_in_shared_memory_is_read_when_it_is_chosen(folder: Path) -> None:
    async def main() -> None:
        async with lane(folder, answers=False) as box, peer(folder) as link:
            with SharedRing(2, 1000) as ring:
                for number in range(1, 9):
                    place = ring.put(Detections.of([[0, 0, 1, 1]], [0.5], [number]).pack())
                    shared = {"segment": place.segment, "offset": place.offset, "stamp": place.stamp}
                    header = frame(number, shared={**shared, "size": place.size}, options={"mode": "every_frame"})
                    await link.send_multipart([header])
                await until(lambda: [record.received for record in box.cameras._records.values()] == [8])
                box.answering = asyncio.create_task(box.answer_all())
                answered, skipped = {}, []
                while len(answered) + len(skipped) < 8:
                    told = await result(link)
                    skipped += [run_ for run_ in told["skips"] for _ in range(run_["count"])]
                    if "sequence" in told:
                        answered[told["sequence"]] = told["predictions"][0]["class_id"]
                assert all(number == content for number, content in answered.items())
                assert {run_["reason"] for run_ in skipped} == {"overwritten"}
                assert {7, 8} <= set(answered)

    run(main())


def test_what_is_wrong_with_a_frame_is_its_answer(folder: Path) -> None:
    async def main() -> None:
        async with lane(folder) as box, peer(folder) as link:
            wrong: list[tuple[list[bytes], str]] = [
                ([b"{}", PICTURE, b"more"], "parts"),
                ([b"nonsense", PICTURE], "header cannot be used"),
                ([b'{"camra": ""}', PICTURE], "camra"),
                ([frame(1, model="window"), PICTURE], "no model 'window'"),
                ([frame(1), b""], "holds no picture"),
                ([frame(1)], "holds no picture"),
                ([frame(1, options={"weight": 1e9}), PICTURE], "weight"),
                (
                    [frame(1, shared={"segment": "/edged-none", "offset": 0, "stamp": 1, "size": 1})],
                    "none of that name",
                ),
                ([frame(1, shared={"segment": "/passwd", "offset": 0, "stamp": 1, "size": 1})], "no segment for edged"),
            ]
            for parts, words in wrong:
                await link.send_multipart(parts)
                told = await result(link)
                assert words in told["error"]["message"], parts
                assert told["error"]["code"] > 0
            await link.send_multipart([frame(2), PICTURE])
            assert (await result(link))["sequence"] == 2
            assert box.lane.warnings.counts["refused"] >= 3

    run(main())


def test_a_peer_that_does_not_read_holds_up_nobody_and_is_given_up(folder: Path) -> None:
    async def main() -> None:
        # The second socket is the one that reads.
        async with lane(folder, unread_seconds=0.5) as box, peer(folder) as deaf, peer(folder) as link:
            large = Detections.of(np.zeros((2000, 4)), np.zeros(2000), np.zeros(2000)).pack()
            deaf.setsockopt(zmq.RCVHWM, 1)
            for number in range(3000):
                await deaf.send_multipart([frame(number, "deaf"), large])
                if number % 10 == 0:
                    await link.send_multipart([frame(number), PICTURE])
                    assert (await result(link))["sequence"] == number
            await until(lambda: box.lane.warnings.counts["unread"] > 0, "its stream is ended")
            await until(lambda: not box.slot.waiting and not box.link.arena.taken, "it holds nothing")

    run(main(), 60)


def test_a_peer_that_has_gone_leaves_nothing(folder: Path) -> None:
    async def main() -> None:
        async with lane(folder, idle_seconds=0.4) as box:
            for number in range(5):
                async with peer(folder) as link:
                    await link.send_multipart([frame(number, f"camera {number}"), PICTURE])
                    await result(link)
            assert box.lane.peers > 0
            await until(lambda: not box.lane.peers, "the idle streams end")
            records = box.cameras._records.values()
            await until(lambda: all(record.connections == 0 for record in records), "they let go of their cameras")

    run(main())


def test_an_idle_peer_goes_on_where_it_was(folder: Path) -> None:
    async def main() -> None:
        async with lane(folder, idle_seconds=0.2) as box, peer(folder) as link:
            for number in range(3):
                await link.send_multipart([frame(number), PICTURE])
                assert (await result(link))["sequence"] == number
                await until(lambda: not box.lane.peers, "its stream ends")
            (record,) = box.cameras._records.values()
            assert record.answered == 3

    run(main())


def test_a_frame_that_waits_long_for_an_engine_is_answered_all_the_same(folder: Path) -> None:
    async def main() -> None:
        async with lane(folder, answers=False, idle_seconds=0.1) as box, peer(folder) as link:
            await link.send_multipart([frame(1), PICTURE])
            await until(lambda: bool(box.link.jobs))
            await until(lambda: not box.lane.peers, "nothing is heard for long")
            box.link.answer()
            assert (await result(link))["sequence"] == 1

    run(main())


def test_stopping_answers_what_came_and_takes_nothing_more(folder: Path) -> None:
    async def main() -> None:
        async with lane(folder, answers=False) as box, peer(folder) as link:
            await link.send_multipart([frame(1), PICTURE])
            await until(lambda: bool(box.link.jobs))
            stopping = asyncio.create_task(box.lane.stop(20))
            await asyncio.sleep(0)
            box.link.answer()
            assert (await result(link))["sequence"] == 1
            await stopping
            assert not (folder / "frames").exists()

    run(main())


def test_no_more_peers_than_there_is_room_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edged.api.endpoints.zmq_frames._MOST_PEERS", 2)

    async def main() -> None:
        async with lane(folder), peer(folder) as one, peer(folder) as two, peer(folder) as three:
            for link in (one, two):
                await link.send_multipart([frame(1), PICTURE])
                assert "error" not in await result(link)
            await three.send_multipart([frame(1), PICTURE])
            assert "the maximum" in (await result(three))["error"]["message"]

    run(main())


# -- what is published ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def published(folder: Path) -> AsyncIterator[tuple[Publisher, EventLog]]:
    events = EventLog()
    events.emit(ModelRead("before the start"), "old")
    publisher = Publisher(events)
    publisher.start(f"ipc://{folder}/events")
    try:
        yield publisher, events
    finally:
        await publisher.stop()


async def subscribed(link: zmq.asyncio.Socket, publisher: Publisher, topic: str) -> None:
    link.subscribe(topic.encode())
    await until(lambda: publisher.wants(topic), "the subscription arrives")


def test_nothing_is_put_together_for_nobody(folder: Path) -> None:
    def never() -> Fields:
        raise AssertionError("nobody listens")

    async def main() -> None:
        async with published(folder) as (publisher, _), peer(folder, zmq.SUB, "events") as link:
            publisher.result("m", "c", never)
            await subscribed(link, publisher, "results/m/door")
            publisher.result("m", "window", never)
            publisher.result("m", "door", lambda: {"n": 1})
            topic, payload = await asyncio.wait_for(link.recv_multipart(), 20)
            assert (topic, json.loads(payload)) == (b"results/m/door", {"n": 1})
            link.unsubscribe(b"results/m/door")
            await until(lambda: not publisher.wants("results/m/door"), "the subscription ends")
            publisher.result("m", "door", never)

    run(main())


def test_a_subscriber_that_goes_takes_its_subscriptions_along(folder: Path) -> None:
    async def main() -> None:
        async with published(folder) as (publisher, _):
            async with peer(folder, zmq.SUB, "events") as one, peer(folder, zmq.SUB, "events") as two:
                await subscribed(one, publisher, "results/")
                two.subscribe(b"results/")
                await asyncio.sleep(0.05)
                one.close()
                await asyncio.sleep(0.1)
                assert publisher.wants("results/m/c"), "the other one still listens"
            await until(lambda: not publisher.wants("results/m/c"), "nobody listens any more")

    run(main())


def test_events_are_told_as_they_happen(folder: Path) -> None:
    async def main() -> None:
        async with published(folder) as (publisher, events), peer(folder, zmq.SUB, "events") as link:
            await subscribed(link, publisher, "events/model_read")
            events.emit(ModelRemoved(), "not asked for")
            events.emit(ModelRead("digest"), "yolo")
            topic, payload = await asyncio.wait_for(link.recv_multipart(), 20)
            told = json.loads(payload)
            assert topic == b"events/model_read"
            assert (told["model"], told["kind"], told["model_read"]) == ("yolo", "model_read", {"digest": "digest"})
            assert (told["sequence"], told["epoch"]) == (3, events.epoch)

    run(main())


def test_a_slow_subscriber_misses_some_and_holds_up_nobody(folder: Path) -> None:
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
                got.append(json.loads((await link.recv_multipart())[1])["n"])
            assert 0 < len(got) < 5000
            assert got == sorted(got)

    run(main(), 60)


def test_before_the_start_and_after_the_stop_nobody_listens() -> None:
    async def main() -> None:
        publisher = Publisher(EventLog())
        assert not publisher.wants("")
        publisher.send("results/m/c", b"lost")
        await publisher.stop()

    run(main())


# -- where sockets may listen -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "remote", "bound"),
    [
        ("ipc:///run/x", None, "ipc:///run/x"),
        ("tcp://localhost:5", None, "tcp://127.0.0.1:5"),
        ("tcp://127.0.0.2:5", False, "tcp://127.0.0.2:5"),
        ("tcp://[::1]:5", None, "tcp://[::1]:5"),
        ("tcp://172.17.0.1:5", True, "tcp://172.17.0.1:5"),
        ("tcp://0.0.0.0:5", True, "tcp://0.0.0.0:5"),
        ("tcp://[fd00::1]:5", True, "tcp://[fd00::1]:5"),
        ("tcp://localhost:5", True, "tcp://127.0.0.1:5"),
    ],
)
def test_where_a_socket_may_listen(address: str, remote: bool | None, bound: str) -> None:
    assert place(address, "[x] y", remote)[0] == bound


@pytest.mark.parametrize(
    ("address", "remote"),
    [
        ("", None),
        ("/run/x", None),
        ("ipc://x", None),
        ("ipc://@abstract", None),
        ("ipc://*", None),
        ("ipc:///" + "x" * 110, None),
        ("inproc://x", None),
        ("udp://127.0.0.1:5", None),
        ("tcp://*:5", None),
        ("tcp://0.0.0.0:5", None),
        ("tcp://10.0.0.1:5", False),
        ("tcp://example.com:5", None),
        ("tcp://example.com:5", True),
        ("tcp://*:5", True),
        ("tcp://localhost", None),
        ("tcp://localhost:x", None),
        ("tcp://127.0.0.1:70000", True),
    ],
)
def test_where_a_socket_may_not_listen(address: str, remote: bool | None) -> None:
    with pytest.raises(ConfigError) as raised:
        place(address, "[x] y", remote)
    assert "\n" not in str(raised.value)


def test_a_socket_does_not_push_a_living_one_aside_but_clears_away_a_dead_one(folder: Path) -> None:
    async def main() -> None:
        def ignore(_: object) -> None:
            return None

        address = f"ipc://{folder}/sub/socket"
        limits = {"hwm": 1, "max_message": 100}
        first = BoundSocket(zmq.ROUTER, address, "[x] y", ignore, **limits)  # type: ignore[arg-type]
        assert oct((folder / "sub" / "socket").stat().st_mode)[-3:] == "660"
        with pytest.raises(ConfigError, match="another daemon listens"):
            BoundSocket(zmq.ROUTER, address, "[x] y", ignore, **limits)  # type: ignore[arg-type]
        first.close()
        first.close()
        assert not list((folder / "sub").iterdir())
        (folder / "sub" / "socket").write_bytes(b"")
        with pytest.raises(ConfigError, match="not a socket"):
            BoundSocket(zmq.ROUTER, address, "[x] y", ignore, **limits)  # type: ignore[arg-type]
        os.unlink(folder / "sub" / "socket")
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(f"{folder}/sub/socket")  # and nobody listens on it
        BoundSocket(zmq.ROUTER, address, "[x] y", ignore, **limits).close()  # type: ignore[arg-type]

    run(main())
