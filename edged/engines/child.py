"""The daemon's end of a one-shot child (a process that runs one job). Starts the child, reads its messages, enforces
its limits, and determines how the child ended.

A child leads its own session: Ctrl-C in a terminal reaches only the daemon, which then stops the child. The processes
that the child started are killed with the child. The job server reaps the child only after this module has killed them
all, so that the child's process ID cannot be reused earlier.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Literal, TypeAlias, TypeVar

import msgspec

from edged import family_packages, process
from edged.backends.contract import Order
from edged.config.child_limits import Limits
from edged.confinement import rules
from edged.confinement.rules import Reach
from edged.decoding import ready
from edged.engines import child_watch as watch
from edged.engines.child_watch import NO_PATIENCE, Patience
from edged.engines.job_server import SERVER, JobProcess
from edged.errors import BuildFailed, EdgedError, ModelRefused, rebuild
from edged.ipc import job_channel as channel
from edged.ipc import job_messages as jobs
from edged.ipc.job_messages import FreeDims, Lower, Prove, Simplify
from edged.ipc.pipe_messages import UNREADABLE
from edged.logs.child_output import ChildLogForwarder
from edged.tasks import despite_cancelling, in_thread

_POLL_SECONDS = 0.25
_LONGEST_PAUSE = 4 * _POLL_SECONDS
_CLOSED_SECONDS = 2.0  # within this time after a child closed its channel, the child must end
_GONE_SECONDS = 10.0  # a killed child must release its memory within this time
_REST_SECONDS = 1.0  # to read the rest of a dead child's pipes, which another process may hold open
_MESSAGE_BURST, _MESSAGES_PER_SECOND = 500.0, 100.0  # progress messages; `channel.JobReporter` sends far fewer
_NOISE_BYTES = 1 << 16  # the end of standard error that is kept; its last line says why the child failed
_CRASH = "Fatal Python error: "  # faulthandler's first words; the traceback after them is only logged
_EXAMINATIONS = (jobs.Inspect, jobs.Recognise, jobs.LoadFamilies, jobs.Check, jobs.AskPicture, jobs.TryFamilies)

Answer = TypeVar("Answer", bound=msgspec.Struct)
OnProgress = Callable[[jobs.Progress], None]
# How a child was lost: it crashed, exceeded its time limit (late) or its memory limit (too large), or was killed from
# outside.
How: TypeAlias = Literal["crashed", "late", "too large", "killed"]


class ChildLost(BuildFailed):
    """The child ended without an answer or had to be killed; `how` is the machine-readable reason."""

    def __init__(self, message: str, how: How) -> None:
        super().__init__(message)
        self.how = how


async def run(
    job: jobs.Job,
    answer: type[Answer],
    limits: Limits,
    *,
    on_progress: OnProgress | None = None,
    patience: Patience = NO_PATIENCE,
    command: Sequence[str] = (),
) -> Answer:
    """Run a job in a new child and return the child's answer, which has the type `answer`. `on_progress` is called in
    the event loop with each progress message. `command`: if not empty, the program and arguments that run instead of
    edged's child.

    Raises the error that the child reports, and ChildLost if the child crashes or exceeds a limit. Raises BuildFailed
    if the child cannot be started or its answer cannot be read. If the caller is cancelled, the child is killed.
    """
    what = type(job).__name__.lower()
    async with contextlib.AsyncExitStack() as stack:
        try:
            reach = await stack.enter_async_context(in_thread(partial(_reach, job)))
            started = SERVER.child(msgspec.json.encode(job), _arguments(job, limits, reach), command)
            process = await stack.enter_async_context(started)
            child = OneShotChild(process, what, limits, on_progress, patience)
        except OSError as error:
            raise BuildFailed(
                f"cannot start the {what} child: {error.strerror or error}; check process limits, memory and disk space"
            ) from error
        try:
            last = await child.last_word()
        finally:
            child.stop()
            await despite_cancelling(child.gone())
    if last is None:
        raise ChildLost(f"{what} child {child.how_it_ended()}", child.how())
    try:
        if last.kind == channel.ANSWER:
            return msgspec.json.decode(last.payload, type=ready(answer))
        failure = msgspec.json.decode(last.payload, type=ready(jobs.Failure))
    except UNREADABLE as error:
        raise BuildFailed(
            f"cannot parse the answer of the {what} child process: {error}; restart edged if it was updated meanwhile"
        ) from error
    if failure.error == MemoryError.__name__:
        raise ChildLost(f"{what} child process used more memory than its limit, {limits.memory_mb:g} MiB", "too large")
    raise _error(failure)


@contextlib.contextmanager
def _reach(job: jobs.Job) -> Iterator[Reach]:
    """Yield what the child may access, including a temporary folder that exists during the block. Lists the model's
    folder on disk, so call this in a thread."""
    scratch = tempfile.mkdtemp(prefix=f"edged-{os.getpid()}-")  # `sweep_scratch` parses this name
    try:
        yield reach_of(job, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def sweep_scratch() -> None:
    """Remove temporary folders of children whose parent has ended. Folders named after the id of this process are
    removed too, because in a container the previous process often had the same id. So call this function before this
    process starts a child."""
    for folder in Path(tempfile.gettempdir()).glob("edged-*-*"):
        owner = folder.name.split("-")[1]
        is_gone = owner.isdecimal() and (int(owner) == os.getpid() or not os.path.exists(f"/proc/{owner}"))
        if is_gone and folder.lstat().st_uid == os.getuid():
            shutil.rmtree(folder, ignore_errors=True)


class OneShotChild:
    """One running child. `what` is the kind of its job. Create the object in the event loop."""

    def __init__(
        self, process: JobProcess, what: str, limits: Limits, on_progress: OnProgress | None, patience: Patience
    ) -> None:
        self._process, self._what = process, what
        self._limits, self._on_progress, self._patience = limits, on_progress, patience
        self._watch = watch.Watch(limits.memory_mb, limits.stall_seconds, patience.quiet_seconds)
        self._frames, self._noise = channel.Frames(), bytearray()
        # Lines of the child are logged at level INFO, because only the child's end shows whether a line matters.
        self._log = ChildLogForwarder(f"child {what}", logging.INFO)
        self._last: channel.Frame | None = None
        self._messages_left, self._counted_at = _MESSAGE_BURST, time.monotonic()
        self._family: set[int] = set()  # killed with the child
        self._starved = 0.0  # seconds spent waiting for a processor
        self._granted = 0.0  # extra seconds for phases that the child began
        self._extra_seconds = 0.0  # extra seconds, granted once the child reports a fraction
        self._channel = PipeReader(process.stdout, self._receive)
        self._stderr = PipeReader(process.stderr, self._collect)
        self._watching = asyncio.create_task(self._watch_over())

    def _stopped(self, why: str, how: How) -> ChildLost:
        return ChildLost(f"{self._what} child was stopped, because it {why}", how)

    async def last_word(self) -> channel.Frame | None:
        """Wait for the child's answer or failure message and return it; None if the child ends without such a message.
        Raises ChildLost if the child exceeds a limit, or closes its channel without such a message and does not end."""
        ends = {self._channel.ended, self._watching}
        began = time.monotonic()
        done: set[asyncio.Future[BaseException | None]] = set()
        while not done:
            left = began + self._seconds() - time.monotonic()
            if left <= 0:
                raise self._stopped(f"took longer than {self._limits.seconds:g} s", "late")
            done, _ = await asyncio.wait(ends, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if self._last is None:
            for end in done:
                if error := end.result():
                    raise error
            # Usually the channel is closed because the child ended; then its exit status says more.
            if not await _happens(self._process.has_ended, _CLOSED_SECONDS):
                raise self._stopped("closed its channel without an answer", "crashed")
            # Kill other processes that hold the channel, so that the rest of its data can be read.
            self._family |= watch.kill(self._process.pid)
            await asyncio.wait({self._channel.ended}, timeout=_REST_SECONDS)
        return self._last

    def _seconds(self) -> float:
        """Return the child's time limit, including the extra time granted so far."""
        starved = min(self._starved, self._patience.starved_seconds)
        return self._limits.seconds + starved + self._granted + self._extra_seconds

    def stop(self) -> None:
        """Kill the child and its family, whether or not it has answered."""
        self._family |= watch.kill(self._process.pid)
        self._watching.cancel()
        self._channel.close()

    async def gone(self) -> None:
        """Wait until a stopped child and its family have ended, at most about 11 s. Then close the pipe and the log."""
        try:
            # A process that hangs in a driver cannot be killed, so the wait is limited.
            await _happens(self._is_gone, _GONE_SECONDS)
            await asyncio.wait({self._stderr.ended}, timeout=_REST_SECONDS)
            await asyncio.wait({self._watching})
        finally:
            self._stderr.close()
            self._log.close()

    def how(self) -> How:
        """Return "killed" if SIGKILL or SIGTERM ended the child, because these signals come from outside the child.
        Otherwise return "crashed"; then the model may be the cause."""
        return "killed" if self._process.returncode in (-signal.SIGKILL, -signal.SIGTERM) else "crashed"

    def how_it_ended(self) -> str:
        text = self._noise.decode(errors="replace").partition(_CRASH)[0]
        lines = [line for line in text.splitlines() if line.strip()]
        return _ending(self._process.returncode) + (f": {lines[-1].strip()[:300]}" if lines else "")

    def _receive(self, data: bytes) -> None:
        try:
            for frame in self._frames.feed(data):
                self._watch.received()
                if frame.kind != channel.PROGRESS:
                    self._last = frame
                    self._channel.close()
                    return
                self._count_message()
                progress = channel.progress(frame)
                self._granted = max(self._granted, self._patience.granted.get(progress.phase, 0.0))
                if progress.fraction is not None:
                    self._extra_seconds = self._patience.progress_seconds
                    self._watch.quiet_seconds = self._patience.step_seconds
                if self._on_progress is not None:
                    self._on_progress(progress)
        except channel.InvalidMessage as error:
            raise self._stopped(f"sent {error}", "crashed") from None

    def _count_message(self) -> None:
        """Raise ChildLost if the child sends so many messages that reading them starves the event loop."""
        now = time.monotonic()
        self._messages_left = (
            min(_MESSAGE_BURST, self._messages_left + (now - self._counted_at) * _MESSAGES_PER_SECOND) - 1
        )
        self._counted_at = now
        if self._messages_left < 0:
            raise self._stopped(f"reported progress more than {_MESSAGES_PER_SECOND:g} times a second", "crashed")

    def _collect(self, data: bytes) -> None:
        self._log.feed(data)
        self._noise += data
        del self._noise[:-_NOISE_BYTES]

    async def _watch_over(self) -> BaseException | None:
        """Watch the child. Return a ChildLost if the child must be stopped, or None once the child has ended."""
        family = watch.Family(self._process.pid, self._limits.memory_mb)
        then, cpu_seconds = time.monotonic(), 0.0
        while not self._process.has_ended():
            await asyncio.sleep(_POLL_SECONDS)
            usage = await asyncio.to_thread(family.measure)
            now = time.monotonic()
            if usage.wants:
                self._starved += max(0.0, now - then - max(0.0, usage.cpu_seconds - cpu_seconds))
            cpu_seconds = usage.cpu_seconds
            # A longer pause does not count against the child: this process itself was frozen or got no processor time.
            if reason := self._watch.judge(usage, min(now - then, _LONGEST_PAUSE)):
                return self._stopped(reason, "too large" if usage.memory_mb > self._limits.memory_mb else "late")
            then = now
        return None

    def _is_gone(self) -> bool:
        """Whether the child and its family have ended."""
        return self._process.has_ended() and not watch.any_lives(self._family)


