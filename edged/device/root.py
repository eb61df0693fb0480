"""The directory that facts are read below: `/` on the box itself, or a recorded tree of another box.

Reading is the part that must never fail or hang: a file that is missing, unreadable, too large, not UTF-8, or
not a regular file (a FIFO, a device) is simply absent. In a recorded tree every symbolic link is followed as
if the tree were `/`, so that an absolute link or `../..` stays inside it. A tree that is changed while it is
read is not defended against.
"""

from __future__ import annotations

import fnmatch
import os
import stat
from collections.abc import Iterator
from pathlib import Path

DEFAULT_LIMIT = 1 << 20  # bytes; nothing under /proc, /sys or /etc that names a fact is near this
_MAX_LINKS = 40  # as the kernel's own limit for one path
_UNREADABLE = (OSError, ValueError)  # ValueError: a NUL or a lone surrogate in a path


class Root:
    """Files below one directory; paths are relative and use `/`."""

    def __init__(self, path: Path = Path("/")) -> None:
        self._top = os.path.realpath(path)

    @property
    def path(self) -> Path:
        return Path(self._top)

    @property
    def is_live(self) -> bool:
        """Whether this is the running system, so that asking it (NVML, a command) describes the same box."""
        return self._top == "/"

    def read(self, rel: str, limit: int = DEFAULT_LIMIT) -> str | None:
        """The text of a regular file of at most `limit` bytes without the NULs that end it, or None."""
        try:
            data = self._read_bytes(rel, limit)
            return None if data is None else data.decode("utf-8").rstrip("\0")
        except _UNREADABLE:
            return None

    def head(self, rel: str, size: int) -> bytes:
        """The first bytes of a regular file, at most `size`; empty when it cannot be read."""
        try:
            where = self._locate(rel)
            if not stat.S_ISREG(os.stat(where).st_mode):
                return b""
            with open(where, "rb") as file:
                return file.read(size)
        except _UNREADABLE:
            return b""

    def strings(self, rel: str) -> tuple[str, ...]:
        """The NUL-separated strings of a device-tree property; empty when there are none."""
        return tuple(part for part in (self.read(rel) or "").split("\0") if part)

    def status(self, rel: str) -> os.stat_result | None:
        """Owner, mode and kind of what the path leads to; None where there is nothing, or nothing that may be seen."""
        try:
            return os.stat(self._locate(rel))
        except _UNREADABLE:
            return None

    def exists(self, rel: str) -> bool:
        """Whether the path, links followed, is there; what it is does not matter."""
        try:
            os.stat(self._locate(rel))
        except _UNREADABLE:
            return False
        return True

    def real_name(self, rel: str) -> str | None:
        """The file name that links lead to from `rel` (a library's name with its full version), or None."""
        try:
            return os.path.basename(os.path.realpath(self._locate(rel))) if self.exists(rel) else None
        except _UNREADABLE:
            return None

    def glob(self, pattern: str) -> tuple[str, ...]:
        """Existing paths that match, sorted; `*`, `?` and `[]` match within one part, not a leading dot."""
        found = [""]
        for part in pattern.split("/"):
            found = [f"{base}/{name}".lstrip("/") for base in found for name in self._matching(base, part)]
        return tuple(sorted(found))

    def _matching(self, base: str, part: str) -> Iterator[str]:
        if not any(mark in part for mark in "*?["):
            names = [part]
        else:
            names = [
                name
                for name in self._names(base)
                if fnmatch.fnmatchcase(name, part) and (part.startswith(".") or not name.startswith("."))
            ]
        return (name for name in names if self.exists(f"{base}/{name}"))

    def _names(self, rel: str) -> list[str]:
        try:
            return os.listdir(self._locate(rel))
        except _UNREADABLE:
            return []

    def _read_bytes(self, rel: str, limit: int) -> bytes | None:
        where = self._locate(rel)
        # Asked before opening, because opening a FIFO waits and opening a device can do anything.
        if not stat.S_ISREG(os.stat(where).st_mode):
            return None
        handle = os.open(where, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            # The size in stat is 0 for files of /proc, so only reading tells.
            data = file.read(limit + 1)
        return None if len(data) > limit else data

    def _locate(self, rel: str) -> str:
        """The path to open. Links of a recorded tree are followed here; what is returned holds none."""
        if self.is_live:
            return f"/{rel}"
        todo, done, links = _parts(rel), list[str](), 0
        while todo:
            part = todo.pop()
            if part == "..":
                del done[-1:]
                continue
            target = _link_target(os.path.join(self._top, *done, part))
            if target is None:
                done.append(part)
                continue
            links += 1
            if links > _MAX_LINKS:
                raise OSError(f"too many links: {rel}")
            if target.startswith("/"):
                done.clear()
            todo += _parts(target)
        return os.path.join(self._top, *done)


def _parts(path: str) -> list[str]:
    """The parts of a path, last first, so that the next one is popped from the end."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _link_target(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None
