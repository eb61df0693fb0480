"""Small networks of two or more convolutions, with other nodes between and after them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from edged.tensors import Array
from tests.models import OPSET, model, nodes, save, value

SIZE, CHANNELS = 16, 8
SHAPE = [1, CHANNELS, SIZE, SIZE]


def constant(name: str, values: object, dtype: type[np.generic] = np.float32) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(values, dtype), name)


def random(name: str, *shape: int, seed: int = 0) -> onnx.TensorProto:
    generator = np.random.default_rng([seed, *name.encode()])
    return constant(name, generator.standard_normal(shape) / np.sqrt(np.prod(shape[1:])))


def conv(source: str, target: str, weights: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node("Conv", [source, weights], [target], name=f"conv {target}", pads=[1] * 4, **attributes)


def network(
    between: Sequence[str | onnx.NodeProto],
    constants: Sequence[onnx.TensorProto] = (),
    *,
    inputs: Sequence[onnx.ValueInfoProto] = (),
    outputs: Sequence[onnx.ValueInfoProto] = (),
    behind: Sequence[str] = (),
    opset: int = OPSET,
    **more: object,
) -> onnx.ModelProto:
    """x -> Conv -> a -> `between` -> b -> Conv -> y -> `behind`. x is [1, 3, 16, 16]; all others have `SHAPE`."""
    return model(
        nodes(conv("x", "a", "w1"), *between, conv("b", "y", "w2"), *behind),
        [value("x", "FP32", [1, 3, SIZE, SIZE]), *inputs],
        [*outputs] or [value("y", "FP32", SHAPE)],
        [random("w1", CHANNELS, 3, 3, 3), random("w2", CHANNELS, CHANNELS, 3, 3), *constants],
        opset=opset,
        **more,  # type: ignore[arg-type]
    )


def relu(**more: object) -> onnx.ModelProto:
    return network(["b = Relu(a)"], **more)  # type: ignore[arg-type]


def chain(count: int = 3, opset: int = OPSET, **more: object) -> onnx.ModelProto:
    """Return `count` convolutions with bias, and a ReLU between each two."""
    layers, constants, last = [], [], "x"
    for index in range(count):
        constants += [random(f"w{index}", CHANNELS, CHANNELS if index else 3, 3, 3), random(f"bias{index}", CHANNELS)]
        target = "y" if index == count - 1 else f"c{index}"
        layers.append(conv(last, target, f"w{index}"))
        layers[-1].input.append(f"bias{index}")
        if target != "y":
            layers += nodes(f"r{index} = Relu({target})")
        last = f"r{index}"
    inputs, outputs = [value("x", "FP32", [1, 3, SIZE, SIZE])], [value("y", "FP32", SHAPE)]
    return model(layers, inputs, outputs, constants, opset=opset, **more)  # type: ignore[arg-type]


def picture(seed: int = 0, channels: int = 3) -> dict[str, Array]:
    return {"x": np.random.default_rng(seed).random((1, channels, SIZE, SIZE), np.float32)}


def store(proto: onnx.ModelProto, folder: Path, is_external: bool = False) -> Path:
    path = folder / "model.onnx"
    if not is_external:
        return save(proto, path)
    folder.mkdir()
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def answers(path: Path | str, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return the outputs of ONNX Runtime on the CPU without graph optimisation."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, dict(inputs)), strict=True))


def declared(path: Path | str) -> list[tuple[str, int, list[int]]]:
    """Return name, element type and dimensions of all inputs and outputs, without inputs that are initializers."""
    graph = onnx.load(path, load_external_data=False).graph
    held = {tensor.name for tensor in graph.initializer}
    values = [v for v in (*graph.input, *graph.output) if v.name not in held]
    return [
        (v.name, v.type.tensor_type.elem_type, [dim.dim_value for dim in v.type.tensor_type.shape.dim]) for v in values
    ]


def kinds(path: Path | str) -> dict[str, int]:
    """Return the element type of every value, as ONNX's shape inference finds it."""
    proto = onnx.load(path)
    graph = onnx.shape_inference.infer_shapes(proto, strict_mode=True).graph
    types = {v.name: v.type.tensor_type.elem_type for v in (*graph.value_info, *graph.input, *graph.output)}
    return types | {tensor.name: tensor.data_type for tensor in graph.initializer}
