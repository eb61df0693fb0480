"""Copies msgspec structs to protobuf messages and back, by field name.

A field has the same name and an equal type on both sides; None stands for an absent field. Two shapes differ:

- A message whose only field is a map is that map in the struct, since protobuf has no map of maps.
- A message inside a message may be flat in the struct: if the struct has no field of its name, its fields are taken.
"""

from __future__ import annotations

import functools
from typing import Any, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from google.protobuf.message import Message

# Of google.protobuf.descriptor or, for the same, of its C implementation.
Descriptor: TypeAlias = Any
FieldDescriptor: TypeAlias = Any

AnyMessage = TypeVar("AnyMessage", bound=Message)
AnyStruct = TypeVar("AnyStruct", bound=msgspec.Struct)


def to_message(struct: msgspec.Struct, kind: type[AnyMessage]) -> AnyMessage:
    """Return the message of a struct; fields that only one of them has are left out."""
    return kind(**_arguments(msgspec.to_builtins(struct), kind.DESCRIPTOR))


def to_struct(message: Message, kind: type[AnyStruct]) -> AnyStruct:
    """Return the struct of a message; fields that only one of them has are left out. Maps are sorted by key."""
    known = message.DESCRIPTOR.fields_by_name
    hints = _hints(kind)
    nested = [getattr(message, name) for name in known if name not in hints and _is_message(known[name])]
    sources = (message, *nested)
    return kind(
        **{
            name: _read(source, name, hint)
            for name, hint in hints.items()
            for source in sources
            if name in source.DESCRIPTOR.fields_by_name
        }
    )


@functools.cache
def _hints(kind: type[msgspec.Struct]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {name: hints[name] for name in kind.__struct_fields__}


def _is_message(field: FieldDescriptor) -> bool:
    """Whether a field holds one message: not several, not a map."""
    return bool(field.message_type and field.has_presence)


def _only_map(descriptor: Descriptor) -> str:
    """The name of the only field if that is a map, otherwise empty."""
    if len(descriptor.fields) != 1:
        return ""
    field = descriptor.fields[0]
    return str(field.name) if field.message_type and field.message_type.GetOptions().map_entry else ""


def _arguments(plain: dict[str, Any], descriptor: Descriptor) -> dict[str, Any]:
    return {field.name: _argument(plain, field) for field in descriptor.fields}


def _argument(plain: dict[str, Any], field: FieldDescriptor) -> Any:
    if field.name not in plain:
        flat = _arguments(plain, field.message_type) if _is_message(field) else {}
        return flat if any(flat.values()) else None
    value, kind = plain[field.name], field.message_type
    if kind is None or value is None:
        return value
    if kind.GetOptions().map_entry:
        of = kind.fields_by_name["value"].message_type
        return value if of is None else {name: _nested(each, of) for name, each in value.items()}
    return _nested(value, kind) if isinstance(value, dict) else [_nested(each, kind) for each in value]


def _nested(plain: dict[str, Any], kind: Descriptor) -> dict[str, Any]:
    name = _only_map(kind)
    return {name: plain} if name else _arguments(plain, kind)


def _read(message: Message, name: str, hint: Any) -> Any:
    kinds: list[Any] = [each for each in get_args(hint) if each is not type(None)]
    if len(kinds) == len(get_args(hint)):
        return _value(getattr(message, name), hint)
    field: FieldDescriptor = message.DESCRIPTOR.fields_by_name[name]
    is_absent = field.has_presence and not message.HasField(name)
    return None if is_absent else _value(getattr(message, name), kinds[0])


def _value(value: Any, hint: Any) -> Any:
    origin, of = get_origin(hint), get_args(hint)
    if origin is tuple:
        return tuple(_value(each, of[0]) for each in value)
    if origin is dict:
        inner = getattr(value, _only_map(value.DESCRIPTOR)) if isinstance(value, Message) else value
        return {name: _value(inner[name], of[1]) for name in sorted(inner)}
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return to_struct(value, hint)
    return value
