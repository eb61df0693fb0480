"""Which way pictures go: through shared memory where the daemon says that it reads it, as bytes everywhere else, and
never lost in between."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
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
from edged.errors import EdgedError, InvalidInput, OutOfSpace, SegmentUnusable
from edged.proto import cameras_pb2 as pb

PICTURES = [np.full((6, 8, 3), value, np.uint8) for value in range(1, 9)]


def own() -> Identity:
    return Identity("own", os.geteuid())


class Peer:
    """As much of a daemon as streams need. `reads` says whether it can read shared memory; `ways` is what came."""

    def __init__(self) -> None:
        self.reads = True
        self.refuses_later = False
        self.ways: list[str] = []
        self.contents: list[bytes] = []
        self.shapes: list[tuple[int, int, int]] = []
        self.asked = 0

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
        for frame in frames:
            kind = frame.WhichOneof("image")
            assert kind is not None
            self.ways.append(kind)
            result = pb.Result(camera=frame.camera, sequence=frame.sequence)
            try:
                self._look(frame, segments)
            except EdgedError as error:
                result.error.code, result.error.message = grpc.StatusCode.FAILED_PRECONDITION.value[0], str(error)
            yield result

    def _look(self, frame: pb.Frame, segments: Segments) -> None:
        if frame.HasField("shared"):
            if self.refuses_later and len(self.ways) > 2:
                raise SegmentUnusable("not this one")
            shared = frame.shared
            picture = segments.picture(shared.segment, shared.offset, shared.stamp, shared.size)
            place = bytearray(picture.size)
            picture.read_into(memoryview(place))
            self.contents.append(bytes(place))
            self.shapes.append((shared.height, shared.width, shared.format))
        else:
            self.contents.append(frame.raw.data or frame.encoded)
            self.shapes.append((frame.raw.height, frame.raw.width, frame.raw.format))


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="eds-") as name:  # a socket's path is short
        yield Path(name)


@pytest.fixture
def peer(folder: Path) -> Iterator[tuple[Peer, str]]:
    made = Peer()
    server = grpc.server(ThreadPoolExecutor(4))
    kinds = {
        "DetectOne": grpc.unary_unary_rpc_method_handler(made.detect_one, pb.Frame.FromString, _serialize),
        "Detect": grpc.stream_stream_rpc_method_handler(made.detect, pb.Frame.FromString, _serialize),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("edged.v1.Cameras", kinds),))
    target = f"unix:{folder}/s"
    server.add_insecure_port(target)
    server.start()
    yield made, target
    server.stop(0).wait(5)


def _serialize(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def left() -> list[str]:
    """Segments of this process, which is not the only one."""
    return [path.name for path in shared_layout.FOLDER.glob(f"{shared_layout.PREFIX}{os.getpid()}-*")]


def run(target: str, frames: Any, **options: Any) -> list[Any]:
    with Client(target) as client, client.stream("m", frames, lossless=True, **options) as stream:
        return list(stream)


def test_sharing_arrays_arrive_whole(peer: tuple[Peer, str]) -> None:
    daemon, target = peer
    results = run(target, iter(PICTURES))
    assert [result.error for result in results] == [None] * len(PICTURES)
    assert daemon.ways == ["shared"] * len(PICTURES)
    assert daemon.contents == [picture.tobytes() for picture in PICTURES]
    assert daemon.shapes == [(6, 8, pb.BGR)] * len(PICTURES)
    assert daemon.asked == 1
    assert not left()


def test_sharing_gray_and_growing_pictures_arrive_whole(peer: tuple[Peer, str]) -> None:
    daemon, target = peer
    pictures = [np.arange(n * n, dtype=np.uint8).reshape(n, n) for n in (4, 100, 300, 8)]
    run(target, iter(pictures))
    assert daemon.ways == ["shared"] * 4
    assert daemon.contents == [picture.tobytes() for picture in pictures]
    assert daemon.shapes == [(n, n, pb.GRAY) for n in (4, 100, 300, 8)]
    assert not left()


def test_sharing_daemon_that_cannot_read_gets_bytes(peer: tuple[Peer, str]) -> None:
    daemon, target = peer
    daemon.reads = False
    results = run(target, iter(PICTURES))
    assert [result.error for result in results] == [None] * len(PICTURES)
    assert daemon.ways == ["raw"] * len(PICTURES)
    assert daemon.contents == [picture.tobytes() for picture in PICTURES]
    assert not left()


def test_sharing_encoded_pictures_do_not_probe(peer: tuple[Peer, str]) -> None:
    daemon, target = peer
    run(target, [b"jpeg"] * 3)
    assert daemon.ways == ["encoded"] * 3
    assert daemon.asked == 0


def test_sharing_forbidden_sends_bytes(peer: tuple[Peer, str]) -> None:
    daemon, target = peer
    run(target, iter(PICTURES), shared=False)
    assert daemon.ways == ["raw"] * len(PICTURES)
    assert daemon.asked == 0


def test_sharing_every_frame_sends_bytes(peer: tuple[Peer, str]) -> None:
    daemon, target = peer
    run(target, iter(PICTURES), every_frame=True)
    assert daemon.ways == ["raw"] * len(PICTURES)
    with pytest.raises(InvalidInput, match="exclude each other"):
        run(target, iter(PICTURES), every_frame=True, shared=True)


def test_sharing_required_but_impossible_raises(peer: tuple[Peer, str]) -> None:
    daemon, target = peer
    daemon.reads = False
    with pytest.raises(SegmentUnusable):
        run(target, iter(PICTURES), shared=True)
    with pytest.raises(InvalidInput, match="localhost:1"):
        run("localhost:1", iter(PICTURES), shared=True)
    assert not left()


def test_sharing_required_and_possible_shares(peer: tuple[Peer, str]) -> None:
    daemon, target = peer
    run(target, iter(PICTURES), shared=True)
    assert set(daemon.ways) == {"shared"}


def test_sharing_no_space_sends_bytes(peer: tuple[Peer, str], monkeypatch: pytest.MonkeyPatch) -> None:
    daemon, target = peer

    def no_room(*_: object, **__: object) -> None:
        raise OutOfSpace("no room")

    monkeypatch.setattr("edged.client.sharing.SharedRing", no_room)
    run(target, iter(PICTURES))
    assert daemon.ways == ["raw"] * len(PICTURES)


def test_sharing_space_that_runs_out_sends_bytes_from_then_on(
    peer: tuple[Peer, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, target = peer
    from edged.client import shared

    def no_room(self: object, size: int) -> None:
        raise OutOfSpace("no room")

    monkeypatch.setattr(shared.SharedRing, "_grow", no_room)
    run(target, [*PICTURES[:2], np.zeros((100, 100, 3), np.uint8), *PICTURES[:2]])
    assert daemon.ways == ["shared", "shared", "raw", "raw", "raw"]
    assert not left()


def test_sharing_daemon_that_stops_reading_gets_bytes_from_then_on(peer: tuple[Peer, str]) -> None:
    daemon, target = peer
    daemon.refuses_later = True
    results = run(target, iter(PICTURES))
    assert [result.error is None for result in results] == [True, True, False, *[True] * (len(PICTURES) - 3)]
    assert daemon.ways == ["shared"] * 3 + ["raw"] * (len(PICTURES) - 3)


def test_sharing_stream_closed_early_leaves_no_segment(peer: tuple[Peer, str]) -> None:
    _, target = peer
    with Client(target) as client:
        stream = client.stream("m", iter(PICTURES * 100), lossless=True)
        next(stream)
        assert left()
        stream.close()
        assert not left()
        stream = client.stream("m", iter(PICTURES * 100), lossless=True)
        next(stream)
        del stream
        assert not left()


async def _some(pictures: list[np.ndarray]) -> AsyncIterator[np.ndarray]:
    for picture in pictures:
        yield picture
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("ordinary", [True, False])
@pytest.mark.parametrize("reads", [True, False])
def test_async_sharing_sends_bytes_until_the_daemon_confirms(
    peer: tuple[Peer, str], ordinary: bool, reads: bool
) -> None:
    daemon, target = peer
    daemon.reads = reads
    pictures = PICTURES * 20

    async def main() -> list[Any]:
        client = AsyncClient(target)
        frames: Any = iter(pictures) if ordinary else _some(pictures)
        async with client.stream("m", frames, lossless=True) as stream:
            results = [result async for result in stream]
        await client.close()
        return results

    results = asyncio.run(asyncio.wait_for(main(), 60))
    assert [result.error for result in results] == [None] * len(pictures)
    assert daemon.contents == [picture.tobytes() for picture in pictures]
    assert daemon.ways[0] == "raw"
    assert daemon.ways[-1] == ("shared" if reads else "raw")
    assert daemon.asked == 1
    assert not left()


def test_async_sharing_stream_closed_early_leaves_no_segment(peer: tuple[Peer, str]) -> None:
    _, target = peer

    async def main() -> None:
        client = AsyncClient(target)
        stream = client.stream("m", _some(PICTURES * 100), lossless=True)
        await anext(stream)
        await stream.aclose()
        await client.close()

    asyncio.run(asyncio.wait_for(main(), 60))
    assert not left()
