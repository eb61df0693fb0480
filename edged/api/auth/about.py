"""What a request is about, in a few words: the names in it, and none of its contents. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.message import Message

# Fields that hold a name, in any message of an operator's method.
_NAMES = ("name", "model_name", "model", "engine", "everything", "force", "repository_name", "settings")
_INNER = ("selector", "header")
_LONGEST = 200


def about(message: Message) -> dict[str, str]:
    """Names by the field that they are in; of settings only which ones."""
    found: dict[str, str] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.name in _INNER and isinstance(value, Message):
            found.update(about(value))
        elif field.name in _NAMES and value:
            found[field.name] = _word(value)
    return found


def _word(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(sorted(map(str, value)))[:_LONGEST]
    return str(value).lower() if isinstance(value, bool) else str(value)[:_LONGEST]
