"""Traces of single requests: which are traced, and when each reached which step."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from edged.serving import trace_settings
from edged.serving.trace_file import Tensor, TraceFiles, TraceRecord
from edged.serving.trace_settings import Changes, TraceSettings
from edged.serving.work import Answered, InputTensor, OutputTensor, TensorWork

_LOG = logging.getLogger("edged.trace")
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
        """The request is over, without an answer where it failed or its client went away.

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
        """Counts from the start with `renew`, or where the count is another one."""
        if renew or settings.count != self.settings.count:
            self.left = settings.count
        if settings.rate != self.settings.rate:
            self.seen = 0
        self.settings = settings


class Tracing:
    """Traces requests as it is set, into files of one folder. Used on the event loop; files are written beside it."""

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
