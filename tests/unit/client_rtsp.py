"""A camera on the loopback: RTSP (RFC 2326) with RTP interleaved in its TCP connection, and an MPEG transport stream in
it (RFC 2250)."""

from __future__ import annotations

import socket
import struct
import threading
import time

from tests.unit.media import h264

_SDP = "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=camera\r\nt=0 0\r\nm=video 0 RTP/AVP 33\r\na=control:track\r\n"
_PAYLOAD = 7 * 188  # bytes of a packet: seven of the transport stream


class RtspCamera:
    """Sends `frames` frames at 25 a second, then hangs up; every connection starts again."""

    def __init__(self, frames: int) -> None:
        self.connections = 0
        self.transport = ""
        stream = h264(frames)
        self._payloads = [stream[at : at + _PAYLOAD] for at in range(0, len(stream), _PAYLOAD)]
        self._seconds = frames / 25
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
            body = _SDP
            lines += ["Content-Type: application/sdp", f"Content-Length: {len(body)}"]
        elif method == "SETUP":
            self.transport = headers["transport"]
            lines += ["Transport: RTP/AVP/TCP;unicast;interleaved=0-1", "Session: 1"]
        elif method == "PLAY":
            lines += ["Session: 1"]
        return "\r\n".join([*lines, "", body])

    def _play(self, connection: socket.socket) -> None:
        begun = time.monotonic()
        for number, payload in enumerate(self._payloads):
            due = self._seconds * number / len(self._payloads)
            time.sleep(max(0.0, begun + due - time.monotonic()))
            packet = struct.pack(">BBHII", 0x80, 33, number, int(due * 90_000), 1) + payload
            connection.sendall(struct.pack(">cBH", b"$", 0, len(packet)) + packet)
