"""What the address of a camera says beside where it is."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

import msgspec

from edged.decoding import explain, ready
from edged.errors import InvalidInput


class CameraSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """0 and "" leave the choice to the camera. `format` is one of FFmpeg's names, such as mjpeg or yuyv422."""

    width: int = 0
    height: int = 0
    fps: float = 0.0
    format: str = ""


def camera_address(text: str) -> tuple[str, CameraSettings]:
    """The place in `v4l2:///dev/video0?width=1280&height=720&fps=30` or `csi://0`, and the settings. InvalidInput for
    what is no such setting."""
    parts = urlsplit(text)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    try:
        settings = msgspec.convert(given, ready(CameraSettings), strict=False)
    except msgspec.ValidationError as error:
        why = explain(error, CameraSettings.__struct_fields__)
        raise InvalidInput(f"{text!r} has settings that no camera takes: {why}") from None
    if min(settings.width, settings.height) < 0 or settings.fps < 0 or bool(settings.width) != bool(settings.height):
        raise InvalidInput(f"{text!r} is no size of a picture; give width and height, such as ?width=1280&height=720")
    return parts.netloc + parts.path, settings
