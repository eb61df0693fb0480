"""The models on disk, in Triton's layout:

    models/NAME/VERSION/model.onnx     with external data in the same folder
    models/NAME/config.pbtxt           Triton's configuration, optional: see docs/triton.md
    models/NAME/edged.toml             settings, optional
    models/NAME/samples/*.jpg          samples to verify engines with: JPEG, PNG or tensors as *.npz, optional
    models/NAME/VERSION/genai_config.json, or another file of a language model: see docs/language.md
    models/FILE.onnx, FILE.gguf        a plain file serves as model FILE, version 1
    models/FILE.toml                   its settings, optional

The highest version serves, unless the setting `versions` selects others. The directory is the only state: every call
scans it, and uses the cached content of unchanged folders for at most 30 s.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import msgspec

from edged.errors import AlreadyExists, ConfigError, InvalidInput, ModelNotFound, Refused, Superseded, TooLarge
from edged.files import foreign, leads_outside, not_stored, reading
from edged.models import language, repair
from edged.models import samples as model_samples
from edged.models import settings as model_settings
from edged.models.entries import (
    MODEL_FILE,
    NAME,
    SETTINGS_FILE,
    ModelEntry,
    check_name,
    file_entry,
    fingerprint,
    folder_entries,
    read_config,
    taken,
)
from edged.models.identity import model_digest
from edged.models.triton_config import FILE, TritonConfig
from edged.store import atomic

_LOG = logging.getLogger("edged.engines")
_READ_AGAIN_SECONDS = 30.0  # an unchanged folder is read again, in case a read failed for a moment


class _Read(NamedTuple):
    """The cached content of a model's folder, the folder's fingerprint before it was read, and the time of the reading
    (monotonic seconds)."""

    mark: tuple[object, ...] | None
    read_at: float
    entries: list[ModelEntry]


class Repository:
    """A directory of models. Without `accepts_foreign`, models that other users may write get a `problem`."""

    def __init__(self, root: Path, accepts_foreign: bool = True, clock_ns: Callable[[], int] = time.time_ns) -> None:
        """`clock_ns` returns nanoseconds since the epoch, as file systems count them."""
        self.root, self.accepts_foreign = root.absolute(), accepts_foreign
        self._clock_ns = clock_ns
        self._changing = threading.Lock()  # held by scans, and by changes that briefly remove a model
        self._read: dict[Path, _Read] = {}  # by folder; replaced, never modified
        self._last: dict[Path, list[ModelEntry]] = {}  # entries of the last scan, by path
        self._failing: set[Path] = set()  # paths that the last scan could not read
        self.is_whole = True  # whether the last scan has all models, from the disk or from an earlier scan

    def entries(self) -> dict[str, ModelEntry]:
        """Return the entries of all versions that are to be served, by name. Skip folders that are empty or that this
        user may not read.

        A scan may also fail because of a bad disk or a lack of descriptors. Then a model that cannot be read keeps its
        entries of the last scan, because the model may still exist. If the directory itself cannot be read, raises
        OSError, or returns an empty mapping if the last successful scan found no model.
        """
        with self._changing:
            return self._entries_now()

    def _entries_now(self) -> dict[str, ModelEntry]:
        try:
            paths = sorted(path for path in self.root.iterdir() if not path.name.startswith("."))
        except (FileNotFoundError, NotADirectoryError):
            paths = []
        except OSError:
            if any(self._last.values()):
                raise
            self.is_whole = False
            return {}
        entries: dict[str, ModelEntry] = {}
        read: dict[Path, _Read] = {}
        failing: set[Path] = set()
        found = {path: self._look(path, read, failing) for path in paths}
        for entry in (entry for path in paths for entry in found[path]):
            if (other := entries.get(entry.name)) is not None:
                first, second = (Path(each.path).relative_to(self.root).parts[0] for each in (other, entry))
                problem = f"both {first} and {second} exist in the models folder; remove one"
                entry = msgspec.structs.replace(entry, problem=problem)
            entries[entry.name] = entry
        self.is_whole = all(self._last.get(path) for path in failing)
        self._read, self._last, self._failing = read, found, failing
        return entries

    def versions(self, name: str, triton: TritonConfig | None = None) -> list[ModelEntry]:
        """Return the versions of one model that are to be served; empty if the model does not exist. `triton`, if
        given, replaces the model's config.pbtxt. Raises the errors of `files.reading` if the model cannot be read."""
        folder, plain, _ = self._paths(name)
        with reading(f"model {name!r}"):
            if triton is None or (folder.is_dir() and os.path.lexists(plain)):
                return [entry for entry in self.entries().values() if entry.model == name]
            if folder.is_dir():
                return [self._judged(entry) for entry in folder_entries(folder, name, triton)]
            if not os.path.lexists(plain):
                return []
            return [msgspec.structs.replace(file_entry(plain), triton=triton)]

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
        replace: bool = False,
    ) -> Path:
        """Add a model: copy its files, or move them with `move`. Return the path of the model file.

        `files` maps relative target paths to source paths. The first file is the ONNX model, the others are its
        external data. For a language model, the first file is one that `language.is_language` accepts, and the others
        are the rest of the model. `samples` maps file names to source paths. `record` is the record of the model's
        repair. No scan finds the model before it is complete.

        With `replace`, a present model with this name is moved to the trash. The new model gets the next version number
        and a copy of the old model's config.pbtxt, labels, and samples, unless new samples are given. `settings`
        replace all earlier settings.

        Raises AlreadyExists without `replace` if the name is taken. Raises Superseded if `digest` is given and is not
        the digest of the files. Raises InvalidInput if the model to replace is an ensemble, or if the new model cannot
        be served with config.pbtxt and the settings.
        """
        check_name(name)
        model_settings.validate(settings)
        for sample in samples or ():
            model_samples.check_name(sample)
        final, plain, _ = self._paths(name)
        is_there = os.path.lexists(final) or os.path.lexists(plain)
        if is_there and not replace:
            raise AlreadyExists(taken(name))
        self.root.mkdir(parents=True, exist_ok=True, mode=0o750)
        prefix = _REPLACING if is_there else ".adding-"
        with tempfile.TemporaryDirectory(prefix=prefix, dir=self.root, ignore_cleanup_errors=True) as staging:
            staged = Path(staging) / name
            try:
                staged.mkdir(mode=0o750)
                number = _keep_rest(final, staged, keeps_samples=not samples) if is_there else 1
                take = os.replace if move else shutil.copyfile
                triton, problem = read_config(staged, name)
                model_file = (triton and triton.model_file) or MODEL_FILE
                for target, source in _targets(staged, str(number), files, samples or {}, model_file):
                    target.parent.mkdir(parents=True, exist_ok=True)
                    take(source, target)
                version = staged / str(number)
                first, *external = files
                main = version / (first if language.is_language(first) else model_file)
                if digest and digest != (
                    language.digest(main) if language.is_language(first) else model_digest(main, external)
                ):
                    raise Superseded(f"{files[first].name} was replaced while it was examined; add it again")
                if record is not None:
                    _write_record(version / repair.FILE, record)
                if settings:
                    (staged / SETTINGS_FILE).write_bytes(model_settings.write_toml(settings))
                if is_there:
                    (entry,) = folder_entries(staged, name, triton, problem)
                    entry.require_file()
                    if entry.problem:
                        raise InvalidInput(f"model {name!r} was not replaced: {entry.problem}")
                    self._exchange(name, staged)
                else:
                    atomic.publish(staged, final)
            except OSError as error:
                if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                    raise AlreadyExists(f"model {name!r} was just created by another client") from error
                raise not_stored(f"model {name!r}", error) from error
        return final / str(number) / main.name

    def _exchange(self, name: str, staged: Path) -> None:
        """Replace a model by a staged folder, and move the old model to the trash. A scan sees either the old or the
        new model. If this raises OSError, the old model is in its place, or, if it cannot be put back, in the trash."""
        final = self.root / name
        atomic.sync_tree(staged)
        if final.is_dir() and atomic.exchange(staged, final):
            try:
                atomic.sync_directory(self.root)
                _move_to_trash(self.root, [staged])
            except BaseException:  # the old model is in the staging folder, which the caller removes
                if staged.is_dir():
                    atomic.exchange(staged, final)
                raise
            return
        with self._changing:
            place = _move_to_trash(self.root, [path for path in self._paths(name) if os.path.lexists(path)])
            try:
                os.rename(staged, final)
            except OSError:
                with contextlib.suppress(OSError):
                    for path in list(place.iterdir()):
                        os.rename(path, self.root / path.name)
                    place.rmdir()
                raise
        atomic.sync_directory(self.root)

    def change(self, name: str, settings: Mapping[str, str]) -> None:
        """Replace all settings of a model. Raises ModelNotFound, InvalidInput, or the errors of `files.not_stored`."""
        check_name(name)
        model_settings.validate(settings)
        folder, plain, plain_settings = self._paths(name)
        if not folder.is_dir() and not os.path.lexists(plain):
            raise ModelNotFound(f"no model {name!r} in {self.root}")
        file = folder / SETTINGS_FILE if folder.is_dir() else plain_settings
        try:
            atomic.write_file(file, model_settings.write_toml(settings))
        except OSError as error:
            raise not_stored(f"the settings of model {name!r}", error) from error

    def _paths(self, name: str) -> tuple[Path, Path, Path]:
        """Return where a model may be: its folder, its plain file, and the settings of the plain file."""
        language_file = self.root / f"{name}.gguf"
        plain = language_file if os.path.lexists(language_file) else self.root / f"{name}.onnx"
        return self.root / name, plain, self.root / f"{name}.toml"

    def remove(self, name: str, *, delete: bool = False) -> Path | None:
        """Move a model and its settings to the trash, and return their folder there. With `delete`, delete them instead
        and return None. Raises ModelNotFound if the model does not exist, Refused if the disk does not allow this."""
        check_name(name)
        folder, plain, plain_settings = self._paths(name)
        if not folder.is_dir() and not os.path.lexists(plain):
            raise ModelNotFound(f"no model {name!r} in {self.root}")
        if not delete:
            try:
                return _move_to_trash(self.root, [path for path in self._paths(name) if os.path.lexists(path)])
            except OSError as error:
                why = error.strerror or error
                raise Refused(f"model {name!r} cannot be moved to the trash ({why}); use --delete") from error
        try:
            plain.unlink(missing_ok=True)
            plain_settings.unlink(missing_ok=True)
            if folder.is_dir():
                grave = Path(tempfile.mkdtemp(prefix=".removing-", dir=self.root))
                os.rename(folder, grave / name)
                shutil.rmtree(grave, ignore_errors=True)
        except OSError as error:
            raise Refused(f"model {name!r} cannot be removed: {error.strerror or error}") from error
        return None

    def restore(self, name: str) -> None:
        """Put back the model of this name that was removed or replaced last, and move the present model of this name to
        the trash. A scan sees either the present model or the restored model. Raises ModelNotFound if the trash has no
        model of this name, Refused if the disk does not allow the exchange."""
        check_name(name)
        own = (name, f"{name}.onnx", f"{name}.gguf", f"{name}.toml")
        try:
            with self._changing:
                is_there = self._restore(own)
        except OSError as error:
            raise Refused(f"model {name!r} cannot be restored: {error.strerror or error}") from error
        if not is_there:
            raise ModelNotFound(f"nothing to restore: {self.root} has no removed or replaced model {name!r}")
        atomic.sync_directory(self.root)

    def _restore(self, own: tuple[str, ...]) -> bool:
        """Exchange a model's files for those in the newest folder of the trash that has the model. `own` are the names
        that a model's files can have: three for the model, and one for the settings of a model that is a single file.
        Return whether the trash has the model. If the exchange fails, move all files back, and raise OSError."""
        if not (self.root / TRASH).is_dir():
            return False
        with _trash_lock(self.root):
            place = next((each for each in reversed(_removed(self.root)) if _holds(each, own[:3])), None)
            if place is None:
                return False
            # Take the old model out of the trash first: moving the current model there may delete the oldest models.
            staging = Path(tempfile.mkdtemp(prefix=_RESTORING, dir=self.root))
            with contextlib.ExitStack() as undo:
                undo.callback(_remove_empty, staging)
                for file in (file for file in own if os.path.lexists(place / file)):
                    _moved(place / file, staging / file, undo)
                aside = Path(tempfile.mkdtemp(prefix=_RESTORING, dir=self.root))
                undo.callback(_remove_empty, aside)
                current = [file for file in own if os.path.lexists(self.root / file)]
                for file in current:
                    _moved(self.root / file, aside / file, undo)
                for path in sorted(staging.iterdir()):
                    _moved(path, self.root / path.name, undo)
                undo.pop_all()
        if current:
            with contextlib.suppress(OSError):  # `sweep` finishes the move
                _move_to_trash(self.root, [aside / file for file in current])
        _remove_empty(aside)
        _remove_empty(staging)
        _remove_empty(place)
        return True

    def sweep(self) -> None:
        """Remove the remains of interrupted calls of `add` and `remove`, and finish interrupted calls of `restore`. If
        a call of `add` was interrupted after it replaced a model, move the old model to the trash. Call this only when
        the daemon starts."""
        if self.root.is_dir():
            for stray in self.root.glob(f"{_RESTORING}*"):
                with contextlib.suppress(OSError):
                    for path in list(stray.iterdir()):
                        if os.path.lexists(self.root / path.name):
                            _move_to_trash(self.root, [path])
                        else:
                            os.rename(path, self.root / path.name)
                    stray.rmdir()
            for stray in self.root.glob(f"{_REPLACING}*"):
                with contextlib.suppress(OSError):
                    if replaced := [path for path in stray.iterdir() if self._was_replaced(path)]:
                        _move_to_trash(self.root, replaced)
                    shutil.rmtree(stray, ignore_errors=True)
            for stray in (*self.root.glob(".adding-*"), *self.root.glob(".removing-*")):
                shutil.rmtree(stray, ignore_errors=True)
            _empty_trash(self.root)

    def _was_replaced(self, staged: Path) -> bool:
        """Whether a staged folder is an old model that was already exchanged for the new model. A new model has a
        higher version than the old model, so the highest version of the old model is below that of the model in place.
        Raises OSError."""
        final = self.root / staged.name
        return final.is_dir() and bool(self._entries(staged)) and _newest(staged) < _newest(final)

    def _look(self, path: Path, read: dict[Path, _Read], failing: set[Path]) -> list[ModelEntry]:
        """Return the entries at a path. Add the entries to `read` if they may be cached while the folder is unchanged.
        If the path cannot be read now, add the path to `failing` and return its entries of the last scan."""
        try:
            entries = [self._judged(entry) for entry in self._current(path, read)]
            if not entries or NAME.fullmatch(entries[0].name):
                return entries
            # Reported but not served, because no client could name it in a request.
            name = os.fsencode(entries[0].name).decode(errors="replace")
            problem = "the name of its file or folder is not a valid model name; rename it"
            return [msgspec.structs.replace(entries[0], name=name, problem=problem)]
        except (FileNotFoundError, NotADirectoryError, PermissionError):  # just removed, or not permitted
            return []
        except OSError as error:
            failing.add(path)
            before = self._last.get(path, [])
            if path not in self._failing:
                effect = "the model serves as before" if before else "the model is not served yet"
                _LOG.warning("cannot read %s: %s; %s; trying again", path, error.strerror or error, effect)
            return before

    def _current(self, path: Path, read: dict[Path, _Read]) -> list[ModelEntry]:
        mark = fingerprint(path, self._clock_ns()) if path.is_dir() else None  # before the entries are read
        now, known = time.monotonic(), self._read.get(path)
        if known is None or mark is None or known.mark != mark or now - known.read_at >= _READ_AGAIN_SECONDS:
            known = _Read(mark, now, self._entries(path))
        if mark is not None and not any(entry.problem for entry in known.entries):
            read[path] = known
        return known.entries

    def _judged(self, entry: ModelEntry) -> ModelEntry:
        """Return the entry; with a problem, if another user may have written the model or can replace the model."""
        model = Path(entry.path)
        if self.accepts_foreign or entry.problem or not model.exists():
            return entry
        inside = [model, *model.parents]
        # If the model is a link, also check the folder of its target: a user who may write there can replace the model.
        problem = foreign([*inside[: inside.index(self.root)], self.root, model.resolve().parent])
        hint = '; or set access.foreign_files = "accept"'
        return msgspec.structs.replace(entry, problem=problem + hint) if problem else entry

    @staticmethod
    def _entries(path: Path) -> list[ModelEntry]:
        if path.suffix in (".onnx", ".gguf") and not path.is_dir():
            return [file_entry(path)]
        if not path.is_dir():
            return []
        triton, problem = read_config(path, path.name)
        return folder_entries(path, path.name, triton, problem, [path / FILE])


