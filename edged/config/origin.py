"""Where a value comes from, and what is wrong with it there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from edged.config.keys import Path, without_index

Kind: TypeAlias = Literal["default", "file", "environment", "command line"]


class Origin(msgspec.Struct, frozen=True):
    """Where a value was set: in the line of a file, 0 where that cannot be told; by a variable; by an option."""

    kind: Kind = "default"
    name: str = ""  # the file, the variable, the option
    line: int = 0

    def __str__(self) -> str:
        if not self.name:
            return self.kind
        return f"{self.name}:{self.line}" if self.line else self.name


DEFAULT = Origin()


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong, in one line. `key` is empty where it is about no key; a message may begin with it."""

    origin: Origin
    key: str
    message: str

    def __str__(self) -> str:
        where = f"{self.origin}: " if self.origin != DEFAULT else ""
        key = "" if self.message.startswith(self.key) else f"{self.key}: "
        return " ".join(f"{where}{key}{self.message}".split())


class Source(msgspec.Struct, frozen=True):
    """What one place says: values as TOML has them, and where each was found."""

    tree: dict[str, object] = {}
    places: Mapping[Path, Origin] = {}
    whole: Origin = DEFAULT  # for what has no place of its own

    def has(self, path: Path) -> bool:
        """Whether it says something of a key; of what is in a list, as far as it has that list."""
        inner: object = self.tree
        for name in path:
            if not isinstance(inner, dict):
                return False
            if name not in inner:
                return without_index(name) in inner
            inner = inner[name]
        return True

    def origin(self, path: Path) -> Origin:
        """Where it says something of a key, or of the nearest table around it whose place is known."""
        for length in range(len(path), 0, -1):
            whole_list = (*path[: length - 1], without_index(path[length - 1]))
            place = self.places.get(path[:length]) or self.places.get(whole_list)
            if place is not None:
                return place
        return self.whole
