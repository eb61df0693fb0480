"""The cameras of a demonstration: drawn ones, whose truth is known, or the user's own source."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence

from edged.client.frames import Captured, Picture
from edged.client.sources import Source, open_source
from edged.shapes import Scene, Truth
from edged.vision.draw import encode_jpeg

FPS = 15.0
WIDTH, HEIGHT = 640, 480

_SEED = 2_000_000_000  # the detector was trained on scenes of seeds below half of this


class Pace:
    """The beat of a camera in frames a second, `offset` seconds after the start. After a delay of a frame or more it
    continues from there: a camera does not catch up."""

    def __init__(self, fps: float, offset: float = 0.0) -> None:
        self.stopped = threading.Event()
        self._period = 1 / fps
        self._due = time.monotonic() + offset

    def wait(self) -> bool:
        """Wait until the next frame is due; return False if the camera was stopped."""
        self.stopped.wait(max(0.0, self._due - time.monotonic()))
        now = time.monotonic()
        self._due = now + self._period if now > self._due + self._period else self._due + self._period
        return not self.stopped.is_set()


class DemoCamera(Source):
    """A camera that keeps its newest picture and may know the truth about those it sent."""

    paced = True

    def __init__(self, name: str, pace: Pace) -> None:
        super().__init__(name)
        self.newest: Picture | None = None
        self._pace = pace

    def truth(self, sequence: int) -> Sequence[Truth] | None:
        """The truth about a frame, by its number from 1, asked for in rising order; None if it is not known."""

    def interrupt(self) -> None:
        self._pace.stopped.set()


class DrawnCamera(DemoCamera):
    """Draws scenes of a seed and sends them as JPEG, as a network camera would."""

    def __init__(self, name: str, seed: int, offset: float = 0.0) -> None:
        super().__init__(name, Pace(FPS, offset))
        self._scene = Scene(seed, WIDTH, HEIGHT)
        self._index = 0
        # Appended to by the thread that sends, taken from by the one that receives: a deque needs no lock for that.
        self._truths: deque[tuple[int, list[Truth]]] = deque()

    def __next__(self) -> Captured:
        if not self._pace.wait():
            raise StopIteration
        unix_ns, mono_ns = time.time_ns(), time.monotonic_ns()  # taken now: drawing and encoding are part of its age
        picture, truth = self._scene.frame(self._index)
        self._index += 1
        self._truths.append((self._index, truth))
        self.newest = encode_jpeg(picture)
        return Captured(self.newest, unix_ns, mono_ns)

    def truth(self, sequence: int) -> Sequence[Truth] | None:
        while self._truths and self._truths[0][0] < sequence:
            self._truths.popleft()  # skipped
        known = self._truths and self._truths[0][0] == sequence
        return self._truths.popleft()[1] if known else None


class OwnCamera(DemoCamera):
    """The user's source, which starts again when it ends; pictures come at the drawn cameras' rate."""

    def __init__(self, name: str, source: str, offset: float = 0.0) -> None:
        """NotFound, InvalidInput or Unsupported if it cannot be opened."""
        super().__init__(name, Pace(FPS, offset))
        self._source = open_source(source, loop=True)

    def __next__(self) -> Captured:
        if not (self._source.paced or self._pace.wait()):
            raise StopIteration
        taken = next(self._source)
        self.newest = taken.image
        return taken if self._source.paced else Captured.now(taken.image)

    def interrupt(self) -> None:
        super().interrupt()
        self._source.interrupt()

    def close(self) -> None:
        self.interrupt()
        self._source.close()


def open_camera(number: int, count: int, source: str | None) -> DemoCamera:
    """Open camera `number` of `count`, from 1; its frames come between those of the others."""
    name, offset = f"cam{number}", (number - 1) / count / FPS
    return DrawnCamera(name, _SEED + number, offset) if source is None else OwnCamera(name, source, offset)
