"""Trace files as Triton writes them: a JSON array of objects, several to a request, which share its `id`.

    {"id": 1, "model_name": "m", "model_version": 1, "request_id": "7"}
    {"id": 1, "activity": "TENSOR_QUEUE_INPUT", "tensor": {"name": "x", "data": "1,2", "shape": "1,2", "dtype": "FP32"}}
    {"id": 1, "timestamps": [{"name": "REQUEST_START", "ns": 123}, ...]}

Each file is whole JSON after every write, and neither a file nor the folder outgrows its limit. What a file held of an
earlier time gives way.
"""

from __future__ import annotations

import json
import logging
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from edged.serving.trace_settings import TraceSettings
from edged.tensors import numpy_dtype

_LOG = logging.getLogger("edged.trace")
_FILE_BYTES = 32 << 20
_FOLDER_BYTES = 256 << 20
_FILES = 1000
_ELEMENTS = 4096  # of a tensor
_END = b"\n]\n"


class Tensor(msgspec.Struct, frozen=True):
    """A tensor on its way, with the start of its raw contents."""

    activity: str
    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes


class TraceRecord(msgspec.Struct, frozen=True):
    """One request. `stamps` are names of steps with nanoseconds of the monotonic clock."""

    number: int
    model: str
    version: str
    request: str
    stamps: tuple[tuple[str, int], ...]
    tensors: tuple[Tensor, ...]


class _File:
    """One file that is being written: its number among those of its name, its traces and its bytes."""

    def __init__(self) -> None:
        self.index = self.held = self.size = 0

    def next(self) -> None:
        """The following one of its name."""
        self.index, self.held, self.size = self.index + 1, 0, 0


class TraceFiles:
    """The files of one folder, which is made when the first is written. Used by one thread, but for `begin_anew`."""

    def __init__(self, folder: Path, file_bytes: int = _FILE_BYTES, folder_bytes: int = _FOLDER_BYTES) -> None:
        self._folder, self._file_bytes, self._folder_bytes = folder, file_bytes, folder_bytes
        self._files: dict[str, _File] = {}
        self._is_told = False  # that something cannot be written

    def begin_anew(self, name: str) -> None:
        """The next trace starts the file again, or the first of its files."""
        self._files.pop(name, None)
        self._is_told = False

    def write(self, records: Sequence[tuple[TraceSettings, TraceRecord]]) -> None:
        """Adds traces to their files. What cannot be written is told of in the log, once."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o750)
            sizes = {entry.name: entry.stat(follow_symlinks=False).st_size for entry in os.scandir(self._folder)}
            for settings, record in records:
                self._add(settings, record, sizes)
        except OSError as error:
            self._tell(f"traces cannot be written to {self._folder}: {error.strerror or error}")

    def _add(self, settings: TraceSettings, record: TraceRecord, sizes: dict[str, int]) -> None:
        file = self._files.setdefault(settings.file, _File())
        name = f"{settings.file}.{file.index}" if settings.frequency else settings.file
        text = ",\n".join(json.dumps(entry) for entry in _entries(record)).encode()
        if sizes.get(name) != file.size:  # new, removed, or somebody else's
            file.size = 0
        size = file.size + len(text) + len(_END)
        others = sum(sizes.values()) - sizes.get(name, 0)
        if size > self._file_bytes or others + size > self._folder_bytes or len({*sizes, name}) > _FILES:
            self._tell(f"traces are dropped: {name} or {self._folder} is full; set another trace_file or remove some")
            return
        sizes[name] = file.size = _append(self._folder / name, text, file.size)
        file.held += 1
        if settings.frequency and file.held >= settings.frequency:
            file.next()

    def _tell(self, message: str) -> None:
        if not self._is_told:
            self._is_told = True
            _LOG.warning("%s", message)


def _append(path: Path, text: bytes, size: int) -> int:
    """Before the bracket that ends the array; without a size the file starts with it. Never through a link. Returns
    the size."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | (0 if size else os.O_TRUNC)
    with os.fdopen(os.open(path, flags, 0o640), "r+b") as file:
        file.seek(max(0, size - len(_END)))
        file.write((b",\n" if size else b"[\n") + text + _END)
        return file.tell()


def _entries(record: TraceRecord) -> Iterator[dict[str, object]]:
    version = int(record.version) if record.version.isdecimal() else -1
    head: dict[str, object] = {"id": record.number, "model_name": record.model, "model_version": version}
    yield {**head, "request_id": record.request} if record.request else head
    for tensor in record.tensors:
        shape = ",".join(map(str, tensor.shape))
        told = {"name": tensor.name, "data": _values(tensor), "shape": shape, "dtype": tensor.datatype}
        yield {"id": record.number, "activity": tensor.activity, "tensor": told}
    if record.stamps:
        yield {"id": record.number, "timestamps": [{"name": name, "ns": ns} for name, ns in record.stamps]}


def _values(tensor: Tensor) -> str:
    """The first elements, in decimal; of strings those that are whole."""
    if tensor.datatype == "BYTES":
        words = (element.decode(errors="replace") for element in _strings(tensor.data))
        return ",".join(json.dumps(word, ensure_ascii=False) for word in words)
    dtype = numpy_dtype(tensor.datatype)
    if tensor.datatype == "BF16":  # the upper half of an FP32
        bits = np.frombuffer(tensor.data, dtype, len(tensor.data) // 2)[:_ELEMENTS].astype(np.uint32) << 16
        return ",".join(map(str, bits.view(np.float32).tolist()))
    whole = min(len(tensor.data) // dtype.itemsize, _ELEMENTS)
    return ",".join(map(str, np.frombuffer(tensor.data, dtype, whole).tolist()))


def _strings(data: bytes) -> Iterator[bytes]:
    position = 0
    for _ in range(_ELEMENTS):
        if position + 4 > len(data):
            return
        (size,) = struct.unpack_from("<I", data, position)
        if position + 4 + size > len(data):
            return
        yield data[position + 4 : position + 4 + size]
        position += 4 + size
