"""The engine store: `engines/<key>/` holds an engine's files and its `record.json`, `staging/` unfinished ones,
`pins/` an empty file for each engine that an operator protects from eviction.

Every entry appears by one rename of a complete, synced directory. Several processes may use one store.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import msgspec

from edged.backends.artefact import Artefact
from edged.files import NO_DESCRIPTORS, foreign, read_regular, unwritable
from edged.store import atomic, sealed
from edged.store.atomic import Staging
from edged.store.key import EngineKey
from edged.store.record import EngineRecord
from edged.store.sealed import Later, at_once

_LOG = logging.getLogger("edged.store")
_RECORD = "record.json"
_LARGEST_RECORD = 1 << 20  # bytes; a larger file is not a record and must not fill the memory
_WANTING = (*NO_DESCRIPTORS, errno.ENOMEM)  # this process's lack of resources, not a fault of the entry
_NOTHING = (FileNotFoundError, NotADirectoryError)  # a folder that could not be created: see `problem`
_TICK_SECONDS = 0.001


class Counts(msgspec.Struct):
    """Counters since the store was opened."""

    hits: int = 0
    misses: int = 0
    damaged: int = 0
    strays: int = 0


class Store:
    """Engines by the digest of their key. The file system is the truth, memory an index; all methods except those that
    read the index wait for the disk.

    A disk that cannot be written or read makes the store unchangeable or empty, but raises no error here: engines that
    are open continue to serve. `problem` says what is wrong.
    """

    def __init__(self, root: Path, accepts_foreign: bool = True, later: Later = at_once) -> None:
        """`accepts_foreign`: use engines that other users may have placed. `later` writes times of use in the
        background."""
        self._later = later
        self.root = root.absolute()  # children have another working folder
        self.accepts_foreign = accepts_foreign
        self.engines, self._pins = self.root / "engines", self.root / "pins"
        self._staging = Staging(self.root / "staging")
        self.counts = Counts()
        self._index: dict[str, EngineRecord] = {}
        self._used: dict[str, float] = {}  # seconds since the epoch
        self._latest = 0.0  # of them
        self._pinned: set[str] = set()
        self._has_folders = False
        self._make_folders()
        try:
            self.counts.strays = self._staging.sweep()
        except _NOTHING:
            pass
        except OSError as error:  # such as a read-only disk, whose engines still serve
            _LOG.warning("cannot clean %s: %s", self._staging.root, error.strerror)
        self.rescan()

    @property
    def problem(self) -> str:
        """Why nothing can be stored, in a few words; empty if it can. Stored engines may still be readable."""
        if not self._has_folders:  # the disk may have space by now
            self._make_folders()
        return next(filter(None, map(unwritable, (self.engines, self._staging.root))), "")

    def _make_folders(self) -> None:
        with contextlib.suppress(OSError):  # see `problem`
            for folder in (self.engines, self._staging.root, self._pins):
                folder.mkdir(parents=True, exist_ok=True, mode=0o750)
            self._has_folders = True

    def rescan(self) -> None:
        """Read every record again. An unreadable entry is counted and removed, and built again if it is needed."""
        index: dict[str, EngineRecord] = {}
        used: dict[str, float] = {}
        unsealed: list[EngineRecord] = []
        for folder in _entries(self.engines):
            try:
                found = _read(folder) or _read(folder)  # another process may have exchanged it between two reads
                record, is_sealed = found or (None, True)
                why = "" if record is None or self.accepts_foreign else _foreign(folder, record)
                if why:  # left in place for the operator
                    self.counts.damaged += 1
                    _LOG.warning('an engine is ignored: %s; or set access.foreign_files = "accept"', why)
                elif record is not None:
                    used[folder.name], index[folder.name] = folder.stat().st_mtime, record
                    if not is_sealed:
                        unsealed.append(record)
                elif os.path.lexists(folder):  # otherwise it was just removed
                    self.counts.damaged += 1
                    self._staging.bury(folder, _RECORD)
            except FileNotFoundError:  # it was just removed
                continue
            except OSError as error:  # on a read-only disk it stays, unused
                _LOG.warning("%s: %s", folder, error.strerror)
        self._index, self._used = index, used  # in one step: another thread may be reading them
        self._latest = max(used.values(), default=0.0)
        self._pinned = {path.name for path in _entries(self._pins)}
        with contextlib.suppress(OSError):  # they stay unsealed on a read-only disk
            for record in unsealed:
                self.amend(record)

    # -- reading ----------------------------------------------------------------------------------------------------

    def records(self) -> dict[str, EngineRecord]:
        """Return all engines by key digest, including rejected and evicted ones."""
        return dict(self._index)

    def find(self, key: str) -> EngineRecord | None:
        """Return the record of an engine, or None; counts hits and misses."""
        record = self._index.get(key)
        if record is None:
            self.counts.misses += 1
        else:
            self.counts.hits += 1
        return record

    def read(self, key: str) -> EngineRecord | None:
        """Read the record of an engine from disk, as another process may have changed it; None if missing."""
        found = _read(self.engines / key)
        return found[0] if found is not None else None

    def artefact(self, key: str) -> Artefact:
        """Return the files of an engine, which are checked when a backend reads them. KeyError for an unknown key."""
        return Artefact(str(self.engines / key), self._index[key].files)

    def used(self, key: str) -> float:
        """Return when an engine was last made or opened, in seconds since the epoch; 0 if unknown.

        A later use always has a larger number, even if the clock was set back in between.
        """
        return self._used.get(key, 0.0)

    def is_pinned(self, key: str) -> bool:
        """Whether an operator protects it from eviction."""
        return key in self._pinned

    @property
    def size(self) -> int:
        """Total bytes of all engines' files."""
        return sum(record.size for record in self.records().values())  # a copy: another thread may be committing

    # -- writing ----------------------------------------------------------------------------------------------------

    def stage(self) -> AbstractContextManager[Path]:
        """Create an empty directory to build in; it is removed afterwards with whatever is left in it."""
        return self._staging.stage()

    def commit(self, staged: Path, record: EngineRecord) -> str:
        """Publish a staged engine under its key, replacing an older one in one step. Returns the key's digest.

        If the file system cannot exchange two directories, the older engine is removed first.
        """
        digest = EngineKey(record.parts).digest
        place = self.engines / digest
        atomic.write_file(staged / _RECORD, sealed.seal(record, indent=2))
        now = self._now()
        _set_time(staged, now)
        atomic.sync_tree(staged)
        if not (place.is_dir() and atomic.exchange(staged, place)):  # the old entry goes with the stage
            self._index.pop(digest, None)
            self._staging.bury(place, _RECORD)
            os.rename(staged, place)
        self._index[digest], self._used[digest] = record, now
        atomic.sync_directory(self.engines)
        return digest

    def amend(self, record: EngineRecord) -> None:
        """Replace the record of an engine whose files stay as they are. KeyError for an unknown key."""
        digest = EngineKey(record.parts).digest
        if self._index[digest].files != record.files:
            raise ValueError("an amended record names other files; commit them instead")
        place = self.engines / digest
        with self.stage() as out:  # a kill at this point must leave nothing in the entry
            atomic.write_file(out / _RECORD, sealed.seal(record, indent=2))
            os.replace(out / _RECORD, place / _RECORD)
            self._index[digest] = record
        _set_time(place, self.used(digest))  # as before the rename
        atomic.sync_directory(place)

    def strip(self, record: EngineRecord) -> None:
        """Remove an engine's files and keep its record, which says why. If the disk is too full even for that, the
        record goes too."""
        try:
            with self.stage() as out:
                self.commit(out, msgspec.structs.replace(record, files={}))
        except OSError:
            self.remove(EngineKey(record.parts).digest)

    def touch(self, key: str) -> None:
        """Note that an engine is used now: others are evicted before it."""
        if key in self._index:
            self._used[key] = now = self._now()
            self._later(partial(_set_time, self.engines / key, now))

    def pin(self, key: str) -> None:
        """Protect an engine from eviction until `unpin`."""
        (self._pins / key).touch()
        atomic.sync_directory(self._pins)
        self._pinned.add(key)

    def unpin(self, key: str) -> None:
        """Allow an engine's eviction again."""
        (self._pins / key).unlink(missing_ok=True)
        self._pinned.discard(key)

    def damaged(self, artefact: Artefact) -> None:
        """Drop an engine whose files do not match its record, unless they were replaced meanwhile.

        A pin stays for the engine that is built instead.
        """
        self.counts.damaged += 1
        key = Path(artefact.root).name
        record = self._index.get(key)
        if record is not None and record.files == artefact.files:
            self._drop(key)

    def remove(self, key: str, *, keep_pin: bool = False) -> None:
        """Remove an engine, its record and its pin. What cannot be deleted from disk is no longer used.

        With `keep_pin` the pin stays for the engine that is built instead.
        """
        if not keep_pin:
            with contextlib.suppress(OSError):
                self.unpin(key)
        self._drop(key)

    def _drop(self, key: str) -> None:
        self._index.pop(key, None)
        self._used.pop(key, None)
        try:
            self._staging.bury(self.engines / key, _RECORD)
        except OSError as error:
            _LOG.warning("cannot remove engine %s from disk: %s", key[:12], error.strerror)

    def _now(self) -> float:
        """Return a time later than every use: order holds on a box without a battery whose clock starts in the past."""
        self._latest = max(time.time(), self._latest + _TICK_SECONDS)
        return self._latest


