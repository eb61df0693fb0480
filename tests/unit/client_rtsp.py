"""A camera on the loopback: RTSP (RFC 2326) with H.264 over RTP, interleaved in the TCP connection."""

from __future__ import annotations

import socket
import struct
import threading
import time

from tests.unit import client_rtsp_h264


class RtspCamera:
    """Sends `frames` frames at 25 a second, then closes the connection. Each connection starts at the first frame."""

    def __init__(self, frames: int) -> None:
        self.connections = 0
        self.transport = ""
        self._packets = client_rtsp_h264.packets(frames)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"rtsp://me:secret@127.0.0.1:{self._socket.getsockname()[1]}/live"
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> RtspCamera:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            with connection:
                connection.settimeout(10)
                try:
                    self._talk(connection)
                except OSError:
                    continue

    def _talk(self, connection: socket.socket) -> None:
        reader = connection.makefile("rb")
        with reader:
            while line := reader.readline():
                method = line.split()[0].decode()
                headers = {}
                while (header := reader.readline().strip()) != b"":
                    name, _, value = header.decode().partition(":")
                    headers[name.lower()] = value.strip()
                connection.sendall(self._reply(method, headers).encode())
                if method == "PLAY":
                    self._play(connection)
                    return

    def _reply(self, method: str, headers: dict[str, str]) -> str:
        lines, body = ["RTSP/1.0 200 OK", f"CSeq: {headers['cseq']}"], ""
        if method == "DESCRIBE":
            body = client_rtsp_h264.SDP
            lines += ["Content-Type: application/sdp", f"Content-Length: {len(body)}"]
        elif method == "SETUP":
            self.transport = headers["transport"]
            lines += ["Transport: RTP/AVP/TCP;unicast;interleaved=0-1", "Session: 1"]
        elif method == "PLAY":
            lines += ["Session: 1"]
        return "\r\n".join([*lines, "", body])

    def _play(self, connection: socket.socket) -> None:
        begun = time.monotonic()
        for due, packet in self._packets:
            time.sleep(max(0.0, begun + due - time.monotonic()))
            connection.sendall(struct.pack(">cBH", b"$", 0, len(packet)) + packet)
