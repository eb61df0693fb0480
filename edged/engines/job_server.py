"""The daemon's end of the job server (`edged.jobs.server`), the process that forks one-shot children.

The server starts with the first child and ends by itself after a time without children; the next child starts it again.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import IO

import msgspec

from edged import process
from edged.decoding import ready
from edged.ipc.job_server import Fork, Order, Release, Reply, Request

_ANSWER_SECONDS = 120.0  # for the server to import libraries from a slow disk and to answer
_TRIES = 4  # the server may end, or start again, just when a child is wanted
_GONE_SECONDS = 10.0  # a killed child must end within this time
_LARGEST = 1 << 12  # bytes of a reply
# One thread only, so that a fork of the server is safe; NumPy's library would start one for each core.
_ONE_THREAD = {b"OPENBLAS_NUM_THREADS": b"1"}


class JobProcess:
    """A child of the job server: its pid, and this end of its standard output and error.

    The pid is not used for another process before `close`. `close` sets `returncode`, which is as in `subprocess`.
    """

    def __init__(self, server: _Server, pid: int, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        self._server, self.pid, self.stdout, self.stderr = server, pid, stdout, stderr
        self.returncode: int | None = None
        try:
            # Kept open, so that `has_ended` works even if no descriptor is free.
            self._stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            server.release(pid)
            raise

    def has_ended(self) -> bool:
        try:
            return os.pread(self._stat, 4096, 0).rpartition(b")")[2].split()[0] in (b"Z", b"X")
        except ProcessLookupError:  # the server was killed, and the kernel killed the child and reaped it
            return True

    def close(self) -> None:
        """Kill the process if it still runs, and release its pid. Waits for its end: call this in a thread."""
        try:
            if not self.has_ended():
                os.kill(self.pid, signal.SIGKILL)
                end = time.monotonic() + _GONE_SECONDS
                while not self.has_ended() and time.monotonic() < end:
                    time.sleep(0.005)
            self.returncode = self._server.release(self.pid)
        finally:
            os.close(self._stat)
            self.stdout.close()
            self.stderr.close()


class JobServer:
    """Starts children in a server that it starts when needed. Its methods block: call them in threads."""

    def __init__(self) -> None:
        self._server: _Server | None = None
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def child(self, job: bytes, arguments: Sequence[str], command: Sequence[str] = ()) -> Iterator[JobProcess]:
        """Start a child with a job and the arguments of an `Order`; kill it after the block. Raises OSError if it
        cannot be started."""
        with contextlib.ExitStack() as stack:
            child = self._start(stack, job, arguments, command)
            stack.callback(child.close)
            yield child

    def close(self) -> None:
        """Kill the server; the kernel then kills its children."""
        with self._lock:
            if self._server is not None:
                self._server.close()
                self._server = None

    @property
    def pid(self) -> int | None:
        """The server's process id; None if it does not run."""
        server = self._server
        return server.pid if server is not None and not server.has_ended else None

    def _start(
        self, stack: contextlib.ExitStack, job: bytes, arguments: Sequence[str], command: Sequence[str]
    ) -> JobProcess:
        environment = {**os.environb, **_ONE_THREAD}
        digest = hashlib.sha256(repr(sorted(environment.items())).encode()).hexdigest()
        order = msgspec.msgpack.encode(Order(environment, digest, tuple(arguments), tuple(command)))
        with contextlib.ExitStack() as given:
            file = given.enter_context(os.fdopen(os.memfd_create("edged-job", os.MFD_CLOEXEC), "w+b", buffering=0))
            file.write(order + job)
            (stdout, printed), (stderr, reported) = _pipe(stack, given), _pipe(stack, given)
            files = (file.fileno(), printed.fileno(), reported.fileno())
            for attempt in range(_TRIES):
                server = self._running(environment, digest)
                try:
                    reply = server.ask(Fork(len(order), despite_changes=attempt > 0), files)
                except ConnectionError:
                    self._forget(server)
                    if attempt == _TRIES - 1:
                        raise
                    continue
                if reply.error:
                    raise OSError(reply.error, os.strerror(reply.error))
                if not reply.is_stale:
                    return JobProcess(server, reply.pid, stdout, stderr)
        raise OSError(errno.EAGAIN, "the job server starts again and again, because the environment changes")

    def _running(self, environment: dict[bytes, bytes], digest: str) -> _Server:
        with self._lock:
            if self._server is None:
                self._server = _Server(environment, digest)
            return self._server

    def _forget(self, server: _Server) -> None:
        with self._lock:
            if self._server is server:
                self._server = None


class _Server:
    """One process of the job server, and the socket to it."""

    def __init__(self, environment: dict[bytes, bytes], digest: str) -> None:
        self._lock = threading.Lock()
        self._socket, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(_ANSWER_SECONDS)
        command = [sys.executable, "-m", "edged.jobs.server", str(os.getpid()), str(there.fileno()), digest]
        started: Future[subprocess.Popen[bytes]] = Future()

        def live() -> None:
            # The kernel kills the server when the thread that started it ends. So that thread waits for the server.
            try:
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(there.fileno(),),
                    env=environment,
                    start_new_session=True,
                    **process.ISOLATED,
                )
            except BaseException as error:
                started.set_exception(error)
                return
            started.set_result(child)
            child.wait()

        self._waiting = threading.Thread(target=live, name="job server", daemon=True)
        try:
            with there:
                self._waiting.start()
                self._process = started.result()
        except BaseException:
            self._socket.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None

    def ask(self, request: Request, files: Sequence[int] = ()) -> Reply:
        """Send a request and wait for the reply. Raises ConnectionError if the server has ended or does not answer."""
        with self._lock:
            try:
                socket.send_fds(self._socket, [msgspec.json.encode(request)], files)
                data = self._socket.recv(_LARGEST)
            except OSError:  # it has ended, or has not answered in time: a late answer would be taken for the next one
                data = b""
        if not data:
            self.close()
            raise ConnectionResetError(errno.ECONNRESET, f"the job server ended with status {self._process.returncode}")
        return msgspec.json.decode(data, type=ready(Reply))

    def release(self, pid: int) -> int | None:
        """Let the server reap a child once it has ended. Returns its exit status; None if it has not ended yet."""
        try:
            return self.ask(Release(pid)).status
        except ConnectionError:
            return -signal.SIGKILL  # the kernel killed the child with the server

    def close(self) -> None:
        """Kill the process, and wait until it is reaped."""
        self._process.kill()
        self._waiting.join(_GONE_SECONDS)
        self._socket.close()


def _pipe(mine: contextlib.ExitStack, given: contextlib.ExitStack) -> tuple[IO[bytes], IO[bytes]]:
    """Return a pipe's ends for reading and for writing; each is closed with its own stack."""
    reads, writes = (os.fdopen(end, mode, buffering=0) for end, mode in zip(os.pipe(), ("rb", "wb"), strict=True))
    return mine.enter_context(reads), given.enter_context(writes)


SERVER = JobServer()
atexit.register(SERVER.close)
