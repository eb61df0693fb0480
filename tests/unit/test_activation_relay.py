"""Connections that are carried to another socket: every byte, each way until its end, and no faster than it is read."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from edged.api.grpc.activation import Relay
from tests.waiting import asynchronous, until

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers only once the client has ended its side."""
    writer.write(b"heard " + await reader.read())
    await writer.drain()
    writer.close()


def listening(path: Path, backlog: int = 128) -> socket.socket:
    found = socket.socket(socket.AF_UNIX)
    found.bind(str(path))
    found.listen(backlog)
    return found


@contextlib.asynccontextmanager
async def relaying(folder: Path, handler: Handler) -> AsyncIterator[Relay]:
    """From `early` in the folder to a server at `late`."""
    server = await asyncio.start_unix_server(handler, folder / "late")
    relay = Relay(listening(folder / "early"))
    try:
        relay.to(folder / "late")
        yield relay
    finally:
        await relay.close()
        server.close()


async def output(path: Path, text: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(text)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


@asynchronous
async def test_an_end_on_one_side_leaves_the_other_way_open(tmp_path: Path) -> None:
    async with relaying(tmp_path, echo) as relay:
        assert await output(tmp_path / "early", b"x" * 300_000) == b"heard " + b"x" * 300_000
        await until(lambda: not relay.carried)


@asynchronous
async def test_relay_answers_every_waiting_connection(tmp_path: Path) -> None:
    waiting = []
    early = listening(tmp_path / "early")
    for number in range(100):
        client = socket.socket(socket.AF_UNIX)
        client.connect(str(tmp_path / "early"))
        client.sendall(b"%d" % number)
        client.shutdown(socket.SHUT_WR)
        client.setblocking(False)
        waiting.append(client)
    server = await asyncio.start_unix_server(echo, tmp_path / "late")
    relay = Relay(early)
    relay.to(tmp_path / "late")
    loop = asyncio.get_running_loop()
    for number, client in enumerate(waiting):
        with client:
            assert await loop.sock_recv(client, 99) == b"heard %d" % number
    await until(lambda: not relay.carried)
    await relay.close()
    server.close()


@asynchronous
async def test_relay_slow_reader_stops_the_writer(tmp_path: Path) -> None:
    written, whole = 0, 64 << 20

    async def flood(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.transport.set_write_buffer_limits(high=0)
        while written < whole:
            writer.write(b"x" * 65536)
            await writer.drain()
            written += 65536
        writer.close()

    async with relaying(tmp_path, flood):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "early", limit=1024)
        before = -1
        while before != written:  # until nothing moves any more
            before = written
            await asyncio.sleep(0.1)
        assert 0 < written < 4 << 20
        count = 0
        while piece := await reader.read(1 << 20):
            count += len(piece)
        assert count == whole
        writer.close()


@pytest.mark.parametrize("goes", ["client", "server"])
@asynchronous
async def test_relay_broken_side_closes_the_other(tmp_path: Path, goes: str) -> None:
    ended = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        if goes == "server":
            writer.transport.abort()
            return
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        ended.set()
        writer.close()

    async with relaying(tmp_path, handler) as relay:
        reader, writer = await asyncio.open_unix_connection(tmp_path / "early")
        writer.write(b"x")
        if goes == "client":
            await until(lambda: bool(relay.carried))
            writer.transport.abort()
            await ended.wait()
        else:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
        await until(lambda: not relay.carried)


@asynchronous
async def test_relay_peer_that_leaves_ends_both_directions(tmp_path: Path) -> None:
    """The system tells the relay of an error then, rather than of an end."""
    ended = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"never read")
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        ended.set()
        writer.close()

    async with relaying(tmp_path, handler) as relay:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "early"))
            client.setblocking(False)
            arrived = asyncio.Event()
            asyncio.get_running_loop().add_reader(client, arrived.set)
            await arrived.wait()
            asyncio.get_running_loop().remove_reader(client)
        await ended.wait()
        await until(lambda: not relay.carried)
        await until(lambda: not any("_pump" in repr(task) for task in asyncio.all_tasks()))


@asynchronous
async def test_connection_waits_until_the_server_can_be_reached(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    relay = Relay(listening(tmp_path / "early"))
    relay.to(tmp_path / "late")
    asking = asyncio.create_task(output(tmp_path / "early", b"it"))
    await asyncio.sleep(0.1)
    assert not asking.done()
    assert 0 < len(caplog.records) < 5
    server = await asyncio.start_unix_server(echo, tmp_path / "late")
    assert await asking == b"heard it"
    await relay.close()
    server.close()


@asynchronous
async def test_relay_at_rest_accepts_nothing_and_continues_open_connections(tmp_path: Path) -> None:
    async with relaying(tmp_path, echo) as relay:
        reader, writer = await asyncio.open_unix_connection(tmp_path / "early")
        await until(lambda: relay.carried == 1)
        relay.rest()
        late = asyncio.create_task(output(tmp_path / "early", b"late"))
        writer.write(b"early")
        writer.write_eof()
        assert await reader.read() == b"heard early"
        writer.close()
        assert not late.done()
        relay.to(tmp_path / "late")
        assert await late == b"heard late"
