"""A path that systemd listens at, lent to the daemon's own socket while it runs.

The daemon's socket is bound beside it and renamed over it, so that there is somebody at the path at every moment, and
who comes afterwards reaches gRPC itself. systemd's goes on under a name of its own, from which it is renamed back. Who
had come to it before is relayed, to a server that asks clients to connect anew: their next call goes to the path. The
next start finds out by these names what a daemon that was killed has left.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import logging
import os
import socket
from pathlib import Path

from edged.api.endpoints.address import make_way, require_socket
from edged.api.grpc.relay import Relay
from edged.errors import ConfigError

_LOG = logging.getLogger("edged.api")


class Whereabouts(enum.Enum):
    """Where systemd's socket can be reached."""

    PATH = "at its path"
    BESIDE = "beside it, where a daemon that was killed has left it"
    LOST = "nowhere: its names were removed"
    OTHER = "beside it, and another daemon is at the path"


def whereabouts(is_answered: bool, is_answered_beside: bool, are_one: bool) -> Whereabouts:
    """Of systemd's socket, by whether somebody is at the path and at the name beside it, and whether both are the same
    file. Pure."""
    if is_answered and is_answered_beside and not are_one:
        return Whereabouts.OTHER
    if is_answered:
        return Whereabouts.PATH
    return Whereabouts.BESIDE if is_answered_beside else Whereabouts.LOST


class Handover:
    """Of one path. `listening` is systemd's socket, as it was passed."""

    def __init__(self, path: Path, listening: socket.socket) -> None:
        self.path = path
        self.relay = Relay(listening)
        self.is_lent = False  # from `enter` to `leave`
        self.early = path.with_name(f".{path.name}.early")  # where those are carried who came to systemd's socket
        self._aside = path.with_name(f".{path.name}.new")
        self._kept = path.with_name(f".{path.name}.systemd")

    def prepare(self) -> Path:
        """Where a server is to bind its socket. Nothing changes yet for who connects.

        ConfigError where somebody else is at the path; OSError where systemd's socket cannot have a second name.
        """
        require_socket(self.path)
        found = whereabouts(_is_answered(self.path), _is_answered(self._kept), _are_one(self.path, self._kept))
        if found is Whereabouts.OTHER:
            raise ConfigError(f"another daemon listens on {self.path}; stop it or listen elsewhere")
        if found is Whereabouts.PATH:
            self._kept.unlink(missing_ok=True)
            try:
                os.link(self.path, self._kept)
            except PermissionError as error:  # as Linux has it for files of others
                raise ConfigError(
                    f"cannot listen on {self.path}: systemd's socket there is another user's;"
                    " set SocketUser= of its unit to the daemon's user"
                ) from error
        elif found is Whereabouts.LOST:
            _LOG.warning(
                "%s is systemd's no more: nothing listens there once the daemon stops; restart its socket unit then",
                self.path,
            )
        make_way(self._aside)
        return self._aside

    def enter(self) -> None:
        """The server's socket is at the path from now on. OSError where it cannot be."""
        os.rename(self._aside, self.path)
        self.is_lent = True
        self.relay.to(self.early)

    def leave(self) -> None:
        """systemd's socket is at the path again; who connects waits there."""
        self.relay.rest()
        try:
            if self.is_lent:
                self._restore()
            self._kept.unlink(missing_ok=True)
        except OSError as error:
            _LOG.error("%s cannot be given back to systemd: %s", self.path, error.strerror or error)
        self.is_lent = False

    def _restore(self) -> None:
        try:
            os.rename(self._kept, self.path)
        except FileNotFoundError:
            self.path.unlink(missing_ok=True)


def _is_answered(path: Path) -> bool:
    """Whether a living socket has this name. Nobody who listens there notices: a datagram reaches no stream."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(str(path))
        except OSError as error:
            return error.errno in (errno.EPROTOTYPE, errno.EACCES)
    return True


def _are_one(path: Path, other: Path) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(path.lstat(), other.lstat())
    return False
