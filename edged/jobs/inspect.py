"""Reads an ONNX file and says what is in it. Runs in a child of the daemon: a hostile file can harm only that.

Format: https://github.com/onnx/onnx/blob/main/docs/IR.md (ModelProto).
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import onnx
from google.protobuf.unknown_fields import UnknownFieldSet

from edged.backends.contract import Signature
from edged.errors import ModelRefused
from edged.files import read_regular
from edged.jobs import external_data, graph_check, inference_check, onnx_walk
from edged.jobs import protobuf_wire as wire
from edged.jobs.heads import heads
from edged.jobs.memory_estimate import footprint
from edged.jobs.mistaken import mistake
from edged.models.finding import Category, Finding, Stage
from edged.models.identity import model_digest
from edged.models.inspection import ExternalFile, Inspection, too_large
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
_FIRST_OPTIONAL = 4  # IR version
_MOST_ELEMENTS = 16  # of an input with a default; a larger one is a weight that the exporter listed with all others
_NO_DEFAULTS = ("BYTES", "BF16")  # which sessions convert by the signature
_ZIPMAP = "export it with options={'zipmap': False}: skl2onnx.to_onnx(model, x, options={'zipmap': False})"
_HALVES = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
_TRITON_NAME = "model.onnx"  # of every model in Triton's layout: MODEL/VERSION/model.onnx

# An input or output as far as it can be expressed, and why it cannot be served, if so.
_Value: TypeAlias = tuple[TensorSpec, Finding | None]
Told: TypeAlias = Callable[[Stage], None]


def _untold(stage: Stage) -> None:
    """Nobody watches."""


def inspect(path: Path, told: Told = _untold) -> Inspection:
    """Parses a model without its weights' values and checks whether it could be served by anything.

    What parses is told in full; why it cannot be served all the same is then in `finding`. ModelRefused, with the
    finding, when it is no model at all. `told` hears of every stage as it begins: a crash then has a place.
    """
    told(Stage.FILE)
    size = _require_file(path)
    told(Stage.PARSE)
    proto, graph_digest = _parse(path)
    told(Stage.GRAPH)
    walk = onnx_walk.Walk.of(proto)
    finding = graph_check.check(walk)
    parameters = sum(_elements(tensor) for graph in walk.graphs for tensor in graph.initializer)
    external, missing = external_data.files(walk.tensors, path.parent)
    inferred, suspicion = proto, None
    if finding is None:  # what is known to be wrong is not given to code that trusts it
        inference_check.take_weights_out(walk)
        inferred, suspicion = inference_check.infer(walk)
    # What an exporter left away is told as it was worked out; what it said stays as it is.
    inputs, outputs = _values(proto.graph, inferred.graph)
    finding = finding or next((found for _, found in (*inputs, *outputs) if found is not None), None)
    needs = footprint(walk.tensors, inferred)
    told(Stage.EXTERNAL_DATA)
    if missing is None:
        external, missing = external_data.altered(walk.tensors, path.parent, external)
    digest, damage = _digest(path, external, graph_digest, missing)
    return Inspection(
        digest=digest,
        graph_digest=graph_digest,
        size=size,
        ir_version=proto.ir_version,
        opsets={onnx_walk.domain(entry.domain): entry.version for entry in proto.opset_import},
        producer=f"{onnx_walk.text(proto.producer_name)} {onnx_walk.text(proto.producer_version)}".strip(),
        metadata={onnx_walk.text(entry.key): onnx_walk.text(entry.value) for entry in proto.metadata_props},
        signature=Signature(tuple(spec for spec, _ in inputs), tuple(spec for spec, _ in outputs)),
        operators=_operators(walk),
        subgraphs=len(walk.graphs) - 1,
        functions=len(proto.functions),
        parameters=parameters,
        external=external,
        finding=finding or damage,
        suspicion=suspicion,
        nodes=_first_nodes(walk),
        footprint=needs,
        optional=_optional(proto),
        heads=heads(proto.graph),
        halves=any(tensor.data_type in _HALVES for tensor in walk.tensors),
    )


def external_files(path: Path) -> tuple[ExternalFile, ...]:
    """The files beside a model that belong to it, all of them whole.

    ModelRefused for a file that is no model, or one of whose external data something is wrong. Only what a file says is
    read, so that a program that has no child for it may ask: nothing is worked out of the graph.
    """
    _require_file(path)
    external, missing = external_data.files(onnx_walk.Walk.of(_parse(path)[0]).tensors, path.parent)
    if missing is not None:
        raise missing.refusal()
    return external


def _digest(
    path: Path, external: tuple[ExternalFile, ...], graph_digest: str, missing: Finding | None
) -> tuple[str, Finding | None]:
    """The model's identity; or none, and why its external data is not whole."""
    if missing is not None:
        return "", missing
    try:
        return model_digest(path, [file.path for file in external], graph_digest=graph_digest), None
    except ModelRefused as error:  # such as one that went meanwhile
        return "", Finding(Stage.EXTERNAL_DATA, Category.EXTERNAL_MISSING, str(error), "put it beside the model")


