"""What a connection may do to the daemon before any call of it is looked at: the bounds that gRPC's server keeps.

Whatever clients are, a connection costs a descriptor and some memory, a stream a little of it, a ping or a reset some
of the loop's time. Clients of Triton and its perf_analyzer set keepalives of their own, of 100 ms at the shortest seen;
these stay far inside of what is allowed.
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
_OTHERS = 128  # descriptors that are for everything else: hosts, children, engines, HTTP, ZeroMQ
_ADDRESSES = 4  # that may share what is left

Option = tuple[str, int]

_FIXED: tuple[Option, ...] = (
    # Answers may be as large as a model's outputs; what they may have is bounded where they are made.
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),  # a second daemon on the same port is an error, not a lottery
    # Of a call: names, values and 32 bytes for each. With both equal, no call is refused by chance.
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.absolute_max_metadata_size", 16 << 10),
    ("grpc.max_concurrent_streams", 1024),  # of a connection; as many as one client may have at all
    # A message that was packed is as large as the limit once it is unpacked, whatever it took to send it. So none is
    # unpacked: calls that say that they are packed end as UNIMPLEMENTED, and others are taken as they come.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.per_message_decompression", 0),
    # Calls that came and are not looked at yet, of all connections. While streams are opened and reset as fast as a
    # client can, those of others wait among them rather than be cut off, which gRPC does from the first number on.
    ("grpc.server.max_pending_requests", 4096),
    ("grpc.server.max_pending_requests_hard_limit", 8192),
    # A client whose network has gone does not keep its cameras for hours.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Nor does one that never says what it wants: until TLS and HTTP/2 are agreed upon.
    ("grpc.server_handshake_timeout_ms", 10_000),
    # A client may ping while it has no call, and as often as any was seen to; who pings faster than that, again and
    # again, is sent away. Each answer and each header sent starts the count anew, as gRPC has it.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 20),
    ("grpc.http2.max_ping_strikes", 100),
)


# After which clients are asked to connect anew, which they do for their next call, and lose none. Not at once: while a
# connection is still being agreed upon, gRPC loses calls over it, or waits 20 s for a ping.
_BRIEF: Option = ("grpc.max_connection_age_ms", 10_000)


def options(max_message_mb: int, is_brief: bool = False) -> list[Option]:
    """What gRPC's server of one address is told. Connections to a brief one last ten seconds, or as long as the calls
    that began meanwhile.

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
    """How many connections one address takes where a process may have so many descriptors: those that are there go on
    when there are too many, since some are left for everything else. Pure."""
    if descriptors < 0:  # as many as one likes
        return _MOST_CONNECTIONS
    return min(_MOST_CONNECTIONS, max(_FEWEST_CONNECTIONS, (descriptors - _OTHERS) // _ADDRESSES))


def raise_descriptor_limit(most: int = 8192) -> None:
    """Lets this process have as many descriptors as it may at most, up to `most`: services start with 1024, which is
    for programs that use select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


# A header that is no UTF-8; a stream that is reset while its answer leaves.
_PROVOKED = ("Invalid encoding", "ExecuteBatchError raised in core")


class _Provoked(logging.Filter):
    """What a client is to blame for is one line, without gRPC's traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        if str(record.msg).startswith(_PROVOKED):
            record.exc_info = record.exc_text = None
            record.levelno, record.levelname = logging.WARNING, logging.getLevelName(logging.WARNING)
        return True


def quieten() -> None:
    """Keeps what any client can provoke from looking like trouble of the daemon in its log."""
    logger = logging.getLogger("grpc._cython.cygrpc")
    if not any(isinstance(each, _Provoked) for each in logger.filters):
        logger.addFilter(_Provoked())


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


class TrafficMonitor:
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
