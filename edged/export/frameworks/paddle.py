"""Inference models of PaddlePaddle: a folder with a program (`.json` or `.pdmodel`) and its weights (`.pdiparams`),
exported by paddle2onnx. Dimensions that the program leaves open are also open in the ONNX file."""

from __future__ import annotations

import glob
import os

import paddle
from edged_frameworks.contract import Arrays, Input, Loaded, Refused, Request

_SIZE = (640, 640)
_WORDS = {0: "batch", 2: "height", 3: "width"}


def load(request: Request) -> Loaded:
    if request.half:
        raise Refused("paddle2onnx cannot write float16; leave out --half, and let the box choose the precision")
    weights = sorted(glob.glob(os.path.join(request.source, "*.pdiparams")))
    stem = weights[0][: -len(".pdiparams")] if weights else ""
    program = next((stem + end for end in (".json", ".pdmodel") if os.path.exists(stem + end)), "")
    if not program:
        raise Refused(
            f"{os.path.basename(request.source)} needs a .pdiparams file, and a .json or .pdmodel file of the same name"
        )
    return _Model(stem, program, request).loaded()


class _Model:
    def __init__(self, stem: str, program: str, request: Request) -> None:
        self._stem, self._program = stem, program
        self._layer = paddle.jit.load(stem)
        self._layer.eval()
        self._inputs = {}
        for spec in self._layer._input_spec():
            opened = {axis: _WORDS.get(axis, "size") for axis, size in enumerate(spec.shape) if size < 0}
            height, width = request.imgsz or _SIZE
            usual = {2: height, 3: width}
            shape = [usual.get(axis, 1) if axis in opened else int(size) for axis, size in enumerate(spec.shape)]
            self._inputs[spec.name] = Input(str(spec.dtype).rpartition(".")[2], shape, opened)

    def loaded(self) -> Loaded:
        return Loaded("paddlepaddle " + paddle.__version__, self._inputs, self.export, self.answer)

    def export(self, out: str, opset: int | None, way: str) -> None:
        import paddle2onnx

        weights = self._stem + ".pdiparams"
        paddle2onnx.export(
            self._program, weights, out, opset_version=opset or 17, enable_onnx_checker=False, verbose=False
        )

    def answer(self, inputs: Arrays) -> Arrays:
        with paddle.no_grad():
            found = self._layer(*(paddle.to_tensor(inputs[name]) for name in self._inputs))
        tensors = found if isinstance(found, (list, tuple)) else [found]
        return {f"output{number}": each.numpy() for number, each in enumerate(tensors)}
