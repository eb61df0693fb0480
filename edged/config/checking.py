"""Whether a tree of values is a configuration: everything that is wrong with it, not only what is met first. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from edged.config.hints import allowed, item_of, struct_of, value_of
from edged.config.keys import Path, Table, dotted, tables, without_index
from edged.config.nearest import advice
from edged.config.words import shown
from edged.decoding import ready


class Fault(msgspec.Struct, frozen=True):
    """What is wrong with the value of a key, or that there is no such key."""

    path: Path
    message: str


def faults(tree: Mapping[str, object], root: Table) -> Iterator[Fault]:
    """Of the values of a whole file, or of what another source says."""
    yield from _table(tree, root.kind, root.path, root)


def contradictions(tree: Mapping[str, object], root: Table) -> Iterator[Fault]:
    """What is wrong between keys, each of which is right for itself."""
    found = [fault for table in root.tables for fault in _within(tree.get(table.path[-1]), table)]
    yield from found or _converted(tree, root)


def _within(value: object, table: Table) -> Iterator[Fault]:
    if isinstance(value, dict):
        yield from contradictions(value, table)


def _converted(tree: Mapping[str, object], table: Table) -> Iterator[Fault]:
    try:
        msgspec.convert(tree, ready(table.kind))
    except msgspec.ValidationError as error:
        message = str(error).partition(" - at `$")[0]
        # Such an error begins with the key that it is about.
        name = message.removeprefix(f"{dotted(table.path)}.").partition(" ")[0]
        yield Fault((*table.path, name) if name in table.names else table.path, message)


def _table(tree: Mapping[str, object], kind: type[msgspec.Struct], path: Path, root: Table) -> Iterator[Fault]:
    hints = {field.name: field for field in msgspec.structs.fields(kind)}
    for name, value in tree.items():
        if name in hints:
            yield from _value(value, hints[name].type, (*path, name), root)
        else:
            yield Fault((*path, name), f"unknown key; {_advice(name, kind, path, root)}")
    for name, field in hints.items():
        if field.required and name not in tree:
            yield Fault((*path, name), f"it is missing; expected {allowed(field.type)}")


def _advice(name: str, kind: type[msgspec.Struct], path: Path, root: Table) -> str:
    if any(each.path == path for each in root.walk()):
        return advice(name, path, root)
    inner = tables(kind, path)  # an entry of a list of tables, which the file has any number of
    return advice(name, path, inner)


def _value(value: object, hint: object, path: Path, root: Table) -> Iterator[Fault]:
    struct, item, entry = struct_of(hint), item_of(hint), value_of(hint)
    if struct is not None and isinstance(value, dict):
        yield from _table(value, struct, path, root)
    elif entry is not None and isinstance(value, dict):
        for name, each in value.items():
            yield from _value(each, entry, (*path, name), root)
    elif item is not None and isinstance(value, list):
        for index, each in enumerate(value):
            place = (*path[:-1], f"{path[-1]}[{index}]")
            yield from _value(each, item, place, root)
    else:
        try:
            msgspec.convert(value, ready(hint))
        except msgspec.ValidationError:
            got = "something else, which is a secret" if _is_secret(path, root) else shown(value)
            yield Fault(path, f"expected {allowed(hint)}, got {got}")


def _is_secret(path: Path, root: Table) -> bool:
    plain = tuple(map(without_index, path))
    keys = (key for table in root.walk() for key in table.keys)
    return any(key.is_secret for key in keys if key.path == plain[: len(key.path)])
