"""Sessions of ONNX Runtime that implement the contract: on the CPU, and on a device with its own memory."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

import numpy as np
import onnxruntime as ort

from edged.backends.contract import UNOPTIMISED, Nodes, Order, Session, Signature, one_line
from edged.backends.ort import cuda, runtime
from edged.errors import EdgedError, EngineUnusable, InvalidInput
from edged.tensors import Array

_BFLOAT16 = 16  # onnx.TensorProto.BFLOAT16
_MOST_PADDED = 64 << 20  # bytes of a tensor whose elements are padded to the longest; or twice its bytes, if more
# The optimisation levels, without UNOPTIMISED; each includes the one before.
NAMES = tuple(name for name in runtime.LEVELS if name != UNOPTIMISED)


class OrtSession:
    """The base class of the sessions. It implements `contract.Placed` and `contract.Stoppable`."""

    def __init__(self, session: ort.InferenceSession, signature: Signature, nodes: Nodes | None = None) -> None:
        self._session, self._signature, self._nodes = session, signature, nodes or {}
        self._options = ort.RunOptions()
        self._outputs = [spec.name for spec in signature.outputs]
        self._text_inputs = frozenset(spec.name for spec in signature.inputs if spec.datatype == "BYTES")
        self._text_outputs = frozenset(spec.name for spec in signature.outputs if spec.datatype == "BYTES")
        self._bfloat = frozenset(
            spec.name for spec in (*signature.inputs, *signature.outputs) if spec.datatype == "BF16"
        )

    def nodes(self) -> Nodes:
        return self._nodes

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        names = self._outputs if outputs is None else list(outputs)
        feeds: dict[str, Array] = dict(inputs)
        for name in self._text_inputs:
            feeds[name] = _to_text(name, feeds[name])
        try:
            values = self._run_bfloat(names, feeds) if self._bfloat else self._run(names, feeds)
        except UnicodeDecodeError as error:
            raise self._not_text(names, error) from error
        except Exception as error:  # the runtime's errors have no common base of their own
            raise self._failure(error) from error
        answer = dict(zip(names, values, strict=True))
        for name in self._text_outputs & answer.keys():
            answer[name] = _to_bytes(answer[name])
        return answer

    def stop(self) -> None:
        self._options.terminate = True

    def go_on(self) -> None:
        self._options = ort.RunOptions()

    def close(self) -> None:
        del self._session

    def _failure(self, error: Exception) -> EngineUnusable:
        return EngineUnusable(f"inference failed: {one_line(error)}")

    def _not_text(self, names: Sequence[str], error: UnicodeDecodeError) -> EdgedError:
        """Return the error for a text output that is not UTF-8: the runtime's Python API cannot convert it to `str`."""
        texts = " or ".join(repr(name) for name in names if name in self._text_outputs)
        if not texts:  # the runtime's own message is not UTF-8
            return self._failure(error)
        return InvalidInput(
            f"output {texts} has bytes that are not UTF-8, and ONNX Runtime cannot return them; request other outputs"
        )

    def _run(self, names: list[str], feeds: dict[str, Array]) -> list[Array]:
        values: list[Array] = self._session.run(names, feeds, self._options)
        return values

    def _run_bfloat(self, names: list[str], feeds: dict[str, Array]) -> list[Array]:
        """Run with `OrtValue`: numpy has no bfloat16. An OrtValue takes BF16 elements as uint16, but no text."""
        if self._text_inputs:
            raise EngineUnusable("ONNX Runtime cannot combine BYTES inputs with BF16 tensors; export FP32 tensors")
        values = {name: self._to_value(name, array) for name, array in feeds.items()}
        return [_from_value(value) for value in self._session.run_with_ort_values(names, values, self._options)]

    def _to_value(self, name: str, array: Array) -> ort.OrtValue:
        if name in self._bfloat:
            return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, _BFLOAT16)
        return ort.OrtValue.ortvalue_from_numpy(array)


class CpuSession(OrtSession):
    """A session on the CPU, which reads and writes tensors in place. It implements `contract.Replicable`."""

    def replica(self) -> CpuSession:
        return CpuSession(self._session, self._signature, self._nodes)  # several threads may call the runtime's `run`


