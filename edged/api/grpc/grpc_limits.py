"""Limits of a connection that apply before its calls are handled: options of gRPC's server, and a monitor of traffic.

A connection costs a descriptor and some memory, a stream a little of it, a ping or a reset some of the loop's time.
Clients of Triton and its perf_analyzer set keepalives of 100 ms at the shortest seen, far inside these limits.

gRPC refuses a call whose headers exceed its limit, but reads on until the headers end, and they need not: one client
without any role can keep a processor busy, and eight block everyone for seconds. gRPC has no setting for it. The kernel
knows how much each connection has received, and the admitted calls account for it. The rest may be the headers of some
calls and one message of each open call; a connection that sends far more is closed.
Format: https://man7.org/linux/man-pages/man7/tcp.7.html (TCP_INFO), struct tcp_info of linux/tcp.h
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterator
from urllib.parse import unquote

import msgspec

from edged.files import NO_DESCRIPTORS

_MOST_CONNECTIONS = 1024  # of one address
_FEWEST_CONNECTIONS = 16
_OTHERS = 128  # descriptors for everything else: hosts, children, engines, HTTP, ZeroMQ
_ADDRESSES = 4  # that may share what is left

Option = tuple[str, int]

_FIXED: tuple[Option, ...] = (
    # Responses may be as large as a model's outputs, which are bounded where they are made.
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),  # a second daemon on the same port is an error, not a lottery
    # Of a call: names, values and 32 bytes for each. With both equal, no call is refused by chance.
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.absolute_max_metadata_size", 16 << 10),
    ("grpc.max_concurrent_streams", 1024),  # of a connection; as many as one client may have at all
    # A compressed message can reach the limit with few bytes sent. So none is decompressed: compressed calls end as
    # UNIMPLEMENTED.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.per_message_decompression", 0),
    # Calls of all connections that are not looked at yet. While a client opens and resets streams as fast as it can,
    # those of others wait among them. gRPC begins to cut off calls at the first number.
    ("grpc.server.max_pending_requests", 4096),
    ("grpc.server.max_pending_requests_hard_limit", 8192),
    # A client whose network has gone does not keep its cameras for hours.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Until TLS and HTTP/2 are agreed upon: a client that sends nothing.
    ("grpc.server_handshake_timeout_ms", 10_000),
    # A client may ping while it has no call, as often as any client was seen to; one that keeps pinging faster is
    # disconnected. gRPC resets the count with each response and header that it sends.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 20),
    ("grpc.http2.max_ping_strikes", 100),
)


# After which clients are asked to reconnect for their next call; no call is lost. Not at once: during the handshake of
# a connection gRPC loses calls over it, or waits 20 s for a ping.
_BRIEF: Option = ("grpc.max_connection_age_ms", 10_000)


def options(max_message_mb: int, is_brief: bool = False) -> list[Option]:
    """Options of the gRPC server of one address. Connections to a brief one last ten seconds, or until the calls that
    began meanwhile end.

    Clients ask for messages up to INT32_MAX; what is accepted is bounded by the memory of a small box.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return [
        ("grpc.max_receive_message_length", max_message_mb << 20),
        ("grpc.max_allowed_incoming_connections", most_connections(soft)),
        *_FIXED,
        *([_BRIEF] if is_brief else []),
    ]


