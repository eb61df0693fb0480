"""The inputs of a sequence's request that no client sends: what the model kept, and what it is told of the sequence."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from edged.api.inference.parameters import Options, SequenceId
from edged.api.inference.sequences import Kept
from edged.api.inference.sequences import State as KeptState
from edged.backends.contract import Signature
from edged.errors import InvalidInput, InvalidTensor, NotReady
from edged.files import read_inside, status_inside
from edged.models.sequencing import Sequencing
from edged.models.triton_config import STATE_FOLDER, Control, State
from edged.serving.work import InputTensor
from edged.tensors import ANY_SHAPE, TensorSpec, byte_size, numpy_dtype

_MOST_ELEMENTS = 1 << 25  # of a tensor that is made up


def filled(
    plan: Sequencing,
    signature: Signature,
    folder: Path,
    options: Options,
    given: Sequence[InputTensor],
    state: KeptState | None,
) -> tuple[InputTensor, ...]:
    """States as they were kept, or as a sequence begins with, and controls.

    Open dimensions are as large as those of the same name in the `given` inputs, otherwise as the batch of these.
    `folder` is the model's, where files of initial states are.
    """
    specs = {spec.name: spec for spec in signature.inputs}
    sizes = _Sizes(signature, given)
    tensors = []
    for each in plan.states:
        spec = specs[each.input]
        kept = state[each.input] if state is not None else _initial(each, spec, sizes, folder)
        tensors.append(InputTensor(spec.name, spec.datatype, kept.shape, kept.data))
    for control in plan.controls:
        tensors.append(_control(control, specs[control.input], sizes, options))
    return tuple(tensors)


def reads_disk(plan: Sequencing, state: KeptState | None) -> bool:
    """Whether `filled` reads files: the first request of a sequence may begin with a state from one."""
    return state is None and any(each.initial_file for each in plan.states)


class _Sizes:
    """How large open dimensions are in a request."""

    def __init__(self, signature: Signature, given: Sequence[InputTensor]) -> None:
        specs = {spec.name: spec for spec in signature.inputs}
        self._named: dict[str, int] = {}
        for tensor in given:
            for dim, size in zip(specs[tensor.name].shape, tensor.shape, strict=False):
                if isinstance(dim, str) and dim != "?":
                    self._named.setdefault(dim, size)
        self._batch = next((tensor.shape[0] for tensor in given if tensor.shape), 1)

    def shape(self, spec: TensorSpec, said: Sequence[int] = ()) -> tuple[int, ...]:
        """`said` is what a configuration says of it, perhaps without the batch, -1 where it says nothing."""
        dims = spec.shape if spec.shape != ANY_SHAPE else tuple("?" for _ in said)
        hints = [-1] * (len(dims) - len(said)) + list(said) if len(said) <= len(dims) else [-1] * len(dims)
        shape = tuple(
            dim if isinstance(dim, int) else hint if hint >= 0 else self._named.get(dim, self._batch)
            for dim, hint in zip(dims, hints, strict=True)
        )
        if math.prod(shape) > _MOST_ELEMENTS:
            raise InvalidTensor(f"input {spec.name!r} of the sequence would be {list(shape)}; send a smaller batch")
        return shape


def _initial(state: State, spec: TensorSpec, sizes: _Sizes, folder: Path) -> Kept:
    shape = sizes.shape(spec, state.initial_dims or state.dims)
    if not state.initial_file:
        return Kept(shape, bytes(4 * math.prod(shape) if spec.datatype == "BYTES" else byte_size(spec.datatype, shape)))
    data = _file(folder, PurePosixPath(STATE_FOLDER, state.initial_file))
    if spec.datatype != "BYTES" and len(data) != byte_size(spec.datatype, shape):
        raise InvalidInput(
            f"the initial state {state.initial_file!r} has {len(data)} bytes,"
            f" {spec.datatype}{list(shape)} of input {spec.name!r} takes {byte_size(spec.datatype, shape)}"
        )
    return Kept(shape, data)


def _file(folder: Path, path: PurePosixPath) -> bytes:
    try:
        status = status_inside(folder, path)
        return _contents(folder, path, status.st_mtime_ns, status.st_size)
    except OSError as error:
        raise NotReady(f"the initial state {path.name!r} cannot be read: {error.strerror or error}") from None


@functools.lru_cache(maxsize=32)
def _contents(folder: Path, path: PurePosixPath, changed: int, size: int) -> bytes:
    """A file as it was when it had this time and size."""
    return read_inside(folder, path)


def _control(control: Control, spec: TensorSpec, sizes: _Sizes, options: Options) -> InputTensor:
    shape = sizes.shape(spec)
    if control.kind == "corrid":
        return InputTensor(spec.name, spec.datatype, shape, _identifier(options.sequence, spec, shape))
    said = {"start": options.starts, "end": options.ends, "ready": True}[control.kind]
    value = control.false_true[said]
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
            f"sequence_id {str(sequence)[:60]!r} does not fit input {spec.name!r}, which takes it as {spec.datatype}"
        )
    return np.full(shape, sequence, dtype).tobytes()