def _arguments(job: jobs.Job, limits: Limits, reach: Reach) -> tuple[str, ...]:
    """Return the arguments of `edged.jobs.main.run` except the first."""
    niceness = process.EXAMINE if isinstance(job, _EXAMINATIONS) else process.BUILD
    if isinstance(job, jobs.Time | jobs.Sift | jobs.Shadow):
        niceness = process.MEASURE if isinstance(job, jobs.Time) else process.IDLE
    return (str(limits.memory_mb), str(limits.disk_mb), str(niceness), reach.argument())


async def _happens(condition: Callable[[], bool], seconds: float) -> bool:
    """Poll until a condition is true. Return whether it was true within `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.005)
    return True


def _error(failure: jobs.Failure) -> EdgedError:
    error = rebuild(failure.error, failure.message, BuildFailed)
    if isinstance(error, ModelRefused):
        error.finding = dict(failure.finding)
    return error


def _ending(code: int | None) -> str:
    if code == -signal.SIGKILL:
        return "was killed by SIGKILL, perhaps by the kernel because memory ran out (see: journalctl -k)"
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
    return f"ended with status {code}"


_CHUNK = 1 << 16  # bytes read at once, so that other work of the loop gets its turn


class PipeReader:
    """Reads a pipe in the event loop and passes each piece to `receive`, so that the writer never blocks.

    The reader owns the pipe. The future `ended` is done once either end of the pipe is closed. Its result is the
    exception that `receive` raised, or None.
    """

    def __init__(self, pipe: IO[bytes], receive: Callable[[bytes], None]) -> None:
        self._pipe, self._receive = pipe, receive
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[BaseException | None] = self._loop.create_future()
        os.set_blocking(pipe.fileno(), False)
        self._loop.add_reader(pipe.fileno(), self._read)

    def close(self, error: BaseException | None = None) -> None:
        if not self._pipe.closed:
            self._loop.remove_reader(self._pipe.fileno())
            self._pipe.close()
        if not self.ended.done():
            self.ended.set_result(error)

    def _read(self) -> None:
        try:
            piece = os.read(self._pipe.fileno(), _CHUNK)
            if piece:
                self._receive(piece)
            else:
                self.close()
        except BlockingIOError:  # a spurious wake-up
            pass
        except Exception as error:  # passed on in `ended`; if it were raised here, the loop would only log it
            self.close(error)


def reach_of(job: jobs.Job, scratch: str) -> Reach:
    """Return the files that the child may read and the folders it may write; `scratch` is its temporary folder."""
    return rules.reach(_reads(job), _writes(job), scratch)


def _reads(job: jobs.Job) -> Iterator[str]:
    for order in _orders(job):
        yield from rules.around(order.model)
        if order.artefact is not None:
            yield order.artefact.root
    if isinstance(job, (jobs.Inspect, jobs.FinishExport, jobs.ExportLayers, Lower, Simplify)):
        yield from rules.around(job.path)
    if isinstance(job, jobs.Tokenize):
        yield from job.files
    if isinstance(job, (jobs.CheckSamples, jobs.MakeGolden, jobs.Build, jobs.CompareLevels, Prove)):
        yield from job.samples
    if isinstance(job, jobs.Build) and job.collected is not None:
        yield from job.collected.calibrate
    if isinstance(job, jobs.Check):
        yield from job.given.values()
    yield from _packages(job)
    if isinstance(job, (jobs.AskPicture, jobs.TryFamilies, jobs.Shadow)) and job.picture:
        yield job.picture
    if isinstance(job, jobs.Verify):
        yield job.golden
    if isinstance(job, (jobs.Judge, jobs.DrawFrames)):  # folders, because a collection has many frames
        frames = job.frames if isinstance(job, jobs.Judge) else [frame.path for frame in job.frames]
        yield from sorted({str(Path(frame).parent) for frame in frames})


def _packages(job: jobs.Job) -> Iterator[str]:
    """Yield the files and folders that a child reads when it imports families of other packages. Most packages are in
    folders that every child may read, but a checkout may be elsewhere."""
    if isinstance(job, (jobs.Recognise, jobs.LoadFamilies)):
        families = [offer.family for offer in job.families]
    else:
        recognition = getattr(job, "recognition", None)
        families = [recognition.family] if recognition is not None and recognition.package is not None else []
    for family in families:
        yield from family_packages.folders(family)


def _writes(job: jobs.Job) -> Iterator[str]:
    if isinstance(job, jobs.Shadow):
        yield job.out
    if isinstance(job, jobs.Build):
        yield job.out
        if job.order.timings:  # each device has its own timings, which all builds for the device share
            yield str(Path(job.order.timings).parent)
    if isinstance(job, (jobs.MakeGolden, jobs.FinishExport, jobs.ExportLayers, Lower, FreeDims, Simplify)):
        yield str(Path(job.out).parent)
    if isinstance(job, jobs.Sift):
        yield job.out


_ON_A_MODEL = (
    *(jobs.Check, jobs.AskPicture, jobs.TryFamilies, jobs.MakeGolden, jobs.Build),
    *(jobs.Verify, jobs.CompareLevels, jobs.Shadow, FreeDims),
)


def _orders(job: jobs.Job) -> Iterator[Order]:
    if isinstance(job, Prove):
        yield from (job.original, job.repaired)
    if isinstance(job, _ON_A_MODEL):
        yield job.order
    if isinstance(job, jobs.Verify):
        yield job.reference
