"""Where frames come from: pictures, videos, cameras; all as iterators of `edged.client.frames.Captured`.

`opening` knows which kind an address names. A kind is a `Reader`, which gives shots one after the other: `Live` is a
camera, which is connected again, and `Recording` a video. A `Source` hands out either the newest shot or every one.
"""

from __future__ import annotations

from edged.client.sources.opening import PICTURE_SUFFIXES, open_source
from edged.client.sources.source import Source

__all__ = ["PICTURE_SUFFIXES", "Source", "open_source"]