def _entries(folder: Path) -> list[Path]:
    """Return a folder's content, sorted; nothing if it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except _NOTHING:
        return []
    except OSError as error:
        _LOG.warning("cannot read %s: %s", folder, error.strerror)
        return []


def _read(folder: Path) -> tuple[EngineRecord, bool] | None:
    """Return the record of an entry, and whether it is sealed; None unless its name is the digest of its key and its
    files have their sizes. OSError if this process lacks the resources to read anything.
    """
    place = folder / _RECORD
    try:
        if place.stat().st_size > _LARGEST_RECORD:
            return None
        # Old records have no digest; an engine takes too long to build to be discarded for that.
        data = read_regular(place)
        record = sealed.unseal(data, EngineRecord, unsealed=True)
        sizes = {name: (folder / name).stat().st_size for name in record.files}
    except OSError as error:
        if error.errno in _WANTING:
            raise
        return None
    except ValueError:  # damaged, or not a file name
        return None
    intact = all(sizes[name] == file.size for name, file in record.files.items())
    named = EngineKey(record.parts).digest == folder.name
    return (record, sealed.is_sealed(data)) if intact and named else None


def _foreign(folder: Path, record: EngineRecord) -> str:
    """Return why another user may have placed an entry; empty if none could. OSError."""
    return foreign([folder.parent, folder, folder / _RECORD, *(folder / name for name in record.files)])


def _set_time(folder: Path, seconds: float) -> None:
    with contextlib.suppress(OSError, OverflowError):  # a read-only disk evicts nothing anyway
        os.utime(folder, (seconds, seconds))
