"""What a sink is, what it is given, and a thread for sinks that need time."""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from edged.client.frames import Picture, read_picture
from edged.client.result import Result
from edged.vision.draw import annotate, encode_jpeg
from edged.vision.image import Image, decode


class Sink(ABC):
    """Receives every result, with its picture if `wants_pictures`; `name` is for messages."""

    name = "sink"
    wants_pictures = False

    @abstractmethod
    def on_answer(self, answered: Answered) -> None:
        """Take a result, quickly, since the stream waits. Raises OSError or EdgedError if it can take no more."""

    def close(self) -> None:  # noqa: B027 - not every sink has something to finish
        """Finish; no result follows."""


_QUALITY = 80


class Answered:
    """A result with its picture; what several sinks need is made once. `image` is None if no sink wants pictures, or if
    it was dropped to save memory."""

    def __init__(self, result: Result, image: Picture | None = None) -> None:
        self.result = result
        self.image = image

    @functools.cached_property
    def painted(self) -> Image | None:
        """The annotated picture, BGR uint8 [height, width, 3]; None without a picture. InvalidInput if it cannot be
        decoded."""
        if self.image is None:
            return None
        plain = _gray_to_bgr(self.image) if isinstance(self.image, np.ndarray) else decode(read_picture(self.image))
        result = self.result
        return annotate(plain, result.boxes(), result.labels(), _caption(result))

    @functools.cached_property
    def jpeg(self) -> bytes | None:
        """`painted` as a JPEG."""
        return None if self.painted is None else encode_jpeg(self.painted, _QUALITY)


def _gray_to_bgr(image: Image) -> Image:
    return np.repeat(image[:, :, None], 3, axis=2) if image.ndim == 2 else image


def _caption(result: Result) -> str:
    if result.error is not None:
        return f"{result.camera}  {result.error[0]}"
    best = f"  {result.classes[0].label} {result.classes[0].score:.0%}" if result.classes else ""
    return f"{result.camera}  {result.age_ms:.0f} ms{best}"


_DEPTH = 8


class Background:
    """A thread that does `work` on one answer after the other, and `finish` at the end. At most `depth` answers wait:
    one more replaces the oldest, which counts in `dropped`; with `lossless` `put` waits."""

    def __init__(
        self,
        name: str,
        work: Callable[[Answered], None],
        finish: Callable[[], None],
        *,
        lossless: bool = False,
        depth: int = _DEPTH,
    ) -> None:
        self.dropped = 0
        self._work, self._finish, self._lossless = work, finish, lossless
        self._waiting: queue.Queue[Answered | None] = queue.Queue(depth)
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, answered: Answered) -> None:
        """Queue an answer. Raises the error of earlier work."""
        self._raise_failure()
        while not self._lossless and self._waiting.full():
            with contextlib.suppress(queue.Empty):
                self._waiting.get_nowait()
                self.dropped += 1
        self._waiting.put(answered)
        self._raise_failure()

    def close(self) -> None:
        """Wait until all work is done."""
        self._waiting.put(None)
        self._thread.join()
        self._raise_failure()

    def _run(self) -> None:
        works = True
        for answered in iter(self._waiting.get, None):  # after a failure to the end too, so that `put` does not block
            works = works and self._attempt(self._work, answered)
        self._attempt(self._finish)

    def _attempt(self, work: Callable[..., None], *arguments: Answered) -> bool:
        try:
            work(*arguments)
        except Exception as error:
            self._failure = self._failure or error
            return False
        return True

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
