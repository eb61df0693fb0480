"""Cameras on the network: RTSP over TCP, Motion JPEG and HLS over HTTP."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Any

from edged.client.sources import pyav
from edged.client.sources import pyav as media
from edged.client.sources.address import CameraSettings
from edged.client.sources.files import Playback
from edged.client.sources.live import Live
from edged.client.sources.source import Shot
from edged.errors import InvalidInput, NotFound

_OPEN_S, _READ_S = 10.0, 10.0
_USUAL_FPS = 25.0
# UDP loses packets on a busy LAN. FFmpeg's "nobuffer" is left off: it throws the frames away that it looked at to learn
# the format, the first key frame among them, and the next may be seconds off. What is kept is overtaken at once.
_RTSP = {"rtsp_transport": "tcp"}


def network_camera(url: str, accelerated: bool = True) -> Live:
    """`rtsp://`, `rtsps://`, `http://` or `https://`. Unsupported if PyAV is not installed."""
    av = media.require_av()

    @contextlib.contextmanager
    def connect(camera: Live) -> Iterator[Iterator[Shot]]:
        accelerator = pyav.accelerator() if accelerated else None
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
    says when that was."""
    due = Playback(_USUAL_FPS)
    for shot in taken:
        camera.stopped.wait(due.until(shot.position))
        yield Shot.now(shot.develop, shot.position)


_NOT_ABOUT_THE_FORMAT = {errno.EBUSY, errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.EACCES, errno.EPERM, errno.EIO}


def v4l2_camera(device: str, settings: CameraSettings) -> Live:
    """Open a camera of this machine: with Motion JPEG, which the daemon decodes on demand, unless the settings or the
    driver say otherwise. NotFound or InvalidInput if the device does not exist or may not be opened."""
    av = media.require_av()
    if not os.path.exists(device):
        raise NotFound(f"no such camera {device}; see: ls /dev/video*")
    if not os.access(device, os.R_OK | os.W_OK):
        raise InvalidInput(f"the camera {device} may not be opened by this user; join the group that owns it (video)")

    @contextlib.contextmanager
    def connect(camera: Live) -> Iterator[Iterator[Shot]]:
        with _open(av, device, settings) as container:
            yield media.shots(container, camera.on_damage, undecoded=True)

    return Live(device, connect)


def _open(av: Any, device: str, settings: CameraSettings) -> Any:
    wanted = {}
    if settings.width and settings.height:
        wanted["video_size"] = f"{settings.width}x{settings.height}"
    if settings.fps:
        wanted["framerate"] = f"{settings.fps:g}"
    timeout = (_OPEN_S, _READ_S)
    if settings.format:
        return av.open(device, format="v4l2", options=wanted | {"input_format": settings.format}, timeout=timeout)
    try:
        return av.open(device, format="v4l2", options=wanted | {"input_format": "mjpeg"}, timeout=timeout)
    except (av.FFmpegError, OSError) as error:
        if error.errno in _NOT_ABOUT_THE_FORMAT:
            raise
        return av.open(device, format="v4l2", options=wanted, timeout=timeout)
