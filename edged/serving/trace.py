"""Traces single requests with Triton's trace settings, and writes their timestamps and tensors to files."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import re
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np

from edged.errors import InvalidInput
from edged.serving.work import Answered, InputTensor, OutputTensor, TensorWork
from edged.tensors import numpy_dtype

_LOG = logging.getLogger("edged.trace")

# -- settings ---------------------------------------------------------------------------------------------------------

_OFF, _TIMESTAMPS, _TENSORS = "OFF", "TIMESTAMPS", "TENSORS"
_MODE = "triton"  # Triton's other mode, "opentelemetry", sends traces to a collector
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")  # a plain file name: no separator, no leading dot
_MOST = (1 << 31) - 1

# Settings that were set for all models or for one, by field of TraceSettings.
Given: TypeAlias = "dict[str, str | int | tuple[str, ...]]"


class TraceSettings(msgspec.Struct, frozen=True):
    """Trace settings. Every `rate`-th request is traced until `count` requests are traced (-1: no limit). `levels`
    select timestamps and tensors. Without levels, nothing is traced.

    Traces are written to `file`, or, with a `frequency`, to `file.0`, `file.1`, ... with `frequency` traces each.
    """

    file: str = "trace.json"
    levels: tuple[str, ...] = ()
    rate: int = 1000
    count: int = -1
    frequency: int = 0


def read(values: Mapping[str, Sequence[str]], before: Given) -> Given:
    """Return `before` with changes. `values` maps the names of settings in the protocol to the new values. A setting
    without values is removed. Raises InvalidInput if a setting is unknown or invalid."""
    given = dict(before)
    for name, texts in values.items():
        if name == "trace_mode":
            if list(texts) not in ([], [_MODE]):
                raise InvalidInput(f"trace_mode {', '.join(texts)[:40]!r} is not supported; use {_MODE!r}")
            continue
        if name not in _SETTINGS:
            known = ", ".join((*_SETTINGS, "trace_mode"))
            raise InvalidInput(f"unknown trace setting {name[:40]!r}; the known settings are {known}")
        field, parse = _SETTINGS[name]
        if texts:
            given[field] = parse(name, texts)
        else:
            given.pop(field, None)
    return given


def shown(settings: TraceSettings) -> dict[str, list[str]]:
    """Return all settings, as a mapping from their names in the protocol to their values."""
    return {
        "trace_file": [settings.file],
        "trace_level": list(settings.levels) or [_OFF],
        "trace_rate": [str(settings.rate)],
        "trace_count": [str(settings.count)],
        "log_frequency": [str(settings.frequency)],
        "trace_mode": [_MODE],
    }


def _file(name: str, texts: Sequence[str]) -> str:
    text = _single(name, texts)
    if not _FILE.fullmatch(text):
        raise InvalidInput(f"{name} {text[:60]!r} is not a plain file name; traces are written to the daemon's folder")
    return text


def _levels(name: str, texts: Sequence[str]) -> tuple[str, ...]:
    # MIN and MAX are older names of TIMESTAMPS that clients still send.
    words = [_TIMESTAMPS if text in ("MIN", "MAX") else text for text in texts]
    unknown = [word for word in words if word not in (_OFF, _TIMESTAMPS, _TENSORS)]
    if unknown:
        raise InvalidInput(f"{name} {unknown[0][:40]!r} is not one of {_OFF}, {_TIMESTAMPS}, {_TENSORS}")
    return tuple(level for level in (_TIMESTAMPS, _TENSORS) if level in words)


def _number(least: int, name: str, texts: Sequence[str]) -> int:
    text = _single(name, texts)
    if not re.fullmatch(r"-?[0-9]{1,10}", text) or not least <= int(text) <= _MOST:
        raise InvalidInput(f"{name} {text[:40]!r} must be an integer between {least} and {_MOST}")
    return int(text)


def _single(name: str, texts: Sequence[str]) -> str:
    if len(texts) != 1:
        raise InvalidInput(f"{name} takes one value, not {len(texts)}")
    return texts[0]


_SETTINGS: dict[str, tuple[str, Callable[[str, Sequence[str]], str | int | tuple[str, ...]]]] = {
    "trace_file": ("file", _file),
    "trace_level": ("levels", _levels),
    "trace_rate": ("rate", partial(_number, 1)),
    "trace_count": ("count", partial(_number, -1)),
    "log_frequency": ("frequency", partial(_number, 0)),
}

# -- files ------------------------------------------------------------------------------------------------------------

_FILE_BYTES = 32 << 20
_FOLDER_BYTES = 256 << 20
_FILES = 1000
_ELEMENTS = 4096  # the most elements of a tensor that are written
_END = b"\n]\n"


class _Tensor(msgspec.Struct, frozen=True):
    """A tensor of a traced request, with the start of its raw contents."""

    activity: str
    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes


class TraceRecord(msgspec.Struct, frozen=True):
    """A traced request. `stamps` are names of steps with nanoseconds of the monotonic clock. `parent` is the number of
    the ensemble's trace if the request is a step of an ensemble, otherwise 0."""

    number: int
    model: str
    version: str
    request: str
    stamps: tuple[tuple[str, int], ...]
    tensors: tuple[_Tensor, ...]
    parent: int = 0


