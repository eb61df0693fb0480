"""Ultralytics detectors with one-to-many heads: v5u, v8, 9, 11, 12, and v10 and 26 with `nms=None`.

One output, [N, 4 + classes, A]: a column for each of the A grid cells at strides 8, 16, 32, with cx, cy, w, h in input
pixels and one score per class, after the sigmoid; no objectness; without NMS. Source: `Detect.forward` of the
ultralytics package and the metadata of its `Exporter`. YOLOv9's own repository exports the same tensor, or two of them
for models with an auxiliary head; the second is the main head's (`DualDDetect.forward`).

The tables of segment, pose and obb models have `more` values per detection (mask coefficients, keypoints, an angle) in
one of two forms: "cells", [N, 4 + classes + more, A], without NMS; and "rows", [N, R, 6 + more], of an NMS-free head or
with NMS in the graph: box, score, class and the rest, padded with zeros. Source: `Detect.postprocess`, its subclasses
and `NMSModel` of the ultralytics package.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from edged.errors import ConfigError
from edged.tensors import Array, Dim, TensorSpec
from edged.vision.detections import Detections
from edged.vision.families.candidates import Candidates, select_candidates, select_cells, suppress, to_picture
from edged.vision.families.contract import (
    Claim,
    Decoder,
    Evidence,
    FamilySpec,
    Reading,
    Thresholds,
    not_decoded,
    undecided,
)
from edged.vision.families.outputs import ANY, picture_tensor
from edged.vision.placement import Fit, Placement
from edged.vision.preprocess import Preprocess

NAME = "ultralytics"

# Three scales are usual; -p6, -p2 and the tiny v3 heads differ.
_STRIDES = ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32), (16, 32))


class Ultralytics(Decoder, frozen=True):
    name: ClassVar[str] = NAME

    def decode(
        self, outputs: Mapping[str, Array], index: int, placement: Placement, thresholds: Thresholds
    ) -> Detections:
        """See `Family.decode`."""
        table = picture_tensor(outputs, self.reading.outputs[0], index, self.reading.width(4), ANY)
        offered = select_cells(table, len(table) - 4, thresholds.score)
        return to_picture(suppress(offered, thresholds, needs_nms=True).found, placement)


def feed(plain: Preprocess) -> Preprocess:
    """How Ultralytics feeds these models: letterboxed with 114, and RGB in 0..1 as by default."""
    return msgspec.structs.replace(plain, fit=Fit.LETTERBOX, pad=114)


def by_setting(evidence: Evidence) -> Claim:
    """Check only what decoding needs; ConfigError if it is missing."""
    tensors = [o for o in evidence.outputs if len(o.shape) == 3]
    if evidence.picture is None or len({spec.shape for spec in tensors}) != 1:
        raise ConfigError(
            f"family={NAME} needs one picture input and one output [N, 4+classes, cells], the model has"
            f" {len(tensors)} such outputs; set family=raw"
        )
    table = tensors[-1]  # the main head's of two
    rows = table.shape[1]
    if isinstance(rows, int) and rows < 5:
        raise ConfigError(f"family={NAME} needs 4+classes rows, {table.name} has {rows}; set family=raw")
    return Claim(NAME, f"the setting family={NAME}", table.name, _classes(rows))


def by_metadata(evidence: Evidence) -> Claim | None:
    """The exporter's metadata. Its keys were added over the years, so each is optional."""
    meta = evidence.metadata
    if meta.task is None and not (meta.names and meta.stride):
        return None
    if meta.task not in (None, "detect"):
        return not_decoded(f"an Ultralytics {meta.task} export")
    if meta.head == "RTDETRDecoder" or meta.end2end or meta.nms:
        # Their own rules ran before and did not match.
        what = "metadata of an end-to-end or RT-DETR export, but not its tensor"
        return undecided(what, NAME, "ultralytics-end2end", "rtdetr-ultralytics")
    return _by_rows(evidence)


def _by_rows(evidence: Evidence) -> Claim | None:
    """Match a detector: the names give the number of rows, the input size the number of columns."""
    output, names = _table(evidence), evidence.metadata.names
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