# -- the file -------------------------------------------------------------------------------------------------------


def _require_file(path: Path) -> int:
    """Its size in bytes."""
    try:
        status = path.stat()
    except OSError as error:
        raise _unopened(path, error).refusal() from error
    if stat.S_ISDIR(status.st_mode):
        raise Finding(Stage.FILE, Category.NOT_A_FILE, f"{path.name} is a folder", _in_folder(path)).refusal()
    if not stat.S_ISREG(status.st_mode):  # opening a FIFO would hang
        message = f"{path.name} is not a regular file"
        raise Finding(Stage.FILE, Category.NOT_A_FILE, message, "name the .onnx file itself").refusal()
    if status.st_size == 0:
        raise Finding(Stage.FILE, Category.EMPTY, f"{path.name} is empty", "copy the model again").refusal()
    if (finding := too_large(path.name, status.st_size)) is not None:
        raise finding.refusal()
    if not os.access(path, os.R_OK):
        message = f"{path.name} cannot be read: permission denied"
        raise Finding(Stage.FILE, Category.UNREADABLE, message, "let edged's user read it").refusal()
    return status.st_size


def _unopened(path: Path, error: OSError) -> Finding:
    name = path.name
    if error.errno == errno.ELOOP:
        message = f"{name} is a link that leads back to itself"
        return Finding(Stage.FILE, Category.UNREADABLE, message, "name the .onnx file itself, or link to it")
    if isinstance(error, FileNotFoundError):
        if path.is_symlink():
            message = f"{name} is a link to a file that does not exist"
            return Finding(Stage.FILE, Category.MISSING, message, "correct the link, or copy the file itself")
        end = Path(*path.parts[-3:]) if name == _TRITON_NAME else name
        return Finding(Stage.FILE, Category.MISSING, f"there is no file {end}", _instead(path))
    return Finding(
        Stage.FILE, Category.UNREADABLE, f"{name} cannot be opened: {error.strerror}", "let edged's user read it"
    )


def _instead(path: Path) -> str:
    """What to do about a file that is missing."""
    found = _onnx_in(path.parent)
    if path.name == _TRITON_NAME and found:
        return f"rename {found} to {path.name}"
    return "copy the model there, or correct the path"


def _in_folder(path: Path) -> str:
    """What to name instead of a folder."""
    try:
        names = sorted(os.listdir(path))
    except OSError:
        names = []
    if "saved_model.pb" in names:
        return "convert TensorFlow's SavedModel with tf2onnx, and name the .onnx file"
    found = _onnx_in(path)
    return f"name the .onnx file in it: {path.name}/{found}" if found else "name the .onnx file itself"


