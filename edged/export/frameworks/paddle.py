"""Inference models of PaddlePaddle: a folder with a program (`.json` or `.pdmodel`) and its weights (`.pdiparams`),
exported by paddle2onnx."""

from __future__ import annotations

import glob
import os

import numpy as np
import paddle
from edged_frameworks.contract import Arrays, Input, Loaded, Refused, Request

_SIZE = (640, 640)


def load(request: Request) -> Loaded:
    if request.half:
        raise Refused("paddle2onnx writes no float16; leave out --half, and let the box choose the precision")
    weights = sorted(glob.glob(os.path.join(request.source, "*.pdiparams")))
    stem = weights[0][: -len(".pdiparams")] if weights else ""
    program = next((stem + end for end in (".json", ".pdmodel") if os.path.exists(stem + end)), "")
    if not program:
        raise Refused(f"{os.path.basename(request.source)} has no program next to a .pdiparams file")
    return _Model(program, weights[0], request).loaded()


class _Model:
    def __init__(self, program: str, weights: str, request: Request) -> None:
        self._program, self._weights = program, weights
        config = paddle.inference.Config(program, weights)
        config.disable_gpu()
        config.switch_ir_optim(False)
        self._predictor = paddle.inference.create_predictor(config)
        self._inputs = {}
        for name in self._predictor.get_input_names():
            handle = self._predictor.get_input_handle(name)
            shape, opened = _shape(list(handle.shape()), request)
            self._inputs[name] = Input(_dtype(handle), shape, opened)

    def loaded(self) -> Loaded:
        about = "paddlepaddle " + paddle.__version__
        return Loaded(about, self._inputs, self.export, self.answer)

    def export(self, out: str, opset: int | None, way: str) -> None:
        import paddle2onnx

        paddle2onnx.export(
            self._program, self._weights, out, opset_version=opset or 17, enable_onnx_checker=False, verbose=False
        )

    def answer(self, inputs: Arrays) -> Arrays:
        for name, value in inputs.items():
            handle = self._predictor.get_input_handle(name)
            handle.reshape(list(value.shape))
            handle.copy_from_cpu(np.ascontiguousarray(value))
        self._predictor.run()
        names = self._predictor.get_output_names()
        return {name: self._predictor.get_output_handle(name).copy_to_cpu() for name in names}


def _shape(shape: list, request: Request) -> tuple:
    opened = {axis: _WORDS.get(axis, "size") for axis, size in enumerate(shape) if size < 0}
    height, width = request.imgsz or _SIZE
    usual = {0: 1, 2: height, 3: width}
    return [usual.get(axis, 1) if size < 0 else size for axis, size in enumerate(shape)], opened


_WORDS = {0: "batch", 2: "height", 3: "width"}
_NAMES = {"FLOAT32": "float32", "FLOAT16": "float16", "INT64": "int64", "INT32": "int32", "UINT8": "uint8"}


def _dtype(handle) -> str:
    return _NAMES.get(str(handle.type()).rpartition(".")[2], "float32")
