"""Ultralytics models with oriented boxes: task obb.

One table (see `ultralytics`) with an angle in radians for each detection, clockwise. Unlike in the other tables, boxes
are cx, cy, w, h in the form "rows", too. Source: `OBB.decode_bboxes` and `NMSModel` of the ultralytics package. As
there, the NMS compares boxes by their probabilistic IoU, and suppressed boxes suppress others too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec
import numpy as np

from edged.tensors import Array
from edged.vision.detections import Detections
from edged.vision.families import ultralytics
from edged.vision.families.candidates import with_area
from edged.vision.families.contract import Claim, Decoder, Evidence, FamilySpec, Thresholds, require
from edged.vision.families.ultralytics import ROWS, select_from_table, table_in, table_of
from edged.vision.nms import Index, Oriented, best_first, corners_of, hull_of, rotated_nms
from edged.vision.placement import Placement

NAME = "ultralytics-obb"
_NEEDS = "one output [N, 4+classes+1, cells] or [N, rows, 7]"


class UltralyticsObb(Decoder, frozen=True):
    name: ClassVar[str] = NAME

    def decode(
        self, outputs: Mapping[str, Array], index: int, placement: Placement, thresholds: Thresholds
    ) -> Detections:
        """See `Family.decode`; with corners, and boxes that are their hulls, cut to the picture."""
        table, form = table_in(outputs, self.reading, index, 1), self.reading.form
        offered, angles = select_from_table(table, form, 1, thresholds.score)
        sizes = table[offered.rows, :4] if form == ROWS else table[:4, offered.rows].T
        oriented = np.concatenate((sizes, angles), axis=1, dtype=np.float32)
        whole = np.flatnonzero(np.isfinite(oriented).all(axis=1) & (oriented[:, 2:4] > 0).all(axis=1))
        found, oriented = offered.found.select(whole), oriented[whole]
        kept = _kept(found, oriented, thresholds, needs_nms=form != ROWS)
        corners = placement.points_to_original(corners_of(oriented[kept]))
        x1, y1, x2, y2 = placement.edges
        boxes = np.clip(hull_of(corners), np.array((x1, y1) * 2), np.array((x2, y2) * 2), dtype=np.float32)
        return msgspec.structs.replace(found.select(kept), boxes=boxes, corners=corners).select(with_area(boxes))


def _kept(found: Detections, oriented: Oriented, thresholds: Thresholds, *, needs_nms: bool) -> Index:
    most = thresholds.max_detections
    if needs_nms or thresholds.class_agnostic:
        agnostic = thresholds.class_agnostic
        return rotated_nms(oriented, found.scores, found.class_ids, thresholds.iou, most, agnostic)
    return best_first(found.scores, most)


def by_metadata(evidence: Evidence) -> Claim | None:
    if evidence.metadata.task != "obb":
        return None
    claim = _claim(evidence, "metadata task=obb")
    return claim or Claim(None, "metadata task=obb, but no output has an angle besides its classes")


def by_setting(evidence: Evidence) -> Claim:
    claim = _claim(evidence, f"the setting family={NAME}")
    require(evidence, NAME, _NEEDS, claim is not None)
    assert claim is not None
    return claim


def _claim(evidence: Evidence, reason: str) -> Claim | None:
    table = table_of(evidence, 1)
    if table is None:
        return None
    reason = f"{reason}: {table.name} holds {table.form} with an angle"
    return Claim(NAME, reason, classes=table.classes, reading=table.reading())


SPEC = FamilySpec(by_setting, ultralytics.feed, UltralyticsObb)
