"""Parses addresses of cameras and their settings."""

from __future__ import annotations

from typing import TypeVar
from urllib.parse import parse_qsl, urlsplit

import msgspec

from edged.decoding import explain, ready
from edged.errors import InvalidInput, redact

Settings = TypeVar("Settings", bound=msgspec.Struct)


class CameraSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a camera: size in pixels, and frames a second. If a value is 0 or empty, the camera selects the
    value. `format` is an FFmpeg name, such as mjpeg or yuyv422."""

    width: int = 0
    height: int = 0
    fps: float = 0.0
    format: str = ""


def query_settings(address: str, query: str, kind: type[Settings]) -> Settings:
    """Read the query of an address. Raises InvalidInput for an invalid setting. For an unknown setting, the message
    suggests the closest known name."""
    try:
        return msgspec.convert(dict(parse_qsl(query, keep_blank_values=True)), ready(kind), strict=False)
    except msgspec.ValidationError as error:
        why = explain(error, kind.__struct_fields__)
        raise InvalidInput(f"invalid setting in {redact(address)!r}: {why}") from None


def camera_address(text: str) -> tuple[str, CameraSettings]:
    """Parse `v4l2:///dev/video0?width=1280&height=720&fps=30` or `csi://0` into device and settings. Raises
    InvalidInput for an invalid setting."""
    parts = urlsplit(text)
    settings = query_settings(text, parts.query, CameraSettings)
    if min(settings.width, settings.height) < 0 or settings.fps < 0 or bool(settings.width) != bool(settings.height):
        raise InvalidInput(
            f"{text!r} has an invalid size or rate; give both width and height, such as ?width=1280&height=720"
        )
    return parts.netloc + parts.path, settings
