"""Converts a model to int8: inputs and weights of layers pass through Q/DQ pairs, everything else stays float32.

The pairs are placed as TensorRT requires: before layers, never after them, so that following nodes can be fused;
symmetric, with zero points of zero; float32 weights with their own pair and one scale for each channel; no pair for a
bias. Scales are computed from the least and greatest value of each input on the calibration data.

Two kinds of layers stay float32, because int8 gains little and costs accuracy: the last layers, whose outputs become
coordinates and scores; and depthwise convolutions, whose channels differ in range but share one input scale.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.version_converter
from onnx import helper

from edged.backends.contract import one_line
from edged.backends.ort import quantize as ort_quantize
from edged.errors import EngineUnusable, Unsuitable
from edged.jobs.onnx_graph import FLOAT, LAYERS, QUANTISED, Layers, Model, describe_kept, keep_inputs, replace_nodes
from edged.tensors import Array

_OPSET, _IR_VERSION = 13, 7  # the first whose QuantizeLinear takes a scale for each channel


def to_int8(
    source: Path, out: Path, calibration: Sequence[Mapping[str, Array]]
) -> tuple[bool, tuple[str, ...], tuple[str, ...]]:
    """Write the model in int8 as `out`. Write nothing if the model is quantised already.

    Returns whether a file was written, which layers stay in float32 and why, and notes. Raises Unsuitable or
    EngineUnusable if the model cannot be converted.
    """
    model = Model.read(source)
    if any(node.op_type in QUANTISED for node in model.graph.node):
        return False, (), ("it is quantised already",)
    _check(model, calibration)
    with _workplace(out.parent) as work:
        prepared, notes = prepare(model, work)
        chosen, kept = _choose(Model.read(prepared))
        if not chosen:
            raise Unsuitable(f"{source.name} has no layer that int8 would speed up; build it in another precision")
        made = work / "quantised.onnx"
        ort_quantize.quantize(prepared, made, chosen, calibration)
        result = Model.read(made)
        check_result(result, chosen)
        _restore_header(result.proto, model.proto)
        result.write(out)
    return True, kept, notes


def _check(model: Model, calibration: Sequence[Mapping[str, Array]]) -> None:
    """Raise Unsuitable if the calibration data does not fit the model's inputs or is not finite."""
    wanted = {
        value.name: onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        for value in model.graph.input
        if value.name not in model.constants
    }
    for number, sample in enumerate(calibration, 1):
        found = {name: array.dtype for name, array in sample.items()}
        if found != wanted:
            raise Unsuitable(f"calibration sample {number} has {_words(found)}, but the model takes {_words(wanted)}")
        if not all(np.isfinite(array).all() for array in sample.values() if array.dtype.kind == "f"):
            raise Unsuitable(f"calibration sample {number} has values that are not finite")


def _words(inputs: Mapping[str, np.dtype[np.generic]]) -> str:
    return ", ".join(f"{name} {dtype}" for name, dtype in inputs.items()) or "nothing"