def _write_record(place: Path, record: repair.Record) -> None:
    if place.exists():
        raise InvalidInput(f"external data must not be named {repair.FILE}; export it under another name")
    place.write_bytes(repair.write(record))


def _keep_rest(folder: Path, staged: Path, keeps_samples: bool) -> int:
    """Copy a model's folder to `staged`, without versions, settings and (unless `keeps_samples`) samples. Make an empty
    folder for the next version, and return the number of this version. Raises OSError."""
    dropped = (SETTINGS_FILE,) if keeps_samples else (SETTINGS_FILE, model_samples.FOLDER)
    number = _newest(folder) + 1
    (staged / str(number)).mkdir()
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name not in dropped and not _is_version(path):
            copy = partial(shutil.copytree, symlinks=True) if path.is_dir() else shutil.copyfile
            copy(path, staged / path.name)
    return number


def _is_version(path: Path) -> bool:
    return path.is_dir() and path.name.isdecimal()


def _newest(folder: Path) -> int:
    """Return the highest version in a model's folder; 1 if the folder has no version. Raises OSError."""
    paths = folder.iterdir() if folder.is_dir() else ()
    return max((1, *(int(path.name) for path in paths if _is_version(path))))


def _targets(
    staged: Path, version: str, files: Mapping[str, Path], samples: Mapping[str, Path], model_file: str
) -> Iterator[tuple[Path, Path]]:
    """Yield (path in the staged folder, current path) for each file of a new model."""
    for index, (relative, source) in enumerate(files.items()):
        if index and relative == model_file:
            raise InvalidInput(f"external data must not be named {model_file}; export it under another name")
        keeps_name = index or language.is_language(relative)
        yield staged / version / (relative if keeps_name else model_file), source
    for name, source in samples.items():
        yield staged / model_samples.FOLDER / name, source


