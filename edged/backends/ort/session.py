"""ONNX Runtime's sessions behind the contract: on the CPU, and on a device with its own memory."""

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
_MOST_PADDED = 64 << 20  # bytes of a tensor whose elements are all made as long as the longest
# In the order in which each does all that the one before does, and more; without the one that does nothing.
NAMES = tuple(name for name in runtime.LEVELS if name != UNOPTIMISED)


class OrtSession:
    """Any session. `nodes`: see `contract.Placed`; `stop`, `go_on`: `contract.Stoppable`."""

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
        """The runtime makes `str` of every text that it returns, in Python by whichever way it is asked."""
        texts = " or ".join(repr(name) for name in names if name in self._text_outputs)
        if not texts:  # something in the runtime's own words
            return self._failure(error)
        return InvalidInput(
            f"output {texts} holds bytes that are not UTF-8, which ONNX Runtime does not return; ask for other outputs"
        )

    def _run(self, names: list[str], feeds: dict[str, Array]) -> list[Array]:
        values: list[Array] = self._session.run(names, feeds, self._options)
        return values

    def _run_bfloat(self, names: list[str], feeds: dict[str, Array]) -> list[Array]:
        """Pass BF16 tensors as uint16 in the runtime's own values: numpy has no bfloat16. Such values cannot hold
        text."""
        if self._text_inputs:
            raise EngineUnusable("ONNX Runtime takes no texts beside BF16 tensors from Python; cast the latter to FP32")
        values = {name: self._to_value(name, array) for name, array in feeds.items()}
        return [_from_value(value) for value in self._session.run_with_ort_values(names, values, self._options)]

    def _to_value(self, name: str, array: Array) -> ort.OrtValue:
        if name in self._bfloat:
            return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, _BFLOAT16)
        return ort.OrtValue.ortvalue_from_numpy(array)


class CpuSession(OrtSession):
    """On the CPU, whose memory the runtime reads and writes in place. `replica`: `contract.Replicable`."""

    def replica(self) -> CpuSession:
        return CpuSession(self._session, self._signature, self._nodes)  # its `run` may be called by several threads


class DeviceSession(OrtSession):
    """On device `index` of a kind ("cuda"), whose memory is its own.

    A frame is copied there once. Its outputs stay there until those that were asked for are copied from it, straight
    into the arrays that are returned. Memory for both comes from the session's arena, which has it from the frame
    before. Tensors that are kept on the device and overwritten would be wrong: the runtime copies an input to where its
    first node runs when it is bound, so that a node on the CPU would go on seeing the first frame.
    """

    def __init__(
        self, session: ort.InferenceSession, signature: Signature, kind: str, index: int, nodes: Nodes | None = None
    ) -> None:
        super().__init__(session, signature, nodes)
        self._kind, self._index = kind, index
        self._binding = session.io_binding()
        self._has_text = bool(self._text_inputs or self._text_outputs)

    def close(self) -> None:
        del self._binding  # what it holds is the session's memory
        super().close()

    def _run(self, names: list[str], feeds: dict[str, Array]) -> list[Array]:
        # Text has no form on a device, and what is empty no place there.
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
        finally:  # nothing may hold the caller's memory after the call, nor the device's
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
    """An array that the runtime reads as the same bytes: of `str` if all is UTF-8, else of numpy's bytes.

    The runtime reads an element of dtype V in its full length. It reads one of dtype S up to the first zero byte, past
    the element's end if it has none. It reads elements of `bytes` in an array of objects as their repr().
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
    what = f"input {name!r} holds bytes that are not UTF-8 in elements of different lengths"
    if any(b"\0" in element for element in elements):
        raise InvalidInput(
            f"{what}, some with zero bytes, which ONNX Runtime cannot be given; send elements one by one"
        )
    if (longest + 1) * len(elements) > max(_MOST_PADDED, 2 * sum(sizes)):
        raise InvalidInput(f"{what}, which would take more than {_MOST_PADDED >> 20} MiB; send elements one by one")
    return np.array(elements, dtype=f"S{longest + 1}").reshape(array.shape)


def _to_bytes(array: Array) -> Array:
    encoded = [element.encode("utf-8") for element in array.ravel().tolist()]
    return np.array(encoded, dtype=np.object_).reshape(array.shape)


def open_at(order: Order, level: str) -> Session:
    """A session of the order's model on the CPU at a level; EngineUnusable if the runtime refuses it."""
    options = runtime.session_options(level, order.recipe.threads)
    return CpuSession(runtime.create(order.model, options), order.signature)
