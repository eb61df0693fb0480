"""Detectors that can be told by names or shapes but are not decoded yet.

They are named so that none is mistaken for another: [1, 300, 6] alone is three formats. When a family gets
its own file, its rule moves there.
"""

from __future__ import annotations

from edged.tensors import Dim
from edged.vision.families.contract import Claim, Evidence, not_decoded

_BY_OUTPUTS = (
    (frozenset({"dets", "labels"}), "names of an RF-DETR export (dets, labels)"),
    (
        frozenset({"labels", "boxes", "scores"}),
        "names of an RT-DETR or D-FINE export",
    ),
    (
        frozenset({"num_dets", "det_boxes", "det_scores", "det_classes"}),
        "names of an end-to-end YOLOv7 export (num_dets, det_boxes, ...)",
    ),
    (
        frozenset({"num_predictions", "pred_boxes", "pred_scores", "pred_classes"}),
        "names of a YOLO-NAS export (num_predictions, pred_boxes, ...)",
    ),
)


def by_names(evidence: Evidence) -> Claim | None:
    if any(spec.name == "orig_target_sizes" for spec in evidence.inputs):
        return not_decoded("input orig_target_sizes of an RT-DETR or D-FINE export")
    outputs = {spec.name for spec in evidence.outputs}
    for names, what in _BY_OUTPUTS:
        if names <= outputs:
            return not_decoded(what)
    return None


def by_shape(evidence: Evidence) -> Claim | None:
    if evidence.picture is None:
        return None
    output = evidence.only_output
    if output is None:
        return _by_several(evidence)
    shape = output.shape
    if len(shape) == 2:
        return _flat(shape[1])
    if len(shape) == 4 and shape[3] == 7 and shape[1] == 1:
        return not_decoded("shape of an SSD export ([1, 1, N, 7])")
    if len(shape) == 3:
        return _rows(evidence, shape[1], shape[2])
    return None


def _by_several(evidence: Evidence) -> Claim | None:
    ranks = {len(spec.shape) for spec in evidence.outputs}
    if len(evidence.outputs) == 3 and ranks == {5}:
        return not_decoded("three 5-D outputs, the raw heads of a YOLOv5 or YOLOv7 export")
    return None


def _flat(columns: Dim) -> Claim:
    if columns == 7:
        return not_decoded("a flat [N, 7] output (YOLOv7 with --max-wh, or YOLO-NAS)")
    return not_decoded("one 2-D output, as image classifiers have")


def _rows(evidence: Evidence, rows: Dim, columns: Dim) -> Claim | None:
    """Detections in rows, [1, rows, columns]: boxes first, so at least 6 columns."""
    cells = evidence.cells()
    if not isinstance(columns, int) or columns < 6 or columns == cells:
        return None
    if cells is not None and rows == 3 * cells:
        return not_decoded("rows of three anchors a cell, a YOLOv5 or YOLOv7 repository export")
    if cells is not None and rows == cells:
        other = " or a DeepStream-Yolo export" if columns == 6 else ""
        return not_decoded(f"one row a grid cell, a YOLOX{other}")
    if columns == 6:
        return not_decoded("rows of six (box, score, class): an NMS-free, RT-DETR or in-graph NMS export")
    if rows == 300:
        return not_decoded("300 queries, as RT-DETR exports have")
    return None
