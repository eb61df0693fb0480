"""Makes a model ready to be quantised, and gives what became of it the model's own header back.

Ready means: an opset that knows scales for each channel; batch normalisation and other constant arithmetic folded into
the weights; a name for every node; and outputs that no layer uses as its input, since such an output would be quantised
too. Its answers are the model's own.
"""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when the runtime is imported

import onnx
import onnx.version_converter
import onnxruntime as ort
from onnx import helper

from edged.backends.contract import one_line
from edged.backends.onnx_graph import Model, keep_inputs, replace_nodes
from edged.backends.onnx_layers import LAYERS
from edged.errors import EngineUnusable, Unsuitable

_OPSET, _IR_VERSION = 13, 7  # the first whose QuantizeLinear takes a scale for each channel
# The library asks for a step of its own otherwise, which does less.
_MARK = ("onnx.quant.pre_process", "onnxruntime.quant")


def prepare(model: Model, work: Path) -> tuple[Path, tuple[str, ...]]:
    """Writes the model, made ready, into the folder `work`, and tells what had to change. The model stays as it is."""
    notes: tuple[str, ...] = ()
    proto = onnx.ModelProto.FromString(model.proto.SerializeToString())
    ready = Model(proto, model.folder)
    if model.opset < _OPSET:
        ready = _raise_opset(ready, work)
        notes = (f"opset raised from {model.opset} to {_OPSET}: before that Q/DQ knows no scales for each channel",)
    keep_inputs(ready.proto, {value.name for value in ready.graph.input} - ready.constants.keys())
    ready.proto.ir_version = max(ready.proto.ir_version, _IR_VERSION)
    ready = _fold(ready, work)
    _part_outputs(ready)
    _name_nodes(ready)
    helper.set_model_props(ready.proto, dict([_MARK]))
    ready.write(work / "prepared.onnx")
    return work / "prepared.onnx", notes


def restore_header(proto: onnx.ModelProto, source: onnx.ModelProto) -> None:
    """Gives a model the declarations, metadata and, as far as its operators allow, the versions of another."""
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


def _raise_opset(model: Model, work: Path) -> Model:
    old, new = work / "old.onnx", work / "new.onnx"
    model.write(old)
    try:
        proto = onnx.version_converter.convert_version(onnx.load(str(old)), _OPSET)  # it wants the weights as well
    except Exception as error:  # of C++, without a type
        raise Unsuitable(f"the model's opset {model.opset} cannot be raised for int8: {one_line(error)}") from error
    Model(proto, work).write(new)
    return Model.read(new)


def _fold(model: Model, work: Path) -> Model:
    """What ONNX Runtime makes of the model with the rewritings that are good for every runtime."""
    plain, folded = work / "plain.onnx", work / "folded.onnx"
    model.write(plain)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(folded)
    options.log_severity_level = 4
    if plain.with_name(f"{plain.name}.data").exists():
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_file_name", f"{folded.name}.data"
        )
    try:
        ort.InferenceSession(str(plain), options, providers=["CPUExecutionProvider"], enable_fallback=0)
    except Exception as error:  # the runtime's errors have no common base of their own
        raise EngineUnusable(f"ONNX Runtime refuses the model: {one_line(error)}") from error
    before, after = Model.read(plain), Model.read(folded)
    is_foreign = {node.domain for node in after.graph.node} - {node.domain for node in before.graph.node}
    return before if is_foreign else after  # an operator that only ONNX Runtime has is good for it alone


def _part_outputs(model: Model) -> None:
    """A layer whose input is an output of the model gets a copy of it: only that is quantised then."""
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
    """Nodes are chosen by name, which exporters may leave away or give twice."""
    seen: set[str] = set()
    for node in model.graph.node:
        if not node.name or node.name in seen:
            node.name = model.new_name(node.op_type)
        seen.add(node.name)
