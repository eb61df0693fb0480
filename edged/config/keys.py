"""The schema as tables and keys, for whoever goes over all of them: what each is called, means and takes."""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from edged.config.hints import allowed, struct_of, value_of
from edged.config.schema import Config
from edged.config.words import key as quoted

Path: TypeAlias = tuple[str, ...]  # of names, from the top of the file

_PREFIX = "EDGED_"
_INDEXED = re.compile(r"(.+)(\[\d+\])", re.DOTALL)


class Key(msgspec.Struct, frozen=True):
    """One key. `hint` is its type as written, `example` a value where the default says nothing, otherwise None.

    A secret is never shown: its `Meta` has `extra={"secret": True}`.
    """

    path: Path
    hint: object
    default: object
    meaning: str = ""
    example: object = None
    is_secret: bool = False

    @property
    def name(self) -> str:
        """As a person writes it: `engines.budget_mb`."""
        return dotted(self.path)

    @property
    def variable(self) -> str:
        """What it is called in the environment."""
        return variable(self.path)

    @property
    def allowed(self) -> str:
        """What it takes, in words."""
        return allowed(self.hint)

    @property
    def is_table(self) -> bool:
        """Whether the user chooses the names in it, as in `[models]`."""
        return value_of(self.hint) is not None


class Table(msgspec.Struct, frozen=True):
    """One table of the file; the one without a path is the file itself. An optional one is in force where it is named,
    even if it is empty."""

    path: Path
    kind: type[msgspec.Struct]
    keys: tuple[Key, ...]
    tables: tuple[Table, ...]
    is_optional: bool = False

    @property
    def meaning(self) -> str:
        """Its docstring, in one line."""
        return " ".join((inspect.getdoc(self.kind) or "").split())

    @property
    def names(self) -> tuple[str, ...]:
        """Everything that may stand in it, in the order of the schema."""
        return self.kind.__struct_fields__

    def walk(self) -> Iterator[Table]:
        """It and all tables in it."""
        yield self
        for table in self.tables:
            yield from table.walk()


def dotted(path: Path) -> str:
    """A path as a person writes it; `listen[0]` is the first in a list."""
    return ".".join(map(_written, path))


def _written(name: str) -> str:
    found = _INDEXED.fullmatch(name)
    return quoted(found[1]) + found[2] if found else quoted(name)


def without_index(name: str) -> str:
    """The name of the list, of one that is in a list; otherwise the name."""
    found = _INDEXED.fullmatch(name)
    return found[1] if found else name


def variable(path: Path) -> str:
    """What a key or table is called in the environment: `EDGED_` and its names in capitals."""
    return _PREFIX + "_".join(path).upper()


@functools.cache
def tables(kind: type[msgspec.Struct] = Config, path: Path = (), is_optional: bool = False) -> Table:
    """The tables and keys of a struct, the whole configuration if none is given."""
    keys: list[Key] = []
    inner: list[Table] = []
    for field in msgspec.structs.fields(kind):
        place = (*path, field.name)
        struct = struct_of(field.type)
        if struct is not None:
            inner.append(tables(struct, place, field.default is None))
        else:
            default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            keys.append(_key(place, field.type, None if default is msgspec.NODEFAULT else default))
    return Table(path, kind, tuple(keys), tuple(inner), is_optional)


def all_keys(kind: type[msgspec.Struct] = Config) -> tuple[Key, ...]:
    """Every key, table by table."""
    return tuple(key for table in tables(kind).walk() for key in table.keys)


def _key(path: Path, hint: object, default: object) -> Key:
    metas = [each for each in typing.get_args(hint)[1:] if isinstance(each, msgspec.Meta)]
    meaning = next((meta.description for meta in metas if meta.description), "")
    examples = next((meta.examples for meta in metas if meta.examples), None)
    is_secret = any(bool((meta.extra or {}).get("secret")) for meta in metas)
    return Key(path, hint, default, meaning, examples[0] if examples else None, is_secret)
