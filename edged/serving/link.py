"""The daemon's end of one engine host: starts the process, talks to it, and notices when it dies or hangs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
import zmq

from edged import errors, process
from edged.backend.contract import Order
from edged.errors import EdgedError, EngineUnusable, HostLost
from edged.serving import messages as m
from edged.serving.arena import Arena
from edged.vision.family import Recognition

_START_SECONDS = 60.0
_LONGEST_PARENT = 70
_STOP_SECONDS = 3.0


class HostLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Mebibytes of shared memory a host gets; seconds after which it counts as hanging: without an answer to a job
    whose turn it is, and while opening or closing an engine."""

    arena_mb: Annotated[int, msgspec.Meta(gt=0, le=1 << 20)] = 512
    job_seconds: Annotated[float, msgspec.Meta(gt=0, le=86400)] = 120.0
    open_seconds: Annotated[float, msgspec.Meta(gt=0, le=86400)] = 600.0


Reply = m.Answer | m.Detected


class HostLink:
    """One living host. When it is lost, every waiting future fails with HostLost and `on_lost` is called once."""

    def __init__(self, backend: str, limits: HostLimits, on_lost: Callable[[HostLink, str], None]) -> None:
        self.backend = backend
        self.pid = 0
        self.version = ""  # of the runtime that it loaded
        self.sessions: set[int] = set()
        self.lost = ""  # why, once it is
        self._limits, self._on_lost = limits, on_lost
        self._loop = asyncio.get_running_loop()
        self.arena = Arena(limits.arena_mb << 20)
        self._numbers = itertools.count(1)
        self._jobs: dict[int, tuple[asyncio.Future[Reply], int]] = {}  # with the session that has it
        self._turn: dict[int, float] = {}  # since when a session has been busy with the job it is at
        self._opening: dict[int, asyncio.Future[None]] = {}
        self._closing: dict[int, asyncio.Future[None]] = {}
        self._asked: dict[int, float] = {}  # since when a session has been opening or closing
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._encoder, self._decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(m.FromHost)
        self.stopping = False
        self._process: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Starts the process and waits until it has imported its backend. HostLost when it does not."""
        # The sockets have names only until the host has connected: nothing is left behind by a killed daemon.
        folder = _socket_folder()
        try:
            context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
            self._orders = context.socket(zmq.PUSH)
            self._orders.set_hwm(0)  # what is in flight is bounded by the slots
            self._orders.linger = 0
            self._answers = context.socket(zmq.PULL)
            self._answers.linger = 0
            self._orders.bind(f"ipc://{folder}/orders")
            self._answers.bind(f"ipc://{folder}/answers")
            self._descriptor = int(self._answers.getsockopt(zmq.FD))
            self._loop.add_reader(self._descriptor, self._drain)
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "edged.serving.host", str(os.getpid()), self.backend),
                *(f"ipc://{folder}/orders", f"ipc://{folder}/answers", str(self.arena.handle)),
                pass_fds=(self.arena.handle,),
                stdin=asyncio.subprocess.DEVNULL,
                **process.ISOLATED,
            )
            self.pid = self._process.pid
            self._watch = asyncio.create_task(self._watch_process(self._process))
            await asyncio.wait_for(self._connected(), _START_SECONDS)
        except asyncio.TimeoutError:
            self.kill(f"did not start within {_START_SECONDS:g} s")
            raise HostLost(f"engine host {self.backend} {self.lost}") from None
        except (OSError, zmq.ZMQError) as error:
            self._lose(f"could not be started: {error.strerror or error}")
            raise HostLost(f"engine host {self.backend} {self.lost}") from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    async def _connected(self) -> None:
        """Until the host has spoken, and can be spoken to: the two sockets connect at their own pace."""
        await asyncio.shield(self._ready)
        while not int(self._orders.getsockopt(zmq.EVENTS)) & zmq.POLLOUT:
            await asyncio.sleep(0.002)
            self._require_alive()

    async def open(self, order: Order, recognition: Recognition, batch: int = 1) -> int:
        """Opens an engine for up to `batch` pictures at a time; its number within this host. The backend's error when
        it cannot be opened."""
        self._require_alive()
        number = next(self._numbers)
        opened: asyncio.Future[None] = self._loop.create_future()
        self._opening[number], self._asked[number] = opened, time.monotonic()
        self._send(m.Open(number, order, recognition, batch))
        self.sessions.add(number)
        try:
            await opened
        except EdgedError:
            self.sessions.discard(number)
            raise
        return number

    async def close_session(self, number: int) -> None:
        """Closes a session after what was submitted to it before; returns at once when the host is gone."""
        if self.lost:
            return
        closed: asyncio.Future[None] = self._loop.create_future()
        self._closing[number], self._asked[number] = closed, time.monotonic()
        self._send(m.Close(number))
        await closed
        self.sessions.discard(number)

    def submit(self, make: Callable[[int], m.Infer | m.Detect]) -> asyncio.Future[Reply]:
        """Sends a job; the future ends with the answer, the job's error, or HostLost."""
        self._require_alive()
        number = next(self._numbers)
        future: asyncio.Future[Reply] = self._loop.create_future()
        message = make(number)
        self._send(message)
        if not any(session == message.session for _, session in self._jobs.values()):
            self._turn[message.session] = time.monotonic()
        self._jobs[number] = (future, message.session)
        return future

    async def stop(self) -> None:
        """Ends the process; what it still held fails with HostLost."""
        self.stopping = True
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(process.wait(), _STOP_SECONDS)
        self.kill("was stopped")
        if self._watch is not None:
            await asyncio.gather(self._watch, return_exceptions=True)

    def kill(self, why: str) -> None:
        """Ends the process at once."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        self._lose(why)

    def _require_alive(self) -> None:
        if self.lost:
            raise HostLost(f"engine host {self.backend} {self.lost}")

    def _send(self, message: m.ToHost) -> None:
        try:
            self._orders.send(self._encoder.encode(message), zmq.NOBLOCK)
        except zmq.Again:  # nobody reads any more, which is noticed here before the process's end is
            self.kill("no longer answers")
            self._require_alive()

    def _drain(self) -> None:
        """Reads until nothing is left: the descriptor signals once for any number of messages."""
        while not self.lost:
            try:
                data = self._answers.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._take(self._decoder.decode(data))

    def _take(self, message: m.FromHost) -> None:
        if isinstance(message, m.Answer | m.Detected):
            _settle(self._pop(message.job), message)
        elif isinstance(message, m.JobFailed):
            _fail(self._pop(message.job), rebuild(message.error, message.message))
        elif isinstance(message, m.Opened):
            _settle(self._opening.pop(message.session), None)
        elif isinstance(message, m.OpenFailed):
            _fail(self._opening.pop(message.session), rebuild(message.error, message.message))
        elif isinstance(message, m.Closed):
            _settle(self._closing.pop(message.session), None)
        elif isinstance(message, m.Ready):
            self.version = message.version
            _settle(self._ready, None)
        else:
            self._lose(f"cannot start: {message.message}")

    def _pop(self, job: int) -> asyncio.Future[Reply]:
        future, session = self._jobs.pop(job)
        self._turn[session] = time.monotonic()  # the session's next job has its turn now
        return future

    def _is_hanging(self) -> bool:
        now = time.monotonic()
        busy = {session for _, session in self._jobs.values()}
        waiting = {*self._opening, *self._closing}
        return any(now - self._turn[session] > self._limits.job_seconds for session in busy) or any(
            now - self._asked[session] > self._limits.open_seconds for session in waiting
        )

    async def _watch_process(self, process: asyncio.subprocess.Process) -> None:
        """Notices the end of the process, and a job that is never answered."""
        ended = asyncio.ensure_future(process.wait())
        period = min(1.0, self._limits.job_seconds / 4, self._limits.open_seconds / 4)
        while not ended.done():
            await asyncio.wait([ended], timeout=period)
            if self._is_hanging():
                self.kill("hung: no answer within its limit")
        self._lose("was stopped" if self.stopping else f"died (exit status {process.returncode})")

    def _lose(self, why: str) -> None:
        if self.lost:
            return
        if hasattr(self, "_answers"):
            self._drain()  # what it answered before it went still counts
        self.lost = why
        error = HostLost(f"engine host {self.backend} {why}")
        for job, _ in self._jobs.values():
            _fail(job, error)
        for opening in (*self._opening.values(), self._ready):
            _fail(opening, error)
        for closing in self._closing.values():
            _settle(closing, None)
        self._jobs.clear()
        self._opening.clear()
        self._closing.clear()
        self._release()
        self._on_lost(self, why)

    def _release(self) -> None:
        if hasattr(self, "_answers"):
            self._loop.remove_reader(self._descriptor)
            self._answers.close()
            self._orders.close()
        # Answers that were just settled may still be read from the arena by tasks that are due to run.
        self._loop.call_later(1.0, self._close_arena)

    def _close_arena(self) -> None:
        try:
            self.arena.close()
        except BufferError:
            self._loop.call_later(1.0, self._close_arena)


def sweep_socket_folders() -> None:
    """Removes folders that a daemon left which was killed while a host of its own was starting."""
    for parent in _socket_parents():
        for folder in parent.glob("edged-*-*"):
            owner = folder.name.split("-")[1]
            if owner.isdecimal() and not os.path.exists(f"/proc/{owner}") and folder.lstat().st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)


def _socket_folder() -> Path:
    """A new private folder, named after the daemon's process."""
    for parent in _socket_parents():
        return Path(tempfile.mkdtemp(prefix=f"edged-{os.getpid()}-", dir=parent))
    raise HostLost("no folder can hold a host's sockets; make /tmp writable")


def _socket_parents() -> list[Path]:
    """Folders whose path leaves room for a socket's name in the 108 bytes that Linux allows."""
    wanted = (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp")  # noqa: S108 - mkdtemp is safe there
    return [Path(p) for p in wanted if p and len(os.fsencode(p)) <= _LONGEST_PARENT and os.access(p, os.W_OK)]


def _settle(future: asyncio.Future[m.Answer | m.Detected] | asyncio.Future[None], value: Reply | None) -> None:
    if not future.done():
        future.set_result(value)  # type: ignore[arg-type]  # the two kinds of future share this line


def _fail(future: asyncio.Future[Reply] | asyncio.Future[None], error: EdgedError) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # nobody may be left to ask for it, which is no reason to complain at the end


def rebuild(name: str, message: str) -> EdgedError:
    """The error that a host named."""
    kind = getattr(errors, name, EngineUnusable)
    error: EdgedError = kind(message)
    return error
