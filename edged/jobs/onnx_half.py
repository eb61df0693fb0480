"""Converts a model to half precision: layers and the nodes between them compute in float16, other nodes stay float32.

Every value is produced in one precision. If nodes also need the value in the other precision, they share one Cast.
Inputs and outputs stay as declared. Every operator gets only types that its definition in the model's opset allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import onnx
from onnx import TensorProto, defs, helper, numpy_helper

from edged.errors import Unsuitable
from edged.jobs.onnx_graph import FLOAT, FLOAT16, QUANTISED, Layers, Model, captured, describe_kept, replace_nodes
from edged.jobs.onnx_walk import bodies
from edged.tensors import Array

_SUFFIXES = {FLOAT: "fp32", FLOAT16: "fp16"}
_HALF = "tensor(float16)"
_LARGEST = float(np.finfo(np.float16).max)
# Sums and powers: results or intermediate values may exceed the range of float16 although the inputs do not.
_WIDE = frozenset(("CumProd", "CumSum", "Det", "Exp", "Log", "LpNormalization", "MeanVarianceNormalization", "Pow")) | {
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
}
# Positions, counts and choices: float16 has no odd integer above 2048, and may round different values to equal ones.
# Scattering may add, which ONNX Runtime's CPU kernels cannot do in float16.
_EXACT = frozenset(("GridSample", "Mod", "NonMaxSuppression", "OneHot", "Range", "RoiAlign", "TopK")) | {
    "ScatterElements",
    "ScatterND",
}
# Operators for which a constant beyond the range of float16 is only a bound, so that infinity has the same effect.
_BOUNDED = frozenset(("Clip", "Max", "Min", "Pad"))
# Operators with a small result for every input, including infinity.
_SATURATING = frozenset(("Erf", "HardSigmoid", "Sigmoid", "Tanh"))
# Operators with a small result for every finite input.
_LIMITING = _SATURATING | {"InstanceNormalization", "LayerNormalization", "Softmax"}
# The input slots of biases and means, by operator.
_ADDED = {"Conv": (2,), "ConvTranspose": (2,), "Gemm": (2,), "BatchNormalization": (2, 3), "LayerNormalization": (2,)}
# Operators that stay float32 after a node that float16 would harm, because a Cast between the two would lose accuracy.
_FOLLOWERS = frozenset(("Add", "Div", "LogSoftmax", "Reciprocal", "ReduceMean", "Softmax", "Sqrt", "Sub", "Where"))
_UNHELD = "its inputs can exceed the range of float16"
_TYPE_ATTRIBUTES = frozenset(("dtype", "to", "output_dtype", "output_datatype"))
_SINGLE_SLOTS = {"Resize": (1, 2, 3), "Upsample": (1,)}  # scales and sizes: float32 even if the opset allows float16


def to_half(source: Path, out: Path) -> tuple[bool, tuple[str, ...]]:
    """Write the model in half precision as `out`. Write nothing if no node can be changed.

    Returns whether a file was written, and what stays in float32: one line for each operator and reason. Raises
    Unsuitable or EngineUnusable if the model cannot be converted.
    """
    model = Model.read(source)
    if any(node.op_type in QUANTISED for node in model.graph.node):
        raise Unsuitable(
            f"{source.name} is quantised and cannot become fp16: casts would separate its layers from their scales;"
            " build it as fp32"
        )
    choice = Choice.of(model)
    kept = describe_kept((model.graph.node[index].op_type, reason) for index, reason in choice.kept.items())
    if choice.nodes:
        halved = _Rewriter(model, choice).rewrite()
        model.write(out, lambda tensor: _halve(tensor) if tensor.name in halved else None)
    return bool(choice.nodes), kept


def _halve(tensor: TensorProto) -> None:
    array = numpy_helper.to_array(tensor)
    with np.errstate(over="ignore"):  # infinity has the same effect as a bound beyond float16
        tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float16), tensor.name))


class _Rewriter:
    def __init__(self, model: Model, choice: Choice) -> None:
        self._model, self._graph, self._choice = model, model.graph, choice
        self._outputs = {value.name for value in self._graph.output}
        self._wanted = self._find_wanted()
        self._made = self._find_made()
        self._names: dict[tuple[str, int], str] = {}

    def rewrite(self) -> frozenset[str]:
        """Change the graph's nodes and declarations. Return the names of the initializers to convert to float16."""
        made_by_nodes = {name for node in self._graph.node for name in node.output}
        nodes = [cast for name in self._wanted if name not in made_by_nodes for cast in self._casts(name)]
        for index, node in enumerate(self._graph.node):
            made = list(node.output)
            self._connect(index, node)
            nodes.append(node)
            nodes += [cast for name in made for cast in self._casts(name)]
        replace_nodes(self._graph, nodes)
        for value in (*self._graph.value_info, *self._graph.input):  # an initializer may be declared as an input too
            if self._made.get(value.name) == FLOAT16 and value.name not in self._outputs:
                value.type.tensor_type.elem_type = FLOAT16
        return frozenset(t.name for t in self._graph.initializer if self._made.get(t.name) == FLOAT16)

    def _find_wanted(self) -> dict[str, set[int]]:
        """Return the precisions in which each float32 value is used."""
        wanted: dict[str, set[int]] = {name: {FLOAT} for name in sorted(self._outputs)}
        for index, node in enumerate(self._graph.node):
            for slot, name in enumerate(node.input):
                wanted.setdefault(name, set()).add(self._takes(index, slot))
            for name in sorted(captured(node)):
                wanted.setdefault(name, set()).add(FLOAT)
        return {name: forms for name, forms in wanted.items() if self._model.types.get(name) == FLOAT}

    def _find_made(self) -> dict[str, int]:
        """Return the precision in which each float32 value is produced. A constant may have either precision. An input
        keeps its declared precision."""
        made = {name: FLOAT for name, kind in self._model.types.items() if kind == FLOAT}
        for index, slots in self._choice.nodes.items():
            node = self._graph.node[index]
            made |= {name: FLOAT16 for name, half in zip(node.output, slots.outputs, strict=True) if half}
        halves = [name for name in self._model.constants if self._wanted.get(name) == {FLOAT16}]
        return made | dict.fromkeys(halves, FLOAT16)

    def _takes(self, index: int, slot: int) -> int:
        slots = self._choice.nodes.get(index)
        return FLOAT16 if slots is not None and slots.inputs[slot] else FLOAT

    def _name(self, name: str, form: int) -> str:
        """Return the name of a value in a precision. A value keeps its name in the precision in which it is produced.
        An output of the graph keeps its name in float32."""
        if name not in self._made or form == (FLOAT if name in self._outputs else self._made[name]):
            return name
        if (name, form) not in self._names:
            self._names[name, form] = self._model.new_name(f"{name}.{_SUFFIXES[form]}")
        return self._names[name, form]

    def _casts(self, name: str) -> list[onnx.NodeProto]:
        forms = self._wanted.get(name, set()) - {self._made.get(name)}
        return [self._cast(name, form) for form in sorted(forms)]

    def _cast(self, name: str, form: int) -> onnx.NodeProto:
        label = self._model.new_name(f"{name}.to_{_SUFFIXES[form]}")
        return helper.make_node("Cast", [self._name(name, self._made[name])], [self._name(name, form)], label, to=form)

    def _connect(self, index: int, node: onnx.NodeProto) -> None:
        """Rename a node's inputs and outputs to the values of the right precision."""
        for slot, name in enumerate(node.input):
            node.input[slot] = self._name(name, self._takes(index, slot))
        for slot, name in enumerate(node.output):
            if self._made.get(name) == FLOAT16:
                self._make_half(node)
                node.output[slot] = self._name(name, FLOAT16)
        renamed = {name: self._name(name, FLOAT) for name in captured(node)}
        for body in bodies(node):
            _rename(body, {old: new for old, new in renamed.items() if old != new})

    def _make_half(self, node: onnx.NodeProto) -> None:
        """Make a Cast or Constant node declare float16 for its output. Other nodes declare no type."""
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to":
                attribute.i = FLOAT16
            if node.op_type == "Constant" and attribute.name == "value":
                array = self._model.array(attribute.t)
                attribute.t.CopyFrom(numpy_helper.from_array(array, attribute.t.name))
                _halve(attribute.t)


