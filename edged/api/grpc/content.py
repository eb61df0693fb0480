"""Converts contents, answers about a whole picture, to messages."""

from __future__ import annotations

from collections.abc import Sequence

from edged.proto import cameras_pb2 as pb
from edged.vision.content import Classes, ClassMap, Content, Depth, Embedding, Text, ValueMap
from edged.vision.detections import class_name


def fill_content(message: pb.Content, content: Content, names: Sequence[str]) -> None:
    """Write a content into an empty message. `names` are the labels of the classes."""
    message.SetInParent()
    if isinstance(content, Classes):
        for number, score in zip(content.class_ids, content.scores, strict=True):
            message.classes.add(class_id=number, label=class_name(names, number), score=score)
    elif isinstance(content, ClassMap):
        grid = message.class_map
        grid.width, grid.height = content.width, content.height
        grid.class_ids.extend(content.class_ids)
        grid.lengths.extend(content.lengths)
        grid.box.extend(content.box or ())
        for number, share in content.shares():
            grid.areas.add(class_id=number, label=class_name(names, number), share=share)
    elif isinstance(content, Depth):
        message.depth.is_inverse, message.depth.unit = content.is_inverse, content.unit
        _fill_map(message.depth.map, content.map)
    elif isinstance(content, Embedding):
        message.embedding.values.extend(content.vector().tolist())
        message.embedding.label, message.embedding.similarity = content.label, content.similarity
    elif isinstance(content, Text):
        message.text.text, message.text.score = content.text, content.score
    else:
        message.anomaly.score, message.anomaly.is_anomalous = content.score, content.is_anomalous
        if content.map is not None:
            _fill_map(message.anomaly.map, content.map)


def _fill_map(message: pb.ValueMap, values: ValueMap) -> None:
    message.width, message.height = values.width, values.height
    message.low, message.high, message.data = values.low, values.high, values.data
    message.box.extend(values.box or ())
