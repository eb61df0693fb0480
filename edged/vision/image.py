"""Decodes pictures from cameras (encoded, or raw pixels) to BGR uint8 [height, width, 3].

OpenCV decodes to BGR directly; `prepare` reorders channels if a model needs RGB.

A few bytes can declare a picture of gigabytes, so the size is read from the header before a decoder allocates memory.
Only the formats of `picture_header` are decoded.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from typing import TypeAlias, cast

import cv2
import msgspec
import numpy as np
import numpy.typing as npt

from edged.errors import InvalidImage, TooLarge
from edged.vision.picture_header import Encoded, Header, read_header

Image: TypeAlias = npt.NDArray[np.uint8]

MAX_PIXELS = 64 * 1024 * 1024  # 192 MiB once decoded; more than any camera of an edge box sends

_JPEG_END = re.compile(rb"\xff\xd9")
_AS_STORED = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
_STILL_BRANDS = (b"heic", b"heix", b"mif1", b"msf1", b"avif", b"avis")  # pictures in the container of MP4
# JPEG blocks can be decoded to fewer pixels with a fraction of the work. The largest steps come first.
_REDUCED = {8: cv2.IMREAD_REDUCED_COLOR_8, 4: cv2.IMREAD_REDUCED_COLOR_4, 2: cv2.IMREAD_REDUCED_COLOR_2}

# Gets width and height, returns the largest factor by which the decoded picture may be smaller. Below 1 counts as 1.
Reduction: TypeAlias = Callable[[int, int], float]


class PixelFormat(enum.Enum):
    """The layout of raw pixels. The value of a member is its name in requests and settings."""

    BGR = "bgr"
    RGB = "rgb"
    GRAY = "gray"
    NV12 = "nv12"
    I420 = "i420"


_SUBSAMPLED = (PixelFormat.NV12, PixelFormat.I420)
_TO_BGR = {
    PixelFormat.RGB: cv2.COLOR_RGB2BGR,
    PixelFormat.GRAY: cv2.COLOR_GRAY2BGR,
    PixelFormat.NV12: cv2.COLOR_YUV2BGR_NV12,
    PixelFormat.I420: cv2.COLOR_YUV2BGR_I420,
}


class Decoded(msgspec.Struct, frozen=True):
    """A picture of width x height pixels, decoded at 1/step of its size.

    `image` is BGR uint8 [ceil(height / step), ceil(width / step), 3]; its last row and column may cover pixels beyond
    the edge.
    """

    image: Image
    width: int
    height: int
    step: int = 1


def decode(encoded: Encoded) -> Image:
    """Decode a JPEG, PNG, WebP, BMP or GIF (first frame) into BGR uint8 [height, width, 3].

    Gray and palette pictures become three channels, alpha is dropped, 16 bits become 8. The EXIF orientation is
    ignored: detections are in pixels as stored, so that the sender can draw them on the picture that it sent.

    Raises TooLarge, before decoding, if the picture has more than `MAX_PIXELS`. Raises InvalidImage if the picture is
    empty, truncated, damaged or of another format.
    """
    return _decode(encoded, _header(encoded), _AS_STORED)


def decode_reduced(encoded: Encoded, reduction: Reduction) -> Decoded:
    """Like `decode`, but decode a JPEG at 1/2, 1/4 or 1/8 of its size if `reduction` allows this, which is much faster.

    `reduction` gets width and height of the whole picture and returns the largest allowed factor (see
    `Preparer.reduction`). Raises the errors of `decode` and of `reduction`.
    """
    header = _header(encoded)
    most = reduction(header.width, header.height)
    if header.format == "JPEG" and most >= 2:
        step = next(step for step in _REDUCED if step <= most)
        image = _decode(encoded, header, _REDUCED[step] | cv2.IMREAD_IGNORE_ORIENTATION)
        if image.shape[:2] == (-(-header.height // step), -(-header.width // step)):
            return Decoded(image, header.width, header.height, step)
        # This decoder rounds sizes differently, which would shift boxes, so the picture is decoded in full.
    return Decoded(_decode(encoded, header, _AS_STORED), header.width, header.height)


def _header(encoded: Encoded) -> Header:
    """Read and check the header of a picture. Raises InvalidImage or TooLarge if the picture must not be decoded."""
    header = read_header(encoded)
    if header is None:
        raise InvalidImage(f"{_describe(encoded)}; send a JPEG, PNG, WebP, BMP or GIF")
    _check_encoded(encoded, header)
    return header


def _decode(encoded: Encoded, header: Header, flags: int) -> Image:
    try:
        image = cv2.imdecode(np.frombuffer(encoded, np.uint8), flags)
    except cv2.error:
        image = None
    # imdecode returns None for most damage and raises for some; its stub does not declare None.
    if cast("Image | None", image) is None:
        raise InvalidImage(f"the {header.format} picture is damaged or truncated; send it again")
    return cast(Image, image)


def _describe(encoded: Encoded) -> str:
    if len(encoded) == 0:
        return "the picture is empty"
    start = bytes(encoded[:12])
    if start[4:8] == b"ftyp" and start[8:12] not in _STILL_BRANDS:
        return f"the {len(encoded)} bytes are a video, not a picture (for videos use `edged stream`)"
    return f"the {len(encoded)} bytes are not a picture in a supported format; they begin with {start[:4].hex()}"


def _check_encoded(encoded: Encoded, header: Header) -> None:
    width, height = header.width, header.height
    if width < 1 or height < 1:
        raise InvalidImage(f"the {header.format} picture is invalid: the header gives the size {width}x{height} pixels")
    if width * height > MAX_PIXELS:
        raise TooLarge(
            f"the {header.format} picture of {width}x{height} pixels is over the limit of {MAX_PIXELS} pixels; send a"
            " smaller one"
        )
    # Some decoders fill the rest of a truncated JPEG with gray without an error. Cameras may pad after the end marker.
    if header.format == "JPEG" and encoded[-2:] != b"\xff\xd9" and not _JPEG_END.search(encoded, header.end):
        raise InvalidImage("the JPEG picture is truncated: its end marker is missing; send it again")


def from_raw(data: Encoded, pixel_format: PixelFormat, width: int, height: int, stride: int = 0) -> Image:
    """Convert raw pixels to BGR uint8 [height, width, 3]. For BGR, padded or not, the result is a view of `data`.

    `stride` is the number of bytes from one row of the first plane to the next, 0 for tightly packed rows. NV12's
    interleaved chroma rows have the same stride, the rows of I420's two chroma planes have half this stride. YUV is
    interpreted as BT.601 limited range, as in OpenCV. The padding after the very last row may be missing.

    Raises TooLarge for more than `MAX_PIXELS`, and InvalidImage for an impossible size or stride, or if the length of
    `data` does not fit.
    """
    what = f"a raw {pixel_format.value} picture of {width}x{height} pixels"
    depth, subsampled = (3 if pixel_format in (PixelFormat.BGR, PixelFormat.RGB) else 1), pixel_format in _SUBSAMPLED
    row = width * depth
    stride = stride or row
    if width < 1 or height < 1:
        raise InvalidImage(f"{what} is invalid; give a positive width and height")
    if width * height > MAX_PIXELS:
        raise TooLarge(f"{what} is over the limit of {MAX_PIXELS} pixels; send a smaller picture")
    if stride < row:
        raise InvalidImage(f"{what} needs a stride of at least {row} bytes, got {stride}; give 0 for packed rows")
    if subsampled and (width % 2 or height % 2):
        raise InvalidImage(f"{what} is invalid; {pixel_format.value} needs an even width and height")
    padding = stride - row
    if pixel_format is PixelFormat.I420:
        if stride % 2:
            raise InvalidImage(f"{what} needs an even stride, got {stride}")
        padding //= 2
    # Luma and chroma rows have the same stride, so the planes are one matrix of 3/2 the height.
    rows = height * 3 // 2 if subsampled else height
    need, got = stride * rows, memoryview(data).nbytes
    if not need - padding <= got <= need:
        raise InvalidImage(f"{what} with a stride of {stride} bytes needs {need} bytes, got {got}")
    if pixel_format is PixelFormat.I420 and stride != width:
        pixels = _packed_i420(data, width, height, stride)
    else:
        shape, strides = ((rows, width, 3), (stride, 3, 1)) if depth == 3 else ((rows, width), (stride, 1))
        pixels = cast(Image, np.ndarray(shape, np.uint8, data, strides=strides))
    code = _TO_BGR.get(pixel_format)
    return pixels if code is None else cast(Image, cv2.cvtColor(pixels, code))


def _packed_i420(data: Encoded, width: int, height: int, stride: int) -> Image:
    """Return the three planes without padding, one after the other, in one matrix [height * 3/2, width] for OpenCV."""
    half_w, half_h, half_stride = width // 2, height // 2, stride // 2
    packed = np.empty(width * height * 3 // 2, np.uint8)
    luma, chroma = packed[: width * height], packed[width * height :]
    luma.reshape(height, width)[:] = np.ndarray((height, width), np.uint8, data, strides=(stride, 1))
    # The chroma planes follow each other and have rows of equal length, so they are one run of 2 * half_h rows.
    chroma.reshape(height, half_w)[:] = np.ndarray(
        (2 * half_h, half_w), np.uint8, data, offset=stride * height, strides=(half_stride, 1)
    )
    return packed.reshape(height * 3 // 2, width)
