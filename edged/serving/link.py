"""The daemon's end of one engine host: talks to it, and notices when it dies or hangs. Bytes go by `sockets`, the
process is started and ended by `host_process`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import msgspec

from edged import errors, tasks
from edged.backends.contract import Nodes, Order
from edged.config.limits import HostLimits
from edged.confinement import rules
from edged.decoding import ready
from edged.errors import DeadlineExceeded, EdgedError, EngineUnusable, HostLost, NotFinite
from edged.ipc import messages as m
from edged.ipc.arena import Arena
from edged.ipc.sockets import HostSocket
from edged.models.limits import SECONDS, Bounds
from edged.serving import memory
from edged.serving.crash_attribution import EngineId
from edged.serving.host_process import End, HostProcess, Progress, ProgressTimes, read
from edged.vision.family import Recognition


class LinkTimes(msgspec.Struct, frozen=True):
    """Limits of a link, in seconds; tests give shorter ones."""

    start: float = 60.0
    look: float = 0.2  # memory can be used up in a few seconds
    grace: float = 2.0  # for a job to stop: a runtime checks between two operators, and a large one may take a second
    ending: float = 1.0  # from when the connection is gone until the process must have ended
    unread: float = 1.0  # until the arena is closed: answers that were just delivered may still be read from it
    progress: ProgressTimes = ProgressTimes()


_TIMES = LinkTimes()


class OverdueJob(msgspec.Struct, frozen=True):
    """A job beyond its limit: to be stopped, or past the grace period (`is_hopeless`)."""

    session: int
    job: int
    is_hopeless: bool = False


class _SessionJobs:
    __slots__ = ("jobs", "limit", "since", "stopped")

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.jobs: dict[int, None] = {}  # in their order
        self.since = 0.0  # when the turn of the first began
        self.stopped: float | None = None  # when it was to be stopped


class JobDeadlines:
    """Deadlines of the running jobs of one host's sessions. Pure; times are seconds of any clock.

    A session runs its jobs one after the other, so a job's time begins when the one before it is answered. At its limit
    it is stopped. If it still runs after a grace period its runtime cannot stop, and the host is replaced.
    """

    def __init__(self, grace: float = _TIMES.grace) -> None:
        self._grace = grace
        self._deadlines: dict[int, _SessionJobs] = {}

    def open(self, session: int, limit: float) -> None:
        """Add a session; each of its jobs may take `limit` seconds."""
        self._deadlines[session] = _SessionJobs(limit)

    def close(self, session: int) -> None:
        self._deadlines.pop(session, None)

    def give(self, session: int, job: int, now: float) -> None:
        """Add a job to a session."""
        turn = self._deadlines[session]
        if not turn.jobs:
            turn.since, turn.stopped = now, None
        turn.jobs[job] = None

    def end(self, session: int, job: int, now: float) -> bool:
        """Remove an answered job; return whether it had been stopped at its limit."""
        turn = self._deadlines.get(session)
        if turn is None or job not in turn.jobs:
            return False
        is_first = next(iter(turn.jobs)) == job
        was_stopped = is_first and turn.stopped is not None
        del turn.jobs[job]
        if is_first:
            turn.since, turn.stopped = now, None
        return was_stopped

    def overdue(self, now: float) -> list[OverdueJob]:
        """Jobs that reached their limit, each reported once; and those that did not stop, reported until they end."""
        found = []
        for session, turn in self._deadlines.items():
            if not turn.jobs or now - turn.since <= turn.limit:
                continue
            job = next(iter(turn.jobs))
            if turn.stopped is None:
                turn.stopped = now
                found.append(OverdueJob(session, job))
            elif now - turn.stopped > self._grace:
                found.append(OverdueJob(session, job, is_hopeless=True))
        return found

    def late(self, now: float) -> float:
        """Seconds by which the most overdue job is beyond its limit; 0 if no job is."""
        over = (now - turn.since - turn.limit for turn in self._deadlines.values() if turn.jobs)
        return max(0.0, max(over, default=0.0))

    @property
    def busy(self) -> set[int]:
        """Sessions with jobs."""
        return {session for session, turn in self._deadlines.items() if turn.jobs}

    @property
    def shortest(self) -> float:
        """The shortest job limit of any session; infinity without sessions."""
        return min((turn.limit for turn in self._deadlines.values()), default=float("inf"))


_LONG = 16 << 20  # bytes of what was found in pictures, which is no output
_UNASKED = 8  # things that a host may say that answer nothing, such as that it is ready


Reply = m.Answer | m.Detected


class Tenant(msgspec.Struct, frozen=True):
    """Whose engine is opened in a host, and what its requests may take."""

    suspect: EngineId = EngineId("", "")
    bounds: Bounds = Bounds()


class Loss(msgspec.Struct, frozen=True):
    """How a host was lost: why; the engines that had work in it, each with whether it had answered anything there
    before; and what ended it."""

    why: str = ""
    suspects: tuple[tuple[EngineId, bool], ...] = ()
    end: End = End.WORK


_NOBODY = Tenant()
_NOTHING = memoryview(b"")


class HostLink:
    """One living host. When it is lost, every waiting future fails with HostLost and `on_lost` is called once."""

    def __init__(
        self,
        backend: str,
        limits: HostLimits,
        on_lost: Callable[[HostLink, str], None],
        reads: tuple[str, ...] = (),
        times: LinkTimes = _TIMES,
    ) -> None:
        """`reads` are the folders and files of models and engines that the host may open."""
        self.backend, self._reads, self._times = backend, reads, times
        self.pid = 0
        self.version = ""  # of the runtime that it loaded
        self.sessions: set[int] = set()
        self.nodes: dict[int, Nodes] = {}  # where the nodes of each session run, as far as its runtime reports it
        self.lost = ""  # why, once it takes nothing more
        self.loss = Loss()  # and what else is known of it then
        self.memory_mb = limits.memory_mb or memory.derived_mb(memory.box_mb())
        self._tenants: dict[int, Tenant] = {}  # of the sessions, also of those that are opening
        self._answered: set[int] = set()  # sessions that have answered something
        self._deadlines = JobDeadlines(times.grace)
        self._progress = Progress(times.progress)
        self._sent = self._said = 0  # messages to it and from it
        self._is_garbled = False  # its further messages are ignored
        self._is_over = False  # all waiting requests have failed with the loss
        self._limits, self._on_lost = limits, on_lost
        self._loop = asyncio.get_running_loop()
        self.arena = Arena(limits.arena_mb << 20)
        self._numbers = itertools.count(1)
        self._jobs: dict[
            int, tuple[asyncio.Future[Reply], int, int]
        ] = {}  # with its session, and how many parts it has
        self._opening: dict[int, asyncio.Future[None]] = {}
        self._closing: dict[int, asyncio.Future[None]] = {}
        self._asked: dict[int, float] = {}  # since when a session has been opening or closing
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._encoder, self._decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(ready(m.FromHost))
        self.stopping = False
        self._socket: HostSocket | None = None
        self._process: HostProcess | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Starts the process and waits until it has imported its backend. HostLost when it does not."""
        try:
            connection = self._socket = HostSocket(self._hear, self._most_bulk, self._be_cut_off)
            allowed_mb = 0 if memory.is_gpu_mapped() else self.memory_mb
            host = self._process = await HostProcess.start(
                self.backend, connection, self.arena, allowed_mb, rules.reach(self._reads)
            )
            self.pid = host.pid
            self._watch = tasks.keep("watcher of a host", lambda: self._watch_process(host))
            await asyncio.wait_for(asyncio.shield(self._ready), self._times.start)
        except asyncio.TimeoutError:
            self.kill(f"did not start within {self._times.start:g} s")
            raise HostLost(f"engine host {self.backend} {self.lost}") from None
        except OSError as error:
            self._lose(f"could not be started: {error.strerror or error}")
            raise HostLost(f"engine host {self.backend} {self.lost}") from error

    def reaches(self, model: Path) -> bool:
        """Whether the host may open a model and its external data."""
        return all(any(Path(path).is_relative_to(each) for each in self._reads) for path in rules.around(model))

    async def open(self, order: Order, recognition: Recognition, batch: int = 1, tenant: Tenant = _NOBODY) -> int:
        """Opens an engine for up to `batch` pictures at a time; its number within this host. The backend's error when
        it cannot be opened."""
        self._require_alive()
        number = next(self._numbers)
        seconds = tenant.bounds.seconds or self._limits.job_seconds
        output_mb = tenant.bounds.output_mb or self._limits.output_mb
        bounds = msgspec.structs.replace(tenant.bounds, seconds=seconds, output_mb=output_mb)
        self._send(m.Open(number, order, recognition, batch, bounds))
        self._tenants[number] = msgspec.structs.replace(tenant, bounds=bounds)
        self._deadlines.open(number, seconds)
        opened: asyncio.Future[None] = self._loop.create_future()
        self._opening[number], self._asked[number] = opened, time.monotonic()
        self.sessions.add(number)
        await opened
        return number

    async def close_session(self, number: int) -> None:
        """Closes a session after what was submitted to it before; returns at once when the host is gone."""
        if self.lost:
            return
        try:
            self._send(m.Close(number))
        except HostLost:
            return
        closed: asyncio.Future[None] = self._loop.create_future()
        self._closing[number], self._asked[number] = closed, time.monotonic()
        await closed

    def submit(self, make: Callable[[int], m.Infer | m.Detect]) -> asyncio.Future[Reply]:
        """Sends a job; the future ends with the answer, the job's error, or HostLost."""
        self._require_alive()
        number = next(self._numbers)
        future: asyncio.Future[Reply] = self._loop.create_future()
        message = make(number)
        self._send(message)
        self._deadlines.give(message.session, number, time.monotonic())
        parts = message.parts if isinstance(message, m.Infer) else len(message.pictures)
        self._jobs[number] = (future, message.session, parts)
        return future

    def abandon(self, future: asyncio.Future[Reply]) -> None:
        """Cancel a job that no request waits for, if its runtime can stop it. The host still answers it."""
        for job, (waiting, session, _) in self._jobs.items():
            if waiting is future:
                with contextlib.suppress(HostLost):
                    self._send(m.Stop(job, session))
                return

    async def stop(self) -> None:
        """Ends the process; what it still held fails with HostLost."""
        self.stopping = True
        if self._process is not None:
            await self._process.stop()
        self.kill("was stopped")
        if self._watch is not None:
            await asyncio.gather(self._watch, return_exceptions=True)

    def kill(self, why: str, suspects: Collection[int] | None = None, end: End = End.WORK) -> None:
        """Ends the process at once. `suspects` are sessions that are known to be why; otherwise all that are busy."""
        if self._process is not None:
            self._process.kill()
        self._lose(why, suspects, end)

    def _forget(self, number: int) -> None:
        """A session is no more."""
        self.sessions.discard(number)
        self.nodes.pop(number, None)
        self._asked.pop(number, None)
        self._tenants.pop(number, None)
        self._answered.discard(number)
        self._deadlines.close(number)

    def _require_alive(self) -> None:
        if self.lost:
            raise HostLost(f"engine host {self.backend} {self.lost}")

    def _send(self, message: m.ToHost) -> None:
        assert self._socket is not None  # it was started
        if self._socket.send(self._encoder.encode(message)):
            self._sent += 1
            return
        self._be_cut_off()
        self._require_alive()

    def _be_cut_off(self, why: str = "") -> None:
        """The host cannot be spoken to any more. `why`: it sent something that it may not send."""
        if why:
            self.kill(why)
        elif not self.lost:  # noticed here before the end of the process is; how that came is known then
            self.lost = "no longer answers"
            self._loop.call_later(self._times.ending, self._end)

    def _most_bulk(self) -> int:
        """The most bytes of outputs that may come with an answer now."""
        waiting = self._jobs.values()
        return max(
            (_LONG + (self._tenants[session].bounds.output_mb << 20) * parts for _, session, parts in waiting),
            default=0,
        )

    def _end(self) -> None:
        """Its connection is gone, and it should be."""
        if not self._is_over:
            self.kill("no longer answers")

    def _hear(self, data: bytes, bulk: memoryview = _NOTHING) -> None:
        """Handle a message of the host. It is not trusted: a hostile model may have taken the host over."""
        if self._is_garbled:
            return
        self._progress.heard()
        try:
            self._take(self._decoder.decode(data), bulk)
        except Exception as error:
            self._is_garbled = True
            if not self._is_over:
                tasks.failed("reading a host's answer", error)
                self.kill("sent an answer that cannot be read")

    def _take(self, message: m.FromHost, bulk: memoryview) -> None:
        """What was not asked, or is not waited for any more, is passed over, but not for ever."""
        self._said += 1
        if self._said > self._sent + _UNASKED:
            raise EngineUnusable(f"it said {self._said} things and was asked {self._sent}")
        if isinstance(message, m.Answer | m.Detected):
            if (job := self._jobs.pop(message.job, None)) is not None:
                self._answered.add(job[1])
                self._deadlines.end(job[1], message.job, time.monotonic())  # the session's next job has its turn now
                _settle(job[0], m.joined(message, bulk) if bulk else message)
        elif isinstance(message, m.JobFailed):
            if (job := self._jobs.pop(message.job, None)) is not None:
                self._fail_job(message, job[0], job[1])
        elif isinstance(message, m.Opened):
            if (opening := self._opening.pop(message.session, None)) is not None:
                self._open_now(message, opening)
        elif isinstance(message, m.OpenFailed):
            _fail(self._opening.pop(message.session, None), rebuild(message.error, message.message))
            self._forget(message.session)
        elif isinstance(message, m.Closed):
            _settle(self._closing.pop(message.session, None), None)
            self._forget(message.session)
        elif isinstance(message, m.Ready):
            self.version = message.version
            _settle(self._ready, None)
        elif isinstance(message, m.Unfit):
            self._lose(f"cannot start: {message.message}")

    def _open_now(self, opened: m.Opened, opening: asyncio.Future[None]) -> None:
        if opening.cancelled():  # by its caller
            self._send(m.Close(opened.session))
            return
        self.nodes[opened.session] = opened.nodes
        _settle(opening, None)

    def _fail_job(self, failed: m.JobFailed, future: asyncio.Future[Reply], session: int) -> None:
        if self._deadlines.end(session, failed.job, time.monotonic()):
            _fail(future, self._too_long(session))
        else:
            self._answered.add(session)  # a runtime that refuses is alive
            _fail(future, rebuild(failed.error, failed.message, failed.not_finite))

    def _too_long(self, session: int) -> DeadlineExceeded:
        bounds = self._tenants[session].bounds
        return DeadlineExceeded(
            f"a request of model {bounds.model!r} may take {bounds.seconds:g} s of its engine and took longer;"
            f" send less at a time, or raise {SECONDS} of the model"
        )

    @property
    def overdue(self) -> float:
        """Seconds for which it has been hanging beyond its limits; 0 while it is within them."""
        now = time.monotonic()
        return max([0.0, self._deadlines.late(now), *(late for _, late in self._waits(now))])

    def _waits(self, now: float) -> Iterator[tuple[int, float]]:
        """Sessions that are opening or closing, and the seconds for which they should have been done with it."""
        for session in (*self._opening, *self._closing):
            yield session, now - self._asked[session] - self._limits.open_seconds

    def _look(self) -> None:
        """Stops jobs at their limit; ends the host when one does not stop, it makes no progress, or it has taken too
        much memory."""
        now = time.monotonic()
        for overdue in self._deadlines.overdue(now):
            if not overdue.is_hopeless:
                self._send(m.Stop(overdue.job, overdue.session))
                continue
            future, session, _ = self._jobs.pop(overdue.job)
            _fail(future, self._too_long(session))
            return self.kill("hung: a request did not stop at its limit", (session,))
        sign = read(self.pid, threads=self._progress.should_ping)
        self._progress.look(now, sign, is_busy=bool(self._jobs or self._opening or self._closing))
        if self._progress.is_stopped:
            return self.kill("was stopped by a signal and ended", (), End.OUTSIDE)
        if self._progress.is_stuck:
            return self.kill("hung: it neither works nor answers")
        if self._progress.should_ping:
            self._send(m.Ping())
        hanging = [session for session, late in self._waits(now) if late > 0]
        if hanging:
            return self.kill("hung: an engine was not opened or closed within its limit", hanging)
        if self.memory_mb and (used := memory.used_mb(self.pid)) > self.memory_mb:
            self.kill(f"used {used:.0f} MiB of memory, more than the {self.memory_mb} MiB of hosts.memory_mb")
        return None

    async def _watch_process(self, host: HostProcess) -> None:
        """Notices the end of the process, and what goes beyond its limits."""
        while not host.ended.done():
            period = min(self._times.look, self._deadlines.shortest / 8, self._limits.open_seconds / 4)
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
        if self._is_over:
            return
        self._is_over = True
        if self._socket is not None:
            self._socket.drain()  # what it answered before it went still counts
        self.lost = why
        busy = self._deadlines.busy | self._opening.keys() if suspects is None else set(suspects)
        known = sorted(busy & self._tenants.keys())
        self.loss = Loss(why, tuple((self._tenants[n].suspect, n in self._answered) for n in known), end)
        error = HostLost(f"engine host {self.backend} {why}", is_outside=end.is_outside)
        for job, *_ in self._jobs.values():
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
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self._process.hear_out()
        self._loop.call_later(self._times.unread, self._close_arena)

    def _close_arena(self) -> None:
        try:
            self.arena.close()
        except BufferError:
            self._loop.call_later(self._times.unread, self._close_arena)


def _settle(future: asyncio.Future[m.Answer | m.Detected] | asyncio.Future[None] | None, value: Reply | None) -> None:
    if future is not None and not future.done():
        future.set_result(value)  # type: ignore[arg-type]  # the two kinds of future share this line


def _fail(future: asyncio.Future[Reply] | asyncio.Future[None] | None, error: EdgedError) -> None:
    if future is not None and not future.done():
        future.set_exception(error)
        future.exception()  # mark it as retrieved: its caller may have gone


def rebuild(name: str, message: str, not_finite: tuple[str, ...] = ()) -> EdgedError:
    """The error that a host named."""
    if name == NotFinite.__name__:
        return NotFinite(message, not_finite)
    kind = getattr(errors, name, None)
    return kind(message) if isinstance(kind, type) and issubclass(kind, EdgedError) else EngineUnusable(message)
