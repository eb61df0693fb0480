"""Reads an ONNX file and describes it. Runs in a child of the daemon, so that a hostile file can harm only the child.

Format: https://github.com/onnx/onnx/blob/main/docs/IR.md (ModelProto).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import onnx

from edged.backends.contract import Signature
from edged.errors import ModelRefused
from edged.jobs import external_data, graph_check, inference_check, model_file, onnx_walk
from edged.jobs.onnx_walk import heads
from edged.jobs.weights import element_count, footprint
from edged.models.finding import Category, Finding, Stage
from edged.models.identity import model_digest
from edged.models.inspection import ExternalFile, Inspection
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
_MOST_ELEMENTS = 16  # the most elements of an input with a default; larger initializers among the inputs are weights
_NO_DEFAULTS = ("BYTES", "BF16")  # inputs of these types get no default: sessions convert them by the signature
_ZIPMAP = "export it with options={'zipmap': False}: skl2onnx.to_onnx(model, x, options={'zipmap': False})"
_HALVES = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)

# An input or output, and the finding (None if the tensor can be served).
_Value: TypeAlias = tuple[TensorSpec, Finding | None]
Report: TypeAlias = Callable[[Stage], None]


def _no_report(stage: Stage) -> None:
    """Report nothing."""


def inspect(path: Path, report: Report = _no_report) -> Inspection:
    """Parse a model without its external weights, and check whether it can be served.

    If the file can be parsed, the inspection is complete. If the model cannot be served, the inspection's `finding`
    says why. Raises ModelRefused with a finding if the file is not a model. `report` is called at the start of each
    stage, so that the stage of a crash is known.
    """
    report(Stage.FILE)
    size = model_file.require(path)
    report(Stage.PARSE)
    proto, graph_digest = model_file.parse(path)
    report(Stage.GRAPH)
    walk = onnx_walk.Walk.of(proto)
    finding = graph_check.check(walk)
    parameters = sum(element_count(tensor) for graph in walk.graphs for tensor in graph.initializer)
    external, missing = external_data.files(walk.tensors, path.parent)
    inferred, suspicion = proto, None
    if finding is None:  # a model that is known to be invalid is not passed to code that trusts it
        inference_check.take_weights_out(walk)
        inferred, suspicion = inference_check.infer(walk)
    # Declared types and shapes stay; missing ones are inferred.
    inputs, outputs = _values(proto.graph, inferred.graph)
    finding = finding or next((found for _, found in (*inputs, *outputs) if found is not None), None)
    needs = footprint(walk.tensors, inferred)
    report(Stage.EXTERNAL_DATA)
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
    """Return the external files of a model.

    Raises ModelRefused if the file is not a model, or if an external file is missing or incomplete. This function
    infers nothing from the graph, so it can be called outside a child.
    """
    model_file.require(path)
    external, missing = external_data.files(onnx_walk.Walk.of(model_file.parse(path)[0]).tensors, path.parent)
    if missing is not None:
        raise missing.refusal()
    return external


def _digest(
    path: Path, external: tuple[ExternalFile, ...], graph_digest: str, missing: Finding | None
) -> tuple[str, Finding | None]:
    """Return the model's digest and None; an empty text and a finding if external data is missing or incomplete."""
    if missing is not None:
        return "", missing
    try:
        return model_digest(path, [file.path for file in external], graph_digest=graph_digest), None
    except ModelRefused as error:  # for example because a file was removed meanwhile
        is_gone = isinstance(error.__cause__, FileNotFoundError)
        remedy = "put it into the model's folder" if is_gone else "give edged's user read permission"
        return "", Finding(Stage.EXTERNAL_DATA, Category.EXTERNAL_MISSING, str(error), remedy)


def _values(graph: onnx.GraphProto, inferred: onnx.GraphProto) -> tuple[list[_Value], list[_Value]]:
    """Return inputs and outputs with their findings. An output without a type or shape gets the inferred ones."""
    # Before IR version 4 every initializer was listed as an input as well.
    initializers = {tensor.name for tensor in graph.initializer}
    worked_out = {value.name: value for value in inferred.output}
    inputs = [_value(value) for value in graph.input if value.name not in initializers]
    outputs = [worked_out.get(value.name, value) if _is_open(value) else value for value in graph.output]
    zipped = {name for node in graph.node if node.op_type == "ZipMap" for name in node.output}
    return inputs, [_value(value, _ZIPMAP if value.name in zipped else "") for value in outputs]


