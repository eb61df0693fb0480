"""A ZeroMQ socket that listens on the daemon's event loop, and the check of its address."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import zmq

from edged.api.endpoints.address import is_loopback, make_way, tcp_address
from edged.errors import ConfigError

_LOG = logging.getLogger("edged.zmq")

Received = Callable[[list[zmq.Frame]], None]

_BURST = 16  # messages that are read before other tasks get their turn
_LONGEST_PATH = 107  # bytes of sockaddr_un.sun_path without the final zero, unix(7)
_HEARTBEAT_MS = 5000  # pings; a connection that is silent for three periods is closed
_LINGER_MS = 200  # time to send the last answers when the socket is closed


class CountedWarnings:
    """Warnings about messages of clients. `counts` has the number of warnings for each reason since the start. The log
    writes each reason at most once a second."""

    def __init__(self, log: logging.Logger, what: str) -> None:
        self.counts: Counter[str] = Counter()
        self._log, self._what = log, what

    def warn(self, reason: str, detail: str) -> None:
        """Count and log a warning; `reason` is one word, `detail` one line."""
        self.counts[reason] += 1
        self._log.warning("%s (%s): %s", self._what, reason, detail, extra={"alike": f"{self._what} {reason}"})


class BoundSocket:
    """Listens until `close`, and passes every whole message to `received`, on the loop.

    `hwm` limits the messages that wait to be sent to each peer, and the messages that wait to be read from each peer.
    `max_message` limits the bytes of one frame; ZeroMQ closes a connection that sends a larger frame. `setting` is the
    name of the address in messages. Raises ConfigError if the address cannot be used.
    """

    def __init__(
        self,
        kind: int,
        address: str,
        setting: str,
        received: Received,
        *,
        hwm: int,
        max_message: int,
        allow_remote: bool | None = None,
    ) -> None:
        self._received = received
        self._loop = asyncio.get_running_loop()
        self._due: asyncio.Handle | None = None
        target, self._path = place(address, setting, allow_remote)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._socket = context.socket(kind)
        self._socket.set_hwm(hwm)
        self._socket.setsockopt(zmq.MAXMSGSIZE, max_message)
        self._socket.setsockopt(zmq.IPV6, 1)
        self._socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        self._socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * _HEARTBEAT_MS)
        if kind == zmq.ROUTER:
            # With this option, sending to a peer that has disconnected or does not read raises a countable error.
            self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        try:
            self._listen(target, setting)
        except BaseException:
            self._socket.close(0)
            raise
        self._descriptor = int(self._socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._descriptor, self._drain)
        self._drain_soon()  # read messages that came before the descriptor was watched

    @property
    def address(self) -> str:
        """The address, with the port that was chosen for port 0."""
        bound = self._socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(bound, bytes)
        return bound.rstrip(b"\0").decode()

    def send(self, frames: Sequence[bytes | memoryview]) -> bool | None:
        """Send a message without waiting. Return True if it was sent, False if the receiver has disconnected, None if
        the receiver does not read and its queue is full."""
        try:
            try:
                self._socket.send_multipart(frames, zmq.NOBLOCK)
            except zmq.Again:
                # Only reading this option makes ZeroMQ notice quickly that the peer has read messages.
                self._socket.getsockopt(zmq.EVENTS)
                self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return None
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False
        finally:
            # Sending may consume the descriptor's signal for received messages.
            self._drain_soon()
        return True

    def close(self) -> None:
        if self._socket.closed:
            return
        self._loop.remove_reader(self._descriptor)
        if self._due is not None:
            self._due.cancel()
        self._socket.close(_LINGER_MS)
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _listen(self, target: str, setting: str) -> None:
        try:
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
                make_way(self._path)  # otherwise ZeroMQ would take over the socket of another daemon
            self._socket.bind(target)
            if self._path is not None:
                self._path.chmod(0o660)
        except OSError as error:
            raise ConfigError(f"{setting} cannot listen on {target}: {error.strerror or error}") from error
        except zmq.ZMQError as error:
            raise ConfigError(
                f"{setting} cannot listen on {target}: {error.strerror}; choose another address"
            ) from error

    def _drain_soon(self) -> None:
        if self._due is None and not self._socket.closed:
            self._due = self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        """Read all waiting messages, because the descriptor signals only once for any number of messages. Other tasks
        get their turn after each burst of messages."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        for _ in range(_BURST):
            if self._socket.closed:
                return
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False, track=False)
            except zmq.Again:
                return
            try:
                self._received(frames)
            except Exception:  # go on: messages of other peers follow
                _LOG.exception("dropped a message that came over ZeroMQ, because of an unexpected error")
        self._drain_soon()


def place(address: str, setting: str, allow_remote: bool | None = None) -> tuple[str, Path | None]:
    """Return the address for ZeroMQ, and the path of its socket file (None for TCP). Raises ConfigError if invalid.

    `allow_remote`: True accepts addresses that other machines can reach, False and None refuse them. With False the
    error names the setting that allows such addresses; with None no such setting exists.
    """
    kind, _, rest = address.partition("://")
    if kind == "ipc" and rest.startswith("/"):
        if len(os.fsencode(rest)) > _LONGEST_PATH:
            raise ConfigError(
                f"{setting} {address} is longer than the {_LONGEST_PATH} bytes that Linux allows; choose a shorter path"
            )
        return address, Path(rest)
    _, colon, number = rest.rpartition(":")
    if kind != "tcp" or not colon or not (number.isascii() and number.isdecimal()):
        raise ConfigError(f"{setting} {address!r} is neither ipc:///PATH nor tcp://HOST:PORT")
    try:
        host, port = tcp_address(rest, allow_remote=True)
        if not allow_remote and not is_loopback(rest):
            hint = (
                "; for a container's bridge, set allow_remote = true and make sure that only the container reaches it"
            )
            raise ConfigError(
                f"{address!r} could be reachable from other machines; use tcp://127.0.0.1:{port}"
                f"{hint if allow_remote is False else ''}"
            )
        host = "127.0.0.1" if host == "localhost" else str(ipaddress.ip_address(host))
    except ConfigError as error:
        raise ConfigError(f"{setting}: {error}") from None
    except ValueError:
        raise ConfigError(f"{setting} {address!r} has no numeric address; give one such as 172.17.0.1") from None
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}", None
