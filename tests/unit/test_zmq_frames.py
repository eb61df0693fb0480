"""Frames over ZeroMQ, with their peers in one loop: every frame has a result or a skip, and no peer delays another."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zmq
import zmq.asyncio
from hypothesis import given
from hypothesis import strategies as st

from edged.api.endpoints import zmq_frames
from edged.api.endpoints.publisher import Publisher
from edged.api.endpoints.zmq_frames import FrameEndpoint
from edged.client.shared import SharedRing
from edged.errors import ErrorCode, InvalidInput, NotFound, SegmentUnusable
from edged.events import EventLog
from edged.serving.camera import Cameras, StreamOptions
from edged.serving.schedule import Share
from edged.serving.slot import Slot
from edged.vision.detections import Detections
from edged.vision.placement import Region, Roi
from tests.fake_link import FakeLink
from tests.unit.zmq_peers import peer
from tests.waiting import until, within

PICTURE = Detections.of([[0, 0, 2, 2]], [0.5], [3]).pack()  # the link returns it as the answer

# -- messages -------------------------------------------------------------------------------------------------------


def parse(header: Any, *data: bytes) -> zmq_frames.Message:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return zmq_frames.parse([memoryview(text), *map(memoryview, data)])


async def test_parse_full_header_gives_the_work_and_the_options() -> None:
    header = {
        "camera": "door",
        "sequence": 7,
        "model": "yolo",
        "captured_unix_ns": 1_700_000_000_000_000_000,
        "format": "nv12",
        "width": 64,
        "height": 48,
        "stride": 80,
        "thresholds": {"score": 0.4, "iou": 0.5, "max_detections": 9, "class_agnostic": True},
        "region": {"x": 1, "y": 2, "width": 3, "height": 4},
        "rotation": 270,
        "options": {"mode": "every_frame", "max_fps": 5, "max_staleness_ms": 250, "weight": 2, "priority": -3},
    }
    found = parse(header, b"x").header
    made, plain = found.work(b"x", None), parse({}, b"x").header.work(b"x", None)
    assert (made.pixel_format, made.width, made.height, made.stride) == ("nv12", 64, 48, 80)
    assert made.roi == Roi(Region(1, 2, 3, 4), 270)
    assert found.thresholds == zmq_frames.Limits(score=0.4, iou=0.5, max_detections=9, class_agnostic=True)
    assert found.options is not None
    assert found.options.checked() == StreamOptions("every_frame", 5, 0.25, Share(2, -3), False)
    assert (plain.data, plain.pixel_format, plain.roi, plain.thresholds) == (b"x", "", None, None)


SHARED = {"segment": "/edged-x", "offset": 0, "stamp": 1, "size": 1}


def test_parse_picture_in_shared_memory_has_its_place() -> None:
    message = parse({"shared": {"segment": "/edged-x", "offset": 64, "stamp": 2**64 - 1, "size": 5}})
    assert message.data is None
    assert message.header.shared == zmq_frames.Shared(segment="/edged-x", offset=64, stamp=2**64 - 1, size=5)


@pytest.mark.parametrize(
    ("header", "data"),
    [
        ({}, ()),
        ({}, (b"x", b"y")),
        ({"shared": SHARED}, (b"x",)),
        ({"shared": {**SHARED, "offset": -1}}, ()),
        ({"shared": {**SHARED, "offset": 2**63}}, ()),
        ({"shared": {"segment": "/edged-x"}}, ()),
        *((text, (b"x",)) for text in (b"", b"\xff", b"[]", b"{", b" " * 70_000 + b"{}")),
        *(
            ({name: value}, (b"x",))
            for name, value in (
                ("camra", "x"),
                ("camera", 5),
                ("format", "yuyv"),
                ("rotation", 45),
                ("width", -1),
                ("width", 2**40),
                ("sequence", -1),
                ("captured_unix_ns", 10**400),
                ("thresholds", {"score": 2}),
                ("thresholds", {"scor": 0.2}),
                ("region", {"x": -5}),
                ("region", [0, 0, 5, 5]),
                ("options", {"mode": "newest"}),
            )
        ),
    ],
)
def test_parse_malformed_message_is_refused_in_one_line(header: Any, data: tuple[bytes, ...]) -> None:
    with pytest.raises(InvalidInput) as raised:
        parse(header, *data)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400


@given(st.lists(st.binary(max_size=100), max_size=3))
def test_parse_any_bytes_are_accepted_or_refused(frames: list[bytes]) -> None:
    with contextlib.suppress(InvalidInput):
        zmq_frames.parse([memoryview(frame) for frame in frames])


# -- the endpoint ---------------------------------------------------------------------------------------------------


class Box:
    """A daemon's parts around the endpoint: one model, `door`, behind a link that answers on command."""

    peer: zmq.asyncio.Socket

    def __init__(self, folder: Path, **limits: Any) -> None:
        self.folder, self.link = folder, FakeLink()
        self.slot = Slot("door")
        self.slot.install(self.link.session())
        self.cameras = Cameras()
        self.answering: asyncio.Task[None] | None = None
        controller: Any = SimpleNamespace(
            slot=lambda name: self.find(name or "door").slot, find=self.find, tracking=None
        )
        publisher = Publisher(EventLog())
        self.endpoint = FrameEndpoint(controller, self.cameras, f"ipc://{folder}/frames", publisher, **limits)

    def find(self, name: str) -> Any:
        if name != "door":
            raise NotFound(f"model {name!r} does not exist")
        return SimpleNamespace(model=None, slot=self.slot)

    def answer_all(self) -> None:
        """Answer every frame from now on."""

        async def answer() -> None:
            while True:
                while self.link.jobs:
                    self.link.answer()
                await asyncio.sleep(0.001)

        self.answering = asyncio.create_task(answer())


