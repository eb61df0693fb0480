"""How Ultralytics writes the tables of its segment, pose and obb models, which tell more of each detection than a box.

Two forms, with `more` values a detection (mask coefficients, keypoints, an angle): "cells", [N, 4 + classes + more, A],
where doubles are left to the reader (see `cells`); and "rows", [N, R, 6 + more], of an NMS-free head or with NMS in
the graph: box, score, class and the rest, filled up with zeros. Source: `Detect.postprocess`, its heirs and `NMSModel`
of the ultralytics package.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from edged.tensors import Array, TensorSpec
from edged.vision.families.answers import ANY, picture
from edged.vision.families.candidates import Candidates, offer
from edged.vision.families.cells import offer_cells
from edged.vision.families.contract import Evidence, Reading

CELLS, ROWS = "cells", "rows"


class Table(msgspec.Struct, frozen=True):
    """An output's name and form, how many classes it has where anything says, and whether the graph suppressed."""

    name: str
    form: str
    classes: int | None
    is_suppressed: bool = False

    def reading(self, *dense: str, keypoints: tuple[int, int] = (0, 0)) -> Reading:
        """The plain data of it, with outputs besides that are no lists."""
        return Reading(
            (self.name, *dense),
            self.form,
            keypoints=keypoints,
            is_list=self.form == ROWS,
            is_suppressed=self.is_suppressed,
            dense=dense,
        )


def table_of(evidence: Evidence, more: int) -> Table | None:
    """The one 3-D output, or None where it is not that of a model with `more` values a detection.

    Metadata counts where it says which form it is; otherwise rows of exactly 6 + more values are believed to be such.
    Where the shape leaves the number of classes open, the names say it.
    """
    tables = [spec for spec in evidence.outputs if len(spec.shape) == 3]
    if evidence.picture is None or len(tables) != 1:
        return None
    spec, said = tables[0], evidence.metadata
    if said.end2end or said.nms or (said.end2end is None and spec.shape[2] == 6 + more):
        return _rows(evidence, spec, more)
    return _cells(evidence, spec, more)


def _rows(evidence: Evidence, spec: TensorSpec, more: int) -> Table | None:
    if isinstance(spec.shape[2], int) and spec.shape[2] != 6 + more:
        return None
    said = evidence.metadata
    return Table(spec.name, ROWS, len(said.names) or None, is_suppressed=not said.end2end)


def _cells(evidence: Evidence, spec: TensorSpec, more: int) -> Table | None:
    lines, names = spec.shape[1], evidence.metadata.names
    if not isinstance(lines, int):
        return Table(spec.name, CELLS, len(names) or None)
    classes = lines - 4 - more
    return Table(spec.name, CELLS, classes) if classes >= 1 and len(names) in (0, classes) else None


def table_in(outputs: Mapping[str, Array], reading: Reading, index: int, more: int) -> Array:
    """One picture's table, from a `Table.reading`. EngineUnusable where it is not one of `more` values a detection."""
    sizes = (ANY, 6 + more) if reading.form == ROWS else (reading.width(4 + more), ANY)
    return picture(outputs, reading.outputs[0], index, *sizes)


def offer_table(table: Array, form: str, more: int, score: float) -> tuple[Candidates, Array]:
    """What one picture's table holds above a score, boxes xyxy, and the `more` values of each, as written [n, more]."""
    if form == ROWS:
        offered = offer(table[:, :4], table[:, 4], table[:, 5], score)
        return offered, table[offered.rows, 6 : 6 + more]
    classes = len(table) - 4 - more
    offered = offer_cells(table, classes, score)
    return offered, table[4 + classes :, offered.rows].T
