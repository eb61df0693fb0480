"""The types of the schema's fields: what is within them, and what they take in words."""

from __future__ import annotations

import types
import typing
from typing import Annotated

import msgspec
from msgspec import inspect

from edged.config.words import either, toml


def core(hint: object) -> object:
    """A type without what is annotated, and without None."""
    if typing.get_origin(hint) is Annotated:
        return core(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        others = [each for each in typing.get_args(hint) if each is not type(None)]
        return core(others[0]) if len(others) == 1 else hint
    return hint


def struct_of(hint: object) -> type[msgspec.Struct] | None:
    """The struct that a type is, or may be; None where it is another type."""
    inner = core(hint)
    return inner if isinstance(inner, type) and issubclass(inner, msgspec.Struct) else None


def item_of(hint: object) -> object:
    """The type of what is in a list; None where it is no list."""
    inner = core(hint)
    return typing.get_args(inner)[0] if typing.get_origin(inner) in (tuple, list) else None


def value_of(hint: object) -> object:
    """The type of the values in a table whose names the user chooses; None where it is none."""
    inner = core(hint)
    return typing.get_args(inner)[1] if typing.get_origin(inner) is dict else None


def choices(hint: object) -> tuple[object, ...]:
    """The values that there are, in the order of the schema; none where they cannot be counted."""
    inner = core(hint)
    return typing.get_args(inner) if typing.get_origin(inner) is typing.Literal else ()


def allowed(hint: object) -> str:
    """What a value of a type must be, after "expected"."""
    if found := choices(hint):
        return either(map(toml, found))
    if item_of(hint) is not None:
        return f"a list, each {allowed(item_of(hint))}"
    if value_of(hint) is not None:
        return f"a table, each value {allowed(value_of(hint))}"
    return _plain(inspect.type_info(hint))


def _plain(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.Metadata):
        return _plain(kind.type)
    if isinstance(kind, inspect.UnionType):
        return either(_plain(each) for each in kind.types if not isinstance(each, inspect.NoneType))
    if isinstance(kind, inspect.IntType):
        least = kind.ge if kind.gt is None else kind.gt + 1
        most = kind.le if kind.lt is None else kind.lt - 1
        return _ranged("a whole number", least, most)
    if isinstance(kind, inspect.FloatType):
        return _ranged("a number", kind.ge, kind.le, kind.gt, kind.lt)
    if isinstance(kind, inspect.StrType):
        return "a text in quotes" + (f" that looks like {kind.pattern}" if kind.pattern else "")
    return "true or false" if isinstance(kind, inspect.BoolType) else "a table"


def _ranged(
    what: str,
    least: float | None,
    most: float | None,
    above: float | None = None,
    below: float | None = None,
) -> str:
    if least is not None and most is not None:
        return f"{what} from {_number(least)} to {_number(most)}"
    if above is not None and most is not None:
        return f"{what} above {_number(above)}, {_number(most)} at most"
    limits = {"at least": least, "above": above, "at most": most, "below": below}
    bounds = [f"{word} {_number(limit)}" for word, limit in limits.items() if limit is not None]
    return f"{what}, {' and '.join(bounds)}" if bounds else what


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(value)
