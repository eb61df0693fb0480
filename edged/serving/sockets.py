"""The daemon's two sockets to an engine host: orders out, answers in. Bytes only; what they mean is the link's. Their
names are in a folder that is gone as soon as the host has connected.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import zmq

from edged.errors import HostLost

_LONGEST_PARENT = 70
_AT_ONCE = 64  # messages: two of each session are on their way at most


class Sockets:
    """Made in the loop. `heard` is called with each answer as it comes, and may close the sockets."""

    def __init__(self, heard: Callable[[bytes], None]) -> None:
        """HostLost where there is no folder for them, zmq.ZMQError where the box has no sockets left."""
        self._heard = heard
        self._loop = asyncio.get_running_loop()
        self._is_open = True
        self._folder = _folder()
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._orders = context.socket(zmq.PUSH)
        self._orders.set_hwm(0)  # what is in flight is bounded by the slots
        self._orders.linger = 0
        self._answers = context.socket(zmq.PULL)
        self._answers.linger = 0
        try:
            self._orders.bind(self.orders)
            self._answers.bind(self.answers)
        except zmq.ZMQError:
            self._close_sockets()
            self.forget_names()
            raise
        self._descriptor = int(self._answers.getsockopt(zmq.FD))
        self._loop.add_reader(self._descriptor, self.drain)

    @property
    def orders(self) -> str:
        """Where the host connects for its orders."""
        return f"ipc://{self._folder}/orders"

    @property
    def answers(self) -> str:
        """Where the host connects to answer."""
        return f"ipc://{self._folder}/answers"

    @property
    def is_connected(self) -> bool:
        """Whether the host can be spoken to."""
        return bool(int(self._orders.getsockopt(zmq.EVENTS)) & zmq.POLLOUT)

    def forget_names(self) -> None:
        """Whoever is connected stays so; a daemon that is killed leaves nothing behind."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def send(self, data: bytes) -> bool:
        """Whether it went out; it does not where nobody reads any more."""
        try:
            self._orders.send(data, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def drain(self) -> None:
        """Reads what has come, and goes on after others had their turn where that is more than a host in order says at
        once: the descriptor signals once for any number of messages."""
        for _ in range(_AT_ONCE):
            if not self._is_open:
                return
            try:
                data = self._answers.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._heard(data)
        self._loop.call_soon(self.drain)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._descriptor)
            self._close_sockets()

    def _close_sockets(self) -> None:
        self._answers.close()
        self._orders.close()


def sweep_socket_folders() -> None:
    """Removes folders that a daemon left which was killed while a host of its own was starting."""
    for parent in _parents():
        for folder in parent.glob("edged-*-*"):
            owner = folder.name.split("-")[1]
            if owner.isdecimal() and not os.path.exists(f"/proc/{owner}") and folder.lstat().st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)


def _folder() -> Path:
    """A new private folder, named after the daemon's process."""
    for parent in _parents():
        return Path(tempfile.mkdtemp(prefix=f"edged-{os.getpid()}-", dir=parent))
    raise HostLost("no folder can hold a host's sockets; make /tmp writable")


def _parents() -> list[Path]:
    """Folders whose path leaves room for a socket's name in the 108 bytes that Linux allows."""
    wanted = (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp")  # noqa: S108 - mkdtemp is safe there
    return [Path(p) for p in wanted if p and len(os.fsencode(p)) <= _LONGEST_PARENT and os.access(p, os.W_OK)]