class DeviceSession(OrtSession):
    """A session on device `index` of a kind ("cuda") with its own memory.

    Inputs are copied to the device once. Requested outputs are copied directly into the returned arrays. Memory on the
    device comes from the session's arena and is reused. Each run binds its inputs again, and does not overwrite them on
    the device. The reason: when an input is bound, the runtime copies it to the place where its first consumer runs.
    With overwritten inputs, a consumer on the CPU would read the first frame again and again.
    """

    def __init__(
        self, session: ort.InferenceSession, signature: Signature, kind: str, index: int, nodes: Nodes | None = None
    ) -> None:
        super().__init__(session, signature, nodes)
        self._kind, self._index = kind, index
        self._binding = session.io_binding()
        self._has_text = bool(self._text_inputs or self._text_outputs)

    def close(self) -> None:
        del self._binding  # it refers to the session's memory
        super().close()

    def _run(self, names: list[str], feeds: dict[str, Array]) -> list[Array]:
        # Devices can hold neither text nor empty tensors.
        if self._has_text or not all(array.size for array in feeds.values()):
            return super()._run(names, feeds)
        binding = self._binding
        values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}
        try:
            for name, value in values.items():
                binding.bind_ortvalue_input(name, value)
            for name in names:
                binding.bind_output(name, self._kind, self._index)
            self._session.run_with_iobinding(binding, self._options)
            answer: list[Array] = binding.copy_outputs_to_cpu()
            return answer
        finally:  # after the call, the binding must not refer to the caller's memory or keep device memory
            binding.clear_binding_inputs()
            binding.clear_binding_outputs()

    def _failure(self, error: Exception) -> EngineUnusable:
        known = cuda.failure(f"{self._kind}:{self._index}", one_line(error, limit=4000))
        return known or super()._failure(error)


def _from_value(value: ort.OrtValue) -> Array:
    if value.data_type() != "tensor(bfloat16)":
        array: Array = value.numpy()
        return array
    shape = tuple(value.shape())
    array = np.empty(shape, dtype=np.uint16)
    if array.nbytes:
        ctypes.memmove(array.ctypes.data, value.data_ptr(), array.nbytes)
    return array


def _to_text(name: str, array: Array) -> Array:
    """Convert an array of `bytes` objects to an array that the runtime reads as the same bytes. The new elements are
    `str` if all are UTF-8, otherwise of a numpy type for bytes (V or S). Raises InvalidInput if no type fits.

    The runtime reads elements of dtype V in full. It reads elements of dtype S up to the first zero byte, even beyond
    the end of an element without a zero byte. It reads `bytes` in an array of objects as their repr().
    """
    elements: list[bytes] = array.ravel().tolist()
    try:
        text = [element.decode("utf-8") for element in elements]
        return np.array(text, dtype=np.object_).reshape(array.shape)
    except UnicodeDecodeError:
        sizes = [len(element) for element in elements]
    longest = max(sizes)
    if min(sizes) == longest:
        return np.frombuffer(b"".join(elements), f"V{longest}").reshape(array.shape)
    what = f"ONNX Runtime cannot take input {name!r}: its elements are not UTF-8, differ in length"
    if any(b"\0" in element for element in elements):
        raise InvalidInput(f"{what}, and contain bytes of value 0; send the elements one by one")
    if (longest + 1) * len(elements) > max(_MOST_PADDED, 2 * sum(sizes)):
        raise InvalidInput(f"{what}, and need more than {_MOST_PADDED >> 20} MiB; send the elements one by one")
    return np.array(elements, dtype=f"S{longest + 1}").reshape(array.shape)


def _to_bytes(array: Array) -> Array:
    encoded = [element.encode("utf-8") for element in array.ravel().tolist()]
    return np.array(encoded, dtype=np.object_).reshape(array.shape)


def open_at(order: Order, level: str) -> Session:
    """Open the order's model on the CPU at an optimisation level. Raises EngineUnusable if the runtime refuses it."""
    options = runtime.session_options(level, order.recipe.threads)
    return CpuSession(runtime.create(order.model, options), order.signature)
