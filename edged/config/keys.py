"""Reads the schema as tables and keys, with the name, meaning and allowed values of each. Writes values as TOML."""

from __future__ import annotations

import functools
import json
import math
import re
import types
import typing
from collections.abc import Iterator
from inspect import getdoc
from typing import Annotated, TypeAlias

import msgspec
import msgspec.inspect

from edged.config.schema import Config, Reload
from edged.errors import either, redact

_SHOWN = 60  # most characters of a wrong value in a message


def toml(value: object) -> str:
    """Return a value in TOML syntax. Tables are inline. For None, which TOML lacks, return an empty string."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's syntax, except that letters are not escaped (TOML has no surrogates), and DEL is escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, msgspec.Struct):
        return toml(
            {name: getattr(value, name) for name in value.__struct_fields__ if getattr(value, name) is not None}
        )
    if isinstance(value, dict):
        inner = ", ".join(f"{key(name)} = {toml(each)}" for name, each in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    return "" if value is None else str(value)


def key(name: object) -> str:
    """Return a key in TOML syntax: bare if possible, otherwise in quotes."""
    text = str(name)
    is_bare = bool(text) and text.isascii() and text.replace("_", "").replace("-", "").isalnum()
    return text if is_bare else toml(text)


def shown(value: object) -> str:
    """Return a user's value in one short line."""
    if isinstance(value, dict):
        return "a table"
    try:
        text = redact(toml(value))
    except RecursionError:  # dotted keys can nest tables in a list without limit
        return "a list that is nested too deep"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def core(hint: object) -> object:
    """Return a type without `Annotated`, and an optional type without None."""
    if typing.get_origin(hint) is Annotated:
        return core(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        others = [each for each in typing.get_args(hint) if each is not type(None)]
        return core(others[0]) if len(others) == 1 else hint
    return hint


def struct_of(hint: object) -> type[msgspec.Struct] | None:
    """Return the struct if a type is a struct or an optional struct, otherwise None."""
    inner = core(hint)
    return inner if isinstance(inner, type) and issubclass(inner, msgspec.Struct) else None


def item_of(hint: object) -> object:
    """Return the type of the items if `hint` is the type of a list or tuple, otherwise None."""
    inner = core(hint)
    return typing.get_args(inner)[0] if typing.get_origin(inner) in (tuple, list) else None


def value_of(hint: object) -> object:
    """Return the type of the values if `hint` is the type of a table whose names the user chooses, otherwise None."""
    inner = core(hint)
    return typing.get_args(inner)[1] if typing.get_origin(inner) is dict else None


def choices(hint: object) -> tuple[object, ...]:
    """Return the values of a literal type in the order of the schema; empty for another type."""
    inner = core(hint)
    return typing.get_args(inner) if typing.get_origin(inner) is typing.Literal else ()


def allowed(hint: object) -> str:
    """Return the allowed values of a type, in words that follow "expected"."""
    if found := choices(hint):
        return either(map(toml, found))
    if item_of(hint) is not None:
        return f"a list, each item {allowed(item_of(hint))}"
    if value_of(hint) is not None:
        return f"a table, each value {allowed(value_of(hint))}"
    return _plain(msgspec.inspect.type_info(hint))


def _plain(kind: msgspec.inspect.Type) -> str:
    match kind:
        case msgspec.inspect.Metadata():
            return _plain(kind.type)
        case msgspec.inspect.UnionType():
            return either(_plain(each) for each in kind.types if not isinstance(each, msgspec.inspect.NoneType))
        case msgspec.inspect.IntType():
            return _ranged("a whole number", kind.ge if kind.gt is None else kind.gt + 1, None, kind.le)
        case msgspec.inspect.FloatType():
            return _ranged("a number", kind.ge, kind.gt, kind.le)
        case msgspec.inspect.StrType():
            return "a string in quotes"
        case msgspec.inspect.BoolType():
            return "true or false"
        case _:
            return "a table"


def _ranged(what: str, least: float | None, above: float | None, most: float | None) -> str:
    if least is not None and most is not None:
        return f"{what} from {_number(least)} to {_number(most)}"
    if above is not None and most is not None:
        return f"{what} above {_number(above)}, at most {_number(most)}"
    limits = {"at least": least, "above": above, "at most": most}
    bounds = [f"{word} {_number(limit)}" for word, limit in limits.items() if limit is not None]
    return f"{what}, {' and '.join(bounds)}" if bounds else what


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(value)


Path: TypeAlias = tuple[str, ...]  # the names of the tables, from the top of the file, and of the key

NAME = "NAME"  # in a path: stands for a name that the user chooses
_PREFIX = "EDGED_"
_INDEXED = re.compile(r"(.+?)((?:\[\d+\])+)", re.DOTALL)


class Key(msgspec.Struct, frozen=True):
    """One key. `hint` is its type as written; `example` is a sample value if the default is empty, otherwise None.

    `is_secret`: the value is never shown (its `Meta` has `extra={"secret": True}`). `reload`: when a reload applies the
    key. It is the `Reload` of the key itself, or else of the enclosing table.
    """

    path: Path
    hint: object
    default: object
    meaning: str = ""
    example: object = None
    is_secret: bool = False
    reload: Reload = Reload.RESTART
    is_required: bool = False

    @property
    def name(self) -> str:
        """The key's dotted name, such as `engines.budget_mb`."""
        return dotted(self.path)

    @property
    def variable(self) -> str:
        """The key's environment variable."""
        return variable(self.path)

    @property
    def allowed(self) -> str:
        """The values that the key allows, in words."""
        return allowed(self.hint)

    @property
    def is_table(self) -> bool:
        """Whether the key is a table in which the user chooses the names, such as `[models]`."""
        return value_of(self.hint) is not None


class Table(msgspec.Struct, frozen=True):
    """One table of the file; the table without a path is the top level. An optional table is in force if its header is
    present, even if it is empty. If the path ends in `NAME`, the user chooses names for any number of such tables."""

    path: Path
    kind: type[msgspec.Struct]
    keys: tuple[Key, ...]
    tables: tuple[Table, ...]
    is_optional: bool = False

    @property
    def is_named(self) -> bool:
        """Whether the user chooses the table's name, as in `[cameras.hall]`."""
        return self.path[-1:] == (NAME,)

    @property
    def field(self) -> str:
        """The name of this table's field in the struct of the enclosing table. For a named table, the value of this
        field is a dictionary, which maps names to tables."""
        return self.path[-2] if self.is_named else self.path[-1]

    @property
    def meaning(self) -> str:
        """The docstring of the table's struct, in one line."""
        return " ".join((getdoc(self.kind) or "").split())

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the keys and tables in this table, in the order of the schema."""
        return self.kind.__struct_fields__

    def walk(self) -> Iterator[Table]:
        """Yield this table and all tables inside it."""
        yield self
        for table in self.tables:
            yield from table.walk()


def dotted(path: Path) -> str:
    """Return a path with dots and quotes as in TOML; `listen[0]` is the first item of a list."""
    return ".".join(map(_written, path))


def _written(name: str) -> str:
    found = _INDEXED.fullmatch(name)
    return key(found[1]) + found[2] if found else key(name)


def without_index(name: str) -> str:
    """Return the name of the list if `name` is one of its items, such as `listen[0]`; otherwise `name`."""
    found = _INDEXED.fullmatch(name)
    return found[1] if found else name


def variable(path: Path) -> str:
    """Return the environment variable of a key or table: `EDGED_` and the names of its path in capitals."""
    return _PREFIX + "_".join(path).upper()


@functools.cache
def tables(
    kind: type[msgspec.Struct] = Config, path: Path = (), is_optional: bool = False, reload: Reload = Reload.RESTART
) -> Table:
    """Return a struct's tables and keys, by default the configuration's. `reload` is for fields without a `Reload`."""
    keys: list[Key] = []
    inner: list[Table] = []
    for field in msgspec.structs.fields(kind):
        place = (*path, field.name)
        struct, own = struct_of(field.type), reload_of(field.type) or reload
        if (named := struct_of(value_of(field.type))) is not None:
            inner.append(tables(named, (*place, NAME), False, own))
        elif struct is not None:
            inner.append(tables(struct, place, field.default is None, own))
        else:
            default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            is_required = default is msgspec.NODEFAULT
            keys.append(_key(place, field.type, None if is_required else default, own, is_required))
    return Table(path, kind, tuple(keys), tuple(inner), is_optional)


def all_keys() -> tuple[Key, ...]:
    """Return every key, table by table."""
    return tuple(key for table in tables().walk() for key in table.keys)


def reload_of(hint: object) -> Reload | None:
    """Return the `Reload` in a field's annotation; None if the annotation has none. In that case, the keys inside the
    field have their own `Reload`, or the `Reload` of the enclosing table applies."""
    return next((each for each in typing.get_args(hint)[1:] if isinstance(each, Reload)), None)


def _key(path: Path, hint: object, default: object, reload: Reload, is_required: bool) -> Key:
    metas = [each for each in typing.get_args(hint)[1:] if isinstance(each, msgspec.Meta)]
    meaning = next((meta.description for meta in metas if meta.description), "")
    examples = next((meta.examples for meta in metas if meta.examples), None)
    is_secret = any(bool((meta.extra or {}).get("secret")) for meta in metas)
    return Key(path, hint, default, meaning, examples[0] if examples else None, is_secret, reload, is_required)
