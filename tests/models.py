"""Small ONNX models, each for one purpose, with an IR version and opset that every supported runtime accepts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, helper, numpy_helper

from edged.backends.contract import Signature
from edged.tensors import Array, Shape, TensorSpec

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
    """Return one input or output; with a shape of None, the file has no shape."""
    return helper.make_tensor_value_info(name, ONNX_TYPES[datatype], shape)


def nodes(*lines: str | onnx.NodeProto) -> list[onnx.NodeProto]:
    """Return nodes from ONNX's textual syntax, such as `[name] y = Add(x, w)`; node objects pass unchanged."""
    return [onnx.parser.parse_node(line) if isinstance(line, str) else line for line in lines]


def parse(graph: str, constants: Mapping[str, Array] | None = None, **more: object) -> onnx.ModelProto:
    """Return a model of a graph in ONNX's textual syntax: `(float[n,4] x) => (float[n,4] y) { y = Relu(x) }`.

    https://github.com/onnx/onnx/blob/main/docs/Syntax.md
    """
    made = onnx.parser.parse_graph(f"graph {graph}")
    tensors = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    return model(made.node, made.input, made.output, [*made.initializer, *tensors], **more)  # type: ignore[arg-type]


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
    """Read what the file declares, independently of the code under test."""

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
    ends = [value("x", datatype, shape)], [value("y", datatype, shape)]
    return model(nodes("y = Identity(x)"), *ends, **more)  # type: ignore[arg-type]


def conv(channels: int = 4, size: int = 8, seed: int = 0) -> onnx.ModelProto:
    """A convolution with bias and ReLU on [1, 3, size, size], then its mean over the picture."""
    random = np.random.default_rng(seed)
    weights = random.standard_normal((channels, 3, 3, 3)).astype(np.float32)
    bias = random.standard_normal(channels).astype(np.float32)
    return parse(
        f"""(float[1,3,{size},{size}] x) => (float[1,{channels},{size},{size}] y, float[1,{channels},1,1] mean) {{
            c = Conv<pads = [1, 1, 1, 1]>(x, w, b)
            y = Relu(c)
            mean = GlobalAveragePool(y)
        }}""",
        {"w": weights, "b": bias},
    )


def equal_constants(ir_version: int = 3) -> onnx.ModelProto:
    """Two equal constants that are also listed as inputs, as every exporter did up to IR version 3."""
    return parse(
        """(float[1,4,6] x, int64[2] s, int64[2] t, float[24,2] w) => (float[1,2] y)
            <int64[2] s = {1, -1}, int64[2] t = {1, -1}>
            { a = Reshape(x, s) b = Relu(a) c = Reshape(b, t) y = MatMul(c, w) }""",
        {"w": np.ones((24, 2), np.float32)},
        opset=9,
        ir_version=ir_version,
    )


def listed_initializers(ir_version: int = IR_VERSION) -> onnx.ModelProto:
    """y = x @ (w * v) * gain. All three constants are also listed as inputs, as some exporters do. w is 4 by 5."""
    return parse(
        """(float[1,4] x, float[4,5] w, float[4,5] v, float[1] gain) => (float[1,5] y)
            { weights = Mul(w, v) a = MatMul(x, weights) y = Mul(a, gain) }""",
        {"w": np.ones((4, 5), np.float32), "v": np.full((4, 5), 2, np.float32), "gain": np.full(1, 3, np.float32)},
        ir_version=ir_version,
    )


def matmul(rows: int = 4, columns: int = 3, seed: int = 0, datatype: str = "FP32") -> onnx.ModelProto:
    """y = x @ w, with w in the file."""
    array = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)
    weights = numpy_helper.from_array(array.astype(np.float16) if datatype == "FP16" else array, "w")
    ends = [value("x", datatype, [1, rows])], [value("y", datatype, [1, columns])]
    return model(nodes("y = MatMul(x, w)"), *ends, [weights])


def external(
    folder: Path, location: str = "weights.bin", seed: int = 0, *, columns: int = 3, write: bool = True
) -> Path:
    """Save `matmul` with its weights in a separate file, for any location; return the model's path."""
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
    return parse(
        """(bool up, float[2] x) => (float[2] y) <float one = {1}, float ten = {10}> {
            y = If(up) <
                then_branch = then () => (float[2] t) { t = Add(x, one) },
                else_branch = other () => (float[2] e) { e = Mul(x, ten) }
            >
        }"""
    )


def loop() -> onnx.ModelProto:
    """Doubles x `times` times, possibly never."""
    return parse(
        """(int32 times, float[2] x) => (float[2] y) <bool yes = {1}> {
            count = Cast<to = 7>(times)
            y = Loop(count, yes, x) <
                body = body (int64 i, bool go, float[2] v) => (bool on, float[2] w) { on = Identity(go) w = Add(v, v) }
            >
        }"""
    )


def several() -> onnx.ModelProto:
    """Two inputs, three outputs: sum, difference, product."""
    return parse(
        """(float[1,3] a, float[1,3] b) => (float[1,3] sum, float[1,3] diff, float[1,3] prod)
            { sum = Add(a, b) diff = Sub(a, b) prod = Mul(a, b) }"""
    )


def text() -> onnx.ModelProto:
    """Strings in, the same strings out."""
    return identity("BYTES", ["n"])


def equals_text(elements: Sequence[bytes]) -> onnx.ModelProto:
    """Strings in; for each, whether it equals the element at its position."""
    known = TensorProto(name="known", data_type=TensorProto.STRING, dims=[len(elements)], string_data=elements)
    ends = [value("x", "BYTES", [len(elements)])], [value("y", "BOOL", [len(elements)])]
    return model(nodes("y = Equal(x, known)"), *ends, [known], opset=19)


def dynamic() -> onnx.ModelProto:
    """ReLU on [batch, 3, height, width]."""
    return parse("(float[batch,3,height,width] x) => (float[batch,3,height,width] y) { y = Relu(x) }")


def gather(rows: int = 4) -> onnx.ModelProto:
    """Looks up rows of a small table; most indices are out of range."""
    table = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
    return parse("(int64[3] index) => (float[3,2] y) { y = Gather(table, index) }", {"table": table})


def noisy() -> onnx.ModelProto:
    """Two outputs: ReLU of the input, and random numbers that differ in every run."""
    return parse(
        """(float[1,64] x) => (float[1,64] y, float[1,64] noise)
            { y = Relu(x) noise = RandomUniformLike<low = 0.0, high = 1.0>(x) }"""
    )


def scaled_conv(factor: float = 1e37) -> onnx.ModelProto:
    """A convolution with weights of about `factor`, times 1/factor. For large inputs it overflows as written, but not
    after an optimiser has folded the factor into the weights."""
    weights = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32) * np.float32(factor)
    return parse(
        "(float[1,3,8,8] x) => (float[1,4,8,8] y) { c = Conv<pads = [1, 1, 1, 1]>(x, w) y = Mul(c, s) }",
        {"w": weights, "s": np.full((4, 1, 1), 1 / factor, np.float32)},
    )


def scaled_matmul(factor: float = 1e38) -> onnx.ModelProto:
    """y = (factor x) @ (z / factor). As `scaled_conv`, with two inputs; only a stronger optimiser changes it."""
    return parse(
        "(float[1,16] x, float[16,4] z) => (float[1,4] y) { a = Mul(x, f) b = Mul(z, g) y = MatMul(a, b) }",
        {"f": np.array(factor, np.float32), "g": np.array(1 / factor, np.float32)},
    )
