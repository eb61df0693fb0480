"""systemd socket activation: sockets that systemd opened before the daemon ran, each matched to the address of its
path.

gRPC's Python library cannot take over an open socket. So the daemon binds its own socket under another name and renames
it over the path: the path has a listener at every moment, and new clients reach gRPC itself. systemd's socket keeps a
second name, from which it is renamed back when the daemon stops. Connections that had come to it before are relayed
byte for byte to a server that asks clients to reconnect: their next call goes to the path. After a kill, the next start
finds systemd's socket by these names."""

from __future__ import annotations

import asyncio
import contextlib
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
_RELAY_AGAIN_SECONDS = 0.2  # until the next try if the server cannot be reached, or no descriptors are left


class Relay:
    """Relays connections to `listening`, which is closed with it. Idle until `to` or `away` is called."""

    def __init__(self, listening: socket.socket) -> None:
        listening.setblocking(False)
        self._listening = listening
        self._target = Path()
        self._accept: Callable[[], None] = self._close_next
        self._most = 0
        self._carried: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None

    @property
    def carried(self) -> int:
        """The number of relayed connections."""
        return len(self._carried)

    def to(self, path: Path) -> None:
        """Relay connections to the socket at `path` from now on."""
        self._target = path
        self._most = grpc_limits.most_connections(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._watch(self._carry_next)

    def away(self) -> None:
        """Close connections as they come, so that clients notice at once."""
        self._watch(self._close_next)

    def rest(self) -> None:
        """Accept no more connections; relayed ones go on."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        asyncio.get_running_loop().remove_reader(self._listening)

    async def close(self) -> None:
        """End the relayed connections."""
        self.rest()
        for task in self._carried:
            task.cancel()
        await asyncio.gather(*self._carried, return_exceptions=True)
        self._listening.close()

    def _watch(self, accept: Callable[[], None]) -> None:
        """Call `accept` for every waiting connection, one at a time."""
        self.rest()
        self._accept = accept
        asyncio.get_running_loop().add_reader(self._listening, accept)

    def _carry_next(self) -> None:
        """Accept the next connection once the server is reached, so that it is never lost in between."""
        if len(self._carried) >= self._most:
            self._try_later()
            return
        try:
            server = _connected(self._target)
        except OSError as error:
            _LOG.warning("early connections wait until %s can be reached: %s", self._target, error.strerror or error)
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

    def _close_next(self) -> None:
        try:
            client, _ = self._listening.accept()
        except OSError:
            self._try_later()
            return
        client.close()

    def _try_later(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listening)
        self._pause = loop.call_later(_RELAY_AGAIN_SECONDS, self._watch, self._accept)


def _connected(path: Path) -> socket.socket:
    """Connect to a unix socket, which succeeds at once or fails. OSError."""
    with contextlib.ExitStack() as undo:
        server = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        server.setblocking(False)
        server.connect(str(path))
        undo.pop_all()
    return server


async def _carry(client: socket.socket, server: socket.socket) -> None:
    """Relay both directions until both senders end, then close both."""
    with client, server:
        await asyncio.gather(_pump(client, server), _pump(server, client))


async def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Relay one direction with backpressure. The end of `source` ends `sink`; if one breaks, both are shut down."""
    loop, buffer = asyncio.get_running_loop(), memoryview(bytearray(_BUFFER))
    try:
        while count := await loop.sock_recv_into(source, buffer):
            await loop.sock_sendall(sink, buffer[:count])
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class Handover:
    """The handover of one path. `listening` is the socket that systemd passed."""

    def __init__(self, path: Path, listening: socket.socket) -> None:
        self.path = path
        self.relay = Relay(listening)
        self.is_lent = False  # from `enter` to `leave`
        self.early = path.with_name(f".{path.name}.early")  # the target of connections to systemd's socket
        self._aside = path.with_name(f".{path.name}.new")
        self._second = path.with_name(f".{path.name}.systemd")

    def prepare(self) -> Path:
        """Return where to bind the server's socket; clients see no change yet.

        ConfigError if another daemon is at the path; OSError if systemd's socket cannot have a second name.
        """
        require_socket(self.path)
        is_at_path, is_at_second = _is_answered(self.path), _is_answered(self._second)
        if is_at_path and is_at_second and not _are_one(self.path, self._second):
            raise ConfigError(f"another daemon listens on {self.path}; stop it or listen elsewhere")
        if is_at_path:
            self._second.unlink(missing_ok=True)
            try:
                os.link(self.path, self._second)
            except PermissionError as error:  # Linux protects hard links to files of others
                raise ConfigError(
                    f"cannot listen on {self.path}: systemd's socket belongs to another user;"
                    " set SocketUser= of its unit to the daemon's user"
                ) from error
        elif not is_at_second:  # where a killed daemon leaves it
            _LOG.warning(
                "systemd lost its socket at %s: nothing listens there after the daemon stops; restart its unit",
                self.path,
            )
        make_way(self._aside)
        return self._aside

    def enter(self) -> None:
        """Put the server's socket at the path. OSError."""
        os.rename(self._aside, self.path)
        self.is_lent = True
        self.relay.to(self.early)

    def leave(self) -> None:
        """Put systemd's socket back at the path; new connections wait there."""
        self.relay.rest()
        try:
            if self.is_lent:
                self._restore()
            self._second.unlink(missing_ok=True)
        except OSError as error:
            _LOG.error("cannot give %s back to systemd: %s", self.path, error.strerror or error)
        self.is_lent = False

    def _restore(self) -> None:
        try:
            os.rename(self._second, self.path)
        except FileNotFoundError:
            self.path.unlink(missing_ok=True)


def _is_answered(path: Path) -> bool:
    """Whether a live socket has this name. Its listener does not notice: a datagram socket cannot connect to a
    stream."""
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
    """The passed sockets by path; none for a daemon that opens its sockets itself."""

    def __init__(self, sockets: Mapping[Path, socket.socket] | None = None, remarks: Sequence[str] = ()) -> None:
        """`remarks` are for the log."""
        self._handovers = {path: Handover(path, each) for path, each in (sockets or {}).items()}
        self._remarks = remarks
        self._warned: set[Path] = set()  # about paths without an address

    @classmethod
    def take(cls, environment: MutableMapping[str, str], pid: int) -> Activation:
        """Take the sockets that the environment names, and remove them from it.

        To be called before anything else opens descriptors. Unusable sockets are closed.
        """
        found: dict[Path, socket.socket] = {}
        remarks: list[str] = []
        for descriptor, name in systemd.passed_descriptors(environment, pid):
            try:
                each = socket.socket(fileno=descriptor)
            except OSError as error:
                remarks.append(f"descriptor {descriptor} of LISTEN_FDS ({name}) is not a socket; it is ignored")
                if error.errno == errno.EBADF:  # nothing was passed here or beyond
                    break
                os.set_inheritable(descriptor, False)
                continue
            each.set_inheritable(False)
            path = _path_of(each)
            if path is None or path in found:
                remarks.append(f"closed systemd socket {name}: it is not a listening unix socket with a path")
                each.close()
            else:
                found[path] = each
        systemd.forget_descriptors(environment)
        return cls(found, remarks)

    def at(self, address: str) -> Handover | None:
        """The handover of an address, if systemd listens there."""
        return self._handovers.get(_true(unix_path(address))) if address.startswith("unix:") else None

    def start(self) -> None:
        """Log remarks and close stray connections, once every address is served."""
        for remark in self._remarks:
            _LOG.warning("%s", remark)
        self.turn_away()

    def turn_away(self) -> None:
        """Close connections to paths that the configuration does not name, which would wait as long as the daemon
        runs."""
        for path, handover in self._handovers.items():
            if handover.is_lent:
                continue
            if path not in self._warned:
                _LOG.warning("systemd listens on %s, which is not configured: connections are closed", path)
                self._warned.add(path)
            handover.relay.away()

    def rest(self) -> None:
        """Accept no more: new connections wait for the next start of the daemon."""
        for handover in self._handovers.values():
            handover.relay.rest()

    async def close(self) -> None:
        """End the relayed connections."""
        for handover in self._handovers.values():
            await handover.relay.close()


def _path_of(each: socket.socket) -> Path | None:
    """The path of a listening unix stream socket; None for any other."""
    if each.family != socket.AF_UNIX or each.type != socket.SOCK_STREAM:
        return None
    name = each.getsockname()
    is_listening = each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    return _true(Path(name)) if is_listening and isinstance(name, str) and name.startswith("/") else None


def _true(path: Path) -> Path:
    """The path with its folder resolved: /var/run is a link."""
    return Path(os.path.realpath(path.parent)) / path.name
