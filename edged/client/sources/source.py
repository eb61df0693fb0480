"""The base of all sources. A `Reader` reads shots, a `Source` returns the newest or all; `Live` reads cameras."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from typing import TypeAlias

import msgspec

from edged.backoff import Backoff
from edged.client.frames import Captured, Picture
from edged.errors import Unsupported, redact

_log = logging.getLogger("edged.client")


class RateLimit:
    """Decides which frames exceed a rate, from the times of the frames; `fps` 0 means no limit.

    With 30 frames a second and a limit of 10, every third frame is kept despite jitter, since a slightly early frame is
    kept too. A pause does not lead to a burst.
    """

    _EARLY = 0.1  # fraction of a period

    def __init__(self, fps: float) -> None:
        self._period = 1 / fps if fps > 0 else 0.0
        self._due: float | None = None

    def admits(self, at: float) -> bool:
        if not self._period:
            return True
        due = self._due
        if due is not None and -2 * self._period < at - due < -self._EARLY * self._period:
            return False
        on_time = due is not None and abs(at - due) < self._period
        self._due = (due if on_time and due is not None else at) + self._period
        return True


_BELIEVED_NS = 5_000_000_000


class Shot(msgspec.Struct, frozen=True, eq=False):
    """A picture that is converted on demand, so that a skipped picture costs nothing.

    The capture times are as in `Captured`. `position` is the picture's time in a recording, in seconds; None if
    unknown.
    """

    develop: Callable[[], Picture]
    captured_unix_ns: int = 0
    captured_mono_ns: int = 0
    position: float | None = None

    @classmethod
    def now(cls, develop: Callable[[], Picture], position: float | None = None) -> Shot:
        return cls(develop, time.time_ns(), time.monotonic_ns(), position)

    @classmethod
    def at(cls, develop: Callable[[], Picture], mono_ns: int) -> Shot:
        """Make a shot with the driver's capture time `mono_ns` on the monotonic clock. If that time is not within the
        last 5 s, the current time is used, since some drivers use another clock."""
        unix_now, mono_now = time.time_ns(), time.monotonic_ns()
        age = mono_now - mono_ns
        if not 0 <= age < _BELIEVED_NS:
            age = 0
        return cls(develop, unix_now - age, mono_now - age)

    def captured(self, *, is_recorded: bool) -> Captured:
        """Convert the picture and raise any error of the conversion. The position is kept only for a recording."""
        position = self.position if is_recorded else None
        return Captured(self.develop(), self.captured_unix_ns, self.captured_mono_ns, position)


_HOPELESSLY_LATE_S = 1.0


class Playback:
    """Computes when each shot of a recording is due, relative to the first shot."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._start: float | None = None
        self._count = 0

    def until(self, position: float | None) -> float:
        """Return the seconds, at least 0, until the shot at `position` seconds of the recording is due. Shots without a
        position follow each other at the rate given to `Playback`."""
        at = self._count / self._rate if position is None else position
        self._count += 1
        now = time.monotonic()
        if self._start is None or now - (self._start + at) > _HOPELESSLY_LATE_S:
            self._start = now - at  # after a pause, missed time is not caught up
        return max(0.0, self._start + at - now)


class Reader(ABC):
    """Reads shots. `name` contains no secrets. `paced` means that shots arrive in real time, so a late shot is
    worthless. `damaged` counts shots that could not be read, `missed` shots that were overwritten before they could be
    read. `problem` is the reason why no shots arrive now; it is empty while shots arrive."""

    paced = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.damaged = 0
        self.missed = 0
        self.problem = ""
        self.reconnections = 0
        self.stopped = threading.Event()

    @abstractmethod
    def shots(self) -> Generator[Shot, None, None]:
        """Yield shots until the end or until `stopped` is set. Closing the generator releases its resources."""

    def close(self) -> None:  # noqa: B027 - most readers open nothing before the first shot
        """Release resources that were opened before the first shot."""

    def on_damage(self) -> None:
        self.damaged += 1


Connect: TypeAlias = Callable[["Live"], AbstractContextManager[Iterator[Shot]]]
"""Connects to the camera and returns its shots. When the camera goes away, the shots end or raise an error. The caller
checks `stopped` between two shots."""


