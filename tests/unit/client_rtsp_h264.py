"""H.264 as network cameras send it over RTSP: RTP packets of RFC 6184, non-interleaved mode, FU-A fragments."""

from __future__ import annotations

import struct
from fractions import Fraction

import av
import numpy as np

SDP = (
    "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=camera\r\nt=0 0\r\nm=video 0 RTP/AVP 96\r\n"
    "a=rtpmap:96 H264/90000\r\na=fmtp:96 packetization-mode=1\r\na=control:track\r\n"
)
_LARGEST = 1200
_KIND = 96


def packets(frames: int, fps: int = 25) -> list[tuple[float, bytes]]:
    """Return (seconds when due, RTP packet): gray 256x192 frames that get brighter for 20 frames, then start again."""
    made: list[tuple[float, bytes]] = []
    codec = av.CodecContext.create("libx264", "w")
    codec.width, codec.height, codec.pix_fmt = 256, 192, "yuv420p"
    codec.framerate, codec.time_base = fps, Fraction(1, fps)
    codec.options = {"tune": "zerolatency", "g": "5"}
    noise = np.random.default_rng(0).integers(0, 20, (192, 256, 3), np.uint8)
    for number in range(frames):
        frame = av.VideoFrame.from_ndarray(noise + np.uint8(30 + 10 * number % 200), format="bgr24")
        frame.pts = number
        for packet in codec.encode(frame):
            units = [payload for nal in _units(bytes(packet)) for payload in _fragments(nal)]
            for index, payload in enumerate(units):
                last = index == len(units) - 1
                head = struct.pack(
                    ">BBHII", 0x80, _KIND | (0x80 if last else 0), len(made) & 0xFFFF, number * 90000 // fps, 1
                )
                made.append((number / fps, head + payload))
    return made


def _units(annex_b: bytes) -> list[bytes]:
    """Return the NAL units between start codes, without the leading zero of four-byte start codes."""
    return [unit.rstrip(b"\0") for unit in annex_b.split(b"\0\0\1") if unit.strip(b"\0")]


def _fragments(unit: bytes) -> list[bytes]:
    if len(unit) <= _LARGEST:
        return [unit]
    indicator, kind, body = unit[0] & 0xE0 | 28, unit[0] & 0x1F, unit[1:]
    parts = [body[at : at + _LARGEST] for at in range(0, len(body), _LARGEST)]
    flags = [0x80, *[0] * (len(parts) - 2), 0x40]
    return [bytes([indicator, flag | kind]) + part for flag, part in zip(flags, parts, strict=True)]
