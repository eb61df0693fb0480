"""How this process has its children confined: set once, before the first is started."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from edged.confinement.rules import Mode, Reach

_MOST_FILES = 4096
_mode: Mode = "on"
_private: tuple[str, ...] = ()


def use(mode: Mode, private: Iterable[str | os.PathLike[str]] = ()) -> None:
    """`private` are folders and files, such as those with secrets, that no child gets because a model lies near."""
    global _mode, _private
    _mode, _private = mode, tuple(os.path.realpath(path) for path in private)


def mode() -> Mode:
    return _mode


def reach(reads: Iterable[str] = (), writes: Iterable[str] = (), scratch: str = "") -> Reach:
    """What a child may reach whose job reads and writes these files and folders, with a folder for temporary files."""
    written = (*writes, scratch) if scratch else writes
    return Reach(_mode, tuple(dict.fromkeys(reads)), tuple(dict.fromkeys(written)), scratch)


def around(model: str | os.PathLike[str]) -> tuple[str, ...]:
    """The folder of a model's file, which also holds its external data, and the folder that a link leads to.

    Of a folder that holds more than models, such as a home, only the files directly in it that are not hidden.
    """
    found: dict[str, None] = {}
    for path in {os.path.abspath(model), os.path.realpath(model)}:
        folder = os.path.dirname(path)
        if is_private(folder):
            found |= dict.fromkeys((path, *_files(folder)))
        else:
            found[folder] = None
    return tuple(found)


def is_private(folder: str) -> bool:
    """Whether a folder is one, or has one below it, that must not be given away as a whole."""
    inside = os.path.join(os.path.realpath(folder), "")
    homes = (os.path.expanduser("~"), "/tmp", "/root", "/home", "/etc", "/var", "/dev/shm")  # noqa: S108 - kept out
    return any(os.path.join(path, "").startswith(inside) for path in (*_private, *homes))


def _files(folder: str) -> list[str]:
    found: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.startswith(".") and entry.is_file(follow_symlinks=False):
                    found.append(entry.path)
                if len(found) == _MOST_FILES:
                    break
    except OSError:
        return []
    return [path for path in found if not any(Path(path).is_relative_to(each) for each in _private)]
