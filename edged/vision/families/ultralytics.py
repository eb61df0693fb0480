"""Ultralytics detectors with one-to-many heads: v5u, v8, 9, 11, 12, and v10 and 26 with `nms=None`.

One output, [N, 4 + classes, A]: a column for each of the A grid cells at strides 8, 16, 32, with cx, cy, w,
h in input pixels and one score a class, already through the sigmoid; no objectness; NMS is left to the
reader. Source: `Detect.forward` of the ultralytics package and the metadata of its `Exporter`. YOLOv9's own
repository exports the same tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, cast

import msgspec
import numpy as np
import numpy.typing as npt

from edged.errors import ConfigError
from edged.tensors import Array, Dim
from edged.vision.detections import Detections
from edged.vision.families.contract import Claim, Evidence, Thresholds, not_decoded
from edged.vision.nms import MAX_CANDIDATES, best_first, nms
from edged.vision.placement import Fit, Placement
from edged.vision.preprocess import Preprocess

NAME = "ultralytics"

_FARTHEST = 60_000.0  # pixels; below the largest FP16, far beyond any input

# Three scales are the rule; -p6, -p2 and the tiny v3 heads differ.
_STRIDES = ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32), (16, 32))


class Ultralytics(msgspec.Struct, frozen=True):
    """The decoder, bound to one output tensor."""

    preprocess: Preprocess
    names: tuple[str, ...]
    output: str
    name: ClassVar[str] = NAME

    def decode(
        self, outputs: Mapping[str, Array], index: int, placement: Placement, thresholds: Thresholds
    ) -> Detections:
        """See `Family.decode`. A cell counts once, with its best class, and not at all with a NaN score."""
        table = outputs[self.output][index]
        scores = table[4:]
        best = _best(scores)
        cells = np.flatnonzero(best > thresholds.score)
        if len(cells) > MAX_CANDIDATES:
            cells = cells[best_first(best[cells].astype(np.float32), MAX_CANDIDATES)]
        cells = cells[_sane(table[:4, cells])]
        found = _gather(table, cells)
        kept = nms(
            found.boxes,
            found.scores,
            found.class_ids,
            thresholds.iou,
            thresholds.max_detections,
            thresholds.class_agnostic,
        )
        return _inside(found.select(kept), placement)


def _best(scores: Array) -> npt.NDArray[np.float32]:
    """The best score of each column, NaN where one is NaN; scores are [classes, A].

    numpy compares FP16 value by value, forty times slower than integers. For values from zero up the bit
    patterns order as the values do, with NaN above all; negative values order below, which is all a threshold
    needs to know.
    """
    if scores.dtype == np.float16:
        return cast(npt.NDArray[np.float32], scores.view(np.int16).max(axis=0).view(np.float16))
    return cast(npt.NDArray[np.float32], scores.max(axis=0))


def _sane(columns: Array) -> npt.NDArray[np.bool_]:
    """Which columns of cx, cy, w, h are numbers that a box can have; false for NaN too."""
    near: npt.NDArray[np.bool_] = np.all(np.abs(columns.astype(np.float32)) < _FARTHEST, axis=0)
    return near


def _gather(table: Array, cells: npt.NDArray[np.intp]) -> Detections:
    """The chosen cells with their best class, in input pixels; the whole table is never transposed."""
    if not len(cells):
        return Detections.empty()
    scores = table[4:, cells]
    class_ids = scores.argmax(axis=0)
    found = Detections(
        _corners(table[:4, cells]),
        scores[class_ids, np.arange(len(cells))].astype(np.float32),
        class_ids.astype(np.int32),
    )
    return found.select(np.isfinite(found.scores))


def _corners(columns: Array) -> npt.NDArray[np.float32]:
    """cx, cy, w, h as rows [4, n] to xyxy float32 [n, 4]."""
    centre_x, centre_y, width, height = columns.astype(np.float32)
    half_w, half_h = width / 2, height / 2
    rows = (centre_x - half_w, centre_y - half_h, centre_x + half_w, centre_y + half_h)
    return np.stack(rows, axis=1, dtype=np.float32)


def _inside(found: Detections, placement: Placement) -> Detections:
    """To the original picture; what lay wholly in the padding has no area there and goes."""
    boxes = placement.to_original(found.boxes)
    visible = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
    return Detections(boxes, found.scores, found.class_ids).select(visible)


def feed(plain: Preprocess) -> Preprocess:
    """How Ultralytics feeds these models: letterboxed with 114, and RGB in 0..1 as by default."""
    return msgspec.structs.replace(plain, fit=Fit.LETTERBOX, pad=114)


def by_setting(evidence: Evidence) -> Claim:
    """The user says so: only what decoding needs is checked. ConfigError where it is not there."""
    tensors = [o for o in evidence.outputs if len(o.shape) == 3]
    if evidence.picture is None or len(tensors) != 1:
        raise ConfigError(
            f"family={NAME} needs one picture input and one output [N, 4+classes, cells], the model has"
            f" {len(tensors)} such outputs; set family=raw"
        )
    rows = tensors[0].shape[1]
    if isinstance(rows, int) and rows < 5:
        raise ConfigError(f"family={NAME} needs 4+classes rows, {tensors[0].name} has {rows}; set family=raw")
    return Claim(NAME, f"the setting family={NAME}", tensors[0].name, _classes(rows))


def by_metadata(evidence: Evidence) -> Claim | None:
    """The exporter's own words. The keys came over the years, so each counts only where it is there."""
    said = evidence.metadata
    if said.task is None and not (said.names and said.stride):
        return None
    if said.task not in (None, "detect"):
        return not_decoded(f"an Ultralytics {said.task} export")
    if said.head == "RTDETRDecoder":
        return not_decoded("an Ultralytics RT-DETR export (head=RTDETRDecoder)")
    if said.end2end:
        return not_decoded("an Ultralytics NMS-free export (end2end=True)")
    if said.nms:
        return not_decoded("an Ultralytics export with NMS in the graph (args.nms=True)")
    return _by_rows(evidence)