@contextlib.contextmanager
def _workplace(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder, in which the library also creates its temporary files."""
    with tempfile.TemporaryDirectory(prefix=".quantise-", dir=folder) as work:
        before, tempfile.tempdir = tempfile.tempdir, work
        try:
            yield Path(work)
        finally:
            tempfile.tempdir = before


def _choose(model: Model) -> tuple[list[str], tuple[str, ...]]:
    """Return the names of the layers to quantise, and why the other layers are not quantised."""
    layers, chosen, kept = Layers(model), list[str](), list[tuple[str, str]]()
    for index in sorted(layers.layers):
        node = model.graph.node[index]
        reason = "the last layer before an output" if index in layers.last else _obstacle(node, model)
        if reason:
            kept.append((node.op_type, reason))
        else:
            chosen.append(node.name)
    return chosen, describe_kept(kept)


def _obstacle(node: onnx.NodeProto, model: Model) -> str:
    """Return why a layer cannot be quantised; empty if it can."""
    if node.op_type not in ort_quantize.FORMS:
        return "runtimes have no int8 kernel for it"
    weights = model.constants.get(node.input[1])
    if weights is None or weights.data_type != FLOAT or node.input[0] in model.constants:
        return "its weights are not constant"
    if model.types.get(node.input[0]) != FLOAT:
        return "the type of its input is not known"
    if node.op_type == "MatMul" and len(weights.dims) != 2:
        return "its weights are not a matrix"
    if len(weights.dims) > 2 and weights.dims[1] == 1 and _attribute(node, "group", 1) > 1:
        return "depthwise: its channels differ too much for one scale"
    # The library drops the factor `beta` of a bias that it does not quantise.
    if node.op_type == "Gemm" and _attribute(node, "beta", 1.0) != 1.0:
        return "its bias has a factor"
    return ""


def _attribute(node: onnx.NodeProto, name: str, default: float) -> float:
    values = [onnx.helper.get_attribute_value(attribute) for attribute in node.attribute if attribute.name == name]
    return float(values[0]) if values else default


def check_result(model: Model, chosen: list[str]) -> None:
    """Raise EngineUnusable unless the input and weights of each chosen layer come from Q/DQ pairs with finite positive
    scales."""
    producers = {name: node for node in model.graph.node for name in node.output}
    layers = {node.name: node for node in model.graph.node}
    for name in chosen:
        for value in layers[name].input[:2]:
            pair = producers.get(value)
            if pair is None or pair.op_type != "DequantizeLinear":
                raise EngineUnusable(f"quantising left layer {name} in float32; build it in another precision")
            scales = model.array(model.constants[pair.input[1]])
            if not np.all(np.isfinite(scales)) or not np.all(scales > 0):
                raise EngineUnusable(f"layer {name} has no finite range on the calibration data; give other samples")


# -- preparation and header -------------------------------------------------------------------------------------------


def prepare(model: Model, work: Path) -> tuple[Path, tuple[str, ...]]:
    """Write a copy of the model into the folder `work`, prepared for quantising. Return its path and notes on changes.

    The copy has an opset with scales for each channel; batch normalisation and other constant arithmetic folded into
    the weights; a name for every node; and no output that is also the input of a layer, because such an output would be
    quantised too. The copy answers as the model does. The model itself is not changed.
    """
    notes: tuple[str, ...] = ()
    proto = onnx.ModelProto.FromString(model.proto.SerializeToString())
    ready = Model(proto, model.folder)
    if model.opset < _OPSET:
        ready = _raise_opset(ready, work)
        notes = (
            f"opset raised from {model.opset} to {_OPSET}: older opsets have no Q/DQ with a scale for each channel",
        )
    keep_inputs(ready.proto, {value.name for value in ready.graph.input} - ready.constants.keys())
    ready.proto.ir_version = max(ready.proto.ir_version, _IR_VERSION)
    ready = _fold(ready, work)
    _part_outputs(ready)
    _name_nodes(ready)
    helper.set_model_props(ready.proto, ort_quantize.PREPARED)
    ready.write(work / "prepared.onnx")
    return work / "prepared.onnx", notes


def _raise_opset(model: Model, work: Path) -> Model:
    old, new = work / "old.onnx", work / "new.onnx"
    model.write(old)
    try:
        # The converter needs the weights as well.
        proto = onnx.version_converter.convert_version(onnx.load(str(old)), _OPSET)
    except Exception as error:  # of C++, without a type
        raise Unsuitable(f"the model's opset {model.opset} cannot be raised for int8: {one_line(error)}") from error
    Model(proto, work).write(new)
    return Model.read(new)


def _fold(model: Model, work: Path) -> Model:
    plain, folded = work / "plain.onnx", work / "folded.onnx"
    model.write(plain)
    ort_quantize.fold(plain, folded)
    before, after = Model.read(plain), Model.read(folded)
    is_foreign = {node.domain for node in after.graph.node} - {node.domain for node in before.graph.node}
    return before if is_foreign else after  # other runtimes lack the operators that only ONNX Runtime has


def _part_outputs(model: Model) -> None:
    """Insert a copy if the input of a layer is an output of the model, so that only the copy is quantised."""
    copies: dict[str, str] = {}
    outputs = {value.name for value in model.graph.output}
    nodes = []
    for node in model.graph.node:
        if node.op_type in LAYERS and node.input[0] in outputs:
            name = node.input[0]
            if name not in copies:
                copies[name] = model.new_name(f"{name}.copy")
                nodes.append(helper.make_node("Identity", [name], [copies[name]]))
            node.input[0] = copies[name]
        nodes.append(node)
    replace_nodes(model.graph, nodes)


def _name_nodes(model: Model) -> None:
    """Give every node a unique name, because layers are chosen by name. Exporters may omit or repeat names."""
    seen: set[str] = set()
    for node in model.graph.node:
        if not node.name or node.name in seen:
            node.name = model.new_name(node.op_type)
        seen.add(node.name)


def _restore_header(proto: onnx.ModelProto, source: onnx.ModelProto) -> None:
    """Copy inputs, outputs, metadata and, as far as the operators allow, versions from `source` to `proto`."""
    opset = max(entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx"))
    used = {node.domain for node in proto.graph.node}
    imports = [
        helper.make_opsetid(e.domain, e.version) for e in source.opset_import if e.domain in used - {"", "ai.onnx"}
    ]
    del proto.opset_import[:]
    proto.opset_import.extend([helper.make_opsetid("", opset), *imports])
    proto.ir_version = max(source.ir_version, helper.find_min_ir_version_for(list(proto.opset_import), True))
    for field in ("producer_name", "producer_version", "domain", "model_version", "doc_string"):
        setattr(proto, field, getattr(source, field))
    del proto.metadata_props[:]
    proto.metadata_props.extend(source.metadata_props)
    constants = {tensor.name for tensor in source.graph.initializer}
    proto.graph.name = source.graph.name
    del proto.graph.input[:], proto.graph.output[:], proto.graph.value_info[:]
    proto.graph.input.extend(value for value in source.graph.input if value.name not in constants)
    proto.graph.output.extend(source.graph.output)
