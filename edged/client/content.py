"""Converts protobuf messages to contents: what a model found in a whole picture (`edged.vision.content`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from edged.errors import InvalidInput
from edged.proto import cameras_pb2 as pb
from edged.vision.content import Anomaly, Box, Classes, ClassMap, Content, Depth, Embedding, Text, ValueMap


def content_of(message: pb.Content) -> Content:
    """Convert a message to a content. Raises InvalidInput if the message has invalid sizes or numbers."""
    try:
        return _content(message)
    except ValueError as error:
        raise InvalidInput(f"the daemon sent an invalid content: {error}; update this client or the daemon") from None


def labels_of(message: pb.Content) -> Mapping[int, str]:
    """Return the labels of the classes in a content, by class id."""
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
