"""Which part of a picture is looked at, and how it is turned first."""

from __future__ import annotations

import msgspec


class Region(msgspec.Struct, frozen=True, array_like=True):
    """Part of a picture, in pixels of the picture as sent; a width or height of 0 reaches to the edge."""

    x: int = 0
    y: int = 0
    width: int = 0
    height: int = 0


class View(msgspec.Struct, frozen=True, array_like=True):
    """A region, None for the whole picture, and the degrees clockwise that it is turned by: 0, 90, 180 or 270."""

    region: Region | None = None
    rotation: int = 0
