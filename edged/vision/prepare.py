"""Writes a picture into a slice of an input tensor, in as few passes over memory as OpenCV and numpy allow.

The picture is split into uint8 planes, and each plane is converted directly into the tensor. Measured for a 1280x720
picture and an FP32 tensor [3, 640, 640] on one core, this takes a tenth of the time of `cv2.dnn.blobFromImage`, and
half the time of a transposing numpy multiply, because channels are reordered as bytes, not as floats of four bytes.
Padding is filled, never converted. OpenCV and numpy convert to FP16 slowly, so a lookup table of the 256 possible
values converts in one pass.

`resize_center` resizes as Pillow and torchvision do, because classifiers are trained on pictures that Pillow resized:
each pixel of the result is the mean of all source pixels that it covers, with weights that form a triangle. OpenCV's
linear interpolation reads four pixels at any scale, and OpenCV's area interpolation weighs all pixels equally. Source:
`precompute_coeffs` in Pillow's Resample.c, Resize and CenterCrop in torchvision.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, cast

import cv2
import numpy as np
import numpy.typing as npt

from edged.tensors import Array, numpy_dtype
from edged.vision.image import Decoded, Image
from edged.vision.placement import CropWindow, Fit, Placement, Roi, center_region, crop_window, place, place_window
from edged.vision.preprocess import UNSCALED, Preprocess
from edged.vision.tilted import TiltedWindow

Plane: TypeAlias = npt.NDArray[np.uint8]

_PLACEMENTS = 64  # cached placements: sizes and regions of several cameras
_TURNS = {90: cv2.ROTATE_90_CLOCKWISE, 180: cv2.ROTATE_180, 270: cv2.ROTATE_90_COUNTERCLOCKWISE}


class Preparer:
    """Prepares pictures for one input. Calls reuse buffers: use a `Preparer` from one thread at a time."""

    def __init__(self, preprocess: Preprocess) -> None:
        self.preprocess = preprocess
        self._dtype = numpy_dtype(preprocess.datatype)
        self._planar = preprocess.layout == "NCHW" or preprocess.channels == 1
        pixels = preprocess.width * preprocess.height
        self._scaled = np.empty(pixels * 3, np.uint8)
        self._ordered = np.empty(pixels * 3, np.uint8)
        self._values = _Values(preprocess, self._dtype)
        self._pad_row = np.tile(self._values.pad, (preprocess.width, 1))
        self._turned = np.empty(0, np.uint8)  # allocated when the first picture is rotated
        self._placements: dict[tuple[int, int, int, Roi | None], Placement] = {}

    def prepare(self, picture: Image | Decoded, out: Array, roi: Roi | None = None) -> Placement:
        """Write `picture`, BGR uint8 [h, w, 3], or its region `roi`, into all of `out` and return its placement.

        `out` is one picture of the batch: [C, H, W] or [H, W, C], depending on the layout, in the input's dtype, C
        contiguous. Raises ValueError for any other `out`, InvalidInput if the roi is outside the picture.
        """
        self._check(out)
        if isinstance(picture, Decoded):
            image, step = picture.image, picture.step
            placement = self._place(picture.width, picture.height, step, roi)
        else:
            image, step = picture, 1
            placement = self._place(image.shape[1], image.shape[0], step, roi)
        width, height = placement.inner
        rows = slice(placement.pad_y, placement.pad_y + height)
        columns = slice(placement.pad_x, placement.pad_x + width)
        if self.preprocess.antialias and self.preprocess.fit is Fit.CENTER_CROP:
            scaled = self._middle(image, placement, step, roi)
        elif placement.tilted is not None:
            scaled = self._resize(_upright(image, placement.tilted, step), width, height)
        elif placement.window is None:
            scaled = self._resize(image, width, height)
        else:
            scaled = self._show(image, placement.window, step, width, height)
        if self._planar:
            planes = out if self.preprocess.layout == "NCHW" else out[None, :, :, 0]
            self._fill_planes(planes, rows, columns)
            self._write_planes(scaled, planes[:, rows, columns])
        else:
            self._fill_pixels(out, rows, columns)
            self._write_pixels(scaled, out[rows, columns])
        return placement

    def _check(self, out: Array) -> None:
        if out.shape != self.preprocess.shape or out.dtype != self._dtype or not out.flags.c_contiguous:
            raise ValueError(
                f"the target is {out.dtype}{list(out.shape)}, expected a contiguous"
                f" {self._dtype}{list(self.preprocess.shape)}"
            )

    def reduction(self, width: int, height: int, roi: Roi | None = None) -> float:
        """Return the largest factor by which `decode_reduced` may reduce a picture of width x height, so that the
        picture still has the pixels that the model's input needs. A reduction moves boxes slightly, so the factor is 1
        unless the model's settings allow reductions. The factor is also 1 for a tilted region, because the sides of a
        reduced region would not have whole pixels.

        Safe to call from other threads. Raises InvalidInput like `prepare`.
        """
        if not self.preprocess.reduce or (roi is not None and roi.corners is not None):
            return 1.0
        return self._place(width, height, 1, roi).reduction()

    def _place(self, width: int, height: int, step: int, roi: Roi | None) -> Placement:
        known = self._placements.get((width, height, step, roi))
        if known is not None:
            return known
        wanted = self.preprocess
        window = self._window(width, height, step, roi)
        if window is None:
            placement = place(width, height, wanted.width, wanted.height, wanted.fit, wanted.zoom)
        else:
            placement = place_window(window, width, height, wanted.width, wanted.height, wanted.fit, wanted.zoom)
        if len(self._placements) >= _PLACEMENTS:
            self._placements.clear()  # a region that moves with every frame would fill the cache
        self._placements[width, height, step, roi] = placement
        return placement

    def _window(self, width: int, height: int, step: int, roi: Roi | None) -> CropWindow | TiltedWindow | None:
        """Return the part of a picture that the model gets; None for the whole picture."""
        wanted = self.preprocess
        if roi is not None and roi.corners is not None:
            tilted = TiltedWindow.of(roi.corners, width, height)
            is_middle = wanted.fit is Fit.CENTER_CROP
            return tilted.middle((wanted.width, wanted.height), wanted.zoom) if is_middle else tilted
        if wanted.fit is Fit.CENTER_CROP:
            roi = center_region(roi, width, height, (wanted.width, wanted.height), wanted.zoom)
        return crop_window(roi, width, height, step)

    def _show(self, image: Image, window: CropWindow, step: int, width: int, height: int) -> Image:
        """Cut out, rotate and resize the window to width x height, in the cheaper order."""
        rows = slice(window.top // step, (window.top + window.height) // step)
        columns = slice(window.left // step, (window.left + window.width) // step)
        shown = image[rows, columns]
        if window.rotation == 0:
            return self._resize(shown, width, height)
        if shown.shape[0] * shown.shape[1] <= width * height:
            return self._resize(self._turn(shown, window), width, height)
        if window.is_sideways:
            width, height = height, width
        return self._turn(self._resize(shown, width, height), window)

    def _middle(self, image: Image, placement: Placement, step: int, roi: Roi | None) -> Image:
        """Resize the region of interest, then crop the centre of the result. So the centre is not rounded to whole
        pixels of the picture."""
        if roi is not None and roi.corners is not None:
            tilted = TiltedWindow.of(roi.corners, placement.width, placement.height)
            image = _upright(image, tilted, step)
            return resize_center(image, self.preprocess.width, self.preprocess.height, self.preprocess.zoom)
        window = crop_window(roi, placement.width, placement.height, step)
        if window is not None:
            rows = slice(window.top // step, (window.top + window.height) // step)
            image = image[rows, window.left // step : (window.left + window.width) // step]
            if window.rotation:
                image = cast(Image, cv2.rotate(image, _TURNS[window.rotation]))
        return resize_center(image, self.preprocess.width, self.preprocess.height, self.preprocess.zoom)

    def _turn(self, image: Image, window: CropWindow) -> Image:
        if self._turned.size < image.size:
            self._turned = np.empty(self.preprocess.width * self.preprocess.height * 3, np.uint8)
        height, width = image.shape[:2]
        shape = (width, height, 3) if window.is_sideways else (height, width, 3)
        target = self._turned[: image.size].reshape(shape)
        return cast(Image, cv2.rotate(image, _TURNS[window.rotation], target))

    def _resize(self, image: Image, width: int, height: int) -> Image:
        if image.shape[:2] == (height, width):
            return image
        target = self._scaled[: height * width * 3].reshape(height, width, 3)
        # OpenCV allocates another array if it cannot use `target`, so the returned array is used.
        return cast(Image, cv2.resize(image, (width, height), target, interpolation=cv2.INTER_LINEAR))

    def _fill_planes(self, planes: Array, rows: slice, columns: slice) -> None:
        for plane, value in zip(planes, self._values.pad, strict=True):
            plane[: rows.start] = value
            plane[rows.stop :] = value
            plane[rows, : columns.start] = value
            plane[rows, columns.stop :] = value

    def _fill_pixels(self, out: Array, rows: slice, columns: slice) -> None:
        # Whole rows are copied: assigning three values pixel by pixel would take longer than everything else.
        out[: rows.start] = self._pad_row
        out[rows.stop :] = self._pad_row
        out[rows, : columns.start] = self._pad_row[: columns.start]
        out[rows, columns.stop :] = self._pad_row[columns.stop :]

    def _write_planes(self, scaled: Image, planes: Array) -> None:
        channels, height, width = planes.shape
        if self.preprocess.datatype == "UINT8":
            self._separate(scaled, list(cast(npt.NDArray[np.uint8], planes)))
            return
        buffers = list(self._ordered[: channels * height * width].reshape(channels, height, width))
        self._separate(scaled, buffers)
        for channel in range(channels):
            self._values.convert(buffers[channel], planes[channel], channel)

    def _separate(self, scaled: Image, planes: list[Plane]) -> None:
        """Write the channels into `planes`, in the model's channel order."""
        match self.preprocess.color:
            case "gray":
                cv2.cvtColor(scaled, cv2.COLOR_BGR2GRAY, planes[0])
            case "rgb":
                cv2.split(scaled, planes[::-1])
            case "bgr":
                cv2.split(scaled, planes)

    def _write_pixels(self, scaled: Image, target: Array) -> None:
        if self.preprocess.datatype == "UINT8":
            if self.preprocess.color == "rgb":
                cv2.cvtColor(scaled, cv2.COLOR_BGR2RGB, cast(Image, target))
            else:
                np.copyto(target, scaled)
            return
        if self.preprocess.color == "rgb":
            ordered = self._ordered[: scaled.size].reshape(scaled.shape)
            scaled = cast(Image, cv2.cvtColor(scaled, cv2.COLOR_BGR2RGB, ordered))
        self._values.look_up(scaled, target)


