"""HTTP/2 connections: calls, flow control, limits, and invalid frames of clients."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.api.http2 import sending
from edged.api.http2.call import Call
from edged.api.http2.frames import Code
from edged.api.http2.headers import Status
from edged.api.http2.limits import Limits
from tests.fuzz import http2
from tests.http2_peer import HEADERS, Frame, Peer, messages
from tests.waiting import run, until


async def echo(call: Call) -> None:
    data = await call.read()
    await call.reply(bytes(data or b"nothing"))


async def echo_all(call: Call) -> None:
    while (data := await call.read()) is not None:
        await call.write(bytes(data))
    call.finish(Status.OK)


async def wait(call: Call) -> None:
    await asyncio.Event().wait()


def statuses(peer: Peer, frames: list[Frame]) -> dict[int, str]:
    found = {}
    for frame in frames:
        if frame.kind == http2.HEADERS and (status := peer.headers(frame).get(b"grpc-status")) is not None:
            found[frame.stream] = Status(int(status)).name
    return found


def code_of(peer: Peer) -> int | None:
    """Return the error code of the last GOAWAY frame; None if none was sent."""
    found = [frame.payload for frame in peer.frames() if frame.kind == http2.GOAWAY]
    return int.from_bytes(found[-1][4:8], "big") if found else None


async def test_connection_announces_its_limits() -> None:
    settings = Peer(echo, Limits(streams=7, stream_window=1 << 17, frame=1 << 18)).frames()[0]
    assert settings.kind == http2.SETTINGS
    assert dict(struct.iter_unpack(">HI", settings.payload)) == {3: 7, 4: 1 << 17, 5: 1 << 18, 6: 16 << 10}


async def test_connection_call_is_answered_with_headers_data_and_trailers() -> None:
    peer = Peer(echo)
    peer.frames()
    peer.begin(1, (b"name", b"value"), (b"key-bin", b"AAE"), (b"grpc-timeout", b"5S"))
    peer.send(http2.message(1, b"hello"))
    await peer.end()
    frames = [frame for frame in peer.frames() if frame.stream]
    assert [frame.kind for frame in frames] == [http2.HEADERS, http2.DATA, http2.HEADERS]
    assert peer.headers(frames[0]) == {
        b":status": b"200",
        b"content-type": b"application/grpc",
        b"grpc-accept-encoding": b"identity",
    }
    assert messages(frames, 1) == [b"hello"]
    assert peer.headers(frames[2]) == {b"grpc-status": b"0"}
    assert frames[2].flags & http2.END_STREAM
    head = peer.calls[0].head
    assert (head.path, head.metadata, head.timeout) == ("/a/b", (("name", "value"), ("key-bin", b"\0\1")), 5.0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=70_000), max_size=6), st.integers(1, 40_000), st.integers(0, 200))
def test_connection_messages_in_pieces_of_any_size_arrive_whole(sent: list[bytes], piece: int, padding: int) -> None:
    async def story() -> None:
        peer = Peer(echo_all)
        peer.send(http2.settings(s4=1 << 30) + http2.update(0, 1 << 30))
        peer.begin(1)
        body = b"".join(b"\0" + len(each).to_bytes(4, "big") + each for each in sent)
        size = 16_000
        for at in range(0, len(body), size):
            part = body[at : at + size]
            if padding:
                part = bytes([padding]) + part + bytes(padding)
            flags = http2.PADDED if padding else 0
            peer.send(http2.frame(http2.DATA, flags, 1, part), piece)
            await asyncio.sleep(0)
        peer.send(http2.frame(http2.DATA, http2.END_STREAM, 1))
        await peer.end()
        frames = peer.frames()
        assert messages(frames, 1) == sent
        assert statuses(peer, frames) == {1: "OK"}

    run(story())


async def test_connection_message_below_one_mebibyte_needs_no_larger_window() -> None:
    """A camera picture or the input of a usual model arrives without a pause in which the client waits for room."""
    body = b"\0" + (size := 1_000_000).to_bytes(4, "big") + bytes(size)
    peer = Peer(echo)
    peer.begin(1)
    sent = peer.frames()
    for at in range(0, len(body), 16_384):
        flags = http2.END_STREAM if at + 16_384 >= len(body) else 0
        peer.send(http2.frame(http2.DATA, flags, 1, body[at : at + 16_384]))
        await asyncio.sleep(0)
    peer.send(http2.update(0, 1 << 20) + http2.update(1, 1 << 20))
    await peer.end()
    sent += peer.frames()
    assert messages(sent, 1) == [body[5:]]
    assert (http2.WINDOW_UPDATE, 1) not in [(frame.kind, frame.stream) for frame in sent]


async def test_connection_call_that_is_ended_from_outside_stops_an_answer_that_waits_for_room() -> None:
    async def answer(call: Call) -> None:
        for _ in range(10):
            await call.write(bytes(30_000))

    peer = Peer(answer)
    peer.begin(1)
    await until(lambda: peer.calls[0].send_window == 0)
    peer.calls[0].finish(Status.DEADLINE_EXCEEDED, "slow")
    await peer.end()
    assert statuses(peer, peer.frames()) == {1: "DEADLINE_EXCEEDED"}


async def test_connection_large_message_gets_a_window_only_when_it_is_read() -> None:
    go = asyncio.Event()

    async def patient(call: Call) -> None:
        assert await call.announced() == size
        await go.wait()
        await echo(call)

    limits, size = Limits(), 3 << 20
    peer = Peer(patient)
    peer.begin(1)
    peer.frames()
    body = b"\0" + size.to_bytes(4, "big") + bytes(range(256)) * (size // 256)
    for at in range(0, limits.stream_window, 16_384):
        peer.send(http2.frame(http2.DATA, 0, 1, body[at : at + 16_384]))
    await asyncio.sleep(0)
    assert http2.WINDOW_UPDATE not in [frame.kind for frame in peer.frames()]
    go.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    grown = {frame.stream: frame.payload for frame in peer.frames() if frame.kind == http2.WINDOW_UPDATE}
    rest = len(body) - limits.stream_window
    assert {stream: int.from_bytes(payload, "big") for stream, payload in grown.items()} == {0: rest, 1: rest}
    for at in range(limits.stream_window, len(body), 16_384):
        peer.send(http2.frame(http2.DATA, 0, 1, body[at : at + 16_384]))
    peer.send(http2.update(0, 1 << 30) + http2.update(1, 1 << 30))
    await peer.end()
    assert messages(peer.frames(), 1) == [body[5:]]


@pytest.mark.parametrize("way", ["reset", "refused", "answered"])
async def test_connection_window_of_unread_bytes_is_given_back(way: str) -> None:
    """Calls that end before their bytes are read do not use up the window of later calls."""

    async def rude(call: Call) -> None:
        if way == "refused":
            call.finish(Status.PERMISSION_DENIED, "no")
        elif way == "answered":
            await call.announced()
            await call.reply(b"enough")
        else:
            await asyncio.Event().wait()

    limits = Limits(streams=4, stream_window=64 << 10)
    peer = Peer(rude, limits)
    peer.frames()
    allowed = limits.window
    for stream in range(1, 401, 2):
        peer.begin(stream)
        if stream % 4 == 1:  # every other call ends before its bytes arrive
            await asyncio.sleep(0)
        for at in range(3):
            peer.send(http2.frame(http2.DATA, 0, stream, (b"\0\0\0\xff\xff" if not at else b"") + bytes(16_000)))
            allowed -= 16_000 + 5 * (not at)
        await asyncio.sleep(0)
        peer.send(http2.reset(stream))
        await asyncio.sleep(0)
        for frame in peer.frames():
            assert frame.kind != http2.GOAWAY
            if frame.kind == http2.WINDOW_UPDATE and not frame.stream:
                allowed += int.from_bytes(frame.payload, "big")
        assert allowed > 0
    assert not peer.connection.calls
    await peer.end()


async def test_connection_answer_waits_for_the_windows_of_the_client() -> None:
    peer = Peer(echo)
    peer.send(http2.settings(s4=3))
    peer.begin(1)
    peer.send(http2.message(1, b"0123456789"))
    got = b""
    for more in (2, 1, 4, 100):
        await asyncio.sleep(0.01)
        frames = [frame for frame in peer.frames() if frame.kind == http2.DATA]
        got += b"".join(frame.payload for frame in frames)
        peer.send(http2.update(1, more))
    await peer.end()
    frames = peer.frames()
    got += b"".join(frame.payload for frame in frames if frame.kind == http2.DATA)
    assert got == b"\0\0\0\0\x0a0123456789"
    assert statuses(peer, frames) == {1: "OK"}


async def test_connection_answer_waits_while_writing_is_paused() -> None:
    peer = Peer(echo)
    peer.connection.pause_writing()
    peer.begin(1)
    peer.send(http2.message(1, b"hello"))
    await asyncio.sleep(0.01)
    assert messages(peer.frames(), 1) == []
    peer.connection.resume_writing()
    await peer.end()
    assert messages(peer.frames(), 1) == [b"hello"]


@pytest.mark.parametrize(
    ("version", "joins"),
    [
        *(((3, 11, 9), False), ((3, 12, 0), True), ((3, 12, 8), True), ((3, 12, 9), False)),
        *(((3, 13, 0), True), ((3, 13, 1), True), ((3, 13, 2), False), ((3, 14, 0), False)),
    ],
)
async def test_connection_answer_is_joined_only_if_writelines_never_pauses(
    version: tuple[int, ...], joins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "_JOINS", sending.writelines_never_pauses(version))
    peer, pieces = Peer(echo), list[int]()

    def write_lines(parts: Iterable[bytes]) -> None:
        pieces.append(len(list(parts)))

    monkeypatch.setattr(peer.transport, "writelines", write_lines)
    peer.send(http2.settings(s4=1 << 30) + http2.update(0, 1 << 30))
    peer.begin(1)
    body = bytes(range(256)) * 400
    peer.send(http2.message(1, body))
    await peer.end()
    assert bool(pieces) is not joins
    assert messages(peer.frames(), 1) == ([body] if joins else [])


async def test_connection_large_answer_is_split_at_the_clients_frame_size() -> None:
    peer = Peer(echo)
    peer.send(http2.settings(s4=1 << 30, s5=20_000) + http2.update(0, 1 << 30))
    peer.begin(1)
    peer.send(http2.message(1, bytes(100_000)))
    await peer.end()
    frames = [frame for frame in peer.frames() if frame.kind == http2.DATA]
    assert [len(frame.payload) for frame in frames] == [20_000] * 5 + [5]


@pytest.mark.parametrize("way", ["reset", "lost", "deadline"])
async def test_connection_abandoned_call_cancels_its_handler(way: str) -> None:
    ended = asyncio.Event()

    async def waits(call: Call) -> None:
        try:
            await wait(call)
        finally:
            ended.set()

    peer = Peer(waits)
    peer.begin(1, *([(b"grpc-timeout", b"10m")] if way == "deadline" else []))
    await asyncio.sleep(0)
    if way == "reset":
        peer.send(http2.reset(1))
    elif way == "lost":
        peer.lose()
    await asyncio.wait_for(ended.wait(), 10)
    assert not peer.connection.calls
    assert statuses(peer, peer.frames()) == ({1: "DEADLINE_EXCEEDED"} if way == "deadline" else {})


async def test_connection_call_answered_early_is_reset_without_an_error() -> None:
    async def refuse(call: Call) -> None:
        call.finish(Status.NOT_FOUND, "naïve 100%\n", (("detail-bin", b"\1\2"),))

    peer = Peer(refuse)
    peer.begin(1)
    await peer.end()
    frames = [frame for frame in peer.frames() if frame.stream]
    assert [frame.kind for frame in frames] == [http2.HEADERS, http2.RST_STREAM]
    assert peer.headers(frames[0]) == {
        b":status": b"200",
        b"content-type": b"application/grpc",
        b"grpc-accept-encoding": b"identity",
        b"grpc-status": b"5",
        b"grpc-message": b"na%C3%AFve 100%25%0A",
        b"detail-bin": b"AQI",
    }
    assert int.from_bytes(frames[1].payload, "big") == Code.NO_ERROR
    peer.send(http2.message(1, b"late"))  # it was sent before the client saw the answer
    peer.begin(3)
    await until(lambda: len(peer.calls) == 2)


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ([(b"grpc-encoding", b"gzip")], "UNIMPLEMENTED"),
        ([(b"grpc-timeout", b"soon")], "INTERNAL"),
        ([(b"note", b"\xff")], "INTERNAL"),
        ([(b"note", b"v" * 17_000)], "RESOURCE_EXHAUSTED"),
        ([(b"grpc-encoding", b"deflate")], "UNIMPLEMENTED"),
    ],
)
async def test_connection_unsupported_headers_fail_only_the_call(more: list[tuple[bytes, bytes]], status: str) -> None:
    peer = Peer(echo)
    peer.begin(1, *more)
    assert statuses(peer, peer.frames()) == {1: status}
    peer.begin(3)
    peer.send(http2.message(3, b"x"))
    await peer.end()
    assert statuses(peer, peer.frames()) == {3: "OK"}


@pytest.mark.parametrize(
    "fields",
    [
        [(b":method", b"POST"), (b":scheme", b"http")],
        [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a/b"), (b":path", b"/a/c")],
        [(b":method", b"POST"), (b":scheme", b"http"), (b"te", b"trailers"), (b":path", b"/a/b")],
        [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a/b"), (b"Upper", b"x")],
        [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a/b"), (b"connection", b"x")],
        [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a/b"), (b"x-bin", b"*")],
        [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a/b"), (b"x-bin", b"\xff")],
    ],
)
async def test_connection_malformed_headers_reset_only_the_stream(fields: list[tuple[bytes, bytes]]) -> None:
    peer = Peer(echo)
    peer.frames()
    peer.send(http2.frame(http2.HEADERS, http2.END_HEADERS, 1, http2.block(fields)))
    assert [frame.kind for frame in peer.frames() if frame.stream == 1] == [http2.RST_STREAM]
    peer.begin(3)
    peer.send(http2.message(3, b"x"))
    await peer.end()
    assert statuses(peer, peer.frames()) == {3: "OK"}


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\1\0\0\0\1x", "UNIMPLEMENTED"),
        (b"\0\0\0\0\x09x", "RESOURCE_EXHAUSTED"),
        (b"\0\0\0\0\x08x", "INTERNAL"),
        (b"\0\0", "INTERNAL"),
    ],
)
async def test_connection_unsupported_message_fails_only_the_call(data: bytes, status: str) -> None:
    peer = Peer(echo, Limits(max_message=8))
    peer.begin(1)
    peer.send(http2.frame(http2.DATA, http2.END_STREAM, 1, data))
    peer.begin(3)
    peer.send(http2.message(3, b"x"))
    await peer.end()
    assert statuses(peer, peer.frames()) == {1: status, 3: "OK"}


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (http2.frame(http2.DATA, 0, 1, b"x"), Code.PROTOCOL_ERROR),
        (http2.frame(http2.DATA, 0, 0, b"x"), Code.PROTOCOL_ERROR),
        (http2.frame(http2.HEADERS, http2.END_HEADERS, 2, b"\x83"), Code.PROTOCOL_ERROR),
        (http2.frame(http2.HEADERS, http2.END_HEADERS, 1, b"\xff\xff\xff\xff\xff"), Code.COMPRESSION_ERROR),
        (http2.frame(http2.HEADERS, 0, 1, b"\x83") + http2.ping(), Code.PROTOCOL_ERROR),
        (http2.frame(http2.CONTINUATION, http2.END_HEADERS, 1, b"\x83"), Code.PROTOCOL_ERROR),
        (http2.frame(http2.HEADERS, 0, 1, bytes(16_000)) + http2.frame(9, 0, 1, bytes(16_000)), Code.ENHANCE_YOUR_CALM),
        (http2.frame(http2.HEADERS, http2.END_HEADERS, 1, b"x", length=1 << 20), Code.ENHANCE_YOUR_CALM),
        (http2.frame(http2.DATA, 0, 1, b"x", length=(1 << 20) + 1), Code.FRAME_SIZE_ERROR),
        (http2.frame(http2.PUSH_PROMISE, 0, 1), Code.PROTOCOL_ERROR),
        (http2.frame(http2.PING, 0, 0, b"x"), Code.FRAME_SIZE_ERROR),
        (http2.frame(http2.RST_STREAM, 0, 1, b"\0\0\0\0"), Code.PROTOCOL_ERROR),
        (http2.update(0, 0), Code.PROTOCOL_ERROR),
        (http2.update(0, (1 << 31) - 1), Code.FLOW_CONTROL_ERROR),
        (http2.update(1, 5), Code.PROTOCOL_ERROR),
        (http2.settings(s4=1 << 31), Code.FLOW_CONTROL_ERROR),
        (http2.settings(s5=5), Code.PROTOCOL_ERROR),
        (http2.frame(http2.SETTINGS, 0, 0, b"12345"), Code.FRAME_SIZE_ERROR),
        (http2.ping() * 5000, Code.ENHANCE_YOUR_CALM),
        (http2.settings() * 5000, Code.ENHANCE_YOUR_CALM),
        (http2.frame(99) * 5000, Code.ENHANCE_YOUR_CALM),
        (http2.frame(http2.PING, http2.ACK, 0, bytes(8)) * 5000, Code.ENHANCE_YOUR_CALM),
        (
            http2.call(1, "/a/b") + http2.reset(1) + http2.frame(http2.HEADERS, 5, 1, b"\x83") * 5000,
            Code.ENHANCE_YOUR_CALM,
        ),
        (http2.call(1, "/a/b") + http2.frame(http2.DATA, 0, 1, b"\0") * 5000, Code.ENHANCE_YOUR_CALM),
        (
            http2.call(1, "/a/b") + http2.reset(1) + http2.frame(http2.DATA, 0, 1, bytes(99)) * 5000,
            Code.ENHANCE_YOUR_CALM,
        ),
    ],
)
async def test_connection_protocol_violation_ends_it(data: bytes, code: Code) -> None:
    peer = Peer(echo)
    peer.send(data)
    await until(lambda: peer.transport.is_closed)
    assert code_of(peer) == code


async def test_connection_more_data_than_the_window_ends_it_and_its_calls() -> None:
    peer = Peer(wait, Limits(stream_window=256 << 10))
    peer.begin(1)
    for _ in range(17):
        peer.send(http2.frame(http2.DATA, 0, 1, b"\0\0\1\0\0" + bytes(16_000)))
    assert code_of(peer) == Code.FLOW_CONTROL_ERROR
    await peer.end()
    assert all(call.task is not None and call.task.cancelled() for call in peer.calls)


async def test_connection_many_calls_reset_at_once_end_it() -> None:
    peer = Peer(wait)
    for stream in range(1, 6001, 2):
        if peer.transport.is_closed:
            break
        peer.begin(stream)
        peer.send(http2.reset(stream))
        if not peer.transport.is_reading:
            await asyncio.sleep(0)
    assert code_of(peer) == Code.ENHANCE_YOUR_CALM
    await peer.end()


async def test_connection_calls_over_the_limit_are_refused_until_one_ends() -> None:
    peer = Peer(wait, Limits(streams=2))
    peer.frames()
    for stream in (1, 3, 5):
        peer.begin(stream)
    refused = [frame for frame in peer.frames() if frame.kind == http2.RST_STREAM]
    assert [(each.stream, int.from_bytes(each.payload, "big")) for each in refused] == [(5, Code.REFUSED_STREAM)]
    peer.send(http2.reset(1))
    peer.begin(7)
    assert list(peer.connection.calls) == [3, 7]
    peer.lose()


async def test_connection_many_calls_at_once_let_other_tasks_run() -> None:
    peer = Peer(wait)
    peer.send(b"".join(http2.call(stream, "/a/b") for stream in range(1, 401, 2)))
    assert 0 < len(peer.calls) < 200
    assert not peer.transport.is_reading
    await until(lambda: len(peer.calls) == 200)
    assert peer.transport.is_reading
    peer.lose()


@pytest.mark.parametrize(
    "flood",
    [
        http2.frame(http2.DATA, 0, 1, bytes(65)) * 3000,
        http2.frame(http2.DATA, 0, 1, bytes(5) * 60_000),
        http2.ping() * 3000,
        b"".join(http2.frame(http2.HEADERS, http2.END_HEADERS, n, b"\x83" * 500) for n in range(3, 401, 2)),
    ],
)
async def test_connection_flood_of_frames_lets_other_tasks_run(flood: bytes) -> None:
    peer = Peer(wait)
    peer.send(http2.call(1, "/a/b") + flood)
    assert not peer.transport.is_reading
    await until(lambda: peer.transport.is_reading)
    peer.lose()


async def test_connection_that_is_not_paused_at_once_gets_every_message() -> None:
    count, body = 100, b"\0" + (200_000).to_bytes(4, "big") + bytes(200_000)
    sizes = list[int]()

    async def measure(call: Call) -> None:
        while (data := await call.read()) is not None:
            sizes.append(len(data))

    peer = Peer(measure)
    usual = len(peer.connection.get_buffer(-1))
    peer.push(http2.call(1, "/a/b"))
    pieces = (body[at : at + 16_384] for _ in range(count) for at in range(0, len(body), 16_384))
    sent = b"".join(http2.frame(http2.DATA, 0, 1, piece) for piece in pieces)
    for at in range(0, len(sent), 128 << 10):
        peer.push(sent[at : at + (128 << 10)])
        await until(lambda: peer.transport.is_reading)
        await asyncio.sleep(0)
    await until(lambda: len(sizes) == count)
    assert set(sizes) == {200_000}
    assert not peer.transport.is_closed
    peer.send(http2.ping())
    assert len(peer.connection.get_buffer(-1)) == usual
    peer.lose()


async def test_connection_that_is_not_paused_at_once_keeps_calls_in_order() -> None:
    peer = Peer(wait)
    usual = len(peer.connection.get_buffer(-1))
    calls = [http2.call(stream, f"/a/{stream}", [(b"note", b"v" * 1000)]) for stream in range(1, 401, 2)]
    peer.push(b"".join(calls))
    assert not peer.transport.is_reading
    assert len(peer.connection.get_buffer(-1)) > usual
    await until(lambda: len(peer.calls) == 200)
    assert [call.head.path for call in peer.calls] == [f"/a/{stream}" for stream in range(1, 401, 2)]
    assert len(peer.connection.get_buffer(-1)) == usual
    peer.lose()


async def test_connection_client_that_does_not_read_begins_no_more_calls() -> None:
    peer = Peer(echo)
    peer.connection.pause_writing()
    sent = len(peer.transport.written)
    peer.send(b"".join(http2.call(stream, "/a/b") for stream in range(1, 401, 2)) + http2.ping() * 100)
    await asyncio.sleep(0.01)
    assert not peer.calls
    assert not peer.transport.is_reading
    assert len(peer.transport.written) == sent
    peer.connection.resume_writing()
    await until(lambda: len(peer.calls) == 200)
    await until(lambda: http2.PING in [frame.kind for frame in peer.frames()])
    assert peer.transport.is_reading
    peer.lose()


async def test_connection_window_of_padding_is_given_back() -> None:
    limits = Limits(stream_window=64 << 10)
    peer = Peer(echo_all, limits)
    peer.begin(1)
    peer.frames()
    allowed = limits.stream_window
    padded = http2.frame(http2.DATA, http2.PADDED, 1, b"\xff" + b"\0\0\0\0\0" + bytes(255))
    for _ in range(1000):
        peer.send(padded)
        allowed -= len(padded) - 9
        await asyncio.sleep(0)
        updates = [each for each in peer.frames() if each.kind == http2.WINDOW_UPDATE and each.stream == 1]
        allowed += sum(int.from_bytes(each.payload, "big") for each in updates)
        assert allowed > 0
    peer.lose()


async def test_connection_that_ended_is_aborted_if_its_client_does_not_read() -> None:
    peer = Peer(echo, Limits(keepalive=0.05, answer=0.05, handshake=0.05))
    peer.send(http2.update(0, 0))
    assert peer.transport.is_closed
    assert not peer.transport.is_aborted
    await until(lambda: peer.transport.is_aborted)


@pytest.mark.parametrize("way", ["answered", "reset"])
async def test_call_that_ended_frees_its_messages_and_window(way: str) -> None:
    limits = Limits(streams=1, stream_window=64 << 10)
    peer = Peer(wait, limits)
    peer.frames()
    allowed = limits.window
    for stream in range(1, 41, 2):
        peer.begin(stream)
        peer.send(http2.frame(http2.DATA, 0, stream, b"\0\0\0\x20\0" + bytes(8192) + b"\0\0\1\0\0" + bytes(4000)))
        call = peer.calls[-1]
        assert await call.announced() == 8192
        if way == "reset":
            peer.send(http2.reset(stream))
        else:
            call.finish(Status.OK)
        assert await call.announced() is None
        assert await call.read() is None
        grown = [frame for frame in peer.frames() if frame.kind == http2.WINDOW_UPDATE and not frame.stream]
        allowed += sum(int.from_bytes(frame.payload, "big") for frame in grown) - 8192 - 4010
        assert 0 < allowed <= limits.window
    peer.lose()


async def test_connection_that_is_closing_is_not_written() -> None:
    """The transport knows it before `connection_lost` is called, and asyncio logs every write in between."""
    peer = Peer(echo)
    peer.begin(1)
    peer.transport.is_closed = True  # the fake transport raises on a write
    peer.calls[0].finish(Status.OK)
    peer.lose()
    await peer.end()


async def test_leave_answers_running_calls_and_refuses_new_ones() -> None:
    go = asyncio.Event()

    async def later(call: Call) -> None:
        await go.wait()
        await call.reply(b"done")

    peer = Peer(later)
    peer.begin(1)
    peer.connection.leave()
    peer.begin(3)
    frames = peer.frames()
    assert [frame.stream for frame in frames if frame.kind == http2.RST_STREAM] == [3]
    assert [int.from_bytes(f.payload[:4], "big") for f in frames if f.kind == http2.GOAWAY] == [1]
    assert not peer.transport.is_closed
    go.set()
    await peer.end()
    assert messages(peer.frames(), 1) == [b"done"]
    await until(lambda: peer.transport.is_closed)


async def test_leave_call_sent_before_the_goaway_arrived_is_refused() -> None:
    peer = Peer(echo, Limits(linger=0.2))
    peer.connection.leave()
    assert not peer.transport.is_closed
    peer.begin(1)  # sent before the client read the GOAWAY
    assert [frame.stream for frame in peer.frames() if frame.kind == http2.RST_STREAM] == [1]
    await until(lambda: peer.transport.is_closed)


async def test_keepalive_silent_client_is_pinged_then_disconnected() -> None:
    peer = Peer(echo, Limits(keepalive=0.05, answer=0.3, handshake=0.05))
    await until(lambda: http2.PING in [frame.kind for frame in peer.frames()])
    peer.send(http2.frame(http2.PING, http2.ACK, 0, b"edged-up"))
    await until(lambda: http2.PING in [frame.kind for frame in peer.frames()])
    assert not peer.transport.is_closed
    await until(lambda: peer.transport.is_closed)


async def test_connection_path_that_is_not_ascii_begins_a_call() -> None:
    peer = Peer(echo)
    fields = [(name, b"/a/\xf8" if name == b":path" else value) for name, value in HEADERS]
    peer.send(http2.frame(http2.HEADERS, http2.END_HEADERS, 1, http2.block(fields)) + http2.message(1, b"x"))
    await peer.end()
    assert peer.calls[0].head.path == "/a/ø"
    assert statuses(peer, peer.frames()) == {1: "OK"}


@pytest.mark.parametrize("begins", [b"", http2.PREFACE[:10], http2.PREFACE])
async def test_handshake_that_is_incomplete_ends_the_connection(begins: bytes) -> None:
    peer = Peer(echo, Limits(handshake=0.05), greets=False)
    peer.send(begins)
    await until(lambda: peer.transport.is_closed)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"])
async def test_connection_of_another_protocol_is_closed_at_once(data: bytes) -> None:
    peer = Peer(echo, greets=False)
    peer.send(data)
    assert peer.transport.is_closed


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400), st.booleans())
def test_connection_any_bytes_end_it_or_leave_no_call(data: bytes, is_framed: bool) -> None:
    async def story() -> None:
        peer = Peer(echo_all)
        kind = data[0] % 11 if data else 0
        framed = http2.frame(kind, data[1] if len(data) > 1 else 0, 1, data[2:])
        peer.begin(1)
        peer.send(framed if is_framed else data)
        if not peer.transport.is_closed:
            peer.lose()
        await peer.end()
        assert not peer.connection.calls

    run(story())
