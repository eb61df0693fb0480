"""Detections of one picture, and the packed form of detections in messages between processes on one edge box.

Both processes must run the same version of edged. Packed detections with boxes only are fixed-size records. Detections
with more fields start with a header. The first four bytes of the header are a float32 NaN, which no record begins with.
The header describes the parts that follow, in little endian:

    header | n records | tracker ids | keypoints | corners | length of each mask | runs of all masks
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from edged.vision.masks import Counts

Rows = npt.NDArray[np.bool_] | npt.NDArray[np.intp] | slice

MOST_DETECTIONS = 4096  # of a picture
RECORD = np.dtype([("box", "<f4", (4,)), ("score", "<f4"), ("class_id", "<i4")])

_MAGIC = b"\xed\x9e\xff\x7f"
_HEADER = struct.Struct("<4sIIIQ")  # magic, flags, detections, keypoints per detection, runs of all masks
_TRACKERS, _KEYPOINTS, _CORNERS, _MASKS = 1, 2, 4, 8
_ID, _FLOAT, _COUNT = np.dtype("<i8"), np.dtype("<f4"), np.dtype("<u4")


class Detections(msgspec.Struct, frozen=True, eq=False):
    """n detections: boxes float32 [n, 4] xyxy in pixels of the original picture, scores float32 [n] in 0..1, class_ids
    int32 [n]. Decoders return the best score first. All values are finite.

    The other fields are None if the model does not provide them. `masks` has one mask from `masks.encode` per
    detection, over the whole picture. `keypoints`, float32 [n, k, 3], has x and y in pixels of the original picture,
    and the score. `corners`, float32 [n, 4, 2], has the corners of oriented boxes, in order around each box. With
    `corners`, `boxes` has the axis-aligned bounding boxes of the oriented boxes, cut to the picture. `tracker_ids`,
    int64 [n], are negative for detections that are not tracked.
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
        """Convert array-likes to the right dtypes. Raises ValueError if lengths differ or a shape is wrong."""
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
            raise ValueError(
                f"{len(found.boxes)} boxes, {n} scores, {len(found.class_ids)} class ids; the numbers must be equal"
            )
        if found.masks is not None and len(found.masks) != n:
            raise ValueError(f"{len(found.masks)} masks, but {n} scores; the numbers must be equal")
        if found.keypoints is not None and (found.keypoints.shape[::2] != (n, 3) or found.keypoints.ndim != 3):
            raise ValueError(f"keypoints have the shape {found.keypoints.shape}, expected ({n}, k, 3)")
        if found.corners is not None and found.corners.shape != (n, 4, 2):
            raise ValueError(f"corners have the shape {found.corners.shape}, expected ({n}, 4, 2)")
        if found.tracker_ids is not None and len(found.tracker_ids) != n:
            raise ValueError(f"{len(found.tracker_ids)} tracker ids, but {n} scores; the numbers must be equal")
        return found

    @classmethod
    def empty(cls) -> Detections:
        return cls(np.empty((0, 4), np.float32), np.empty(0, np.float32), np.empty(0, np.int32))

    def __len__(self) -> int:
        return len(self.scores)

    def select(self, rows: Rows) -> Detections:
        """Return the chosen rows; `rows` is a boolean mask [n], indices in the wanted order, or a slice."""
        return Detections(
            self.boxes[rows],
            self.scores[rows],
            self.class_ids[rows],
            None if self.masks is None else _select_masks(self.masks, rows),
            None if self.keypoints is None else self.keypoints[rows],
            None if self.corners is None else self.corners[rows],
            None if self.tracker_ids is None else self.tracker_ids[rows],
        )

    def pack(self) -> bytes:
        """Return the detections as bytes: one `RECORD` for each detection. If the detections have further fields, a
        header comes before the records, and the fields come after the records."""
        records = np.empty(len(self), RECORD)
        records["box"], records["score"], records["class_id"] = self.boxes, self.scores, self.class_ids
        if self.masks is None and self.keypoints is None and self.corners is None and self.tracker_ids is None:
            return records.tobytes()
        flags = keypoints = runs = 0
        pieces = [b"", records.tobytes()]
        if self.tracker_ids is not None:
            flags |= _TRACKERS
            pieces.append(self.tracker_ids.astype(_ID, copy=False).tobytes())
        if self.keypoints is not None:
            flags |= _KEYPOINTS
            keypoints = self.keypoints.shape[1]
            pieces.append(self.keypoints.astype(_FLOAT, copy=False).tobytes())
        if self.corners is not None:
            flags |= _CORNERS
            pieces.append(self.corners.astype(_FLOAT, copy=False).tobytes())
        if self.masks is not None:
            flags |= _MASKS
            lengths = [len(mask) for mask in self.masks]
            runs = sum(lengths)
            pieces.append(np.array(lengths, _COUNT).tobytes())
            pieces += [mask.astype(_COUNT, copy=False).tobytes() for mask in self.masks]
        pieces[0] = _HEADER.pack(_MAGIC, flags, len(self), keypoints, runs)
        return b"".join(pieces)

    @classmethod
    def unpack(cls, packed: bytes | memoryview) -> Detections:
        """Reverse `pack`. The arrays are copies, because the memory of `packed` may be reused. Raises ValueError if
        `packed` is truncated, too long or inconsistent."""
        if packed[:4] != _MAGIC:
            return cls(*_columns(np.frombuffer(packed, RECORD)))
        if len(packed) < _HEADER.size:
            raise ValueError(f"{len(packed)} bytes are too few for the header of detections")
        _, flags, n, keypoints, runs = _HEADER.unpack_from(packed)
        reader = _Reader(packed, _HEADER.size)
        boxes, scores, class_ids = _columns(reader.take(n, RECORD))
        tracker_ids = reader.take(n, _ID).copy() if flags & _TRACKERS else None
        points = reader.take(n * keypoints * 3, _FLOAT).reshape(n, keypoints, 3).copy() if flags & _KEYPOINTS else None
        corners = reader.take(n * 8, _FLOAT).reshape(n, 4, 2).copy() if flags & _CORNERS else None
        masks = _unpack_masks(reader, n, runs) if flags & _MASKS else None
        reader.end()
        return cls(boxes, scores, class_ids, masks, points, corners, tracker_ids)


