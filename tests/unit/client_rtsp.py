"""A camera on the loopback: RTSP (RFC 2326) with RTP interleaved in its TCP connection. The video is MPEG-2 in a
transport stream (RFC 2250, payload type 33), which needs no encoder beyond FFmpeg's own and no packetiser.
"""

from __future__ import annotations

import io
import socket
import struct
import threading
import time

import av
import numpy as np

_SDP = "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=camera\r\nt=0 0\r\nm=video 0 RTP/AVP 33\r\na=control:track\r\n"
_PACKET = 7 * 188  # bytes of whole transport stream packets that fit into one Ethernet frame


class RtspCamera:
    """Sends `frames` frames at 25 a second, then hangs up; every connection starts anew."""

    def __init__(self, frames: int) -> None:
        self.connections = 0
        self.transport = ""
        self._media = transport_stream(frames)
        self._pause = frames / 25 / max(1, len(self._media) // _PACKET)
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
        for number, at in enumerate(range(0, len(self._media), _PACKET)):
            payload = self._media[at : at + _PACKET]
            rtp = struct.pack(">BBHII", 0x80, 33, number & 0xFFFF, int(number * self._pause * 90000), 1)
            connection.sendall(struct.pack(">cBH", b"$", 0, len(rtp) + len(payload)) + rtp + payload)
            time.sleep(self._pause)


def transport_stream(frames: int) -> bytes:
    """Gray pictures of 256x192 pixels, each brighter than the one before; noise makes them fill some packets."""
    noise = np.random.default_rng(0).integers(0, 20, (192, 256, 3), np.uint8)
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mpegts") as container:
        stream = container.add_stream("mpeg2video", rate=25)
        stream.width, stream.height, stream.pix_fmt = 256, 192, "yuv420p"
        for number in range(frames):
            frame = av.VideoFrame.from_ndarray(noise + np.uint8(30 + 10 * number), format="bgr24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return buffer.getvalue()
