"""The declarations in modules of generated messages, as plain values for comparison."""

from __future__ import annotations

import importlib
from typing import Any


def declared(*modules: str) -> dict[str, Any]:
    """Return messages, enums and methods by full name."""
    found: dict[str, Any] = {}
    for name in modules:
        file = importlib.import_module(name).DESCRIPTOR
        for message in file.message_types_by_name.values():
            _take_message(message, found)
        for enum in file.enum_types_by_name.values():
            found[f"enum {enum.full_name}"] = _values(enum)
        for service in file.services_by_name.values():
            for method in service.methods:
                streams = [method.client_streaming, method.server_streaming]
                types = [method.input_type.full_name, method.output_type.full_name]
                found[f"rpc {method.full_name}"] = [*types, *streams]
    return found


def _take_message(message: Any, found: dict[str, Any]) -> None:
    found[f"message {message.full_name}"] = sorted(_field(field) for field in message.fields)
    for nested in message.nested_types:
        _take_message(nested, found)
    for enum in message.enum_types:
        found[f"enum {enum.full_name}"] = _values(enum)


def _field(field: Any) -> list[Any]:
    """Return number, name, type, the flags repeated, packed and has_presence, the oneof, and the message or enum."""
    kind = field.message_type or field.enum_type
    group = field.containing_oneof
    shape = [field.is_repeated, field.is_packed, field.has_presence]
    return [field.number, field.name, field.type, *shape, group.name if group else "", kind.full_name if kind else ""]


def _values(enum: Any) -> list[list[Any]]:
    return sorted([value.number, value.name] for value in enum.values)