def _upright(image: Image, window: TiltedWindow, step: int) -> Image:
    """Cut a tilted window out of a picture that was decoded at 1/step of its size, and return the window upright.
    Pixels of the window outside the picture repeat the picture's edge."""
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    found = cv2.warpAffine(image, window.sampling(step), window.turned, flags=flags, borderMode=cv2.BORDER_REPLICATE)
    return cast(Image, found)


class _Values:
    """Computes (pixel * scale - mean) / std with one multiply and one add, or with one lookup table."""

    def __init__(self, preprocess: Preprocess, dtype: np.dtype[np.generic]) -> None:
        mean, std = np.array(preprocess.mean), np.array(preprocess.std)
        raw = preprocess.datatype in UNSCALED
        factor = np.ones(3) if raw else preprocess.scale / std
        offset = np.zeros(3) if raw else -mean / std
        table = np.arange(256)[:, None] * factor + offset
        self.pad: Array = table[preprocess.pad].astype(dtype)[: preprocess.channels]
        self._factor = factor.astype(np.float32)
        self._offset = offset.astype(np.float32)
        self._half = dtype == np.float16
        # cv2.LUT copies table entries without interpreting them, so FP16 entries pass as 16-bit integers.
        self._table = _as_uint16(np.ascontiguousarray(table.astype(dtype)[None]))
        self._columns = [np.ascontiguousarray(self._table[:, :, c]) for c in range(3)]

    def convert(self, plane: Plane, target: Array, channel: int) -> None:
        """Convert one uint8 plane into one plane of the tensor."""
        if self._half:
            cv2.LUT(plane, self._columns[channel], _as_uint16(target))
            return
        # Copying first, then multiplying in place, is faster than a multiply that converts.
        np.copyto(target, plane)
        np.multiply(target, self._factor[channel], out=target)
        if self._offset[channel]:
            np.add(target, self._offset[channel], out=target)

    def look_up(self, pixels: Image, target: Array) -> None:
        """Convert interleaved uint8 pixels to interleaved values."""
        cv2.LUT(pixels, self._table, _as_uint16(target))


