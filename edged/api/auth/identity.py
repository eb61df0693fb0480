"""Finds the user of this machine that makes a call. The daemon opens files for a client only if that user could open
them.

For a call over a unix socket, the mode of the socket's file decides: the user counts as the file's owner, as any member
of the file's group, or as anyone. For a call over loopback, the kernel's table of connections names the user.
"""

from __future__ import annotations

import contextlib
import functools
import grp
import os
import pwd
import socket
import stat
import struct
import time
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote

import msgspec

from edged.api.auth.policy import Caller
from edged.api.endpoints.address import unix_path

READ, WRITE = 4, 2  # the bits of one class of a file's mode
_MEMBERS_SECONDS = 60  # how long the members of a group are cached
_CONNECTIONS = Path("/proc/net")  # folder of the kernel's tables of connections
_ESTABLISHED = b"01"
_MAPPED = bytes(10) + b"\xff\xff"

# The caller of the current task; set when a call is admitted.
CURRENT: ContextVar[Caller | None] = ContextVar("caller", default=None)


class Identity(msgspec.Struct, frozen=True):
    """A caller, for checks of file permissions: the user `uid`, or any member of the group `gid`. If both are None,
    only the permissions for others apply. `name` distinguishes clients."""

    name: str
    uid: int | None = None
    gid: int | None = None

    def may(self, status: os.stat_result, wanted: int) -> bool:
        """Whether this user or group could open a file to READ or WRITE, by the file's owner, group and mode."""
        if self.uid == 0:
            return True
        if self.uid is not None and status.st_uid == self.uid:
            return bool(stat.S_IMODE(status.st_mode) >> 6 & wanted)
        if self.gid is not None and status.st_gid == self.gid:
            return bool(stat.S_IMODE(status.st_mode) >> 3 & wanted)
        return bool(status.st_mode & wanted)


ANYONE = Identity("anyone")
# Returns the caller's identity. Called only if a request refers to a file or to shared memory.
Identify: TypeAlias = Callable[[], Identity]


def anyone() -> Identity:
    return ANYONE


def current(peer: str) -> Identity:
    """Return the identity of the current call's client. `peer` is the client as gRPC names it."""
    caller = CURRENT.get()
    address = caller.address if caller is not None else ""
    if address.startswith("unix:"):
        return of_socket(unix_path(address))
    return of_peer(peer)


def namespace(peer: str) -> str:
    """Return the name that separates the shared memory regions and sequences of the current call's client from those of
    other clients. The name comes from the client's token or certificate. If the client sent neither, the name comes
    from the unix socket, from the client's user (loopback), or from the client's host."""
    caller = CURRENT.get()
    if caller is not None and caller.has_shown:
        return caller.key
    found = current(peer)
    return found.name if found != ANYONE or caller is None else caller.key


def of_socket(path: Path) -> Identity:
    """Return who can connect to a unix socket: its owner, the group that may open it, or anyone."""
    name = f"socket {path}"
    try:
        status = path.stat()
    except OSError:
        return msgspec.structs.replace(ANYONE, name=name)
    if status.st_mode & stat.S_IWOTH:
        return msgspec.structs.replace(ANYONE, name=name)
    # Members of root's group, such as system accounts of some distributions, are trusted like root.
    if status.st_mode & stat.S_IWGRP and status.st_gid != 0:
        others = _members(status.st_gid, int(time.monotonic() / _MEMBERS_SECONDS)) - {0, status.st_uid}
        if others:
            return Identity(name, gid=status.st_gid)
    return Identity(name, status.st_uid, status.st_gid)


@functools.lru_cache(maxsize=64)
def _members(gid: int, period: int) -> frozenset[int]:
    """Return the users in a group: users with this primary group, and users that the group lists. The result is cached
    until `period` changes."""
    with contextlib.suppress(KeyError):
        named = set(grp.getgrgid(gid).gr_mem)
        return frozenset(user.pw_uid for user in pwd.getpwall() if user.pw_gid == gid or user.pw_name in named)
    return frozenset(user.pw_uid for user in pwd.getpwall() if user.pw_gid == gid)


def of_peer(peer: str) -> Identity:
    """Return the user at the other end of a connection over loopback; ANYONE if the user is unknown."""
    kind, _, rest = peer.partition(":")
    host, _, port = unquote(rest).rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdecimal():
        return ANYONE
    with contextlib.suppress(OSError, ValueError):
        packed = socket.inet_pton(socket.AF_INET if kind == "ipv4" else socket.AF_INET6, host.strip("[]"))
        uids = set[int]()
        if kind == "ipv4":
            uids |= _owners(_CONNECTIONS / "tcp", packed, int(port))
            packed = _MAPPED + packed
        uids |= _owners(_CONNECTIONS / "tcp6", packed, int(port))
        if len(uids) == 1:
            (uid,) = uids
            return Identity(f"user {uid}", uid)
    return ANYONE


def _owners(table: Path, host: bytes, port: int) -> set[int]:
    """Return the users that own a connection from `host` and `port`. Format: Documentation/networking/proc_net_tcp.rst
    of Linux."""
    words = struct.unpack(f">{len(host) // 4}I", host)
    local = b"".join(b"%08X" % socket.ntohl(word) for word in words) + b":%04X" % port
    try:
        rows = (row.split() for row in table.read_bytes().splitlines() if local in row)
        return {int(row[7]) for row in rows if row[1] == local and row[3] == _ESTABLISHED}
    except FileNotFoundError:  # a kernel without IPv6
        return set()
