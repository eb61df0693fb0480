"""Random messages of any type, from their descriptors: new ones, or changed copies of good ones.

All randomness comes from one `random.Random`, so that a seed replays a run and Hypothesis's `randoms()` can shrink it.
Valid words (models, tensors, datatypes) are frequent, because pure nonsense is refused too early.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tests.fuzz.spoiling import spoiled

M = TypeVar("M", bound=Message)

_DEEPEST = 5
_NASTY = (
    *("", "\0", " ", ".", "..", "../../edged-escape", "/", "a/b", "%s%n", "\u202e", "e\u0301", "\ufffd", "*", "-1"),
    *("a" * 300, "\U0001f600" * 20, "NaN", "null", "{}", "[", "name\nname", "\r\n", "$(id)", "1e999", "0x10"),
)
_DATATYPES = ("BOOL", "INT8", "INT32", "INT64", "UINT8", "UINT64", "FP16", "FP32", "FP64", "BF16", "BYTES", "fp32")
_KEYS = (
    *("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "classification", "config"),
    "file:1/model.onnx",
    *("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset", "binary_data_size"),
    "unload_dependents",
    *("triton_enable_empty_final_response", "trace_level", "trace_rate", "trace_count", "log_frequency", "trace_file"),
    *("log_verbose_level", "log_info", "log_warning", "log_error", "log_file", "log_format", "trace_mode", "mine"),
)  # fmt: skip
_INTEGERS = (0, 1, 2, 3, 4, 8, 16, 64, 255, 256, 4096, 65535, 1 << 20, (1 << 31) - 1, (1 << 32) - 1)
_DOUBLES = (0.0, -0.0, 0.5, 1.0, -1.0, 1e-320, 1e38, -1e38, math.nan, math.inf, -math.inf)

_F = FieldDescriptor
_BITS = {
    **dict.fromkeys((_F.TYPE_INT32, _F.TYPE_SINT32, _F.TYPE_SFIXED32), (32, True)),
    **dict.fromkeys((_F.TYPE_INT64, _F.TYPE_SINT64, _F.TYPE_SFIXED64), (64, True)),
    **dict.fromkeys((_F.TYPE_UINT32, _F.TYPE_FIXED32), (32, False)),
    **dict.fromkeys((_F.TYPE_UINT64, _F.TYPE_FIXED64), (64, False)),
}


class Writer:
    """Writes random messages. `words` are valid values of text fields, by field name."""

    def __init__(self, random: Random, words: Mapping[str, Sequence[str]]) -> None:
        self.random, self._words = random, words

    def message(self, kind: type[M], good: Sequence[Message] = ()) -> M:
        """Return a message: mostly a good one of its type with up to four changes, else a new one."""
        chance = self.random
        fitting = [each for each in good if isinstance(each, kind)]
        if not fitting or chance.random() < 0.3:
            made = kind()
            self._fill(made, 0)
            return made
        made = kind()
        made.CopyFrom(chance.choice(fitting))
        for _ in range(chance.choice((0, 1, 1, 1, 2, 2, 3, 4))):
            self._change(made)
        return made

    def _change(self, message: Message) -> None:
        """Change one field, at any depth."""
        chance, fields = self.random, message.DESCRIPTOR.fields
        if not fields:
            return
        present = [field for field, _ in message.ListFields()]
        field = chance.choice(present if present and chance.random() < 0.75 else fields)
        inner = self._inner(message, field)
        if inner and chance.random() < 0.6:
            self._change(chance.choice(inner))
            return
        if chance.random() < 0.25:
            message.ClearField(field.name)
        elif field.is_repeated and not _is_map(field) and chance.random() < 0.5:
            self._shuffle(getattr(message, field.name))
        elif field.type == FieldDescriptor.TYPE_BYTES and not field.is_repeated:
            setattr(message, field.name, spoiled(self.random, getattr(message, field.name)))
        else:
            self._set(message, field, 1)

    def _inner(self, message: Message, field: FieldDescriptor) -> list[Message]:
        value = getattr(message, field.name)
        if field.message_type is None:
            return []
        if _is_map(field):
            held = field.message_type.fields_by_name["value"].message_type is not None
            return [value[key] for key in value] if held else []
        return list(value) if field.is_repeated else [value] if message.HasField(field.name) else []

    def _shuffle(self, values: Any) -> None:
        """Remove one value, repeat one, change one, or append copies of several."""
        chance = self.random
        if not len(values):
            return
        at, what = chance.randrange(len(values)), chance.randrange(3)
        if what == 0:
            del values[at]
        elif what == 1:
            values.extend([values[at]] * chance.choice((1, 1, 2, 40)))
        elif isinstance(values[at], (int, float)) and not isinstance(values[at], bool):
            values[at] = type(values[at])(chance.choice((0, 1, 2, 5)))
        elif isinstance(values[at], bytes):
            values[at] = spoiled(chance, values[at])
        else:
            values.extend(values[:at])

    def _fill(self, message: Message, depth: int) -> None:
        for field in message.DESCRIPTOR.fields:
            if self.random.random() < 0.55 and (field.message_type is None or depth < _DEEPEST):
                self._set(message, field, depth)

    def _set(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        name, count = field.name, self.random.choice((0, 1, 1, 2, 3))
        if _is_map(field):
            self._set_map(getattr(message, name), field.message_type, count, depth)
        elif field.message_type is not None:
            kind = GetMessageClass(field.message_type)
            made = [kind() for _ in range(count if field.is_repeated else 1)]
            for each in made:
                self._fill(each, depth + 1)
            if field.is_repeated:
                getattr(message, name).extend(made)
            else:
                getattr(message, name).CopyFrom(made[0])
        elif field.is_repeated:
            getattr(message, name).extend(self._value(field) for _ in range(count))
        else:
            setattr(message, name, self._value(field))

    def _set_map(self, held: Any, entry: Descriptor, count: int, depth: int) -> None:
        value = entry.fields_by_name["value"]
        for _ in range(count):
            key = self._key(entry.fields_by_name["key"])
            if value.message_type is None:
                held[key] = self._value(value)
            else:
                self._fill(held[key], depth + 1)

    def _key(self, field: FieldDescriptor) -> Any:
        is_text = field.type == FieldDescriptor.TYPE_STRING and self.random.random() < 0.8
        return self.random.choice(_KEYS) if is_text else self._value(field)

    def _value(self, field: FieldDescriptor) -> Any:
        """Return a value for a field that is not a message."""
        chance = self.random
        if field.type in _BITS:
            return self._integer(*_BITS[field.type])
        kinds: dict[int, Callable[[], Any]] = {
            FieldDescriptor.TYPE_BOOL: lambda: chance.random() < 0.5,
            FieldDescriptor.TYPE_FLOAT: self._double,
            FieldDescriptor.TYPE_DOUBLE: self._double,
            FieldDescriptor.TYPE_STRING: lambda: self._text(field.name),
            FieldDescriptor.TYPE_BYTES: lambda: chance.randbytes(chance.choice((0, 1, 4, 16, 17, 64, 1000))),
            FieldDescriptor.TYPE_ENUM: lambda: self._enum(field),
        }
        return kinds[field.type]()

    def _integer(self, bits: int, is_signed: bool) -> int:
        low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if is_signed else (0, (1 << bits) - 1)
        chance = self.random
        found = chance.choice(
            (chance.choice(_INTEGERS), -chance.choice(_INTEGERS), chance.randint(low, high), low, high)
        )
        return min(high, max(low, found))

    def _double(self) -> float:
        return self.random.choice((self.random.choice(_DOUBLES), self.random.uniform(-2, 2)))

    def _text(self, name: str) -> str:
        chance = self.random
        known = self._words.get(name, _DATATYPES if name == "datatype" else ())
        if known and chance.random() < 0.7:
            return chance.choice(known)
        if chance.random() < 0.7:
            return chance.choice(_NASTY)
        return "".join(chr(chance.choice((chance.randrange(32, 127), chance.randrange(0xD800)))) for _ in range(5))

    def _enum(self, field: FieldDescriptor) -> int:
        if self.random.random() < 0.8:
            return self.random.choice([value.number for value in field.enum_type.values])
        return self._integer(32, True)


def smaller(message: M, is_still: Callable[[M], bool]) -> M:
    """Return the message without the fields that `is_still` does not need. Tries the fields of the outer two levels."""
    found = type(message)()
    found.CopyFrom(message)
    for path in [(f,) for f, _ in message.ListFields()] + [
        (outer, inner)
        for outer, value in message.ListFields()
        if outer.message_type is not None and not outer.is_repeated
        for inner, _ in value.ListFields()
    ]:
        trial = type(message)()
        trial.CopyFrom(found)
        inside = trial if len(path) == 1 else getattr(trial, path[0].name)
        inside.ClearField(path[-1].name)
        if is_still(trial):
            found = trial
    return found


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry
