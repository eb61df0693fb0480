"""Compares the inputs and outputs of a TensorRT engine with the model's, and manages the memory of these tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec
import numpy as np

from edged.backends.contract import Signature
from edged.backends.trt.api import DATATYPES, Engine
from edged.errors import EdgedError, EngineUnusable, InvalidTensor, Unsuitable
from edged.tensors import Array, TensorSpec, numpy_dtype

if TYPE_CHECKING:
    from edged.backends.cuda.driver import Device, DeviceMemory, Event, HostMemory, Stream

Shape: TypeAlias = tuple[int, ...]
# The smallest and the largest shape of an input in one profile.
Bounds: TypeAlias = tuple[Shape, Shape]


class Input(msgspec.Struct, frozen=True):
    """An input of an engine. `bounds` has the smallest and largest shape for each optimisation profile."""

    name: str
    dtype: np.dtype[np.generic]
    bounds: tuple[Bounds, ...]


class Output(msgspec.Struct, frozen=True):
    name: str
    dtype: np.dtype[np.generic]


class Tensors(msgspec.Struct, frozen=True):
    """All inputs and outputs of an engine, in the order of the model."""

    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]

    def is_fixed(self, profile: int) -> bool:
        """Whether a profile accepts only one shape for each input."""
        return all(low == high for low, high in (i.bounds[profile] for i in self.inputs))

    def profile_of(self, inputs: Mapping[str, Array]) -> int:
        """Return the index of the first profile that accepts these inputs. Raises InvalidTensor if no profile accepts
        them, or if a dtype differs from the engine's."""
        for tensor in self.inputs:
            found = inputs[tensor.name].dtype
            if found != tensor.dtype:
                raise InvalidTensor(f"input {tensor.name!r} has the datatype {found}; the engine takes {tensor.dtype}")
        shapes = [inputs[tensor.name].shape for tensor in self.inputs]
        for profile in range(len(self.inputs[0].bounds) if self.inputs else 1):
            if all(_within(s, t.bounds[profile]) for s, t in zip(shapes, self.inputs, strict=True)):
                return profile
        raise InvalidTensor(self._refusal(shapes))

    def _refusal(self, shapes: Sequence[Shape]) -> str:
        for shape, tensor in zip(shapes, self.inputs, strict=True):
            if not any(_within(shape, bounds) for bounds in tensor.bounds):
                allowed = " or ".join(dict.fromkeys(_range_text(bounds) for bounds in tensor.bounds))
                return f"input {tensor.name!r} has the shape {_text(shape)}; the engine takes {allowed}"
        given = ", ".join(f"{t.name!r} {_text(s)}" for t, s in zip(self.inputs, shapes, strict=True))
        return f"no profile of the engine takes these shapes together: {given}"


def read(engine: Engine, signature: Signature) -> Tensors:
    """Return the engine's tensors after comparing them with the model's.

    Raises EngineUnusable if names differ, Unsuitable if TensorRT changed the datatype of a tensor, or if the values of
    a tensor determine shapes.
    """
    modes = {}
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        modes[name] = engine.get_tensor_mode(name).name
    for kind, specs in (("INPUT", signature.inputs), ("OUTPUT", signature.outputs)):
        wanted, found = {spec.name for spec in specs}, {name for name, mode in modes.items() if mode == kind}
        if wanted != found:
            raise EngineUnusable(
                f"the engine's {kind.lower()}s are {_names(found)}, but the model's are {_names(wanted)};"
                " build the engine again"
            )
    profiles = max(1, engine.num_optimization_profiles)
    return Tensors(
        tuple(
            Input(spec.name, _dtype(engine, spec), tuple(_bounds(engine, spec.name, p) for p in range(profiles)))
            for spec in signature.inputs
        ),
        tuple(Output(spec.name, _dtype(engine, spec)) for spec in signature.outputs),
    )


def _dtype(engine: Engine, spec: TensorSpec) -> np.dtype[np.generic]:
    made = engine.get_tensor_dtype(spec.name).name
    if DATATYPES.get(made) != spec.datatype:
        raise Unsuitable(
            f"TensorRT changed the datatype of tensor {spec.name!r} from {spec.datatype} to {made}; use another backend"
        )
    # TensorRT reads the values of shape tensors on the host, but edged puts all inputs on the device.
    is_shape = getattr(engine, "is_shape_inference_io", None)
    if is_shape is not None and is_shape(spec.name):
        raise Unsuitable(
            f"the values of tensor {spec.name!r} determine shapes, which edged does not support with TensorRT; "
            "use another backend"
        )
    return numpy_dtype(spec.datatype)


