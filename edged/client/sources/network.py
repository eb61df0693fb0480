"""Cameras on the network: RTSP over TCP, Motion JPEG and HLS over HTTP."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from edged.client.sources import container as media
from edged.client.sources import hardware
from edged.client.sources.live import Live
from edged.client.sources.reader import Shot
from edged.client.sources.recording import Playback

_OPEN_S, _READ_S = 10.0, 10.0
_USUAL_FPS = 25.0
# UDP loses packets on a busy LAN. FFmpeg's "nobuffer" is left off: it throws the frames away that it looked at to learn
# the format, the first key frame among them, and the next may be seconds off. What is kept is overtaken at once.
_RTSP = {"rtsp_transport": "tcp"}


def network_camera(url: str, accelerated: bool = True) -> Live:
    """`rtsp://`, `rtsps://`, `http://` or `https://`. Unsupported where PyAV is not installed."""
    av = media.require_av()

    @contextlib.contextmanager
    def connect(camera: Live) -> Iterator[Iterator[Shot]]:
        accelerator = hardware.accelerator() if accelerated else None
        options: dict[str, Any] = {} if accelerator is None else {"hwaccel": accelerator}
        if url.startswith("rtsp"):
            options["options"] = dict(_RTSP)
        with av.open(url, timeout=(_OPEN_S, _READ_S), **options) as container:
            if not container.streams.video:
                raise OSError("it sends no video")
            taken = media.shots(container, camera.on_damage, undecoded=True)
            yield _played(taken, camera) if "hls" in container.format.name.split(",") else taken

    return Live(url, connect)


def _played(taken: Iterator[Shot], camera: Live) -> Iterator[Shot]:
    """HLS arrives some seconds at a time: shown at the speed it was taken at, and stamped when shown, since nothing
    tells when that was."""
    due = Playback(_USUAL_FPS)
    for shot in taken:
        camera.stopped.wait(due.until(shot.position))
        yield Shot.now(shot.develop, shot.position)