TRASH = ".removed"
_RESTORING = ".restoring-"
_REPLACING = ".replacing-"  # a folder with the new model; after the exchange, with the old model
MAX_REMOVED = 10
MAX_REMOVED_BYTES = 4 << 30  # of all removed models; the newest is kept at any size


def _move_to_trash(root: Path, paths: Iterable[Path]) -> Path:
    """Move files and folders of `root` into the trash and return their new folder. Raises OSError."""
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
    """Delete the oldest models in the trash until the trash is within its limits. Also delete folders that an
    interrupted removal left empty."""
    with contextlib.suppress(OSError), _trash_lock(root):
        _prune_locked(root)


@contextlib.contextmanager
def _trash_lock(root: Path) -> Iterator[None]:
    """Lock the trash: without a lock, two removals could take the same number, or delete each other's empty folder."""
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
        with contextlib.suppress(OSError):  # leave files, and folders that cannot be read
            total += _size(place)
            if (index and (index >= MAX_REMOVED or total > MAX_REMOVED_BYTES)) or not any(place.iterdir()):
                shutil.rmtree(place, ignore_errors=True)


def _moved(source: Path, target: Path, undo: contextlib.ExitStack) -> None:
    os.rename(source, target)
    undo.callback(os.rename, target, source)


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # the folder is not empty
        folder.rmdir()


