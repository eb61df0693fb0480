"""Reads the versions of a model from disk: its folder or plain ONNX file, its settings and config.pbtxt.

An ensemble is a folder with config.pbtxt. As in Triton, the folder of its version may be missing.
"""

from __future__ import annotations

import functools
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

import msgspec

from edged.errors import ConfigError, InvalidInput
from edged.files import read_inside, status_inside
from edged.models import ensemble, language, repair, triton_config
from edged.models import samples as model_samples
from edged.models import settings as model_settings
from edged.models.triton_config import FILE, STATE_FOLDER, WARMUP_FOLDER, Step, TritonConfig, VersionPolicy

NAME = re.compile(r"\w[\w .+@-]{0,127}")  # letters and digits of any script
_VERSION = re.compile(r"[1-9][0-9]{0,17}")  # as in Triton, which ignores numbers that begin with 0
SETTINGS_FILE = "edged.toml"
MODEL_FILE = "model.onnx"
_SEPARATOR = ":"  # cannot occur in a model's name
_MOST_LABEL_BYTES = 4 << 20


class ModelEntry(msgspec.Struct, frozen=True):
    """One version of a model on disk.

    The default version, which answers requests without a version, has the model's name; other versions are named
    NAME:VERSION. `path` is the model file (config.pbtxt of an ensemble), `folder` the model's folder (empty for a plain
    file), `samples` are paths. `stamp` changes if files, settings or samples change. `problem` says why the version
    cannot be served, or is empty. `triton` is the content of config.pbtxt. `labels` has the class names by output.
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
    repair: repair.Record | None = None  # if edged repaired the model when it was added
    unread: tuple[str, ...] = ()  # a line for each file that looks like settings but is not read

    @property
    def model(self) -> str:
        """The model's name, without the version."""
        return split_name(self.name)[0]

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of an ensemble; empty if the model has a file."""
        return (self.triton.steps or ()) if self.triton is not None else ()

    @property
    def is_ensemble(self) -> bool:
        return self.triton is not None and self.triton.steps is not None

    @property
    def is_language(self) -> bool:
        """Whether the entry is a language model."""
        return language.is_language(self.path)

    def require_file(self) -> None:
        """Raise InvalidInput for an ensemble: commands cannot change its file or its settings."""
        if self.is_ensemble:
            raise InvalidInput(
                f"model {self.name!r} is an ensemble, which commands cannot change; edit {FILE} in the model's folder"
            )

    def already_there(self, digest: str) -> str:
        """Return the error message for adding a file with this digest under the same name."""
        if digest and self.repair is not None and self.repair.original == digest:
            made = self.repair.made[:10]
            return f"model {self.name!r} already exists: it was repaired from the same file on {made}; nothing to do"
        return taken(self.name)


def taken(name: str) -> str:
    """Return the error message for adding a model under a name that is taken."""
    return f"model {name!r} already exists; replace it with --replace (serving continues), or choose another name"


def folder_entries(
    path: Path, name: str, triton: TritonConfig | None, problem: str = "", sources: Sequence[Path] = ()
) -> list[ModelEntry]:
    """Return the versions in a model's folder that are to be served, the default version first.

    `triton` is the content of config.pbtxt, `problem` says why config.pbtxt is unusable, and `sources` are the files
    from which `triton` was read. If the folder has no versions, the list is empty, except that an ensemble or a model
    with a `problem` gets an entry for version 1. Raises OSError if the folder cannot be read.
    """
    present = {int(v.name): v for v in path.iterdir() if _VERSION.fullmatch(v.name) and v.is_dir()}
    config = triton or TritonConfig()
    has_file = bool(present) and config.steps is None
    if not has_file:
        if config.steps is None and not problem:
            return []
        present = dict.fromkeys(present or (1,), path)
    settings, wrong = _read_settings(path / SETTINGS_FILE)
    set_policy = None if wrong else triton_config.version_policy(settings)
    policy = set_policy or config.versions or VersionPolicy()
    labels, unreadable = read_labels(path, config)
    named = list(_named_files(config))
    lost = (problem for file in named if (problem := _unusable(path, file)))
    chosen, numbers = policy.choose(present), ", ".join(map(str, sorted(present)))
    key = "setting versions" if set_policy is not None else "version_policy"
    none = "" if chosen else f"no version is served: {key}={policy} selects none of versions {numbers}; change it"
    problem = problem or wrong or unreadable or next(lost, "") or none or _wrong_steps(config)
    samples = model_samples.listed(path / model_samples.FOLDER)
    common = [*sources, path / SETTINGS_FILE, *(path / file for file in named), *samples]
    files = {number: _file_of(present[number], config) if has_file else FILE for number in present}
    return [
        ModelEntry(
            versioned_name(name, number) if index else name,
            str(number),
            str(present[number] / files[number]),
            settings,
            stamp([*_files(present[number]), *common]),
            problem or ("" if not has_file else _missing(present[number], files[number])),
            tuple(map(str, samples)),
            str(path),
            triton,
            labels,
            repair.read(present[number] / repair.FILE),
            tuple(_unread(path, present[number])),
        )
        for index, number in enumerate(chosen or (max(present),))
    ]


def _file_of(version: Path, config: TritonConfig) -> str:
    """Return the name of the model file in the folder of a version: the ONNX file, or the file of a language model."""
    name = config.model_file or MODEL_FILE
    return name if os.path.lexists(version / name) else language.language_file(version) or name


def _missing(version: Path, file: str) -> str:
    return "" if os.path.lexists(version / file) else f"version {version.name} has no {file}"


def _wrong_steps(config: TritonConfig) -> str:
    """Return why the steps of an ensemble are invalid. Empty if they are valid, or if the model is not an ensemble."""
    if config.steps is None:
        return ""
    try:
        ensemble.check(config)
        for step in config.steps:
            check_name(step.model)
    except InvalidInput as error:
        return f"{FILE}: {error}"
    return ""


def versioned_name(name: str, version: int | str) -> str:
    """Return the entry name of a version other than the default: NAME:VERSION."""
    return f"{name}{_SEPARATOR}{version}"


def split_name(name: str) -> tuple[str, str]:
    """Split an entry name into the model's name and the version. The version is empty if the name has none."""
    model, _, version = name.partition(_SEPARATOR)
    return model, version


