"""Clients send pictures through shared memory if the daemon confirms that it can read it, otherwise as bytes."""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from edged import shared_layout
from edged.api.auth.identity import Identity
from edged.api.endpoints.shared_memory import Segments
from edged.client import AsyncClient
from edged.client.client import Client
from edged.client.shared import Place, SharedRing, Sharing
from edged.errors import EdgedError, InvalidInput, OutOfSpace, SegmentUnusable
from edged.proto import cameras_pb2 as pb
from tests.unit.scripted_daemon import ScriptedDaemon

PICTURES = [np.full((6, 8, 3), value, np.uint8) for value in range(1, 9)]


def own() -> Identity:
    return Identity("own", os.geteuid())


class Peer:
    """The handlers of a daemon. `reads`: whether it can read shared memory. `ways`: the kind of image in each frame."""

    def __init__(self) -> None:
        self.reads = True
        self.refuses_later = False
        self.ways: list[str] = []
        self.contents: list[bytes] = []
        self.shapes: list[tuple[int, int, int]] = []
        self.asked = 0
        self.at_once = 1  # number of frames that are received before the first one is read

    def detect_one(self, frame: pb.Frame, context: grpc.ServicerContext) -> pb.Result:
        self.asked += 1
        shared = frame.shared
        if not self.reads:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no such segment here")
        try:
            Segments(client=own).picture(shared.segment, shared.offset, shared.stamp, shared.size)
        except InvalidInput as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return pb.Result()

    def detect(self, frames: Iterator[pb.Frame], context: grpc.ServicerContext) -> Iterator[pb.Result]:
        segments = Segments(client=own)
        for frame in self._received(frames):
            kind = frame.WhichOneof("image")
            assert kind is not None
            self.ways.append(kind)
            result = pb.Result(camera=frame.camera, sequence=frame.sequence)
            try:
                image, content = self._look(frame, segments)
                self.shapes.append((image.height, image.width, image.format))
                self.contents.append(content)
            except EdgedError as error:
                result.error.code, result.error.message = grpc.StatusCode.FAILED_PRECONDITION.value[0], str(error)
            yield result

    def _received(self, frames: Iterator[pb.Frame]) -> Iterator[pb.Frame]:
        while some := list(itertools.islice(frames, self.at_once)):
            yield from some

    def _look(self, frame: pb.Frame, segments: Segments) -> tuple[pb.SharedImage | pb.RawImage, bytes]:
        shared = frame.shared
        if not frame.HasField("shared"):
            return frame.raw, frame.raw.data or frame.encoded
        if self.refuses_later and len(self.ways) > 2:
            raise SegmentUnusable("not this one")
        picture = segments.picture(shared.segment, shared.offset, shared.stamp, shared.size)
        content = bytearray(picture.size)
        picture.read_into(memoryview(content))
        return shared, bytes(content)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="eds-") as name:  # short, because a socket path has at most 107 bytes
        yield Path(name)


@pytest.fixture
def peer(folder: Path) -> Iterator[tuple[Peer, str]]:
    made, target = Peer(), f"unix:{folder}/s"
    with ScriptedDaemon(target, made.detect, made.detect_one):
        yield made, target


def left() -> list[str]:
    """Return the segments of this process."""
    return [path.name for path in shared_layout.FOLDER.glob(f"{shared_layout.PREFIX}{os.getpid()}-*")]


def run(target: str, frames: Any, **options: Any) -> list[Any]:
    with Client(target) as client, client.stream("m", frames, lossless=True, **options) as stream:
        return list(stream)


@pytest.mark.parametrize("reads", [True, False])
def test_sharing_arrays_arrive_whole(peer: tuple[Peer, str], reads: bool) -> None:
    daemon, target = peer
    daemon.reads = reads
    pictures = [*PICTURES, *(np.arange(n * n, dtype=np.uint8).reshape(n, n) for n in (4, 100, 300, 8))]
    results = run(target, iter(pictures))
    assert [result.error for result in results] == [None] * len(pictures)
    assert daemon.ways == ["shared" if reads else "raw"] * len(pictures)
    assert daemon.contents == [picture.tobytes() for picture in pictures]
    assert daemon.shapes == [(*p.shape[:2], pb.BGR if p.ndim == 3 else pb.GRAY) for p in pictures]
    assert daemon.asked == 1
    assert not left()


