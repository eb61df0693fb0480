"""Reads a model's Triton configuration: config.pbtxt, or the JSON that a client sends to load a model with.

Both may come from anywhere: what is wrong with them is told in one line, and names that protos/model_config.proto does
not know are collected with their places.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, cast

from google.protobuf import json_format, text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from edged.errors import ConfigError
from edged.models.triton_config import TritonConfig
from edged.models.triton_message import config_of
from edged.models.triton_unused import shown, unused
from edged.proto import model_config_pb2 as pb

MOST_BYTES = 256 << 10  # a real one has a few thousand
_MOST_LINES = 50  # of what is not used
_MOST_TEXT = 240  # characters of a message
_ROOT = cast(Descriptor, pb.ModelConfig.DESCRIPTOR)  # the stub knows two classes of it


def read_text(data: bytes, name: str) -> TritonConfig:
    """The configuration of the model called `name`; ConfigError, in one line, for anything that is wrong with it."""
    text = _decoded(data)
    message = pb.ModelConfig()
    try:
        text_format.Parse(text, message, allow_unknown_field=True)
        unknown = list(_Walk(text).unknown())
    except (text_format.ParseError, ValueError, RecursionError) as error:
        raise ConfigError(f"it cannot be read: {_told(error)}") from None
    return _config_of(message, name, unknown)


def read_json(text: str, name: str) -> TritonConfig:
    """As `read_text`, from JSON."""
    if len(text) > MOST_BYTES:
        raise ConfigError(f"it has more than {MOST_BYTES >> 10} KiB; a configuration has a few")
    message = pb.ModelConfig()
    try:
        tree: object = json.loads(text)
        if not isinstance(tree, dict):
            raise ConfigError("it is JSON, but not an object")
        json.dumps(tree, ensure_ascii=False).encode()  # half of a surrogate pair is no text
        json_format.ParseDict(tree, message, ignore_unknown_fields=True)
        unknown = list(_unknown_keys(tree, _ROOT, ""))
    except (json_format.ParseError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"it cannot be read as JSON: {_told(error)}") from None
    return _config_of(message, name, unknown)


def _config_of(message: pb.ModelConfig, name: str, unknown: list[str]) -> TritonConfig:
    lines = [*(f"{each}: unknown to edged" for each in unknown), *unused(message)]
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], f"and {len(lines) - _MOST_LINES} more"]
    try:
        return config_of(message, name, lines)
    except ConfigError as error:  # names in it are as long as whoever wrote them liked
        raise ConfigError(_shortened(str(error))) from None


def _decoded(data: bytes) -> str:
    if len(data) > MOST_BYTES:
        raise ConfigError(f"it has more than {MOST_BYTES >> 10} KiB; a configuration has a few")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"it is not UTF-8 text (byte {error.start})") from None


def _told(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return _shortened(" ".join(str(error).replace("inference.", "").split()))


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."


class _Walk:
    """Goes over text that has been parsed already, for the names in it that no message has."""

    def __init__(self, text: str) -> None:
        self._tokens = text_format.Tokenizer(text.split("\n"))

    def unknown(self) -> Iterator[str]:
        while not self._tokens.AtEnd():
            yield from self._field(_ROOT, "")

    def _field(self, parent: Descriptor | None, path: str) -> Iterator[str]:
        """One field with its values; of an unknown one only the name is told."""
        tokens = self._tokens
        name = tokens.token
        line = tokens.ParseError("").GetLine()  # type: ignore[arg-type]  # the stub takes its text for a message
        tokens.NextToken()
        if name in (",", ";"):
            return
        field = parent.fields_by_name.get(name) if parent is not None else None
        if field is None and parent is not None:
            yield f"line {line}: {path}{shown(name)}"
        tokens.TryConsume(":")
        if tokens.TryConsume("["):
            while not tokens.TryConsume("]") and not tokens.AtEnd():
                yield from self._value(field, f"{path}{name}.")
                tokens.TryConsume(",")
        else:
            yield from self._value(field, f"{path}{name}.")

    def _value(self, field: FieldDescriptor | None, path: str) -> Iterator[str]:
        tokens = self._tokens
        for opening, closing in (("{", "}"), ("<", ">")):
            if tokens.TryConsume(opening):
                inner = field.message_type if field is not None else None
                while not tokens.TryConsume(closing) and not tokens.AtEnd():
                    yield from self._field(inner, path)
                return
        is_text = tokens.token.startswith(("'", '"'))
        tokens.TryConsume("-")
        tokens.NextToken()
        while is_text and tokens.token.startswith(("'", '"')):  # a string in several parts
            tokens.NextToken()


def _unknown_keys(tree: dict[str, Any], message: Descriptor, path: str) -> Iterator[str]:
    for key, value in tree.items():
        field = message.fields_by_name.get(key) or message.fields_by_camelcase_name.get(key)
        if field is None:
            yield f"{path}{shown(key)}"
            continue
        inner = field.message_type
        if inner is None:
            _require_known(field, value)
            continue
        if inner.GetOptions().map_entry:
            entry = inner.fields_by_name["value"].message_type
            values: Iterable[object] = value.values() if entry is not None and isinstance(value, dict) else ()
            inner = entry if entry is not None else inner
        else:
            values = value if isinstance(value, list) else [value]
        for each in values:
            if isinstance(each, dict):
                yield from _unknown_keys(each, inner, f"{path}{key}.")
            elif each is not None:  # a text would be read as an object without a field that is known
                raise ValueError(f"{path}{key} is an object with fields, not {shown(str(each))}")


def _require_known(field: FieldDescriptor, value: object) -> None:
    """ValueError for a word that an enumeration does not have, which the parser passes over as it does fields."""
    for each in value if isinstance(value, list) else [value]:
        if field.enum_type is not None and isinstance(each, str) and each not in field.enum_type.values_by_name:
            raise ValueError(f"{field.name} {each[:80]!r} is not one of {', '.join(field.enum_type.values_by_name)}")
