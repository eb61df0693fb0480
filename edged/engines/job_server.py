"""The daemon's end of the job server (`edged.jobs.server`), the process that forks one-shot children.

A server starts with the first child. It ends by itself after a time without children; the next child then gets a new
server. If libraries on disk or this process's environment have changed, the next child also gets a new server. The old
server stays until its children have ended.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import errno
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import IO

import msgspec

from edged import process
from edged.decoding import ready
from edged.ipc.job_server import Fork, Order, Release, Reply, Request
from edged.tasks import in_thread

_READY_SECONDS = 300.0  # for a server to import libraries from a slow disk
_ANSWER_SECONDS = 120.0  # for a server to fork a child, on a machine that swaps
_LOOK_SECONDS = 0.005
_TRIES = 4  # the server may end, or become stale, just when a child is wanted
_GONE_SECONDS = 10.0  # a killed process must end within this time
_LARGEST = 1 << 12  # bytes of a reply
# A fork is safe only in a process with one thread, but OpenBLAS, which NumPy uses, starts a thread for each core. The
# children inherit this variable, so NumPy multiplies matrices on one core. Runtimes start their own threads.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}


class JobProcess:
    """A child of the job server: its pid, and the ends of its standard output and error that the daemon reads.

    The kernel does not reuse the pid until `close` is called or the server ends. `close` sets `returncode`, which has
    the same meaning as in `subprocess`.
    """

    def __init__(self, server: _Server, pid: int, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        self._server, self.pid, self.stdout, self.stderr = server, pid, stdout, stderr
        self.returncode: int | None = None
        try:
            # Kept open, so that `has_ended` works even if no descriptor is free.
            self._stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            server.release(pid)
            if isinstance(error, FileNotFoundError):  # while the server lives, a child has this file until its release
                what = "the job server, which starts child processes, ended, and the new child process ended with it"
                raise ConnectionResetError(errno.ECONNRESET, what) from error
            raise

    def has_ended(self) -> bool:
        """Whether all threads of the process have ended. Format: proc_pid_stat(5), fields 3 and 20."""
        try:
            fields = os.pread(self._stat, 4096, 0).rpartition(b")")[2].split()
        except ProcessLookupError:  # the server was killed, and the kernel killed the child; another process reaped it
            return True
        return fields[0] in (b"Z", b"X") and int(fields[17]) <= 1

    def close(self) -> None:
        """Kill the process if it still runs, and release its pid. Waits for its end: call this in a thread."""
        try:
            if not self.has_ended():
                with contextlib.suppress(ProcessLookupError):  # it ended with the server, and was reaped
                    os.kill(self.pid, signal.SIGKILL)
                end = time.monotonic() + _GONE_SECONDS
                while not self.has_ended() and time.monotonic() < end:
                    time.sleep(_LOOK_SECONDS)
            self.returncode = self._server.release(self.pid)
        finally:
            os.close(self._stat)
            self.stdout.close()
            self.stderr.close()


class JobServer:
    """Starts children, in server processes that it starts when they are needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: _Server | None = None
        self._former: list[_Server] = []

    @contextlib.asynccontextmanager
    async def child(
        self, job: bytes, arguments: Sequence[str], command: Sequence[str] = ()
    ) -> AsyncIterator[JobProcess]:
        """Start a child with a job and the fields of an `Order`, and kill the child after the block. Raises OSError if
        the child cannot be started."""
        order = msgspec.json.encode(Order(tuple(arguments), tuple(command)))
        async with contextlib.AsyncExitStack() as stack:
            yield await self._start(stack, order, job)

    async def _start(self, stack: contextlib.AsyncExitStack, order: bytes, job: bytes) -> JobProcess:
        attempt = 0
        while True:
            attempt += 1
            server = await asyncio.to_thread(self._running)
            try:
                await self._until_ready(server)
                start = partial(server.child, order, job, despite_changes=attempt > 1)
                return await stack.enter_async_context(in_thread(start))
            except (_Stale, ConnectionError):
                await asyncio.to_thread(self._retire, server)
                if attempt == _TRIES:
                    raise

    async def _until_ready(self, server: _Server) -> None:
        """Wait until a server has imported its libraries. A cancellation ends only the waiting, not the server. Raises
        OSError if the server takes too long."""
        end = time.monotonic() + _READY_SECONDS
        while not server.is_ready():
            if time.monotonic() > end:
                await asyncio.to_thread(self._retire, server)
                await asyncio.to_thread(server.close)
                what = f"the job server, which starts child processes, was not ready within {_READY_SECONDS:g} s"
                raise OSError(errno.ETIMEDOUT, what)
            await asyncio.sleep(_LOOK_SECONDS)

    def close(self) -> None:
        """Kill the servers; the kernel then kills their children."""
        with self._lock:
            servers = list(filter(None, (*self._former, self._current)))
            self._current, self._former = None, []
        for server in servers:
            server.close()

    def leave(self) -> None:
        """Forget the servers. Called in a forked process, because the servers belong to its parent."""
        self._lock = threading.Lock()
        for server in filter(None, (*self._former, self._current)):
            server.leave()
        self._current, self._former = None, []

    @property
    def pid(self) -> int | None:
        """The process id of the server that starts the next child; None if none runs."""
        server = self._current
        return server.pid if server is not None and not server.has_ended else None

    def _running(self) -> _Server:
        environment = {**process.environment(), **_ONE_THREAD}
        current = self._current
        if current is not None and current.environment != environment:
            self._retire(current)
        with self._lock:
            for server in [each for each in self._former if each.has_ended]:
                server.close()
                self._former.remove(server)
            if self._current is None:
                self._current = _Server(environment)
            return self._current

    def _retire(self, server: _Server) -> None:
        """Start no further child in a server. The server ends with its last child."""
        with self._lock:
            if self._current is server:
                self._former.append(server)
                self._current = None
        server.retire()


