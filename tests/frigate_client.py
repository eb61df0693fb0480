"""Frigate's ZMQ detector, as in its camera process: one REQ socket, a handshake at the start and after every timeout,
and an empty result on every failure."""

from __future__ import annotations

import contextlib
import json
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import zmq

Rows = npt.NDArray[np.float32]


class FrigateDetector:
    """The client. `timeouts` and `handshakes` are counters; `is_ready` never becomes False again, as in Frigate."""

    def __init__(
        self,
        endpoint: str,
        model: str = "shapes.onnx",
        *,
        model_type: str = "yologeneric",
        file: bytes = b"",
        timeout_ms: int = 200,
        handshake_ms: int = 30000,
    ) -> None:
        self._context = zmq.Context()
        self._endpoint, self._model, self._model_type, self._file = endpoint, model, model_type, file
        self._timeout_ms, self._handshake_ms = timeout_ms, handshake_ms
        self._socket: zmq.Socket[bytes] | None = None
        self.timeouts = self.handshakes = 0
        self.is_ready = False
        self._begin()

    def detect(self, tensor: npt.NDArray[Any]) -> Rows:
        """Return detections as rows [20, 6]; zeros on failure."""
        if not self.is_ready:
            return np.zeros((20, 6), np.float32)
        header = {"shape": list(tensor.shape), "dtype": tensor.dtype.name, "model_type": self._model_type}
        try:
            reply = self.ask(json.dumps(header).encode(), tensor.tobytes())
        except zmq.Again:
            self.timeouts += 1
            self._begin()
            return np.zeros((20, 6), np.float32)
        assert [len(frame) for frame in reply] == [480]
        return np.frombuffer(reply[0], np.float32).reshape(20, 6)

    def ask(self, *frames: bytes) -> list[bytes]:
        """Send any message and return the reply; zmq.Again after the timeout."""
        assert self._socket is not None
        self._socket.send_multipart(frames)
        return self._socket.recv_multipart()

    def _begin(self) -> None:
        """Open a new socket and do the handshake on it."""
        if self._socket is not None:
            self._socket.close(0)
        self._socket = self._context.socket(zmq.REQ)
        self._socket.setsockopt(zmq.SNDTIMEO, self._timeout_ms)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVTIMEO, self._handshake_ms)
        self._socket.connect(self._endpoint)
        self.handshakes += 1
        with contextlib.suppress(zmq.Again):
            self.is_ready = self._shake() or self.is_ready
        self._socket.setsockopt(zmq.RCVTIMEO, self._timeout_ms)

    def _shake(self) -> bool:
        (answer,) = self.ask(json.dumps({"model_request": True, "model_name": self._model}).encode())
        output = json.loads(answer)
        if output["model_available"]:
            return bool(output["model_loaded"])
        if not self._file:
            return False
        (answer,) = self.ask(json.dumps({"model_data": True, "model_name": self._model}).encode(), self._file)
        output = json.loads(answer)
        return bool(output["model_saved"] and output["model_loaded"])

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close(0)
        self._context.term()

    def __enter__(self) -> FrigateDetector:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
