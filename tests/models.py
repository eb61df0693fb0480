"""Small ONNX models, each about one thing. Written with an IR version and opset that every runtime here takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edged.backends.contract import Signature
from edged.tensors import Shape, TensorSpec

IR_VERSION = 10
OPSET = 20

ONNX_TYPES: dict[str, int] = {
    "BOOL": TensorProto.BOOL,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BF16": TensorProto.BFLOAT16,
    "BYTES": TensorProto.STRING,
}
_DATATYPES = {value: name for name, value in ONNX_TYPES.items()}


def value(name: str, datatype: str, shape: Sequence[int | str | None] | None) -> onnx.ValueInfoProto:
    """One input or output; a shape of None is left out of the file."""
    return helper.make_tensor_value_info(name, ONNX_TYPES[datatype], shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[onnx.TensorProto] = (),
    *,
    opset: int = OPSET,
    ir_version: int = IR_VERSION,
    metadata: Mapping[str, str] | None = None,
    domains: Mapping[str, int] | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "graph", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, v) for d, v in (domains or {}).items())]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=ir_version, functions=functions)
    proto.producer_name, proto.producer_version = "edged-tests", "1"
    if metadata:
        helper.set_model_props(proto, dict(metadata))
    return proto


def signature(proto: onnx.ModelProto) -> Signature:
    """What the file declares, told apart from the code under test."""

    def spec(entry: onnx.ValueInfoProto) -> TensorSpec:
        tensor = entry.type.tensor_type
        shape: Shape = tuple(
            d.dim_value if d.WhichOneof("value") == "dim_value" else d.dim_param or "?" for d in tensor.shape.dim
        )
        return TensorSpec(entry.name, _DATATYPES[tensor.elem_type], shape)

    held = {tensor.name for tensor in proto.graph.initializer}
    inputs = tuple(spec(entry) for entry in proto.graph.input if entry.name not in held)
    return Signature(inputs, tuple(spec(entry) for entry in proto.graph.output))


def save(proto: onnx.ModelProto, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(proto.SerializeToString())
    return path


def identity(datatype: str = "FP32", shape: Sequence[int | str] = (1, 4), **more: object) -> onnx.ModelProto:
    """y = x."""
    node = helper.make_node("Identity", ["x"], ["y"])
    return model([node], [value("x", datatype, shape)], [value("y", datatype, shape)], **more)  # type: ignore[arg-type]


def conv(channels: int = 4, size: int = 8, seed: int = 0) -> onnx.ModelProto:
    """A convolution with bias and ReLU on [1, 3, size, size], then its mean over the picture."""
    random = np.random.default_rng(seed)
    weights = numpy_helper.from_array(random.standard_normal((channels, 3, 3, 3)).astype(np.float32), "w")
    bias = numpy_helper.from_array(random.standard_normal(channels).astype(np.float32), "b")
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"]),
        helper.make_node("GlobalAveragePool", ["y"], ["mean"]),
    ]
    outputs = [value("y", "FP32", [1, channels, size, size]), value("mean", "FP32", [1, channels, 1, 1])]
    return model(nodes, [value("x", "FP32", [1, 3, size, size])], outputs, [weights, bias])


def equal_constants(ir_version: int = 3) -> onnx.ModelProto:
    """Two constants of one value, which are listed as inputs too, as every exporter wrote them up to IR version 3."""
    flat = [numpy_helper.from_array(np.array([1, -1], np.int64), name) for name in ("s", "t")]
    weights = numpy_helper.from_array(np.ones((24, 2), np.float32), "w")
    nodes = [
        helper.make_node("Reshape", ["x", "s"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Reshape", ["b", "t"], ["c"]),
        helper.make_node("MatMul", ["c", "w"], ["y"]),
    ]
    listed = [value("s", "INT64", [2]), value("t", "INT64", [2]), value("w", "FP32", [24, 2])]
    ends = [value("x", "FP32", [1, 4, 6]), *listed], [value("y", "FP32", [1, 2])]
    return model(nodes, *ends, [*flat, weights], opset=9, ir_version=ir_version)


def listed_initializers(ir_version: int = IR_VERSION) -> onnx.ModelProto:
    """y = x @ (w * v) * gain, where all three constants are listed as inputs, as some exporters do. w is 4 by 5."""
    constants = {"w": np.ones((4, 5)), "v": np.full((4, 5), 2), "gain": np.full(1, 3)}
    tensors = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in constants.items()]
    nodes = [
        helper.make_node("Mul", ["w", "v"], ["weights"]),
        helper.make_node("MatMul", ["x", "weights"], ["a"]),
        helper.make_node("Mul", ["a", "gain"], ["y"]),
    ]
    listed = [value(name, "FP32", array.shape) for name, array in constants.items()]
    ends = [value("x", "FP32", [1, 4]), *listed], [value("y", "FP32", [1, 5])]
    return model(nodes, *ends, tensors, ir_version=ir_version)


def matmul(rows: int = 4, columns: int = 3, seed: int = 0, datatype: str = "FP32") -> onnx.ModelProto:
    """y = x @ w with w held in the file."""
    array = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)
    weights = numpy_helper.from_array(array.astype(np.float16) if datatype == "FP16" else array, "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    return model([node], [value("x", datatype, [1, rows])], [value("y", datatype, [1, columns])], [weights])


def external(
    folder: Path, location: str = "weights.bin", seed: int = 0, *, columns: int = 3, write: bool = True
) -> Path:
    """`matmul` with its weights in a file of their own, whatever the location says. Returns the model's path."""
    proto = matmul(columns=columns, seed=seed)
    tensor = proto.graph.initializer[0]
    data = tensor.raw_data
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in (("location", location), ("offset", "0"), ("length", str(len(data)))):
        tensor.external_data.add(key=key, value=text)
    path = save(proto, folder / "model.onnx")
    if write:
        (folder / location).parent.mkdir(parents=True, exist_ok=True)
        (folder / location).write_bytes(data)
    return path


