"""A backend without a runtime: its answers are computed from the input bytes.

With this backend, all code that uses backends can be tested without a runtime and a device. Every float output is the
mean of the bytes of all inputs, except text. Every other output is zero, or empty for text. Dynamic dimensions become
1. The recipe's `threads` is the number of milliseconds that one inference takes. If the recipe has a range of shapes, a
session refuses inputs outside this range, like an engine that is compiled for a range.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from edged.backends.contract import Backend, Composition, Graphs, Nodes, Order, Session
from edged.backends.profile import Profile
from edged.errors import EngineUnusable, InvalidTensor
from edged.tensors import Array, TensorSpec, numpy_dtype
from edged.version import __version__

_BLOB = "engine.null"


class _NullSession:
    def __init__(self, order: Order) -> None:
        self._outputs = order.signature.outputs
        self._seconds = order.recipe.threads / 1000
        self._profile = Profile.parse(order.recipe.profile)

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        for name, array in inputs.items():
            if not self._profile.contains(name, array.shape):
                raise InvalidTensor(f"input {name!r} has shape {list(array.shape)}, outside the engine's shape range")
        if self._seconds:
            time.sleep(self._seconds)
        views = [np.frombuffer(array.data, np.uint8) for array in inputs.values() if array.dtype != np.object_]
        total, count = sum(int(v.sum(dtype=np.int64)) for v in views), sum(v.size for v in views)
        mean = total / count if count else 0.0
        answers = {spec.name: self._answer(spec, mean) for spec in self._outputs}
        return {name: answers[name] for name in outputs or answers}

    def nodes(self) -> Nodes:
        return {_Null.name: {}}

    def close(self) -> None:
        pass

    @staticmethod
    def _answer(spec: TensorSpec, mean: float) -> Array:
        shape = tuple(max(d, 1) if d != 0 else 0 for d in spec.dims)
        dtype = numpy_dtype(spec.datatype)
        if dtype == np.object_:
            return np.full(shape, b"", dtype=np.object_)
        return np.full(shape, mean if dtype.kind == "f" else 0, dtype=dtype)


class _Null:
    name = "null"
    converted_in_graph: frozenset[str] = frozenset()

    def version(self) -> str:
        return __version__

    def build(
        self, order: Order, out: Path, report: Callable[[float], None], graphs: Callable[[], Graphs]
    ) -> Composition:
        self.check(Path(order.model))
        (out / _BLOB).write_bytes(order.recipe.optimization.encode())
        return Composition()

    def open(self, order: Order) -> Session:
        if order.artefact is not None:
            order.artefact.load(_BLOB)
        return _NullSession(order)

    def operators(self) -> None:
        return None

    def trial(self, order: Order) -> None:
        self.check(Path(order.model))

    def check(self, model: Path) -> None:
        if not model.is_file():
            raise EngineUnusable(f"{model.name} is not a file")


BACKEND: Backend = _Null()
