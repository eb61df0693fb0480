"""Closes TCP connections that send far more than their calls account for.

gRPC refuses a call whose headers are larger than its limit, but reads on until the headers end, and they need not: one
client without any role can keep a processor busy, and eight keep everyone else waiting for seconds. gRPC has no setting
for it. The kernel knows how much each connection has received, and the calls that were let in say what that was for.
What is left over may be the headers of some calls and one message of each open call.
Format: https://man7.org/linux/man-pages/man7/tcp.7.html (TCP_INFO), struct tcp_info of linux/tcp.h
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterator
from urllib.parse import unquote

import msgspec

from edged.files import NO_DESCRIPTORS

_LOG = logging.getLogger("edged.api")
_LOOK_SECONDS = 0.05
_BUSY = 0.05  # of one processor, from which on the daemon looks; what else runs on the box may leave it little
_BESIDE = 1 << 20  # bytes that a connection may send in a stretch of time without any call: pings, refused calls
_STRETCH_SECONDS = 10.0
_OF_A_CALL = 96 << 10  # headers, and what gRPC takes of a stream before anyone reads it
_OF_A_MESSAGE, _OVERHEAD = 256, 1.1  # frames of HTTP/2 and TLS, and word of what was read of the answers
_RECEIVED = struct.Struct("=128xQ")  # tcpi_bytes_received
_FAMILIES = (socket.AF_INET, socket.AF_INET6)


class Traffic(msgspec.Struct):
    """What one connection has sent that is accounted for. `open` are the calls that a message may be coming for, `cut`
    those that ended while one may have been coming."""

    open: int = 0
    cut: int = 0
    calls: int = 0
    messages: int = 0
    size: int = 0

    def add(self, size: int) -> None:
        """A message of so many bytes has come."""
        self.messages += 1
        self.size += size

    def accounted(self, max_message: int) -> float:
        """How many bytes calls account for, with a message that may be on its way for each open one."""
        calls = self.calls * _OF_A_CALL + self.messages * _OF_A_MESSAGE
        return calls + _OVERHEAD * (self.size + (self.open + self.cut) * max_message)


class Arrivals:
    """The traffic of connections by their peers, as gRPC names them. Of one event loop."""

    def __init__(self) -> None:
        self.closed = 0
        self._traffic: dict[str, Traffic] = {}
        self._before: dict[str, tuple[float, float]] = {}  # when a stretch began, and how much was too much by then

    def begin(self, peer: str) -> Traffic:
        """A call was let in: the traffic of its connection."""
        if peer.startswith("unix:"):  # whose file says who may use it
            return Traffic()
        traffic = self._traffic.setdefault(unquote(peer), Traffic())
        traffic.calls += 1
        return traffic

    async def watch(self, addresses: Callable[[], Collection[str]], max_message: int) -> None:
        """Looks at the connections to gRPC's `addresses` whenever the daemon is busy, until cancelled."""
        used, at = time.process_time(), time.monotonic()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            before, since = used, at
            used, at = time.process_time(), time.monotonic()
            ports = {int(each.rpartition(":")[2]) for each in addresses() if not each.startswith("unix:")}
            if not ports or used - before <= _BUSY * (at - since):
                continue
            try:
                received = await asyncio.to_thread(received_by, ports)
                if excessive := self.look(received, max_message, time.monotonic()):
                    await asyncio.to_thread(disconnect, ports, excessive)
            except OSError as error:  # nothing is lost by a look that is made again
                if error.errno not in NO_DESCRIPTORS:
                    raise
            used, at = time.process_time(), time.monotonic()  # a look must not count as work that calls for the next

    def look(self, received: dict[str, int], max_message: int, now: float) -> set[str]:
        """Returns the peers that sent too much, of all peers and the bytes that each has sent."""
        before, self._before = self._before, {}
        excessive: set[str] = set()
        for peer, size in received.items():
            excess = size - self._traffic.get(peer, Traffic()).accounted(max_message)
            since, had = before.get(peer, (now, max(0.0, excess)))
            if excess > had + _BESIDE:
                self.closed += 1
                _LOG.warning("%s sent %d MiB that belong to no call; it is disconnected", peer, size >> 20)
                excessive.add(peer)
            is_over = now - since > _STRETCH_SECONDS
            self._before[peer] = (now, max(0.0, excess)) if is_over else (since, had)
        for peer in [peer for peer, each in self._traffic.items() if not each.open and peer not in received]:
            del self._traffic[peer]
        return excessive


def received_by(ports: Collection[int]) -> dict[str, int]:
    """The bytes that came over each TCP connection to one of the ports, by its peer. OSError without descriptors."""
    found: dict[str, int] = {}
    for peer, connection in _connections(ports):
        with contextlib.suppress(OSError, struct.error):
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            found[peer] = _RECEIVED.unpack_from(info)[0]
    return found


def disconnect(ports: Collection[int], peers: Collection[str]) -> None:
    """Shuts the TCP connections of these peers to one of the ports. OSError without descriptors."""
    for peer, connection in _connections(ports):
        if peer in peers:
            with contextlib.suppress(OSError):  # it has gone by itself
                connection.shutdown(socket.SHUT_RDWR)


def _connections(ports: Collection[int]) -> Iterator[tuple[str, socket.socket]]:
    """Each TCP connection of this process to one of the ports, by its peer: a duplicate, closed before the next one. A
    process may hold one connection by several descriptors; it then comes as often."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            duplicate = os.dup(int(name))
        except OSError:
            continue
        try:
            connection = socket.socket(fileno=duplicate)
        except OSError:
            os.close(duplicate)
            continue
        with connection:
            try:
                if connection.family not in _FAMILIES or connection.getsockname()[1] not in ports:
                    continue
                peer = peer_of(connection.getpeername())
            except OSError:
                continue
            yield peer, connection


def peer_of(address: tuple[str | int, ...]) -> str:
    """A connection's other end as gRPC names it, but that nothing in it is quoted. A link-local address has the number
    of its interface."""
    host, port = str(address[0]).removeprefix("::ffff:"), address[1]
    if ":" not in host:
        return f"ipv4:{host}:{port}"
    link = f"%{address[3]}" if len(address) > 3 and address[3] else ""
    return f"ipv6:[{host.partition('%')[0]}{link}]:{port}"
