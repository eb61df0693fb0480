"""Traces of single requests: which are traced, when each reached which step, and the files that they are written to."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np

from edged.serving import trace_settings
from edged.serving.trace_settings import Changes, TraceSettings
from edged.serving.work import Answered, InputTensor, OutputTensor, TensorWork
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
        """Append traces to their files. A failure to write is logged once."""
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
        if sizes.get(name) != file.size:  # new, removed, or another process's
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


_WRITE_SECONDS = 0.2  # traces are written together
_WAITING = 1000  # traces that a slow disk may be behind; more are dropped
_KEPT = 64 << 10  # bytes of a tensor


class Trace:
    """One request that is traced. Clocks are monotonic, nanoseconds."""

    __slots__ = ("_number", "_owner", "_request", "_settings", "_started", "_who")

    def __init__(
        self, owner: Tracing, settings: TraceSettings, number: int, who: tuple[str, str], request: str
    ) -> None:
        self._owner, self._settings, self._number = owner, settings, number
        self._who, self._request = who, request
        self._started = time.monotonic_ns()

    def end(self, work: TensorWork, answer: Answered | None) -> None:
        """End the request, without an answer if it failed or its client disconnected.

        The steps last as long as the model's statistics say of this request.
        """
        ended = time.monotonic_ns()
        stamps: list[tuple[str, int]] = []
        if trace_settings.TIMESTAMPS in self._settings.levels:
            steps = _steps(work, answer)
            started = min(self._started, steps[0][1])  # it may have been made before it was known to be traced
            stamps = [("REQUEST_START", started), *steps, ("REQUEST_END", ended)]
        tensors: list[Tensor] = []
        if trace_settings.TENSORS in self._settings.levels:
            tensors = [_tensor("TENSOR_QUEUE_INPUT", tensor) for tensor in work.inputs]
            outputs = answer.outputs if answer is not None else ()
            tensors += [_tensor("TENSOR_BACKEND_OUTPUT", tensor) for tensor in outputs]
        record = TraceRecord(self._number, *self._who, self._request, tuple(stamps), tuple(tensors))
        self._owner.take(self._settings, record)


class _Scope:
    """What holds for one model, or for all that have nothing of their own."""

    def __init__(self, settings: TraceSettings) -> None:
        self.settings, self.left, self.seen = settings, settings.count, 0

    def picks(self) -> bool:
        """Whether the next request is traced."""
        if not self.left or not self.settings.levels:
            return False
        self.seen += 1
        if self.seen % self.settings.rate:
            return False
        self.left -= self.left > 0
        return True

    def change(self, settings: TraceSettings, renew: bool) -> None:
        """Count from the start with `renew`, or if the count has changed."""
        if renew or settings.count != self.settings.count:
            self.left = settings.count
        if settings.rate != self.settings.rate:
            self.seen = 0
        self.settings = settings


class Tracing:
    """Traces requests as it is set, into files of one folder. Used on the event loop; files are written by a thread."""

    def __init__(self, folder: Path) -> None:
        self.is_on = False  # asked for every request
        self._files = TraceFiles(folder)
        self._given = Changes()
        self._given_to: dict[str, Changes] = {}
        self._all, self._own = _Scope(TraceSettings()), dict[str, _Scope]()
        self._numbers = itertools.count(1)
        self._waiting: list[tuple[TraceSettings, TraceRecord]] = []
        self._dropped = 0
        self._timer: asyncio.TimerHandle | None = None
        self._writer: ThreadPoolExecutor | None = None

    def begin(self, model: str, version: str, request: str) -> Trace | None:
        """To be called when a request comes; None unless it is traced."""
        if not self.is_on:
            return None
        scope = self._own.get(model, self._all)
        if not scope.picks():
            return None
        return Trace(self, scope.settings, next(self._numbers), (model, version), request)

    def settings(self, model: str = "") -> TraceSettings:
        """What holds for a model, or for all others; `count` is what is left of it."""
        scope = self._own.get(model, self._all)
        return msgspec.structs.replace(scope.settings, count=scope.left)

    def change(self, values: Mapping[str, Sequence[str]], model: str = "") -> None:
        """Changes settings by their names, for one model or for all; one without values is taken back. InvalidInput."""
        before = self._given_to.get(model, Changes()) if model else self._given
        given = trace_settings.read(values, before)
        counted = "trace_count" in values
        if model:
            self._given_to[model] = given
        else:
            self._given = given
            self._all.change(given.over(TraceSettings()), counted)
        for name in [name for name, own in self._given_to.items() if own.is_empty]:
            del self._given_to[name]
            self._own.pop(name, None)
        for name, own in self._given_to.items():
            effective = own.over(self._all.settings)
            scope = self._own.setdefault(name, _Scope(effective))
            scope.change(effective, counted and (name == model or (not model and own.count is None)))
        if "trace_file" in values:
            self._files.begin_anew(self.settings(model).file)
        scopes = (self._all, *self._own.values())
        self.is_on = any(scope.settings.is_on for scope in scopes)

    def take(self, settings: TraceSettings, record: TraceRecord) -> None:
        """A trace that is to be written."""
        if len(self._waiting) >= _WAITING:
            self._dropped += 1
            return
        self._waiting.append((settings, record))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_WRITE_SECONDS, self._write)

    async def close(self) -> None:
        """Writes what waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._write()
        if self._writer is not None:
            await asyncio.to_thread(self._writer.shutdown)
            self._writer = None

    def _write(self) -> None:
        self._timer = None
        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, "traces")
        records, self._waiting = self._waiting, []
        if self._dropped:
            _LOG.warning("%d traces were dropped: the disk is slower than they come; raise trace_rate", self._dropped)
            self._dropped = 0
        self._writer.submit(self._files.write, records)


def _steps(work: TensorWork, answer: Answered | None) -> list[tuple[str, int]]:
    queued = round(work.received * 1e9)
    if answer is None:
        return [("QUEUE_START", queued)]
    times = answer.times
    steps = [("QUEUE_START", 0.0), ("COMPUTE_START", answer.queue_ms)]
    steps += [("COMPUTE_INPUT_END", times.decode_ms + times.prepare_ms), ("COMPUTE_OUTPUT_START", times.infer_ms)]
    steps += [("COMPUTE_END", times.postprocess_ms)]
    ends = itertools.accumulate(took for _, took in steps)
    return [(name, queued + round(end * 1e6)) for (name, _), end in zip(steps, ends, strict=True)]


def _tensor(activity: str, tensor: InputTensor | OutputTensor) -> Tensor:
    """A tensor with the start of its data. What is read from elsewhere is gone by now."""
    data = bytes(memoryview(tensor.data)[:_KEPT]) if isinstance(tensor.data, bytes | memoryview) else b""
    shape = tuple(size if isinstance(size, int) else -1 for size in tensor.shape)
    return Tensor(activity, tensor.name, tensor.datatype, shape, data)
