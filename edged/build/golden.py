"""Golden inputs: seeded tensors that fit a model's signature, several kinds, so that drift has somewhere to show.

A kind that the reference itself cannot run (indices out of range, say) is left out; at least one must remain.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from edged.backend.contract import Session, Signature
from edged.errors import BuildFailed, EngineUnusable, InvalidInput
from edged.files import read_regular
from edged.store import atomic
from edged.tensors import Array, TensorSpec, numpy_dtype

_SEED = 20240229
_DIGEST_BYTES = 32  # of SHA-256, before the content
# Sizes tried for dynamic dimensions other than the first, in this order, until the reference takes one.
_SIZES = (64, 224, 32, 16, 8, 4, 2, 1)
_KINDS = ("unit", "normal", "wide")
_LARGEST = 1 << 28  # elements of one golden input


class Sample(msgspec.Struct, frozen=True):
    """One golden question with the reference's answer."""

    inputs: dict[str, Array]
    outputs: dict[str, Array]


def make(session: Session, signature: Signature, picture: tuple[int, int] | None) -> list[Sample]:
    """Asks the reference every kind of question. EngineUnusable, with its first reason, when it answers none."""
    first_error: EngineUnusable | None = None
    for shapes in _shapes(signature, picture):
        samples = []
        for kind in _KINDS:
            inputs = {s.name: _values(s.datatype, shapes[s.name], kind) for s in signature.inputs}
            try:
                answer, again = _copy(session.infer(inputs)), _copy(session.infer(inputs))
            except (EngineUnusable, InvalidInput) as error:
                first_error = first_error or EngineUnusable(str(error))
                continue
            samples.append(Sample(inputs, {name: a for name, a in answer.items() if _same(a, again[name])}))
        if samples:
            return samples
    raise first_error or EngineUnusable("no golden input fits the model's declared shapes")


def save(path: Path, samples: list[Sample]) -> None:
    """Keeps samples in one file, atomically: per array a name, dtype, shape and bytes."""
    packed = [[_pack(sample.inputs), _pack(sample.outputs)] for sample in samples]
    path.parent.mkdir(parents=True, exist_ok=True)
    body = msgspec.msgpack.encode(packed)
    atomic.write_file(path, hashlib.sha256(body).digest() + body)


def load(path: Path) -> list[Sample]:
    """Reads what `save` wrote. BuildFailed when it is missing or damaged, and it is removed so as to be made anew."""
    try:
        content = read_regular(path)
        body = content[_DIGEST_BYTES:]
        if hashlib.sha256(body).digest() != content[:_DIGEST_BYTES]:
            raise ValueError("it was altered on disk")
        packed = msgspec.msgpack.decode(body, type=list[list[dict[str, _Packed]]])
        return [Sample(*({n: p.array() for n, p in side.items()} for side in sides)) for sides in packed]
    except (OSError, ValueError, TypeError) as error:
        path.unlink(missing_ok=True)
        raise BuildFailed(f"golden answers {path.name} cannot be read and will be made anew: {error}") from error


class _Packed(msgspec.Struct, frozen=True, array_like=True):
    dtype: str
    shape: tuple[int, ...]
    data: bytes
    texts: list[bytes]

    def array(self) -> Array:
        if self.dtype == "object":
            return np.array(self.texts, dtype=np.object_).reshape(self.shape)
        return np.frombuffer(self.data, dtype=self.dtype).reshape(self.shape)


def _pack(arrays: dict[str, Array]) -> dict[str, _Packed]:
    packed = {}
    for name, array in arrays.items():
        if array.dtype == np.object_:
            packed[name] = _Packed("object", array.shape, b"", array.ravel().tolist())
        else:
            packed[name] = _Packed(array.dtype.str, array.shape, array.tobytes(), [])
    return packed


def _shapes(signature: Signature, picture: tuple[int, int] | None) -> Iterator[dict[str, tuple[int, ...]]]:
    """Concrete shapes to try: a leading dynamic dimension is a batch of one; equal names get equal sizes."""
    pictures = [picture] if picture else []
    for width, height in [*pictures, *((size, size) for size in _SIZES)]:
        named: dict[str, int] = {}
        shapes = {s.name: _shape(s, width, height, named) for s in signature.inputs}
        if all(np.prod(shape, dtype=np.float64) <= _LARGEST for shape in shapes.values()):
            yield shapes
        if all(spec.is_static for spec in signature.inputs):
            return


def _shape(spec: TensorSpec, width: int, height: int, named: dict[str, int]) -> tuple[int, ...]:
    """Sizes for one input. `named` remembers what a dimension's name stands for, over all inputs."""
    rank = len(spec.shape)
    rows = None if rank != 4 else 1 if spec.shape[-1] in (1, 3) else 2  # where a picture's height is
    sizes = []
    for axis, dim in enumerate(spec.shape):
        if isinstance(dim, int):
            sizes.append(dim)
            continue
        size = 1 if axis == 0 else height if axis == rows else width
        sizes.append(size if dim == "?" else named.setdefault(dim, size))
    return tuple(sizes)


def _values(datatype: str, shape: tuple[int, ...], kind: str) -> Array:
    random = np.random.default_rng([_SEED, _KINDS.index(kind)])
    dtype = numpy_dtype(datatype)
    if datatype == "BYTES":
        words = [b"edged", b"", "Größe".encode(), b"0", b"a b"]
        return np.array(random.choice(np.array(words, np.object_), size=shape), dtype=np.object_).reshape(shape)
    if datatype == "BF16":  # the upper half of a float32
        return np.asarray(_floats(random, shape, kind).view(np.uint32) >> 16, dtype=np.uint16).reshape(shape)
    if dtype.kind == "b":
        return np.asarray(random.integers(0, 2, size=shape), dtype=dtype)
    if dtype.kind in "iu":
        bounds = np.iinfo(datatype.lower())
        low, high = {"unit": (0, 1), "normal": (0, 8), "wide": (bounds.min, bounds.max)}[kind]
        if datatype == "UINT8" and kind != "normal":
            low, high = 0, 255  # a picture
        return np.asarray(random.integers(low, high, size=shape, dtype=dtype, endpoint=True))
    return np.asarray(_floats(random, shape, kind), dtype=dtype).reshape(shape)


def _floats(random: np.random.Generator, shape: tuple[int, ...], kind: str) -> np.typing.NDArray[np.float32]:
    if kind == "unit":
        return np.asarray(random.random(shape), dtype=np.float32)
    return np.asarray(random.standard_normal(shape) * (1 if kind == "normal" else 64), dtype=np.float32)


def _same(one: Array, other: Array) -> bool:
    """Whether two runs of the reference agree; an output that is random by design cannot be compared with anything."""
    if one.shape != other.shape:
        return False
    if one.dtype.kind != "f":
        return bool(np.array_equal(one, other))
    return bool(np.allclose(one, other, rtol=1e-3, atol=1e-5, equal_nan=True))


def _copy(arrays: dict[str, Array]) -> dict[str, Array]:
    return {name: array.copy() for name, array in arrays.items()}
