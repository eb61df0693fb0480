"""Ultralytics models that tell a mask of each detection: task segment.

Two outputs: a table (see `ultralytics_forms`) with 32 coefficients for each detection, and 32 prototypes,
[N, 32, H/4, W/4], whose sum weighted by the coefficients is the mask, where it is above zero. Source: `Segment.forward`
and `process_mask` of the ultralytics package. As there, a mask is cut to its box, and a detection whose mask is empty
is none. Unlike there, masks are always as fine as the original picture.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec
import numpy as np

from edged.tensors import Array, TensorSpec
from edged.vision.detections import Detections
from edged.vision.families import ultralytics
from edged.vision.families.answers import SOME, picture
from edged.vision.families.candidates import suppress, visible
from edged.vision.families.contract import Claim, Decoder, Evidence, Maker, Thresholds, demand
from edged.vision.families.prototypes import Prototypes
from edged.vision.families.ultralytics_forms import ROWS, Table, offer_table, table_in, table_of
from edged.vision.placement import Placement

NAME = "ultralytics-segment"
_NEEDS = "one output [N, 4+classes+32, cells] or [N, rows, 6+32] and one [N, 32, height, width]"


class UltralyticsSegment(Decoder, frozen=True):
    """The decoder; `reading.outputs` are the table and the prototypes."""

    name: ClassVar[str] = NAME

    def decode(
        self, outputs: Mapping[str, Array], index: int, placement: Placement, thresholds: Thresholds
    ) -> Detections:
        """See `Family.decode`; with masks."""
        prototypes = self._prototypes(outputs, index)
        found, weights = self._weighted(outputs, index, placement, thresholds)
        size = self.preprocess.width, self.preprocess.height
        if not len(found):
            return msgspec.structs.replace(found, masks=())
        masks = Prototypes(prototypes, size, placement).masks(weights, found.boxes)
        there = np.array([mask is not None for mask in masks], np.bool_)
        return msgspec.structs.replace(found.select(there), masks=tuple(mask for mask in masks if mask is not None))

    def boxes(
        self, outputs: Mapping[str, Array], index: int, placement: Placement, thresholds: Thresholds
    ) -> Detections:
        """See `Costly.boxes`; also those whose mask is empty."""
        return self._weighted(outputs, index, placement, thresholds)[0]

    def _prototypes(self, outputs: Mapping[str, Array], index: int) -> Array:
        return picture(outputs, self.reading.outputs[1], index, SOME, SOME, SOME)

    def _weighted(
        self, outputs: Mapping[str, Array], index: int, placement: Placement, thresholds: Thresholds
    ) -> tuple[Detections, Array]:
        """Detections without their masks, and the weights of each mask's prototypes [n, 32]."""
        more, form = len(self._prototypes(outputs, index)), self.reading.form
        offered, weights = offer_table(table_in(outputs, self.reading, index, more), form, more, thresholds.score)
        numbered = offered._replace(rows=np.arange(len(offered.rows)))
        kept = suppress(numbered, thresholds, has_doubles=form != ROWS)
        boxes = placement.to_original(kept.found.boxes)
        seen = visible(boxes)
        return msgspec.structs.replace(kept.found, boxes=boxes).select(seen), weights[kept.rows[seen]]


def by_metadata(evidence: Evidence) -> Claim | None:
    if evidence.metadata.task != "segment":
        return None
    table, prototypes = _tensors(evidence)
    if table is None or prototypes is None:
        return Claim(
            None, "metadata task=segment, but the outputs are no table and prototypes for the classes it names"
        )
    reason = f"metadata task=segment: {table.name} holds {table.form}, {prototypes.name} the prototypes of masks"
    return _claim(table, prototypes, reason)


def by_setting(evidence: Evidence) -> Claim:
    table, prototypes = _tensors(evidence)
    demand(evidence, NAME, _NEEDS, table is not None)
    assert table is not None
    assert prototypes is not None
    return _claim(table, prototypes, f"the setting family={NAME}")


def _tensors(evidence: Evidence) -> tuple[Table | None, TensorSpec | None]:
    """The table, where there are prototypes for it, and these."""
    prototypes = [spec for spec in evidence.outputs if len(spec.shape) == 4]
    if len(prototypes) != 1 or not isinstance(prototypes[0].shape[1], int):
        return None, None
    return table_of(evidence, prototypes[0].shape[1]), prototypes[0]


def _claim(table: Table, prototypes: TensorSpec, reason: str) -> Claim:
    return Claim(NAME, reason, classes=table.classes, reading=table.reading(prototypes.name))


MAKER = Maker(by_setting, ultralytics.feed, UltralyticsSegment)
