"""The answers of a model that no runtime here can run: ONNX's own reference implementation, in numpy.

It is slow and knows not every operator; but what it answers is what the operators are defined to. Runs in the child.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from edged.backends.contract import Signature, one_line
from edged.errors import EngineUnusable, Unsuitable
from edged.tensors import Array, numpy_dtype

NAME = f"onnx.reference {onnx.__version__}"


class Evaluator:
    """A session, as runtimes give one."""

    def __init__(self, path: Path, signature: Signature) -> None:
        """Unsuitable where the reference implementation cannot even read the model."""
        if any(spec.datatype == "BF16" for spec in (*signature.inputs, *signature.outputs)):
            raise Unsuitable("the reference implementation takes no bfloat16")
        self._signature = signature
        try:
            self._model = ReferenceEvaluator(onnx.load(str(path)))
        except Exception as error:  # of the package, of what it imports
            raise Unsuitable(f"the reference implementation cannot run it: {one_line(error)}") from error

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        names = [spec.name for spec in self._signature.outputs] if outputs is None else list(outputs)
        feeds = {name: _texts(array) if array.dtype == np.object_ else array for name, array in inputs.items()}
        try:
            values = self._model.run(names, feeds)
        except Exception as error:  # whatever an operator raises
            raise EngineUnusable(f"the reference implementation failed: {one_line(error)}") from error
        types = {spec.name: spec.datatype for spec in self._signature.outputs}
        return {name: _plain(value, types[name]) for name, value in zip(names, values, strict=True)}

    def close(self) -> None:
        del self._model


def _plain(value: object, datatype: str) -> Array:
    """The reference implementation answers scalars of numpy here and there, and strings of Python."""
    array = np.asarray(value)
    if datatype == "BYTES":
        texts = [text if isinstance(text, bytes) else str(text).encode() for text in array.ravel().tolist()]
        return np.array(texts, np.object_).reshape(array.shape)
    return array.astype(numpy_dtype(datatype), copy=False)


def _texts(array: Array) -> Array:
    return np.array([bytes(text).decode() for text in array.ravel().tolist()], np.object_).reshape(array.shape)
