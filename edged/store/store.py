"""The store: `engines/<key>/` holds an engine's files and its `record.json`; `staging/` holds what is being made;
`pins/` has an empty file for each engine that an operator wants kept.

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
_LARGEST_RECORD = 1 << 20  # bytes; whatever is larger is no record, and must not fill the memory
_WANTING = (*NO_DESCRIPTORS, errno.ENOMEM)  # of this process, and no fault of what is on disk
_NOTHING = (FileNotFoundError, NotADirectoryError)  # of a folder that could not be made: `problem` tells
_TICK_SECONDS = 0.001


class Counts(msgspec.Struct):
    """What the store met since it was opened."""

    hits: int = 0
    misses: int = 0
    damaged: int = 0
    strays: int = 0


class Store:
    """Engines by the digest of their key. The file system is the truth, memory only an index. Everything but reading
    the index waits for the disk.

    A disk that cannot be written, or not even read, makes an empty or unchangeable store and never an error here: what
    it holds goes on being served. `problem` says what is wrong with it.
    """

    def __init__(self, root: Path, accepts_foreign: bool = True, later: Later = at_once) -> None:
        """`accepts_foreign`: also engines that other users may have put there, with a record to match. `later` has
        written when engines were used."""
        self._later = later
        self.root = root.absolute()  # children work in another folder
        self.accepts_foreign = accepts_foreign
        self._engines, self._pins = self.root / "engines", self.root / "pins"
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
        except OSError as error:  # a read-only disk still serves what it holds
            _LOG.warning("%s cannot be cleaned: %s", self._staging.root, error.strerror)
        self.rescan()

    @property
    def engines(self) -> Path:
        """The folder of all engines."""
        return self._engines

    @property
    def problem(self) -> str:
        """Why nothing can be stored, in a few words; empty where it can. What is stored can perhaps still be read."""
        if not self._has_folders:  # the disk may have room for them by now
            self._make_folders()
        return next(filter(None, map(unwritable, (self._engines, self._staging.root))), "")

    def _make_folders(self) -> None:
        with contextlib.suppress(OSError):  # `problem` tells
            for folder in (self._engines, self._staging.root, self._pins):
                folder.mkdir(parents=True, exist_ok=True, mode=0o750)
            self._has_folders = True

    def rescan(self) -> None:
        """Reads every record again. What cannot be read is counted, set aside and built anew when it is wanted."""
        index: dict[str, EngineRecord] = {}
        used: dict[str, float] = {}
        unsealed: list[EngineRecord] = []
        for folder in _entries(self._engines):
            try:
                found = _read(folder) or _read(folder)  # another process may have exchanged it in between
                record, is_sealed = found or (None, True)
                why = "" if record is None or self.accepts_foreign else _foreign(folder, record)
                if why:  # left where it is, for whoever looks into it
                    self.counts.damaged += 1
                    _LOG.warning('an engine is not used: %s; or set access.foreign_files = "accept"', why)
                elif record is not None:
                    used[folder.name], index[folder.name] = folder.stat().st_mtime, record
                    if not is_sealed:
                        unsealed.append(record)
                elif os.path.lexists(folder):  # and nobody removed it just now
                    self.counts.damaged += 1
                    self._staging.bury(folder, _RECORD)
            except FileNotFoundError:  # somebody did
                continue
            except OSError as error:  # on a read-only disk it stays, and stays unused
                _LOG.warning("%s: %s", folder, error.strerror)
        self._index, self._used = index, used  # not before: another thread may be reading them
        self._latest = max(used.values(), default=0.0)
        self._pinned = {path.name for path in _entries(self._pins)}
        with contextlib.suppress(OSError):  # a disk that cannot be written leaves them as they are
            for record in unsealed:
                self.amend(record)

    # -- reading ----------------------------------------------------------------------------------------------------

    def records(self) -> dict[str, EngineRecord]:
        """All engines by key digest, rejected and evicted ones included."""
        return dict(self._index)

    def find(self, key: str) -> EngineRecord | None:
        """The record of an engine, or None; counts hits and misses."""
        record = self._index.get(key)
        if record is None:
            self.counts.misses += 1
        else:
            self.counts.hits += 1
        return record

    def read(self, key: str) -> EngineRecord | None:
        """The record of an engine as it is on disk now, which another process may have changed; None without one."""
        found = _read(self._engines / key)
        return found[0] if found is not None else None

    def artefact(self, key: str) -> Artefact:
        """The files of an engine; they are checked when a backend reads them. KeyError when there is no such engine."""
        return Artefact(str(self._engines / key), self._index[key].files)

    def used(self, key: str) -> float:
        """When an engine was last made or opened, in seconds since the epoch; 0 when it is not known.

        Of two engines the one that was used later has the larger number, also when the clock was set back meanwhile.
        """
        return self._used.get(key, 0.0)

    def is_pinned(self, key: str) -> bool:
        """Whether an operator wants it kept."""
        return key in self._pinned

    @property
    def size(self) -> int:
        """Bytes of all engines' files."""
        return sum(record.size for record in self.records().values())  # a copy: another thread may be committing

    # -- writing ----------------------------------------------------------------------------------------------------

    def stage(self) -> AbstractContextManager[Path]:
        """An empty directory to build in, removed afterwards with whatever is left in it."""
        return self._staging.stage()

    def commit(self, staged: Path, record: EngineRecord) -> str:
        """Publishes a staged engine under its key, in one step also where one is there. Returns the key's digest.

        Where the file system cannot exchange two directories, an older engine of the key is taken away first.
        """
        digest = EngineKey(record.parts).digest
        place = self._engines / digest
        atomic.write_file(staged / _RECORD, sealed.seal(record, indent=2))
        now = self._now()
        _set_time(staged, now)
        atomic.sync_tree(staged)
        if not (place.is_dir() and atomic.exchange(staged, place)):  # what was there goes with the stage
            self._index.pop(digest, None)
            self._staging.bury(place, _RECORD)
            os.rename(staged, place)
        self._index[digest], self._used[digest] = record, now
        atomic.sync_directory(self._engines)
        return digest

    def amend(self, record: EngineRecord) -> None:
        """Replaces the record of an engine whose files stay as they are. KeyError when there is no such engine."""
        digest = EngineKey(record.parts).digest
        if self._index[digest].files != record.files:
            raise ValueError("an amended record names other files; commit them instead")
        place = self._engines / digest
        with self.stage() as out:  # not beside the old one: whoever is killed here must leave nothing in the entry
            atomic.write_file(out / _RECORD, sealed.seal(record, indent=2))
            os.replace(out / _RECORD, place / _RECORD)
            self._index[digest] = record
        _set_time(place, self.used(digest))  # as it was before the new name
        atomic.sync_directory(place)

    def strip(self, record: EngineRecord) -> None:
        """Removes an engine's files and keeps its record, which says why there are none. On a disk so full that not
        even that can be written the record goes, too."""
        try:
            with self.stage() as out:
                self.commit(out, msgspec.structs.replace(record, files={}))
        except OSError:
            self.remove(EngineKey(record.parts).digest)

    def touch(self, key: str) -> None:
        """It is used now: others are evicted before it."""
        if key in self._index:
            self._used[key] = now = self._now()
            self._later(partial(_set_time, self._engines / key, now))

    def pin(self, key: str) -> None:
        """Keeps an engine from being evicted, until `unpin`."""
        (self._pins / key).touch()
        atomic.sync_directory(self._pins)
        self._pinned.add(key)

    def unpin(self, key: str) -> None:
        """It may be evicted again."""
        (self._pins / key).unlink(missing_ok=True)
        self._pinned.discard(key)

    def damaged(self, artefact: Artefact) -> None:
        """Drops the engine whose files did not match its record when it was opened, unless others took their place.

        A pin stays: it is for the engine that is built instead.
        """
        self.counts.damaged += 1
        key = Path(artefact.root).name
        record = self._index.get(key)
        if record is not None and record.files == artefact.files:
            self._drop(key)

    def remove(self, key: str, *, keep_pin: bool = False) -> None:
        """Removes an engine if it is there, its record and its pin. What a disk does not let go of is used no more.

        With `keep_pin` the pin stays, for the engine that is built instead.
        """
        if not keep_pin:
            with contextlib.suppress(OSError):
                self.unpin(key)
        self._drop(key)

    def _drop(self, key: str) -> None:
        self._index.pop(key, None)
        self._used.pop(key, None)
        try:
            self._staging.bury(self._engines / key, _RECORD)
        except OSError as error:
            _LOG.warning("engine %s cannot be removed from disk: %s", key[:12], error.strerror)

    def _now(self) -> float:
        """Later than every engine was used: the order holds on a box that has no battery and starts in the past."""
        self._latest = max(time.time(), self._latest + _TICK_SECONDS)
        return self._latest


