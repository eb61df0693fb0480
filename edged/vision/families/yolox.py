"""YOLOX exports.

One output, [N, A, 5 + classes]: one row for each of the A grid cells at strides 8, 16, 32, with a box, objectness and
one score per class, both after the sigmoid; without NMS. By default the box is in units of its cell: centre = (xy +
cell) * stride, size = exp(wh) * stride. With `--decode_in_inference` it is cx, cy, w, h in input pixels, recognised by
an Exp in the graph; the setting `decode.boxes` (`grid` or `pixels`) overrides this. Source: `YOLOXHead` and
`tools/export_onnx.py` of its repository.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec
import numpy as np
import numpy.typing as npt

from edged.errors import ConfigError
from edged.tensors import Array, TensorSpec
from edged.vision import settings as keys
from edged.vision.detections import Detections
from edged.vision.families.candidates import Floats, corners, to_detections
from edged.vision.families.contract import Claim, Decoder, Evidence, FamilySpec, Reading, Thresholds, require, undecided
from edged.vision.families.outputs import AT_LEAST_ONE, picture_tensor
from edged.vision.families.yolov5 import certain, rated
from edged.vision.placement import Fit, Placement
from edged.vision.preprocess import Preprocess

NAME = "yolox"

_STRIDES = (8, 16, 32)
_GRID, _PIXELS = "grid", "pixels"


class YoloX(Decoder, frozen=True):
    name: ClassVar[str] = NAME

    def decode(
        self, outputs: Mapping[str, Array], index: int, placement: Placement, thresholds: Thresholds
    ) -> Detections:
        """See `Family.decode`. Each row counts once, with its best class."""
        is_grid = self.reading.form == _GRID
        cells = sum(across * down for across, down, _ in self._grids()) if is_grid else AT_LEAST_ONE
        answer = picture_tensor(outputs, self.reading.outputs[0], index, cells, self.reading.width(5))
        rows, table = certain(answer, thresholds)
        boxes = self._in_pixels(rows, table[:, :4]) if is_grid else table[:, :4]
        scores, class_ids = rated(table)
        return to_detections(corners(boxes), scores, class_ids, placement, thresholds, needs_nms=True)

    def _grids(self) -> list[tuple[int, int, int]]:
        """Columns, rows and cell size in pixels of each grid; partial cells at the edge count."""
        width, height = self.preprocess.width, self.preprocess.height
        return [(-(-width // stride), -(-height // stride), stride) for stride in _STRIDES]

    def _in_pixels(self, rows: npt.NDArray[np.intp], boxes: Floats) -> Floats:
        """Convert boxes in units of their cells to cx, cy, w, h in input pixels."""
        cells, strides = np.empty((len(rows), 2), np.float32), np.empty((len(rows), 1), np.float32)
        first = 0
        for across, down, stride in self._grids():
            here = (rows >= first) & (rows < first + across * down)
            place = rows[here] - first
            cells[here, 0], cells[here, 1], strides[here] = place % across, place // across, stride
            first += across * down
        with np.errstate(over="ignore", invalid="ignore"):  # infinite sizes are dropped later
            sizes = np.exp(boxes[:, 2:]) * strides
        return np.concatenate(((boxes[:, :2] + cells) * strides, sizes), axis=1, dtype=np.float32)


def feed(plain: Preprocess) -> Preprocess:
    """BGR in 0..255, in the top left corner, padded with 114."""
    color = plain.color if plain.channels == 1 else "bgr"
    return msgspec.structs.replace(plain, fit=Fit.TOP_LEFT, pad=114, scale=1.0, color=color)


def by_setting(evidence: Evidence) -> Claim:
    output = _table(evidence)
    require(evidence, NAME, "one output [N, cells, 5+classes]", output is not None)
    assert output is not None
    cells = evidence.cells(_STRIDES)
    form = _form(evidence)
    if form is None:
        raise ConfigError(
            f"family={NAME} cannot determine the box format of {output.name}; set decode.boxes=grid or =pixels"
        )
    if form == _GRID and cells is not None and isinstance(output.shape[1], int) and output.shape[1] != cells:
        raise ConfigError(
            f"family={NAME} needs {cells} rows for this input, {output.name} has {output.shape[1]};"
            " set decode.boxes=pixels or family=raw"
        )
    return _claim(f"the setting family={NAME}", output, form)


def by_shape(evidence: Evidence) -> Claim | None:
    """One row per grid cell, as YOLOv6 and, with six columns, DeepStream-Yolo have, too: names distinguish them."""
    output, cells = _table(evidence), evidence.cells(_STRIDES)
    if output is None or evidence.picture is None or cells is None or output.shape[1] != cells:
        return None
    columns = output.shape[2]
    if not isinstance(columns, int) or columns == cells:
        return None
    what = f"{output.name} has one row per grid cell"
    if output.name != "output" or (columns == 6 and evidence.picture.name != "images"):
        six = ("deepstream-yolo",) if columns == 6 else ()
        return undecided(f"{what}, as YOLOX and others have", NAME, "yolov5", *six)
    form = _form(evidence)
    if form is None:
        return Claim(None, f"{what}, a YOLOX export: set decode.boxes=grid, decode.boxes=pixels or family=raw")
    how = "boxes to be decoded" if form == _GRID else "decoded boxes"
    return _claim(f"row arithmetic: {what}, a YOLOX export with {how}", output, form)


def _form(evidence: Evidence) -> str | None:
    chosen = keys.choice(evidence.settings, "decode.boxes", (_GRID, _PIXELS))
    if chosen is not None or evidence.operators is None:
        return chosen
    return _PIXELS if "Exp" in evidence.operators else _GRID


def _table(evidence: Evidence) -> TensorSpec | None:
    output = evidence.only_output
    if output is None or len(output.shape) != 3:
        return None
    columns = output.shape[2]
    return output if isinstance(columns, str) or columns >= 6 else None


def _claim(reason: str, output: TensorSpec, form: str) -> Claim:
    columns = output.shape[2]
    classes = columns - 5 if isinstance(columns, int) else None
    return Claim(NAME, reason, "", classes, Reading((output.name,), form))


SPEC = FamilySpec(by_setting, feed, YoloX)
