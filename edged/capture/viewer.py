"""Annotated pictures of a camera for the page. They are made only while a browser shows the camera."""

from __future__ import annotations

import time
from collections.abc import Callable

import cv2
import numpy as np

from edged.client.sinks.sink import Answered, Background, Sink
from edged.errors import EdgedError
from edged.ipc.capture_messages import Picture, Watch
from edged.vision.draw import encode_jpeg


class Viewer(Sink):
    """Sends the newest annotated pictures to the daemon, at the rate and width of the last `watch`. A thread annotates
    them."""

    name = "viewer"
    wants_pictures = True

    def __init__(self, send: Callable[[Picture], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._send, self._clock = send, clock
        self._watch = Watch(0.0)
        self._due = 0.0
        self._work = Background("edged-viewer", self._show, lambda: None, depth=1)

    def watch(self, watch: Watch) -> None:
        """Set the rate and width of pictures; a rate of 0 stops them."""
        self._watch, self._due = watch, 0.0

    def on_answer(self, answered: Answered) -> None:
        now = self._clock()
        if self._watch.fps <= 0 or now < self._due or answered.image is None:
            return
        self._due = max(self._due, now - 1 / self._watch.fps) + 1 / self._watch.fps
        self._work.put(answered)

    def close(self) -> None:
        self._work.close()

    def _show(self, answered: Answered) -> None:
        try:
            painted = answered.painted
        except EdgedError:  # a picture that cannot be decoded
            return
        if painted is None:
            return
        watch = self._watch
        height, width = painted.shape[:2]
        if watch.width and width > watch.width:
            size = watch.width, max(1, round(height * watch.width / width))
            painted = cv2.resize(painted, size, interpolation=cv2.INTER_AREA).astype(np.uint8, copy=False)
        unix_s = answered.result.captured_unix_ns / 1e9 or time.time()
        self._send(Picture(encode_jpeg(painted, watch.quality), unix_s))
