"""The engine store. `engines/<key>/` holds an engine's files and its `record.json`, and `staging/` holds unfinished
engines. `pins/` holds an empty file for each engine that an operator protects from eviction.

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
_WANTING = (*NO_DESCRIPTORS, errno.ENOMEM)  # this process lacks resources, and the entry may be good
_NOTHING = (FileNotFoundError, NotADirectoryError)  # a folder that could not be created: see `problem`
_TICK_SECONDS = 0.001


class Counts(msgspec.Struct):
    """Counters since the store was opened."""

    hits: int = 0
    misses: int = 0
    damaged: int = 0
    strays: int = 0


class Store:
    """The engines on disk, by the digest of their key.

    Only an index of the files is in memory. Methods that need more than the index wait for the disk. If the disk cannot
    be read, the store opens empty; if it cannot be written, engines cannot be stored. Open engines continue to serve,
    and `problem` describes the failure.
    """

    def __init__(
        self, root: Path, accepts_foreign: bool = True, later: Later = at_once, *, is_read_only: bool = False
    ) -> None:
        """Open a store. With `accepts_foreign`, use engines that other users may have placed. `later` writes the times
        of use in the background. With `is_read_only`, opening and `rescan` change nothing on disk."""
        self._later, self._is_read_only = later, is_read_only
        self.root = root.absolute()  # children have another working folder
        self.accepts_foreign = accepts_foreign
        self.engines, self._pins = self.root / "engines", self.root / "pins"
        self._staging = Staging(self.root / "staging")
        self.counts = Counts()
        self._index: dict[str, EngineRecord] = {}
        self._used: dict[str, float] = {}  # seconds since the epoch
        self._latest = 0.0  # the latest time in `_used`
        self._pinned: set[str] = set()
        if not is_read_only:
            self._make_folders()
            self._sweep()
        self.rescan()

    @property
    def problem(self) -> str:
        """Why engines cannot be stored; empty if they can be stored. Stored engines may still be readable."""
        found = self._unwritable()
        if found and not self._is_read_only:  # the folders may have been removed, or the disk may have space now
            self._make_folders()
            found = self._unwritable()
        return found

    def _unwritable(self) -> str:
        return next(filter(None, map(unwritable, (self.engines, self._staging.root))), "")

    def _make_folders(self) -> None:
        with contextlib.suppress(OSError):  # see `problem`
            for folder in (self.engines, self._staging.root, self._pins):
                folder.mkdir(parents=True, exist_ok=True, mode=0o750)

    def _sweep(self) -> None:
        try:
            self.counts.strays = self._staging.sweep()
        except _NOTHING:
            pass
        except OSError as error:  # such as a read-only disk: its engines can still serve
            _LOG.warning("cannot remove unfinished engines from %s: %s", self._staging.root, error.strerror)

    def rescan(self) -> None:
        """Read every record again. A damaged entry is counted and removed; its engine is built again if needed."""
        index: dict[str, EngineRecord] = {}
        used: dict[str, float] = {}
        unsealed: list[EngineRecord] = []
        for folder in _entries(self.engines):
            try:
                found = _read(folder) or _read(folder)  # another process may have exchanged the entry during the read
                record, is_sealed = found or (None, True)
                why = "" if record is None or self.accepts_foreign else _foreign(folder, record)
                if why:  # left in place for the operator
                    advice = 'or allow such engines with access.foreign_files = "accept"'
                    _LOG.warning("an engine is not used, because other users can change it: %s; %s", why, advice)
                elif record is not None:
                    used[folder.name], index[folder.name] = folder.stat().st_mtime, record
                    if not is_sealed:
                        unsealed.append(record)
                elif os.path.lexists(folder):  # otherwise it was just removed
                    self.counts.damaged += 1
                    if not self._is_read_only:
                        self._staging.bury(folder, _RECORD)
            except FileNotFoundError:  # it was just removed
                continue
            except OSError as error:  # on a read-only disk the entry stays, unused
                _LOG.warning("engine %s cannot be read or removed, so it is not used: %s", folder, error.strerror)
        self._index, self._used = index, used  # replaced, not changed: another thread may be reading them
        self._latest = max(used.values(), default=0.0)
        self._pinned = {path.name for path in _entries(self._pins)}
        with contextlib.suppress(OSError):  # on a read-only disk the records stay unsealed
            for record in () if self._is_read_only else unsealed:
                self.amend(record)

    # -- reading ----------------------------------------------------------------------------------------------------

    def records(self) -> dict[str, EngineRecord]:
        """Return all engines by key digest, including rejected and evicted ones."""
        return dict(self._index)

    def find(self, key: str) -> EngineRecord | None:
        """Return the record of an engine; None if the store has no such engine. Counts hits and misses."""
        record = self._index.get(key)
        if record is None:
            self.counts.misses += 1
        else:
            self.counts.hits += 1
        return record

    def read(self, key: str) -> EngineRecord | None:
        """Read the record of an engine from disk, because another process may have changed it; None if missing or
        damaged."""
        found = _read(self.engines / key)
        return found[0] if found is not None else None

    def artefact(self, key: str) -> Artefact:
        """Return the files of an engine; backends check them on reading. Raises KeyError for an unknown key."""
        return Artefact(str(self.engines / key), self._index[key].files)

    def used(self, key: str) -> float:
        """Return when an engine was last made or opened, in seconds since the epoch; 0 if unknown.

        A later use always has a later time, even if the clock was set back in between.
        """
        return self._used.get(key, 0.0)

    def is_pinned(self, key: str) -> bool:
        """Whether an operator protects an engine from eviction."""
        return key in self._pinned

    @property
    def size(self) -> int:
        """Total bytes of all engines' files."""
        return sum(record.size for record in self.records().values())  # a copy: another thread may be committing

    # -- writing ----------------------------------------------------------------------------------------------------

    def stage(self) -> AbstractContextManager[Path]:
        """Create an empty directory to build in. After the block, the directory and its content are removed."""
        return self._staging.stage()

    def commit(self, staged: Path, record: EngineRecord) -> str:
        """Publish a staged engine under its key. An older engine with this key is replaced in one step. Return the
        key's digest.

        If the file system cannot exchange two directories, the older engine is removed first.
        """
        digest = EngineKey(record.parts).digest
        place = self.engines / digest
        atomic.write_file(staged / _RECORD, sealed.seal(record, indent=2))
        now = self._now()
        _set_time(staged, now)
        atomic.sync_tree(staged)
        if not (place.is_dir() and atomic.exchange(staged, place)):  # the old entry is removed with the stage
            self._index.pop(digest, None)
            self._staging.bury(place, _RECORD)
            os.rename(staged, place)
        self._index[digest], self._used[digest] = record, now
        atomic.sync_directory(self.engines)
        return digest

    def amend(self, record: EngineRecord) -> None:
        """Replace the record of an engine; its files stay the same. Raises KeyError for an unknown key, and ValueError
        if the record names other files."""
        digest = EngineKey(record.parts).digest
        if self._index[digest].files != record.files:
            raise ValueError(f"the new record of engine {digest[:12]} names other files, which only `commit` may do")
        place = self.engines / digest
        with self.stage() as out:  # a kill at this point must leave no extra file in the entry
            atomic.write_file(out / _RECORD, sealed.seal(record, indent=2))
            os.replace(out / _RECORD, place / _RECORD)
            self._index[digest] = record
        _set_time(place, self.used(digest))  # keep the time of the last use
        atomic.sync_directory(place)

    def strip(self, record: EngineRecord) -> None:
        """Remove an engine's files and store `record`, which says why. If the record cannot be written, for example
        because the disk is full, remove the engine's old record too."""
        try:
            with self.stage() as out:
                self.commit(out, msgspec.structs.replace(record, files={}))
        except OSError:
            self.remove(EngineKey(record.parts).digest)

    def touch(self, key: str) -> None:
        """Record that an engine is used now, so that other engines are evicted first."""
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
        """Remove an engine whose files do not match its record, unless the engine was replaced meanwhile.

        A pin stays for the engine that is built instead.
        """
        self.counts.damaged += 1
        key = Path(artefact.root).name
        record = self._index.get(key)
        if record is not None and record.files == artefact.files:
            self._drop(key)

    def remove(self, key: str, *, keep_pin: bool = False) -> None:
        """Remove an engine, its record and its pin. Files that cannot be deleted stay on disk, but the store does not
        use them any more.

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
        """Return a time after all recorded uses, also on a box without a battery, whose clock starts in the past."""
        self._latest = max(time.time(), self._latest + _TICK_SECONDS)
        return self._latest


def _entries(folder: Path) -> list[Path]:
    """Return the paths in a folder, sorted; empty if it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except _NOTHING:
        return []
    except OSError as error:
        _LOG.warning("cannot read folder %s: %s", folder, error.strerror)
        return []


def _read(folder: Path) -> tuple[EngineRecord, bool] | None:
    """Return the record of an entry, and whether the record is sealed. Return None if the record is missing or damaged,
    if the entry's name is not the digest of its key, or if a file has the wrong size. Raises OSError if this process
    lacks resources for reading.
    """
    place = folder / _RECORD
    try:
        if place.stat().st_size > _LARGEST_RECORD:
            return None
        # Old records have no digest. They are accepted, because building the engines again would take too long.
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
    """Return why another user may have placed an entry; empty if no other user could. Raises OSError."""
    return foreign([folder.parent, folder, folder / _RECORD, *(folder / name for name in record.files)])


def _set_time(folder: Path, seconds: float) -> None:
    with contextlib.suppress(OSError, OverflowError):  # the time only matters for evictions
        os.utime(folder, (seconds, seconds))
