"""Copies msgspec structs to protobuf messages and back: each field to the field with the same name.

A field has the same name and type on both sides; None means an absent field. There are two exceptions:

- If a message's only field is a map, the struct has this map in place of the message. Such messages exist only because
  a map of protobuf cannot contain maps.
- A nested message may be flat in the struct: if no field of the struct has the nested message's name, the struct has
  the nested message's fields instead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from google.protobuf.message import Message

# Types of google.protobuf.descriptor or of its C implementation.
Descriptor: TypeAlias = Any
FieldDescriptor: TypeAlias = Any

AnyMessage = TypeVar("AnyMessage", bound=Message)
AnyStruct = TypeVar("AnyStruct", bound=msgspec.Struct)
Convert: TypeAlias = Callable[[Any], Any]


def to_message(struct: msgspec.Struct, kind: type[AnyMessage]) -> AnyMessage:
    """Convert a struct to a message. Fields that exist only in the struct or only in the message are left out."""
    return kind(**_arguments(msgspec.to_builtins(struct), kind.DESCRIPTOR))


def to_struct(message: Message, kind: type[AnyStruct]) -> AnyStruct:
    """Convert a message to a struct. Fields that exist only in the message or only in the struct are left out. Maps are
    sorted by key."""
    struct: AnyStruct = _reader(kind, message.DESCRIPTOR)(message)
    return struct


def _is_message(field: FieldDescriptor) -> bool:
    """Whether a field holds a single message, not a list or a map."""
    return bool(field.message_type and field.has_presence)


def _only_map(descriptor: Descriptor) -> str:
    """Return the name of a message's only field if this field is a map; otherwise an empty string."""
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


@functools.cache
def _reader(kind: type[msgspec.Struct], descriptor: Descriptor) -> Convert:
    """Return a function that converts a message to a struct. Types are resolved once here, not for each message."""
    hints, known = get_type_hints(kind), descriptor.fields_by_name
    readers = {name: _field_reader(field, hints[name]) for name, field in known.items() if name in hints}
    for outer, field in known.items():
        if outer not in hints and _is_message(field):
            inner = {
                each.name: _field_reader(each, hints[each.name])
                for each in field.message_type.fields
                if each.name in hints
            }
            readers |= {name: _chained(attrgetter(outer), read) for name, read in inner.items() if name not in readers}
    return lambda message: kind(**{name: read(message) for name, read in readers.items()})


def _field_reader(field: FieldDescriptor, hint: Any) -> Convert:
    name, hints = field.name, [each for each in get_args(hint) if each is not type(None)]
    if len(hints) == len(get_args(hint)):
        return _chained(attrgetter(name), _converter(hint, field.message_type))
    read = _chained(attrgetter(name), _converter(hints[0], field.message_type))
    return (lambda message: read(message) if message.HasField(name) else None) if field.has_presence else read


def _chained(first: Convert, second: Convert) -> Convert:
    return first if second is _same else lambda value: second(first(value))


def _same(value: Any) -> Any:
    return value


def _converter(hint: Any, kind: Descriptor) -> Convert:
    """Return a function that converts a field's value to `hint`, the type of the struct's field. `kind` is the
    descriptor of the field's message type; None for a field of plain values."""
    origin, of = get_origin(hint), get_args(hint)
    if origin is tuple:
        item = _converter(of[0], kind)
        return tuple if item is _same else lambda values: tuple(map(item, values))
    if origin is dict:
        if name := _only_map(kind):
            return _chained(attrgetter(name), _converter(hint, kind.fields_by_name[name].message_type))
        item = _converter(of[1], kind.fields_by_name["value"].message_type)
        return lambda values: {key: item(values[key]) for key in sorted(values)}
    return _reader(hint, kind) if isinstance(hint, type) and issubclass(hint, msgspec.Struct) else _same
