"""Converts messages to the answers of a model. An answer has either detections or a `Content`, which is about the whole
picture. Detections can have nested answers of a pipeline's second model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, overload

import msgspec
import numpy as np

from edged.client.status import code_name, known_code
from edged.errors import ErrorCode, InvalidInput
from edged.proto import cameras_pb2 as pb
from edged.vision import masks
from edged.vision.content import Anomaly, Box, Classes, ClassMap, Content, Depth, Embedding, Text, ValueMap, lines
from edged.vision.content_json import content_fields
from edged.vision.detections import Detections, class_name
from edged.vision.roboflow import roboflow


class Detection(msgspec.Struct, frozen=True):
    """One object: the corners of its box in pixels of the picture as sent, with the origin at the top left; score 0..1.

    Fields that the model or the stream does not provide are None or empty. An object keeps its `tracker_id` in all
    frames of the camera. `keypoints` are (x, y, score) in the model's order. `corners` are the four (x, y) of an
    oriented box, in order around it. `mask` has COCO's uncompressed run lengths, column by column over the whole
    picture; `Result.mask` converts it to pixels, `Result.polygon` to an outline. `nested` is the answer of a pipeline's
    second model about this object; None if the detection got no crop.
    """

    x1: float
    y1: float
    x2: float
    y2: float
    score: float
    class_id: int
    label: str
    tracker_id: int | None = None
    keypoints: tuple[tuple[float, float, float], ...] = ()
    corners: tuple[tuple[float, float], ...] = ()
    mask: tuple[int, ...] = ()
    nested: Nested | None = None


class Classification(msgspec.Struct, frozen=True):
    """One class that a classifier found; score 0..1."""

    class_id: int
    label: str
    score: float


class Nested(msgspec.Struct, frozen=True):
    """The answer of a pipeline's second model about the crop of a detection. A nested answer has `content`,
    `detections`, or, if this crop failed, `error`: (gRPC code name, message). Detections are in pixels of the whole
    picture, the best first. See `Result` for the other fields."""

    content: Content | None = None
    detections: tuple[Detection, ...] = ()
    class_labels: Mapping[int, str] = {}
    error: tuple[str, str] | None = None
    error_code: ErrorCode | None = None

    @property
    def classes(self) -> tuple[Classification, ...]:
        """The classes that a classifier found, the best first."""
        return classes_of(self.content, self.class_labels)

    @property
    def caption(self) -> str:
        """A short text for people: the first line of the content, or the labels of the detections."""
        if self.content is not None:
            return next((each.text for each in lines(self.content, Labels(self.class_labels))), "")
        return ", ".join(found.label for found in self.detections)


class Labels(Sequence[str]):
    """A sequence of labels, indexed by class id. Only known labels are stored; an unknown class has its id as label."""

    def __init__(self, known: Mapping[int, str]) -> None:
        self._known = known

    def __len__(self) -> int:
        return max(self._known, default=-1) + 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._known.get(index, str(index))


def detection_of(d: pb.Detection) -> Detection:
    """Convert a message. Raises InvalidInput if a nested content is invalid."""
    points, corners = d.keypoints, d.corners
    return Detection(
        d.x1,
        d.y1,
        d.x2,
        d.y2,
        d.score,
        d.class_id,
        d.label,
        d.tracker_id if d.HasField("tracker_id") else None,
        tuple(zip(points[::3], points[1::3], points[2::3], strict=True)) if points else (),
        tuple(zip(corners[::2], corners[1::2], strict=True)) if corners else (),
        tuple(d.mask),
        _nested(d.nested) if d.HasField("nested") else None,
    )


def _nested(message: pb.Nested) -> Nested:
    error = message.error
    return Nested(
        content_of(message.content) if message.HasField("content") else None,
        tuple(map(detection_of, message.detections)),
        labels_of(message.content),
        (code_name(error.code), error.message) if message.HasField("error") else None,
        known_code(error.reason),
    )


def classes_of(content: Content | None, labels: Mapping[int, str]) -> tuple[Classification, ...]:
    """Return the classes in a content, the best first; empty if the model is not a classifier."""
    if not isinstance(content, Classes):
        return ()
    rows = zip(content.class_ids, content.scores, strict=True)
    return tuple(Classification(number, labels.get(number, str(number)), score) for number, score in rows)


def nested_fields(nested: Nested, width: int, height: int) -> dict[str, Any]:
    """Return the JSON fields of a nested answer. `width` and `height` are the size of the whole picture, in pixels."""
    if nested.error is not None:
        return {"error": {"code": nested.error[0], "message": nested.error[1]}}
    if nested.content is not None:
        return content_fields(nested.content, Labels(nested.class_labels))
    labels = Labels({found.class_id: found.label for found in nested.detections})
    return {"predictions": roboflow(arrays_of(nested.detections, width, height), labels, width, height)["predictions"]}


def arrays_of(found: Sequence[Detection], width: int, height: int) -> Detections:
    """Return detections as arrays. `width` and `height` are the size of the picture, in pixels."""
    points = max((len(d.keypoints) for d in found), default=0)
    return Detections.of(
        [(d.x1, d.y1, d.x2, d.y2) for d in found],
        [d.score for d in found],
        [d.class_id for d in found],
        masks=[runs_of(d.mask or (width * height,)) for d in found] if any(d.mask for d in found) else None,
        keypoints=[d.keypoints or [(0.0, 0.0, 0.0)] * points for d in found] if points else None,
        corners=[d.corners or _corners(d) for d in found] if any(d.corners for d in found) else None,
        tracker_ids=[-1 if d.tracker_id is None else d.tracker_id for d in found]
        if any(d.tracker_id is not None for d in found)
        else None,
    )


def runs_of(mask: tuple[int, ...]) -> masks.Counts:
    """Return the run lengths of a mask as an array."""
    return np.asarray(mask, np.uint32)


def _corners(d: Detection) -> tuple[tuple[float, float], ...]:
    return (d.x1, d.y1), (d.x2, d.y1), (d.x2, d.y2), (d.x1, d.y2)


def detections_of(found: Detections, names: Sequence[str]) -> tuple[Detection, ...]:
    """Return one `Detection` for each row of the arrays."""
    rows = zip(found.boxes.tolist(), found.scores.tolist(), found.class_ids.tolist(), strict=True)
    return tuple(
        Detection(
            x1,
            y1,
            x2,
            y2,
            score,
            number,
            class_name(names, number),
            keypoints=() if found.keypoints is None else tuple(map(tuple, found.keypoints[row].tolist())),
            corners=() if found.corners is None else tuple(map(tuple, found.corners[row].tolist())),
            mask=() if found.masks is None else tuple(found.masks[row].tolist()),
        )
        for row, ((x1, y1, x2, y2), score, number) in enumerate(rows)
    )


def content_of(message: pb.Content) -> Content:
    """Convert a message to a content. Raises InvalidInput if the message has invalid sizes or numbers."""
    try:
        return _content(message)
    except ValueError as error:
        raise InvalidInput(f"the daemon sent an invalid content: {error}; update this client or the daemon") from None


def labels_of(message: pb.Content) -> Mapping[int, str]:
    """Return a mapping from the ids of the classes in a content to their labels."""
    rows = message.class_map.areas if message.HasField("class_map") else message.classes
    return {each.class_id: each.label for each in rows}


def _content(message: pb.Content) -> Content:
    if message.HasField("class_map"):
        grid = message.class_map
        return ClassMap(grid.width, grid.height, tuple(grid.class_ids), tuple(grid.lengths), _box(grid.box))
    if message.HasField("depth"):
        return Depth(_map(message.depth.map), message.depth.is_inverse, message.depth.unit)
    if message.HasField("embedding"):
        named = message.embedding
        return msgspec.structs.replace(Embedding.of(named.values), label=named.label, similarity=named.similarity)
    if message.HasField("text"):
        return Text(message.text.text, message.text.score)
    if message.HasField("anomaly"):
        found = message.anomaly
        return Anomaly(found.score, found.is_anomalous, _map(found.map) if found.HasField("map") else None)
    return Classes(tuple(each.class_id for each in message.classes), tuple(each.score for each in message.classes))


def _map(message: pb.ValueMap) -> ValueMap:
    return ValueMap(message.width, message.height, message.low, message.high, message.data, _box(message.box))


def _box(sides: Sequence[int]) -> Box | None:
    if not sides:
        return None
    x1, y1, x2, y2 = sides
    return x1, y1, x2, y2
