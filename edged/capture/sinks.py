"""Sinks that only configured cameras have: pictures for viewers in a browser, and results over ZeroMQ."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import cv2
import numpy as np
import zmq

from edged.client.address import is_loopback
from edged.client.sinks.sink import Answered, Background, Sink, encode
from edged.errors import EdgedError, InvalidInput
from edged.ipc.capture_messages import Picture, Watch
from edged.vision.draw import encode_jpeg

_WAITING = 100  # messages that wait for one subscriber; further ones are dropped


class Viewer(Sink):
    """Sends the newest annotated picture from a separate thread, at the rate, width and quality that `watch` sets."""

    name = "viewer"
    wants_pictures = True

    def __init__(self, send: Callable[[Picture], None]) -> None:
        self._send = send
        self._watch = Watch(0.0)
        self._due = 0.0
        self._work = Background("edged-viewer", self._show, lambda: None, depth=1)

    def watch(self, watch: Watch) -> None:
        """Set the rate, width and quality of pictures; a rate of 0 a second means no pictures."""
        self._watch, self._due = watch, 0.0

    def on_answer(self, answered: Answered) -> None:
        now = time.monotonic()
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


class ZmqPublisher(Sink):
    """Publishes each result as a ZeroMQ message of two parts: the camera's name and JSON. A slow subscriber misses
    results.

    Raises InvalidInput if the address is not on this machine or cannot be used.
    """

    def __init__(self, address: str, camera: str) -> None:
        self.name = address
        self._camera = camera.encode()
        if not address.startswith("ipc://") and not (
            address.startswith("tcp://") and is_loopback(address.removeprefix("tcp://").rpartition(":")[0])
        ):
            raise InvalidInput(
                f"address {address!r} for ZeroMQ is not on this machine; write ipc:///PATH or tcp://127.0.0.1:PORT"
            )
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, _WAITING)
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise InvalidInput(
                f"results cannot be published at {address}: {error.strerror}; choose another address"
            ) from None

    def on_answer(self, answered: Answered) -> None:
        with contextlib.suppress(zmq.Again):
            self._socket.send_multipart([self._camera, encode(answered.result)], zmq.NOBLOCK)

    def close(self) -> None:
        self._socket.close()
        self._context.term()