@pytest.mark.parametrize("growing", [False, True])
def test_sharing_every_frame_arrives_whole_if_the_daemon_reads_late(peer: tuple[Peer, str], growing: bool) -> None:
    daemon, target = peer
    daemon.at_once = 7  # the number of frames in flight
    sizes = range(1, 24) if growing else [8] * 23
    pictures = [np.full((size, 100 * size), number, np.uint8) for number, size in enumerate(sizes)]
    with Client(target) as client, client.stream("m", iter(pictures), every_frame=True) as stream:
        assert [result.error for result in stream] == [None] * len(pictures)
    assert set(daemon.ways) == {"shared"}
    assert daemon.contents == [picture.tobytes() for picture in pictures]
    assert not left()


@pytest.mark.parametrize(
    ("frames", "options", "expected"),
    [([b"jpeg"] * 3, {}, "encoded"), (PICTURES, {"shared": False}, "raw")],
    ids=["encoded", "forbidden"],
)
def test_sharing_not_possible_or_forbidden_sends_bytes_without_a_probe(
    peer: tuple[Peer, str], frames: list[Any], options: dict[str, bool], expected: str
) -> None:
    daemon, target = peer
    run(target, iter(frames), **options)
    assert (daemon.ways, daemon.asked) == ([expected] * len(frames), 0)


def test_sharing_required_shares_or_raises(peer: tuple[Peer, str]) -> None:
    daemon, target = peer
    run(target, iter(PICTURES), shared=True)
    assert set(daemon.ways) == {"shared"}
    daemon.reads = False
    with pytest.raises(SegmentUnusable):
        run(target, iter(PICTURES), shared=True)
    with pytest.raises(InvalidInput):
        run("localhost:1", iter(PICTURES), shared=True)
    assert not left()


def confirm(_: pb.Frame) -> grpc.StatusCode:
    return grpc.StatusCode.INVALID_ARGUMENT


def test_sharing_without_space_stops(folder: Path) -> None:
    def full(*_: object, **__: object) -> SharedRing:
        raise OutOfSpace("no room")

    class Small(SharedRing):
        def put(self, picture: Any) -> Place:
            if picture.size > 1000:
                raise OutOfSpace("no room")
            return super().put(picture)

    assert Sharing(folder / "s", "m", confirm, ring=full).put(PICTURES[0]) is None
    sharing = Sharing(folder / "s", "m", confirm, ring=Small)
    pictures = [*PICTURES[:2], np.zeros((100, 100, 3), np.uint8), *PICTURES[:2]]
    assert [sharing.put(picture) is not None for picture in pictures] == [True, True, False, False, False]
    sharing.close()
    assert not left()


def test_sharing_daemon_that_refuses_a_segment_gets_bytes_afterwards(peer: tuple[Peer, str]) -> None:
    daemon, target = peer
    daemon.refuses_later = True
    results = run(target, iter(PICTURES))
    assert [result.error is None for result in results] == [True, True, False, *[True] * (len(PICTURES) - 3)]
    assert daemon.ways == ["shared"] * 3 + ["raw"] * (len(PICTURES) - 3)


def test_sharing_stream_closed_early_leaves_no_segment(peer: tuple[Peer, str]) -> None:
    _, target = peer
    with Client(target) as client:
        for close in (True, False):
            stream = client.stream("m", iter(PICTURES * 100), lossless=True)
            next(stream)
            assert left()
            if close:
                stream.close()
            del stream
            assert not left()


async def test_async_sharing_arrays_arrive_whole_and_leave_no_segment(peer: tuple[Peer, str]) -> None:
    daemon, target = peer

    async def pictures() -> AsyncIterator[np.ndarray]:
        for picture in PICTURES * 100:
            yield picture
            await asyncio.sleep(0.01)

    async with AsyncClient(target) as client, client.stream("m", pictures(), lossless=True) as stream:
        assert [(await anext(stream)).error for _ in PICTURES] == [None] * len(PICTURES)
    assert daemon.contents[: len(PICTURES)] == [picture.tobytes() for picture in PICTURES]
    assert (set(daemon.ways), daemon.asked, left()) == ({"shared"}, 1, [])
