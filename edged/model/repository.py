"""The models on disk, in Triton's layout, which is read as it is:

    models/NAME/VERSION/model.onnx     with external data beside it
    models/NAME/edged.toml             settings, optional
    models/NAME/samples/*.jpg          pictures to verify engines with, JPEG or PNG, optional
    models/FILE.onnx                   a plain file serves as model FILE, version 1

The highest numeric version serves. The directory is the truth; whoever wants to know what changed reads it again.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from edged.errors import AlreadyExists, ConfigError, InvalidInput, NotFound
from edged.files import read_regular
from edged.model import samples as model_samples
from edged.model import settings as model_settings
from edged.store import atomic

_NAME = re.compile(r"\w[\w .+@-]{0,127}")  # letters and digits of any script; what no file system or shell minds
_SETTINGS = "edged.toml"
_MODEL = "model.onnx"


class ModelEntry(msgspec.Struct, frozen=True):
    """One model as the disk has it. `stamp` changes with its files, settings and samples, which are paths of pictures;
    `problem` says why it is unusable."""

    name: str
    version: str
    path: str
    settings: dict[str, str]
    stamp: str
    problem: str = ""
    samples: tuple[str, ...] = ()


class Repository:
    """A directory of models; read anew at every call."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    def entries(self) -> dict[str, ModelEntry]:
        """Every model by name. Unreadable or empty folders are passed over."""
        try:
            paths = sorted(path for path in self.root.iterdir() if not path.name.startswith("."))
        except OSError:
            return {}
        entries: dict[str, ModelEntry] = {}
        for entry in filter(None, map(self._look, paths)):
            twice = entry.name in entries
            problem = f"both {entry.name}/ and {entry.name}.onnx are there; remove one of them"
            entries[entry.name] = msgspec.structs.replace(entry, problem=problem) if twice else entry
        return entries

    def add(
        self,
        name: str,
        files: Mapping[str, Path],
        settings: Mapping[str, str],
        *,
        samples: Mapping[str, Path] | None = None,
        move: bool = False,
    ) -> Path:
        """Copies or moves a model in: the first file is the ONNX model, the others its external data by relative path.
        `samples` are pictures by file name.

        Appears whole or not at all. AlreadyExists when the name is taken. Returns the path of the model.
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
            if settings:
                (staged / _SETTINGS).write_bytes(model_settings.write_toml(settings))
            atomic.publish(staged, final)
        except OSError as error:
            raise InvalidInput(f"model {name!r} could not be stored: {error.strerror or error}") from error
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        return final / "1" / _MODEL

    def remove(self, name: str) -> None:
        """Removes a model and its settings. NotFound when there is none of that name."""
        check_name(name)
        folder, plain = self.root / name, self.root / f"{name}.onnx"
        if not folder.is_dir() and not os.path.lexists(plain):
            raise NotFound(f"there is no model {name!r} in {self.root}")
        plain.unlink(missing_ok=True)
        if folder.is_dir():
            grave = Path(tempfile.mkdtemp(prefix=".removing-", dir=self.root))
            os.rename(folder, grave / name)
            shutil.rmtree(grave, ignore_errors=True)

    def sweep(self) -> None:
        """Removes what an interrupted add or remove left behind. For the daemon's start, not beside another one."""
        if self.root.is_dir():
            for stray in self.root.glob(".adding-*"):
                shutil.rmtree(stray, ignore_errors=True)
            for stray in self.root.glob(".removing-*"):
                shutil.rmtree(stray, ignore_errors=True)

    def _look(self, path: Path) -> ModelEntry | None:
        try:
            entry = self._entry(path)
            if entry is None or _NAME.fullmatch(entry.name):
                return entry
            # Told rather than served: it could be neither asked for nor removed by its name.
            name = os.fsencode(entry.name).decode(errors="replace")
            return msgspec.structs.replace(entry, name=name, problem="its file name is no model name; rename it")
        except OSError:  # it vanished while it was looked at, or is not ours to read
            return None

    def _entry(self, path: Path) -> ModelEntry | None:
        if path.suffix == ".onnx" and not path.is_dir():
            return plain_entry(path.stem, path, {})
        if not path.is_dir():
            return None
        versions = sorted((int(v.name), v) for v in path.iterdir() if v.name.isdecimal() and v.is_dir())
        if not versions:
            return None
        number, folder = versions[-1]
        settings, problem = _read_settings(path / _SETTINGS)
        model = folder / _MODEL
        if not problem and not os.path.lexists(model):
            problem = f"version {number} has no {_MODEL}"
        samples = model_samples.listed(path / model_samples.FOLDER)
        mark = stamp([*_files(folder), path / _SETTINGS, *samples])
        return ModelEntry(path.name, str(number), str(model), settings, mark, problem, tuple(map(str, samples)))


def plain_entry(name: str, path: Path, settings: Mapping[str, str]) -> ModelEntry:
    """An ONNX file that is served where it lies."""
    return ModelEntry(name, "1", str(path), dict(settings), stamp([path]))


def check_name(name: str) -> None:
    """A model's name is a file name: letters, digits, spaces and . _ + @ -, beginning with a letter or digit."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(f"{name[:80]!r} is not a model name: use letters, digits and . _ - + @, at most 128")


def _read_settings(path: Path) -> tuple[dict[str, str], str]:
    try:
        settings = model_settings.read_toml(read_regular(path))
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
