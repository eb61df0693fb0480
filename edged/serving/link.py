"""The daemon's end of the connection to an engine host: sends jobs, receives answers, and detects a dead or hung host.

`ipc/sockets` moves the bytes; `host_process` starts and ends the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from edged import tasks
from edged.backends.contract import Nodes, Order
from edged.config.child_limits import HostLimits, box_mb
from edged.confinement import rules
from edged.decoding import ready
from edged.errors import DeadlineExceeded, EdgedError, EngineUnusable, HostLost, NotFinite, NotReady, rebuild
from edged.ipc import messages as m
from edged.ipc.arena import Arena
from edged.ipc.sockets import HostSocket
from edged.models.limits import SECONDS, Bounds
from edged.serving import memory
from edged.serving.crash_attribution import EngineId
from edged.serving.host_process import HOST_MODULE, End, HostProcess, Progress, ProgressTimes, read
from edged.vision.family import Recognition


class LinkTimes(msgspec.Struct, frozen=True):
    """Time limits of a link, in seconds. Tests use shorter limits."""

    start: float = 60.0
    look: float = 0.2  # between two checks of the host: a host can use up the memory in a few seconds
    grace: float = 2.0  # for a job to stop: a runtime checks between operators, and a large operator may take a second
    ending: float = 1.0  # for the process to end after the connection has closed
    gone: float = 10.0  # for a killed process to end; a process that hangs in a driver does not end
    unread: float = 1.0  # before the arena is closed: clients may still read answers that were just delivered
    progress: ProgressTimes = ProgressTimes()


_TIMES = LinkTimes()


_FOUND_BYTES = 16 << 20  # the most bytes of detections in an answer, in addition to its outputs
_UNREQUESTED = 8  # how many messages a host may send without a request, such as Ready

Reply = m.Answer | m.Detected


class Tenant(msgspec.Struct, frozen=True):
    """The engine of a session, and the limits of its requests. `family` is a text with the names of the model family
    and its package, if the package's code decodes the outputs. It is empty if edged's own code decodes the outputs."""

    suspect: EngineId = EngineId("", "")
    bounds: Bounds = Bounds()
    family: str = ""


class Loss(msgspec.Struct, frozen=True):
    """How a host was lost. `why` is the reason as text. `suspects` has the suspected engines, each with whether it had
    answered a request in this host. `end` says how the process ended."""

    why: str = ""
    suspects: tuple[tuple[EngineId, bool], ...] = ()
    end: End = End.WORK


class HostSession:
    """A session, which is an engine that is open in a host, and the deadlines of its jobs. Times are seconds of any one
    clock.

    A session runs at most `instances` jobs at a time, in order. The time of a waiting job begins when a running job
    ends. A job that reaches its limit is stopped. If the job still runs after a grace period, its runtime cannot stop
    the job, and the host is replaced. If the engine runs several times for a job, the limit is multiplied by the number
    of runs.
    """

    __slots__ = (
        "asked",
        "closing",
        "has_answered",
        "instances",
        "jobs",
        "number",
        "opening",
        "runs",
        "stopped",
        "tenant",
    )

    def __init__(
        self,
        number: int,
        tenant: Tenant,
        opening: asyncio.Future[None] | None = None,
        now: float = 0.0,
        instances: int = 1,
    ) -> None:
        self.number, self.tenant, self.opening, self.instances = number, tenant, opening, instances
        self.closing: asyncio.Future[None] | None = None
        self.asked = now  # when opening or closing was requested
        self.has_answered = False
        self.jobs: dict[int, float] = {}  # in order, with the time at which each began; infinity while it waits
        self.stopped: dict[int, float] = {}  # when the host was asked to stop a running job that had reached its limit
        self.runs: dict[int, int] = {}  # how often the engine runs, for jobs with several runs

    @property
    def limit(self) -> float:
        """Seconds that a run of the engine may take."""
        return self.tenant.bounds.seconds

    def give(self, job: int, now: float, runs: int = 1) -> None:
        """Add a job, for which the engine runs `runs` times."""
        self.jobs[job] = now if len(self.jobs) < self.instances else math.inf
        if runs > 1:
            self.runs[job] = runs

    def end(self, job: int, now: float) -> bool:
        """Remove an answered job; return whether it had been stopped at its limit."""
        self.runs.pop(job, None)
        if self.jobs.pop(job, math.inf) < math.inf:
            waiting = next((other for other, began in self.jobs.items() if began == math.inf), None)
            if waiting is not None:
                self.jobs[waiting] = now
        return self.stopped.pop(job, None) is not None

    def late(self, now: float) -> float:
        """Return the largest number of seconds by which a running job exceeds its limit; negative if no job does."""
        return max((now - began - self._allowed(job) for job, began in self.jobs.items()), default=-math.inf)

    def overdue(self, now: float, grace: float) -> tuple[Literal["", "stop", "hopeless"], int]:
        """Return the action for a job that has reached its limit, and the number of the job. "stop" is returned once
        for each job, "hopeless" if the job still runs after the grace period, and "" if there is nothing to do."""
        for job, began in self.jobs.items():
            if now - began <= self._allowed(job):
                continue
            if job not in self.stopped:
                self.stopped[job] = now
                return "stop", job
            if now - self.stopped[job] > grace:
                return "hopeless", job
        return "", 0

    def _allowed(self, job: int) -> float:
        return self.limit * self.runs.get(job, 1)


class _Job(NamedTuple):
    future: asyncio.Future[Reply]
    session: HostSession
    parts: int


_UNKNOWN = Tenant()
_NO_BYTES = memoryview(b"")


class HostLink:
    """The connection to one host. When the host is lost, every waiting future fails with HostLost and `on_lost` is
    called once."""

    def __init__(
        self,
        backend: str,
        limits: HostLimits,
        on_lost: Callable[[HostLink, str], None],
        reads: tuple[str, ...] = (),
        times: LinkTimes = _TIMES,
        module: str = HOST_MODULE,
    ) -> None:
        """`reads` are the folders and files of models and engines that the host may open; `module` is the Python module
        that it runs."""
        self.backend, self._reads, self._times, self._module = backend, reads, times, module
        self.pid = 0
        self.version = ""  # of the runtime that the host loaded
        self.sessions: dict[int, HostSession] = {}
        self.nodes: dict[int, Nodes] = {}  # where the nodes of each session run, as far as its runtime reports it
        self.lost = ""  # why the host accepts no more messages; empty while it accepts them
        self.loss = Loss()  # the details, once the link has failed all its requests
        self.memory_mb = limits.memory_mb or memory.derived_mb(box_mb())
        self._progress = Progress(times.progress)
        self._sent = self._received = 0  # messages
        self._is_garbled = False  # the host sent an invalid message; further messages are ignored
        self._has_failed_all = False  # the host is lost, and all waiting requests have failed
        self._limits, self._on_lost = limits, on_lost
        self._loop = asyncio.get_running_loop()
        self.arena = Arena(limits.arena_mb << 20)
        self._numbers = itertools.count(1)
        self._jobs: dict[int, _Job] = {}
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._encoder, self._decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(ready(m.FromHost))
        self.stopping = False
        self._socket: HostSocket | None = None
        self._process: HostProcess | None = None
        self._inodes = frozenset[tuple[int, int]]()  # of `reads`, if the host is confined to them
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the process and wait until the host has imported its backend. Raises HostLost if the start fails."""
        try:
            connection = self._socket = HostSocket(self._receive, self._most_bulk, self._disconnected)
            allowed_mb, reach = 0 if memory.is_gpu_mapped() else self.memory_mb, rules.reach(self._reads)
            self._inodes = await asyncio.to_thread(rules.inodes, reach)
            host = self._process = await HostProcess.start(
                self.backend, connection, self.arena, allowed_mb, reach, self._module
            )
            self.pid = host.pid
            self._watch = tasks.keep("watcher of a host", lambda: self._watch_process(host))
            await tasks.at_most(self._times.start, asyncio.shield(self._ready))
        except asyncio.TimeoutError:
            self.kill(f"did not start within {self._times.start:g} s")
            raise HostLost(f"engine host {self.backend} {self.lost}") from None
        except OSError as error:
            self._lose(f"could not be started: {error.strerror or error}")
            raise HostLost(f"engine host {self.backend} {self.lost}") from error

    def lacks(self, paths: Iterable[Path]) -> str:
        """Return a name for the first of these folders of engines and files of models that the host may not read,
        different after each replacement; empty if the host may read all. Reads the disk, so call this in a thread."""
        for path in paths:
            wanted = (str(path),) if path.is_dir() else rules.around(path)
            for one in wanted:
                if not any(Path(one).is_relative_to(each) and self._is_known(each) for each in self._reads):
                    place = path if rules.is_private(str(path.parent)) else path.parent
                    return f"{place}#{(_inode(str(place)) or (0, 0))[1]}:"
        return ""

    def _is_known(self, path: str) -> bool:
        """Whether a path is still the file or folder that existed when the host started: Landlock's rules are for
        inodes, so the host cannot read a folder that was removed and created again."""
        return not self._inodes or _inode(path) in self._inodes

    async def open(self, order: Order, recognition: Recognition, batch: int = 1, tenant: Tenant = _UNKNOWN) -> int:
        """Open an engine for up to `batch` pictures at a time, and return the number of its session in this host.
        Raises the backend's error if the engine cannot be opened, and HostLost if the host is lost."""
        self._require_alive()
        number = next(self._numbers)
        seconds = tenant.bounds.seconds or self._limits.job_seconds
        output_mb = tenant.bounds.output_mb or self._limits.output_mb
        bounds = msgspec.structs.replace(tenant.bounds, seconds=seconds, output_mb=output_mb)
        self._send(m.Open(number, order, recognition, batch, bounds))
        opening: asyncio.Future[None] = self._loop.create_future()
        tenant, instances = msgspec.structs.replace(tenant, bounds=bounds), order.parallelism.instances
        self.sessions[number] = HostSession(number, tenant, opening, time.monotonic(), instances)
        await opening
        return number

    async def close_session(self, number: int) -> None:
        """Close a session once its submitted jobs are answered; return at once if the host is lost."""
        if self.lost:
            return
        try:
            self._send(m.Close(number))
        except HostLost:
            return
        session = self.sessions[number]
        session.closing, session.asked = self._loop.create_future(), time.monotonic()
        await session.closing

    def submit(self, make: Callable[[int], m.Infer | m.Detect]) -> asyncio.Future[Reply]:
        """Send the job that `make` returns for a new job number. The returned future ends with the answer, the job's
        error, or HostLost. Raises HostLost if the host is lost, and NotReady if the session is closed."""
        self._require_alive()
        number = next(self._numbers)
        future: asyncio.Future[Reply] = self._loop.create_future()
        message = make(number)
        session = self.sessions.get(message.session)
        if session is None or session.closing is not None:  # the host would end if it got work for a closed session
            raise NotReady("the engine was just replaced; send the request again")
        self._send(message)
        parts = message.parts if isinstance(message, m.Infer) else len(message.pictures)
        runs = -(-parts // message.most) if isinstance(message, m.Detect) and message.most else 1
        session.give(number, time.monotonic(), runs)
        self._jobs[number] = _Job(future, session, parts)
        return future

    def abandon(self, future: asyncio.Future[Reply]) -> None:
        """Ask the host to stop a job that no request waits for any more. The host still sends an answer to the job."""
        for number, job in self._jobs.items():
            if job.future is future:
                with contextlib.suppress(HostLost):
                    self._send(m.Stop(number, job.session.number))
                return

    async def stop(self) -> None:
        """End the process. Jobs without an answer fail with HostLost. A process that hangs in a driver cannot be killed
        and is left running."""
        self.stopping = True
        if self._process is not None:
            await self._process.stop()
        self.kill("was stopped")
        if self._watch is not None:
            await asyncio.wait((self._watch,), timeout=self._times.gone)

    def kill(self, why: str, suspects: Collection[int] | None = None, end: End = End.WORK) -> None:
        """Kill the process. `suspects` are the numbers of the sessions that caused the problem, None for all busy
        sessions."""
        if self._process is not None:
            self._process.kill()
        self._lose(why, suspects, end)

    @property
    def overdue(self) -> float:
        """Seconds by which the host exceeds its time limits; 0 while it exceeds none."""
        now = time.monotonic()
        return max([0.0, *(session.late(now) for session in self.sessions.values()), *self._waits(now).values()])

    # -- messages ----------------------------------------------------------------------------------------------------

    def _require_alive(self) -> None:
        if self.lost:
            raise HostLost(f"engine host {self.backend} {self.lost}")

    def _send(self, message: m.ToHost) -> None:
        assert self._socket is not None  # it was started
        if self._socket.send(self._encoder.encode(message)):
            self._sent += 1
            return
        self._disconnected()
        self._require_alive()

    def _disconnected(self, why: str = "") -> None:
        """Mark the host as lost, because the connection ended. Kill the host if it violated the protocol (`why`)."""
        if why:
            self.kill(why)
        elif not self.lost:  # the watcher will see the process end, and learn how
            self.lost = "no longer answers"
            self._loop.call_later(self._times.ending, self._end)

    def _end(self) -> None:
        if not self._has_failed_all:
            self.kill("no longer answers")

    def _most_bulk(self) -> int:
        """Return the maximum number of bytes that the outputs of the next answer may have."""
        return max(
            (_FOUND_BYTES + (job.session.tenant.bounds.output_mb << 20) * job.parts for job in self._jobs.values()),
            default=0,
        )

    def _receive(self, data: bytes, bulk: memoryview = _NO_BYTES) -> None:
        """Process a message from the host. The host is not trusted, because a hostile model may control it."""
        if self._is_garbled:
            return
        self._progress.received()
        try:
            self._take(self._decoder.decode(data), bulk)
        except Exception as error:
            self._is_garbled = True
            if not self._has_failed_all:
                tasks.failed("reading a host's answer", error)
                self.kill("sent an invalid message")

    def _take(self, message: m.FromHost, bulk: memoryview) -> None:
        """Pass a message to the job or session that waits for it. Ignore messages that were not requested. Raises
        EngineUnusable after too many of them."""
        self._received += 1
        if self._received > self._sent + _UNREQUESTED:
            most = self._sent + _UNREQUESTED
            raise EngineUnusable(
                f"the host sent {self._received} messages after {self._sent} requests; at most {most} are allowed"
            )
        if isinstance(message, m.Answer | m.Detected):
            if (job := self._jobs.pop(message.job, None)) is not None:
                job.session.has_answered = True
                job.session.end(message.job, time.monotonic())  # the session's next job begins now
                _settle(job.future, m.joined(message, bulk) if bulk else message)
        elif isinstance(message, m.JobFailed):
            if (job := self._jobs.pop(message.job, None)) is not None:
                self._fail_job(message, job)
        elif isinstance(message, m.Opened):
            self._opened(message)
        elif isinstance(message, m.OpenFailed):
            self._forget(message.session, rebuild(message.error, message.message))
        elif isinstance(message, m.Closed):
            self._forget(message.session, EngineUnusable("the engine host closed the engine instead of opening it"))
        elif isinstance(message, m.Ready):
            self.version = message.version
            _settle(self._ready, None)
        elif isinstance(message, m.Unfit):
            self._lose(f"cannot start: {message.message}")

    def _opened(self, opened: m.Opened) -> None:
        session = self.sessions.get(opened.session)
        if session is None or session.opening is None:
            return
        opening, session.opening = session.opening, None
        if opening.cancelled():  # the caller no longer wants the session
            self._send(m.Close(opened.session))
            return
        self.nodes[opened.session] = opened.nodes
        _settle(opening, None)

    def _forget(self, number: int, error: EdgedError) -> None:
        """Remove a session that has closed or could not be opened. A caller that waits for the session to open gets
        `error`. Raises EngineUnusable if the session had jobs."""
        self.nodes.pop(number, None)
        session = self.sessions.pop(number, None)
        if session is None:
            return
        _fail(session.opening, error)
        _settle(session.closing, None)
        if session.jobs:
            raise EngineUnusable("the host closed an engine before it had answered the engine's requests")

    def _fail_job(self, failed: m.JobFailed, job: _Job) -> None:
        if job.session.end(failed.job, time.monotonic()):
            _fail(job.future, _too_long(job.session))
        else:
            job.session.has_answered = True  # an error is an answer, too: the runtime works
            error = rebuild(failed.error, failed.message)
            if isinstance(error, NotFinite):
                error.outputs = failed.not_finite
            _fail(job.future, error)

    # -- limits and the end ------------------------------------------------------------------------------------------

    def _waits(self, now: float) -> dict[int, float]:
        """Return by how many seconds each session that is opening or closing exceeds the time limit. The seconds are
        negative before the limit is reached. The result maps the numbers of the sessions to the seconds."""
        limit = self._limits.open_seconds
        return {number: now - s.asked - limit for number, s in self.sessions.items() if s.opening or s.closing}

    def _look(self) -> None:
        """Stop jobs at their limit. Kill the host if a job does not stop, if the host makes no progress, or if it uses
        too much memory."""
        now = time.monotonic()
        for number, session in self.sessions.items():
            overdue, running = session.overdue(now, self._times.grace)
            if not overdue:
                continue
            if overdue == "stop":
                self._send(m.Stop(running, number))
                continue
            _fail(self._jobs.pop(running).future, _too_long(session))
            return self.kill("hung: a request did not stop at its time limit", (number,))
        sign = read(self.pid, threads=self._progress.should_ping)
        waits = self._waits(now)
        self._progress.look(now, sign, is_busy=bool(self._jobs or waits))
        if self._progress.is_stopped:
            return self.kill("was paused by a signal (such as SIGSTOP) and then killed", (), End.OUTSIDE)
        if self._progress.is_stuck:
            return self.kill("hung: it neither works nor answers")
        if self._progress.should_ping:
            self._send(m.Ping())
        hanging = [number for number, late in waits.items() if late > 0]
        if hanging:
            return self.kill("hung: an engine was not opened or closed within its time limit", hanging)
        if self.memory_mb and (used := memory.used_mb(self.pid)) > self.memory_mb:
            self.kill(f"used {used:.0f} MiB of memory; its limit is {self.memory_mb} MiB (hosts.memory_mb)")
        return None

    async def _watch_process(self, host: HostProcess) -> None:
        """Check the limits of the process until it ends, then report the loss."""
        while not host.ended.done():
            shortest = min((session.limit for session in self.sessions.values()), default=math.inf)
            period = min(self._times.look, shortest / 8, self._limits.open_seconds / 4)
            await asyncio.wait([host.ended], timeout=period)
            if not host.ended.done() and not self.lost:
                host.look()
                with contextlib.suppress(HostLost):
                    self._look()
        why = "was stopped" if self.stopping else f"died (exit status {host.status})"
        if host.end is End.MEMORY:
            why += ": the box was out of memory"
        self._lose(why, end=host.end)

    def _lose(self, why: str, suspects: Collection[int] | None = None, end: End = End.WORK) -> None:
        if self._has_failed_all:
            return
        self._has_failed_all = True
        if self._socket is not None:
            self._socket.drain()  # answers that the host sent before it ended are still valid
        suspected = [
            session
            for number, session in self.sessions.items()
            if (session.jobs or session.opening if suspects is None else number in suspects)
        ]
        why += next(filter(None, map(_by, suspected)), "")
        self.lost = why
        busy = [(session.tenant.suspect, session.has_answered) for session in suspected]
        self.loss = Loss(why, tuple(busy), end)
        error = HostLost(f"engine host {self.backend} {why}", is_outside=end.is_outside)
        for job in self._jobs.values():
            _fail(job.future, error)
        _fail(self._ready, error)
        for session in self.sessions.values():
            _fail(session.opening, error)
            _settle(session.closing, None)
            session.opening = session.closing = None
        self._jobs.clear()
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self._process.close_output()
        self._loop.call_later(self._times.unread, self._close_arena)
        self._on_lost(self, why)

    def _close_arena(self) -> None:
        try:
            self.arena.close()
        except BufferError:
            self._loop.call_later(self._times.unread, self._close_arena)


def _too_long(session: HostSession) -> DeadlineExceeded:
    bounds = session.tenant.bounds
    return DeadlineExceeded(
        f"a request of model {bounds.model!r} ran longer than its limit of {bounds.seconds:g} s;"
        f" send less at a time, or raise {SECONDS} of the model{_by(session)}"
    )


def _by(session: HostSession) -> str:
    """Return the end of an error message, which names the family and package whose code decodes the outputs. It is
    empty if edged's own code decodes them."""
    return f"; its outputs are decoded by {session.tenant.family}" if session.tenant.family else ""


def _settle(future: asyncio.Future[m.Answer | m.Detected] | asyncio.Future[None] | None, value: Reply | None) -> None:
    if future is not None and not future.done():
        future.set_result(value)  # type: ignore[arg-type]  # the two kinds of future share this line


def _fail(future: asyncio.Future[Reply] | asyncio.Future[None] | None, error: EdgedError) -> None:
    if future is not None and not future.done():
        future.set_exception(error)
        future.exception()  # marks the exception as retrieved: the caller may have gone


def _inode(path: str) -> tuple[int, int] | None:
    """Return device and inode of a path; None if it does not exist."""
    with contextlib.suppress(OSError):
        status = os.stat(path)
        return status.st_dev, status.st_ino
    return None