def _optional(proto: onnx.ModelProto) -> tuple[TensorSpec, ...]:
    """Return the inputs with a default, such as thresholds, scales and flags. These are small initializers that are
    also inputs. Large initializers are weights, which some exporters also list as inputs. Before IR version 4, files
    had to list every initializer as an input, so the list does not show which inputs have a default. For such files,
    return no inputs."""
    if proto.ir_version < _FIRST_OPTIONAL:
        return ()
    small = {tensor.name for tensor in proto.graph.initializer if element_count(tensor) <= _MOST_ELEMENTS}
    values = [_value(value) for value in proto.graph.input if value.name in small]
    return tuple(spec for spec, finding in values if finding is None and spec.datatype not in _NO_DEFAULTS)


def _is_open(value: onnx.ValueInfoProto) -> bool:
    """Whether the type, the element type or the shape of a value is missing in the file."""
    kind, tensor = value.type.WhichOneof("value"), value.type.tensor_type
    return kind is None or (kind == "tensor_type" and not (tensor.elem_type and tensor.HasField("shape")))


def _value(value: onnx.ValueInfoProto, remedy: str = "") -> _Value:
    """Return an input or output with its finding. `remedy`: what to do if the value is not a tensor."""
    name = onnx_walk.text(value.name)
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        what = (kind or "value without a type").removesuffix("_type")
        spec = TensorSpec(name, what.upper() if kind else "UNDEFINED", ANY_SHAPE)
        remedy = remedy or ("remove the node that produces it" if kind else "export the model again")
        return spec, _unservable(f"{name!r} is a {what}: only tensors can be served", remedy, name)
    tensor = value.type.tensor_type
    datatype, finding = _datatype(name, tensor.elem_type)
    shape = tuple(_dim(dim) for dim in tensor.shape.dim) if tensor.HasField("shape") else ANY_SHAPE
    return TensorSpec(name, datatype, shape), finding


def _datatype(name: str, element: int) -> tuple[str, Finding | None]:
    """Return the protocol's datatype and None; ONNX's name of the type and a finding if the protocol lacks the type."""
    datatype = _DATATYPES.get(element)  # type: ignore[call-overload]  # the stub wants the enum, the file holds an int
    if datatype is not None:
        return datatype, None
    names = {number: name for name, number in onnx.TensorProto.DataType.items()}
    name_of_type = names.get(element, f"number {element}")
    message = f"{name!r} has elements of type {name_of_type}, which the inference protocol cannot carry"
    return name_of_type, _unservable(message, "cast it inside the model", name)


def _unservable(message: str, remedy: str, name: str) -> Finding:
    return Finding(Stage.GRAPH, Category.UNSERVABLE_TYPE, message, remedy, name)


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    # Some exporters write -1 for a dynamic size instead of leaving it out.
    if dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0:
        return int(dim.dim_value)
    return onnx_walk.text(dim.dim_param) or "?"


def _operators(walk: onnx_walk.Walk) -> dict[str, int]:
    """Return the number of nodes of each operator, without the nodes of local functions."""
    counts = Counter((node.domain, node.op_type) for graph in walk.graphs for node in graph.node)
    named: Counter[str] = Counter()
    for (domain, name), count in counts.items():
        named[onnx_walk.operator_name(domain, name)] += count
    return dict(sorted(named.items()))


def _first_nodes(walk: onnx_walk.Walk) -> dict[str, str]:
    """Return a mapping from each operator to the label of the first node that uses it. Local functions are left out,
    because the model itself defines them."""
    known = {(function.domain, function.name) for function in walk.proto.functions}
    first: dict[str, str] = {}
    for node in walk.nodes:
        kind = (node.domain, node.op_type)
        if kind not in known:
            known.add(kind)
            first.setdefault(onnx_walk.operator(node), onnx_walk.label(node))
    return first
