"""Detections as bytes between processes of one box and one version of edged, little endian.

Boxes alone are records of 24 bytes and nothing else. Where there is more, a header comes first that no record can be
taken for (its first four bytes are not a number), which says what follows:

    header | n records | tracker ids | keypoints | corners | length of each mask | runs of all masks
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from edged.vision.masks import Counts

# One detection.
RECORD = np.dtype([("box", "<f4", (4,)), ("score", "<f4"), ("class_id", "<i4")])

MAGIC = b"\xed\x9e\xff\x7f"  # as float32: NaN

_HEADER = struct.Struct("<4sIIIQ")  # magic, which parts, detections, keypoints of each, runs of all masks
_TRACKERS, _KEYPOINTS, _CORNERS, _MASKS = 1, 2, 4, 8

_ID, _FLOAT, _COUNT = np.dtype("<i8"), np.dtype("<f4"), np.dtype("<u4")

Records: TypeAlias = npt.NDArray[np.void]


class Parts(NamedTuple):
    """What detections are made of; None for what is not there."""

    records: Records
    masks: tuple[Counts, ...] | None = None
    keypoints: npt.NDArray[np.float32] | None = None  # [n, k, 3]
    corners: npt.NDArray[np.float32] | None = None  # [n, 4, 2]
    tracker_ids: npt.NDArray[np.int64] | None = None  # [n]


def pack(parts: Parts) -> bytes:
    """The parts that are there, behind a header."""
    _, masks, keypoints, corners, tracker_ids = parts
    there = runs = 0
    pieces = [b"", parts.records.tobytes()]
    if tracker_ids is not None:
        there |= _TRACKERS
        pieces.append(tracker_ids.astype(_ID, copy=False).tobytes())
    if keypoints is not None:
        there |= _KEYPOINTS
        pieces.append(keypoints.astype(_FLOAT, copy=False).tobytes())
    if corners is not None:
        there |= _CORNERS
        pieces.append(corners.astype(_FLOAT, copy=False).tobytes())
    if masks is not None:
        there |= _MASKS
        lengths = [len(mask) for mask in masks]
        runs = sum(lengths)
        pieces += [np.array(lengths, _COUNT).tobytes(), *(mask.astype(_COUNT, copy=False).tobytes() for mask in masks)]
    each = 0 if keypoints is None else keypoints.shape[1]
    pieces[0] = _HEADER.pack(MAGIC, there, len(parts.records), each, runs)
    return b"".join(pieces)


def unpack(packed: bytes | memoryview) -> Parts:
    """What `pack` was given; copies, but for the records. ValueError where it is torn."""
    if len(packed) < _HEADER.size:
        raise ValueError(f"{len(packed)} bytes of detections are too few for their header")
    _, there, n, each, runs = _HEADER.unpack_from(packed)
    reader = _Reader(packed, _HEADER.size)
    records = reader.take(n, RECORD)
    ids = reader.take(n, _ID).copy() if there & _TRACKERS else None
    keypoints = reader.take(n * each * 3, _FLOAT).reshape(n, each, 3).copy() if there & _KEYPOINTS else None
    corners = reader.take(n * 8, _FLOAT).reshape(n, 4, 2).copy() if there & _CORNERS else None
    masks = _masks(reader, n, runs) if there & _MASKS else None
    reader.end()
    return Parts(records, masks, keypoints, corners, ids)


def _masks(reader: _Reader, n: int, runs: int) -> tuple[Counts, ...]:
    stops = np.cumsum(reader.take(n, _COUNT), dtype=np.int64).tolist()
    every = reader.take(runs, _COUNT).copy()
    if (stops[-1] if stops else 0) != runs:
        raise ValueError(f"the lengths of the masks do not add up to {runs}")
    return tuple(every[start:stop] for start, stop in zip([0, *stops], stops, strict=False))


class _Reader:
    """Takes arrays from bytes, one after the other."""

    def __init__(self, packed: bytes | memoryview, at: int) -> None:
        self._packed = packed
        self._at = at

    def take(self, count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        if self._at + count * dtype.itemsize > len(self._packed):
            raise ValueError(f"{len(self._packed)} bytes of detections are too few")
        found = np.frombuffer(self._packed, dtype, count, self._at) if count else np.empty(0, dtype)
        self._at += count * dtype.itemsize
        return found

    def end(self) -> None:
        if self._at != len(self._packed):
            raise ValueError(f"{len(self._packed)} bytes of detections, {self._at} are told by their header")
