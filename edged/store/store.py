"""The store: `engines/<key>/` holds an engine's files and its `record.json`; `staging/` holds what is being made.

Every entry appears by one rename of a complete, synced directory. Several processes may use one store: each holds a
lock on what it stages, and a stage without a living owner is a stray that the next start removes.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from edged.backend.artefact import Artefact
from edged.files import read_regular
from edged.store import atomic
from edged.store.key import EngineKey
from edged.store.record import EngineRecord

_LOG = logging.getLogger("edged.store")
_RECORD = "record.json"
_LOCK = ".owner"
_SWEEP = ".sweep"


class Counts(msgspec.Struct):
    """What the store met since it was opened."""

    hits: int = 0
    misses: int = 0
    damaged: int = 0
    strays: int = 0


class Store:
    """Engines by the digest of their key. Not thread-safe; the file system is the truth, memory only an index."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()  # children work in another folder
        self._engines = self.root / "engines"
        self._staging = self.root / "staging"
        self.counts = Counts()
        self._index: dict[str, EngineRecord] = {}
        for folder in (self._engines, self._staging):
            folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        self._sweep()
        self.rescan()

    def rescan(self) -> None:
        """Reads every record again. What cannot be read is counted, set aside and built anew when it is wanted."""
        self._index = {}
        for folder in sorted(self._engines.iterdir()):
            record = _read(folder)
            if record is None:
                self.counts.damaged += 1
                with contextlib.suppress(OSError):  # on a read-only disk it stays, and stays unused
                    self._discard(folder)
            else:
                self._index[folder.name] = record

    def records(self) -> dict[str, EngineRecord]:
        """All engines by key digest, rejected ones included."""
        return dict(self._index)

    def find(self, key: str) -> EngineRecord | None:
        """The record of an engine, or None; counts hits and misses."""
        record = self._index.get(key)
        if record is None:
            self.counts.misses += 1
        else:
            self.counts.hits += 1
        return record

    def artefact(self, key: str) -> Artefact:
        """The files of an engine; they are checked when a backend reads them. KeyError when there is no such engine."""
        return Artefact(str(self._engines / key), self._index[key].files)

    @contextmanager
    def stage(self) -> Iterator[Path]:
        """An empty directory to build in, removed afterwards with whatever is left in it."""
        with self._sweeping(fcntl.LOCK_SH):  # until it is locked, a new stage looks like a stray
            home = Path(tempfile.mkdtemp(dir=self._staging))
            lock = os.open(home / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            out = home / "engine"
            out.mkdir()
            yield out
        finally:
            shutil.rmtree(home, ignore_errors=True)
            os.close(lock)

    def commit(self, staged: Path, record: EngineRecord) -> str:
        """Publishes a staged engine under its key, replacing one that is there. Returns the key's digest."""
        digest = EngineKey(record.parts).digest
        atomic.write_file(staged / _RECORD, msgspec.json.format(msgspec.json.encode(record)))
        atomic.sync_tree(staged)
        self._index.pop(digest, None)
        self._discard(self._engines / digest)
        os.rename(staged, self._engines / digest)
        self._index[digest] = record
        atomic.sync_directory(self._engines)
        return digest

    def damaged(self, key: str) -> None:
        """Drops an engine whose files did not match its record when it was opened."""
        self.counts.damaged += 1
        self.remove(key)

    def remove(self, key: str) -> None:
        """Removes an engine if it is there."""
        self._index.pop(key, None)
        self._discard(self._engines / key)

    def _discard(self, folder: Path) -> None:
        """Takes an entry out of sight in one step, then removes it: a crash in between leaves a stray, not a half."""
        if not os.path.lexists(folder):
            return
        if folder.is_symlink() or not folder.is_dir():
            folder.unlink()
            return
        grave = Path(tempfile.mkdtemp(dir=self._staging))
        os.rename(folder, grave / "engine")
        shutil.rmtree(grave, ignore_errors=True)

    def _sweep(self) -> None:
        try:
            with self._sweeping(fcntl.LOCK_EX):
                for stray in self._staging.iterdir():
                    if stray.is_dir() and not _is_owned(stray):
                        self.counts.strays += 1
                        shutil.rmtree(stray, ignore_errors=True)
        except OSError as error:  # a read-only disk still serves what it holds
            _LOG.warning("the store cannot be cleaned: %s", error.strerror)

    @contextmanager
    def _sweeping(self, mode: int) -> Iterator[None]:
        """Held shared while a stage is being made, exclusively while strays are removed."""
        lock = os.open(self._staging / _SWEEP, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, mode)
            yield
        finally:
            os.close(lock)


def _read(folder: Path) -> EngineRecord | None:
    """The record of an entry whose name is the digest of its parts and whose files have their sizes, else None."""
    try:
        record = msgspec.json.decode(read_regular(folder / _RECORD), type=EngineRecord)
        sizes = {name: (folder / name).stat().st_size for name in record.files}
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    intact = all(sizes[name] == file.size for name, file in record.files.items())
    named = EngineKey(record.parts).digest == folder.name
    return record if intact and named else None


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
