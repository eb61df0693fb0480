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

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from edged.errors import AlreadyExists, ConfigError, InvalidInput, ModelNotFound, Refused, Superseded
from edged.files import foreign, not_stored, read_inside
from edged.models import repair, trash, triton_config, triton_files
from edged.models import samples as model_samples
from edged.models import settings as model_settings
from edged.models.identity import model_digest
from edged.models.triton_config import TritonConfig, VersionPolicy
from edged.store import atomic

_NAME = re.compile(r"\w[\w .+@-]{0,127}")  # letters and digits of any script; what no file system or shell minds
_VERSION = re.compile(r"[1-9][0-9]{0,17}")  # as Triton, which passes over what begins with 0
_SETTINGS = "edged.toml"
_MODEL = "model.onnx"
_SEPARATOR = ":"  # no name of a model has one


class ModelEntry(msgspec.Struct, frozen=True):
    """One version of a model as the disk has it. `stamp` changes with its files, settings and samples, which are paths;
    `problem` says why it is unusable.

    The version that answers whoever names none is called as the model is; others are called NAME:VERSION. `triton` is
    what config.pbtxt says, `labels` the names of classes by output that it names, `folder` where its other files are.
    """

    name: str
    version: str
    path: str
    settings: dict[str, str]
    stamp: str
    problem: str = ""
    samples: tuple[str, ...] = ()
    folder: str = ""
    triton: TritonConfig | None = None
    labels: dict[str, tuple[str, ...]] = {}
    repair: repair.Record | None = None  # what was done to it before it was taken in, as the file beside it says
    unread: tuple[str, ...] = ()  # files beside it that look like its settings and are not, a line each

    @property
    def model(self) -> str:
        """The model's name, whichever version this is."""
        return split_name(self.name)[0]

    def already_there(self, digest: str) -> str:
        """That its name is taken, for whoever wants to add a model of a digest under it."""
        if digest and self.repair is not None and self.repair.original == digest:
            made = self.repair.made[:10]
            return f"model {self.name!r} is already there, repaired from this very file on {made}: nothing to do"
        return f"model {self.name!r} is already there; remove it first: edged models remove {self.name}"


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
                _require_digest(staged / "1" / _MODEL, files, digest)
            if record is not None:
                place = staged / "1" / repair.FILE
                if place.exists():
                    raise InvalidInput(f"external data may not be called {repair.FILE}; export it under another name")
                place.write_bytes(repair.write(record))
            if settings:
                (staged / _SETTINGS).write_bytes(model_settings.write_toml(settings))
            atomic.publish(staged, final)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY):  # added by somebody else meanwhile
                raise AlreadyExists(f"model {name!r} is there since a moment ago") from error
            raise not_stored(f"model {name!r}", error) from error
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        return final / "1" / _MODEL

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
                return trash.put(self.root, [path for path in (folder, plain) if os.path.lexists(path)])
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
            trash.prune(self.root)

    def _look(self, path: Path) -> list[ModelEntry]:
        try:
            entries = [self._judged(entry) for entry in self._entries(path)]
            if not entries or _NAME.fullmatch(entries[0].name):
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
        triton, problem = triton_files.read_config(path, path.name)
        return folder_entries(path, path.name, triton, problem, [path / triton_config.FILE])


