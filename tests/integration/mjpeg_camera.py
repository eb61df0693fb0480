"""A camera on the loopback address that sends JPEGs over HTTP. Tests control its behaviour."""

from __future__ import annotations

import socket
import threading
import time
from typing import Literal

import cv2
import numpy as np

from edged.shapes import Scene
from edged.vision.image import Image

Behaviour = Literal["moves", "dark", "frozen", "small", "silent", "hangs up"]
_HEAD = b"HTTP/1.0 200 OK\r\nContent-Type: multipart/x-mixed-replace;boundary=frame\r\n\r\n"


class MjpegCamera:
    """Sends ten pictures a second to each client. `behaviour` may change at any time: `silent` keeps connections open
    and sends nothing, `hangs up` closes present and new connections."""

    def __init__(self) -> None:
        self.behaviour: Behaviour = "moves"
        self._scene, self._number = Scene(7), 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://me:secret@127.0.0.1:{self._socket.getsockname()[1]}/video"

    def __enter__(self) -> MjpegCamera:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.behaviour = "hangs up"
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._send, args=(connection,), daemon=True).start()

    def _send(self, connection: socket.socket) -> None:
        with connection:
            try:
                connection.sendall(_HEAD)
                while self.behaviour != "hangs up":
                    if self.behaviour != "silent":
                        data = cv2.imencode(".jpg", self._picture())[1].tobytes()
                        head = f"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {len(data)}\r\n\r\n"
                        connection.sendall(head.encode() + data + b"\r\n")
                    time.sleep(0.1)
            except OSError:
                return

    def _picture(self) -> Image:
        if self.behaviour != "frozen":
            self._number += 1
        picture = self._scene.frame(self._number)[0]
        if self.behaviour == "dark":
            return np.zeros_like(picture)
        return picture[::2, ::2].copy() if self.behaviour == "small" else picture