def _rename(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    """Rename the values that a subgraph reads from the graphs around it. Nested subgraphs are changed as well."""
    for node in graph.node:
        for slot, name in enumerate(node.input):
            node.input[slot] = names.get(name, name)
        for body in bodies(node):
            _rename(body, names)
    for value in graph.output:
        value.name = names.get(value.name, value.name)


class Slots(NamedTuple):
    """For each input and output of a node: whether it is float32 and may become float16."""

    inputs: tuple[bool, ...]
    outputs: tuple[bool, ...]


class Choice(msgspec.Struct, frozen=True):
    """Which nodes change. `nodes` maps the index of each changed node to the slots that become float16. `kept` maps the
    index of each node that stays float32 to the reason."""

    nodes: dict[int, Slots]
    kept: dict[int, str]

    @classmethod
    def of(cls, model: Model) -> Choice:
        layers, nodes = Layers(model), model.graph.node
        chosen: dict[int, Slots] = {}
        kept: dict[int, str] = {}
        delicate: set[str] = set()  # values that float16 cannot hold well
        vast: set[str] = set()  # values that may exceed float16, because they are computed from a constant that does
        for index, node in enumerate(nodes):
            if not _uses_float(node, model):
                continue
            if index not in layers.layers and index not in layers.between:
                kept[index] = layers.place(index)
            elif isinstance(slots := _slots(node, model), str):
                kept[index] = slots
            elif danger := _danger(node, model, slots, delicate, vast):
                kept[index] = danger
                delicate |= set(node.output)
            else:
                chosen[index] = slots
            if index in kept and _makes_vast(node, model, vast):
                vast |= {name for name in node.output if model.types.get(name) == FLOAT}
        return cls(chosen, kept)


def _uses_float(node: onnx.NodeProto, model: Model) -> bool:
    return node.op_type != "Constant" and any(model.types.get(name) == FLOAT for name in (*node.input, *node.output))


def _slots(node: onnx.NodeProto, model: Model) -> Slots | str:
    """Return the slots for which the operator's definition in the model's opset allows float16. If the node must stay
    unchanged, return the reason as text."""
    if node.domain not in ("", "ai.onnx"):
        return f"domain {node.domain} does not declare its types"
    if next(bodies(node), None) is not None:
        return "it contains subgraphs"
    try:
        schema = defs.get_schema(node.op_type, model.opset, "")
    except defs.SchemaError:
        return "it is unknown in this opset"
    if node.op_type != "Cast" and any(attribute.name in _TYPE_ATTRIBUTES for attribute in node.attribute):
        return "its attribute sets a type"
    if any(name and name not in model.types for name in (*node.input, *(set(node.output) & model.used))):
        return "the types of its values are not known"
    free = {entry.type_param_str for entry in schema.type_constraints if _HALF in entry.allowed_type_strs}
    single = _SINGLE_SLOTS.get(node.op_type, ())
    halves = enumerate(_free(node.input, schema.inputs, free, model))
    inputs = tuple(may and slot not in single for slot, may in halves)
    if not any(inputs):
        return "it takes no float16 in this opset"
    return Slots(inputs, _free(node.output, schema.outputs, free, model))


def _free(
    names: Sequence[str], declared: Sequence[defs.OpSchema.FormalParameter], free: set[str], model: Model
) -> tuple[bool, ...]:
    """Return for each value whether it is float32 and the type of its parameter is in `free`. The last parameter may be
    variadic."""
    parameters = [declared[min(slot, len(declared) - 1)] for slot in range(len(names))]
    return tuple(
        model.types.get(name) == FLOAT and parameter.type_str in free
        for name, parameter in zip(names, parameters, strict=True)
    )


def _danger(node: onnx.NodeProto, model: Model, slots: Slots, delicate: set[str], vast: set[str]) -> str:
    """Return the reason why float16 would harm the result of a node; empty if no reason is known."""
    if node.op_type in _WIDE:
        return "its results can exceed the range of float16"
    if node.op_type in _EXACT:
        return "positions and choices must be exact"
    unheld = delicate | vast if node.op_type in _FOLLOWERS else vast if node.op_type not in _SATURATING else set()
    if not unheld.isdisjoint(node.input):
        return _UNHELD
    added = _ADDED.get(node.op_type, ())
    for slot, name in enumerate(node.input):
        tensor = model.constants.get(name)
        if tensor is not None and slots.inputs[slot]:
            loss = _loss(model.array(tensor), bounds=node.op_type in _BOUNDED, added=slot in added)
            if loss:
                return f"constant {name!r} holds {loss}"
    return ""


def _makes_vast(node: onnx.NodeProto, model: Model, vast: set[str]) -> bool:
    """Whether the result of a node may exceed float16: if one of its inputs may exceed float16, and the node neither
    limits this input nor divides by it."""
    if node.op_type in _LIMITING:
        return False
    takes = [name in vast or _is_vast_constant(name, node, model) for name in node.input]
    return takes == [True, False] if node.op_type == "Div" else any(takes)


def _is_vast_constant(name: str, node: onnx.NodeProto, model: Model) -> bool:
    tensor = model.constants.get(name) if model.types.get(name) == FLOAT else None
    return tensor is not None and node.op_type not in _BOUNDED and _largest(model.array(tensor)) > _LARGEST


def _largest(array: Array) -> float:
    size = np.abs(array)
    return float(size.max(initial=0.0, where=np.isfinite(size)))


def _loss(array: Array, bounds: bool, added: bool) -> str:
    """Return which values of a constant do not fit float16; empty if all important values fit.

    If small values become zero, this does no harm next to large values, or if the values are only added to the result
    (`added`). It does harm if all values are small, as for an epsilon that prevents a division by zero.
    """
    largest = _largest(array)
    if largest > _LARGEST:
        return "" if bounds else f"{largest:.3g}, which is beyond the range of float16"
    if not added and abs(float(np.float16(largest)) - largest) > 0.1 * largest:
        return f"only values up to {largest:.3g}, too small for float16"
    return ""
