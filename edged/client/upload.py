"""Uploads of a model with its external data, and samples to verify its engines with."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from edged import packages
from edged.errors import InvalidInput, Unsupported
from edged.models.identity import model_digest
from edged.models.repair import RepairOptions
from edged.models.samples import find
from edged.proto.operations_pb2 import AddModelRequest, ModelFile, ModelHeader, Repairs

CHUNK = 1 << 20  # bytes of a file in one message, well below gRPC's default limit of 4 MiB

Samples: TypeAlias = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


@dataclass(frozen=True)
class Package:
    """An upload: header, model with external data, samples by name. Files are read as they are sent."""

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
        """Make a package; `samples` are files or folders, `repairs` are made by the daemon first, `replace` is for a
        name that another model may have.

        ModelRefused for a file that is not an ONNX model or lacks external data, InvalidInput for samples that are
        neither pictures nor tensors by their names, too many or too large, Unsupported without onnx.
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
    """Iterator over the messages of `AddModel`: the header, then every file followed by its chunks.

    `failure` keeps an error of reading, since gRPC passes no exception on.
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
            self.failure = InvalidInput(f"the model cannot be read: {error.strerror}: {error.filename}")
            raise  # gRPC then cancels the call; an end here would make half a file look whole


def _file(announced: ModelFile, path: Path) -> Iterator[AddModelRequest]:
    with path.open("rb") as file:
        announced.size = os.fstat(file.fileno()).st_size
        yield AddModelRequest(file=announced)
        while chunk := file.read(CHUNK):
            yield AddModelRequest(chunk=chunk)


def _files(path: Path) -> list[tuple[str, Path]]:
    try:
        from edged.jobs.inspect import external_files  # brings onnx, which only an upload needs
    except ImportError:
        raise Unsupported(packages.missing("onnx", "sending a model")) from None
    external = [(file.path, path.parent / file.path) for file in external_files(path)]
    return [(path.name, path), *external]