def _as_uint16(values: Array) -> Any:
    return values.view(np.uint16) if values.dtype == np.float16 else values


_Floats = npt.NDArray[np.float32]
_ROWS = 16  # rows of the result per matrix product; with more rows, most weights of a product would be zero


class _Band(NamedTuple):
    """Weights for some rows of a resized picture. Rows `first` to `last` - 1 of the result are the product of `weights`
    and the source rows that begin at `start`."""

    first: int
    last: int
    start: int
    weights: _Floats  # [last - first, rows of the source]


def resize_center(picture: Image, width: int, height: int, zoom: float = 1.0) -> Image:
    """Resize a picture, uint8 [h, w, 3], so that the picture covers `zoom` times width x height, and crop the centre to
    width x height. A `zoom` below 1 counts as 1."""
    zoom = max(zoom, 1.0)
    down, across = picture.shape[:2]
    ratio = max(round(width * zoom) / across, round(height * zoom) / down)
    full_w, full_h = max(width, int(across * ratio + 1e-9)), max(height, int(down * ratio + 1e-9))
    left, top = round((full_w - width) / 2), round((full_h - height) / 2)
    # Columns first, rounded in between, as Pillow does. Only the rows that the second pass needs are computed.
    bands = _bands(down, full_h, top, height)
    rows = slice(bands[0].start, bands[-1].start + bands[-1].weights.shape[1])
    turned = np.ascontiguousarray(picture[rows].transpose(1, 0, 2))
    narrow = _rounded(_applied(_bands(across, full_w, left, width), turned))
    return _rounded(_applied(bands, np.ascontiguousarray(narrow.transpose(1, 0, 2)), rows.start))


