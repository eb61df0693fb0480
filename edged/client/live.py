"""Cameras: a thread reads as fast as the camera sends and keeps the newest frame only, so that whoever is slow gets a
new picture, never an old one."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from edged.client.frames import Captured
from edged.client.sources import Source, redact
from edged.client.video import decode, pixels, require_av
from edged.errors import InvalidInput, NotFound

_BACKOFF_S = (1.0, 5.0, 10.0, 60.0)  # seconds; a camera that was just switched on takes about ten
_OPEN_S, _READ_S = 10.0, 10.0
# UDP loses packets on a busy LAN. FFmpeg's "nobuffer" is left off: it throws the frames away that it looked at to learn
# the format, the first key frame among them, and the next may be seconds off. What is kept is overtaken at once.
_RTSP = {"rtsp_transport": "tcp"}

_log = logging.getLogger("edged.client")

Connect = Callable[[], Any]
"""Opens the camera: a context manager over a PyAV container."""


class Camera(Source):
    """A live source. Opens, and opens again after `backoff` seconds, whenever the camera is not there."""

    paced = True

    def __init__(
        self,
        name: str,
        connect: Connect,
        *,
        frames: Callable[[Any, Callable[[], None]], Iterator[Any]] = decode,
        backoff: tuple[float, ...] = _BACKOFF_S,
    ) -> None:
        super().__init__(redact(name))
        self._connect = connect
        self._decode = frames
        self._backoff = backoff
        self._newest: tuple[Any, int, int] | None = None
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="edged-camera", daemon=True)
        self._thread.start()

    def __next__(self) -> Captured:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._newest is not None or self._stopped.is_set())
                newest, self._newest = self._newest, None
            if newest is None or self._stopped.is_set():
                raise StopIteration
            frame, unix_ns, mono_ns = newest
            try:  # converted here and not in the reader, so that an overtaken frame costs nothing
                return Captured(pixels(frame), unix_ns, mono_ns)
            except Exception:  # PyAV's errors share no base with numpy's
                self._on_damage()

    def interrupt(self) -> None:
        self._stopped.set()
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """The reader may stay in a read until its timeout; it is given a moment and then left to end by itself."""
        self.interrupt()
        self._thread.join(timeout=0.5)

    def _run(self) -> None:
        attempt = 0
        while not self._stopped.is_set():
            got_frames, reason = self._session()
            if self._stopped.is_set():
                return
            attempt = 0 if got_frames else attempt
            pause = self._backoff[min(attempt, len(self._backoff) - 1)]
            _log.warning("camera %s: %s; trying again in %g s", self.name, reason, pause)
            attempt += 1
            self._stopped.wait(pause)

    def _session(self) -> tuple[bool, str]:
        """One connection, until it ends: whether it gave any frame, and why it ended."""
        got_frames = False
        try:
            with self._connect() as container:
                for frame in self._decode(container, self._on_damage):
                    got_frames = True
                    self._publish(frame)
                    if self._stopped.is_set():
                        break
        except Exception as error:  # whatever a camera or a driver does, the next attempt may work
            return got_frames, redact(str(getattr(error, "strerror", None) or error) or type(error).__name__)
        return got_frames, "the stream ended"

    def _publish(self, frame: Any) -> None:
        with self._changed:
            if self._newest is not None:
                self.overtaken += 1
            self._newest = (frame, time.time_ns(), time.monotonic_ns())
            self._changed.notify_all()

    def _on_damage(self) -> None:
        self.damaged += 1


def open_camera(name: str) -> Camera:
    """`rtsp://...` over TCP, or a Video4Linux device such as /dev/video0."""
    av = require_av()
    if name.startswith("rtsp"):
        return Camera(name, lambda: av.open(name, options=dict(_RTSP), timeout=(_OPEN_S, _READ_S)))
    if not os.path.exists(name):
        raise NotFound(f"there is no camera {name}; look at: ls /dev/video*")
    if not os.access(name, os.R_OK | os.W_OK):
        raise InvalidInput(f"the camera {name} may not be opened by this user; join the group that owns it (video)")
    return Camera(name, lambda: av.open(name, format="v4l2", timeout=(_OPEN_S, _READ_S)))