def _onnx_in(folder: Path) -> str:
    """The name of a model's file in a folder; empty if it has none."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return ""
    return next((name[:100] for name in names if name.endswith(".onnx") and name.isprintable()), "")


def _parse(path: Path) -> tuple[onnx.ModelProto, str]:
    """What a file holds, and the SHA-256 of these very bytes: it may be another file in a moment."""
    try:
        data = read_regular(path)
    except OSError as error:
        message = f"{path.name} cannot be read: {error.strerror}"
        raise Finding(
            Stage.FILE, Category.UNREADABLE, message, "check the disk, or copy the model again"
        ).refusal() from error
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except Exception as error:  # the parser's errors share no base
        _require_no_mistake(path.name, data)
        raise _unparsed(path.name, data) from error
    # Bytes that happen to be a message, of which nothing or little is a model's.
    if not proto.graph.node and not proto.graph.output and not proto.opset_import:
        _require_no_mistake(path.name, data)
        if not proto.HasField("graph"):
            missing = f"{path.name} is not an ONNX model: it has no graph with outputs"
            raise _no_model(Category.NO_GRAPH, missing, "name the .onnx file itself, or copy it again")
    return proto, hashlib.sha256(data).hexdigest()


def _unparsed(name: str, data: bytes) -> ModelRefused:
    """Why bytes that protobuf refuses are no model."""
    trouble = wire.trouble(data)
    if trouble == "too deep":
        message = f"{name} nests graphs or types deeper than protobuf allows"
        return _no_model(
            Category.TOO_DEEP, message, "export the model with fewer loops and branches inside one another"
        )
    said = "it was cut off" if trouble == "truncated" else "it is damaged, or no model"
    return _no_model(
        Category.DAMAGED, f"{name} is not a whole ONNX model: it cannot be parsed, {said}", "copy it again"
    )


def _no_model(category: Category, message: str, remedy: str = "name the .onnx file itself") -> ModelRefused:
    return Finding(Stage.PARSE, category, message, remedy).refusal()


def _require_no_mistake(name: str, data: bytes) -> None:
    """ModelRefused for what is known to be something else than ONNX."""
    if (found := mistake(data)) is not None:
        raise _no_model(Category.NOT_ONNX, f"{name} is {found.kind}", found.remedy)
    if _is_tensor(data):
        kind = "a single tensor (TensorProto), such as an input of a test data set, not a model"
        remedy = (
            "name the .onnx file itself; to give its values as a sample, save them with numpy.savez and use --samples"
        )
        raise _no_model(Category.NOT_ONNX, f"{name} is {kind}", remedy)


def _is_tensor(data: bytes) -> bool:
    """Whether a file holds a tensor and nothing else: a model has fields of other types at the same numbers."""
    tensor = onnx.TensorProto()
    try:
        tensor.ParseFromString(data)
    except Exception:  # the parser's errors share no base
        return False
    holds = (tensor.raw_data, tensor.float_data, tensor.int32_data, tensor.int64_data, tensor.double_data)
    has_values = any(map(len, (*holds, tensor.uint64_data, tensor.string_data)))
    is_typed = tensor.data_type in onnx.TensorProto.DataType.values() and tensor.data_type != tensor.UNDEFINED
    return is_typed and has_values and len(UnknownFieldSet(tensor)) == 0


# -- what it holds --------------------------------------------------------------------------------------------------


def _values(graph: onnx.GraphProto, inferred: onnx.GraphProto) -> tuple[list[_Value], list[_Value]]:
    """Inputs and outputs; of those without a type or a shape, what was worked out."""
    # Before IR version 4 every initialiser was listed as an input as well.
    initialisers = {tensor.name for tensor in graph.initializer}
    worked_out = {value.name: value for value in inferred.output}
    inputs = [_value(value) for value in graph.input if value.name not in initialisers]
    outputs = [worked_out.get(value.name, value) if _is_open(value) else value for value in graph.output]
    zipped = {name for node in graph.node if node.op_type == "ZipMap" for name in node.output}
    return inputs, [_value(value, _ZIPMAP if value.name in zipped else "") for value in outputs]


def _optional(proto: onnx.ModelProto) -> tuple[TensorSpec, ...]:
    """Inputs with a default: thresholds, scales and flags, by their size. Some exporters list every initializer as an
    input, and before IR version 4 all had to."""
    if proto.ir_version < _FIRST_OPTIONAL:
        return ()
    small = {tensor.name for tensor in proto.graph.initializer if _elements(tensor) <= _MOST_ELEMENTS}
    values = [_value(value) for value in proto.graph.input if value.name in small]
    return tuple(spec for spec, finding in values if finding is None and spec.datatype not in _NO_DEFAULTS)


def _is_open(value: onnx.ValueInfoProto) -> bool:
    """Whether the file leaves its type, the type of its elements or its shape to whoever reads it."""
    kind, tensor = value.type.WhichOneof("value"), value.type.tensor_type
    return kind is None or (kind == "tensor_type" and not (tensor.elem_type and tensor.HasField("shape")))


def _value(value: onnx.ValueInfoProto, remedy: str = "") -> _Value:
    """`remedy` is for one that is no tensor, where its maker is known."""
    name = onnx_walk.text(value.name)
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        what = (kind or "value without a type").removesuffix("_type")
        spec = TensorSpec(name, what.upper() if kind else "UNDEFINED", ANY_SHAPE)
        remedy = remedy or ("leave out the node that makes it" if kind else "export the model again")
        return spec, _unservable(f"{name!r} is a {what}: only tensors can be served", remedy, name)
    tensor = value.type.tensor_type
    datatype, finding = _datatype(name, tensor.elem_type)
    shape = tuple(_dim(dim) for dim in tensor.shape.dim) if tensor.HasField("shape") else ANY_SHAPE
    return TensorSpec(name, datatype, shape), finding


def _datatype(name: str, element: int) -> tuple[str, Finding | None]:
    """The protocol's datatype; or ONNX's own name of the type, and why it is refused."""
    datatype = _DATATYPES.get(element)  # type: ignore[call-overload]  # the stub wants the enum, the file holds an int
    if datatype is not None:
        return datatype, None
    names = {number: name for name, number in onnx.TensorProto.DataType.items()}
    told = names.get(element, f"number {element}")
    message = f"{name!r} has elements of type {told}, which the inference protocol cannot carry"
    return told, _unservable(message, "cast it inside the model", name)


def _unservable(message: str, remedy: str, name: str) -> Finding:
    return Finding(Stage.GRAPH, Category.UNSERVABLE_TYPE, message, remedy, name)


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    # Some exporters write -1 for a dynamic size instead of leaving it out.
    if dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0:
        return int(dim.dim_value)
    return onnx_walk.text(dim.dim_param) or "?"


def _operators(walk: onnx_walk.Walk) -> dict[str, int]:
    """How often each is there, without local functions."""
    counts = Counter((node.domain, node.op_type) for graph in walk.graphs for node in graph.node)
    named: Counter[str] = Counter()
    for (domain, name), count in counts.items():
        named[onnx_walk.operator_name(domain, name)] += count
    return dict(sorted(named.items()))


def _first_nodes(walk: onnx_walk.Walk) -> dict[str, str]:
    """For each operator that a runtime must have, the first node with it."""
    known = {(function.domain, function.name) for function in walk.proto.functions}
    first: dict[str, str] = {}
    for node in walk.nodes:
        kind = (node.domain, node.op_type)
        if kind not in known:
            known.add(kind)
            first.setdefault(onnx_walk.operator(node), onnx_walk.label(node))
    return first


def _elements(tensor: onnx.TensorProto) -> int:
    count = 1
    for dim in tensor.dims:
        count *= dim
    return count
