"""Uploads of a model: its file, its external data, and samples with which its engines are verified."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from edged import packages
from edged.errors import InvalidInput, Unsupported
from edged.models import language
from edged.models.identity import model_digest
from edged.models.repair import RepairOptions
from edged.models.samples import find
from edged.proto.operations_pb2 import AddModelRequest, ModelFile, ModelHeader, Repairs

CHUNK = 1 << 20  # bytes of a file in one message, well below gRPC's default limit of 4 MiB

Samples: TypeAlias = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


@dataclass(frozen=True)
class Package:
    """One upload: a header, the model with its external data, and samples by name. Files are read while they are
    sent."""

    header: ModelHeader
    files: tuple[tuple[str, Path], ...]
    samples: Mapping[str, Path]

    @classmethod
    def of(
        cls,
        name: str,
        path: str | os.PathLike[str],
        settings: Mapping[str, str] | None,
        samples: Samples = (),
        repairs: RepairOptions | None = None,
        *,
        replace: bool = False,
    ) -> Package:
        """Make a package. `path` is an ONNX file. For a language model, `path` is the folder of the model or its main
        file. `samples` are files or folders. The daemon makes `repairs` before it examines the model. `replace` allows
        a name that a model already has.

        Raises ModelRefused if the file is not an ONNX model or lacks external data, Unsupported if onnx is not
        installed. Raises InvalidInput if there are too many samples, if a sample is too large, or if its suffix is not
        that of a JPEG, PNG or *.npz file.
        """
        header = ModelHeader(name=name, settings=dict(settings or {}), replace=replace)
        files = _files(Path(path))
        if repairs is not None and repairs.is_any:
            header.repairs.CopyFrom(
                Repairs(needed=repairs.needed, steps=repairs.words, source=str(Path(path).absolute()))
            )
            header.digest = model_digest(Path(path), [relative for relative, _ in files[1:]])
        return cls(header, tuple(files), find(samples))


class Upload:
    """Iterator over the messages of `AddModel` or `TryModel`: the header, then for each file its name and size,
    followed by its chunks.

    If a file cannot be read, `failure` has the error, since gRPC does not pass on exceptions of an iterator.
    """

    def __init__(self, package: Package) -> None:
        self.failure: Exception | None = None
        self._package = package
        self._parts = self._read()

    def __iter__(self) -> Iterator[AddModelRequest]:
        return self

    def __next__(self) -> AddModelRequest:
        return next(self._parts)

    def _read(self) -> Iterator[AddModelRequest]:
        yield AddModelRequest(header=self._package.header)
        try:
            for relative, path in self._package.files:
                yield from _file(ModelFile(path=relative), path)
            for name, path in self._package.samples.items():
                yield from _file(ModelFile(path=name, sample=True), path)
        except OSError as error:
            self.failure = InvalidInput(f"the file {error.filename} cannot be read and sent: {error.strerror}")
            raise  # so that gRPC cancels the call; after a plain return half a file would look complete


def _file(announced: ModelFile, path: Path) -> Iterator[AddModelRequest]:
    with path.open("rb") as file:
        announced.size = os.fstat(file.fileno()).st_size
        yield AddModelRequest(file=announced)
        while chunk := file.read(CHUNK):
            yield AddModelRequest(chunk=chunk)


def _files(path: Path) -> list[tuple[str, Path]]:
    main = language.main_file(path)
    if main is not None:
        others = [each for each in language.files(main) if each != main]
        return [(str(each.relative_to(main.parent)), each) for each in (main, *others)]
    try:
        from edged.jobs.inspect import external_files  # imports onnx, which only uploads need
    except ImportError:
        raise Unsupported(packages.missing("onnx", "sending a model")) from None
    external = [(file.path, path.parent / file.path) for file in external_files(path)]
    return [(path.name, path), *external]