class Live(Reader):
    """Reads a camera. If the camera is missing or goes away, `Live` connects again, until `stopped` is set. `clock` and
    `wait` use seconds."""

    paced = True

    def __init__(
        self,
        name: str,
        connect: Connect,
        *,
        backoff: Backoff | None = None,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        super().__init__(redact(name))
        self._connect = connect
        self.backoff = backoff or Backoff()
        self._clock = clock
        self._wait = wait or self.stopped.wait
        self._working_since: float | None = None

    def shots(self) -> Generator[Shot, None, None]:
        while not self.stopped.is_set():
            self._working_since = None
            reason = yield from self._session()
            if self.stopped.is_set():
                return
            self.problem = reason
            self.reconnections += 1
            pause = self.backoff.after(0.0 if self._working_since is None else self._clock() - self._working_since)
            _log.warning("camera %s: %s; trying again in %g s", self.name, reason, pause)
            self._wait(pause)

    def _session(self) -> Generator[Shot, None, str]:
        """Yield the shots of one connection; return why it ended."""
        try:
            with self._connect(self) as shots:
                for shot in shots:
                    if self._working_since is None:
                        self._working_since, self.problem = self._clock(), ""
                    yield shot
                    if self.stopped.is_set():
                        break
        except Unsupported:  # retrying does not install a missing package
            raise
        except Exception as error:  # the camera or driver may raise any class, and the next attempt may work
            return redact(str(getattr(error, "strerror", None) or error) or type(error).__name__)
        return "the stream ended"


class Source(Iterator[Captured], AbstractContextManager["Source"]):
    """An iterator over frames.

    `paced` means that frames arrive in real time (from a camera, or a video played in real time), so a late frame is
    worthless. Frames of other sources should not be skipped. `damaged` counts frames that could not be read. `skipped`
    counts frames that the source left out, because a newer frame arrived first or they exceeded `max_fps`. `problem` is
    the reason why a camera sends no frames now; it is empty while frames arrive. `reconnections` counts how often the
    camera was connected again.
    """

    paced = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.damaged = 0
        self.skipped = 0

    @property
    def problem(self) -> str:
        return ""

    @property
    def reconnections(self) -> int:
        return 0

    def interrupt(self) -> None:
        """End the iteration; any thread may call this, even while another thread waits for a frame."""

    def close(self) -> None:
        self.interrupt()

    def __exit__(self, *_: object) -> None:
        self.close()


class _Read(Source):
    """A source that converts a reader's shots to frames."""

    def __init__(self, reader: Reader, max_fps: float) -> None:
        super().__init__(reader.name)
        self.paced = reader.paced
        self.reader = reader
        self._limit = RateLimit(max_fps)
        self._dropped = 0

    def _count(self) -> None:
        self.damaged, self.skipped = self.reader.damaged, self._dropped + self.reader.missed

    @property
    def problem(self) -> str:
        return self.reader.problem

    @property
    def reconnections(self) -> int:
        return self.reader.reconnections

    def _developed(self, shot: Shot) -> Captured | None:
        """Convert a shot. If the shot is damaged, count it and return None."""
        try:
            return shot.captured(is_recorded=not isinstance(self.reader, Live))
        except Exception:  # PyAV's and numpy's errors have no common base
            self.reader.on_damage()
            return None


class InOrder(_Read):
    """Returns every frame of a reader up to `max_fps`. Reads frames on demand, so a slow consumer delays the camera."""

    def __init__(self, reader: Reader, max_fps: float = 0.0) -> None:
        super().__init__(reader, max_fps)
        self._shots = reader.shots()
        self._reading = threading.Lock()

    def __next__(self) -> Captured:
        with self._reading:
            try:
                return self._next()
            finally:
                self._count()

    def interrupt(self) -> None:
        self.reader.stopped.set()

    def close(self) -> None:
        """Interrupt and close the reader; wait up to 0.5 s. A reader that is still busy ends after its current read."""
        self.interrupt()
        if self._reading.acquire(timeout=0.5):
            try:
                self._shots.close()
                self.reader.close()
            finally:
                self._reading.release()

    def _next(self) -> Captured:
        for shot in self._shots:
            if self.reader.stopped.is_set():
                break
            if not self._limit.admits(_moment(shot)):
                self._dropped += 1
            elif (taken := self._developed(shot)) is not None:
                return taken
        raise StopIteration


class Newest(_Read):
    """Returns the newest frame: a thread reads frames as fast as they arrive and keeps only the newest one."""

    def __init__(self, reader: Reader, max_fps: float = 0.0) -> None:
        super().__init__(reader, max_fps)
        self._newest: Shot | None = None
        self._ended = False
        self._failure: BaseException | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="edged-camera", daemon=True)
        self._thread.start()

    def __next__(self) -> Captured:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._newest is not None or self._ended or self.reader.stopped.is_set())
                newest, self._newest = self._newest, None
                self._count()
            if newest is None or self.reader.stopped.is_set():
                self._raise_failure()
                raise StopIteration
            taken = self._developed(newest)  # not in the reader's thread: a skipped shot costs nothing
            self._count()
            if taken is not None:
                return taken

    def interrupt(self) -> None:
        self.reader.stopped.set()
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Interrupt the reader and wait up to 0.5 s for its thread, which may stay in a read until the read times
        out."""
        self.interrupt()
        self._thread.join(timeout=0.5)

    def _run(self) -> None:
        shots = self.reader.shots()
        try:
            for shot in shots:
                if self.reader.stopped.is_set():
                    break
                self._publish(shot)
        except Exception as error:  # raised by the next call of `__next__`
            self._failure = error
        finally:
            shots.close()
            self.reader.close()
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _publish(self, shot: Shot) -> None:
        with self._changed:
            if not self._limit.admits(_moment(shot)):
                self._dropped += 1
                return
            if self._newest is not None:
                self._dropped += 1
            self._newest = shot
            self._count()
            self._changed.notify_all()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure


def _moment(shot: Shot) -> float:
    """Return the shot's time in seconds: its position in a recording, otherwise its capture time on the monotonic
    clock."""
    return shot.captured_mono_ns / 1e9 if shot.position is None else shot.position
