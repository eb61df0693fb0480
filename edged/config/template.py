"""The commented configuration file with every key and its default, and listings of the values in force."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import msgspec

from edged.config.checking import Origin
from edged.config.keys import NAME, Key, Path, Table, choices, core, dotted, tables, toml, variable
from edged.config.keys import key as toml_key
from edged.config.reading import Reading
from edged.config.schema import Reload
from edged.errors import redact

_WIDTH = 100
_HEAD = (
    "The configuration of edged: every key with its default, as a comment. To change a key, uncomment it and edit the"
    " value, then run: edged config check, and sudo edged reload. The environment variable in brackets overrides the"
    " key. Unknown keys are errors."
)


def template() -> str:
    """Return the whole file; unedited, it changes nothing."""
    return "\n\n".join((_comment(_HEAD), *_inside(tables()))) + "\n"


def _inside(table: Table) -> Iterator[str]:
    """Yield the parts of a table. Plain keys come first: after the header of an inner table, they would belong to that
    table."""
    yield from (_block(key) for key in table.keys if not key.is_table)
    yield from (_named(key) for key in table.keys if key.is_table)
    for inner in table.tables:
        yield from _table(inner)


def _table(table: Table) -> Iterator[str]:
    header = f"[{dotted(table.path)}]"
    if NAME in table.path:
        yield f"{_comment(table.meaning)}\n#{header}"
    elif table.is_optional:
        yield f"{_comment(f'{table.meaning} Uncomment {header} as well.')}\n#{header}"
    else:
        yield f"{_comment(table.meaning)}\n{header}"
    yield from _inside(table)


def _block(key: Key) -> str:
    value = key.example if key.default is None else key.default
    return f"{_comment(_described(key))}\n#{key.path[-1]} = {toml(value)}"


def _named(key: Key) -> str:
    """Return a table in which the user chooses the names, with examples."""
    example = key.example if isinstance(key.example, dict) else {}
    entries = "\n".join(f"#{toml_key(name)} = {toml(value)}" for name, value in example.items())
    return f"{_comment(_described(key))}\n[{key.name}]\n{entries}"


def describe(key: Key) -> str:
    """Return a key's meaning and allowed values."""
    takes = f" {key.allowed[0].upper()}{key.allowed[1:]}." if _needs_range(key) else ""
    example = "" if key.example is None or key.is_table else f" Example: {toml(key.example)}."
    unset = " Required." if key.is_required else " Unset by default." if key.default is None else ""
    return f"{key.meaning}{takes}{example}{unset}"


def _described(key: Key) -> str:
    restart = " Needs a restart." if key.reload is Reload.RESTART else ""
    named = "" if NAME in key.path else f" [{key.variable}]"
    return f"{describe(key)}{restart}{named}"


def _needs_range(key: Key) -> bool:
    """Whether a key's description must list the allowed values. The list is needed if the value is a number, or if the
    key's meaning does not name all choices."""
    return core(key.hint) in (int, float) or any(toml(each) not in key.meaning for each in choices(key.hint))


def _comment(text: str) -> str:
    lines = textwrap.wrap(text, _WIDTH - 2, break_long_words=False, break_on_hyphens=False)
    return "\n".join(f"# {line}" for line in lines)


_HIDDEN = "(hidden)"


class Row(msgspec.Struct, frozen=True):
    """A key with its value. A table in which the user chooses the names has a row for each name. If a secret is set,
    its value is `(hidden)`."""

    path: Path
    value: object
    origin: Origin
    variable: str

    @property
    def key(self) -> str:
        """The key's dotted name."""
        return dotted(self.path)


def rows(reading: Reading) -> Iterator[Row]:
    """Yield every key in the order of the schema; keys of an optional table only if it is set."""
    for place, table, inner in present(reading.config):
        for key in table.keys if inner is not None else ():
            value, path = getattr(inner, key.path[-1]), (*place, key.path[-1])
            entries = {(*path, name): each for name, each in value.items()} if key.is_table else {path: value}
            for each, found in entries.items():
                yield Row(each, disclosed(key, found), reading.origin(each), _variable(key))


def _variable(key: Key) -> str:
    """Return the variable that sets a key. If the key is in a table whose name the user chooses, return the variable
    that sets all such tables."""
    return variable(key.path[: key.path.index(NAME)]) if NAME in key.path else key.variable


def disclosed(key: Key, value: object) -> object:
    """Return a value for display: `(hidden)` for a secret that is set, and texts without the users and passwords of
    addresses."""
    if key.is_secret and value:
        return _HIDDEN
    return redact(value) if isinstance(value, str) else value


def present(
    value: msgspec.Struct | None, table: Table | None = None, path: Path = ()
) -> Iterator[tuple[Path, Table, msgspec.Struct | None]]:
    """Yield the path, table and value of each table; the value is None for an absent optional table. A table whose name
    the user chooses is yielded once for each name. `value` is the value of `table` at `path`; by default `table` is the
    whole configuration."""
    table = table or tables()
    yield path, table, value
    for inner in table.tables:
        found = None if value is None else getattr(value, inner.field)
        if not inner.is_named:
            yield from present(found, inner, (*path, inner.field))
        else:
            for name, each in (found or {}).items():
                yield from present(each, inner, (*path, inner.field, name))


def lines(reading: Reading, with_origin: bool) -> Iterator[str]:
    """Yield the lines of a file that sets every key; `with_origin` adds the origin of each value."""
    known = list(rows(reading))
    for place, table, value in present(reading.config):
        if place:
            yield f"\n[{dotted(place)}]" if value is not None else f"\n# [{dotted(place)}] is absent"
        for key in sorted(table.keys, key=lambda key: key.is_table):
            path = (*place, key.path[-1])
            if key.is_table:
                yield f"\n[{dotted(path)}]"
            yield from (_line(row, with_origin) for row in known if row.path[: len(path)] == path)


def _line(row: Row, with_origin: bool) -> str:
    name = toml_key(row.path[-1])
    text = f"# {name} is not set" if row.value is None else f"{name} = {toml(row.value)}"
    return f"{text}  # {row.origin}" if with_origin else text


def reference() -> Iterator[str]:
    """Yield the lines of the reference in docs/configuration.md: a table of keys for each table of the file."""
    for table in tables().walk():
        if table.path:
            yield from (f"### [{dotted(table.path)}]", "", table.meaning, "")
        yield from ("| key | default | reload | meaning |", "|---|---|---|---|")
        for key in table.keys:
            default = "" if key.default is None or key.is_table else f"`{toml(key.default)}`"
            yield f"| `{key.name}` | {default} | {key.reload.value} | {describe(key)} |"
        yield ""
