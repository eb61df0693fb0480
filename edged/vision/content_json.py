"""Converts a content to the fields of its JSON. Classes have the fields `predictions` and `top` of
Roboflow's classification JSON."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, TypeAlias

from edged.vision.content import Anomaly, Classes, ClassMap, Content, Depth, Embedding, Text, ValueMap
from edged.vision.detections import class_name

Fields: TypeAlias = dict[str, Any]


def content_fields(content: Content, names: Sequence[str], maps: bool = True) -> Fields:
    """Return the JSON fields of a content, a model's answer about a whole picture.

    - classes: `predictions` of {class, class_id, confidence}, and `top`, the best class
    - class map: `class_map` of {width, height, class_ids, lengths, areas}; see `ClassMap`. An area is {class, class_id,
      share}; `share` is the part of the map that has this class, in 0..1
    - depth: `depth` of {unit, is_inverse, map}
    - embedding: `embedding`, a list of numbers; with a gallery `similarity` and `label` (empty below the threshold)
    - text: `text`, and `confidence` in 0..1
    - anomaly: `anomaly` of {score, is_anomalous}, and `map` if the model has one

    A map is {width, height, low, high, data}: `data` is base64 of the levels of a `ValueMap`. A map of a part of the
    picture also has its `box`, [x1, y1, x2, y2] in pixels. If `maps` is False, the large fields are left out:
    `class_ids`, `lengths` and `data`.
    """
    if isinstance(content, Classes):
        rows = zip(content.class_ids, content.scores, strict=True)
        found = [{"class": class_name(names, each), "class_id": each, "confidence": score} for each, score in rows]
        return {"predictions": found, "top": found[0]["class"] if found else ""}
    if isinstance(content, ClassMap):
        areas = [{"class": class_name(names, n), "class_id": n, "share": share} for n, share in content.shares()]
        runs = {"class_ids": content.class_ids, "lengths": content.lengths} if maps else {}
        return {"class_map": {**_size(content), **runs, "areas": areas}}
    if isinstance(content, Depth):
        return {"depth": {"unit": content.unit, "is_inverse": content.is_inverse, "map": _map(content.map, maps)}}
    if isinstance(content, Embedding):
        named = {"label": content.label, "similarity": content.similarity}
        is_named = content.label or content.similarity
        return {"embedding": content.vector().tolist(), **(named if is_named else {})}
    if isinstance(content, Text):
        return {"text": content.text, "confidence": content.score}
    assert isinstance(content, Anomaly)
    heat = {} if content.map is None else {"map": _map(content.map, maps)}
    return {"anomaly": {"score": content.score, "is_anomalous": content.is_anomalous, **heat}}


def _map(values: ValueMap, maps: bool) -> Fields:
    levels = {"data": base64.b64encode(values.data).decode()} if maps else {}
    return {**_size(values), "low": values.low, "high": values.high, **levels}


def _size(cells: ClassMap | ValueMap) -> Fields:
    size = {"width": cells.width, "height": cells.height}
    return size if cells.box is None else {**size, "box": cells.box}
