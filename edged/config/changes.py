"""Compares two configurations, and describes each changed key. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from edged.config.keys import reload_of
from edged.config.schema import Config, Reload
from edged.errors import redact


def _reloads(kind: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, Reload]]:
    for field in msgspec.structs.fields(kind):
        reload = reload_of(field.type)
        if reload is not None:
            yield f"{prefix}{field.name}", reload
        else:
            yield from _reloads(field.type, f"{prefix}{field.name}.")


RELOADS = dict(_reloads(Config))
"""The time at which a reload applies a field, by dotted name. Only fields that change as a whole are listed, such as
`listen`, `engines` and `zmq.frames`."""


class Change(msgspec.Struct, frozen=True):
    """A key of `RELOADS` with a new value. `change` describes the change in one line. `problem` says why the new value
    is not in force and what to do; empty if it is in force."""

    key: str
    change: str
    problem: str = ""

    def __str__(self) -> str:
        return f"{self.change}: {self.problem}" if self.problem else self.change


def diff(old: Config, new: Config) -> tuple[Change, ...]:
    """Return the changes from one configuration to another, in the order of the schema."""
    return tuple(
        Change(key, "; ".join(_described(key, value(old, key), value(new, key))))
        for key in RELOADS
        if value(old, key) != value(new, key)
    )


def value(config: Config, key: str) -> object:
    """Return the value of a dotted key, such as `zmq.frames`."""
    found: object = config
    for name in key.split("."):
        found = getattr(found, name)
    return found


def with_value(config: Config, other: Config, key: str) -> Config:
    """Return `config` with the value that one key has in `other`."""
    table, dot, name = key.partition(".")
    if not dot:
        return msgspec.structs.replace(config, **{key: getattr(other, key)})
    inner = msgspec.structs.replace(getattr(config, table), **{name: value(other, key)})
    return msgspec.structs.replace(config, **{table: inner})


def _described(key: str, old: object, new: object) -> Iterator[str]:
    if isinstance(old, msgspec.Struct) and isinstance(new, msgspec.Struct):
        for name in old.__struct_fields__:
            yield from _described(f"{key}.{name}", getattr(old, name), getattr(new, name))
    elif isinstance(old, tuple) and isinstance(new, tuple):
        yield from (f"{key}: {each} removed" for each in old if each not in new)
        yield from (f"{key}: {each} added" for each in new if each not in old)
        if sorted(map(str, old)) == sorted(map(str, new)) and old != new:
            yield f"{key}: order changed"
    elif isinstance(old, dict) and isinstance(new, dict):
        yield from (f"{key}: {each} removed" for each in old if each not in new)
        for each in new:
            if isinstance(new[each], msgspec.Struct) and each in old:
                yield from _described(f"{key}.{each}", old[each], new[each])
            elif old.get(each) != new[each]:
                yield f"{key}: {each} is {_word(new[each])}"
    elif old != new:
        yield f"{key}: {_word(old)} → {_word(new)}"


def _word(found: object) -> str:
    if isinstance(found, msgspec.Struct):
        return "new"
    if isinstance(found, bool):
        return "true" if found else "false"
    if isinstance(found, tuple):
        return ", ".join(map(str, found)) or "none"
    return "none" if found is None or found == "" else redact(str(found))
