"""Stores collected frames: a folder for each model with its frames and their index, and a folder for candidates.

Only the daemon's user can read these files. Frames and indexes appear complete or not at all. The methods access the
disk, so they are called in threads. They raise OSError.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from msgspec.structs import replace

from edged.files import read_inside
from edged.models.collected import INDEX, Collection, folder_of, read_index
from edged.store import atomic, sealed

_LOG = logging.getLogger("edged.serving")
_CANDIDATES, _REMOVED = ".candidates", ".~"  # `_REMOVED`: start of the names of folders that are being removed
_FOLDER_MODE, _FILE_MODE = 0o700, 0o600


class Adopted(NamedTuple):
    """A stored frame: its file name, the SHA-256 of the file, and its size in bytes."""

    name: str
    sha256: str
    size: int


class FrameFiles:
    """The folder `frames` of the state directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, model: str) -> Path:
        """Return the folder of a model's frames."""
        return folder_of(self.root.parent, model)

    def open(self) -> tuple[dict[str, Collection], dict[str, str]]:
        """Remove leftovers. Return a mapping from models to their usable collections, and a mapping from the other
        models to the reasons why their collections cannot be used."""
        found, damaged = dict[str, Collection](), dict[str, str]()
        if not self.root.is_dir():
            return found, damaged
        for leftover in (self.root / _CANDIDATES, *self.root.glob(f"{_REMOVED}*")):
            shutil.rmtree(leftover, ignore_errors=True)
        for folder in sorted(self.root.glob("[!.]*")):
            model = unquote(folder.name)
            if not model.isprintable() or self.folder(model) != folder or not folder.is_dir():  # such as lost+found
                _LOG.warning("%r in %s does not belong to a model and is ignored; remove it", folder.name, self.root)
                continue
            if _is_empty(folder):  # the daemon was killed, or the disk was full, before the first index was written
                shutil.rmtree(folder, ignore_errors=True)
                continue
            try:
                collection = read_index(folder)
                found[model] = self._tidy(folder, collection)
            except (OSError, sealed.Damaged) as error:
                missing = isinstance(error, FileNotFoundError)
                why = "collection.json is missing" if missing else str(getattr(error, "strerror", None) or error)
                remedy = f"restore collection.json, or run: edged samples remove {model}"
                _LOG.error("frames in %s cannot be used: %s; %s", folder, why, remedy)
                damaged[model] = why
        return found, damaged

    def save(self, model: str, collection: Collection) -> None:
        """Write the index of a model."""
        folder = self.folder(model)
        _make_private(self.root, folder)
        sealed.write(folder / INDEX, collection, _FILE_MODE)

    def new_batch(self) -> Path:
        """Create a folder for candidates."""
        parent = self.root / _CANDIDATES
        _make_private(self.root, parent)
        return Path(tempfile.mkdtemp(dir=parent))

    def add_candidate(self, batch: Path, name: str, data: bytes, keep_free: int = 0) -> None:
        """Write a candidate, if `keep_free` bytes of the disk stay free. A write that fails leaves no file."""
        if keep_free and self.free_bytes() - len(data) < keep_free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        path = batch / name
        try:
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, _FILE_MODE)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
        except OSError:
            path.unlink(missing_ok=True)
            raise

    def adopt(self, model: str, candidate: Path, stem: str, suffix: str, most: int) -> Adopted:
        """Copy an examined candidate of at most `most` bytes to a model's frames, under a name that begins with
        `stem`."""
        data = read_inside(candidate.parent, candidate.name)  # a child that was taken over may have left a link
        if len(data) > most:
            raise OSError(f"the frame has {len(data)} bytes, over the limit of {most}")
        digest = hashlib.sha256(data).hexdigest()
        name = f"{stem}-{digest[:12]}{suffix}"
        atomic.write_file(self.folder(model) / name, data, _FILE_MODE)
        return Adopted(name, digest, len(data))

    def discard(self, model: str, names: Iterable[str]) -> None:
        """Remove frames of a model."""
        for name in names:
            (self.folder(model) / name).unlink(missing_ok=True)

    def discard_batch(self, batch: Path) -> None:
        """Remove a folder of candidates."""
        shutil.rmtree(batch, ignore_errors=True)

    def remove(self, model: str) -> None:
        """Remove all frames of a model. The folder is renamed first. If the daemon is then killed, the next start
        removes the rest."""
        folder = self.folder(model)
        grave = folder.with_name(f"{_REMOVED}{folder.name}")
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(grave)  # what an earlier call could not remove
        with contextlib.suppress(FileNotFoundError):
            folder.rename(grave)
            shutil.rmtree(grave)

    def free_bytes(self) -> int:
        """Return the free space of the disk."""
        place = self.root if self.root.is_dir() else self.root.parent
        disk = os.statvfs(place)
        return disk.f_bavail * disk.f_frsize

    def _tidy(self, folder: Path, collection: Collection) -> Collection:
        """Remove files that the index does not name; return the collection without frames whose file is missing."""
        atomic.sweep(folder)
        sizes = {entry.name for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False)}
        frames = tuple(frame for frame in collection.frames if frame.name in sizes)
        for name in sizes - {INDEX, *(frame.name for frame in frames)}:
            (folder / name).unlink(missing_ok=True)
        return replace(collection, frames=frames) if len(frames) < len(collection.frames) else collection


def _is_empty(folder: Path) -> bool:
    """Whether a folder has no file, or only temporary files."""
    with contextlib.suppress(OSError):
        return folder.is_dir() and all(name.startswith(".") for name in os.listdir(folder))
    return False


def _make_private(*folders: Path) -> None:
    for folder in folders:
        folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        folder.chmod(_FOLDER_MODE)  # the umask or another program may have set another mode
