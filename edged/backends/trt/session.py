"""An opened TensorRT engine. While one inference is computed, the inputs of the next one are copied.

    stage         prepare thread   inputs -> page-locked memory -> (copying stream) -> device
    infer_staged  infer thread     (computing stream) wait for the copy, compute, copy outputs back; sleep until done

There are two buffer sets for each profile, so at most one inference is staged while another is computed. A further
`stage` waits. A buffer set is free again when its inference is done. Its outputs stay valid until the set is used
again. On a device that shares the host's memory, the engine reads and writes that memory without copies.

If a profile accepts only one shape, the engine's work is captured as a CUDA graph after its first run, once for each
combination of buffers. If that fails, the engine runs without graphs, and `why_no_graphs` says why.
"""

from __future__ import annotations

import math
import queue
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

import msgspec
import numpy as np

from edged.backends.contract import Signature
from edged.backends.trt.api import Context, Engine, find
from edged.backends.trt.tensors import BufferSet, Shape, Tensors, close_all, quietly, read, view
from edged.errors import EdgedError, EngineUnusable, Unsuitable
from edged.tensors import Array

if TYPE_CHECKING:
    from edged.backends.cuda.driver import Device, Graph, HostMemory, Stream

_SETS = 2  # buffer sets: one is computed, one is staged
_MOST_GRAPHS = 8  # per profile; six suffice for inputs that are read in place: two sets times three input arrays


class _Staged(msgspec.Struct, frozen=True):
    """An inference whose inputs are being copied to `addresses`, which are in the order of the engine's inputs."""

    lane: _Lane
    buffers: BufferSet
    shapes: tuple[Shape, ...]
    addresses: tuple[int, ...]


class _Lane:
    """The execution context, buffer sets and graphs of one optimisation profile. Only one thread infers with a lane."""

    def __init__(self, engine: Engine, tensors: Tensors, profile: int, device: Device, stream: Stream) -> None:
        self._tensors = tensors
        self.is_fixed = tensors.is_fixed(profile)
        self.graphs: dict[tuple[int, ...], Graph] = {}
        self.sets: list[BufferSet] = []
        self.free: queue.SimpleQueue[BufferSet] = queue.SimpleQueue()
        context = engine.create_execution_context()
        if context is None:
            raise EngineUnusable("TensorRT cannot create an execution context; the device may be out of memory")
        self.context: Context = context
        _silence(context)
        several = engine.num_optimization_profiles > 1
        if several and not context.set_optimization_profile_async(profile, stream.handle):
            raise EngineUnusable(f"TensorRT refuses optimization profile {profile} of the engine")
        stream.synchronize()
        self._shapes: tuple[Shape, ...] = ()
        self.outputs: dict[str, Shape] = {}
        self._set_shapes(tuple(t.bounds[profile][1] for t in tensors.inputs))
        inputs = {t.name: (_size(t.bounds[profile][1], t.dtype), t.dtype) for t in tensors.inputs}
        outputs = {t.name: (self._largest(t.name, t.dtype), t.dtype) for t in tensors.outputs}
        try:
            for _ in range(_SETS):
                self.sets.append(BufferSet(device, inputs, outputs))
                self.free.put(self.sets[-1])
        except BaseException:
            self.close()
            raise
        self._sizes = {name: size for name, (size, _) in outputs.items()}

    def bind(self, staged: _Staged) -> None:
        """Set the shapes and addresses of the next inference in the context."""
        self._set_shapes(staged.shapes)
        for tensor, address in zip(self._tensors.inputs, staged.addresses, strict=True):
            self._set_address(tensor.name, address)
        for name, place in staged.buffers.outputs.items():
            self._set_address(name, place.address)

    def enqueue(self, stream: Stream) -> None:
        if not self.context.execute_async_v3(stream.handle):
            raise EngineUnusable("TensorRT could not start the inference")

    def close(self) -> None:
        close_all(self.graphs.values())
        self.graphs.clear()
        if hasattr(self, "context"):
            del self.context  # before the buffers: the context may still hold their addresses
        for buffers in self.sets:
            buffers.free()
        self.sets.clear()

    def _set_shapes(self, shapes: tuple[Shape, ...]) -> None:
        if shapes == self._shapes and shapes:
            return
        self._shapes = ()
        for tensor, shape in zip(self._tensors.inputs, shapes, strict=True):
            if not self.context.set_input_shape(tensor.name, shape):
                raise EngineUnusable(f"TensorRT refuses the shape {list(shape)} of input {tensor.name!r}")
        for output in self._tensors.outputs:
            shape = tuple(self.context.get_tensor_shape(output.name))
            if -1 in shape:
                raise Unsuitable(
                    f"the shape of output {output.name!r} depends on the data, which edged does not support with "
                    "TensorRT; use another backend"
                )
            self.outputs[output.name] = shape
        self._shapes = shapes

    def _set_address(self, name: str, address: int) -> None:
        if not self.context.set_tensor_address(name, address):
            raise EngineUnusable(f"TensorRT does not accept the buffer of tensor {name!r} (set_tensor_address failed)")

    def _largest(self, name: str, dtype: np.dtype[np.generic]) -> int:
        """Return the largest size of an output in bytes: its size for the largest inputs, or the runtime's limit for it
        if that is larger."""
        ask = getattr(self.context, "get_max_output_size", None)
        return max(_size(self.outputs[name], dtype), int(ask(name)) if ask is not None else 0)

    def require_room(self, name: str, size: int) -> None:
        if size > self._sizes[name]:
            raise EngineUnusable(f"output {name!r} has {size} bytes, more than the {self._sizes[name]} allocated")


