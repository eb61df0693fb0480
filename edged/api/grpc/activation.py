"""The sockets that systemd has opened for the daemon before it ran: found at its start, each lent to the address of the
same path."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import errno
import logging
import os
import resource
import socket
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path

from edged import systemd
from edged.api.endpoints.address import make_way, require_socket, unix_path
from edged.api.grpc import grpc_limits
from edged.errors import ConfigError

_LOG = logging.getLogger("edged.api")
_BUFFER = 64 << 10  # bytes, of each way of a connection
_RELAY_AGAIN_SECONDS = 0.2  # until another try where the one that answers cannot be reached, or descriptors are used up


class Relay:
    """Accepts at `listening`, which is closed with it. It rests until it is told where to."""

    def __init__(self, listening: socket.socket) -> None:
        listening.setblocking(False)
        self._listening = listening
        self._target = Path()
        self._heed: Callable[[], None] = self._turn_next_away
        self._most = 0
        self._carried: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None

    @property
    def carried(self) -> int:
        """How many connections there are."""
        return len(self._carried)

    def to(self, path: Path) -> None:
        """Carries connections to the socket at `path` from now on."""
        self._target = path
        self._most = grpc_limits.most_connections(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._watch(self._carry_next)

    def away(self) -> None:
        """Closes connections as they come, so that who made one knows at once."""
        self._watch(self._turn_next_away)

    def rest(self) -> None:
        """Leaves connections that come where they are. Those that are carried go on."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        asyncio.get_running_loop().remove_reader(self._listening)

    async def close(self) -> None:
        """Ends what is carried."""
        self.rest()
        for task in self._carried:
            task.cancel()
        await asyncio.gather(*self._carried, return_exceptions=True)
        self._listening.close()

    def _watch(self, heed: Callable[[], None]) -> None:
        """Calls it for every connection that waits, one at a time."""
        self.rest()
        self._heed = heed
        asyncio.get_running_loop().add_reader(self._listening, heed)

    def _carry_next(self) -> None:
        """Of a connection that waits. It is accepted once there is somewhere to go, and so is never lost between."""
        if len(self._carried) >= self._most:
            self._try_later()
            return
        try:
            server = _connected(self._target)
        except OSError as error:
            _LOG.warning("who connected early waits until %s can be reached: %s", self._target, error.strerror or error)
            self._try_later()
            return
        try:
            client, _ = self._listening.accept()
        except OSError:
            server.close()
            self._try_later()
            return
        client.setblocking(False)
        task = asyncio.get_running_loop().create_task(_carry(client, server))
        self._carried.add(task)
        task.add_done_callback(self._carried.discard)

    def _turn_next_away(self) -> None:
        try:
            client, _ = self._listening.accept()
        except OSError:
            self._try_later()
            return
        client.close()

    def _try_later(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listening)
        self._pause = loop.call_later(_RELAY_AGAIN_SECONDS, self._watch, self._heed)


def _connected(path: Path) -> socket.socket:
    """A connection to the socket there: at once or not at all, as unix sockets do. OSError where it cannot be."""
    with contextlib.ExitStack() as undo:
        server = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        server.setblocking(False)
        server.connect(str(path))
        undo.pop_all()
    return server


async def _carry(client: socket.socket, server: socket.socket) -> None:
    """Both ways, each until its sender ends; both are closed then."""
    with client, server:
        await asyncio.gather(_pump(client, server), _pump(server, client))


async def _pump(source: socket.socket, sink: socket.socket) -> None:
    """One way, no faster than it is read. An end at `source` is one at `sink`; where either breaks, both do."""
    loop, buffer = asyncio.get_running_loop(), memoryview(bytearray(_BUFFER))
    try:
        while count := await loop.sock_recv_into(source, buffer):
            await loop.sock_sendall(sink, buffer[:count])
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


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