def _applied(bands: tuple[_Band, ...], source: Image, skipped: int = 0) -> _Floats:
    """Resize the first axis of a picture. `source` lacks the first `skipped` rows of the picture."""
    flat = source.reshape(len(source), -1)
    found = np.empty((bands[-1].last, flat.shape[1]), np.float32)
    for first, last, start, weights in bands:
        begin = start - skipped
        np.matmul(weights, flat[begin : begin + weights.shape[1]].astype(np.float32), out=found[first:last])
    return found.reshape(-1, *source.shape[1:])


def _rounded(values: _Floats) -> Image:
    pixels: Image = np.clip(np.floor(values + np.float32(0.5)), 0, 255).astype(np.uint8)
    return pixels


@lru_cache(64)  # sizes of several cameras
def _bands(size: int, resized: int, skipped: int, kept: int) -> tuple[_Band, ...]:
    """Return the weights for resizing `size` pixels to `resized` pixels. The weights leave out the first `skipped`
    pixels of the result, and compute only the next `kept` pixels."""
    scale = size / resized
    support = max(scale, 1.0)
    centres = (np.arange(skipped, skipped + kept) + 0.5) * scale
    starts = np.maximum((centres - support + 0.5).astype(int), 0)
    ends = np.minimum((centres + support + 0.5).astype(int), size)
    bands = []
    for first in range(0, kept, _ROWS):
        last = min(first + _ROWS, kept)
        start, end = int(starts[first]), int(ends[last - 1])
        at = np.arange(start, end)
        weights = np.maximum(1 - np.abs((at - centres[first:last, None] + 0.5) / support), 0)
        weights[(at < starts[first:last, None]) | (at >= ends[first:last, None])] = 0
        weights /= weights.sum(axis=1, keepdims=True)
        bands.append(_Band(first, last, start, weights.astype(np.float32)))
    return tuple(bands)
