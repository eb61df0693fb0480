"""YuNet, a detector of faces with five landmarks.

Sources: `FaceDetectorYN` of OpenCV (modules/objdetect/src/face_detect.cpp, commit 0692bb4); models/face_detection_yunet
of OpenCV's model zoo (demo.py, commit 0b26cfd; yunet.py, commit 10d07c5); tools/yunet2onnx.py of
ShiqiYu/libfacedetection.train (commit 0047ac2), whose yunet_s_640_640.onnx is byte for byte the zoo's
face_detection_yunet_2023mar.onnx. With this file, boxes, landmarks and scores equal those of OpenCV.

Input `input` [N, 3, H, W] FP32, BGR, 0..255. For each stride S of 8, 16 and 32 there are four outputs, FP32, with a row
for each cell of the grid:

- `cls_S` and `obj_S` [N, cells, 1], after the sigmoid; the score is sqrt(cls * obj)
- `bbox_S` [N, cells, 4]: the centre in cells, from the corner of its cell, and the logarithm of the size in cells
- `kps_S` [N, cells, 10]: x and y in cells, from the same corner, of right eye, left eye, nose tip, and right and left
  corner of the mouth

The zoo's files of 2021 and 2022 have other outputs (loc, conf, iou) and are not decoded.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from edged.vision.detections import Detections
from edged.vision.families.contract import Claim, Evidence, Family, Feed, Reading, may_be
from edged.vision.families.decoding import (
    Floats,
    Outputs,
    Thresholds,
    corners,
    picture_tensor,
    to_keypoint_detections,
)
from edged.vision.families.grids import cells_at
from edged.vision.placement import Fit, Placement
from edged.vision.signatures import patterns

_STRIDES = (8, 16, 32)
_COLUMNS = {"cls": 1, "obj": 1, "bbox": 4, "kps": 10}
_NAMES = tuple(f"{kind}_{stride}" for kind in _COLUMNS for stride in _STRIDES)


class YuNet(Family, frozen=True):
    """YuNet as in OpenCV's model zoo since 2023; see the module. The model gives no scores of keypoints: they get 1.

    As in OpenCV, pictures lie in the upper left corner, padded with black. OpenCV does not scale pictures, because it
    runs the network at the size of the picture; edged fits pictures into the model's input. OpenCV rounds boxes to
    whole pixels before the NMS, edged does not. The score threshold is that of the zoo's class `YuNet`. The zoo's demo
    and OpenCV use 0.9, which drops small faces: in a picture of a crowd, all 77 faces had scores between 0.7 and 0.9.
    """

    name = "yunet"
    signatures = patterns(
        ", ".join(f"{kind}_{s} [N, cells/{s}, {columns}]" for kind, columns in _COLUMNS.items() for s in _STRIDES)
    )
    feed: ClassVar[Feed] = {"color": "bgr", "fit": Fit.TOP_LEFT, "pad": 0, "scale": 1.0}
    thresholds = Thresholds(score=0.6, iou=0.3)

    def decode(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        """See `Family.decode`. The detections have keypoints."""
        scales = [self._scale(outputs, index, stride, thresholds.score) for stride in _STRIDES]
        boxes, scores, points = (np.concatenate(parts) for parts in zip(*scales, strict=True))
        return to_keypoint_detections(boxes, scores, points, placement, thresholds, needs_nms=True)

    def _scale(self, outputs: Outputs, index: int, stride: int, score: float) -> tuple[Floats, Floats, Floats]:
        """Decode one grid. Return boxes xyxy [n, 4], scores [n] and landmarks [n, 5, 2], in input pixels."""
        across, down = self.grid(stride)
        face, there, box, landmarks = (
            picture_tensor(outputs, f"{kind}_{stride}", index, across * down, columns)
            for kind, columns in _COLUMNS.items()
        )
        least = score * score  # neither factor is above 1
        rows = np.flatnonzero(np.greater(face[:, 0], least) & np.greater(there[:, 0], least))
        rated = np.stack((face[rows, 0], there[rows, 0]), dtype=np.float32)
        rated = np.where(np.isfinite(rated), np.minimum(rated, 1), np.float32(np.nan))
        cells, raw = cells_at(rows, across), box[rows].astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # values that are not finite are dropped later
            sizes = np.exp(raw[:, 2:]) * stride
            boxes = corners(np.concatenate(((raw[:, :2] + cells) * stride, sizes), axis=1))
            points = (landmarks[rows].astype(np.float32).reshape(-1, 5, 2) + cells[:, None]) * stride
        return boxes, np.sqrt(rated.prod(axis=0)), points

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        shapes = {spec.name: spec.shape for spec in evidence.outputs}
        for stride in _STRIDES:
            for kind, columns in _COLUMNS.items():
                if not may_be(shapes.get(f"{kind}_{stride}", ()), None, evidence.cells((stride,)), columns):
                    return None
        return Claim(cls.name, reason, Reading(_NAMES), 1, names=("face",))

    @classmethod
    def by_names(cls, evidence: Evidence) -> Claim | None:
        if set(evidence.output_names) != set(_NAMES):
            return None
        return cls.claim(evidence, "names of a YuNet export (cls_8, obj_8, bbox_8, kps_8, ...)")
