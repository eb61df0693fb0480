"""A result beside the picture that it is about."""

from __future__ import annotations

import functools

import numpy as np

from edged.client.frames import Picture, read_picture
from edged.client.result import Result
from edged.vision.draw import annotate, encode_jpeg
from edged.vision.image import Image, decode

_QUALITY = 80


class Answered:
    """What several sinks want of one picture is made once, by the first that asks. `image` is None where nobody wanted
    pictures, or where this one had to give way before its answer came."""

    def __init__(self, result: Result, image: Picture | None = None) -> None:
        self.result = result
        self.image = image

    @functools.cached_property
    def painted(self) -> Image | None:
        """BGR uint8 [height, width, 3] with what was found; None without a picture. InvalidInput for one that cannot be
        decoded."""
        if self.image is None:
            return None
        plain = _gray_to_bgr(self.image) if isinstance(self.image, np.ndarray) else decode(read_picture(self.image))
        result = self.result
        return annotate(plain, result.boxes(), result.labels(), _caption(result))

    @functools.cached_property
    def jpeg(self) -> bytes | None:
        """`painted` as a JPEG."""
        return None if self.painted is None else encode_jpeg(self.painted, _QUALITY)


def _gray_to_bgr(image: Image) -> Image:
    return np.repeat(image[:, :, None], 3, axis=2) if image.ndim == 2 else image


def _caption(result: Result) -> str:
    if result.error is not None:
        return f"{result.camera}  {result.error[0]}"
    best = f"  {result.classes[0].label} {result.classes[0].score:.0%}" if result.classes else ""
    return f"{result.camera}  {result.age_ms:.0f} ms{best}"
