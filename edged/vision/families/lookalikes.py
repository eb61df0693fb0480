"""Shapes that are several formats at once: nothing is guessed, and the reason names the settings that decide."""

from __future__ import annotations

from edged.tensors import TensorSpec
from edged.vision.families.contract import Claim, Evidence, undecided


def by_shape(evidence: Evidence) -> Claim | None:
    """What is left when every family had its say."""
    output = evidence.only_output
    if evidence.picture is None or output is None:
        return None
    if evidence.flat_list is not None:
        what = (
            f"{_told(output)} is a list of detections in one of two formats (class before score, or after), or classes"
        )
        return undecided(what, "yolov7", "yolo-nas", "classification")
    return _rows(evidence, output) if len(output.shape) == 3 else None


def _rows(evidence: Evidence, output: TensorSpec) -> Claim | None:
    """Detections in rows, [1, rows, columns]: boxes first, so at least 6 columns."""
    _, rows, columns = output.shape
    if not isinstance(columns, int) or columns < 6 or columns == evidence.cells():
        return None
    if columns == 6:
        what = (
            f"{_told(output)} is one of three formats (corners in pixels, centres in 0..1, or suppression to be done)"
        )
        return undecided(what, "ultralytics-end2end", "rtdetr-ultralytics", "deepstream-yolo")
    if rows == 300:
        return undecided(f"{_told(output)} is 300 queries, as RT-DETR has", "rtdetr-ultralytics")
    return None


def _told(output: TensorSpec) -> str:
    return f"{output.name} [{','.join(map(str, output.shape))}]"
