"""The configuration in force, key by key: what it is, and where that comes from."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from edged.config.keys import Key, Path, Table, dotted, tables
from edged.config.origin import Origin
from edged.config.reading import Reading
from edged.config.words import key as toml_key
from edged.config.words import toml

_HIDDEN = "(hidden)"


class Row(msgspec.Struct, frozen=True):
    """A key with its value; a table that the user fills has a row for each name in it. A secret that is set reads
    `(hidden)`."""

    path: Path
    value: object
    origin: Origin
    variable: str

    @property
    def key(self) -> str:
        """As a person writes it."""
        return dotted(self.path)


def rows(reading: Reading) -> Iterator[Row]:
    """Every key in the order of the schema; those of an optional table only where it is in force."""
    for table in tables().walk():
        inner = value_at(reading.config, table.path)
        if inner is None:
            continue
        for key in table.keys:
            yield from _rows(key, getattr(inner, key.path[-1]), reading)


def _rows(key: Key, value: object, reading: Reading) -> Iterator[Row]:
    if isinstance(value, dict):
        for name, each in value.items():
            path = (*key.path, str(name))
            yield Row(path, disclosed(key, each), reading.origin(path), key.variable)
        return
    yield Row(key.path, disclosed(key, value), reading.origin(key.path), key.variable)


def disclosed(key: Key, value: object) -> object:
    """What may be shown of a value: of a secret, only whether it is set."""
    return _HIDDEN if key.is_secret and value else value


def value_at(config: msgspec.Struct, path: Path) -> object:
    """What stands at a path; None below an optional table that is not there."""
    found: object = config
    for name in path:
        found = None if found is None else getattr(found, name)
    return found


def lines(reading: Reading, with_origin: bool) -> Iterator[str]:
    """As a file that says all of it; `with_origin` adds where each value comes from."""
    by_path = {row.path: row for row in rows(reading)}
    for table in tables().walk():
        yield from _table(table, reading, by_path, with_origin)


def _table(table: Table, reading: Reading, by_path: dict[Path, Row], with_origin: bool) -> Iterator[str]:
    if table.path:
        is_there = value_at(reading.config, table.path) is not None
        yield f"\n[{dotted(table.path)}]" if is_there else f"\n# [{dotted(table.path)}] is not there"
    for key in sorted(table.keys, key=lambda key: key.is_table):
        if key.is_table:
            inner = [row for path, row in by_path.items() if path[: len(key.path)] == key.path]
            yield f"\n[{key.name}]"
            yield from (_line(row, with_origin) for row in inner)
        elif key.path in by_path:
            yield _line(by_path[key.path], with_origin)


def _line(row: Row, with_origin: bool) -> str:
    name = toml_key(row.path[-1])
    text = f"# {name} is not set" if row.value is None else f"{name} = {toml(row.value)}"
    return f"{text}  # {row.origin}" if with_origin else text
