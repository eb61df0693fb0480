"""A model, its external data and pictures to verify its engines with, as the parts of one upload."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from edged.errors import InvalidInput, ModelRefused
from edged.model.samples import find
from edged.proto.operations_pb2 import AddModelRequest, ModelFile, ModelHeader

CHUNK = 1 << 20  # bytes of a file in one message, well below gRPC's default limit of 4 MiB

Samples: TypeAlias = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


class Upload:
    """Iterates over the messages of `AddModel`: the header, then every file followed by its chunks.

    `samples` are picture files or folders of them. What goes wrong while it is sent is kept in `failure`, since gRPC
    passes no exception on. When it is made: ModelRefused for a file that is no ONNX model or lacks some of its external
    data, InvalidInput for samples that are no pictures by their names, too many or too large.
    """

    def __init__(
        self, name: str, path: str | os.PathLike[str], settings: Mapping[str, str] | None, samples: Samples = ()
    ) -> None:
        self.failure: Exception | None = None
        self._header = ModelHeader(name=name, settings=dict(settings or {}))
        self._files = _files(Path(path))
        self._samples = find(samples)
        self._parts = self._read()

    def __iter__(self) -> Iterator[AddModelRequest]:
        return self

    def __next__(self) -> AddModelRequest:
        return next(self._parts)

    def _read(self) -> Iterator[AddModelRequest]:
        yield AddModelRequest(header=self._header)
        try:
            for relative, path in self._files:
                yield from _file(ModelFile(path=relative), path)
            for name, path in self._samples.items():
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
        from edged.model.inspect import inspect  # brings onnx, which only an upload needs
    except ImportError as error:
        raise ModelRefused(f"the model cannot be inspected here: {error}") from None
    found = inspect(path)
    if found.refusal:
        raise ModelRefused(found.refusal)
    external = [(file.path, path.parent / file.path) for file in found.external]
    return [(path.name, path), *external]
