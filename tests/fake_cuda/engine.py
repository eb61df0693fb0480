"""A small engine with TensorRT's methods. Each output is 2 * x + 1 of the first input, computed by the stand-in."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.fake_cuda.control import Control

Shape = tuple[int, ...]


class FakeEngine:
    """`tensors` maps a name to its mode, TensorRT's name of its dtype, and its shape with -1 for open dimensions.
    `profiles` has for each profile the smallest, usual and largest shape of each open input.
    """

    def __init__(
        self,
        control: Control,
        tensors: dict[str, tuple[str, str, Shape]],
        profiles: Sequence[dict[str, tuple[Shape, Shape, Shape]]] = ({},),
        compute_us: int = 0,
    ) -> None:
        self.control, self.tensors, self.profiles, self.compute_us = control, tensors, profiles, compute_us
        self.contexts: list[FakeContext] = []
        self.makes_contexts = True
        self.num_io_tensors = len(tensors)
        self.num_optimization_profiles = len(profiles)

    def get_tensor_name(self, index: int) -> str:
        return list(self.tensors)[index]

    def get_tensor_mode(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(name=self.tensors[name][0])

    def get_tensor_dtype(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(name=self.tensors[name][1])

    def get_tensor_shape(self, name: str) -> Shape:
        return self.tensors[name][2]

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[Shape]:
        return list(self.profiles[profile_index][name])

    def create_execution_context(self) -> FakeContext | None:
        if not self.makes_contexts:
            return None
        self.contexts.append(FakeContext(self))
        return self.contexts[-1]

    @property
    def runs(self) -> int:
        """How often an execution was submitted or captured."""
        return sum(context.runs for context in self.contexts)


class FakeContext:
    """As strict as TensorRT: it runs only if every shape and address is set."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.profile = 0
        self.shapes: dict[str, Shape] = {}
        self.addresses: dict[str, int] = {}
        self.runs = self.shapes_set = 0
        # Called before an execution; False stops the execution.
        self.before_run: Callable[[int], bool] = lambda stream: True

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        self.profile, self.shapes = profile_index, {}
        return True

    def set_input_shape(self, name: str, shape: Shape) -> bool:
        mode, _, declared = self.engine.tensors[name]
        assert mode == "INPUT"
        if -1 in declared:
            low, _, high = self.engine.profiles[self.profile][name]
            fits = len(shape) == len(low) and all(a <= s <= b for a, s, b in zip(low, shape, high, strict=True))
        else:
            fits = shape == declared
        if fits:
            self.shapes_set += 1
            self.shapes[name] = shape
        return fits

    def get_tensor_shape(self, name: str) -> Shape:
        mode, _, declared = self.engine.tensors[name]
        first = self.shapes.get(self._inputs()[0], ()) if self._inputs() else ()
        if mode == "INPUT":
            return self.shapes.get(name, declared)
        return tuple(first[axis] if size == -1 and axis < len(first) else size for axis, size in enumerate(declared))

    def set_tensor_address(self, name: str, memory: int) -> bool:
        self.addresses[name] = memory
        return bool(memory)

    def execute_async_v3(self, stream_handle: int) -> bool:
        self.runs += 1
        if not self.before_run(stream_handle):
            return False
        if self.addresses.keys() != self.engine.tensors.keys() or self.shapes.keys() != set(self._inputs()):
            return False
        source = self.addresses[self._inputs()[0]]
        for name, (mode, _, _) in self.engine.tensors.items():
            count = math.prod(self.get_tensor_shape(name))
            if mode == "OUTPUT" and count:
                target = self.addresses[name]
                if self.engine.control.affine(stream_handle, target, source, count, self.engine.compute_us):
                    return False
        return True

    def _inputs(self) -> list[str]:
        return [name for name, (mode, _, _) in self.engine.tensors.items() if mode == "INPUT"]


def expected(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return 2 * array + 1
