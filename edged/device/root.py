"""The directory that contains the files with facts: `/` on the box itself, or a recorded tree of another box.

Reading never raises and never blocks: a file that is missing, unreadable, too large, not UTF-8, or not a regular file
(a FIFO, a device) counts as absent. In a recorded tree symbolic links are followed as if the tree were `/`, so that an
absolute link or `../..` stays inside it. A tree must not be changed while it is read.
"""

from __future__ import annotations

import fnmatch
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

DEFAULT_LIMIT = 1 << 20  # bytes; far above any file of /proc, /sys or /etc that contains a fact
_MAX_LINKS = 40  # the kernel's own limit for one path
_UNREADABLE = (OSError, ValueError)  # ValueError: a NUL or a lone surrogate in a path


class Root:
    """Reads files below one directory; paths are relative and use `/`."""

    def __init__(self, path: Path = Path("/")) -> None:
        self._top = os.path.realpath(path)

    @property
    def path(self) -> Path:
        return Path(self._top)

    @property
    def is_live(self) -> bool:
        """Whether this is the running system. Only then do NVML and commands describe the box of the files."""
        return self._top == "/"

    def read(self, rel: str, limit: int = DEFAULT_LIMIT) -> str | None:
        """Return the text of a regular file without trailing NULs; None if it is unreadable or above `limit` bytes."""
        try:
            data = self._read_bytes(rel, limit)
            return None if data is None else data.decode("utf-8").rstrip("\0")
        except _UNREADABLE:
            return None

    def head(self, rel: str, size: int) -> bytes:
        """Return at most the first `size` bytes of a regular file; empty if it cannot be read."""
        try:
            file = self._open(rel)
            if file is None:
                return b""
            with file:
                return file.read(size)
        except _UNREADABLE:
            return b""

    def open(self, rel: str) -> BinaryIO | None:
        """Open a regular file for reading; None if it cannot be opened."""
        try:
            return self._open(rel)
        except _UNREADABLE:
            return None

    def strings(self, rel: str) -> tuple[str, ...]:
        """Return the NUL-separated strings of a device-tree property."""
        return tuple(part for part in (self.read(rel) or "").split("\0") if part)

    def status(self, rel: str) -> os.stat_result | None:
        """Return owner, mode and type of a path, following links; None if the path is missing or not accessible."""
        try:
            return os.stat(self._locate(rel))
        except _UNREADABLE:
            return None

    def exists(self, rel: str) -> bool:
        """Whether a path exists. Links are followed."""
        return self.status(rel) is not None

    def real_name(self, rel: str) -> str | None:
        """Return the name of the file that the links at `rel` lead to; for a library, the name has the full version.
        None if the file is missing."""
        try:
            return os.path.basename(os.path.realpath(self._locate(rel))) if self.exists(rel) else None
        except _UNREADABLE:
            return None

    def glob(self, pattern: str) -> tuple[str, ...]:
        """Return the existing paths that match, sorted. `*`, `?` and `[]` match within one part of a path, but not a
        leading dot."""
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
        file = self._open(rel)
        if file is None:
            return None
        with file:
            # Read to know the size: stat reports size 0 for files of /proc.
            data = file.read(limit + 1)
        return None if len(data) > limit else data

    def _open(self, rel: str) -> BinaryIO | None:
        """Open a file; None if it is not a regular file."""
        path = self._locate(rel)
        # The type is checked before opening: opening a FIFO blocks, and opening a device can have side effects.
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        return os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb")

    def _locate(self, rel: str) -> str:
        """Return the path to open. Links of a recorded tree are resolved here."""
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
    """Return the parts of a path in reverse order, so that the next part can be popped."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _link_target(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None