def _entries(folder: Path) -> list[Path]:
    """What a folder holds, in order; nothing where it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except _NOTHING:
        return []
    except OSError as error:
        _LOG.warning("%s cannot be read: %s", folder, error.strerror)
        return []


def _read(folder: Path) -> tuple[EngineRecord, bool] | None:
    """The record of an entry whose name is the digest of its parts and whose files have their sizes, and whether it is
    sealed; None for any other entry.

    OSError when this process has no means to read anything.
    """
    place = folder / _RECORD
    try:
        if place.stat().st_size > _LARGEST_RECORD:
            return None
        # Records had no digest once; an engine takes too long to build to be thrown away for that.
        data = read_regular(place)
        record = sealed.unseal(data, EngineRecord, unsealed=True)
        sizes = {name: (folder / name).stat().st_size for name in record.files}
    except OSError as error:
        if error.errno in _WANTING:
            raise
        return None
    except ValueError:  # damaged, or no name of a file
        return None
    intact = all(sizes[name] == file.size for name, file in record.files.items())
    named = EngineKey(record.parts).digest == folder.name
    return (record, sealed.is_sealed(data)) if intact and named else None


def _foreign(folder: Path, record: EngineRecord) -> str:
    """Why an entry may be somebody else's doing; empty where it is not. OSError."""
    return foreign([folder.parent, folder, folder / _RECORD, *(folder / name for name in record.files)])


def _set_time(folder: Path, seconds: float) -> None:
    with contextlib.suppress(OSError, OverflowError):  # a read-only disk evicts nothing anyway
        os.utime(folder, (seconds, seconds))
