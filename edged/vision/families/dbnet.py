"""DB, a detector of lines of text: PP-OCR's detectors, DBNet, docTR's db_resnet50 and others.

Sources: PaddlePaddle/PaddleOCR: tools/infer/predict_det.py (commit 026f96b) and ppocr/postprocess/db_postprocess.py
(commit 06f5904). The defaults are those of version 2.7: threshold 0.3 for pixels and 0.6 for lines, enlargement 1.5,
and no dilation. The score of a line is the mean probability in its rectangle. The package rapidocr instead uses the
threshold 0.5 for lines and the enlargement 1.6, and dilates the map. rapidocr normalises pixels with mean 0.5 and
deviation 0.5. On PP-OCRv6_det_small.onnx of rapidocr 3.10.0 and the PP-OCRv4 model of rapidocr-onnxruntime 1.4.4,
edged's lines and scores equal those of rapidocr's postprocessing, and corners differ by less than two pixels. docTR:
models/detection/differentiable_binarization/pytorch.py of mindee/doctr (commit 0375ee8); its models return logits and
were not tried.

Input [N, 3, H, W] FP32, BGR; sides are multiples of 32. Pixels are normalised as for ImageNet, but, as in the authors'
code, with mean and deviation of red and blue exchanged. Output [N, 1, H, W] FP32: the probability that a pixel belongs
to the inner part of a line. Each connected part above 0.3 is replaced by the smallest rectangle around it, which is
then enlarged by area * unclip / perimeter on each side.

The authors enlarge a polygon with round corners in whole pixels (pyclipper) and take the smallest rectangle around the
polygon. edged enlarges the rectangle itself; the sides differ from the authors' by at most a pixel of the input. The
authors round the corners to pixels of the picture, edged does not. The authors shrink a picture whose longer side is
above 960 pixels to 960; edged fits all pictures into one size, by default 960 x 960.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from edged.vision import settings as keys
from edged.vision.detections import Detections
from edged.vision.families.contract import Claim, Evidence, Family, Feed, Reading, may_be
from edged.vision.families.decoding import Floats, Outputs, Thresholds, picture_tensor, sigmoid, with_area
from edged.vision.nms import best_first, corners_of, hull_of
from edged.vision.placement import Fit, Placement
from edged.vision.preprocess import IMAGENET_MEAN, IMAGENET_STD
from edged.vision.signatures import patterns

_INSIDE = 0.3  # probability above which a pixel is text
_UNCLIP = 1.5
_MOST = 1000  # parts that are examined, as in the source
_LEAST_PART, _LEAST_BOX = 3, 5  # input pixels of the shorter side, before and after the enlargement
_LEAST_SIDE = 4  # pixels of the picture
_MULTIPLE = 32  # of the input's sides
_LOGITS = "logits"


class DbNet(Family, frozen=True):
    """DB; see the module. The corners of a detection are those of the enlarged rectangle, clockwise from the upper
    left."""

    name = "dbnet"
    signatures = patterns("x -> [N, 1, H, W]", "out_map? [N, 1, H, W]")
    feed: ClassVar[Feed] = {
        "fit": Fit.TOP_LEFT,
        "pad": 0,
        "color": "bgr",
        "mean": IMAGENET_MEAN,
        "std": IMAGENET_STD,
    }
    thresholds = Thresholds(score=0.6, max_detections=_MOST)
    open_size = (960, 960)
    may_find_nothing = True

    def decode(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        """See `Family.decode`. The detections have corners. Boxes are the axis-aligned bounding boxes of the corners,
        cut to the picture."""
        width, height = self.size
        chances = picture_tensor(outputs, self.reading.outputs[0], index, 1, height, width)[0]
        chances = np.ascontiguousarray(chances, np.float32)
        parts = _parts(sigmoid(chances) if self.reading.form == _LOGITS else chances, thresholds.score)
        kept = best_first(parts.scores, thresholds.max_detections)
        rectangles = _enlarged(parts.rectangles[kept], self.reading.unclip)
        corners = placement.points_to_original(_clockwise(corners_of(rectangles)))
        x1, y1, x2, y2 = placement.edges
        boxes = np.clip(hull_of(corners), np.array((x1, y1) * 2), np.array((x2, y2) * 2), dtype=np.float32)
        found = Detections.of(boxes, parts.scores[kept], np.zeros(len(kept)), corners=corners)
        sides = np.linalg.norm(corners[:, (1, 3)] - corners[:, :1], axis=2).min(axis=1)
        large = (rectangles[:, 2:4].min(axis=1) >= _LEAST_BOX) & (sides >= _LEAST_SIDE)
        return found.select(np.intersect1d(np.flatnonzero(large), with_area(boxes)))

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        output, size = evidence.only_output, evidence.size
        if output is None or not may_be(output.shape, None, 1, *(reversed(size) if size else (None, None))):
            return None
        if size is not None and any(side % _MULTIPLE for side in size):
            if None not in (evidence.picture.width, evidence.picture.height):
                return None  # the model fixes the size
            what = f"an input of {size[0]} x {size[1]}: both sides must be multiples of {_MULTIPLE}"
            return Claim(None, f"a DB detector of text cannot have {what}; set preprocess.width and preprocess.height")
        unclip = keys.number(evidence.settings, "decode.unclip", 0, 10)
        is_logits = keys.choice(evidence.settings, "decode.activation", ("none", "sigmoid")) == "sigmoid"
        form = _LOGITS if is_logits else ""
        reading = Reading((output.name,), form, unclip=_UNCLIP if unclip is None else unclip)
        return Claim(cls.name, reason, reading, 1, names=("text",))

    @classmethod
    def by_names(cls, evidence: Evidence) -> Claim | None:
        """Claim PP-OCR's detectors: one map after transposed convolutions and a sigmoid. No other model of Paddle is
        known to have these operators."""
        output = evidence.only_output
        if output is None or evidence.picture.name != "x" or "ConvTranspose" not in (evidence.operators or ()):
            return None
        if (evidence.heads or {}).get(output.name) != "Sigmoid":
            return None
        return cls.claim(evidence, "an input x, and a map of the input's size from a ConvTranspose and a Sigmoid")


class _Parts(NamedTuple):
    """n parts of a map. `rectangles`, float32 [n, 5], have cx, cy, w, h in pixels and the angle in radians. `scores`
    are [n]."""

    rectangles: Floats
    scores: Floats


def _parts(chances: Floats, least: float) -> _Parts:
    """Return the smallest rectangle around each connected part of a map [H, W]. Leave out rectangles in which the mean
    probability is at most `least`. The outline of a hole counts as a part, as in the source."""
    import cv2  # imported here, because the daemon imports families without decoding

    rectangles, scores = [], []
    contours, _ = cv2.findContours((chances > _INSIDE).astype(np.uint8), cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    for contour in contours[:_MOST]:
        (x, y), (w, h), degrees = rectangle = cv2.minAreaRect(contour)
        if min(w, h) < _LEAST_PART:
            continue
        outline = cv2.boxPoints(rectangle)
        left, top = np.maximum(np.floor(outline.min(axis=0)), 0).astype(int)
        right, bottom = np.ceil(outline.max(axis=0)).astype(int) + 1
        around = chances[top:bottom, left:right]
        mask = np.zeros(around.shape, np.uint8)
        cv2.fillPoly(mask, [(outline - np.array((left, top), np.float32)).astype(np.int32)], 1)
        score = cv2.mean(around, mask)[0]
        if least < score < np.inf:  # false for NaN
            rectangles.append((x, y, w, h, np.deg2rad(degrees)))
            scores.append(score)
    return _Parts(np.array(rectangles, np.float32).reshape(-1, 5), np.array(scores, np.float32))


def _enlarged(rectangles: Floats, unclip: float) -> Floats:
    """Return new rectangles with each side moved outwards by area * unclip / perimeter."""
    sides = rectangles[:, 2:4]
    by = sides.prod(axis=1) * np.float32(unclip) / sides.sum(axis=1)  # on both sides
    return np.concatenate((rectangles[:, :2], sides + by[:, None], rectangles[:, 4:]), axis=1)


def _clockwise(corners: Floats) -> Floats:
    """Order the corners [n, 4, 2] of rectangles clockwise. The first corner is the upper one of the two leftmost."""
    by_x = np.take_along_axis(corners, np.argsort(corners[..., :1], axis=1, kind="stable"), axis=1)
    pairs = by_x.reshape(-1, 2, 2, 2)  # rectangle, left or right, corner, axis
    pairs = np.take_along_axis(pairs, np.argsort(pairs[..., 1:], axis=2, kind="stable"), axis=2)
    ordered: Floats = pairs[:, (0, 1, 1, 0), (0, 0, 1, 1)]
    return ordered