class TensorRtSession:
    """Implements `edged.backends.contract.Session` and `Staging`. It frees what it has allocated, but not the device.

    `explain` returns the runtime's latest error for error messages, or "". If the engine is refused (see
    `tensors.read`) or does not fit on the device, the session is closed before the constructor raises.
    """

    def __init__(
        self, engine: Engine, signature: Signature, device: Device, explain: Callable[[], str] = lambda: ""
    ) -> None:
        self._engine: Engine | None = engine
        self._device, self._explain = device, explain
        self._names = [spec.name for spec in signature.outputs]
        self._lanes: dict[int, _Lane] = {}
        self._lent: dict[int, HostMemory] = {}  # the memory of the arrays from `array`, by address in this process
        self._streams: list[Stream] = []
        self.why_no_graphs = ""
        try:
            self._tensors = read(engine, signature)
            with device.current():
                self._copying = self._stream()
                self._computing = self._stream()
                self._lane(0)  # allocates now, so that opening fails if the engine does not fit on the device
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)  # these frames refer to the context, which must be freed first
            del engine
            self.close()
            self._raise(error)

    def array(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
        """See `Staging.array`."""
        with self._device.current():
            host = self._device.allocate_host(max(_size(shape, dtype), 1), mapped=self._device.properties.shares_memory)
        host.array[:] = 0
        self._lent[_address(host.array)] = host
        return view(host, shape, dtype)

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        return self.infer_staged(self.stage(inputs), outputs)

    def stage(self, inputs: Mapping[str, Array]) -> _Staged:
        """See `Staging.stage`. Raises InvalidTensor if the engine was not built for the shapes or dtypes."""
        profile = self._tensors.profile_of(inputs)
        with self._device.current():
            lane = self._lane(profile)
            buffers = lane.free.get()
            try:
                addresses = tuple(self._send(buffers, tensor.name, inputs) for tensor in self._tensors.inputs)
                self._copying.record(buffers.copied)
            except BaseException:
                lane.free.put(buffers)
                raise
        return _Staged(lane, buffers, tuple(inputs[t.name].shape for t in self._tensors.inputs), addresses)

    def infer_staged(self, staged: object, outputs: Sequence[str] | None = None) -> dict[str, Array]:
        """See `Staging.infer_staged`."""
        assert isinstance(staged, _Staged)
        names = self._names if outputs is None else outputs
        try:
            with self._device.current():
                return self._compute(staged, names)
        except BaseException as error:
            self._raise(error, self._settle())
        finally:
            staged.lane.free.put(staged.buffers)

    def close(self) -> None:
        """Wait for submitted work, then free everything."""
        with self._device.current():
            for stream in self._streams:
                quietly(stream.synchronize)
            for lane in self._lanes.values():
                lane.close()
            for host in self._lent.values():
                quietly(host.free)
            close_all(self._streams)
            self._engine = None
        self._lanes.clear()
        self._lent.clear()
        self._streams.clear()

    def _lane(self, profile: int) -> _Lane:
        if profile not in self._lanes:
            assert self._engine is not None
            self._lanes[profile] = _Lane(self._engine, self._tensors, profile, self._device, self._copying)
        return self._lanes[profile]

    def _send(self, buffers: BufferSet, name: str, inputs: Mapping[str, Array]) -> int:
        array, place = inputs[name], buffers.inputs[name]
        source = self._lent.get(_address(array))
        if source is None:
            place.put(array)
            source = place.host
        return place.send(self._copying, source, array.nbytes)

    def _compute(self, staged: _Staged, names: Sequence[str]) -> dict[str, Array]:
        lane, buffers, stream = staged.lane, staged.buffers, self._computing
        stream.wait(buffers.copied)
        key = (id(buffers), *staged.addresses)
        graph = lane.graphs.get(key)
        if graph is not None:
            stream.launch(graph)
        else:
            lane.bind(staged)
            lane.enqueue(stream)
        shapes = {name: lane.outputs[name] for name in names}
        for name, shape in shapes.items():
            place = buffers.outputs[name]
            size = _size(shape, place.dtype)
            lane.require_room(name, size)
            place.fetch(stream, size)
        stream.record(buffers.done)
        if graph is None and lane.is_fixed and len(lane.graphs) < _MOST_GRAPHS:
            self._capture(lane, key)  # while the device computes
        buffers.done.synchronize()
        return {name: buffers.outputs[name].take(shape) for name, shape in shapes.items()}

    def _capture(self, lane: _Lane, key: tuple[int, ...]) -> None:
        """Capture the inference that was just submitted as a graph. TensorRT requires a normal run before a capture."""
        if self.why_no_graphs:
            return
        able = getattr(lane.context, "is_stream_capturable", None)
        if able is not None and not able(self._computing.handle):
            self.why_no_graphs = "TensorRT says that this engine cannot be captured as a CUDA graph"
            return
        try:
            lane.graphs[key] = self._computing.capture(lambda: lane.enqueue(self._computing))
        except EdgedError as error:
            self.why_no_graphs = self._described(error)

    def _settle(self) -> str:
        """Wait for submitted work after a failure. Return the work's error, which is often the cause of the failure; ""
        if the work succeeded."""
        try:
            with self._device.current():
                self._computing.synchronize()
        except EdgedError as error:
            return str(error)
        return ""

    def _stream(self) -> Stream:
        self._streams.append(self._device.stream())
        return self._streams[-1]

    def _described(self, error: EdgedError, *more: str) -> str:
        """Return the text of an error with the runtime's own reason, if there is one."""
        return ": ".join(filter(None, (str(error), self._explain(), *more)))

    def _raise(self, error: BaseException, *more: str) -> NoReturn:
        if isinstance(error, EngineUnusable):
            raise type(error)(self._described(error, *more)) from error
        raise error


def _silence(context: Context) -> None:
    """Turn off NVTX annotations: each inference of an engine with detailed verbosity would annotate every layer."""
    none = find(type(getattr(context, "nvtx_verbosity", None)), "NONE")
    if none is not None:
        context.nvtx_verbosity = none  # type: ignore[attr-defined]  # newer versions have it


def _size(shape: Shape, dtype: np.dtype[np.generic]) -> int:
    return math.prod(shape) * dtype.itemsize


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])
