"""The gRPC listener: names of peers, the number of connections, and its end."""

from __future__ import annotations

import asyncio
import resource
import ssl

import pytest

from edged.api.grpc.listener import Listener, most_connections, peer_of
from edged.api.http2.call import Call
from edged.api.http2.limits import Limits
from tests.waiting import until


@pytest.mark.parametrize(
    ("address", "peer"),
    [
        (("127.0.0.1", 5), "ipv4:127.0.0.1:5"),
        (("::ffff:10.0.0.1", 5, 0, 0), "ipv4:10.0.0.1:5"),
        (("::1", 5, 0, 0), "ipv6:[::1]:5"),
        (("fe80::1", 5, 0, 2), "ipv6:[fe80::1%2]:5"),
        (("fe80::1%eth0", 5, 0, 2), "ipv6:[fe80::1%2]:5"),
    ],
)
def test_peer_of_address_has_the_format_of_grpc(address: tuple[str | int, ...], peer: str) -> None:
    assert peer_of(address) == peer


@pytest.mark.parametrize(("descriptors", "most"), [(1024, 224), (8192, 1024), (-1, 1024), (64, 16), (512, 96)])
def test_most_connections_leaves_descriptors_for_other_uses(descriptors: int, most: int) -> None:
    assert most_connections(descriptors) == most


async def test_stop_during_a_handshake_disconnects_the_client() -> None:
    async def handle(call: Call) -> None:
        raise AssertionError

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    listener = Listener("127.0.0.1:0", Limits(), handle, secure=lambda: context)
    await listener.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(listener.address.rpartition(":")[2]))
    await asyncio.sleep(0.05)  # until the connection is accepted
    await asyncio.wait_for(listener.stop(1.0), 5.0)
    assert await asyncio.wait_for(reader.read(), 5.0) == b""
    writer.close()


async def test_unfinished_handshakes_count_once_as_connections() -> None:
    async def handle(call: Call) -> None:
        raise AssertionError

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        listener = Listener("127.0.0.1:0", Limits(), handle, secure=lambda: context)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    await listener.start()
    port = int(listener.address.rpartition(":")[2])
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(most_connections(512) + 3)]
    closed = [asyncio.ensure_future(reader.read()) for reader, _ in opened]
    await until(lambda: sum(each.done() for each in closed) == 3, "three connections beyond the limit are closed")
    await asyncio.sleep(0.1)
    assert sum(each.done() for each in closed) == 3
    await listener.stop(0.0)
    for _, writer in opened:
        writer.close()
    await asyncio.gather(*closed, return_exceptions=True)
