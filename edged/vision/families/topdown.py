"""Top-down pose: models that find the keypoints of one person, RTMPose and HRNet.

These models expect the part of a picture that shows one person. edged feeds them the whole picture, or its region of
interest. If the score is above the threshold, the picture gives one detection, whose box is the whole picture. As in
the authors' evaluation on COCO, the score is the mean of the keypoints' scores above 0.2. If no keypoint has a score
above 0.2, the score is the mean of all keypoints' scores (in the authors' evaluation, the score is 0).

Sources: open-mmlab/mmpose: mmpose/codecs/simcc_label.py (commit 01d4e7b), mmpose/codecs/utils/post_processing.py
(commit 0b9a7cf), mmpose/datasets/transforms/topdown_transforms.py (commit 003cac4), mmpose/evaluation/metrics/
coco_metric.py (commit 016ee42), rtmpose-m_8xb256-420e_coco-256x192.py (commit 0415322); open-mmlab/mmdeploy:
configs/mmpose/pose-detection_simcc_onnxruntime_dynamic.py (commit 4cf0f92);
leoxiaobin/deep-high-resolution-net.pytorch: lib/core/inference.py and lib/dataset/coco.py (commit 2ad80f2).

Input [N, 3, H, W] FP32, RGB, normalised as for ImageNet. The person's box is enlarged by a quarter before it is fitted
into the input; outside the picture the input is black. The package rtmlib passes BGR instead, against the models'
configuration. No trained model was at hand to verify these families.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from edged.vision.detections import Detections
from edged.vision.families.contract import Claim, Evidence, Family, Feed, Reading, may_be, undecided
from edged.vision.families.decoding import (
    AT_LEAST_ONE,
    Floats,
    Outputs,
    Thresholds,
    picture_tensor,
    to_keypoint_detections,
)
from edged.vision.placement import Fit, Placement
from edged.vision.preprocess import IMAGENET_MEAN, IMAGENET_STD
from edged.vision.signatures import patterns

_VISIBLE = 0.2  # keypoints with a higher score count for the score of the person
_SIMCC = ("simcc_x", "simcc_y")
_STRIDE = 4  # input pixels for each pixel of a heatmap
_COCO = 17  # keypoints of a person


class TopDown(Family, frozen=True):
    """Base of the families that find the keypoints of one person."""

    feed: ClassVar[Feed] = {
        "fit": Fit.LETTERBOX,
        "zoom": 1 / 1.25,
        "pad": 0,
        "mean": IMAGENET_MEAN,
        "std": IMAGENET_STD,
    }
    thresholds = Thresholds(score=0.3)

    def decode(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        """See `Family.decode`. The detection has keypoints. The place of a keypoint with score 0 has no meaning,
        because the model has not found this keypoint."""
        points = self.keypoints(outputs, index)
        rated = np.clip(points[:, 2], 0, 1)
        seen = rated[rated > _VISIBLE]
        score = (seen if len(seen) else rated).mean(keepdims=True)
        box = np.array(((0, 0, *self.size),), np.float32)
        return to_keypoint_detections(box, score, points[None], placement, thresholds, needs_nms=False)

    def keypoints(self, outputs: Outputs, index: int) -> Floats:
        """Return the keypoints of picture `index`: x and y in input pixels and score, float32 [k, 3]."""
        raise NotImplementedError


class RtmPose(TopDown, frozen=True):
    """RTMPose and other models with SimCC heads, as exported by mmdeploy.

    `simcc_x` [N, K, W * s] and `simcc_y` [N, K, H * s], FP32, have the scores of each x and each y for each keypoint,
    in steps of 1/s input pixels. The default of mmpose is s = 2, but edged computes s from the shape. A keypoint is at
    the x and the y with the highest scores. The score of the keypoint is the lower one of these two scores.
    """

    name = "rtmpose"
    signatures = patterns("simcc_x [N, K, split*W], simcc_y [N, K, split*H]")

    def keypoints(self, outputs: Outputs, index: int) -> Floats:
        k = self.reading.keypoints[0] or AT_LEAST_ONE
        across = picture_tensor(outputs, _SIMCC[0], index, k, AT_LEAST_ONE)
        split = across.shape[1] / self.preprocess.width
        down = picture_tensor(outputs, _SIMCC[1], index, len(across), round(self.preprocess.height * split))
        x, y = across.argmax(axis=1) / split, down.argmax(axis=1) / split
        scores = np.stack((across.max(axis=1), down.max(axis=1)), dtype=np.float32)
        score = np.where(np.isfinite(scores).all(axis=0), scores.min(axis=0), np.float32(np.nan))
        return np.stack((x, y, score), axis=1, dtype=np.float32)

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        shapes = {spec.name: spec.shape for spec in evidence.outputs}
        across, down = (shapes.get(name, ()) for name in _SIMCC)
        if len(across) != 3 or not may_be(down, None, None if isinstance(across[1], str) else across[1], None):
            return None
        if evidence.size is not None and isinstance(across[2], int):
            width, height = evidence.size
            if across[2] < 1 or not may_be(down, None, None, round(height * across[2] / width)):
                return None
        k = across[1] if isinstance(across[1], int) else 0
        return Claim(cls.name, reason, Reading(_SIMCC, keypoints=(k, 3)), 1)

    @classmethod
    def by_names(cls, evidence: Evidence) -> Claim | None:
        if set(evidence.output_names) != set(_SIMCC):
            return None
        return cls.claim(evidence, f"names of an RTMPose export ({', '.join(_SIMCC)})")


class HrNet(TopDown, frozen=True):
    """HRNet, Simple Baselines and other models of mmpose with heatmaps that need no DARK or UDP decoding.

    One output, [N, K, H/4, W/4] FP32: a map for each keypoint. The maximum of the map gives place and score. As in the
    source, the place is moved by a quarter of a map's pixel towards the higher neighbour on each axis, except near an
    edge. Many other models have an output of this shape, so only the setting `family` selects this family.
    """

    name = "hrnet"
    signatures = patterns("[N, K, H/4, W/4]")

    def keypoints(self, outputs: Outputs, index: int) -> Floats:
        width, height = self.grid(_STRIDE)
        k = self.reading.keypoints[0] or AT_LEAST_ONE
        maps = picture_tensor(outputs, self.reading.outputs[0], index, k, height, width)
        every = np.arange(len(maps))
        best = maps.reshape(len(maps), -1).argmax(axis=1)
        y, x = np.divmod(best, width)
        right, left = maps[every, y, np.minimum(x + 1, width - 1)], maps[every, y, np.maximum(x - 1, 0)]
        below, above = maps[every, np.minimum(y + 1, height - 1), x], maps[every, np.maximum(y - 1, 0), x]
        inside = (x > 1) & (x < width - 1) & (y > 1) & (y < height - 1)
        to_right = np.where(inside, (right > left) * 0.25 - (right < left) * 0.25, 0)
        to_below = np.where(inside, (below > above) * 0.25 - (below < above) * 0.25, 0)
        return np.stack(
            ((x + to_right) * _STRIDE, (y + to_below) * _STRIDE, maps[every, y, x]), axis=1, dtype=np.float32
        )

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        output = evidence.only_output
        if output is None or len(output.shape) != 4:
            return None
        if evidence.size is not None:
            width, height = evidence.size
            if not may_be(output.shape, None, None, -(-height // _STRIDE), -(-width // _STRIDE)):
                return None
        k = output.shape[1] if isinstance(output.shape[1], int) else 0
        return Claim(cls.name, reason, Reading((output.name,), keypoints=(k, 3)), 1)

    @classmethod
    def by_shape(cls, evidence: Evidence) -> Claim | None:
        """Return an undecided claim that names the family, if the output has maps for COCO's 17 keypoints. A
        segmentation model with 17 classes has such maps, too."""
        claim = cls.claim(evidence, "")
        if claim is None or claim.reading.keypoints[0] != _COCO or evidence.cells((_STRIDE,)) is None:
            return None
        if any(isinstance(dim, str) for dim in evidence.outputs[0].shape[2:]):
            return None
        return undecided(
            f"{claim.reading.outputs[0]} has {_COCO} maps of a quarter of the input's size: keypoints of a person, or"
            " classes of pixels",
            cls.name,
            "segmentation",
        )
