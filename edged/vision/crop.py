"""The middle of a picture, in the shape of an input: torchvision's resize of the shorter side and crop of the middle.

What is thrown away is cut off first and never resized, which shows the same within a pixel.
"""

from __future__ import annotations

from edged.vision.view import Region, View
from edged.vision.window import window_of


def middle(view: View | None, width: int, height: int, shape: tuple[int, int], zoom: float = 1.0) -> View:
    """The middle of what `view` shows of a picture of width x height, for an input of `shape` (width, height).

    With a `zoom` of 1 it reaches to both edges of one axis, with a larger one it shows so much less: 256/224 is a
    resize to 256 and a crop of 224. InvalidInput where the view shows nothing of the picture.
    """
    window = window_of(view, width, height)
    x1, y1, x2, y2 = (0, 0, width, height) if window is None else window.region
    across, down = shape[::-1] if window is not None and window.is_sideways else shape
    side = min((x2 - x1) / across, (y2 - y1) / down) / max(zoom, 1.0)  # picture pixels for one of the input
    shown_w, shown_h = max(1, round(across * side)), max(1, round(down * side))
    left, top = x1 + (x2 - x1 - shown_w) // 2, y1 + (y2 - y1 - shown_h) // 2
    return View(Region(left, top, shown_w, shown_h), view.rotation if view else 0)
