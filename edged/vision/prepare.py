"""Writes a picture into a slice of an input tensor, in as few passes over memory as OpenCV and numpy allow.

Measured for a 1280x720 picture into FP32 [3, 640, 640] on one core: splitting uint8 planes and then
converting each straight into the tensor takes a tenth of `cv2.dnn.blobFromImage` and half of a transposing
numpy multiply, because the reordering moves one byte a value instead of four. The padding is written by
filling, never converted. FP16 has no fast conversion in either library; a table of the 256 possible values
does it in one pass.
"""

from __future__ import annotations

from typing import Any, TypeAlias, cast

import cv2
import numpy as np
import numpy.typing as npt

from edged.tensors import Array, numpy_dtype
from edged.vision.image import Image
from edged.vision.placement import Placement, place
from edged.vision.preprocess import Preprocess

Plane: TypeAlias = npt.NDArray[np.uint8]


class Preparer:
    """Prepares pictures for one input. Every call reuses its buffers: one owner, never two threads."""

    def __init__(self, preprocess: Preprocess) -> None:
        self.preprocess = preprocess
        self._dtype = numpy_dtype(preprocess.datatype)
        self._planar = preprocess.layout == "NCHW" or preprocess.channels == 1
        pixels = preprocess.width * preprocess.height
        self._scaled = np.empty(pixels * 3, np.uint8)
        self._ordered = np.empty(pixels * 3, np.uint8)
        self._values = _Values(preprocess, self._dtype)
        self._pad_row = np.tile(self._values.pad, (preprocess.width, 1))
        self._placement: Placement | None = None

    def prepare(self, image: Image, out: Array) -> Placement:
        """Write `image`, BGR uint8 [h, w, 3], into all of `out`; returns where it lies.

        `out` is one picture of the batch: [C, H, W] or [H, W, C] as the layout says, in the input's dtype, C
        contiguous. ValueError where it is not.
        """
        self._check(out)
        placement = self._place(image)
        width, height = placement.inner
        rows = slice(placement.pad_y, placement.pad_y + height)
        columns = slice(placement.pad_x, placement.pad_x + width)
        scaled = self._resize(image, width, height)
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
                f"the target is {out.dtype}{list(out.shape)}, wanted a contiguous"
                f" {self._dtype}{list(self.preprocess.shape)}"
            )

    def _place(self, image: Image) -> Placement:
        height, width = image.shape[:2]
        last = self._placement
        if last is None or last.width != width or last.height != height:
            wanted = self.preprocess
            last = self._placement = place(width, height, wanted.width, wanted.height, wanted.fit)
        return last

    def _resize(self, image: Image, width: int, height: int) -> Image:
        if image.shape[:2] == (height, width):
            return image
        target = self._scaled[: height * width * 3].reshape(height, width, 3)
        # OpenCV quietly allocates another result where it cannot use the given one, so take what it returns.
        return cast(Image, cv2.resize(image, (width, height), target, interpolation=cv2.INTER_LINEAR))

    def _fill_planes(self, planes: Array, rows: slice, columns: slice) -> None:
        for plane, value in zip(planes, self._values.pad, strict=True):
            plane[: rows.start] = value
            plane[rows.stop :] = value
            plane[rows, : columns.start] = value
            plane[rows, columns.stop :] = value

    def _fill_pixels(self, out: Array, rows: slice, columns: slice) -> None:
        # Whole rows are copied: assigning three values pixel by pixel would take longer than all the rest.
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
        """Fill the given planes, in the model's channel order, in place."""
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


class _Values:
    """The arithmetic of (pixel * scale - mean) / std, folded into one multiply and one add, or one table."""

    def __init__(self, preprocess: Preprocess, dtype: np.dtype[np.generic]) -> None:
        mean, std = np.array(preprocess.mean), np.array(preprocess.std)
        raw = preprocess.datatype == "UINT8"
        factor = np.ones(3) if raw else preprocess.scale / std
        offset = np.zeros(3) if raw else -mean / std
        table = np.arange(256)[:, None] * factor + offset
        self.pad: Array = table[preprocess.pad].astype(dtype)[: preprocess.channels]
        self._factor = factor.astype(np.float32)
        self._offset = offset.astype(np.float32)
        self._half = dtype == np.float16
        # cv2.LUT moves table entries without reading them, so FP16 entries travel as 16-bit integers.
        self._table = _as_moved(np.ascontiguousarray(table.astype(dtype)[None]))
        self._columns = [np.ascontiguousarray(self._table[:, :, c]) for c in range(3)]

    def convert(self, plane: Plane, target: Array, channel: int) -> None:
        """One uint8 plane into one plane of the tensor."""
        if self._half:
            cv2.LUT(plane, self._columns[channel], _as_moved(target))
            return
        # Copying first, then multiplying in place, is faster than a multiply that converts as it goes.
        np.copyto(target, plane)
        np.multiply(target, self._factor[channel], out=target)
        if self._offset[channel]:
            np.add(target, self._offset[channel], out=target)

    def look_up(self, pixels: Image, target: Array) -> None:
        """Interleaved uint8 pixels into interleaved values."""
        cv2.LUT(pixels, self._table, _as_moved(target))


def _as_moved(values: Array) -> Any:
    return values.view(np.uint16) if values.dtype == np.float16 else values