def _table(evidence: Evidence) -> TensorSpec | None:
    """The only output; or the main head's, if YOLOv9's repository exported an auxiliary one, too."""
    outputs = evidence.outputs
    if len(outputs) == 2 and outputs[0].shape == outputs[1].shape and evidence.metadata.task is None:
        return outputs[1]
    return evidence.only_output


def by_shape(evidence: Evidence) -> Claim | None:
    """Without metadata, exactly as many columns as the input has grid cells."""
    output, cells = evidence.only_output, evidence.cells()
    if output is None or len(output.shape) != 3 or evidence.picture is None or cells is None:
        return None
    _, rows, columns = output.shape
    if columns != cells or rows == cells or not isinstance(rows, int) or rows < 5:
        return None
    if rows == 4 + 1 + 17 * 3:
        either = "52 classes, or one with 17 keypoints"
        return Claim(None, f"{output.name} has 56 rows: {either}; set family={NAME}, ultralytics-pose or raw")
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
    """Whether columns may be grid cells; an open dimension is accepted, since the metadata confirms the rest."""
    return isinstance(columns, str) or any(columns == evidence.cells(strides) for strides in _STRIDES)


def _classes(rows: Dim) -> int | None:
    return rows - 4 if isinstance(rows, int) else None


SPEC = FamilySpec(by_setting, feed, Ultralytics)


CELLS, ROWS = "cells", "rows"


class Table(msgspec.Struct, frozen=True):
    """An output's name and form, its number of classes if known, and whether the graph includes the NMS."""

    name: str
    form: str
    classes: int | None
    is_suppressed: bool = False

    def reading(self, *dense: str, keypoints: tuple[int, int] = (0, 0)) -> Reading:
        """The reading of this table, with further outputs that are not lists."""
        return Reading(
            (self.name, *dense),
            self.form,
            keypoints=keypoints,
            is_list=self.form == ROWS,
            is_suppressed=self.is_suppressed,
            dense=dense,
        )


def table_of(evidence: Evidence, more: int) -> Table | None:
    """Return the only 3-D output, or None if it does not have `more` values per detection.

    The form is taken from metadata; without it, rows of exactly 6 + more values are taken as rows. If the shape leaves
    the number of classes open, the names give it.
    """
    tables = [spec for spec in evidence.outputs if len(spec.shape) == 3]
    if evidence.picture is None or len(tables) != 1:
        return None
    spec, meta = tables[0], evidence.metadata
    if meta.end2end or meta.nms or (meta.end2end is None and spec.shape[2] == 6 + more):
        return _rows(evidence, spec, more)
    return _cells(evidence, spec, more)


def _rows(evidence: Evidence, spec: TensorSpec, more: int) -> Table | None:
    if isinstance(spec.shape[2], int) and spec.shape[2] != 6 + more:
        return None
    meta = evidence.metadata
    return Table(spec.name, ROWS, len(meta.names) or None, is_suppressed=not meta.end2end)


def _cells(evidence: Evidence, spec: TensorSpec, more: int) -> Table | None:
    lines, names = spec.shape[1], evidence.metadata.names
    if not isinstance(lines, int):
        return Table(spec.name, CELLS, len(names) or None)
    classes = lines - 4 - more
    return Table(spec.name, CELLS, classes) if classes >= 1 and len(names) in (0, classes) else None


def table_in(outputs: Mapping[str, Array], reading: Reading, index: int, more: int) -> Array:
    """Return one picture's table; EngineUnusable if it does not have `more` values per detection."""
    sizes = (ANY, 6 + more) if reading.form == ROWS else (reading.width(4 + more), ANY)
    return picture_tensor(outputs, reading.outputs[0], index, *sizes)


def select_from_table(table: Array, form: str, more: int, score: float) -> tuple[Candidates, Array]:
    """Return the detections of a table above a score, boxes xyxy, and the `more` values of each, unchanged [n,
    more]."""
    if form == ROWS:
        offered = select_candidates(table[:, :4], table[:, 4], table[:, 5], score)
        return offered, table[offered.rows, 6 : 6 + more]
    classes = len(table) - 4 - more
    offered = select_cells(table, classes, score)
    return offered, table[4 + classes :, offered.rows].T
