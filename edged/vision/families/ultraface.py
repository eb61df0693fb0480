"""UltraFace: the Ultra-Light-Fast-Generic-Face-Detector-1MB, its versions slim and RFB.

Source: Linzaer/Ultra-Light-Fast-Generic-Face-Detector-1MB (commit dffdddd): detect_imgs_onnx.py, convert_to_onnx.py,
vision/ssd/config/fd_config.py and vision/utils/box_utils.py, and the files in models/onnx and masked_face/pretrained.

Input `input` [N, 3, H, W] FP32, RGB, (pixel - 127) / 128. The outputs, FP32, have a row for each prior box: `scores`
[N, P, classes] after the softmax, of which class 0 is the background, and `boxes` [N, P, 4]. Boxes have one of two
forms: corners, xyxy in 0..1 of the input, or offsets from the prior boxes, with the variances 0.1 and 0.2. The files
named `simplified` and `without_postprocessing` have offsets.

The grids of prior boxes have strides 8, 16, 32 and 64, and for each cell three, two, two and three squares. The grids
cover the input exactly, even if the sides of the input are not multiples of the stride. The repository's script for
OpenCV always places the cells one stride apart. So for such an input, the script's boxes differ from the boxes of edged
and of models with corners. On the files above, faces and boxes equal those of the source.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from edged.tensors import Array
from edged.vision import settings as keys
from edged.vision.detections import Detections
from edged.vision.families.contract import Claim, Evidence, Feed, Reading, count_classes, may_be
from edged.vision.families.decoding import Floats, Outputs, Rows, Thresholds, corners, picture_tensor
from edged.vision.families.grids import cells_at
from edged.vision.families.ssd import Ssd, priors_reading
from edged.vision.placement import Placement
from edged.vision.signatures import patterns

_SQUARES = {8: (10, 16, 24), 16: (32, 48), 32: (64, 96), 64: (128, 192, 256)}  # sides in pixels, by stride
_CENTRE_VARIANCE, _SIZE_VARIANCE = np.float32(0.1), np.float32(0.2)
_CORNERS, _OFFSETS = "corners", "offsets"


class UltraFace(Ssd, frozen=True):
    """UltraFace; see the module. An Exp in the graph shows that boxes are corners, because the conversion of offsets to
    corners needs an Exp. The setting `decode.boxes` (`corners` or `offsets`) overrides this.

    As in the source, pictures are stretched. The source's NMS considers only the 200 best boxes of a class; edged's NMS
    considers the 4096 best boxes.
    """

    name = "ultraface"
    signatures = patterns("scores? [N, P, slots], boxes? [N, P, 4]")
    feed: ClassVar[Feed] = {"scale": 1.0, "mean": (127.0, 127.0, 127.0), "std": (128.0, 128.0, 128.0)}
    thresholds = Thresholds(score=0.7, iou=0.3)

    def decode(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        picture_tensor(outputs, self.reading.outputs[1], index, _count_priors(*self.size), 4)
        return super().decode(outputs, index, placement, thresholds)

    def prior_boxes(self, boxes: Array, priors: Rows) -> Floats:
        if self.reading.form == _CORNERS:
            return self.in_pixels(boxes)
        centres, squares = np.empty((len(priors), 2), np.float32), np.empty((len(priors), 2), np.float32)
        first = 0
        for stride, sides in _SQUARES.items():
            across, down = self.grid(stride)
            here = (priors >= first) & (priors < first + across * down * len(sides))
            rows = priors[here] - first
            grid = np.array((across, down), np.float32)
            centres[here] = (cells_at(rows, across, len(sides)) + np.float32(0.5)) / grid
            squares[here] = np.array(sides, np.float32)[rows % len(sides), None] / np.array(self.size, np.float32)
            first += across * down * len(sides)
        squares = np.minimum(squares, 1)
        offsets = boxes.astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # values that are not finite are dropped later
            middle = offsets[:, :2] * _CENTRE_VARIANCE * squares + centres
            extent = np.exp(offsets[:, 2:] * _SIZE_VARIANCE) * squares
            return self.in_pixels(corners(np.concatenate((middle, extent), axis=1)))

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        found = priors_reading(evidence)
        if found is None or evidence.size is None:
            return None
        shapes = {spec.name: spec.shape for spec in evidence.outputs}
        scores, boxes = (shapes[name] for name in found.outputs)
        rows = _count_priors(*evidence.size)
        if not may_be(scores, None, rows, None) or not may_be(boxes, None, rows, 4):
            return None
        form = keys.choice(evidence.settings, "decode.boxes", (_CORNERS, _OFFSETS))
        if form is None and evidence.operators is not None:
            form = _CORNERS if "Exp" in evidence.operators else _OFFSETS
        if form is None:
            formats = "set decode.boxes=corners, decode.boxes=offsets or family=raw"
            return Claim(None, f"{reason}, but the box format is unknown: {formats}")
        slots = count_classes(scores[2])
        names = ("background", "face") if slots == 2 else ()
        reading = Reading(found.outputs, form)
        return Claim(cls.name, f"{reason}; boxes are {form}", reading, slots, background=1, names=names)

    @classmethod
    def by_names(cls, evidence: Evidence) -> Claim | None:
        """Claim a model by the number of prior boxes. At the same input size, other models have another number."""
        if set(evidence.output_names) != {"scores", "boxes"}:
            return None
        if any(isinstance(spec.shape[1], str) for spec in evidence.outputs if len(spec.shape) == 3):
            return None
        return cls.claim(evidence, "scores and boxes with a row for each prior box of UltraFace")


def _count_priors(width: int, height: int) -> int:
    return sum(-(-width // s) * -(-height // s) * len(sides) for s, sides in _SQUARES.items())
