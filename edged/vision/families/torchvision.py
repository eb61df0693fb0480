"""Detectors of torchvision (Faster R-CNN, RetinaNet, FCOS, SSD), exported by `torch.onnx.export`.

Input [1, 3, H, W] FP32; outputs without a dimension for the batch: `boxes` [M, 4] xyxy in input pixels, `labels` INT64
[M], `scores` [M]. The graph resizes and normalises the picture and does the NMS. The exporter does not set these three
names. Most scripts set them, because they are the keys of the model's results. Labels start at 1, 0 is the background.
Further outputs (masks, keypoints) are ignored. A graph that was traced with a list of pictures has an input [3, H, W],
which is not decoded.

Pictures are letterboxed, because the graph keeps the aspect ratio; pixels are RGB in 0..1.

Source: `GeneralizedRCNN`, `GeneralizedRCNNTransform.postprocess` and `test/test_onnx.py` of pytorch/vision; scripts in
public repositories for the names. Not verified on an exported file.
"""

from __future__ import annotations

from edged.errors import EngineUnusable
from edged.vision.detections import Detections
from edged.vision.families.contract import Claim, Evidence, Family, suppressed_list
from edged.vision.families.decoding import ANY, Outputs, Thresholds, checked_tensor, to_detections
from edged.vision.placement import Placement
from edged.vision.signatures import patterns

_NAMES = ("boxes", "labels", "scores")


class TorchVision(Family, frozen=True):
    """torchvision's detectors."""

    name = "torchvision"
    signatures = patterns("boxes [M, 4], labels [M], scores [M]")

    def decode(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        if index:
            raise EngineUnusable(f"family={self.name} cannot decode more than one picture at a time: set batch.max=1")
        boxes = checked_tensor(outputs, _NAMES[0], ANY, 4)
        labels, scores = (checked_tensor(outputs, name, len(boxes)) for name in _NAMES[1:])
        return to_detections(boxes, scores, labels, placement, thresholds, needs_nms=False)

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        shapes = {spec.name: spec.shape for spec in evidence.outputs}
        boxes, *others = (shapes.get(name, ()) for name in _NAMES)
        if [len(shape) for shape in (boxes, *others)] != [2, 1, 1] or (isinstance(boxes[1], int) and boxes[1] != 4):
            return None
        return Claim(cls.name, reason, suppressed_list(_NAMES, ""))

    @classmethod
    def by_names(cls, evidence: Evidence) -> Claim | None:
        return cls.claim(evidence, f"outputs {', '.join(_NAMES)} without a dimension for the batch, of torchvision")