def _holds(place: Path, names: Iterable[str]) -> bool:
    return any(os.path.lexists(place / name) for name in names)


def _removed(root: Path) -> list[Path]:
    """Return the folders in the trash, the oldest first."""
    found = (root / TRASH).glob("[0-9]*") if (root / TRASH).is_dir() else ()
    return sorted((place for place in found if place.name.isdecimal()), key=lambda place: int(place.name))


def _size(place: Path) -> int:
    files = (Path(folder, name) for folder, _, names in os.walk(place) for name in names)
    return sum(file.lstat().st_size for file in files)


_MOST_FILES = 256
_MOST_BYTES = 2 << 30
_DEEPEST = 8


class Overrides:
    """A folder in the state directory, with a subfolder for each model whose files a client sent to load it."""

    def __init__(self, root: Path, repository: Repository) -> None:
        self.root, self._repository = root.absolute(), repository

    def sweep(self) -> None:
        """Remove the files of an earlier daemon. Call this only when the daemon starts."""
        shutil.rmtree(self.root, ignore_errors=True)

    def entries(self, name: str, config: str | None, files: Mapping[str, bytes]) -> dict[str, ModelEntry]:
        """Return the entries of a model's versions by entry name; empty if the model does not exist. The versions are
        those in the repository, or, if `files` is not empty, only those in `files` (contents by path inside the model's
        folder). `config` is JSON and replaces config.pbtxt.

        Raises InvalidInput for an invalid configuration or invalid files, and leaves no file behind.
        """
        if files and config is None:
            raise InvalidInput("loading a model from files requires `config`; {} is enough")
        if config is None:
            return {e.name: e for e in self._repository.versions(name)}
        from edged.models.triton_text import read_json  # protobuf, which few models need

        try:
            triton = read_json(config, name)
        except ConfigError as error:
            raise InvalidInput(f"invalid `config` for model {name!r}: {error}") from error
        if not files:
            return {e.name: e for e in self._repository.versions(name, triton)}
        folder = self._stage(name, files)
        try:
            found = folder_entries(folder, name, triton)
            if not found:
                raise InvalidInput(f"model {name!r} has no model file; name it like file:1/model.onnx")
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return {e.name: e for e in found}

    def discard(self, entries: Mapping[str, ModelEntry]) -> None:
        """Remove the files of a model that a client loaded with files."""
        for folder in {Path(entry.folder) for entry in entries.values()}:
            if folder.parent == self.root:
                shutil.rmtree(folder, ignore_errors=True)

    def _stage(self, name: str, files: Mapping[str, bytes]) -> Path:
        places = {_inside(path): data for path, data in files.items()}
        if len(files) > _MOST_FILES or len(places) < len(files):
            raise InvalidInput(f"model {name!r} comes with {len(files)} files; send at most {_MOST_FILES}, each once")
        if sum(map(len, places.values())) > _MOST_BYTES:
            raise TooLarge(
                f"the files of model {name!r} have more than {_MOST_BYTES >> 20} MiB together; put the model into the"
                " model repository, then load it without files"
            )
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o750)
            folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.root))
            try:
                for path, data in places.items():
                    place = folder / path
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_bytes(data)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
        except OSError as error:
            raise not_stored(f"the files of model {name!r}", error) from error
        return folder


def _inside(path: str) -> PurePosixPath:
    """Parse a path inside a model's folder. Raises InvalidInput if the path leads outside or is unusable."""
    pure = PurePosixPath(path)
    if (
        leads_outside(pure)
        or len(pure.parts) > _DEEPEST
        or not path.isprintable()
        or any(len(part.encode()) > 255 for part in pure.parts)
    ):
        raise InvalidInput(f"{path[:80]!r} is not a file inside a model's folder; name it like file:1/model.onnx")
    if str(pure) == FILE:
        raise InvalidInput(f"{FILE} is not accepted as a file; send it as `config`, in JSON")
    return pure
