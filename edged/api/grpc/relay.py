"""Connections that came to a listening socket before anybody accepted there, carried byte for byte to the one that
answers: gRPC's Python library takes over no socket that is open already."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
from collections.abc import Callable
from pathlib import Path

from edged.api.grpc import grpc_limits as edge

_LOG = logging.getLogger("edged.api")
_BUFFER = 64 << 10  # bytes, of each way of a connection
_AGAIN_SECONDS = 0.2  # until another try where the one that answers cannot be reached, or descriptors are used up


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
        self._most = edge.most_connections(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
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
        self._pause = loop.call_later(_AGAIN_SECONDS, self._watch, self._heed)


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
