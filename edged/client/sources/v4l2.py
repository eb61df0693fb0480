"""Cameras of this machine that Linux knows as Video4Linux devices: USB webcams, capture cards."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Any

from edged.client.sources import container as media
from edged.client.sources.address import CameraSettings
from edged.client.sources.live import Live
from edged.client.sources.reader import Shot
from edged.errors import InvalidInput, NotFound

_OPEN_S, _READ_S = 10.0, 10.0
_NOT_ABOUT_THE_FORMAT = {errno.EBUSY, errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.EACCES, errno.EPERM, errno.EIO}


def v4l2_camera(device: str, settings: CameraSettings) -> Live:
    """Asks for Motion JPEG, which the daemon decodes where it is wanted, unless another format is set; takes what the
    driver gives where there is none. NotFound or InvalidInput where there is no such device or it may not be used."""
    av = media.require_av()
    if not os.path.exists(device):
        raise NotFound(f"there is no camera {device}; look at: ls /dev/video*")
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
