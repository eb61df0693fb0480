"""What a daemon learns about the embedded detector, made once and copied for the daemons of other tests.

Examining, verifying and timing a model takes most of a daemon's first seconds. Few tests are about it.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path


class DetectorCache:
    """Cache folders of daemons that have the embedded detector. `folder` may be shared with other processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def copy(self, kind: str, make: Callable[[], AbstractContextManager[Path]], target: Path) -> None:
        """Copy the cache of a kind to `target`. If it does not exist yet, it is made: `make` yields its folder."""
        made = self._folder / kind
        if not made.exists():
            with self._alone(kind):
                self._make(made, make)
        shutil.copytree(made, target, dirs_exist_ok=True)

    @staticmethod
    def _make(made: Path, make: Callable[[], AbstractContextManager[Path]]) -> None:
        if made.exists():  # another process made it meanwhile
            return
        stage = made.with_name(f"{made.name}.new")
        shutil.rmtree(stage, ignore_errors=True)
        with make() as cache:
            shutil.copytree(cache, stage)
        stage.rename(made)

    @contextmanager
    def _alone(self, kind: str) -> Iterator[None]:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f"{kind}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
