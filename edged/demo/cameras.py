"""The demo's cameras: drawn cameras, whose ground truth is known, or the user's source."""

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

_SEED = 2_000_000_000  # the detector was trained on scenes whose seeds are below half of this number


class Pace:
    """Paces a camera's frames. The first frame is due `offset` seconds after this object is created. After a delay of
    more than one frame period, the missed frames are skipped."""

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
    """A camera that keeps its newest picture and may know the ground truth of sent pictures."""

    paced = True

    def __init__(self, name: str, pace: Pace) -> None:
        super().__init__(name)
        self.newest: Picture | None = None
        self._pace = pace

    def truth(self, sequence: int) -> Sequence[Truth] | None:
        """Return the ground truth of a frame; None if unknown. `sequence` is the number of the frame, from 1. Call this
        with increasing numbers."""

    def interrupt(self) -> None:
        self._pace.stopped.set()


class DrawnCamera(DemoCamera):
    """Draws the scene of a seed and sends JPEG pictures, as a network camera does."""

    def __init__(self, name: str, seed: int, offset: float = 0.0) -> None:
        super().__init__(name, Pace(FPS, offset))
        self._scene = Scene(seed, WIDTH, HEIGHT)
        self._index = 0
        # The sending thread appends and the receiving thread removes; a deque needs no lock for this.
        self._truths: deque[tuple[int, list[Truth]]] = deque()

    def __next__(self) -> Captured:
        if not self._pace.wait():
            raise StopIteration
        unix_ns, mono_ns = time.time_ns(), time.monotonic_ns()  # the age includes drawing and encoding
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
    """Plays the user's source in a loop. A source without a frame rate, such as a folder of pictures, is sent at the
    rate of drawn cameras."""

    def __init__(self, name: str, source: str, offset: float = 0.0) -> None:
        """Open the source. Raises NotFound, InvalidInput or Unsupported if that fails."""
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
    """Open camera `number` (from 1) of `count` cameras. The frames of the cameras are evenly distributed over time."""
    name, offset = f"cam{number}", (number - 1) / count / FPS
    return DrawnCamera(name, _SEED + number, offset) if source is None else OwnCamera(name, source, offset)
