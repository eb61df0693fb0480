"""The models on disk, in Triton's layout, which is read as it is:

    models/NAME/VERSION/model.onnx     with external data beside it
    models/NAME/config.pbtxt           Triton's configuration, optional: docs/triton.md tells what edged makes of it
    models/NAME/edged.toml             settings, optional
    models/NAME/samples/*.jpg          what engines are verified with, JPEG, PNG or tensors as *.npz, optional
    models/FILE.onnx                   a plain file serves as model FILE, version 1

The highest numeric version serves, and others beside it where `versions` says so. The directory is the truth; whoever
wants to know what changed reads it again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from edged.errors import AlreadyExists, InvalidInput, ModelNotFound, Refused, Superseded
from edged.files import foreign, not_stored
from edged.models import repair, triton_config
from edged.models import samples as model_samples
from edged.models import settings as model_settings
from edged.models.entries import (
    MODEL_FILE,
    NAME,
    SETTINGS_FILE,
    ModelEntry,
    check_name,
    folder_entries,
    plain_entry,
    read_config,
)
from edged.models.identity import model_digest
from edged.models.triton_config import TritonConfig
from edged.store import atomic


class Repository:
    """A directory of models; read anew at every call. `accepts_foreign`: also those that others may have put there."""

    def __init__(self, root: Path, accepts_foreign: bool = True) -> None:
        self.root, self.accepts_foreign = root.absolute(), accepts_foreign

    def entries(self) -> dict[str, ModelEntry]:
        """Every version that is to be served, by name. Unreadable or empty folders are passed over."""
        try:
            paths = sorted(path for path in self.root.iterdir() if not path.name.startswith("."))
        except OSError:
            return {}
        entries: dict[str, ModelEntry] = {}
        for entry in (entry for path in paths for entry in self._look(path)):
            twice = entry.name in entries
            problem = f"both {entry.name}/ and {entry.name}.onnx are there; remove one of them"
            entries[entry.name] = msgspec.structs.replace(entry, problem=problem) if twice else entry
        return entries

    def versions(self, name: str, triton: TritonConfig | None = None) -> list[ModelEntry]:
        """The versions of one model that are to be served; with another configuration than the disk has, where one is
        given. Empty where there is no such model."""
        folder, plain = self.root / name, self.root / f"{name}.onnx"
        if triton is None or (folder.is_dir() and os.path.lexists(plain)):
            return [entry for entry in self.entries().values() if entry.model == name]
        try:
            if folder.is_dir():
                return [self._judged(entry) for entry in folder_entries(folder, name, triton)]
        except OSError as error:
            raise InvalidInput(f"model {name!r} cannot be read: {error.strerror or error}") from error
        if not os.path.lexists(plain):
            return []
        return [msgspec.structs.replace(plain_entry(name, plain, {}), triton=triton)]

    def add(
        self,
        name: str,
        files: Mapping[str, Path],
        settings: Mapping[str, str],
        *,
        samples: Mapping[str, Path] | None = None,
        move: bool = False,
        record: repair.Record | None = None,
        digest: str = "",
    ) -> Path:
        """Copies or moves a model in: the first file is the ONNX model, the others its external data by relative path.
        `samples` are by file name, `record` is what was done to it before, `digest` that of the model as it was
        examined, where its files may have become others since.

        Appears whole or not at all. AlreadyExists when the name is taken, Superseded for a model of another digest.
        Returns the path of the model.
        """
        check_name(name)
        model_settings.validate(settings)
        for sample in samples or ():
            model_samples.check_name(sample)
        final = self.root / name
        if os.path.lexists(final) or os.path.lexists(self.root / f"{name}.onnx"):
            raise AlreadyExists(f"model {name!r} is already there; remove it first: edged models remove {name}")
        self.root.mkdir(parents=True, exist_ok=True, mode=0o750)
        staged = Path(tempfile.mkdtemp(prefix=".adding-", dir=self.root))
        try:
            take = os.replace if move else shutil.copyfile
            for target, source in _targets(staged, files, samples or {}):
                target.parent.mkdir(parents=True, exist_ok=True)
                take(source, target)
            if digest:
                _require_digest(staged / "1" / MODEL_FILE, files, digest)
            if record is not None:
                place = staged / "1" / repair.FILE
                if place.exists():
                    raise InvalidInput(f"external data may not be called {repair.FILE}; export it under another name")
                place.write_bytes(repair.write(record))
            if settings:
                (staged / SETTINGS_FILE).write_bytes(model_settings.write_toml(settings))
            atomic.publish(staged, final)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY):  # added by somebody else meanwhile
                raise AlreadyExists(f"model {name!r} is there since a moment ago") from error
            raise not_stored(f"model {name!r}", error) from error
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        return final / "1" / MODEL_FILE

    def remove(self, name: str, *, delete: bool = False) -> Path | None:
        """Removes a model and its settings: to the folder that is returned, or for good with `delete`.

        NotFound when there is none of that name.
        """
        check_name(name)
        folder, plain = self.root / name, self.root / f"{name}.onnx"
        if not folder.is_dir() and not os.path.lexists(plain):
            raise ModelNotFound(f"there is no model {name!r} in {self.root}")
        if not delete:
            try:
                return _move_to_trash(self.root, [path for path in (folder, plain) if os.path.lexists(path)])
            except OSError as error:
                why = error.strerror or error
                raise Refused(f"model {name!r} cannot be kept ({why}); remove it for good: --delete") from error
        try:
            plain.unlink(missing_ok=True)
            if folder.is_dir():
                grave = Path(tempfile.mkdtemp(prefix=".removing-", dir=self.root))
                os.rename(folder, grave / name)
                shutil.rmtree(grave, ignore_errors=True)
        except OSError as error:
            raise Refused(f"model {name!r} cannot be removed: {error.strerror or error}") from error
        return None

    def sweep(self) -> None:
        """Removes what an interrupted add or remove left behind. For the daemon's start, not beside another one."""
        if self.root.is_dir():
            for stray in self.root.glob(".adding-*"):
                shutil.rmtree(stray, ignore_errors=True)
            for stray in self.root.glob(".removing-*"):
                shutil.rmtree(stray, ignore_errors=True)
            _empty_trash(self.root)

    def _look(self, path: Path) -> list[ModelEntry]:
        try:
            entries = [self._judged(entry) for entry in self._entries(path)]
            if not entries or NAME.fullmatch(entries[0].name):
                return entries
            # Told rather than served: it could be neither asked for nor removed by its name.
            name = os.fsencode(entries[0].name).decode(errors="replace")
            problem = "its file name is no model name; rename it"
            return [msgspec.structs.replace(entries[0], name=name, problem=problem)]
        except OSError:  # it vanished while it was looked at, or is not ours to read
            return []

    def _judged(self, entry: ModelEntry) -> ModelEntry:
        """The entry, refused where somebody else may have made it, or may yet make it another."""
        model = Path(entry.path)
        if self.accepts_foreign or entry.problem or not model.exists():
            return entry
        inside = [model, *model.parents]
        # Of a link also the folder that it leads into: whoever may write there exchanges the model.
        problem = foreign([*inside[: inside.index(self.root)], self.root, model.resolve().parent])
        hint = '; or set access.foreign_files = "accept"'
        return msgspec.structs.replace(entry, problem=problem + hint) if problem else entry

    @staticmethod
    def _entries(path: Path) -> list[ModelEntry]:
        if path.suffix == ".onnx" and not path.is_dir():
            return [plain_entry(path.stem, path, {})]
        if not path.is_dir():
            return []
        triton, problem = read_config(path, path.name)
        return folder_entries(path, path.name, triton, problem, [path / triton_config.FILE])


