"""The daemon's side of the connection to the tracker. The tracker gives ids that follow objects from frame to frame.

The tracker is a separate process. It starts at the first request and ends when no camera has sent a request for a
while. If the process dies or hangs, it is started again after a pause that doubles each time. Results never wait long
for the process. Frames are answered without ids while the process starts, if it is too slow, and if too many frames
wait.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from edged import packages, tasks
from edged.confinement import rules
from edged.decoding import ready
from edged.ipc import track_messages as m
from edged.ipc.piped_process import PipedProcess, ProtocolError

_IN_FLIGHT = 8  # frames sent to the tracker: enough to keep it busy. Frames that wait here can still be dropped
_WAITING = 64  # the most frames of all cameras that wait here
_IDLE = "no camera needs it"
_STOP_SECONDS = 3.0
_PROVEN_SECONDS = 60.0  # if the process ran this long, its failure counts as the first one again


class TrackingLimits(msgspec.Struct, frozen=True):
    """Limits of the tracker. All are in seconds except `cameras`. Tests use shorter times."""

    patience: float = 0.5  # how long a frame may wait for its ids
    start: float = 60.0  # how long the process may take to start
    silent: float = 10.0  # without an answer while it has frames: the process counts as hung
    idle: float = 60.0  # without a request: the process is ended
    first_pause: float = 0.5  # before the process is started again after its first failure
    longest_pause: float = 60.0
    remembered: float = 600.0  # how long a camera is remembered after its last request
    cameras: int = 1024  # how many cameras are remembered


_LIMITS = TrackingLimits()


def _command() -> list[str]:
    return [sys.executable, "-m", "edged.tracker.main", str(os.getpid()), rules.reach().argument()]


class Tracking:
    """Requests ids from the tracker's process. Use it from one event loop. `problem` says in one line why frames get no
    ids now; it is empty if frames get ids, or soon get them."""

    def __init__(self, limits: TrackingLimits = _LIMITS, command: Callable[[], list[str]] = _command) -> None:
        self.problem = ""
        self._limits, self._command = limits, command
        self._cameras: dict[Hashable, Camera] = {}  # ordered by last request, oldest first
        self._waiting: deque[Frame] = deque()
        self._numbers = itertools.count(1)
        self._child: TrackerProcess | None = None
        self._life: asyncio.Task[None] | None = None
        self._asked = 0.0
        self._failures = 0
        self._not_before = 0.0
        self._blamed: Camera | None = None  # the camera whose frame caused the problem
        self._closed = False
        self._unfit = ""  # why the last process could not work at all; empty if it could

    @property
    def pid(self) -> int:
        """The process id of the tracker; 0 if the tracker does not run."""
        return self._child.process.pid if self._child is not None else 0

    @property
    def missing(self) -> str:
        """Why this box cannot track objects and what to install, in one line; empty if nothing is missing."""
        name = next((name for name in ("trackers", "supervision") if not packages.is_installed(name)), "")
        return m.not_installed(name) if name else self._unfit if time.monotonic() < self._not_before else ""

    def follow(self, camera: Hashable, captured: float, found: bytes) -> asyncio.Future[Ids]:
        """Return a future of the ids of the detections in `found` (`Detections.pack`), in order, with -1 for no id.

        Call this method in the order of a camera's frames. `captured` is in seconds on any clock of the camera. The
        future never raises: its result is () if no ids arrive in time. An id is not reused for another object of the
        camera while the camera is remembered.
        """
        now, answer = time.monotonic(), asyncio.get_running_loop().create_future()
        frame = Frame(next(self._numbers), self._remember(camera, now), captured, found, now, answer)
        self._asked = now
        if self._is_able(frame):
            self._waiting.append(frame)
            if len(self._waiting) > _WAITING:
                self._waiting.popleft().settle()
                self._report("the tracker is too slow: frames arrive faster than it processes them")
            self._send()
        else:
            frame.settle()
        if not found:
            frame.settle()  # no detections to wait for; the tracker still learns that time has passed
        return answer

    def forget(self, camera: Hashable) -> None:
        """Forget a camera. If it sends frames again, its ids begin at 1."""
        known = self._cameras.pop(camera, None)
        if known is None:
            return
        for frame in [frame for frame in self._waiting if frame.camera is known]:
            self._waiting.remove(frame)
            frame.settle()
        if self._blamed is known:
            self._report("")
        if self._child is not None and self._child.ready:
            self._child.send(m.Forget(known.number))

    async def close(self) -> None:
        """End the process; waiting and later frames get no ids."""
        self._closed = True
        if self._child is not None:
            self._child.end()
        if self._life is not None:
            await asyncio.wait({self._life}, timeout=_STOP_SECONDS)

    def _remember(self, camera: Hashable, now: float) -> Camera:
        known = self._cameras.pop(camera, None) or Camera(next(self._numbers))
        self._cameras[camera], known.asked = known, now
        while (oldest := next(iter(self._cameras))) != camera and (
            now - self._cameras[oldest].asked > self._limits.remembered or len(self._cameras) > self._limits.cameras
        ):
            self.forget(oldest)
        return known

    def _is_able(self, frame: Frame) -> bool:
        """Whether the tracker runs and can answer in time. Start a process if none runs and a start is allowed."""
        if not self._closed and frame.asked >= self._not_before and (self._life is None or self._life.done()):
            self._life = asyncio.create_task(self._live())
        child = self._child
        if child is None or not child.ready:
            return False
        if len(frame.found) > m.LARGEST // 2:
            size = f"{len(frame.found)} bytes, more than {m.LARGEST // 2}"
            self._report(f"a frame has too many detections to track ({size})", frame.camera)
            return False
        # If the tracker's oldest frame has already waited too long, a new frame would, too.
        return not child.in_flight or frame.asked - child.in_flight[0].asked <= self._limits.patience

    def _send(self) -> None:
        while self._child is not None and self._waiting and len(self._child.in_flight) < _IN_FLIGHT:
            self._child.ask(self._waiting.popleft())

    def _take(self, frame: Frame, answer: m.Followed | m.NotFollowed) -> None:
        camera = frame.camera
        if isinstance(answer, m.NotFollowed):
            self._report(f"the tracker failed on a frame: {answer.message}", camera)
            frame.settle()
        else:
            camera.last = max(camera.last, *answer.ids, 0)
            if self._blamed in (None, camera) and time.monotonic() - frame.asked <= self._limits.patience:
                self._report("")
            frame.settle(answer.ids)
        self._send()

    def _report(self, problem: str, camera: Camera | None = None) -> None:
        self.problem, self._blamed = problem, camera

    # -- the process -------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        """Run one process from its start to its end."""
        try:
            child = self._child = await TrackerProcess.start(self._command())
        except OSError as error:
            self._fail(f"could not be started: {error.strerror or error}")
            return
        watching = tasks.keep("watcher of the tracker", lambda: self._watch(child))
        try:
            if not self._closed:
                await child.listen(self._take)
        except ProtocolError as error:
            child.end(f"sent {error}")
        finally:
            self._child = None
            watching.cancel()
            child.end()
            for frame in (*child.in_flight, *self._waiting):
                frame.settle()
            self._waiting.clear()
        status = await child.process.gone()
        if time.monotonic() - child.process.started > _PROVEN_SECONDS:
            self._failures = 0
        self._unfit = child.unfit
        if child.unfit:
            self._pause(child.unfit, self._limits.longest_pause)
        elif child.process.ended != _IDLE and not self._closed:
            self._fail(child.process.ended or f"died (exit status {status})")

    async def _watch(self, child: TrackerProcess) -> None:
        """Answer frames without ids if they have waited too long; end a process that hangs or is not needed."""
        limits, then = self._limits, time.monotonic()
        period, silence = limits.patience / 4, 0.0
        while True:
            await asyncio.sleep(period)
            now = time.monotonic()
            self._give_up(child, now)
            if child.has_spoken or (child.ready and not child.in_flight):
                silence = 0.0
            else:  # a longer gap than 4 periods is the daemon's own delay, not the tracker's
                silence += min(now - then, 4 * period)
            child.has_spoken, then = False, now
            if silence > (limits.silent if child.ready else limits.start):
                child.end("hung and was ended" if child.ready else f"did not start within {limits.start:g} s")
            elif child.ready and now - self._asked > limits.idle:
                child.end(_IDLE)

    def _give_up(self, child: TrackerProcess, now: float) -> None:
        """Answer frames without ids if they have waited too long. The tracker still processes the frames that it
        already has."""
        late = [frame for frame in (*child.in_flight, *self._waiting) if now - frame.asked > self._limits.patience]
        for frame in late:
            frame.settle()
        while self._waiting and self._waiting[0] in late:
            self._waiting.popleft()
        if late:
            self._report(f"the tracker is too slow: no ids within {self._limits.patience:g} s")

    def _fail(self, reason: str) -> None:
        pause = min(self._limits.first_pause * 2 ** min(self._failures, 10), self._limits.longest_pause)
        self._failures += 1
        self._pause(f"the tracker {reason}", pause)

    def _pause(self, problem: str, seconds: float) -> None:
        """Report a problem; the first request after `seconds` starts the process again."""
        self._report(problem)
        self._not_before = time.monotonic() + seconds


Ids = tuple[int, ...]


@dataclass(slots=True)
class Camera:
    """A camera with tracks. number: the camera's number in messages to the tracker. last: its highest id so far. asked:
    the time of its last request, in monotonic seconds."""

    number: int
    last: int = 0
    asked: float = 0.0


@dataclass(slots=True, eq=False)
class Frame:
    """A frame whose detections need ids."""

    number: int
    camera: Camera
    captured: float
    found: bytes
    asked: float
    answer: asyncio.Future[Ids]

    def settle(self, ids: Ids = ()) -> None:
        if not self.answer.done():  # the caller may have cancelled the future
            self.answer.set_result(ids)


class TrackerProcess:
    """A tracker's process. `ready`: it accepts frames. `has_spoken`: it has sent a message since the watcher's last
    look."""

    def __init__(self, started: PipedProcess[m.FromTracker]) -> None:
        self.ready = self.has_spoken = False
        self.in_flight: deque[Frame] = deque()
        self.unfit = ""  # why the tracker cannot work, as it reported itself
        self.process = started

    @classmethod
    async def start(cls, command: list[str]) -> TrackerProcess:
        """Start a process. Raises OSError if the limit of processes or of file descriptors is reached."""
        decoder = msgspec.msgpack.Decoder(ready(m.FromTracker))
        return cls(await PipedProcess.start(command, "tracker", decoder, m.LARGEST))

    def ask(self, frame: Frame) -> None:
        """Send a frame. `listen` receives the answer."""
        self.in_flight.append(frame)
        self.send(m.Follow(frame.number, frame.camera.number, frame.camera.last, frame.captured, frame.found))

    def send(self, message: m.ToTracker) -> None:
        self.process.send(message)

    async def listen(self, take: Callable[[Frame, m.Followed | m.NotFollowed], None]) -> None:
        """Call `take` with each answer until the process closes the connection. Raises ProtocolError if a message is
        not the next answer."""
        async with aclosing(self.process.messages()) as messages:
            async for message in messages:
                self.has_spoken = True
                if isinstance(message, m.Unfit | m.Ready):
                    if self.ready or self.unfit:
                        raise ProtocolError("its first message twice")
                    self.ready = isinstance(message, m.Ready)
                    self.unfit = message.message if isinstance(message, m.Unfit) else ""
                elif not self.in_flight or self.in_flight[0].number != message.number:
                    raise ProtocolError("an answer out of order or without a request")
                else:
                    take(self.in_flight.popleft(), message)

    def end(self, why: str = "") -> None:
        """Kill the process if it runs, and record the reason `why`."""
        self.process.end(why)
