"""Sources of frames: pictures, videos and cameras, as iterators of `edged.client.frames.Captured`.

`opening` selects the source for an address. A `Reader` reads shots, which are pictures that are converted on demand.
The reader `Live` reads a camera and reconnects; the reader `Recording` reads a video. A `Source` returns either the
newest shot or every shot.
"""

from __future__ import annotations

from edged.client.sources.opening import PICTURE_SUFFIXES, open_source
from edged.client.sources.source import Source

__all__ = ["PICTURE_SUFFIXES", "Source", "open_source"]
