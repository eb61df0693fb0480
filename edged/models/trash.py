"""Models that were removed and can be taken back: `.removed/NUMBER/` in the folder of models holds one of them each.

They are bounded by number and size, since the clock of a small box may be anything.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

FOLDER = ".removed"
MOST = 10
MOST_BYTES = 4 << 30  # all together; the newest is kept whatever its size


def put(root: Path, paths: Iterable[Path]) -> Path:
    """Moves files and folders of `root` into the trash; where they lie now. OSError."""
    (root / FOLDER).mkdir(parents=True, exist_ok=True, mode=0o750)
    with _alone(root):
        numbers = [int(place.name) for place in _places(root)]
        place = root / FOLDER / f"{max(numbers, default=0) + 1:06}"
        place.mkdir(mode=0o750)
        for path in paths:
            os.rename(path, place / path.name)
        _prune(root)
    return place


def prune(root: Path) -> None:
    """Deletes the oldest beyond the bounds, and folders that an interrupted removal left empty."""
    with contextlib.suppress(OSError), _alone(root):
        _prune(root)


@contextlib.contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Holds the trash: two removals at once would take the same number, or delete what the other is about to fill."""
    handle = os.open(root / FOLDER, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _prune(root: Path) -> None:
    total = 0
    for index, place in enumerate(reversed(_places(root))):
        with contextlib.suppress(OSError):  # not a folder, or not ours to read: it stays
            total += _size(place)
            if (index and (index >= MOST or total > MOST_BYTES)) or not any(place.iterdir()):
                shutil.rmtree(place, ignore_errors=True)


def _places(root: Path) -> list[Path]:
    """The oldest first."""
    found = (root / FOLDER).glob("[0-9]*") if (root / FOLDER).is_dir() else ()
    return sorted((place for place in found if place.name.isdecimal()), key=lambda place: int(place.name))


def _size(place: Path) -> int:
    files = (Path(folder, name) for folder, _, names in os.walk(place) for name in names)
    return sum(file.lstat().st_size for file in files)