@dataclass
class _File:
    """A file that is being written: its index (`file.<index>`), its number of traces, and its size in bytes."""

    index: int = 0
    traces: int = 0
    size: int = 0


class TraceFiles:
    """The trace files of one folder. The first trace creates the folder. Use this class from one thread. Only `restart`
    may be called from another thread."""

    def __init__(self, folder: Path, file_bytes: int = _FILE_BYTES, folder_bytes: int = _FOLDER_BYTES) -> None:
        self._folder, self._file_bytes, self._folder_bytes = folder, file_bytes, folder_bytes
        self._files: dict[str, _File] = {}
        self._has_warned = False

    def restart(self, name: str) -> None:
        """Make the next trace overwrite the file, or start again at `file.0`."""
        self._files.pop(name, None)
        self._has_warned = False

    def write(self, records: Sequence[tuple[TraceSettings, TraceRecord]]) -> None:
        """Append traces to their files. Only the first failure is logged."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o750)
            sizes = {entry.name: entry.stat(follow_symlinks=False).st_size for entry in os.scandir(self._folder)}
            for settings, record in records:
                self._add(settings, record, sizes)
        except OSError as error:
            self._warn(f"traces are lost: cannot write to {self._folder}: {error.strerror or error}")

    def _add(self, settings: TraceSettings, record: TraceRecord, sizes: dict[str, int]) -> None:
        file = self._files.setdefault(settings.file, _File())
        name = f"{settings.file}.{file.index}" if settings.frequency else settings.file
        text = ",\n".join(json.dumps(entry) for entry in _entries(record)).encode()
        if sizes.get(name) != file.size:  # the file is new, was removed, or was written by another process
            file.size = 0
        size = file.size + len(text) + len(_END)
        others = sum(sizes.values()) - sizes.get(name, 0)
        if size > self._file_bytes:
            full = f"{self._folder / name} has reached {self._file_bytes >> 20} MiB"
            self._warn(f"traces are dropped: {full}; set another trace_file, or delete the file")
            return
        if others + size > self._folder_bytes or len({*sizes, name}) > _FILES:
            full = f"{self._folder} has reached {self._folder_bytes >> 20} MiB or {_FILES} files"
            self._warn(f"traces are dropped: {full}; delete files there")
            return
        sizes[name] = file.size = _append(self._folder / name, text, file.size)
        file.traces += 1
        if settings.frequency and file.traces >= settings.frequency:
            self._files[settings.file] = _File(file.index + 1)

    def _warn(self, message: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            _LOG.warning("%s", message)


def _append(path: Path, text: bytes, size: int) -> int:
    """Insert a trace before the bracket that ends the JSON array, or start the file if `size` is 0; never follow a
    symbolic link. Return the new size."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | (0 if size else os.O_TRUNC)
    with os.fdopen(os.open(path, flags, 0o640), "r+b") as file:
        file.seek(max(0, size - len(_END)))
        file.write((b",\n" if size else b"[\n") + text + _END)
        return file.tell()


