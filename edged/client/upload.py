"""A model and its external data as the parts of one upload."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from edged.errors import InvalidInput, ModelRefused
from edged.proto.operations_pb2 import AddModelRequest, ModelFile, ModelHeader

CHUNK = 1 << 20  # bytes of a file in one message, well below gRPC's default limit of 4 MiB


class Upload:
    """Iterates over the messages of `AddModel`: the header, then every file followed by its chunks.

    What goes wrong while it is sent is kept in `failure`, since gRPC passes no exception on. ModelRefused, when it is
    made, for a file that is no ONNX model or lacks some of its external data.
    """

    def __init__(self, name: str, path: str | os.PathLike[str], settings: Mapping[str, str] | None) -> None:
        self.failure: Exception | None = None
        self._header = ModelHeader(name=name, settings=dict(settings or {}))
        self._files = _files(Path(path))
        self._parts = self._read()

    def __iter__(self) -> Iterator[AddModelRequest]:
        return self

    def __next__(self) -> AddModelRequest:
        return next(self._parts)

    def _read(self) -> Iterator[AddModelRequest]:
        yield AddModelRequest(header=self._header)
        try:
            for relative, path in self._files:
                with path.open("rb") as file:
                    size = os.fstat(file.fileno()).st_size
                    yield AddModelRequest(file=ModelFile(path=relative, size=size))
                    while chunk := file.read(CHUNK):
                        yield AddModelRequest(chunk=chunk)
        except OSError as error:
            self.failure = InvalidInput(f"the model cannot be read: {error.strerror}: {error.filename}")
            raise  # gRPC then cancels the call; an end here would make half a file look whole


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
