"""Reads an ONNX file and says what is in it. Runs in a child of the daemon: a hostile file can harm only that.

Format: https://github.com/onnx/onnx/blob/main/docs/IR.md (ModelProto).
"""

from __future__ import annotations

import codecs
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import onnx
import onnx.shape_inference

from edged.backend.contract import Signature
from edged.errors import ModelRefused
from edged.model.identity import file_digest, model_digest
from edged.model.inspection import ExternalFile, Inspection
from edged.tensors import ANY_SHAPE, Dim, TensorSpec

# onnx.TensorProto.DataType -> Open Inference Protocol datatype
_DATATYPES = {
    onnx.TensorProto.FLOAT: "FP32",
    onnx.TensorProto.UINT8: "UINT8",
    onnx.TensorProto.INT8: "INT8",
    onnx.TensorProto.UINT16: "UINT16",
    onnx.TensorProto.INT16: "INT16",
    onnx.TensorProto.INT32: "INT32",
    onnx.TensorProto.INT64: "INT64",
    onnx.TensorProto.STRING: "BYTES",
    onnx.TensorProto.BOOL: "BOOL",
    onnx.TensorProto.FLOAT16: "FP16",
    onnx.TensorProto.DOUBLE: "FP64",
    onnx.TensorProto.UINT32: "UINT32",
    onnx.TensorProto.UINT64: "UINT64",
    onnx.TensorProto.BFLOAT16: "BF16",
}
# What people hand over by mistake, by the first bytes of it.
_MISTAKES = (
    (b"PK\x03\x04", "a zip archive; unpack it first"),
    (b"\x1f\x8b", "gzip-compressed; unpack it first"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself; run git lfs pull"),
    (b"<", "a web page or XML, not an ONNX model; download the file itself"),
)

_TEXT = 4096  # bytes that tell a text from anything else

# An input or output as far as it can be expressed, and why it cannot be served; empty where it can.
_Value: TypeAlias = tuple[TensorSpec, str]


def inspect(path: Path) -> Inspection:
    """Parses a model without its weights' values. ModelRefused, in one line, when the file is none.

    What parses is told in full; why it cannot be served all the same is then in `refusal`.
    """
    _require_file(path)
    proto = _parse(path)
    external = tuple(_external(proto, path.parent))
    graph_digest = file_digest(path)
    graphs = list(_graphs(proto.graph))
    nodes = [node for graph in graphs for node in graph.node]
    inputs, outputs = _values(_with_shapes(proto))
    digest, damage = _digest(path, external, graph_digest)
    refusals = [damage, *(refusal for _, refusal in (*inputs, *outputs))]
    return Inspection(
        digest=digest,
        graph_digest=graph_digest,
        size=path.stat().st_size,
        ir_version=proto.ir_version,
        opsets={entry.domain or "ai.onnx": entry.version for entry in proto.opset_import},
        producer=f"{proto.producer_name} {proto.producer_version}".strip(),
        metadata={entry.key: entry.value for entry in proto.metadata_props},
        signature=Signature(tuple(spec for spec, _ in inputs), tuple(spec for spec, _ in outputs)),
        operators=dict(sorted(Counter(_operator(node) for node in nodes).items())),
        subgraphs=len(graphs) - 1,
        functions=len(proto.functions),
        parameters=sum(_elements(tensor) for graph in graphs for tensor in graph.initializer),
        external=external,
        refusal=next(filter(None, refusals), ""),
    )


def _digest(path: Path, external: tuple[ExternalFile, ...], graph_digest: str) -> tuple[str, str]:
    """The model's identity; or none, and why its external data is not whole."""
    for file in external:
        if file.problem:
            return "", file.problem
    try:
        return model_digest(path, [file.path for file in external], graph_digest=graph_digest), ""
    except ModelRefused as error:  # such as a file that is not ours to read
        return "", str(error)


def _require_file(path: Path) -> None:
    try:
        status = path.stat()
    except OSError as error:
        raise ModelRefused(f"{path.name} cannot be opened: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):  # opening a FIFO would hang
        raise ModelRefused(f"{path.name} is not a regular file; name the .onnx file itself")
    if status.st_size == 0:
        raise ModelRefused(f"{path.name} is empty; copy the model again")


def _parse(path: Path) -> onnx.ModelProto:
    with path.open("rb") as file:
        head = file.read(64)
    for magic, meaning in _MISTAKES:
        if head.lstrip().startswith(magic):
            raise ModelRefused(f"{path.name} is {meaning}")
    try:
        proto = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # the parser's errors share no base
        _refuse_text(path)
        raise ModelRefused(f"{path.name} is not a whole ONNX model: it cannot be parsed (truncated?)") from error
    if not proto.graph.node or not proto.graph.output or not proto.opset_import:
        _refuse_text(path)
        raise ModelRefused(f"{path.name} is not an ONNX model: it has no graph with outputs")
    return proto


def _refuse_text(path: Path) -> None:
    """ModelRefused when the file, which is no model, begins as text does."""
    with path.open("rb") as file:
        head = file.read(_TEXT)
    try:
        # The last character may be cut in two.
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(head, final=len(head) < _TEXT)
    except UnicodeDecodeError:
        return
    if all(character.isprintable() or character.isspace() for character in text):
        raise ModelRefused(f"{path.name} is a text file, not a whole ONNX model; name the .onnx file itself")


def _with_shapes(proto: onnx.ModelProto) -> onnx.GraphProto:
    """The graph, with output shapes worked out where the exporter left them away."""
    if all(value.type.tensor_type.HasField("shape") for value in proto.graph.output):
        return proto.graph
    try:
        return onnx.shape_inference.infer_shapes(proto).graph
    except Exception:  # an aid only: whatever stops it says nothing about the model
        return proto.graph


def _values(graph: onnx.GraphProto) -> tuple[list[_Value], list[_Value]]:
    """Inputs and outputs."""
    # Before IR version 4 every initialiser was listed as an input as well.
    initialisers = {tensor.name for tensor in graph.initializer}
    inputs = [_value(value) for value in graph.input if value.name not in initialisers]
    return inputs, [_value(value) for value in graph.output]


def _value(value: onnx.ValueInfoProto) -> _Value:
    name = _text(value.name)
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        what = (kind or "value without a type").removesuffix("_type")
        spec = TensorSpec(name, what.upper() if kind else "UNDEFINED", ANY_SHAPE)
        return spec, f"{name!r} is a {what}: only tensors can be served"
    tensor = value.type.tensor_type
    datatype, refusal = _datatype(name, tensor.elem_type)
    if name != value.name:
        refusal = f"a tensor's name is not UTF-8: {value.name!r}"
    shape = tuple(_dim(dim) for dim in tensor.shape.dim) if tensor.HasField("shape") else ANY_SHAPE
    return TensorSpec(name, datatype, shape), refusal


def _datatype(name: str, element: int) -> tuple[str, str]:
    """The protocol's datatype; or ONNX's own name of the type, and why it is refused."""
    datatype = _DATATYPES.get(element)  # type: ignore[call-overload]  # the stub wants the enum, the file holds an int
    if datatype is not None:
        return datatype, ""
    names = {number: name for name, number in onnx.TensorProto.DataType.items()}
    told = names.get(element, f"number {element}")
    return told, f"{name!r} has elements of type {told}, which the inference protocol cannot carry"


def _text(text: str | bytes) -> str:
    """Protobuf hands out bytes for text that is not UTF-8."""
    return text if isinstance(text, str) else text.decode(errors="replace")


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    # Some exporters write -1 for a dynamic size instead of leaving it out.
    if dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0:
        return int(dim.dim_value)
    return str(dim.dim_param) or "?"


def _operator(node: onnx.NodeProto) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else str(node.op_type)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph and every graph inside its nodes, without recursion: nesting can be as deep as the file likes."""
    waiting = [graph]
    while waiting:
        current = waiting.pop()
        yield current
        for node in current.node:
            waiting.extend(_bodies(node))


def _bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs that a node holds, such as the branches of an If."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _elements(tensor: onnx.TensorProto) -> int:
    count = 1
    for dim in tensor.dims:
        count *= dim
    return count


def _tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    bodies = [inner for function in proto.functions for node in function.node for inner in _bodies(node)]
    for graph in (inner for outer in (proto.graph, *bodies) for inner in _graphs(outer)):
        yield from graph.initializer
        for node in graph.node:
            yield from _constants(node)
    for function in proto.functions:
        for node in function.node:
            yield from _constants(node)


def _constants(node: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors


def _external(proto: onnx.ModelProto, folder: Path) -> Iterator[ExternalFile]:
    """Every external file once. Usable is a regular file inside the model's folder, long enough for what it holds."""
    needed: dict[str, int] = {}
    damaged: dict[str, str] = {}
    for tensor in _tensors(proto):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        entries = {entry.key: _text(entry.value) for entry in tensor.external_data}
        location = entries.get("location", "")
        try:
            end = int(entries.get("offset", "0")) + int(entries.get("length", "0"))
        except ValueError:
            end = 0
            damaged[location] = f"tensor {_text(tensor.name)!r} has a damaged reference to external data"
        needed[location] = max(needed.get(location, 0), end)
    for location, end in sorted(needed.items()):
        size, problem = _external_size(folder, location, end)
        yield ExternalFile(location, size, damaged.get(location, problem))


def _external_size(folder: Path, location: str, end: int) -> tuple[int, str]:
    """Bytes of an external file, and why it cannot be used; empty where it can."""
    path, named = folder / location, f"external data {location!r}"
    if not location or "\0" in location or Path(location).is_absolute() or ".." in Path(location).parts:
        return 0, f"{named} lies outside the model's folder; export it beside the model"
    try:
        status = path.lstat()
        resolved, home = path.resolve(), folder.resolve()
    except (OSError, RuntimeError):  # RuntimeError: links in a circle, before Python 3.13
        return 0, f"{named} is missing; put it beside the model"
    if not stat.S_ISREG(status.st_mode):
        return 0, f"{named} is not a regular file; copy the file itself beside the model"
    if not resolved.is_relative_to(home):
        return 0, f"{named} leads outside the model's folder; copy the file itself"
    if status.st_size < end:
        return status.st_size, f"{named} is truncated: {status.st_size} bytes of at least {end}"
    return status.st_size, ""