def folder_entries(
    path: Path, name: str, triton: TritonConfig | None, problem: str = "", sources: Sequence[Path] = ()
) -> list[ModelEntry]:
    """The versions of a model's folder that are to be served, the one that answers for the model first; none where the
    folder has no version.

    `triton` is its configuration, `problem` why that cannot be used, `sources` are the files that it was read from.
    OSError where the folder cannot be read.
    """
    present = {int(v.name): v for v in path.iterdir() if _VERSION.fullmatch(v.name) and v.is_dir()}
    if not present:
        return []
    settings, wrong = _read_settings(path)
    said = triton or TritonConfig()
    policy = (None if wrong else triton_config.version_policy(settings)) or said.versions or VersionPolicy()
    labels, unreadable = triton_files.read_labels(path, said)
    named = list(triton_files.named_files(said))
    lost = (problem for file in named if (problem := triton_files.unusable(path, file)))
    chosen, numbers = policy.choose(present), ", ".join(map(str, sorted(present)))
    none = "" if chosen else f"of the versions {numbers} none is served, since versions={policy}; change it"
    problem = problem or wrong or unreadable or next(lost, "") or none
    samples = model_samples.listed(path / model_samples.FOLDER)
    common = [*sources, path / _SETTINGS, *(path / file for file in named), *samples]
    entries: list[ModelEntry] = []
    for number in chosen or (max(present),):
        model = present[number] / (said.model_file or _MODEL)
        missing = "" if os.path.lexists(model) else f"version {number} has no {said.model_file or _MODEL}"
        entries.append(
            ModelEntry(
                versioned_name(name, number) if entries else name,
                str(number),
                str(model),
                settings,
                stamp([*_files(present[number]), *common]),
                problem or missing,
                tuple(map(str, samples)),
                str(path),
                triton,
                labels,
                repair.read(present[number] / repair.FILE),
                tuple(_unread(path, present[number])),
            )
        )
    return entries


def versioned_name(name: str, version: int | str) -> str:
    """What one version of a model is called beside the one that answers for the model."""
    return f"{name}{_SEPARATOR}{version}"


def split_name(name: str) -> tuple[str, str]:
    """A model's name and the version that comes with it, empty where none does."""
    model, _, version = name.partition(_SEPARATOR)
    return model, version


def plain_entry(name: str, path: Path, settings: Mapping[str, str]) -> ModelEntry:
    """An ONNX file that is served where it lies."""
    beside = path.with_suffix(".toml")
    unread = f"{beside.name} is not read: a model with settings has a folder, {name}/1/{_MODEL} and {name}/{_SETTINGS}"
    return ModelEntry(name, "1", str(path), dict(settings), stamp([path]), unread=(unread,) if beside.is_file() else ())


def check_name(name: str) -> None:
    """A model's name is a file name: letters, digits, spaces and . _ + @ -, beginning with a letter or digit."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(f"{name[:80]!r} is not a model name: use letters, digits and . _ - + @, at most 128")


def _unread(folder: Path, version: Path) -> Iterator[str]:
    """What its user may have meant as settings."""
    for path in sorted((*folder.glob("*.toml"), *version.glob("*.toml"))):
        if path != folder / _SETTINGS:
            yield f"{path.relative_to(folder)} is not read: settings are in {folder.name}/{_SETTINGS}"


def _read_settings(folder: Path) -> tuple[dict[str, str], str]:
    try:
        settings = model_settings.read_toml(read_inside(folder, _SETTINGS))
        model_settings.validate(settings)
    except FileNotFoundError:
        return {}, ""
    except OSError as error:
        return {}, f"{_SETTINGS} cannot be read: {error.strerror or error}"
    except ConfigError as error:
        return {}, f"{_SETTINGS}: {error}"
    return settings, ""


def _targets(staged: Path, files: Mapping[str, Path], samples: Mapping[str, Path]) -> Iterator[tuple[Path, Path]]:
    """Where each file of a new model belongs, with where it is now."""
    for index, (relative, source) in enumerate(files.items()):
        if index and relative == _MODEL:
            raise InvalidInput(f"external data may not be called {_MODEL}; export it under another name")
        yield staged / "1" / (_MODEL if index == 0 else relative), source
    for name, source in samples.items():
        yield staged / model_samples.FOLDER / name, source


def _require_digest(model: Path, files: Mapping[str, Path], digest: str) -> None:
    """That what lies there now is what was examined."""
    first, *external = files
    if model_digest(model, external) != digest:
        raise Superseded(f"{files[first].name} was replaced while it was examined; add it again")


def _files(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        yield from (Path(parent) / name for name in sorted(names))


def stamp(paths: Iterable[Path]) -> str:
    """A cheap sign of change: identity, size and time of every file. The digest decides what it really is."""
    marks = []
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            continue
        marks.append(f"{path.name}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}")
    return "|".join(marks)
