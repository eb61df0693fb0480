"""Connections that send more than their calls account for are closed, and no others."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import time
from collections.abc import Iterator

import pytest

from edged.api.grpc.grpc_limits import TrafficMonitor, disconnect, peer_of, received_by

_MIB = 1 << 20


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection over loopback, the server's first."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        server, _ = listening.accept()
    with client, server:
        yield server, client


def _is_closed(client: socket.socket) -> bool:
    client.settimeout(0.2)
    with contextlib.suppress(TimeoutError):
        return client.recv(1) == b""
    return False


def _looked(monitor: TrafficMonitor, server: socket.socket, mebibytes: float, now: float = 0.0) -> None:
    excessive = monitor.look({peer_of(server.getpeername()): int(mebibytes * _MIB)}, 32 * _MIB, now)
    disconnect({server.getsockname()[1]}, excessive)


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_received_by_counts_bytes_and_leaves_no_descriptor(pair: tuple[socket.socket, socket.socket]) -> None:
    server, client = pair
    client.sendall(bytes(1000))
    assert server.recv(1000, socket.MSG_WAITALL)
    before = _descriptors()
    assert received_by({server.getsockname()[1]}) == {peer_of(server.getpeername()): 1000}
    assert _descriptors() == before


def test_received_by_a_connection_with_several_descriptors_leaves_no_descriptor(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    server, _ = pair
    with server.dup():
        before = _descriptors()
        for _ in range(3):
            assert len(received_by({server.getsockname()[1]})) == 1
        assert _descriptors() == before


def test_watch_without_free_descriptors_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []

    def fails(path: str) -> list[str]:
        looks.append(path)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    monkeypatch.setattr(os, "listdir", fails)

    async def run() -> None:
        watching = asyncio.create_task(TrafficMonitor().watch(lambda: ["localhost:5"], 32 * _MIB))
        deadline = time.monotonic() + 30
        while len(looks) < 2 and not watching.done() and time.monotonic() < deadline:
            sum(range(1_000_000))  # it looks while this process is busy
            await asyncio.sleep(0)
        assert not watching.done()
        watching.cancel()

    asyncio.run(run())
    assert len(looks) >= 2


def test_look_without_calls_closes_a_connection_that_sends_much(pair: tuple[socket.socket, socket.socket]) -> None:
    monitor, (server, client) = TrafficMonitor(), pair
    for size in (0, 0.9):
        _looked(monitor, server, size)
        assert not _is_closed(client)
    _looked(monitor, server, 2)
    assert _is_closed(client)
    assert monitor.closed == 1


def test_look_allows_slow_bytes(pair: tuple[socket.socket, socket.socket]) -> None:
    monitor, (server, client) = TrafficMonitor(), pair
    for stretch in range(50):
        _looked(monitor, server, 5 + 0.5 * stretch, now=20.0 * stretch)
    assert not _is_closed(client)


@pytest.mark.parametrize(
    ("open_calls", "size", "closed"), [(1, 30, False), (0, 30, True), (2, 60, False), (1, 60, True)]
)
def test_look_leaves_room_for_a_message_of_each_open_call(
    pair: tuple[socket.socket, socket.socket], open_calls: int, size: int, closed: bool
) -> None:
    monitor, (server, client) = TrafficMonitor(), pair
    monitor.begin(peer_of(server.getpeername())).open += open_calls
    _looked(monitor, server, 0)
    _looked(monitor, server, size)
    assert _is_closed(client) == closed


@pytest.mark.parametrize(("size", "count"), [(100 * _MIB, 5), (60, 1_000_000)])
def test_look_subtracts_the_bytes_of_messages(pair: tuple[socket.socket, socket.socket], size: int, count: int) -> None:
    monitor, (server, client) = TrafficMonitor(), pair
    traffic = monitor.begin(peer_of(server.getpeername()))
    _looked(monitor, server, 0)
    for _ in range(count):
        traffic.add(size)
    _looked(monitor, server, (size + 60) * count / _MIB)
    assert not _is_closed(client)


def test_look_forgets_connections_that_have_gone() -> None:
    monitor = TrafficMonitor()
    monitor.begin("ipv4:127.0.0.1:5").add(500 * _MIB)
    monitor.look({}, 32 * _MIB, 0.0)
    assert monitor.begin("ipv4:127.0.0.1:5").size == 0


def test_begin_over_a_unix_socket_keeps_nothing() -> None:
    monitor = TrafficMonitor()
    assert monitor.begin("unix:") is not monitor.begin("unix:")


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
def test_peer_of_names_as_grpc_does(address: tuple[str | int, ...], peer: str) -> None:
    assert peer_of(address) == peer