def _targets(staged: Path, files: Mapping[str, Path], samples: Mapping[str, Path]) -> Iterator[tuple[Path, Path]]:
    """Where each file of a new model belongs, with where it is now."""
    for index, (relative, source) in enumerate(files.items()):
        if index and relative == MODEL_FILE:
            raise InvalidInput(f"external data may not be called {MODEL_FILE}; export it under another name")
        yield staged / "1" / (MODEL_FILE if index == 0 else relative), source
    for name, source in samples.items():
        yield staged / model_samples.FOLDER / name, source


def _require_digest(model: Path, files: Mapping[str, Path], digest: str) -> None:
    """That what lies there now is what was examined."""
    first, *external = files
    if model_digest(model, external) != digest:
        raise Superseded(f"{files[first].name} was replaced while it was examined; add it again")


TRASH = ".removed"
MAX_REMOVED = 10
MAX_REMOVED_BYTES = 4 << 30  # all together; the newest is kept whatever its size


def _move_to_trash(root: Path, paths: Iterable[Path]) -> Path:
    """Moves files and folders of `root` into the trash; where they lie now. OSError."""
    (root / TRASH).mkdir(parents=True, exist_ok=True, mode=0o750)
    with _trash_lock(root):
        numbers = [int(place.name) for place in _removed(root)]
        place = root / TRASH / f"{max(numbers, default=0) + 1:06}"
        place.mkdir(mode=0o750)
        for path in paths:
            os.rename(path, place / path.name)
        _prune_locked(root)
    return place


def _empty_trash(root: Path) -> None:
    """Deletes the oldest beyond the bounds, and folders that an interrupted removal left empty."""
    with contextlib.suppress(OSError), _trash_lock(root):
        _prune_locked(root)


@contextlib.contextmanager
def _trash_lock(root: Path) -> Iterator[None]:
    """Holds the trash: two removals at once would take the same number, or delete what the other is about to fill."""
    handle = os.open(root / TRASH, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _prune_locked(root: Path) -> None:
    total = 0
    for index, place in enumerate(reversed(_removed(root))):
        with contextlib.suppress(OSError):  # not a folder, or not ours to read: it stays
            total += _size(place)
            if (index and (index >= MAX_REMOVED or total > MAX_REMOVED_BYTES)) or not any(place.iterdir()):
                shutil.rmtree(place, ignore_errors=True)


def _removed(root: Path) -> list[Path]:
    """The oldest first."""
    found = (root / TRASH).glob("[0-9]*") if (root / TRASH).is_dir() else ()
    return sorted((place for place in found if place.name.isdecimal()), key=lambda place: int(place.name))


def _size(place: Path) -> int:
    files = (Path(folder, name) for folder, _, names in os.walk(place) for name in names)
    return sum(file.lstat().st_size for file in files)
