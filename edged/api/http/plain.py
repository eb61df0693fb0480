"""A protobuf message as JSON has it over HTTP: the fields' own names, and numbers where protobuf's own JSON has strings
for those of 64 bits. Pure."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from google.protobuf.message import Message


def fields(message: Message) -> dict[str, Any]:
    """Every field, with its default where it is not set; messages and members of a oneof only where they are."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        found[field.name] = _value(field, getattr(message, field.name))
    return found


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        each = field.message_type.fields_by_name["value"]
        return {str(key): _single(each, value[key]) for key in sorted(value)}
    if field.is_repeated:
        return [_single(field, each) for each in value]
    return _single(field, value)


def _single(field: Any, value: Any) -> Any:
    if isinstance(value, Message):
        return fields(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return value