def _by_rows(evidence: Evidence) -> Claim | None:
    """Metadata of a detector: the names say how many rows there must be, the input size how many columns."""
    output, names = evidence.only_output, evidence.metadata.names
    if output is None or len(output.shape) != 3 or not names or evidence.picture is None:
        return None
    _, rows, columns = output.shape
    if rows != 4 + len(names) and not (isinstance(rows, str) and evidence.metadata.task == "detect"):
        return None
    if not _is_cells(evidence, columns):
        return None
    who = "task=detect" if evidence.metadata.task else "names and stride"
    reason = f"metadata {who}: {output.name} has 4+{len(names)} rows, one column a grid cell"
    return Claim(NAME, reason, output.name, len(names))


def by_shape(evidence: Evidence) -> Claim | None:
    """No word from the exporter: only columns exactly as many as the input's grid cells convince."""
    output, cells = evidence.only_output, evidence.cells()
    if output is None or len(output.shape) != 3 or evidence.picture is None or cells is None:
        return None
    _, rows, columns = output.shape
    if columns != cells or rows == cells or not isinstance(rows, int) or rows < 5:
        return None
    if rows == 4 + 1 + 17 * 3:
        either = "52 classes, or one with 17 keypoints"
        return Claim(None, f"{output.name} has 56 rows: {either}; set family={NAME} or family=raw")
    names = evidence.metadata.names
    if names and len(names) != rows - 4:
        either = f"{rows - 4} classes, or more than boxes"
        return Claim(
            None,
            f"{output.name} has {rows} rows, metadata names {len(names)}: {either}; set family={NAME} or raw",
        )
    reason = f"row arithmetic: {output.name} is [4+{rows - 4} classes, {cells} grid cells]"
    return Claim(NAME, reason, output.name, rows - 4)


def _is_cells(evidence: Evidence, columns: Dim) -> bool:
    """A column count left open is believed, since the metadata vouches for the rest."""
    return isinstance(columns, str) or any(columns == evidence.cells(strides) for strides in _STRIDES)


def _classes(rows: Dim) -> int | None:
    return rows - 4 if isinstance(rows, int) else None
