"""Ultralytics models with keypoints for each detection: task pose.

One table (see `ultralytics`) with k keypoints of x, y in input pixels and, if `kpt_shape` is [k, 3], a score after the
sigmoid. Source: `Pose.kpts_decode` of the ultralytics package. As there, keypoints outside the picture are moved to its
edge.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec
import numpy as np
import numpy.typing as npt

from edged.tensors import Array
from edged.vision import settings as keys
from edged.vision.detections import Detections
from edged.vision.families import ultralytics
from edged.vision.families.candidates import Candidates, suppress, to_picture
from edged.vision.families.contract import Claim, Decoder, Evidence, FamilySpec, Thresholds, require
from edged.vision.families.ultralytics import ROWS, select_from_table, table_in, table_of
from edged.vision.placement import Placement

NAME = "ultralytics-pose"
_NEEDS = "one output [N, 4+classes+3*keypoints, cells] or [N, rows, 6+3*keypoints]"


class UltralyticsPose(Decoder, frozen=True):
    """The decoder; `reading.keypoints` is how many each detection has, and how many values each of them."""

    name: ClassVar[str] = NAME

    def decode(
        self, outputs: Mapping[str, Array], index: int, placement: Placement, thresholds: Thresholds
    ) -> Detections:
        """See `Family.decode`; with keypoints. Their scores are 1 if the model has none."""
        form, (k, values) = self.reading.form, self.reading.keypoints
        offered, told = select_from_table(
            table_in(outputs, self.reading, index, k * values), form, k * values, thresholds.score
        )
        whole = np.flatnonzero(np.isfinite(told).all(axis=1))
        keypoints = _keypoints(told[whole].astype(np.float32).reshape(-1, k, values), placement)
        found = msgspec.structs.replace(offered.found.select(whole), keypoints=keypoints)
        kept = suppress(Candidates(found, whole), thresholds, needs_nms=form != ROWS)
        return to_picture(kept.found, placement)


def _keypoints(told: npt.NDArray[np.float32], placement: Placement) -> npt.NDArray[np.float32]:
    """Convert x, y (and score) in input pixels to x, y in pixels of the original picture and score, [n, k, 3]."""
    x1, y1, x2, y2 = placement.edges
    points = placement.points_to_original(told[..., :2])
    found = np.ones((*told.shape[:2], 3), np.float32)
    np.clip(points, np.array((x1, y1), np.float32), np.array((x2, y2), np.float32), out=found[..., :2])
    if told.shape[2] == 3:
        np.clip(told[..., 2], 0, 1, out=found[..., 2])
    return found


def by_metadata(evidence: Evidence) -> Claim | None:
    meta = evidence.metadata
    if meta.task != "pose":
        return None
    if meta.kpt_shape is None:
        return Claim(None, f"metadata task=pose without kpt_shape: set family={NAME} or family=raw")
    claim = _claim(evidence, meta.kpt_shape, "metadata task=pose")
    shape = f"{meta.kpt_shape[0]}x{meta.kpt_shape[1]}"
    return claim or Claim(None, f"metadata task=pose, but no output has {shape} values for keypoints of its classes")


def by_setting(evidence: Evidence) -> Claim:
    """Without `kpt_shape` the keypoints are all values besides the classes: as many as are named, else one."""
    shape = evidence.metadata.kpt_shape or _left(evidence)
    claim = None if shape is None else _claim(evidence, shape, f"the setting family={NAME}")
    require(evidence, NAME, _NEEDS, claim is not None)
    assert claim is not None
    return claim


def _left(evidence: Evidence) -> tuple[int, int] | None:
    """The number of keypoints, and of values per keypoint, that fill the table; three values rather than two."""
    tables = [spec for spec in evidence.outputs if len(spec.shape) == 3]
    if len(tables) != 1:
        return None
    _, lines, columns = tables[0].shape
    names = keys.words(evidence.settings, "names") or evidence.metadata.names
    # There are always more cells than values per cell, and more rows than values per row.
    is_rows = isinstance(lines, int) and isinstance(columns, int) and columns < lines
    whole, besides = (columns, 6) if is_rows else (lines, 4 + max(1, len(names)))
    rest = whole - besides if isinstance(whole, int) else 0
    for values in (3, 2):
        if rest > 0 and rest % values == 0:
            return rest // values, values
    return None


def _claim(evidence: Evidence, shape: tuple[int, int], reason: str) -> Claim | None:
    k, values = shape
    table = table_of(evidence, k * values)
    if table is None or values not in (2, 3):
        return None
    reason = f"{reason}: {table.name} holds {table.form} with {k} keypoints of {values} values"
    return Claim(NAME, reason, classes=table.classes, reading=table.reading(keypoints=shape))


SPEC = FamilySpec(by_setting, ultralytics.feed, UltralyticsPose)
