"""The sockets that systemd has opened for the daemon before it ran: found at its start, each lent to the address of the
same path."""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

from edged import systemd
from edged.api.endpoints.address import unix_path
from edged.api.grpc.handover import Handover

_LOG = logging.getLogger("edged.api")


class Activation:
    """What was passed, by path. Nothing, for a daemon that opens its sockets itself."""

    def __init__(self, sockets: Mapping[Path, socket.socket] | None = None, remarks: Sequence[str] = ()) -> None:
        """`remarks` are what the log is to say of it."""
        self._handovers = {path: Handover(path, each) for path, each in (sockets or {}).items()}
        self._remarks = remarks
        self._told: set[Path] = set()  # to be where nobody answers

    @classmethod
    def take(cls, environment: MutableMapping[str, str], pid: int) -> Activation:
        """What the environment of the process says, which says it to nobody afterwards.

        To be called before anything else opens descriptors. A socket that cannot be used is closed.
        """
        found: dict[Path, socket.socket] = {}
        remarks: list[str] = []
        for descriptor, name in systemd.passed_descriptors(environment, pid):
            try:
                each = socket.socket(fileno=descriptor)
            except OSError as error:
                remarks.append(f"descriptor {descriptor} of LISTEN_FDS ({name}) is no socket; it stays unused")
                if error.errno == errno.EBADF:  # nothing was passed there, nor beyond
                    break
                os.set_inheritable(descriptor, False)
                continue
            each.set_inheritable(False)
            path = _path_of(each)
            if path is None or path in found:
                remarks.append(f"the socket {name} of systemd is none that gRPC's clients connect to; it is closed")
                each.close()
            else:
                found[path] = each
        systemd.forget_descriptors(environment)
        return cls(found, remarks)

    def at(self, address: str) -> Handover | None:
        """What is passed for an address, if anything."""
        return self._handovers.get(_true(unix_path(address))) if address.startswith("unix:") else None

    def start(self) -> None:
        """Once every address answers."""
        for remark in self._remarks:
            _LOG.warning("%s", remark)
        self.turn_away()

    def turn_away(self) -> None:
        """Closes connections that come where the configuration has no address, rather than let them wait for as long as
        the daemon runs."""
        for path, handover in self._handovers.items():
            if handover.is_lent:
                continue
            if path not in self._told:
                _LOG.warning("systemd listens on %s, where no address is configured: who connects is turned away", path)
                self._told.add(path)
            handover.relay.away()

    def rest(self) -> None:
        """Accepts nobody any more: who connects waits for the next start of the daemon."""
        for handover in self._handovers.values():
            handover.relay.rest()

    async def close(self) -> None:
        """Ends the connections that are relayed."""
        for handover in self._handovers.values():
            await handover.relay.close()


def _path_of(each: socket.socket) -> Path | None:
    """Where a unix socket listens for streams; None for anything else, and for one without a path."""
    if each.family != socket.AF_UNIX or each.type != socket.SOCK_STREAM:
        return None
    name = each.getsockname()
    is_listening = each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    return _true(Path(name)) if is_listening and isinstance(name, str) and name.startswith("/") else None


def _true(path: Path) -> Path:
    """The one name of a path whose folder may be reached by several, as /var/run is."""
    return Path(os.path.realpath(path.parent)) / path.name
