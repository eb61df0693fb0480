"""What a detector found in one picture, its form between processes, and Roboflow's JSON."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TypedDict

import msgspec
import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.bool_] | npt.NDArray[np.intp] | slice

# One detection between processes of one box and one version of edged: 24 bytes, little endian.
RECORD = np.dtype([("box", "<f4", (4,)), ("score", "<f4"), ("class_id", "<i4")])


class Detections(msgspec.Struct, frozen=True, eq=False):
    """n detections: boxes float32 [n, 4] xyxy in pixels of the original picture, scores float32 [n] in 0..1,
    class_ids int32 [n]; best score first where a decoder made them. Everything in it is finite."""

    boxes: npt.NDArray[np.float32]
    scores: npt.NDArray[np.float32]
    class_ids: npt.NDArray[np.int32]

    @classmethod
    def of(cls, boxes: npt.ArrayLike, scores: npt.ArrayLike, class_ids: npt.ArrayLike) -> Detections:
        """From anything array-like, in the right dtypes; ValueError where the lengths differ."""
        found = cls(
            np.asarray(boxes, np.float32).reshape(-1, 4),
            np.asarray(scores, np.float32).reshape(-1),
            np.asarray(class_ids, np.int32).reshape(-1),
        )
        if not len(found.boxes) == len(found.scores) == len(found.class_ids):
            raise ValueError(f"{len(found.boxes)} boxes, {len(found.scores)} scores, {len(found.class_ids)} class ids")
        return found

    @classmethod
    def empty(cls) -> Detections:
        return cls(np.empty((0, 4), np.float32), np.empty(0, np.float32), np.empty(0, np.int32))

    def __len__(self) -> int:
        return len(self.scores)

    def select(self, rows: Rows) -> Detections:
        """The chosen rows: a boolean mask [n], indices in the wanted order, or a slice."""
        return Detections(self.boxes[rows], self.scores[rows], self.class_ids[rows])

    def pack(self) -> bytes:
        """n records of `RECORD`."""
        records = np.empty(len(self), RECORD)
        records["box"], records["score"], records["class_id"] = self.boxes, self.scores, self.class_ids
        return records.tobytes()

    @classmethod
    def unpack(cls, packed: bytes | memoryview) -> Detections:
        """From `pack`. Copies: the bytes may lie in memory that is reused; ValueError for a torn record."""
        records = np.frombuffer(packed, RECORD)
        return cls(records["box"].copy(), records["score"].copy(), records["class_id"].copy())


class RoboflowImage(TypedDict):
    width: int
    height: int


RoboflowPrediction = TypedDict(
    "RoboflowPrediction",
    {
        "x": float,
        "y": float,
        "width": float,
        "height": float,
        "confidence": float,
        "class": str,
        "class_id": int,
        "detection_id": str,
    },
)


class RoboflowResult(TypedDict):
    image: RoboflowImage
    predictions: list[RoboflowPrediction]


def class_name(names: Sequence[str], class_id: int) -> str:
    """The name of a class, or its number as text where the model names no such class."""
    return names[class_id] if 0 <= class_id < len(names) else str(class_id)


def roboflow(
    detections: Detections, names: Sequence[str], width: int, height: int, ids: Sequence[str] | None = None
) -> RoboflowResult:
    """Roboflow's inference JSON, which `supervision.Detections.from_inference` reads as it is.

    x and y are the box's centre and all lengths are pixels of the original picture of width x height. `ids`
    gives the detection ids, one for each detection; otherwise each is a new uuid4.
    """
    labels = [str(uuid.uuid4()) for _ in range(len(detections))] if ids is None else ids
    rows = zip(
        detections.boxes.tolist(),
        detections.scores.tolist(),
        detections.class_ids.tolist(),
        labels,
        strict=True,
    )
    return {
        "image": {"width": width, "height": height},
        "predictions": [
            {
                "x": (x1 + x2) / 2,
                "y": (y1 + y2) / 2,
                "width": x2 - x1,
                "height": y2 - y1,
                "confidence": score,
                "class": class_name(names, class_id),
                "class_id": class_id,
                "detection_id": label,
            }
            for (x1, y1, x2, y2), score, class_id, label in rows
        ],
    }