def most_connections(descriptors: int) -> int:
    """How many connections one address takes if a process may have so many descriptors, some of which are reserved.
    Pure."""
    if descriptors < 0:  # unlimited
        return _MOST_CONNECTIONS
    return min(_MOST_CONNECTIONS, max(_FEWEST_CONNECTIONS, (descriptors - _OTHERS) // _ADDRESSES))


def raise_descriptor_limit(most: int = 8192) -> None:
    """Raise the soft limit of descriptors to the hard limit, up to `most`: services start with 1024, which is for
    programs that use select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


# A header that is not UTF-8; a stream that is reset while its response is sent.
_PROVOKED = ("Invalid encoding", "ExecuteBatchError raised in core")


class _Provoked(logging.Filter):
    """Log errors that a client causes as one line, without gRPC's traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        if str(record.msg).startswith(_PROVOKED):
            record.exc_info = record.exc_text = None
            record.levelno, record.levelname = logging.WARNING, logging.getLevelName(logging.WARNING)
        return True


def quieten() -> None:
    """Log errors that clients cause as warnings without a traceback."""
    logger = logging.getLogger("grpc._cython.cygrpc")
    if not any(isinstance(each, _Provoked) for each in logger.filters):
        logger.addFilter(_Provoked())


_LOG = logging.getLogger("edged.api")
_LOOK_SECONDS = 0.05
_BUSY = 0.05  # of one processor, from which the daemon looks; other programs may leave it little
_WITHOUT_CALLS = 1 << 20  # bytes that a connection may send per stretch without any call: pings, refused calls
_STRETCH_SECONDS = 10.0
_OF_A_CALL = 96 << 10  # headers, and what gRPC buffers of a stream before it is read
_OF_A_MESSAGE, _OVERHEAD = 256, 1.1  # frames of HTTP/2 and TLS, and acknowledgements of responses
_RECEIVED = struct.Struct("=128xQ")  # tcpi_bytes_received
_FAMILIES = (socket.AF_INET, socket.AF_INET6)


class Traffic(msgspec.Struct):
    """The traffic of the calls of one connection. `open` calls may be receiving a message, `cut` ones ended while one
    may have been coming."""

    open: int = 0
    cut: int = 0
    calls: int = 0
    messages: int = 0
    size: int = 0

    def add(self, size: int) -> None:
        """Count a message of so many bytes."""
        self.messages += 1
        self.size += size

    def accounted(self, max_message: int) -> float:
        """The bytes that calls account for, with one message on its way for each open one."""
        calls = self.calls * _OF_A_CALL + self.messages * _OF_A_MESSAGE
        return calls + _OVERHEAD * (self.size + (self.open + self.cut) * max_message)


class TrafficMonitor:
    """The traffic of connections by peer, as gRPC names it. Of one event loop."""

    def __init__(self) -> None:
        self.closed = 0
        self._traffic: dict[str, Traffic] = {}
        self._before: dict[str, tuple[float, float]] = {}  # when a stretch began, and the excess by then

    def begin(self, peer: str) -> Traffic:
        """Count an admitted call, and return the traffic of its connection."""
        if peer.startswith("unix:"):  # its file decides who may use it
            return Traffic()
        traffic = self._traffic.setdefault(unquote(peer), Traffic())
        traffic.calls += 1
        return traffic

    async def watch(self, addresses: Callable[[], Collection[str]], max_message: int) -> None:
        """Check the connections to gRPC's `addresses` whenever the daemon is busy, until cancelled."""
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
            except OSError as error:  # the next look does as well
                if error.errno not in NO_DESCRIPTORS:
                    raise
            used, at = time.process_time(), time.monotonic()  # a look must not count as work that causes the next

    def look(self, received: dict[str, int], max_message: int, now: float) -> set[str]:
        """The peers that sent too much, given the bytes that each has sent."""
        before, self._before = self._before, {}
        excessive: set[str] = set()
        for peer, size in received.items():
            excess = size - self._traffic.get(peer, Traffic()).accounted(max_message)
            since, had = before.get(peer, (now, max(0.0, excess)))
            if excess > had + _WITHOUT_CALLS:
                self.closed += 1
                _LOG.warning("%s sent %d MiB without calls that account for it; disconnecting it", peer, size >> 20)
                excessive.add(peer)
            is_over = now - since > _STRETCH_SECONDS
            self._before[peer] = (now, max(0.0, excess)) if is_over else (since, had)
        for peer in [peer for peer, each in self._traffic.items() if not each.open and peer not in received]:
            del self._traffic[peer]
        return excessive


def received_by(ports: Collection[int]) -> dict[str, int]:
    """The bytes received over each TCP connection to one of the ports, by peer. OSError without descriptors."""
    found: dict[str, int] = {}
    for peer, connection in _connections(ports):
        with contextlib.suppress(OSError, struct.error):
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            found[peer] = _RECEIVED.unpack_from(info)[0]
    return found


def disconnect(ports: Collection[int], peers: Collection[str]) -> None:
    """Shut down the TCP connections of these peers to one of the ports. OSError without descriptors."""
    for peer, connection in _connections(ports):
        if peer in peers:
            with contextlib.suppress(OSError):  # already closed
                connection.shutdown(socket.SHUT_RDWR)


def _connections(ports: Collection[int]) -> Iterator[tuple[str, socket.socket]]:
    """Each TCP connection of this process to one of the ports, by peer: a duplicate, closed before the next. A
    connection held by several descriptors comes several times."""
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
    """The other end of a connection as gRPC names it, without quoting. A link-local address has its interface
    number."""
    host, port = str(address[0]).removeprefix("::ffff:"), address[1]
    if ":" not in host:
        return f"ipv4:{host}:{port}"
    link = f"%{address[3]}" if len(address) > 3 and address[3] else ""
    return f"ipv6:[{host.partition('%')[0]}{link}]:{port}"
