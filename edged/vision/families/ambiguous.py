"""A rule for shapes that several families have. The rule names these families and chooses none."""

from __future__ import annotations

from edged.tensors import TensorSpec
from edged.vision.comparison import shown
from edged.vision.families.contract import Claim, Evidence, undecided


def ambiguous_shape(evidence: Evidence) -> Claim | None:
    """If several formats have the output's shape, return a claim that has no family, but names the possible
    families."""
    output = evidence.only_output
    if output is None:
        return None
    if evidence.flat_list is not None:
        formats = "two formats (class before score, or after), or classes"
        what = f"output {shown(output)} is a list of detections in one of {formats}"
        return undecided(what, "yolov7", "yolo-nas", "classification")
    return _ambiguous_rows(evidence, output) if len(output.shape) == 3 else None


def _ambiguous_rows(evidence: Evidence, output: TensorSpec) -> Claim | None:
    """Like `ambiguous_shape`, but only for an output [1, rows, columns] with at least 6 columns. Each row is a
    detection, and begins with the box."""
    _, rows, columns = output.shape
    if not isinstance(columns, int) or columns < 6 or columns == evidence.cells():
        return None
    if columns == 6:
        formats = "three formats (corners in pixels; centres in 0..1; or boxes that need NMS)"
        what = f"output {shown(output)} has one of {formats}"
        return undecided(what, "ultralytics-end2end", "rtdetr-ultralytics", "deepstream-yolo")
    if rows == 300:
        return undecided(f"output {shown(output)} has 300 queries, as RT-DETR has", "rtdetr-ultralytics")
    return None