def plain_entry(name: str, path: Path, settings: Mapping[str, str]) -> ModelEntry:
    """Return the entry of an ONNX file outside a repository, with the given settings."""
    return ModelEntry(name, "1", str(path), dict(settings), stamp([path]))


def outside_entries(name: str, path: Path) -> list[ModelEntry]:
    """Return the versions of a model outside a repository that are to be served, the default version first.

    `path` is an ONNX or GGUF file, or a folder, which need not be writable. The folder is a model's folder in Triton's
    layout, or a repository with this model, or contains one ONNX file or the files of a language model.
    """
    if not path.is_dir():
        return [plain_entry(name, path, {})]
    try:
        for folder in filter(Path.is_dir, (path, path / name)):
            triton, problem = read_config(folder, name)
            if found := folder_entries(folder, name, triton, problem, [folder / FILE]):
                return found
        file = language.language_file(path)
        files = [path / file] if file else [each for each in sorted(path.iterdir()) if each.suffix == ".onnx"]
    except OSError:  # opening the returned entry fails, too, and that error says why
        files = []
    if len(files) != 1:
        return [plain_entry(name, path, {})]
    settings, problem = _read_settings(path / SETTINGS_FILE)
    entry = plain_entry(name, files[0], settings)
    stamped = _files(path) if entry.is_language else [files[0], path / SETTINGS_FILE]
    return [msgspec.structs.replace(entry, stamp=stamp(stamped), problem=problem)]


def file_entry(path: Path) -> ModelEntry:
    """Return the entry of a plain ONNX or GGUF file in the repository. Its settings are in FILE.toml, which may be
    missing."""
    toml = path.with_suffix(".toml")
    settings, problem = _read_settings(toml)
    return ModelEntry(path.stem, "1", str(path), settings, stamp([path, toml]), problem)


def check_name(name: str) -> None:
    """Raise InvalidInput unless a name consists of at most 128 letters, digits, spaces and . _ + @ - and begins with a
    letter, digit or _."""
    if not NAME.fullmatch(name):
        rule = "begin with a letter, digit or _, and use at most 128 letters, digits, spaces and . _ - + @"
        raise InvalidInput(f"invalid model name {name[:80]!r}; {rule}")


def _unread(folder: Path, version: Path) -> Iterator[str]:
    """Yield a line for each TOML file that the user may have meant as settings."""
    for path in sorted((*folder.glob("*.toml"), *version.glob("*.toml"))):
        if path != folder / SETTINGS_FILE:
            yield f"{path.relative_to(folder)} is not read; put settings in {folder.name}/{SETTINGS_FILE}"