def count_packed(packed: bytes | memoryview) -> int:
    """Return the number of detections in packed detections, without unpacking."""
    if packed[:4] == _MAGIC and len(packed) >= _HEADER.size:
        return int(_HEADER.unpack_from(packed)[2])
    return len(packed) // RECORD.itemsize


def class_name(names: Sequence[str], class_id: int) -> str:
    """Return the name of a class, or its number as text if the model has no name for it."""
    return names[class_id] if 0 <= class_id < len(names) else str(class_id)


def _select_masks(masks: tuple[Counts, ...], rows: Rows) -> tuple[Counts, ...]:
    if isinstance(rows, slice):
        return masks[rows]
    return tuple(masks[index] for index in np.arange(len(masks))[rows].tolist())


def _columns(records: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    return records["box"].copy(), records["score"].copy(), records["class_id"].copy()


def _unpack_masks(reader: _Reader, n: int, runs: int) -> tuple[Counts, ...]:
    stops = np.cumsum(reader.take(n, _COUNT), dtype=np.int64).tolist()
    all_runs = reader.take(runs, _COUNT).copy()
    if (stops[-1] if stops else 0) != runs:
        raise ValueError(
            f"the header of the packed detections says that all masks have {runs} runs together, but the lengths of the"
            " masks add up to another number"
        )
    return tuple(all_runs[start:stop] for start, stop in zip([0, *stops], stops, strict=False))


class _Reader:
    """Reads consecutive arrays from bytes."""

    def __init__(self, packed: bytes | memoryview, position: int) -> None:
        self._packed = packed
        self._position = position

    def take(self, count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        if self._position + count * dtype.itemsize > len(self._packed):
            raise ValueError(f"the packed detections have {len(self._packed)} bytes, fewer than their header describes")
        found = np.frombuffer(self._packed, dtype, count, self._position) if count else np.empty(0, dtype)
        self._position += count * dtype.itemsize
        return found

    def end(self) -> None:
        if self._position != len(self._packed):
            raise ValueError(
                f"the packed detections have {len(self._packed)} bytes, but their header describes {self._position}"
            )
