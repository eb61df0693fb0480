"""What a detector found in one picture."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from edged.vision import packing
from edged.vision.masks import Counts
from edged.vision.packing import RECORD

Rows = npt.NDArray[np.bool_] | npt.NDArray[np.intp] | slice


class Detections(msgspec.Struct, frozen=True, eq=False):
    """n detections: boxes float32 [n, 4] xyxy in pixels of the original picture, scores float32 [n] in 0..1,
    class_ids int32 [n]; best score first where a decoder made them. Everything in it is finite.

    What a model does not tell is None: `masks`, one of `masks.encode` over the whole picture for each detection;
    `keypoints` float32 [n, k, 3], x and y in pixels of the original picture and score; `corners` float32 [n, 4, 2] of
    oriented boxes, one after the other round each, of which `boxes` is then the hull, cut to the picture; `tracker_ids`
    int64 [n], negative for a detection that is not tracked.
    """

    boxes: npt.NDArray[np.float32]
    scores: npt.NDArray[np.float32]
    class_ids: npt.NDArray[np.int32]
    masks: tuple[Counts, ...] | None = None
    keypoints: npt.NDArray[np.float32] | None = None
    corners: npt.NDArray[np.float32] | None = None
    tracker_ids: npt.NDArray[np.int64] | None = None

    @classmethod
    def of(
        cls,
        boxes: npt.ArrayLike,
        scores: npt.ArrayLike,
        class_ids: npt.ArrayLike,
        *,
        masks: Sequence[npt.ArrayLike] | None = None,
        keypoints: npt.ArrayLike | None = None,
        corners: npt.ArrayLike | None = None,
        tracker_ids: npt.ArrayLike | None = None,
    ) -> Detections:
        """From anything array-like, in the right dtypes; ValueError where the lengths differ or a shape is wrong."""
        found = cls(
            np.asarray(boxes, np.float32).reshape(-1, 4),
            np.asarray(scores, np.float32).reshape(-1),
            np.asarray(class_ids, np.int32).reshape(-1),
            None if masks is None else tuple(np.asarray(mask, np.uint32).reshape(-1) for mask in masks),
            None if keypoints is None else np.asarray(keypoints, np.float32),
            None if corners is None else np.asarray(corners, np.float32),
            None if tracker_ids is None else np.asarray(tracker_ids, np.int64).reshape(-1),
        )
        n = len(found.scores)
        if not len(found.boxes) == n == len(found.class_ids):
            raise ValueError(f"{len(found.boxes)} boxes, {n} scores, {len(found.class_ids)} class ids")
        if found.masks is not None and len(found.masks) != n:
            raise ValueError(f"{len(found.masks)} masks, {n} scores")
        if found.keypoints is not None and (found.keypoints.shape[::2] != (n, 3) or found.keypoints.ndim != 3):
            raise ValueError(f"keypoints of shape {found.keypoints.shape}, wanted ({n}, k, 3)")
        if found.corners is not None and found.corners.shape != (n, 4, 2):
            raise ValueError(f"corners of shape {found.corners.shape}, wanted ({n}, 4, 2)")
        if found.tracker_ids is not None and len(found.tracker_ids) != n:
            raise ValueError(f"{len(found.tracker_ids)} tracker ids, {n} scores")
        return found

    @classmethod
    def empty(cls) -> Detections:
        return cls(np.empty((0, 4), np.float32), np.empty(0, np.float32), np.empty(0, np.int32))

    def __len__(self) -> int:
        return len(self.scores)

    def select(self, rows: Rows) -> Detections:
        """The chosen rows: a boolean mask [n], indices in the wanted order, or a slice."""
        return Detections(
            self.boxes[rows],
            self.scores[rows],
            self.class_ids[rows],
            None if self.masks is None else _chosen(self.masks, rows),
            None if self.keypoints is None else self.keypoints[rows],
            None if self.corners is None else self.corners[rows],
            None if self.tracker_ids is None else self.tracker_ids[rows],
        )

    def pack(self) -> bytes:
        """The form between processes of one box: n records of `RECORD`, and what else there is behind a header."""
        records = np.empty(len(self), RECORD)
        records["box"], records["score"], records["class_id"] = self.boxes, self.scores, self.class_ids
        if self.masks is None and self.keypoints is None and self.corners is None and self.tracker_ids is None:
            return records.tobytes()
        return packing.pack(packing.Parts(records, self.masks, self.keypoints, self.corners, self.tracker_ids))

    @classmethod
    def unpack(cls, packed: bytes | memoryview) -> Detections:
        """From `pack`. Copies: the bytes may lie in memory that is reused; ValueError where it is torn."""
        if packed[:4] != packing.MAGIC:
            records = np.frombuffer(packed, RECORD)
            return cls(records["box"].copy(), records["score"].copy(), records["class_id"].copy())
        parts = packing.unpack(packed)
        records = parts.records
        return cls(
            records["box"].copy(),
            records["score"].copy(),
            records["class_id"].copy(),
            parts.masks,
            parts.keypoints,
            parts.corners,
            parts.tracker_ids,
        )


def class_name(names: Sequence[str], class_id: int) -> str:
    """The name of a class, or its number as text where the model names no such class."""
    return names[class_id] if 0 <= class_id < len(names) else str(class_id)


def _chosen(masks: tuple[Counts, ...], rows: Rows) -> tuple[Counts, ...]:
    if isinstance(rows, slice):
        return masks[rows]
    return tuple(masks[index] for index in np.arange(len(masks))[rows].tolist())
