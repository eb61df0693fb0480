"""MoveNet: poses of one person, or of up to six.

Source: pose-detection/src/movenet/detector.ts and constants.ts of tensorflow/tfjs-models (commit 0cfd5e3), and Google's
model card "MoveNet SinglePose". The ONNX files are conversions of the models of TensorFlow Hub with tf2onnx, and have
the same tensors.

Input [N, H, W, 3] INT32, or UINT8 in conversions of TFLite files, RGB, 0..255; the picture lies in the middle, and the
rest is black. Two forms of output, FP32:

- single: [N, 1, 17, 3], y, x and score of COCO's 17 keypoints, y and x in 0..1 of the input.
- multi: [N, 6, 56], a row for each person: 17 times y, x, score; then the box, y1, x1, y2, x2 in 0..1, and its score.

With the single form, the source code crops the next picture to the area around the person. edged decodes each picture,
or its region of interest, separately. No trained model was at hand to verify this family.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from edged.tensors import Array
from edged.vision.detections import Detections
from edged.vision.families.contract import Claim, Evidence, Feed, Reading, may_be, undecided
from edged.vision.families.decoding import Floats, Outputs, Thresholds, picture_tensor, to_keypoint_detections
from edged.vision.families.topdown import TopDown
from edged.vision.placement import Fit, Placement
from edged.vision.preprocess import UNSCALED
from edged.vision.signatures import patterns

_SINGLE, _MULTI = "single", "multi"
_POINTS, _PEOPLE, _COLUMNS = 17, 6, 56


class MoveNet(TopDown, frozen=True):
    """MoveNet; see the module. In the single form, the box of the only detection is the whole picture, as in
    `topdown`."""

    name = "movenet"
    signatures = patterns("[N, 1, 17, 3]", "[N, 6, 56]")
    feed: ClassVar[Feed] = {"fit": Fit.LETTERBOX, "pad": 0, "scale": 1.0}

    def decode(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        """See `Family.decode`. The detections have keypoints."""
        if self.reading.form == _SINGLE:
            return super().decode(outputs, index, placement, thresholds)
        rows = picture_tensor(outputs, self.reading.outputs[0], index, _PEOPLE, _COLUMNS).astype(np.float32)
        points = self._in_pixels(rows[:, : _POINTS * 3].reshape(_PEOPLE, _POINTS, 3))
        boxes = self.in_pixels(rows[:, [52, 51, 54, 53]])
        return to_keypoint_detections(boxes, rows[:, 55], points, placement, thresholds, needs_nms=False)

    def keypoints(self, outputs: Outputs, index: int) -> Floats:
        return self._in_pixels(picture_tensor(outputs, self.reading.outputs[0], index, 1, _POINTS, 3)[0])

    def _in_pixels(self, points: Array) -> Floats:
        """Convert y, x in 0..1 and score to x, y in input pixels and score, [..., 3]."""
        scale = np.array((*self.size, 1), np.float32)
        with np.errstate(over="ignore"):  # infinite values are dropped later
            return points[..., [1, 0, 2]].astype(np.float32) * scale

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        output = evidence.only_output
        if output is None:
            return None
        if may_be(output.shape, None, 1, _POINTS, 3):
            form = _SINGLE
        elif may_be(output.shape, None, _PEOPLE, _COLUMNS):
            form = _MULTI
        else:
            return None
        reading = Reading((output.name,), form, keypoints=(_POINTS, 3), is_list=form == _MULTI)
        return Claim(cls.name, reason, reading, 1, names=("person",))

    @classmethod
    def by_shape(cls, evidence: Evidence) -> Claim | None:
        """Claim a model that takes pixels as integers. For a model that takes floats, return an undecided claim with
        the family, because the model may need another range of values."""
        output = evidence.only_output
        if output is None or evidence.picture.layout != "NHWC" or any(isinstance(dim, str) for dim in output.shape[1:]):
            return None
        claim = cls.claim(evidence, "shapes of MoveNet: pixels [N, H, W, 3], 17 keypoints")
        if claim is None or evidence.picture.datatype in UNSCALED:
            return claim
        what = f"{output.name} has the shape of MoveNet's keypoints, but the range of the input's values is unknown"
        return undecided(what, cls.name)
