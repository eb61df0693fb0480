"""The state of sequences: tensors that a model keeps between requests. The daemon holds the state, so the state
survives the end of a host.

A request with the parameter `sequence_start` starts a sequence. A request with `sequence_end` ends the sequence. A
sequence also ends if it is idle for longer than its model allows. Requests of a sequence run one after the other, in
order of arrival. A failed request leaves the state unchanged.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import struct
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np

from edged.api.inference.requests import Options, SequenceId
from edged.backends.contract import Signature
from edged.errors import DeadlineExceeded, InvalidInput, InvalidTensor, NotReady, Overloaded
from edged.files import read_inside, status_inside
from edged.models.sequencing import Sequencing
from edged.models.triton_config import STATE_FOLDER, Control, State
from edged.serving.work import InputTensor
from edged.tensors import ANY_SHAPE, TensorSpec, byte_size, numpy_dtype

_MOST = 4096
_MOST_BYTES = 256 << 20
_MOST_HELD = 64  # limit of unanswered requests of one sequence: as many as may wait for an engine


class StateTensor(msgspec.Struct, frozen=True):
    """A state tensor: raw contents and shape."""

    shape: tuple[int, ...]
    data: bytes


# State tensors, by the name of the input that gets them in the next request.
StateTensors: TypeAlias = Mapping[str, StateTensor]


class _FifoLock:
    """A lock with deadlines, granted in order of arrival. A waiter whose deadline passes does not affect the others."""

    def __init__(self) -> None:
        self._taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def acquire(self, expires: float) -> None:
        """Take the lock. Raises DeadlineExceeded if others hold the lock until `expires`, in monotonic seconds."""
        if not self._taken:
            self._taken = True
            return
        loop = asyncio.get_running_loop()
        place: asyncio.Future[None] = loop.create_future()
        self._waiting.append(place)
        wait = expires - time.monotonic()
        timer = loop.call_later(max(0.0, wait), _time_out, place) if wait < math.inf else None
        try:
            await place
        except BaseException:
            if place in self._waiting:
                self._waiting.remove(place)
            elif not place.cancelled() and place.exception() is None:
                self.release()  # cancelled just after it got the lock
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def release(self) -> None:
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._taken = False


def _time_out(place: asyncio.Future[None]) -> None:
    if not place.done():
        place.set_exception(DeadlineExceeded("the deadline passed while earlier requests of the sequence ran"))


class _Sequence:
    __slots__ = ("holders", "idle", "lock", "size", "state", "used")

    def __init__(self, idle: float, now: float) -> None:
        self.idle, self.used = idle, now
        self.state: StateTensors | None = None  # None until the first request is answered
        self.size = self.holders = 0
        self.lock = _FifoLock()

    def is_over(self, now: float) -> bool:
        return not self.holders and (self.state is None or now - self.used >= self.idle)


class Turn(NamedTuple):
    """The turn of a request in its sequence. `state` is None for the first request of a sequence. `commit` stores the
    state after the request. `commit` raises Overloaded if all states together would be too large."""

    state: StateTensors | None
    commit: Callable[[StateTensors], None]


class Sequences:
    """The sequences of all models, and the bytes of their states, for one event loop."""

    def __init__(
        self, most: int = _MOST, most_bytes: int = _MOST_BYTES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self._most_bytes, self._clock = most, most_bytes, clock
        self._sequences: dict[tuple[Hashable, SequenceId], _Sequence] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.size = 0  # bytes of all states

    def __len__(self) -> int:
        return len(self._sequences)

    @contextlib.asynccontextmanager
    async def turn(self, of: Hashable, options: Options, idle: float, expires: float) -> AsyncIterator[Turn]:
        """Wait for earlier requests of the same sequence, and yield the turn. `of` identifies client and model: clients
        cannot use each other's sequences. Raises InvalidInput if the sequence was not started. Raises DeadlineExceeded
        if earlier requests run until `expires`. Raises Overloaded if there are too many sequences, or if too many
        requests of this sequence wait."""
        key = (of, options.sequence)
        sequence = self._arrive(key, options, idle)
        try:
            await sequence.lock.acquire(expires)
            try:
                if sequence.state is None and not options.starts:
                    raise _unknown(options.sequence)
                state = None if options.starts else sequence.state
                yield Turn(state, lambda after: self._commit(sequence, after, options.ends))
            finally:
                sequence.lock.release()
        finally:
            sequence.holders -= 1
            sequence.used = self._clock()
            if sequence.is_over(sequence.used):
                self._remove(key)
            if self._timer is None:
                self._sweep()

    def expire(self) -> float | None:
        """Forget idle sequences. Return when to check again, in seconds of the clock; None if no sequence is left."""
        now = self._clock()
        for key in [key for key, sequence in self._sequences.items() if sequence.is_over(now)]:
            self._remove(key)
        sequences = self._sequences.values()
        return min(((now if each.holders else each.used) + each.idle for each in sequences), default=None)

    def close(self) -> None:
        """Stop checking for idle sequences."""
        if self._timer is not None:
            self._timer.cancel()

    def _arrive(self, key: tuple[Hashable, SequenceId], options: Options, idle: float) -> _Sequence:
        """Return the sequence of a new request; start the sequence if the request asks for that."""
        now, sequence = self._clock(), self._sequences.get(key)
        if sequence is not None and sequence.is_over(now):
            self._remove(key)
            sequence = None
        if sequence is None:
            if not options.starts:
                raise _unknown(options.sequence)
            if len(self._sequences) >= self._most:
                self.expire()
            if len(self._sequences) >= self._most:
                raise Overloaded(f"{self._most} sequences are in progress; end some of them first")
            sequence = self._sequences[key] = _Sequence(idle, now)
        if sequence.holders >= _MOST_HELD:
            raise Overloaded(f"{_MOST_HELD} requests of this sequence are already waiting; send fewer at a time")
        sequence.holders += 1
        return sequence

    def _commit(self, sequence: _Sequence, state: StateTensors, ends: bool) -> None:
        size = 0 if ends else sum(len(tensor.data) for tensor in state.values())
        if size > sequence.size and self.size - sequence.size + size > self._most_bytes:
            raise Overloaded(f"states of sequences would exceed {self._most_bytes >> 20} MiB; end some sequences first")
        self.size += size - sequence.size
        sequence.state, sequence.size = None if ends else state, size

    def _remove(self, key: tuple[Hashable, SequenceId]) -> None:
        self.size -= self._sequences.pop(key).size

    def _sweep(self) -> None:
        """Forget idle sequences, and schedule the next check for the time when another sequence may be idle."""
        again, loop = self.expire(), asyncio.get_running_loop()
        self._timer = None if again is None else loop.call_later(max(0.05, again - self._clock()), self._sweep)


def _unknown(identifier: SequenceId) -> InvalidInput:
    return InvalidInput(
        f"sequence {str(identifier)[:60]!r} was not started, has ended or was idle too long;"
        " set 'sequence_start' in its first request"
    )


_MOST_ELEMENTS = 1 << 25  # limit of elements of a tensor that edged fills in


def filled(
    plan: Sequencing,
    signature: Signature,
    folder: Path,
    options: Options,
    given: Sequence[InputTensor],
    state: StateTensors | None,
) -> tuple[InputTensor, ...]:
    """Return the inputs that edged fills in: states and controls.

    A dynamic dimension gets the size of the dimension with the same name in the `given` inputs, otherwise the batch
    size. `folder` is the model's folder, which has the files of initial states.
    """
    specs = {spec.name: spec for spec in signature.inputs}
    sizes = _Sizes(signature, given)
    tensors = []
    for each in plan.states:
        spec = specs[each.input]
        tensor = state[each.input] if state is not None else _initial(each, spec, sizes, folder)
        tensors.append(InputTensor(spec.name, spec.datatype, tensor.shape, tensor.data))
    for control in plan.controls:
        tensors.append(_control(control, specs[control.input], sizes, options))
    return tuple(tensors)


def reads_disk(plan: Sequencing, state: StateTensors | None) -> bool:
    """Whether `filled` reads files: the first request of a sequence may get its initial state from a file."""
    return state is None and any(each.initial_file for each in plan.states)


class _Sizes:
    """The sizes of dynamic dimensions in a request."""

    def __init__(self, signature: Signature, given: Sequence[InputTensor]) -> None:
        specs = {spec.name: spec for spec in signature.inputs}
        known = [tensor for tensor in given if tensor.name in specs]  # without optional inputs
        self._named: dict[str, int] = {}
        for tensor in known:
            for dim, size in zip(specs[tensor.name].shape, tensor.shape, strict=False):
                if isinstance(dim, str) and dim != "?":
                    self._named.setdefault(dim, size)
        self._batch = next((tensor.shape[0] for tensor in known if tensor.shape), 1)

    def shape(self, spec: TensorSpec, configured: Sequence[int] = ()) -> tuple[int, ...]:
        """Return the shape of an input. `configured` is the input's configured shape, with -1 for unknown sizes, and
        perhaps without the batch dimension. Raises InvalidTensor for too many elements."""
        dims = spec.shape if spec.shape != ANY_SHAPE else tuple("?" for _ in configured)
        unknown = len(dims) - len(configured)
        hints = [-1] * unknown + list(configured) if unknown >= 0 else [-1] * len(dims)
        shape = tuple(
            dim if isinstance(dim, int) else hint if hint >= 0 else self._named.get(dim, self._batch)
            for dim, hint in zip(dims, hints, strict=True)
        )
        if math.prod(shape) > _MOST_ELEMENTS:
            raise InvalidTensor(
                f"input {spec.name!r} of the sequence would have the shape {list(shape)}, more than {_MOST_ELEMENTS}"
                " elements; send a smaller batch"
            )
        return shape


def _initial(state: State, spec: TensorSpec, sizes: _Sizes, folder: Path) -> StateTensor:
    shape = sizes.shape(spec, state.initial_dims or state.dims)
    if not state.initial_file:
        return StateTensor(
            shape, bytes(4 * math.prod(shape) if spec.datatype == "BYTES" else byte_size(spec.datatype, shape))
        )
    data = _file(folder, PurePosixPath(STATE_FOLDER, state.initial_file))
    if spec.datatype != "BYTES" and len(data) != byte_size(spec.datatype, shape):
        raise InvalidInput(
            f"the initial state {state.initial_file!r} has {len(data)} bytes, but"
            f" {spec.datatype}{list(shape)} of input {spec.name!r} needs {byte_size(spec.datatype, shape)}"
        )
    return StateTensor(shape, data)


def _file(folder: Path, path: PurePosixPath) -> bytes:
    try:
        status = status_inside(folder, path)
        return _contents(folder, path, status.st_mtime_ns, status.st_size)
    except OSError as error:
        raise NotReady(f"the initial state {path.name!r} cannot be read: {error.strerror or error}") from None


@functools.lru_cache(maxsize=32)
def _contents(folder: Path, path: PurePosixPath, changed: int, size: int) -> bytes:
    """Return the bytes of a file, cached by its modification time and size."""
    return read_inside(folder, path)


def _control(control: Control, spec: TensorSpec, sizes: _Sizes, options: Options) -> InputTensor:
    shape = sizes.shape(spec)
    if control.kind == "corrid":
        return InputTensor(spec.name, spec.datatype, shape, _identifier(options.sequence, spec, shape))
    flag = {"start": options.starts, "end": options.ends, "ready": True}[control.kind]
    value = control.false_true[flag]
    return InputTensor(spec.name, spec.datatype, shape, np.full(shape, value, numpy_dtype(spec.datatype)).tobytes())


def _identifier(sequence: SequenceId, spec: TensorSpec, shape: tuple[int, ...]) -> bytes:
    if spec.datatype == "BYTES":
        text = str(sequence).encode()
        return (struct.pack("<I", len(text)) + text) * math.prod(shape)
    dtype = numpy_dtype(spec.datatype)
    is_signed, bits = dtype.kind == "i", 8 * dtype.itemsize - (dtype.kind == "i")
    fits = isinstance(sequence, int) and -(is_signed << bits) <= sequence < 1 << bits
    if dtype.kind not in "iu" or not fits:
        raise InvalidTensor(
            f"'sequence_id' {str(sequence)[:60]!r} does not fit input {spec.name!r}, which is {spec.datatype}"
        )
    return np.full(shape, sequence, dtype).tobytes()
