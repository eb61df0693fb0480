"""Converts detections to Roboflow's inference JSON. The package `supervision` reads detections from this JSON with
`Detections.from_inference`, and keypoints with `KeyPoints.from_inference`."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, TypedDict

from edged.vision.detections import Detections, class_name
from edged.vision.masks import polygon


class RoboflowImage(TypedDict):
    width: int
    height: int


class RoboflowPoint(TypedDict):
    x: float
    y: float


RoboflowKeypoint = TypedDict(
    "RoboflowKeypoint",
    {"x": float, "y": float, "confidence": float, "class": str, "class_id": int},
)

_Prediction = TypedDict(
    "_Prediction",
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


class RoboflowPrediction(_Prediction, total=False):
    """One prediction of the JSON. `points` is the outer contour of the mask, or the corners of the oriented box. edged
    adds the field `nested`, the answer of a pipeline's second model about this prediction."""

    points: list[RoboflowPoint]
    keypoints: list[RoboflowKeypoint]
    tracker_id: int
    nested: dict[str, Any]


class RoboflowResult(TypedDict):
    image: RoboflowImage
    predictions: list[RoboflowPrediction]


def roboflow(
    detections: Detections,
    names: Sequence[str],
    width: int,
    height: int,
) -> RoboflowResult:
    """Convert detections in a picture of width x height pixels to the fields of the JSON.

    x and y are the centre of the box. All lengths are in pixels of the original picture. Detection ids are new uuid4s.
    The name of a keypoint is its number. Raises ValueError if the masks do not have the size of the picture.
    """
    trackers = detections.tracker_ids
    predictions: list[RoboflowPrediction] = []
    for i, ((x1, y1, x2, y2), score, class_id) in enumerate(
        zip(detections.boxes.tolist(), detections.scores.tolist(), detections.class_ids.tolist(), strict=True)
    ):
        prediction: RoboflowPrediction = {
            "x": (x1 + x2) / 2,
            "y": (y1 + y2) / 2,
            "width": x2 - x1,
            "height": y2 - y1,
            "confidence": score,
            "class": class_name(names, class_id),
            "class_id": class_id,
            "detection_id": str(uuid.uuid4()),
        }
        if detections.masks is not None:
            prediction["points"] = _points(polygon(detections.masks[i], width, height).tolist())
        elif detections.corners is not None:
            prediction["points"] = _points(detections.corners[i].tolist())
        if detections.keypoints is not None:
            prediction["keypoints"] = _keypoints(detections.keypoints[i].tolist())
        if trackers is not None and trackers[i] >= 0:
            prediction["tracker_id"] = int(trackers[i])
        predictions.append(prediction)
    return {"image": {"width": width, "height": height}, "predictions": predictions}


def _points(points: list[list[float]]) -> list[RoboflowPoint]:
    return [{"x": float(x), "y": float(y)} for x, y in points]


def _keypoints(keypoints: list[list[float]]) -> list[RoboflowKeypoint]:
    return [
        {"x": x, "y": y, "confidence": score, "class": str(index), "class_id": index}
        for index, (x, y, score) in enumerate(keypoints)
    ]