def _read_settings(file: Path) -> tuple[dict[str, str], str]:
    """Return (settings, problem). Settings are empty if the file is missing; the problem is empty if the settings can
    be used."""
    try:
        settings = model_settings.read_toml(read_inside(file.parent, file.name))
        model_settings.validate(settings)
    except FileNotFoundError:
        return {}, ""
    except OSError as error:
        return {}, f"{file.name} cannot be read: {error.strerror or error}"
    except ConfigError as error:
        return {}, f"{file.name}: {error}"
    return settings, ""


def _files(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        yield from (Path(parent) / name for name in sorted(names))


def stamp(paths: Iterable[Path]) -> str:
    """Return the inodes, sizes and modification times of the files that exist, as text. Equal texts do not prove equal
    contents."""
    marks = []
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            continue
        marks.append(f"{path.name}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}")
    return "|".join(marks)


_MOST_MARKS = 256
_SETTLED_NS = 5_000_000_000  # longer than the time resolution of any file system


def fingerprint(folder: Path, now_ns: int) -> tuple[object, ...] | None:
    """Return device, inode, size and times of a folder and everything below it, to detect changes.

    Return None if later changes could be missed: if the folder contains a symbolic link or more than 256 files and
    folders, or if anything in it changed in the 5 s before `now_ns` (nanoseconds since the epoch). Raises OSError if
    the folder cannot be read.
    """
    found, folders = [(".", folder.lstat())], [os.fspath(folder)]
    if stat.S_ISLNK(found[0][1].st_mode):
        return None
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_symlink() or len(found) == _MOST_MARKS:
                    return None
                found.append((entry.path, entry.stat(follow_symlinks=False)))
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
    if max(status.st_ctime_ns for _, status in found) > now_ns - _SETTLED_NS:
        return None
    return tuple((path, s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for path, s in found)


def read_config(folder: Path, name: str) -> tuple[TritonConfig | None, str]:
    """Return (configuration, problem) of a model's folder; (None, "") if the folder has no config.pbtxt."""
    try:
        return _read(folder, name, *_mark(folder, FILE))
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, f"{FILE} cannot be read: {error.strerror or error}"


def read_labels(folder: Path, config: TritonConfig) -> tuple[dict[str, tuple[str, ...]], str]:
    """Return (labels, problem): `labels` maps each output with a label file to its class names."""
    labels = {}
    for output in config.outputs:
        if output.label_file:
            try:
                labels[output.name] = _lines(folder, output.label_file, *_mark(folder, output.label_file))
            except (OSError, ValueError) as error:
                why = getattr(error, "strerror", None) or error
                return {}, f"{FILE}: label file {output.label_file!r} of output {output.name!r} cannot be read: {why}"
    return labels, ""


def _unusable(folder: Path, name: PurePosixPath) -> str:
    """Return why a file that the configuration names cannot be used; empty if the file can be used."""
    try:
        status_inside(folder, name)
    except FileNotFoundError:
        return f"{FILE} names the file {name.name!r}, which does not exist"
    except OSError as error:
        return f"{FILE} names the file {str(name)!r}, which cannot be read: {error.strerror or error}"
    return ""


def _named_files(config: TritonConfig) -> Iterator[PurePosixPath]:
    """Yield the paths in the model's folder of all files that the configuration names. The files may be missing."""
    for output in config.outputs:
        if output.label_file:
            yield PurePosixPath(output.label_file)
    for warmup in config.warmups:
        yield from (PurePosixPath(WARMUP_FOLDER, each.file) for each in warmup.inputs if each.file)
    if config.sequence is not None:
        states = config.sequence.states
        yield from (PurePosixPath(STATE_FOLDER, each.initial_file) for each in states if each.initial_file)


def _mark(folder: Path, name: str) -> tuple[int, ...]:
    status = status_inside(folder, name)
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@functools.lru_cache(maxsize=256)
def _read(folder: Path, name: str, *mark: int) -> tuple[TritonConfig | None, str]:
    from edged.models.triton_text import MOST_BYTES, read_text  # protobuf, which few models need

    if mark[1] > MOST_BYTES:
        return None, f"{FILE}: the file is larger than {MOST_BYTES >> 10} KiB, the limit"
    try:
        return read_text(read_inside(folder, FILE), name), ""
    except ConfigError as error:
        return None, f"{FILE}: {error}"


@functools.lru_cache(maxsize=64)
def _lines(folder: Path, name: str, *mark: int) -> tuple[str, ...]:
    if mark[1] > _MOST_LABEL_BYTES:
        raise ValueError(f"the file is larger than {_MOST_LABEL_BYTES >> 20} MiB")
    return tuple(read_inside(folder, name).decode("utf-8-sig").splitlines())
