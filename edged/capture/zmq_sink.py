"""Publishes a camera's results on a ZeroMQ PUB socket."""

from __future__ import annotations

import contextlib

import zmq

from edged.client.address import is_loopback
from edged.client.sinks.sink import Answered, Sink, encode
from edged.errors import InvalidInput

_WAITING = 100  # queued messages per subscriber; further ones are dropped


class ZmqPublisher(Sink):
    """Publishes each result as JSON, with the camera's name as the first frame. A slow subscriber misses results.

    Raises InvalidInput if the address is not on this machine or cannot be used.
    """

    def __init__(self, address: str, camera: str) -> None:
        self.name = address
        self._camera = camera.encode()
        if not address.startswith("ipc://") and not (
            address.startswith("tcp://") and is_loopback(address.removeprefix("tcp://").rpartition(":")[0])
        ):
            raise InvalidInput(f"{address!r} is not on this machine; write ipc:///PATH or tcp://127.0.0.1:PORT")
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, _WAITING)
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise InvalidInput(f"cannot publish at {address}: {error.strerror}; choose another address") from None

    def on_answer(self, answered: Answered) -> None:
        with contextlib.suppress(zmq.Again):
            self._socket.send_multipart([self._camera, encode(answered.result)], zmq.NOBLOCK)

    def close(self) -> None:
        self._socket.close()
        self._context.term()