def _entries(record: TraceRecord) -> Iterator[dict[str, object]]:
    version = int(record.version) if record.version.isdecimal() else -1
    head: dict[str, object] = {"id": record.number, "model_name": record.model, "model_version": version}
    more = {"request_id": record.request, "parent_id": record.parent}
    yield head | {name: value for name, value in more.items() if value}
    for tensor in record.tensors:
        shape = ",".join(map(str, tensor.shape))
        shown = {"name": tensor.name, "data": _values(tensor), "shape": shape, "dtype": tensor.datatype}
        yield {"id": record.number, "activity": tensor.activity, "tensor": shown}
    if record.stamps:
        yield {"id": record.number, "timestamps": [{"name": name, "ns": ns} for name, ns in record.stamps]}


def _values(tensor: _Tensor) -> str:
    """Return the first elements as text: decimal numbers, or the strings whose bytes are complete."""
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


# -- requests ---------------------------------------------------------------------------------------------------------

_WRITE_SECONDS = 0.2  # traces are collected for this long and written together
_WAITING = 1000  # the most traces that wait to be written; more are dropped
_KEPT = 64 << 10  # bytes of a tensor that are kept


@dataclass(slots=True)
class Trace:
    """A request that is being traced."""

    owner: Tracing
    settings: TraceSettings
    number: int
    model: str
    version: str
    request: str
    parent: int = 0
    started: int = field(default_factory=time.monotonic_ns)

    def child(self, model: str, version: str) -> Trace:
        """Begin the trace of a step of the traced ensemble."""
        return Trace(self.owner, self.settings, self.owner.number(), model, version, self.request, self.number)

    def end_ensemble(self, received: float, inputs: Sequence[InputTensor], outputs: Sequence[OutputTensor]) -> None:
        """End the trace of an ensemble's request, which arrived at `received` in seconds of time.monotonic(). The times
        of the steps are in the traces of the steps."""
        self._take([("QUEUE_START", round(received * 1e9))], inputs, outputs)

    def end(self, work: TensorWork, answer: Answered | None) -> None:
        """End the trace; `answer` is None if the request failed or its client disconnected.

        The durations of the steps are those that the model's statistics count for this request.
        """
        self._take(_steps(work, answer), work.inputs, answer.outputs if answer is not None else ())

    def _take(
        self, steps: list[tuple[str, int]], inputs: Sequence[InputTensor], outputs: Sequence[OutputTensor]
    ) -> None:
        ended = time.monotonic_ns()
        stamps: list[tuple[str, int]] = []
        if _TIMESTAMPS in self.settings.levels:
            started = min(self.started, steps[0][1])  # the work may have been created before the trace
            stamps = [("REQUEST_START", started), *steps, ("REQUEST_END", ended)]
        tensors: list[_Tensor] = []
        if _TENSORS in self.settings.levels:
            tensors = [_tensor("TENSOR_QUEUE_INPUT", tensor) for tensor in inputs]
            tensors += [_tensor("TENSOR_BACKEND_OUTPUT", tensor) for tensor in outputs]
        head = self.number, self.model, self.version, self.request
        self.owner.take(self.settings, TraceRecord(*head, tuple(stamps), tuple(tensors), self.parent))


