"""Where frames come from: pictures, videos, cameras; all as iterators of `edged.client.frames.Captured`.

`opening` knows which kind a text names. A kind is a `Reader` (`reader`), which gives shots one after the other:
`live` reads cameras and tries again when they go away, `recording` reads files. A `Source` (`source`) hands them to
whoever asks, either the newest or each in its turn.
"""

from __future__ import annotations

from edged.client.sources.opening import PICTURE_SUFFIXES, open_source
from edged.client.sources.redaction import redact
from edged.client.sources.source import Source

__all__ = ["PICTURE_SUFFIXES", "Source", "open_source", "redact"]