def _bounds(engine: Engine, name: str, profile: int) -> Bounds:
    shape = tuple(engine.get_tensor_shape(name))
    if -1 not in shape:
        return shape, shape
    smallest, _, largest = engine.get_tensor_profile_shape(name, profile)
    return tuple(smallest), tuple(largest)


def _within(shape: Shape, bounds: Bounds) -> bool:
    low, high = bounds
    return len(shape) == len(low) and all(a <= size <= b for a, size, b in zip(low, shape, high, strict=True))


def _range_text(bounds: Bounds) -> str:
    low, high = bounds
    return _text(low) if low == high else f"{_text(low)} to {_text(high)}"


def _text(shape: Shape) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names))) or "none"


class _Closable(Protocol):
    def close(self) -> None: ...


def view(host: HostMemory, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    """Return an array of this shape and dtype that is a view of the start of page-locked memory."""
    array: Array = host.array[: math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
    return array


class Place:
    """One tensor's memory on host and device. If the device shares the host's memory, there is only one buffer, and
    nothing is copied."""

    def __init__(self, device: Device, size: int, dtype: np.dtype[np.generic]) -> None:
        self.dtype = dtype
        size = max(size, 1)  # an empty tensor needs an address, too
        self.host = device.allocate_host(size, mapped=device.properties.shares_memory)
        self.memory: DeviceMemory | None = None
        try:
            if not device.properties.shares_memory:
                self.memory = device.allocate(size)
        except BaseException:
            self.free()
            raise
        self.address = self.host.device_address if self.memory is None else self.memory.address

    def put(self, array: Array) -> None:
        """Copy an array into the host memory."""
        np.copyto(view(self.host, array.shape, self.dtype), array)

    def send(self, stream: Stream, source: HostMemory, size: int) -> int:
        """Submit a copy of `size` bytes from `source` to the device, unless the device shares the host's memory. Return
        the address that the engine must read."""
        if self.memory is None:
            return source.device_address
        if size:
            stream.copy_in(self.memory, source, size)
        return self.address

    def fetch(self, stream: Stream, size: int) -> None:
        """Submit a copy of `size` output bytes to the host memory. The stream makes the copy later."""
        if self.memory is not None and size:
            stream.copy_out(self.host, self.memory, size)

    def take(self, shape: tuple[int, ...]) -> Array:
        """Return the fetched output in this shape, as a view of the host memory."""
        return view(self.host, shape, self.dtype)

    def free(self) -> None:
        quietly(self.host.free)
        if self.memory is not None:
            quietly(self.memory.free)


class BufferSet:
    """Memory for every tensor, and two events. `copied` passes after the inputs are copied, and `done` passes after the
    outputs are copied."""

    def __init__(
        self,
        device: Device,
        inputs: Mapping[str, tuple[int, np.dtype[np.generic]]],
        outputs: Mapping[str, tuple[int, np.dtype[np.generic]]],
    ) -> None:
        """`inputs` and `outputs` map the name of each tensor to its largest size in bytes and its dtype."""
        self.inputs: dict[str, Place] = {}
        self.outputs: dict[str, Place] = {}
        self._events: list[Event] = []
        try:
            for places, wanted in ((self.inputs, inputs), (self.outputs, outputs)):
                for name, (size, dtype) in wanted.items():
                    places[name] = Place(device, size, dtype)
            self.copied = self._event(device)
            self.done = self._event(device)
        except BaseException:
            self.free()
            raise

    def free(self) -> None:
        for place in (*self.inputs.values(), *self.outputs.values()):
            place.free()
        close_all(self._events)

    def _event(self, device: Device) -> Event:
        self._events.append(device.event())
        return self._events[-1]


def quietly(release: Callable[[], None]) -> None:
    """Call `release` and ignore errors: if the device is broken, other objects must still be freed."""
    with suppress(EdgedError):
        release()


def close_all(things: Iterable[_Closable]) -> None:
    for thing in things:
        quietly(thing.close)
