"""The cases: models, inputs, and the outputs that their authors expect."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.backend.test.loader import load_model_tests

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")

# The newest versions that the runtime accepts. Cases are stamped with draft versions even if they use nothing new; the
# cases that do fail in the runtime itself.
_OPSET, _IR_VERSION = 26, 13

# Element types that the protocol can carry, and their names in it.
DATATYPES: dict[int, str] = {
    TensorProto.BOOL: "BOOL",
    TensorProto.INT8: "INT8",
    TensorProto.INT16: "INT16",
    TensorProto.INT32: "INT32",
    TensorProto.INT64: "INT64",
    TensorProto.UINT8: "UINT8",
    TensorProto.UINT16: "UINT16",
    TensorProto.UINT32: "UINT32",
    TensorProto.UINT64: "UINT64",
    TensorProto.FLOAT16: "FP16",
    TensorProto.FLOAT: "FP32",
    TensorProto.DOUBLE: "FP64",
    TensorProto.BFLOAT16: "BF16",
    TensorProto.STRING: "BYTES",
}


@dataclass(frozen=True)
class Exchange:
    """Inputs and expected outputs, in the order of the model's declarations."""

    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]


@dataclass(frozen=True)
class Case:
    """A model with its exchanges and the tolerances of its outputs."""

    kind: str
    name: str
    model: onnx.ModelProto
    exchanges: tuple[Exchange, ...]
    rtol: float
    atol: float

    @property
    def inputs(self) -> list[onnx.ValueInfoProto]:
        """The inputs that a caller gives: old files also declare weights as inputs."""
        held = {tensor.name for tensor in self.model.graph.initializer}
        return [entry for entry in self.model.graph.input if entry.name not in held]

    @property
    def untransportable(self) -> str:
        """Why the protocol cannot carry the case; empty if it can."""
        for entry in (*self.inputs, *self.model.graph.output):
            kind = entry.type.WhichOneof("value")
            if kind != "tensor_type":
                return (kind or "untyped").removesuffix("_type")
            element = entry.type.tensor_type.elem_type
            if element not in DATATYPES:
                return f"tensor of {TensorProto.DataType.Name(element)}"
        return ""


def cases(kinds: tuple[str, ...] = KINDS) -> Iterator[Case]:
    """Yield every case of the installed `onnx`, by kind and name."""
    for kind in kinds:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")  # some cases divide by zero on purpose
            found = sorted(load_model_tests(kind=kind), key=lambda test: test.name)
        for test in found:
            case = _of_folder(kind, test) if test.model is None else _of_memory(kind, test)
            if case is not None:
                _stamp(case.model)
                yield case


def _stamp(model: onnx.ModelProto) -> None:
    model.ir_version = min(model.ir_version, _IR_VERSION)
    for opset in model.opset_import:
        if not opset.domain:
            opset.version = min(opset.version, _OPSET)


def _of_memory(kind: str, test: Any) -> Case:
    exchanges = tuple(
        Exchange(tuple(map(_array, inputs)), tuple(map(_array, outputs))) for inputs, outputs in test.data_sets
    )
    return Case(kind, test.name, test.model, exchanges, test.rtol, test.atol)


def _of_folder(kind: str, test: Any) -> Case | None:
    if test.model_dir is None:
        return None
    folder = Path(test.model_dir)
    model = onnx.load(folder / "model.onnx")
    held = {tensor.name for tensor in model.graph.initializer}
    inputs = [entry for entry in model.graph.input if entry.name not in held]
    exchanges = tuple(
        Exchange(
            tuple(_value(part / f"input_{index}.pb", entry) for index, entry in enumerate(inputs)),
            tuple(_value(part / f"output_{index}.pb", entry) for index, entry in enumerate(model.graph.output)),
        )
        for part in sorted(folder.glob("test_data_set_*"))
    )
    return Case(kind, test.name, model, exchanges, test.rtol, test.atol)


def _value(path: Path, entry: onnx.ValueInfoProto) -> Any:
    """Load a tensor from a file; None for values that are not tensors, since the protocol cannot carry them."""
    return _array(onnx.load_tensor(path)) if entry.type.WhichOneof("value") == "tensor_type" else None


def _array(value: Any) -> Any:
    """Return the value as an array if its type can be carried, else None."""
    if isinstance(value, onnx.TensorProto):
        value = numpy_helper.to_array(value) if value.data_type in DATATYPES else None
    return np.asarray(value) if isinstance(value, np.ndarray | np.generic | int | float) else None


def differs(got: Any, expected: Any, case: Case) -> str:
    """Describe how an answer differs from the expected one; empty if it does not."""
    if got.shape != expected.shape:
        return f"shape {list(got.shape)} instead of {list(expected.shape)}"
    if expected.dtype.kind in "OUS":
        same = [_text(one) == _text(other) for one, other in zip(got.ravel(), expected.ravel(), strict=True)]
        return "" if all(same) else f"{same.count(False)} strings differ"
    if got.dtype != expected.dtype:
        return f"dtype {got.dtype} instead of {expected.dtype}"
    with np.errstate(all="ignore"):
        one, other = np.asarray(got, np.float64), np.asarray(expected, np.float64)
        close = np.isclose(one, other, case.rtol, case.atol, equal_nan=True)
    return "" if close.all() else f"{int((~close).sum())} of {close.size} values differ"


def _text(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
