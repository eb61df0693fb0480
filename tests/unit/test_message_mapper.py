"""Every API type reaches the client unchanged."""

from __future__ import annotations

from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
from google.protobuf.message import Message

from edged import api_types
from edged.message_mapper import to_message, to_struct
from edged.proto import operations_pb2 as pb

PAIRS: list[tuple[type[msgspec.Struct], type[Message]]] = [
    (api_types.ModelInfo, pb.ModelStatus),
    (api_types.EngineInfo, pb.Engine),
    (api_types.Explanation, pb.Explanation),
    (api_types.DeviceInfo, pb.GetDeviceResponse),
    (api_types.EngineProgress, pb.EngineProgress),
    (api_types.StatusInfo, pb.GetStatusResponse),
    (api_types.ReloadedKey, pb.ReloadedKey),
    (api_types.CameraInfo, pb.CameraStatus),
    (api_types.LoadInfo, pb.GetLoadResponse),
]
every_pair = pytest.mark.parametrize(("kind", "message"), PAIRS, ids=lambda each: each.__name__)


def example(hint: Any, name: str = "") -> Any:
    """Return a value of a type that differs from protobuf's default."""
    of = [each for each in get_args(hint) if each is not type(None)]
    if get_origin(hint) is tuple:
        return (example(of[0]), example(of[0]))
    if get_origin(hint) is dict:
        return {"a": example(of[1]), "b": example(of[1])}
    if of:
        return example(of[0])
    if issubclass(hint, msgspec.Struct):
        known = {field: each for field, each in get_type_hints(hint).items() if field in hint.__struct_fields__}
        return hint(**{field: example(each) for field, each in known.items() if field != "format"})
    return {str: "words", bool: True, int: 3, float: 2.5}[hint]


def across(value: msgspec.Struct, message: type[Message]) -> msgspec.Struct:
    sent = to_message(value, message).SerializeToString()
    return to_struct(message.FromString(sent), type(value))


@every_pair
def test_message_mapper_full_struct_arrives_unchanged(kind: type[msgspec.Struct], message: type[Message]) -> None:
    value = example(kind)
    assert across(value, message) == value


@every_pair
def test_message_mapper_empty_message_gives_absent_fields_none(
    kind: type[msgspec.Struct], message: type[Message]
) -> None:
    found, hints = to_struct(message(), kind), get_type_hints(kind)
    for name in kind.__struct_fields__:
        if type(None) in get_args(hints[name]):
            assert getattr(found, name) is None


def test_message_mapper_flat_struct_without_making_sends_no_nested_message() -> None:
    progress = api_types.EngineProgress("k", "m", "null", "fp32", "cpu", "ready", "")
    assert not to_message(progress, pb.EngineProgress).HasField("making")
    assert across(progress, pb.EngineProgress) == progress
