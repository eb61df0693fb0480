"""What a connection may do to the daemon before any call of it is looked at: the bounds that gRPC's server keeps.

Whatever clients are, a connection costs a descriptor and some memory, a stream a little of it, a ping or a reset some
of the loop's time. Clients of Triton and its perf_analyzer set keepalives of their own, of 100 ms at the shortest seen;
these stay far inside of what is allowed.
"""

from __future__ import annotations

import logging
import resource

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
