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
from google.protobuf.message import Message

from edged.errors import ConfigError
from edged.models.triton_config import TritonConfig
from edged.models.triton_message import config_of
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


# Fields that edged acts on, by path; one that ends with ".*" with all that is in it.
_USED = frozenset(
    {
        "name",
        "platform",
        "backend",
        "max_batch_size",
        "default_model_filename",
        "version_policy.*",
        "input.name",
        "input.data_type",
        "input.dims",
        "output.name",
        "output.data_type",
        "output.dims",
        "output.label_filename",
        "dynamic_batching.preferred_batch_size",
        "dynamic_batching.max_queue_delay_microseconds",
        "dynamic_batching.priority_levels",
        "dynamic_batching.default_priority_level",
        "dynamic_batching.default_queue_policy.*",
        "dynamic_batching.priority_queue_policy.*",
        "sequence_batching.max_sequence_idle_microseconds",
        "sequence_batching.control_input.*",
        "sequence_batching.state.input_name",
        "sequence_batching.state.output_name",
        "sequence_batching.state.data_type",
        "sequence_batching.state.dims",
        "sequence_batching.state.initial_state.*",
        "model_warmup.*",
        "model_transaction_policy.*",
        "instance_group.name",  # told of by `_instances`
        "instance_group.kind",
        "instance_group.count",
        "instance_group.gpus",
    }
)
_WHY = {
    "optimization": "edged makes engines for everything this box has, measures them, and serves the fastest",
    "input.reshape": "requests bring the model's own shape",
    "output.reshape": "answers have the model's own shape",
    "input.format": "the layout of pictures is read off the model, or set by preprocess.*",
    "input.optional": "an input is optional if the model has a default for it",
    "dynamic_batching.preserve_ordering": "the answers of one stream are in order, others come as they are ready",
    "sequence_batching.direct": "requests of sequences go one by one",
    "sequence_batching.oldest": "requests of sequences go one by one",
    "sequence_batching.state": "where a state is kept is edged's own affair",
    "response_cache": "every request is inferred",
    "parameters": "they are for Triton's backends; those of edged are model settings",
    "instance_group.rate_limiter": "engines share a device in turns",
    "metric_tags": "the labels of edged's metrics are fixed: docs/metrics.md",
    "model_metrics": "edged has the same metrics for every model: docs/metrics.md",
    "cc_model_filenames": "an ONNX model has one file",
}


def unused(message: pb.ModelConfig) -> list[str]:
    """One line for every field that is set to no effect, in the order of the message."""
    lines = [f"{path}: not used; {why}" if (why := _why(path)) else f"{path}: not used" for path in _paths(message, "")]
    return list(dict.fromkeys([*lines, *_instances(message)]))


def shown(name: str) -> str:
    """A name from the file within a line: not too long, and without what would end the line."""
    return name[:80] if name[:80].isprintable() else ascii(name[:80])


def _paths(message: Message, prefix: str) -> Iterator[str]:
    for field, value in message.ListFields():
        path = f"{prefix}{field.name}"
        if path in _USED or f"{path}.*" in _USED:
            continue
        if field.message_type is None:
            yield path
        elif field.message_type.GetOptions().map_entry:
            yield from (f"{path}[{shown(str(key))}]" for key in value)
        elif isinstance(value, Message):
            yield from _paths(value, f"{path}.")
        else:
            for each in value:
                yield from _paths(each, f"{path}.")


def _why(path: str) -> str:
    plain = path.partition("[")[0]
    return next((why for start, why in _WHY.items() if plain == start or plain.startswith(f"{start}.")), "")


def _instances(message: pb.ModelConfig) -> Iterator[str]:
    """A box has few devices, and which one is the fastest is measured: kinds and counts are wishes of a server's."""
    for group in message.instance_group:
        if group.count > 1:
            yield f"instance_group.count: {group.count} is not used; one engine answers, of which there is always one"
        if group.kind in (pb.ModelInstanceGroup.KIND_CPU, pb.ModelInstanceGroup.KIND_GPU) or group.gpus:
            yield (
                "instance_group.kind: not used; edged measures which device is the fastest, and the setting `backends` "
                "says which may be tried"
            )
