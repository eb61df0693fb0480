"""What hands frames to a stream: the newest, or each in its turn."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager

import msgspec

from edged.client.frames import Captured, Picture


class RateLimit:
    """Decides which of the frames of a camera are kept, by their times in seconds; `fps` 0 keeps all.

    Of a camera of 30 a second and a limit of 10 it keeps each third, whatever the jitter: those that come a bit early
    for their turn are taken, and a pause earns no burst.
    """

    _EARLY = 0.1  # of a period

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
    """A picture that is only made when somebody wants it, so that one that is overtaken costs no conversion.

    The capture times are as in `Captured`. `position` is where it lies in a recording, in seconds, None if that is
    not known.
    """

    develop: Callable[[], Picture]
    captured_unix_ns: int = 0
    captured_mono_ns: int = 0
    position: float | None = None

    @classmethod
    def now(cls, develop: Callable[[], Picture], position: float | None = None) -> Shot:
        return cls(develop, time.time_ns(), time.monotonic_ns(), position)

    @classmethod
    def at(cls, develop: Callable[[], Picture], mono_ns: int, position: float | None = None) -> Shot:
        """`mono_ns` is what the driver says of when it was taken, on the monotonic clock; believed where that is just
        now, since some count from elsewhere."""
        unix_now, mono_now = time.time_ns(), time.monotonic_ns()
        age = mono_now - mono_ns
        if not 0 <= age < _BELIEVED_NS:
            age = 0
        return cls(develop, unix_now - age, mono_now - age, position)

    def captured(self) -> Captured:
        """Raises whatever the conversion raises."""
        return Captured(self.develop(), self.captured_unix_ns, self.captured_mono_ns)


class Reader(ABC):
    """`name` has no secrets in it. `paced` says that shots come in their own time, so that a late one is worthless.
    `damaged` counts those that could not be read, `missed` those that came and went before they could be."""

    paced = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.damaged = 0
        self.missed = 0
        self.stopped = threading.Event()

    @abstractmethod
    def shots(self) -> Generator[Shot, None, None]:
        """To the end, or until `stopped` is set, which ends a wait for the next shot as soon as possible. Closing the
        generator gives back what it holds."""

    def close(self) -> None:  # noqa: B027 - most have opened nothing by then
        """Gives back what was opened before the first shot was asked for."""

    def on_damage(self) -> None:
        self.damaged += 1


class Source(Iterator[Captured], AbstractContextManager["Source"]):
    """Frames, one at a time.

    `paced` says that they come in their own time, so that a late one is worthless: a camera, or a video at its own
    speed. Without it each frame is as good as the last, and none should be skipped. `damaged` counts frames that
    could not be read; `skipped` those that never left the source: a newer one came before anybody asked, or they were
    more than `max_fps`.
    """

    paced = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.damaged = 0
        self.skipped = 0

    def interrupt(self) -> None:
        """From any thread: whoever waits for a frame is told that there are no more."""

    def close(self) -> None:
        self.interrupt()

    def __exit__(self, *_: object) -> None:
        self.close()


class _Read(Source):
    """What the two ways to hand out a reader's shots share."""

    def __init__(self, reader: Reader, max_fps: float) -> None:
        super().__init__(reader.name)
        self.paced = reader.paced
        self._reader = reader
        self._limit = RateLimit(max_fps)
        self._dropped = 0

    def _count(self) -> None:
        self.damaged, self.skipped = self._reader.damaged, self._dropped + self._reader.missed

    def _developed(self, shot: Shot) -> Captured | None:
        """None for one that turns out to be damaged."""
        try:
            return shot.captured()
        except Exception:  # PyAV's errors share no base with numpy's
            self._reader.on_damage()
            return None


class InOrder(_Read):
    """Every frame of a reader that `max_fps` lets through, read when it is asked for. A camera that is not asked fast
    enough is held up, not skipped."""

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
        self._reader.stopped.set()

    def close(self) -> None:
        """A reader that is busy is given a moment; it ends by itself when its wait is over."""
        self.interrupt()
        if self._reading.acquire(timeout=0.5):
            try:
                self._shots.close()
                self._reader.close()
            finally:
                self._reading.release()

    def _next(self) -> Captured:
        for shot in self._shots:
            if self._reader.stopped.is_set():
                break
            if not self._limit.admits(_moment(shot)):
                self._dropped += 1
            elif (taken := self._developed(shot)) is not None:
                return taken
        raise StopIteration


class Newest(_Read):
    """A thread reads as fast as the frames come and keeps the newest one only, so that whoever is slow gets a new
    picture, never an old one."""

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
                self._changed.wait_for(lambda: self._newest is not None or self._ended or self._reader.stopped.is_set())
                newest, self._newest = self._newest, None
                self._count()
            if newest is None or self._reader.stopped.is_set():
                self._raise_failure()
                raise StopIteration
            taken = self._developed(newest)  # here and not in the reader's thread: an overtaken one costs nothing
            self._count()
            if taken is not None:
                return taken

    def interrupt(self) -> None:
        self._reader.stopped.set()
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """The thread may stay in a read until its timeout; it is given a moment and then left to end by itself."""
        self.interrupt()
        self._thread.join(timeout=0.5)

    def _run(self) -> None:
        shots = self._reader.shots()
        try:
            for shot in shots:
                if self._reader.stopped.is_set():
                    break
                self._publish(shot)
        except Exception as error:  # told to whoever asks for the next frame
            self._failure = error
        finally:
            shots.close()
            self._reader.close()
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
    """Seconds on the clock that its frames follow: a recording's own, otherwise that of this machine."""
    return shot.captured_mono_ns / 1e9 if shot.position is None else shot.position
