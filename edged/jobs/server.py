"""The job server, which forks a one-shot child for each job, so that a child need not import libraries again.

Imports take most of the processor time of a short job: a quarter of a second on a fast box, seconds on a slow one. This
process has imported what most jobs need. It has one thread, so that a fork is safe. It does not import runtimes: each
child imports the runtime that is installed at that time. If a library on disk changes, this process is stale, and the
daemon starts another server. The server ends when it has received no request for 30 s and has no children.
"""

from __future__ import annotations

import errno
import gc
import importlib
import os
import socket
import sys
import traceback
from collections.abc import Iterable, Sequence

import msgspec

from edged import process
from edged.decoding import ready
from edged.ipc import job_messages
from edged.ipc.job_server import Fork, Order, Release, Reply, Request
from edged.jobs import main as child

_IDLE_SECONDS = 30.0
_LARGEST = 1 << 16  # bytes of a request
_DESCRIPTORS = 3
# `tasks` imports NumPy. `inspect` imports the onnx package, which the jobs of a new model need.
_IMPORTED = ("edged.family_packages", "edged.ipc.job_channel", "edged.jobs.tasks", "edged.jobs.inspect")


def main() -> None:
    """Run the server: `python -m edged.jobs.server PARENT_PID SOCKET_FD`."""
    parent, number = map(int, sys.argv[1:])
    if not process.die_with_parent(parent):
        sys.exit(1)
    process.go_before_the_daemon()
    process.yield_resources(process.EXAMINE)
    before, failed = _stamps(_folders()), False
    for name in _IMPORTED:
        try:
            importlib.import_module(name)
        except Exception:  # for example while the module is being replaced: the child that needs it reports the error
            failed = True
    ready(job_messages.Job)
    # After a failed import this server counts as stale, so the daemon starts another server, which tries again.
    stamps = {"": -1} if failed else {**_stamps(_folders()), **before}
    gc.collect()
    gc.freeze()  # the collector of a child would copy the memory that it shares with this process
    _Server(socket.socket(fileno=number), stamps).serve()


class _Server:
    def __init__(self, daemon: socket.socket, stamps: dict[str, int]) -> None:
        """`stamps`: the times of `_stamps` for each folder with imported modules, read before the imports if
        possible."""
        self._socket, self._stamps = daemon, stamps
        self._released: set[int] = set()
        daemon.settimeout(_IDLE_SECONDS)

    def serve(self) -> None:
        """Answer requests until the daemon closes the socket, or until 30 s pass without a request and no child is
        left."""
        self._send(Reply())
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
            try:
                self._send(self._answer(data, files))
            finally:
                for file in files:
                    os.close(file)

    def _answer(self, data: bytes, files: Sequence[int]) -> Reply:
        request = msgspec.json.decode(data, type=ready(Request))
        if isinstance(request, Release):
            self._released.add(request.pid)
            return Reply(status=self._reap().get(request.pid))
        if not request.despite_changes and _stamps(self._stamps) != self._stamps:
            return Reply(is_stale=True)
        try:
            return Reply(pid=self._fork(request, files))
        except OSError as error:
            return Reply(error=error.errno or errno.EIO)
        except Exception as error:  # one bad request must not end the server, because its children would end too
            traceback.print_exc()
            return Reply(error=errno.ENOMEM if isinstance(error, MemoryError) else errno.EIO)

    def _send(self, reply: Reply) -> None:
        self._socket.sendall(msgspec.json.encode(reply))

    def _fork(self, request: Fork, files: Sequence[int]) -> int:
        """Start a child and return its pid. Wait until the child leads its own session, so that the daemon can kill the
        child with its group. Raises OSError if the limit of processes or of file descriptors is reached."""
        order = msgspec.json.decode(os.pread(files[0], request.size, 0), type=ready(Order))
        os.lseek(files[0], request.size, os.SEEK_SET)
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
        """Reap the children that have ended, if the daemon has released them (`Release`). Return a mapping from the
        pids of the reaped children to their exit statuses."""
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
    """Prepare the child after the fork and run it; never return. `others` are descriptors of the server to close."""
    try:
        os.setsid()
        for target, file in enumerate(files):
            os.dup2(file, target)
        for descriptor in (*files, *others):
            os.close(descriptor)
        if command:
            os.execv(command[0], [*command, *arguments])  # noqa: S606 - no shell is wanted
        importlib.invalidate_caches()  # else imports miss libraries that were installed later
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
    """Return the folders of all imported modules."""
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return {os.path.dirname(file) for file in files if file}


def _stamps(folders: Iterable[str]) -> dict[str, int]:
    """Return the times of the folders' last changes in nanoseconds; 0 for a folder that cannot be read. Installers
    replace files by renaming, which changes the time of the folder."""
    found = {}
    for folder in folders:
        try:
            found[folder] = os.stat(folder).st_mtime_ns
        except OSError:
            found[folder] = 0
    return found


if __name__ == "__main__":
    main()
