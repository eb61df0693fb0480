"""The JSON of a content. Classes have the fields of Roboflow's classification JSON."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, TypeAlias

from edged.vision.content import Anomaly, Classes, ClassMap, Content, Depth, Embedding, Text, ValueMap
from edged.vision.detections import class_name

Fields: TypeAlias = dict[str, Any]


def content_fields(content: Content, names: Sequence[str]) -> Fields:
    """Return the fields of a content.

    - classes: `predictions` of {class, class_id, confidence}, and `top`, the best class
    - class map: `class_map` of {width, height, class_ids, lengths, areas}; see `ClassMap`. An area is {class, class_id,
      share}, the share of the picture in 0..1
    - depth: `depth` of {unit, is_inverse, map}
    - embedding: `embedding`, a list of numbers
    - text: `text`, and `confidence` in 0..1
    - anomaly: `anomaly` of {score, is_anomalous}, and `map` if the model has one

    A map is {width, height, low, high, data}: `data` is base64 of the levels of a `ValueMap`.
    """
    if isinstance(content, Classes):
        rows = zip(content.class_ids, content.scores, strict=True)
        found = [{"class": class_name(names, each), "class_id": each, "confidence": score} for each, score in rows]
        return {"predictions": found, "top": found[0]["class"] if found else ""}
    if isinstance(content, ClassMap):
        areas = [{"class": class_name(names, n), "class_id": n, "share": share} for n, share in content.shares()]
        size = {"width": content.width, "height": content.height}
        return {"class_map": {**size, "class_ids": content.class_ids, "lengths": content.lengths, "areas": areas}}
    if isinstance(content, Depth):
        return {"depth": {"unit": content.unit, "is_inverse": content.is_inverse, "map": _map(content.map)}}
    if isinstance(content, Embedding):
        return {"embedding": content.vector().tolist()}
    if isinstance(content, Text):
        return {"text": content.text, "confidence": content.score}
    assert isinstance(content, Anomaly)
    heat = {} if content.map is None else {"map": _map(content.map)}
    return {"anomaly": {"score": content.score, "is_anomalous": content.is_anomalous, **heat}}


def _map(values: ValueMap) -> Fields:
    size = {"width": values.width, "height": values.height, "low": values.low, "high": values.high}
    return {**size, "data": base64.b64encode(values.data).decode()}