class _Stale(Exception):
    """Libraries have changed since the server imported them."""


class _Server:
    """One process of the job server, and the socket to it. Raises OSError if the process cannot be started."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self._lock, self._is_ready = threading.Lock(), False
        self._children, self._is_retired = 0, False
        self._socket, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(_ANSWER_SECONDS)
        started: Future[subprocess.Popen[bytes]] = Future()
        self._errors = os.fdopen(os.memfd_create("edged-job-server", os.MFD_CLOEXEC), "rb")
        self._waiting = threading.Thread(target=self._live, args=(there, started), name="job server", daemon=True)
        try:
            with there:
                self._waiting.start()
                self._process = started.result()
        except BaseException as error:
            self._socket.close()
            self._errors.close()
            if isinstance(error, RuntimeError):  # no further thread is allowed
                raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error
            raise

    def _live(self, there: socket.socket, started: Future[subprocess.Popen[bytes]]) -> None:
        # The kernel kills the server when the thread that started it ends. So that thread waits for the server.
        try:
            child = subprocess.Popen(
                [sys.executable, "-m", "edged.jobs.server", str(os.getpid()), str(there.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=(there.fileno(),),
                env=self.environment,
                start_new_session=True,
                **process.ISOLATED,
            )
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(child)
        child.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None

    def is_ready(self) -> bool:
        """Whether the server is ready, that is, has sent its first message or has ended. Does not block."""
        if self._is_ready:
            return True
        poll = select.poll()
        try:
            poll.register(self._socket, select.POLLIN)
        except ValueError:  # another task has closed the socket; `child` reports that
            return True
        return bool(poll.poll(0))

    @contextlib.contextmanager
    def child(self, order: bytes, job: bytes, *, despite_changes: bool) -> Iterator[JobProcess]:
        """Start a child, and kill it after the block. Call this in a thread. Raises _Stale if libraries have changed,
        ConnectionError if the server has ended, and OSError if the server cannot start the child."""
        with self._counted(), contextlib.ExitStack() as stack:
            with contextlib.ExitStack() as given:
                file = given.enter_context(os.fdopen(os.memfd_create("edged-job", os.MFD_CLOEXEC), "w+b"))
                file.write(order + job)
                file.flush()
                (stdout, printed), (stderr, reported) = _pipe(stack, given), _pipe(stack, given)
                files = (file.fileno(), printed.fileno(), reported.fileno())
                reply = self._ask(Fork(len(order), despite_changes), files)
            if reply.is_stale:
                raise _Stale
            if reply.error:
                raise OSError(reply.error, os.strerror(reply.error))
            child = JobProcess(self, reply.pid, stdout, stderr)
            stack.callback(child.close)
            yield child

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        """Count a child during the block. If the server is retired, end its process after the last child."""
        with self._lock:
            self._children += 1
        try:
            yield
        finally:
            with self._lock:
                self._children -= 1
                is_over = self._is_retired and not self._children
            if is_over:
                self.close()

    def retire(self) -> None:
        """End the process after its last child, or now if it has none."""
        with self._lock:
            self._is_retired = True
            is_over = not self._children
        if is_over:
            self.close()

    def release(self, pid: int) -> int | None:
        """Let the server reap a child once it has ended. Returns the exit status; None if the child has not ended
        yet."""
        try:
            return self._ask(Release(pid)).status
        except ConnectionError:  # the kernel killed the child with the server
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)  # in a container this process may be init, which inherits the child
            return -signal.SIGKILL

    def close(self) -> None:
        """Kill the process, and wait until it is reaped."""
        self._kill()
        self.leave()

    def leave(self) -> None:
        """Close this process's copies of the descriptors."""
        self._socket.close()
        self._errors.close()

    def _ask(self, request: Request, files: Sequence[int] = ()) -> Reply:
        """Send a request and wait for the reply. Raises ConnectionError if the server has ended or does not answer."""
        with self._lock:
            try:
                if not self._is_ready:
                    self._is_ready = bool(self._socket.recv(_LARGEST))
                socket.send_fds(self._socket, [msgspec.json.encode(request)], files)
                data = self._socket.recv(_LARGEST)
            except OSError:  # ended or late: a late reply would be taken for the reply to the next request
                data = b""
            if not data:
                raise self._ended()
        return msgspec.json.decode(data, type=ready(Reply))

    def _kill(self) -> None:
        self._process.kill()
        self._waiting.join(_GONE_SECONDS)

    def _ended(self) -> ConnectionError:
        """Kill the process. Return an error with the exit status of the process and the last line that it wrote to
        standard error."""
        self._kill()
        last = ""
        with contextlib.suppress(ValueError):  # the file was closed
            lines = os.pread(self._errors.fileno(), 1 << 16, 0).decode(errors="replace").split("\n")
            last = next((f": {line.strip()[:300]}" for line in reversed(lines) if line.strip()), "")
        what = f"the job server, which starts child processes, ended with status {self._process.returncode}{last}"
        return ConnectionResetError(errno.ECONNRESET, what)


def _pipe(mine: contextlib.ExitStack, given: contextlib.ExitStack) -> tuple[IO[bytes], IO[bytes]]:
    """Return a pipe's end for reading, which `mine` closes, and its end for writing, which `given` closes."""
    reads, writes = (os.fdopen(end, mode, buffering=0) for end, mode in zip(os.pipe(), ("rb", "wb"), strict=True))
    return mine.enter_context(reads), given.enter_context(writes)


SERVER = JobServer()
atexit.register(SERVER.close)
os.register_at_fork(after_in_child=SERVER.leave)