class _Scope:
    """The settings of one model, or of all models without own settings, and the number of requests left to trace."""

    def __init__(self) -> None:
        self.given: Given = {}
        self.settings = TraceSettings()
        self.left, self.seen = self.settings.count, 0

    def picks(self) -> bool:
        """Count a request; return whether to trace it."""
        if not self.left or not self.settings.levels:
            return False
        self.seen += 1
        if self.seen % self.settings.rate:
            return False
        self.left -= self.left > 0
        return True

    def change(self, base: TraceSettings, is_count_set: bool) -> None:
        """Use the settings that were given for this scope, and for all other settings the values of `base`. If the
        count was set or has changed, counting starts again."""
        settings = msgspec.structs.replace(base, **self.given)
        if is_count_set or settings.count != self.settings.count:
            self.left = settings.count
        if settings.rate != self.settings.rate:
            self.seen = 0
        self.settings = settings


class Tracing:
    """Traces requests into files of one folder. Use it on the event loop; a thread writes the files."""

    def __init__(self, folder: Path) -> None:
        self.is_on = False  # read for every request
        self._files = TraceFiles(folder)
        self._all = _Scope()
        self._own: dict[str, _Scope] = {}  # by model
        self._numbers = itertools.count(1)
        self._waiting: list[tuple[TraceSettings, TraceRecord]] = []
        self._dropped = 0
        self._timer: asyncio.TimerHandle | None = None
        self._writer: ThreadPoolExecutor | None = None

    def begin(self, model: str, version: str, request: str) -> Trace | None:
        """Begin the trace of a new request; None if the request is not to be traced."""
        if not self.is_on:
            return None
        scope = self._own.get(model, self._all)
        if not scope.picks():
            return None
        return Trace(self, scope.settings, self.number(), model, version, request)

    def number(self) -> int:
        """Return the number of a new trace."""
        return next(self._numbers)

    def settings(self, model: str = "") -> TraceSettings:
        """Return the settings of a model, or the common settings if it has none. `count` is how many requests are left
        to trace."""
        scope = self._own.get(model, self._all)
        return msgspec.structs.replace(scope.settings, count=scope.left)

    def change(self, values: Mapping[str, Sequence[str]], model: str = "") -> None:
        """Change the settings of one model or of all models. `values` is as in `read`: a setting without values is
        removed. Raises InvalidInput if a setting is unknown or invalid."""
        changed = self._own.get(model, _Scope()) if model else self._all
        changed.given = read(values, changed.given)
        if model and changed.given:
            self._own[model] = changed
        elif model:
            self._own.pop(model, None)
        is_count_set = "trace_count" in values
        self._all.change(TraceSettings(), is_count_set and not model)
        for name, own in self._own.items():
            is_affected = name == model or (not model and "count" not in own.given)
            own.change(self._all.settings, is_count_set and is_affected)
        if "trace_file" in values:
            self._files.restart(self.settings(model).file)
        every = (self._all.settings, *(own.settings for own in self._own.values()))
        self.is_on = any(settings.levels and settings.count for settings in every)

    def take(self, settings: TraceSettings, record: TraceRecord) -> None:
        """Queue a trace to be written."""
        if len(self._waiting) >= _WAITING:
            self._dropped += 1
            return
        self._waiting.append((settings, record))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_WRITE_SECONDS, self._write)

    async def close(self) -> None:
        """Write the waiting traces and end the thread."""
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
            _LOG.warning(
                "%d traces were dropped, because the disk is too slow; raise trace_rate to trace fewer requests",
                self._dropped,
            )
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


def _tensor(activity: str, tensor: InputTensor | OutputTensor) -> _Tensor:
    """Return a tensor with the start of its data. Data in the client's shared memory is left out, because the client
    may have overwritten it."""
    data = bytes(memoryview(tensor.data)[:_KEPT]) if isinstance(tensor.data, bytes | memoryview) else b""
    shape = tuple(size if isinstance(size, int) else -1 for size in tensor.shape)
    return _Tensor(activity, tensor.name, tensor.datatype, shape, data)
