"""The job server: forks a one-shot child for each job, so that a child need not import libraries again.

Imports take most of the processor time of a short job: a third of a second on a fast box, seconds on a slow one. This
process has imported what most jobs need. It has one thread, so that a fork is safe. It imports no runtime: a child
imports those that are installed when it starts. If other libraries or the daemon's environment change, this process
starts again. It ends if no child is wanted for a while.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import socket
import sys
from collections.abc import Iterable, Sequence

import msgspec

from edged import process
from edged.decoding import ready
from edged.ipc import job_messages
from edged.ipc.job_server import Order, Release, Reply, Request
from edged.jobs import main as child

_IDLE_SECONDS = 30.0
_LARGEST = 1 << 16  # bytes of a request
_DESCRIPTORS = 3
# `tasks` imports NumPy. `inspect` imports the onnx package, which most jobs of a new model need.
_IMPORTED = ("edged.family_packages", "edged.ipc.job_channel", "edged.jobs.tasks", "edged.jobs.inspect")


def main() -> None:
    """`python -m edged.jobs.server PARENT_PID SOCKET_FD DIGEST [PID ...]`

    DIGEST is that of the environment, see `Order`. PIDs are released children that have not ended yet."""
    parent, number, digest, *released = sys.argv[1:]
    if not process.die_with_parent(int(parent)):
        sys.exit(1)
    process.go_before_the_daemon()
    for name in _IMPORTED:
        with contextlib.suppress(Exception):  # a library is being replaced: the child that needs it reports the error
            importlib.import_module(name)
    ready(job_messages.Job)
    gc.collect()
    gc.freeze()  # the collector of a child would copy the memory that it shares with this process
    _Server(socket.socket(fileno=int(number)), int(parent), digest, set(map(int, released))).serve()


class _Server:
    def __init__(self, parent: socket.socket, parent_pid: int, digest: str, released: set[int]) -> None:
        self._socket, self._parent_pid, self._digest, self._released = parent, parent_pid, digest, released
        self._stamps = _stamps(_folders())
        parent.settimeout(_IDLE_SECONDS)

    def serve(self) -> None:
        """Answer requests until the parent closes the socket, or until none comes for a while and no child is left."""
        while True:
            try:
                data, files, _, _ = socket.recv_fds(self._socket, _LARGEST, _DESCRIPTORS)
            except TimeoutError:
                self._reap()
                if not _has_children():
                    return
                continue
            if not data:
                return
            stale = None
            try:
                stale = self._answer(msgspec.json.decode(data, type=ready(Request)), files)
            finally:
                for file in files:
                    os.close(file)
            if stale is not None:
                self._start_again(stale)

    def _answer(self, request: Request, files: Sequence[int]) -> Order | None:
        """Answer a request. Return the order that this process is stale for, if it is."""
        if isinstance(request, Release):
            self._released.add(request.pid)
            self._send(Reply(status=self._reap().get(request.pid)))
            return None
        order = msgspec.msgpack.decode(os.pread(files[0], request.size, 0), type=ready(Order))
        has_changed = not request.despite_changes and _stamps(self._stamps) != self._stamps
        if order.digest != self._digest or has_changed:
            self._send(Reply(is_stale=True))
            return order
        os.lseek(files[0], request.size, os.SEEK_SET)
        try:
            self._send(Reply(pid=self._fork(order, files)))
        except OSError as error:
            self._send(Reply(error=error.errno or 0))
        return None

    def _send(self, reply: Reply) -> None:
        self._socket.sendall(msgspec.json.encode(reply))

    def _start_again(self, order: Order) -> None:
        """Replace this program by a new one, which has this process's children and reads the next request."""
        os.set_inheritable(self._socket.fileno(), True)
        numbers = (self._parent_pid, self._socket.fileno(), order.digest, *self._released)
        command = [sys.executable, "-m", "edged.jobs.server", *map(str, numbers)]
        os.execve(sys.executable, command, order.environment)  # noqa: S606 - no shell is wanted

    def _fork(self, order: Order, files: Sequence[int]) -> int:
        """Start a child and return its pid, once the child leads its own session: then its whole group can be killed.
        Raises OSError."""
        arguments = (str(os.getpid()), *order.arguments)
        has_begun, begins = os.pipe()
        try:
            pid = os.fork()
            if pid == 0:
                _begin(files, (has_begun, begins, self._socket.fileno()), arguments, order.command)
            os.close(begins)
            begins = -1
            os.read(has_begun, 1)
            return pid
        finally:
            os.close(has_begun)
            if begins >= 0:
                os.close(begins)

    def _reap(self) -> dict[int, int]:
        """Reap the released children that have ended. Return their exit statuses by pid."""
        found = {}
        for pid in sorted(self._released):
            try:
                ended, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                self._released.discard(pid)
                continue
            if ended:
                self._released.discard(pid)
                found[pid] = os.waitstatus_to_exitcode(status)
        return found


def _begin(files: Sequence[int], others: Sequence[int], arguments: Sequence[str], command: Sequence[str]) -> None:
    """The first steps of a child after the fork. Does not return. `others` are descriptors of its parent."""
    try:
        os.setsid()
        for target, file in enumerate(files):
            os.dup2(file, target)
        for descriptor in (*files, *others):
            os.close(descriptor)
        if command:
            os.execv(command[0], [*command, *arguments])  # noqa: S606 - no shell is wanted
        child.run(arguments)
    finally:
        os._exit(1)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _folders() -> set[str]:
    """Return the folders of all imported modules, and those in which modules are searched."""
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return {os.path.dirname(file) for file in files if file} | {path for path in sys.path if os.path.isabs(path)}


def _stamps(folders: Iterable[str]) -> dict[str, int]:
    """Return the times of the folders' last changes in nanoseconds; 0 for one that cannot be read. Installers replace
    files by renaming, which changes the time of the folder."""
    found = {}
    for folder in folders:
        try:
            found[folder] = os.stat(folder).st_mtime_ns
        except OSError:
            found[folder] = 0
    return found


if __name__ == "__main__":
    main()
