"""NanoDet-Plus and NanoDet, as their repository exports them.

Input `data` [1, 3, H, W] FP32. One output, `output` [1, A, C + 4 * bins], a row for each grid cell. A row has the score
of each class after the sigmoid, and the distances from the cell's point to left, top, right and bottom. Each distance
is in units of cells, as the logits of a distribution over 0..bins-1. No NMS.

- NanoDet-Plus: strides 8, 16, 32, 64, 8 bins; the point is the upper left corner of the cell. Pictures are stretched.
- NanoDet (v0.x): strides 8, 16, 32, 8 or 11 bins; the point is the centre. Pictures are letterboxed, padded with 0.
  Exports of these versions have an output for each stride instead, `cls_pred_stride_8`, ... [1, cells, C], then
  `dis_pred_stride_8`, ... [1, cells, 4 * bins]; older exports have the same outputs with other names.

Both get BGR, normalised as for ImageNet. If there is only one output, the file does not say how many of its columns are
classes. NanoDet-Plus has 8 bins in all configurations, so all but 32 columns are classes. For NanoDet, the number of
classes is the number of names. Without names, 112 or 124 columns mean the 80 classes of COCO.

Source: repository RangiLyu/nanodet (commit be9b4a9): `tools/export_onnx.py`, `NanoDetPlusHead`, `NanoDetHead`,
`GFLHead.get_bboxes`, `config`; nanodet_m.onnx in hpc203/nanodet-opncv-dnn-cpp-python and nanodet.onnx in
chrysanthemum-boy/nanodet. The EfficientNet-Lite models use other normalisation; set `preprocess.mean=127/255` and
`preprocess.std=128/255`.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from edged.vision import settings as keys
from edged.vision.detections import Detections
from edged.vision.families.contract import Claim, Evidence, Family, Feed, Reading, undecided
from edged.vision.families.decoding import Outputs, Thresholds, best_hits, picture_tensor, to_detections
from edged.vision.families.grids import around, count_cells, decode_tables, expected, locate, tables_of
from edged.vision.placement import Fit, Placement
from edged.vision.preprocess import IMAGENET_MEAN, IMAGENET_STD
from edged.vision.signatures import patterns

_BGR_MEAN, _BGR_STD = IMAGENET_MEAN[::-1], IMAGENET_STD[::-1]
_INPUT, _OUTPUT = "data", "output"
_COCO = 80


class NanoDetPlus(Family, frozen=True):
    """NanoDet-Plus."""

    name = "nanodet-plus"
    signatures = patterns("output? [N, cells64, classes+32]")
    feed: ClassVar[Feed] = {"color": "bgr", "mean": _BGR_MEAN, "std": _BGR_STD}
    thresholds = Thresholds(score=0.35, iou=0.6)
    strides: ClassVar[tuple[int, ...]] = (8, 16, 32, 64)
    bins: ClassVar[tuple[int, ...]] = (8,)
    point: ClassVar[float] = 0.0  # offset from the cell's upper left corner in x and y, in cells

    def decode(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        """See `Family.decode`. A row gives a detection for each class above the threshold."""
        classes, bins = self.reading.classes, int(self.reading.form)
        name, *others = self.reading.outputs
        if others:
            how = self.size, self.strides, self.point, thresholds.score
            found = decode_tables(outputs, index, self.reading.outputs, (classes, bins), *how)
            return to_detections(*found, placement, thresholds, needs_nms=True)
        cells = count_cells(self.size, self.strides)
        table = picture_tensor(outputs, name, index, cells, classes + 4 * bins)
        rows, class_ids = best_hits(table[:, :classes], thresholds.score)
        corner, stride = locate(rows, self.size, self.strides)
        sides = expected(table[rows, classes:].astype(np.float32))
        boxes = around(corner + np.float32(self.point), sides) * stride
        return to_detections(boxes, table[rows, class_ids], class_ids, placement, thresholds, needs_nms=True)

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        """See `Opened.claim`. The form is the number of bins."""
        shape = tables_of(evidence.outputs, evidence.size, cls.strides)
        if shape is not None:
            return Claim(cls.name, reason, Reading(evidence.output_names, str(shape[1])), shape[0])
        output = evidence.table(1 + 4 * cls.bins[0])
        if output is None or (isinstance(output.shape[1], int) and output.shape[1] != evidence.cells(cls.strides)):
            return None
        columns = output.shape[2]
        if not isinstance(columns, int):
            return None
        names = keys.words(evidence.settings, "names") or evidence.metadata.names
        bins = cls._bins(columns, len(names))
        if bins is None:
            counts = " or ".join(f"{columns - 4 * each} ({each} bins)" for each in cls.bins if columns > 4 * each)
            return Claim(None, f"{reason}, but the number of classes is unknown: set names to a list of {counts} names")
        return Claim(cls.name, reason, Reading((output.name,), str(bins)), columns - 4 * bins)

    @classmethod
    def _bins(cls, columns: int, names: int) -> int | None:
        if len(cls.bins) == 1:
            return cls.bins[0]
        return next((bins for bins in cls.bins if columns - 4 * bins == (names or _COCO)), None)

    @classmethod
    def by_names(cls, evidence: Evidence) -> Claim | None:
        """Claim a model if its tensors have the names that the exporter gives, and a row for each cell."""
        output = evidence.only_output
        if output is None or output.name != _OUTPUT or evidence.picture.name != _INPUT:
            return None
        if len(output.shape) != 3 or output.shape[1] != evidence.cells(cls.strides):
            return None
        return cls.claim(evidence, f"tensors {_INPUT} and {_OUTPUT} of a {cls.name} export, a row for each cell")


class NanoDet(NanoDetPlus, frozen=True):
    """NanoDet before NanoDet-Plus."""

    name = "nanodet"
    signatures = patterns(
        *(f"output? [N, cells, classes+{sides}]" for sides in (32, 44)),
        *(
            ", ".join(f"[N, cells/{stride}, {columns}]" for columns in ("classes", sides) for stride in (8, 16, 32))
            for sides in (32, 44)
        ),
    )
    feed: ClassVar[Feed] = {
        "color": "bgr",
        "fit": Fit.LETTERBOX,
        "pad": 0,
        "mean": _BGR_MEAN,
        "std": _BGR_STD,
    }
    strides: ClassVar[tuple[int, ...]] = (8, 16, 32)
    bins: ClassVar[tuple[int, ...]] = (8, 11)
    point: ClassVar[float] = 0.5

    @classmethod
    def by_names(cls, evidence: Evidence) -> Claim | None:
        """Claim a model if its tensors have the names that the exporter gives. The model can have one output, or two
        outputs for each stride."""
        names = tuple(f"{kind}_pred_stride_{stride}" for kind in ("cls", "dis") for stride in cls.strides)
        if evidence.output_names == names:
            return cls.claim(evidence, f"names of a NanoDet export ({names[0]}, ...)")
        return super().by_names(evidence)

    @classmethod
    def by_shape(cls, evidence: Evidence) -> Claim | None:
        """Return an undecided claim that names the family, if the outputs are tables of three grids."""
        shape = tables_of(evidence.outputs, evidence.size, cls.strides)
        if shape is None or shape[1] not in cls.bins:
            return None
        return undecided("tables of scores and distances for three grids, as NanoDet has", cls.name)