def frame(number: int, camera: str = "c", **more: Any) -> bytes:
    return json.dumps({"camera": camera, "sequence": number, "model": "door", **more}).encode()


async def result(link: zmq.asyncio.Socket) -> dict[str, Any]:
    parts = await asyncio.wait_for(link.recv_multipart(), 20)
    fields: dict[str, Any] = json.loads(parts[1] if parts[0] == b"" else parts[0])
    return fields


@asynccontextmanager
async def played(answers: bool = True, kind: int = zmq.DEALER, **limits: Any) -> AsyncIterator[Box]:
    """Yield an endpoint with one peer."""
    with tempfile.TemporaryDirectory(prefix="edz-") as name:  # paths of sockets must be short
        box = Box(Path(name), **limits)
        box.endpoint.start()
        if answers:
            box.answer_all()
        try:
            async with peer(box.folder, kind) as box.peer:
                yield box
        finally:
            await box.endpoint.stop(0.2)
            if box.answering is not None:
                box.answering.cancel()


@pytest.mark.parametrize("kind", [zmq.DEALER, zmq.REQ])
async def test_frames_are_answered_in_their_order(kind: int) -> None:
    async with played(kind=kind) as box:
        for number in range(20):
            await box.peer.send_multipart([frame(number, captured_unix_ns=5), PICTURE])
            found = await result(box.peer)
            assert (found["camera"], found["sequence"], found["model"]) == ("c", number, "door")
            assert (found["captured_unix_ns"], found["skipped"]) == (5, 0)
            assert found["predictions"][0]["class_id"] == 3


@within(played, answers=False)
async def test_frames_of_a_camera_that_is_too_fast_are_answered_or_reported_as_skipped(box: Box) -> None:
    for number in range(1, 51):
        await box.peer.send_multipart([frame(number), PICTURE])
    await until(lambda: [each.received for each in box.cameras.reports()] == [50])
    box.answer_all()
    seen: list[int] = []
    while len(seen) < 50:
        found = await result(box.peer)
        for skips in found["skips"]:
            seen += range(skips["first"], skips["last"] + 1)
            assert skips["reason"] == "overtaken"
        seen += [found["sequence"]] if "sequence" in found else []
    assert sorted(seen) == list(range(1, 51))
    assert seen[-1] == 50, "the newest was answered"


@within(played, answers=False)
async def test_picture_in_shared_memory_is_read_when_its_turn_comes(box: Box) -> None:
    with SharedRing(2, 1000) as ring:
        for number in range(1, 9):
            place = ring.put(Detections.of([[0, 0, 1, 1]], [0.5], [number]).pack())
            shared = {"segment": place.segment, "offset": place.offset, "stamp": place.stamp, "size": place.size}
            await box.peer.send_multipart([frame(number, shared=shared, options={"mode": "every_frame"})])
        await until(lambda: [each.received for each in box.cameras.reports()] == [8])
        box.answer_all()
        answered, skipped = {}, []
        while len(answered) + len(skipped) < 8:
            found = await result(box.peer)
            skipped += [skips["reason"] for skips in found["skips"] for _ in range(skips["count"])]
            if "sequence" in found:
                answered[found["sequence"]] = found["predictions"][0]["class_id"]
        assert all(number == content for number, content in answered.items())
        assert set(skipped) == {"overwritten"}
        assert {7, 8} <= set(answered)


