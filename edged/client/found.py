"""From arrays of the vision room to the detections and classes of a result."""

from __future__ import annotations

from collections.abc import Sequence

from edged.client.result import Classification, Detection
from edged.vision.detections import Classes, Detections, class_name


def detections_of(found: Detections, names: Sequence[str]) -> tuple[Detection, ...]:
    """One for each row, in its order."""
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


def classes_of(found: Classes, names: Sequence[str]) -> tuple[Classification, ...]:
    """The best first."""
    rows = zip(found.class_ids.tolist(), found.scores.tolist(), strict=True)
    return tuple(Classification(number, class_name(names, number), score) for number, score in rows)
