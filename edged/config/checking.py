"""Finds all mistakes in a configuration, and the origin of each value. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from edged.config.keys import Path, Table, allowed, dotted, item_of, shown, value_of, without_index
from edged.decoding import ready
from edged.errors import either

_CLOSE = 0.66  # lowest similarity, 0 to 1, at which a name is suggested


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the one of `names` that is closest to `name`; empty if none is close. Case is ignored, and a hyphen counts
    as an underscore."""
    known = list(names)
    plain = {each.lower(): each for each in reversed(known)}
    found = difflib.get_close_matches(name.lower().replace("-", "_"), plain, n=1, cutoff=_CLOSE)
    return plain[found[0]] if found else ""


def advice(name: str, here: Table, root: Table) -> str:
    """Suggest a known key for an unknown `name` in table `here`, from this table or another table below `root`."""
    close = nearest(name, here.names)
    elsewhere = [each for each in root.walk() if name in each.names and each is not here]
    if elsewhere:
        belongs = f"it is a key of {_named(elsewhere)}"
        return f"{belongs}; did you mean `{close}` here?" if close else belongs
    if close:
        return f"did you mean `{close}`?"
    for other in root.walk():
        found = nearest(name, other.names)
        if found:
            return f"did you mean `{found}` of {_named([other])}?"
    return f"known keys: {', '.join(here.names)}"


def _named(tables: Sequence[Table]) -> str:
    at_top = ["the top of the file, before any table"] if any(not each.path for each in tables) else []
    return either([*(f"[{dotted(each.path)}]" for each in tables if each.path), *at_top])


Kind: TypeAlias = Literal["default", "file", "environment", "command line"]


class Origin(msgspec.Struct, frozen=True):
    """Where a value was set: a file and line (0 if unknown), a variable, or an option."""

    kind: Kind = "default"
    name: str = ""  # the file, the variable, the option
    line: int = 0

    def __str__(self) -> str:
        if not self.name:
            return self.kind
        return f"{self.name}:{self.line}" if self.line else self.name


DEFAULT = Origin()


class Problem(msgspec.Struct, frozen=True):
    """One mistake, in one line. `key` is empty if the mistake concerns no key; `message` may begin with the key."""

    origin: Origin
    key: str
    message: str

    def __str__(self) -> str:
        where = f"{self.origin}: " if self.origin != DEFAULT else ""
        key = "" if self.message.startswith(self.key) else f"{self.key}: "
        return " ".join(f"{where}{key}{self.message}".split())


class Source(msgspec.Struct, frozen=True):
    """The values of one source (file, environment or command line), nested as in TOML, and where each was set."""

    tree: dict[str, object] = {}
    places: Mapping[Path, Origin] = {}
    whole: Origin = DEFAULT  # for values without a known place

    def has(self, path: Path) -> bool:
        """Whether the source sets a key; for an item of a list, whether it sets the list."""
        inner: object = self.tree
        for name in path:
            if not isinstance(inner, dict):
                return False
            if name not in inner:
                return without_index(name) in inner
            inner = inner[name]
        return True

    def origin(self, path: Path) -> Origin:
        """Return where the source sets a key, or where it sets the closest enclosing table whose place is known."""
        for length in range(len(path), 0, -1):
            whole_list = (*path[: length - 1], without_index(path[length - 1]))
            place = self.places.get(path[:length]) or self.places.get(whole_list)
            if place is not None:
                return place
        return self.whole


class Fault(msgspec.Struct, frozen=True):
    """A mistake in the value or the name of a key."""

    path: Path
    message: str


def faults(tree: Mapping[str, object], table: Table, path: Path = (), root: Table | None = None) -> Iterator[Fault]:
    """Yield the mistakes in `tree`. If `path` is empty, `tree` has all values of a source. Otherwise, `tree` has the
    values of the table at `path`.

    A path includes the names that the user chose. For an unknown key, a key of `root` or of a table below `root` is
    suggested.
    """
    root = root or table
    keys = {key.path[-1]: key for key in table.keys}
    inner = {each.field: each for each in table.tables}
    for name, value in tree.items():
        place = (*path, name)
        if name in keys:
            yield from _value(value, keys[name].hint, place, keys[name].is_secret)
        elif name not in inner:
            yield Fault(place, f"unknown key; {advice(name, table, root)}")
        else:
            for at, each in _instances(value, inner[name], place):
                if isinstance(each, dict):
                    yield from faults(each, inner[name], at, root)
                else:
                    yield Fault(at, f"expected a table, got {shown(each)}")


def _instances(value: object, table: Table, path: Path) -> Iterator[tuple[Path, object]]:
    """Yield the path and the value of a table. If the user chooses the table's name, yield them for each name."""
    if table.is_named and isinstance(value, dict):
        yield from (((*path, name), each) for name, each in value.items())
    else:
        yield path, value


def _value(value: object, hint: object, path: Path, is_secret: bool) -> Iterator[Fault]:
    item, entry = item_of(hint), value_of(hint)
    if entry is not None and isinstance(value, dict):
        for name, each in value.items():
            yield from _value(each, entry, (*path, name), is_secret)
    elif item is not None and isinstance(value, list):
        for index, each in enumerate(value):
            yield from _value(each, item, (*path[:-1], f"{path[-1]}[{index}]"), is_secret)
    else:
        try:
            msgspec.convert(value, ready(hint))
        except msgspec.ValidationError:
            got = "another value (hidden, because it is a secret)" if is_secret else shown(value)
            yield Fault(path, f"expected {allowed(hint)}, got {got}")


def contradictions(tree: Mapping[str, object], table: Table, path: Path = ()) -> Iterator[Fault]:
    """Yield the missing keys of the table at `path`, and contradictions between keys that are valid alone."""
    found = [
        fault
        for inner in table.tables
        for at, each in _instances(tree.get(inner.field), inner, (*path, inner.field))
        if isinstance(each, dict)
        for fault in contradictions(each, inner, at)
    ]
    missing = [key.path[-1] for key in table.keys if key.is_required and key.path[-1] not in tree]
    found += [Fault(path, f"{name} is missing; set it") for name in missing]
    yield from found or _converted(tree, table, path)


def _converted(tree: Mapping[str, object], table: Table, path: Path) -> Iterator[Fault]:
    try:
        msgspec.convert(tree, ready(table.kind))
    except msgspec.ValidationError as error:
        message = str(error).partition(" - at `$")[0]
        # The message of a table's `__post_init__` begins with the key that it concerns.
        name = message.removeprefix(f"{dotted(path)}.").partition(" ")[0]
        yield Fault((*path, name) if name in table.names else path, message)
