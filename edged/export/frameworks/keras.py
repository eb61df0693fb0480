"""Models of Keras (`.keras`) and SavedModels of TensorFlow, exported by tf2onnx. Code in a `.keras` file, such as a
Lambda layer, is not loaded (Keras' safe mode)."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import tensorflow as tf
from edged_frameworks.contract import Arrays, Input, Loaded, Refused, Request


def load(request: Request) -> Loaded:
    if os.path.isdir(request.source):
        function, names, specs = _saved_model(request.source)
        about = "tensorflow " + tf.__version__
    else:
        function, names, specs = _keras(request.source)
        about = f"keras {tf.keras.__version__}, tensorflow {tf.__version__}"
    if request.half:
        raise Refused("tf2onnx cannot write float16; leave out --half, and let the box choose the precision")
    return _Model(function, names, specs, request, about).loaded()


def _keras(path: str) -> tuple:
    try:
        model = tf.keras.models.load_model(path, compile=False, safe_mode=True)
    except ValueError as error:
        raise Refused(
            "{} cannot be loaded without executing code: {}".format(
                os.path.basename(path), " ".join(str(error).split())[:300]
            )
        ) from None
    names = [each.name.split(":")[0] for each in model.inputs]
    return lambda *values: model(list(values) if len(values) > 1 else values[0], training=False), names, model.inputs


def _saved_model(path: str) -> tuple:
    loaded = tf.saved_model.load(path)
    if not loaded.signatures:
        raise Refused(
            f"{os.path.basename(path)} has no signature; save the model with a signature, or as a .keras file"
        )
    function = loaded.signatures.get("serving_default") or next(iter(loaded.signatures.values()))
    given = function.structured_input_signature[1]
    call = lambda *values: function(**dict(zip(given, values)))  # noqa: B905, E731 - Python 3.9
    call.kept = loaded  # the variables live as long as the model
    return call, list(given), list(given.values())


class _Model:
    def __init__(self, function: Any, names: list, specs: list, request: Request, about: str) -> None:
        self._about, self._names = about, names
        self._inputs = {
            name: Input(tf.as_dtype(spec.dtype).name, _shape(spec, request), _open(spec, request))
            for name, spec in zip(names, specs)  # noqa: B905 - Python 3.9
        }
        signature = []
        for name, each in self._inputs.items():
            shape = [None if axis in each.open else size for axis, size in enumerate(each.shape)]
            signature.append(tf.TensorSpec(shape, each.dtype, name))

        @tf.function(input_signature=signature, autograph=False)
        def flat(*values: Any) -> Any:
            return tf.nest.flatten(function(*values))

        self._function, self._signature = flat, signature

    def loaded(self) -> Loaded:
        return Loaded(self._about, self._inputs, self.export, self.answer)

    def export(self, out: str, opset: int | None, way: str) -> None:
        import tf2onnx

        tf2onnx.convert.from_function(
            self._function, input_signature=self._signature, opset=opset or 17, output_path=out
        )

    def answer(self, inputs: Arrays) -> Arrays:
        found = self._function(*(tf.constant(inputs[name]) for name in self._names))
        return {f"output{number}": np.asarray(value) for number, value in enumerate(found)}


def _shape(spec: Any, request: Request) -> list:
    """Return the shape for one picture or row. An open height or width becomes that of --imgsz, or 224. Raises Refused
    if another dimension is open."""
    shape = [1 if axis == 0 and size is None else size for axis, size in enumerate(spec.shape)]
    height, width = request.imgsz or (224, 224)
    if len(shape) == 4:  # pictures [N, height, width, channels]
        shape[1:3] = [shape[1] or height, shape[2] or width]
    if None in shape:
        raise Refused(f"input {spec.name!r} has open dimensions; save the model with fixed sizes")
    return shape


def _open(spec: Any, request: Request) -> dict:
    opened = {0: "batch"} if "batch" in request.dynamic and spec.shape[0] is None else {}
    if "size" in request.dynamic and len(spec.shape) == 4:
        opened.update({axis: word for axis, word in ((1, "height"), (2, "width")) if spec.shape[axis] is None})
    return opened
