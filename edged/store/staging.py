"""Where entries are made, and where they go to be removed: nobody sees half of one.

Several processes may use one folder: each holds a lock on what it makes there. What has no living owner is a stray that
the next start removes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOCK = ".owner"


class Staging:
    """One folder for it, on the file system of the entries."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextmanager
    def stage(self) -> Iterator[Path]:
        """An empty directory to build in, removed afterwards with whatever is left in it."""
        with self._sweeping(fcntl.LOCK_SH):  # until it is locked, a new stage looks like a stray
            home = Path(tempfile.mkdtemp(dir=self.root))
            try:
                lock = os.open(home / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
            except BaseException:  # a disk without room for one more file
                shutil.rmtree(home, ignore_errors=True)
                raise
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            out = home / "engine"
            out.mkdir()
            yield out
        finally:
            shutil.rmtree(home, ignore_errors=True)
            os.close(lock)

    def bury(self, entry: Path, heart: str) -> None:
        """Takes an entry out of sight in one step, then removes it: a crash in between leaves a stray, not a half.

        Where it cannot be moved it is removed in its place, its file `heart` first, without which it is no entry.
        """
        if not os.path.lexists(entry):
            return
        if entry.is_symlink() or not entry.is_dir():
            entry.unlink()
            return
        try:
            grave = Path(tempfile.mkdtemp(dir=self.root))
        except OSError:  # a full disk has no room for a grave
            _remove_in_place(entry, heart)
            return
        try:
            os.rename(entry, grave / "engine")
        except OSError:  # it is in the lower layer of a container's file system, or another process was faster
            _remove_in_place(entry, heart)
        finally:
            shutil.rmtree(grave, ignore_errors=True)

    def sweep(self) -> int:
        """Removes what no living process owns; how many there were. OSError where nothing can be removed."""
        strays = 0
        with self._sweeping(fcntl.LOCK_EX):
            for stray in self.root.iterdir():
                if stray.is_dir() and not _is_owned(stray):
                    strays += 1
                    shutil.rmtree(stray, ignore_errors=True)
        return strays

    @contextmanager
    def _sweeping(self, mode: int) -> Iterator[None]:
        """Held shared while a stage is being made, exclusively while strays are removed."""
        lock = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)  # nothing in it can stand in the way
        try:
            fcntl.flock(lock, mode)
            yield
        finally:
            os.close(lock)


def _remove_in_place(entry: Path, heart: str) -> None:
    with contextlib.suppress(NotADirectoryError):
        (entry / heart).unlink(missing_ok=True)
    shutil.rmtree(entry, ignore_errors=True)


def _is_owned(stage: Path) -> bool:
    """Whether a living process holds the stage's lock."""
    try:
        lock = os.open(stage / _LOCK, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        return False
    finally:
        os.close(lock)
