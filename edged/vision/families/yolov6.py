"""YOLOv6, as Meituan's repository exports it.

Input `images` [N, 3, H, W]. Output `outputs` [N, A, 5 + classes], a row for each grid cell at the strides 8, 16, 32 (P6
models: also 64). A row has cx, cy, w, h in input pixels, objectness, which is always 1, and the score of each class
after the sigmoid. No NMS. With `--end2end` the four outputs are exactly those of YOLOv7's end-to-end exports.

Pictures are letterboxed, padded with 114; pixels are RGB in 0..1. An export with `--with-preprocess` takes BGR in
0..255: set `preprocess.color=bgr` and `preprocess.scale=1`.

Source: repository meituan/YOLOv6 (commit e86a483): `deploy/ONNX/export_onnx.py`, `Detect.forward`, `End2End`,
`tools/infer.py`.
"""

from __future__ import annotations

from edged.vision.families.contract import Claim, Evidence
from edged.vision.families.decoding import Thresholds
from edged.vision.families.yolo import END_TO_END, STRIDES, YoloV7
from edged.vision.signatures import patterns

_NAMES = "images", "outputs"


class YoloV6(YoloV7, frozen=True):
    """YOLOv6."""

    name = "yolov6"
    signatures = (*patterns("outputs? [N, cells, 5+classes]"), END_TO_END)
    thresholds = Thresholds(score=0.4, iou=0.45)

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        if evidence.table(6) is None and not set(evidence.output_names) >= set(cls.counted):
            return None
        return super().claim(evidence, reason)

    @classmethod
    def by_names(cls, evidence: Evidence) -> Claim | None:
        """Claim a model by the exporter's names and one row for each grid cell."""
        output = evidence.table(6)
        if output is None or (evidence.picture.name, output.name) != _NAMES:
            return None
        rows = output.shape[1]  # open in exports with an open batch
        if isinstance(rows, int) and rows not in map(evidence.cells, STRIDES):
            return None
        return cls.claim(evidence, f"tensors {' and '.join(_NAMES)} of a YOLOv6 export, a row for each grid cell")