def branches() -> onnx.ModelProto:
    """y = x + 1 if `up` else x * 10, by an If with two subgraphs."""
    one, ten = (
        numpy_helper.from_array(np.array(number, np.float32), name) for number, name in ((1, "one"), (10, "ten"))
    )
    then = helper.make_graph([helper.make_node("Add", ["x", "one"], ["t"])], "then", [], [value("t", "FP32", [2])])
    other = helper.make_graph([helper.make_node("Mul", ["x", "ten"], ["e"])], "else", [], [value("e", "FP32", [2])])
    node = helper.make_node("If", ["up"], ["y"], then_branch=then, else_branch=other)
    inputs = [value("up", "BOOL", []), value("x", "FP32", [2])]
    return model([node], inputs, [value("y", "FP32", [2])], [one, ten])


def loop() -> onnx.ModelProto:
    """Doubles x as often as `times` says, which may be never."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Add", ["v", "v"], ["w"])],
        "body",
        [value("i", "INT64", []), value("go", "BOOL", []), value("v", "FP32", [2])],
        [value("on", "BOOL", []), value("w", "FP32", [2])],
    )
    yes = numpy_helper.from_array(np.array(True), "yes")
    nodes = [
        helper.make_node("Cast", ["times"], ["count"], to=TensorProto.INT64),
        helper.make_node("Loop", ["count", "yes", "x"], ["y"], body=body),
    ]
    return model(nodes, [value("times", "INT32", []), value("x", "FP32", [2])], [value("y", "FP32", [2])], [yes])


def several() -> onnx.ModelProto:
    """Two inputs, three outputs: sum, difference, product."""
    nodes = [
        helper.make_node(op, ["a", "b"], [name]) for op, name in (("Add", "sum"), ("Sub", "diff"), ("Mul", "prod"))
    ]
    shape = [1, 3]
    inputs = [value("a", "FP32", shape), value("b", "FP32", shape)]
    return model(nodes, inputs, [value(name, "FP32", shape) for name in ("sum", "diff", "prod")])


def text() -> onnx.ModelProto:
    """Strings in, the same strings out."""
    return identity("BYTES", ["n"])


def equals_text(elements: Sequence[bytes]) -> onnx.ModelProto:
    """Strings in, for each whether it is the one at its place here."""
    known = onnx.TensorProto(name="known", data_type=TensorProto.STRING, dims=[len(elements)], string_data=elements)
    shape = [len(elements)]
    node = helper.make_node("Equal", ["x", "known"], ["y"])
    return model([node], [value("x", "BYTES", shape)], [value("y", "BOOL", shape)], [known], opset=19)


def dynamic() -> onnx.ModelProto:
    """ReLU on [batch, 3, height, width]."""
    shape = ["batch", 3, "height", "width"]
    node = helper.make_node("Relu", ["x"], ["y"])
    return model([node], [value("x", "FP32", shape)], [value("y", "FP32", shape)])


def gather(rows: int = 4) -> onnx.ModelProto:
    """Looks up rows of a small table: most integers are out of its range."""
    table = numpy_helper.from_array(np.arange(rows * 2, dtype=np.float32).reshape(rows, 2), "table")
    node = helper.make_node("Gather", ["table", "index"], ["y"])
    return model([node], [value("index", "INT64", [3])], [value("y", "FP32", [3, 2])], [table])


def noisy() -> onnx.ModelProto:
    """One output that is ReLU of the input, and one of random numbers, new at every run."""
    nodes = [
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("RandomUniformLike", ["x"], ["noise"], low=0.0, high=1.0),
    ]
    outputs = [value("y", "FP32", [1, 64]), value("noise", "FP32", [1, 64])]
    return model(nodes, [value("x", "FP32", [1, 64])], outputs)


def scaled_conv(factor: float = 1e37) -> onnx.ModelProto:
    """A convolution with weights of about `factor`, times 1/factor. For large inputs it overflows as written, and no
    more once an optimiser has folded the factor into the weights."""
    random = np.random.default_rng(0)
    weights = random.standard_normal((4, 3, 3, 3)).astype(np.float32) * np.float32(factor)
    held = [
        numpy_helper.from_array(weights, "w"),
        numpy_helper.from_array(np.full((4, 1, 1), 1 / factor, np.float32), "s"),
    ]
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]), helper.make_node("Mul", ["c", "s"], ["y"])]
    return model(nodes, [value("x", "FP32", [1, 3, 8, 8])], [value("y", "FP32", [1, 4, 8, 8])], held)


def scaled_matmul(factor: float = 1e38) -> onnx.ModelProto:
    """y = (factor x) @ (z / factor). As `scaled_conv`, of two inputs, and for an optimiser that goes further."""
    held = [numpy_helper.from_array(np.float32(number), name) for name, number in (("f", factor), ("g", 1 / factor))]
    nodes = [
        helper.make_node("Mul", ["x", "f"], ["a"]),
        helper.make_node("Mul", ["z", "g"], ["b"]),
        helper.make_node("MatMul", ["a", "b"], ["y"]),
    ]
    inputs = [value("x", "FP32", [1, 16]), value("z", "FP32", [16, 4])]
    return model(nodes, inputs, [value("y", "FP32", [1, 4])], held)