@within(played)
async def test_error_of_a_frame_is_its_result(box: Box) -> None:
    wrong: list[tuple[list[bytes], ErrorCode]] = [
        ([b"{}", PICTURE, b"more"], InvalidInput.code),
        ([b"nonsense", PICTURE], InvalidInput.code),
        ([frame(1, model="window"), PICTURE], NotFound.code),
        ([frame(1), b""], InvalidInput.code),
        ([frame(1)], InvalidInput.code),
        ([frame(1, options={"weight": 1e9}), PICTURE], InvalidInput.code),
        ([frame(1, shared={**SHARED, "segment": "/edged-none"})], SegmentUnusable.code),
        ([frame(1, shared={**SHARED, "segment": "/passwd"})], SegmentUnusable.code),
    ]
    for parts, code in wrong:
        await box.peer.send_multipart(parts)
        error = (await result(box.peer))["error"]
        assert error["reason"] == code.value, parts
        assert error["code"] > 0
    await box.peer.send_multipart([frame(2), PICTURE])
    assert (await result(box.peer))["sequence"] == 2
    assert box.endpoint.warnings.counts["refused"] >= 3


@within(played, unread_seconds=0.5)
async def test_peer_that_does_not_read_delays_no_other_and_loses_its_stream(box: Box) -> None:
    large = Detections.of(np.zeros((2000, 4)), np.zeros(2000), np.zeros(2000)).pack()
    async with peer(box.folder) as deaf:
        deaf.setsockopt(zmq.RCVHWM, 1)
        for number in range(3000):
            await deaf.send_multipart([frame(number, "deaf"), large])
            if number % 10 == 0:
                await box.peer.send_multipart([frame(number), PICTURE])
                assert (await result(box.peer))["sequence"] == number
        await until(lambda: box.endpoint.warnings.counts["unread"] > 0, "its stream is ended")
        await until(lambda: not box.slot.waiting and not box.link.arena.taken, "it holds nothing")


@within(played, idle_seconds=0.4)
async def test_peers_that_left_have_no_stream_and_no_connection(box: Box) -> None:
    for number in range(5):
        async with peer(box.folder) as gone:
            await gone.send_multipart([frame(number, f"camera {number}"), PICTURE])
            await result(gone)
    assert box.endpoint.peers > 0
    await until(lambda: not box.endpoint.peers, "the idle streams end")
    await until(lambda: not any(each.connections for each in box.cameras.reports()), "no camera is connected")


@within(played, idle_seconds=0.2)
async def test_idle_peer_continues_its_camera(box: Box) -> None:
    for number in range(3):
        await box.peer.send_multipart([frame(number), PICTURE])
        assert (await result(box.peer))["sequence"] == number
        await until(lambda: not box.endpoint.peers, "its stream ends")
    assert [each.answered for each in box.cameras.reports()] == [3]


@within(played, answers=False, idle_seconds=0.1)
async def test_frame_that_waits_long_for_an_engine_is_answered(box: Box) -> None:
    await box.peer.send_multipart([frame(1), PICTURE])
    await until(lambda: bool(box.link.jobs))
    await until(lambda: not box.endpoint.peers, "the peer is idle")
    box.link.answer()
    assert (await result(box.peer))["sequence"] == 1


@within(played, answers=False)
async def test_stop_answers_received_frames_and_removes_the_socket(box: Box) -> None:
    await box.peer.send_multipart([frame(1), PICTURE])
    await until(lambda: bool(box.link.jobs))
    stopping = asyncio.create_task(box.endpoint.stop(20))
    await asyncio.sleep(0)
    box.link.answer()
    assert (await result(box.peer))["sequence"] == 1
    await stopping
    assert not (box.folder / "frames").exists()


@within(played, most_peers=2)
async def test_peer_beyond_the_limit_is_refused(box: Box) -> None:
    async with peer(box.folder) as second, peer(box.folder) as third:
        for each, is_refused in ((box.peer, False), (second, False), (third, True)):
            await each.send_multipart([frame(1), PICTURE])
            assert ("error" in await result(each)) is is_refused
