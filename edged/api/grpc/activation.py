"""systemd socket activation: sockets that systemd opened before the daemon started, each matched to an address by its
path. systemd keeps the sockets open, so clients that connect while the daemon is stopped wait for its next start."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

from edged import systemd
from edged.api.endpoints.address import unix_path
from edged.files import NO_DESCRIPTORS

_LOG = logging.getLogger("edged.api")
_AGAIN_SECONDS = 0.2  # seconds until the next try if no descriptors are left


class Activation:
    """The sockets that systemd passed, each with its path. Empty if the daemon opens all sockets itself."""

    def __init__(self, sockets: Mapping[Path, socket.socket] | None = None, remarks: Sequence[str] = ()) -> None:
        """`remarks` are lines for the log, which `start` writes."""
        self._sockets = dict(sockets or {})
        self._remarks = remarks
        self._served: set[Path] = set()
        self._warned: set[Path] = set()  # paths without an address, about which the log has a warning
        self._turned_away: set[Path] = set()

    @classmethod
    def take(cls, environment: MutableMapping[str, str], pid: int) -> Activation:
        """Return the sockets that systemd passed to process `pid`, and remove systemd's variables from `environment`.

        Call this before anything else opens descriptors. Unusable sockets are closed.
        """
        found: dict[Path, socket.socket] = {}
        remarks: list[str] = []
        for descriptor, name in systemd.passed_descriptors(environment, pid):
            try:
                each = socket.socket(fileno=descriptor)
            except OSError as error:
                remarks.append(f"descriptor {descriptor} of LISTEN_FDS ({name}) is not a socket; it is ignored")
                if error.errno == errno.EBADF:  # this descriptor was not passed, nor any after it
                    break
                os.set_inheritable(descriptor, False)
                continue
            each.set_inheritable(False)
            path = _path_of(each)
            if path is None or path in found:
                remarks.append(f"closed systemd socket {name}: it is not a listening unix socket with its own path")
                each.close()
            else:
                found[path] = each
        systemd.forget_descriptors(environment)
        return cls(found, remarks)

    def take_over(self, address: str) -> socket.socket | None:
        """Return a socket that serves an address; the caller must close the socket. None if systemd does not listen at
        the address."""
        path = _true(unix_path(address)) if address.startswith("unix:") else None
        if path is None or (found := self._sockets.get(path)) is None:
            return None
        self._served.add(path)
        self._rest(path)
        served = found.dup()
        served.setblocking(False)
        return served

    def give_back(self, address: str) -> None:
        """Record that the daemon no longer serves an address. New clients wait at systemd's socket until `turn_away`,
        or until the daemon serves the address again."""
        if address.startswith("unix:"):
            self._served.discard(_true(unix_path(address)))

    def start(self) -> None:
        """Log the remarks, and from now on close connections to paths that are not served. Call this as soon as every
        address is served."""
        for remark in self._remarks:
            _LOG.warning("%s", remark)
        self.turn_away()

    def turn_away(self) -> None:
        """From now on, close connections to paths that the daemon does not serve: their clients would wait."""
        for path, each in self._sockets.items():
            if path in self._served:
                continue
            if path not in self._warned:
                _LOG.warning(
                    "systemd listens on %s, which is not configured: connections are closed; add the path to 'listen'",
                    path,
                )
                self._warned.add(path)
            each.setblocking(False)
            self._turned_away.add(path)
            self._watch(path)

    def rest(self) -> None:
        """Stop closing connections: new connections wait for the next start of the daemon."""
        for path in list(self._turned_away):
            self._rest(path)

    def close(self) -> None:
        """Close the daemon's descriptors; systemd keeps its own open."""
        self.rest()
        for each in self._sockets.values():
            each.close()

    def _rest(self, path: Path) -> None:
        if path in self._turned_away:
            self._turned_away.discard(path)
            asyncio.get_running_loop().remove_reader(self._sockets[path])

    def _watch(self, path: Path) -> None:
        if path in self._turned_away:
            asyncio.get_running_loop().add_reader(self._sockets[path], self._close_next, path)

    def _close_next(self, path: Path) -> None:
        try:
            client, _ = self._sockets[path].accept()
        except OSError as error:
            if error.errno in NO_DESCRIPTORS:
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._sockets[path])
                loop.call_later(_AGAIN_SECONDS, self._watch, path)
            return
        client.close()


def _path_of(each: socket.socket) -> Path | None:
    """Return the path of a listening unix stream socket; None for any other socket."""
    if each.family != socket.AF_UNIX or each.type != socket.SOCK_STREAM:
        return None
    name = each.getsockname()
    is_listening = each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    return _true(Path(name)) if is_listening and isinstance(name, str) and name.startswith("/") else None


def _true(path: Path) -> Path:
    """Return the path with its folder resolved, because folders such as /var/run are links."""
    return Path(os.path.realpath(path.parent)) / path.name
