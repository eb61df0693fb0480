"""Models that were removed and can be taken back: `.removed/NUMBER/` in the folder of models holds one of them each.

They are bounded by number and size, since the clock of a small box may be anything.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

FOLDER = ".removed"
MOST = 10
MOST_BYTES = 4 << 30  # all together; the newest is kept whatever its size


def put(root: Path, paths: Iterable[Path]) -> Path:
    """Moves files and folders of `root` into the trash; where they lie now. OSError."""
    numbers = [int(place.name) for place in _places(root)]
    place = root / FOLDER / f"{max(numbers, default=0) + 1:06}"
    place.mkdir(parents=True, mode=0o750)
    for path in paths:
        os.rename(path, place / path.name)
    prune(root)
    return place


def prune(root: Path) -> None:
    """Deletes the oldest beyond the bounds, and folders that an interrupted removal left empty."""
    total = 0
    for index, place in enumerate(reversed(_places(root))):
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
