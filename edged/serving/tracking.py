"""Ids that follow objects from frame to frame: the daemon's end of the tracker's process.

The process is started when a camera first asks, ends when none has asked for a while, and is started again, later each
time, when it dies or hangs. No result waits long for it: frames are answered without ids while it starts, when it is
slower than the patience there is, and when too many wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
import time
from asyncio.subprocess import Process
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import msgspec

from edged import packages, process, tasks
from edged.confinement import rules
from edged.decoding import ready
from edged.ipc import track_messages as m
from edged.logs.child_output import ChildLogForwarder, Pipe

_IN_FLIGHT = 8  # frames at the tracker: enough to keep it busy; what waits here can still be dropped
_WAITING = 64  # of all cameras
_LARGEST = m.LARGEST // 2  # bytes of detections
_REMEMBERED_SECONDS = 600.0
_MOST_CAMERAS = 1024
_IDLE, _IDLE_SECONDS = "no camera needs it", 60.0
_START_SECONDS = 60.0
_STOP_SECONDS = 3.0
_SILENT_SECONDS = 10.0  # with a frame at hand; after that it hangs
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 60.0  # seconds until it is started again
_PROVEN_SECONDS = 60.0  # after which a failure counts as the first one again


class Tracking:
    """Used from one event loop. `problem`: one line why there are no ids now; empty if there are, or soon will be."""

    def __init__(self, patience: float = 0.5) -> None:
        """patience: seconds that a frame may wait for its ids."""
        self.problem = ""
        self._patience = patience
        self._cameras: dict[Hashable, Camera] = {}  # the one that asked longest ago first
        self._waiting: deque[Question] = deque()
        self._numbers = itertools.count(1)
        self._child: TrackerProcess | None = None
        self._life: asyncio.Task[None] | None = None
        self._asked = 0.0
        self._failures = 0
        self._not_before = 0.0
        self._blamed: Camera | None = None  # whose frame the problem is about
        self._closed = False
        self._unfit = ""  # why the last process could not work at all

    @property
    def pid(self) -> int:
        """Process id of the tracker; 0 if it does not run."""
        return self._child.pid if self._child is not None else 0

    @property
    def missing(self) -> str:
        """One line why no object can be followed on this box, and what to install; empty if it can be tried."""
        name = next((name for name in ("trackers", "supervision") if not packages.is_installed(name)), "")
        return m.not_installed(name) if name else self._unfit if time.monotonic() < self._not_before else ""

    def follow(self, camera: Hashable, captured: float, found: bytes) -> asyncio.Future[Ids]:
        """Ids of the detections (`Detections.pack`) of one frame, in their order; -1 for those without one.

        Frames of a camera are taken in the order of the calls; captured: seconds on any clock of the camera's. The
        future never raises: it gives () when there are no ids in time. An id is not given to another object of the
        camera while the camera is known.
        """
        now, answer = time.monotonic(), asyncio.get_running_loop().create_future()
        question = Question(next(self._numbers), self._know(camera, now), captured, found, now, answer)
        self._asked = now
        if self._is_able(question):
            self._waiting.append(question)
            if len(self._waiting) > _WAITING:
                self._waiting.popleft().settle()
                self._tell("the tracker is too slow: frames come faster than it follows them")
            self._send()
        else:
            question.settle()
        if not found:
            question.settle()  # nothing to wait for; the tracker still learns that nothing was there
        return answer

    def forget(self, camera: Hashable) -> None:
        """The camera will not come back, or as another one: its ids begin at 1 again."""
        known = self._cameras.pop(camera, None)
        if known is None:
            return
        for question in [q for q in self._waiting if q.camera is known]:
            self._waiting.remove(question)
            question.settle()
        if self._blamed is known:
            self._tell("")
        if self._child is not None and self._child.ready:
            self._child.forget(known)

    async def close(self) -> None:
        """Ends the process; what was asked, and is asked from now on, gets no ids."""
        self._closed = True
        if self._child is not None:
            self._child.end()
        if self._life is not None:
            await asyncio.wait({self._life}, timeout=_STOP_SECONDS)

    def _know(self, camera: Hashable, now: float) -> Camera:
        known = self._cameras.pop(camera, None) or Camera(next(self._numbers))
        self._cameras[camera], known.asked = known, now
        while (oldest := next(iter(self._cameras))) != camera and (
            now - self._cameras[oldest].asked > _REMEMBERED_SECONDS or len(self._cameras) > _MOST_CAMERAS
        ):
            self.forget(oldest)
        return known

    def _is_able(self, question: Question) -> bool:
        """Whether there is a tracker that may answer in time."""
        if not self._closed and question.asked >= self._not_before and (self._life is None or self._life.done()):
            self._life = asyncio.create_task(self._live())
        child = self._child
        if child is None or not child.ready:
            return False
        if len(question.found) > _LARGEST:
            self._tell(f"{len(question.found)} bytes of detections in one frame are too many to track", question.camera)
            return False
        # Where the frame that it is at has waited too long already, those behind it need not begin to.
        return not child.in_flight or question.asked - child.in_flight[0].asked <= self._patience

    def _send(self) -> None:
        while self._child is not None and self._waiting and len(self._child.in_flight) < _IN_FLIGHT:
            self._child.ask(self._waiting.popleft())

    def _take(self, question: Question, answer: m.Followed | m.NotFollowed) -> None:
        camera = question.camera
        if isinstance(answer, m.NotFollowed):
            self._tell(f"the tracker failed at a frame: {answer.message}", camera)
            question.settle()
        else:
            camera.last = max(camera.last, *answer.ids, 0)
            if self._blamed in (None, camera) and time.monotonic() - question.asked <= self._patience:
                self._tell("")
            question.settle(answer.ids)
        self._send()

    def _tell(self, problem: str, camera: Camera | None = None) -> None:
        self.problem, self._blamed = problem, camera

    # -- the process -------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        """One process, from its start to its end."""
        try:
            child = self._child = await TrackerProcess.start()
        except OSError as error:
            self._fail(f"could not be started: {error.strerror or error}")
            return
        watching = tasks.keep("watcher of the tracker", lambda: self._watch(child))
        try:
            if not self._closed:
                await child.listen(self._take)
        except Garbled as error:
            child.end(f"sent {error}")
        finally:
            self._child = None
            watching.cancel()
            child.end()
            for question in (*child.in_flight, *self._waiting):
                question.settle()
            self._waiting.clear()
        status = await child.gone()
        if time.monotonic() - child.started > _PROVEN_SECONDS:
            self._failures = 0
        self._unfit = child.unfit
        if child.unfit:
            self._pause(child.unfit, _LONGEST_PAUSE)
        elif child.ended != _IDLE and not self._closed:
            self._fail(child.ended or f"died (exit status {status})")

    async def _watch(self, child: TrackerProcess) -> None:
        """End a process that hangs or is no longer needed; frames that wait for it go on."""
        period = self._patience / 4
        then = time.monotonic()
        while True:
            await asyncio.sleep(period)
            now = time.monotonic()
            self._give_up(child, now)
            # A long pause was this process's own and does not count against the tracker.
            child.elapse(min(now - then, 4 * period))
            then = now
            if child.silence > (_SILENT_SECONDS if child.ready else _START_SECONDS):
                child.end("hung and was ended" if child.ready else f"did not start within {_START_SECONDS:g} s")
            elif child.ready and now - self._asked > _IDLE_SECONDS:
                child.end(_IDLE)

    def _give_up(self, child: TrackerProcess, now: float) -> None:
        """Answers the frames that have waited too long. Those that the tracker has, it still takes into account."""
        late = [q for q in (*child.in_flight, *self._waiting) if now - q.asked > self._patience]
        for question in late:
            question.settle()
        while self._waiting and now - self._waiting[0].asked > self._patience:
            self._waiting.popleft()
        if late:
            self._tell(f"the tracker is too slow: no ids within {self._patience:g} s")

    def _fail(self, what: str) -> None:
        pause = min(_FIRST_PAUSE * 2 ** min(self._failures, 10), _LONGEST_PAUSE)
        self._failures += 1
        self._pause(f"the tracker {what}", pause)

    def _pause(self, problem: str, seconds: float) -> None:
        """The next camera to ask after a pause has the process started again."""
        self._tell(problem)
        self._not_before = time.monotonic() + seconds


Ids = tuple[int, ...]


@dataclass(slots=True)
class Camera:
    """number: what the tracker knows it by. last: the highest id it has had. asked: when, in monotonic seconds."""

    number: int
    last: int = 0
    asked: float = 0.0


@dataclass(slots=True)
class Question:
    """A frame whose detections want ids."""

    number: int
    camera: Camera
    captured: float
    found: bytes
    asked: float
    answer: asyncio.Future[Ids]

    def settle(self, ids: Ids = ()) -> None:
        if not self.answer.done():  # its caller may have cancelled it
            self.answer.set_result(ids)


class Garbled(Exception):
    """The tracker sent something that is not an answer; the message describes it."""


class TrackerProcess:
    """`ready`: it can be asked. `silence`: seconds for which something was expected of it and nothing came."""

    def __init__(self, started: Process, printed: Pipe) -> None:
        self.pid = started.pid
        self.started = time.monotonic()
        self.ready = False
        self.in_flight: deque[Question] = deque()
        self.silence = 0.0
        self.unfit = ""  # why it cannot work, in its own words
        self.ended = ""  # why it was ended, if the daemon did that
        assert started.stdin is not None
        assert started.stdout is not None
        self._process, self._questions, self._answers = started, started.stdin, started.stdout
        self._printed = printed

    @classmethod
    async def start(cls) -> TrackerProcess:
        """OSError when the box has no process or descriptor left for it."""
        printed = Pipe(ChildLogForwarder("tracker"))
        try:
            started = await asyncio.create_subprocess_exec(
                *_command(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=printed.child,
                **process.ISOLATED,
            )
        except OSError:
            printed.close()
            raise
        printed.started()
        return cls(started, printed)

    def ask(self, question: Question) -> None:
        camera = question.camera
        self.in_flight.append(question)
        self._send(m.Follow(question.number, camera.number, camera.last, question.captured, question.found))

    def forget(self, camera: Camera) -> None:
        self._send(m.Forget(camera.number))

    async def listen(self, take: Callable[[Question, m.Followed | m.NotFollowed], None]) -> None:
        """Until the process closes its end. Garbled for bytes that are no answer to what was asked."""
        decoder = msgspec.msgpack.Decoder(ready(m.FromTracker))
        while True:
            try:
                (size,) = m.HEADER.unpack(await self._answers.readexactly(m.HEADER.size))
                if size > m.LARGEST:
                    raise Garbled(f"a message of {size} bytes; at most {m.LARGEST} are allowed")
                message = decoder.decode(await self._answers.readexactly(size))
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            except m.UNREADABLE as error:
                raise Garbled(f"a message that cannot be read: {error}") from None
            self.silence = 0.0
            if isinstance(message, m.Unfit | m.Ready):
                if self.ready or self.unfit:
                    raise Garbled("its first word twice")
                self.ready = isinstance(message, m.Ready)
                self.unfit = message.message if isinstance(message, m.Unfit) else ""
            elif not self.in_flight or self.in_flight[0].number != message.number:
                raise Garbled("an answer to what was not asked")
            else:
                take(self.in_flight.popleft(), message)

    def elapse(self, seconds: float) -> None:
        """Time has passed; it counts where something is expected of the process."""
        self.silence = self.silence + seconds if self.in_flight or not self.ready else 0.0

    def end(self, why: str = "") -> None:
        self.ended = self.ended or why
        # Not by the process object: it would reap a process that has just died, and hide its status.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    async def gone(self) -> int:
        """The exit status, once the process has ended and its pipes are read to their end."""
        self._questions.close()
        await self._process.communicate()
        status = await self._process.wait()
        self._printed.close()
        return status

    def _send(self, message: m.ToTracker) -> None:
        self._questions.write(m.pack(message))


def _command() -> list[str]:
    return [sys.executable, "-m", "edged.tracker.main", str(os.getpid()), rules.reach().argument()]
