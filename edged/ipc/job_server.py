"""Messages between the daemon and its job server. Each message is one packet of JSON on a SOCK_SEQPACKET socket.

The server sends one `Reply` when it is ready, and then answers every request with a `Reply`, in order.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Fork(msgspec.Struct, frozen=True, tag=True):
    """Start a child. Three descriptors come with this message: a file, and the child's standard output and error.

    The file contains an `Order` as `size` bytes of JSON, and then the job. The child's standard input is the part of
    the file with the job. The order is in a file because its size has no limit. `despite_changes`: start the child even
    if libraries have changed since the server imported them.
    """

    size: int
    despite_changes: bool = False


class Order(msgspec.Struct, frozen=True):
    """How to start a child. `arguments` are the arguments of `edged.jobs.main.run` except the first, the server's pid,
    which the server adds. If `command` is not empty, the child runs the program `command[0]` instead of `run`. The
    program gets the rest of `command`, and then the arguments of `run`."""

    arguments: tuple[str, ...]
    command: tuple[str, ...] = ()


class Release(msgspec.Struct, frozen=True, tag=True):
    """Reap a child as soon as it has ended. The system does not reuse the child's pid before the child is reaped."""

    pid: int


Request: TypeAlias = Fork | Release


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to a `Fork` or a `Release`.

    After a `Fork`: the child's `pid`, or the `error` number of the system call that failed. If `is_stale`, libraries on
    disk have changed since the server imported them, and the daemon must start another server.

    After a `Release`: the child's exit `status`, negative for a signal; None if it has not ended yet.
    """

    pid: int = 0
    error: int = 0
    is_stale: bool = False
    status: int | None = None
