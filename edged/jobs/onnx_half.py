"""A model in half precision: layers and what lies between them compute in float16, everything else as it was.

Every value has one producer, which makes it in one form; where it is wanted in the other as well, one Cast follows. So
casts lie only where precision changes, inputs and outputs stay as declared, and no operator is given what its
definition in the model's own opset does not allow.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edged.backends.onnx_graph import FLOAT, FLOAT16, Model, bodies, captured, replace_nodes
from edged.backends.onnx_layers import QUANTISED, told
from edged.errors import Unsuitable
from edged.jobs.onnx_half_choice import Choice

_SUFFIXES = {FLOAT: "fp32", FLOAT16: "fp16"}


def to_half(source: Path, out: Path) -> tuple[bool, tuple[str, ...]]:
    """Writes the model as `out`; false, and no file, where there is nothing to change.

    With it: what stays in float32 and why, a line for each operator and reason. Unsuitable or EngineUnusable when the
    model cannot be changed.
    """
    model = Model.read(source)
    if any(node.op_type in QUANTISED for node in model.graph.node):
        raise Unsuitable(f"{source.name} is quantised: casts would part its layers from their scales; build it as fp32")
    choice = Choice.of(model)
    kept = told((model.graph.node[index].op_type, reason) for index, reason in choice.kept.items())
    if choice.nodes:
        halved = _Rewriter(model, choice).rewrite()
        model.write(out, lambda tensor: _halve(tensor) if tensor.name in halved else None)
    return bool(choice.nodes), kept


def _halve(tensor: TensorProto) -> None:
    array = numpy_helper.to_array(tensor)
    with np.errstate(over="ignore"):  # a bound beyond float16 is as good as infinite
        tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float16), tensor.name))


class _Rewriter:
    def __init__(self, model: Model, choice: Choice) -> None:
        self._model, self._graph, self._choice = model, model.graph, choice
        self._outputs = {value.name for value in self._graph.output}
        self._wanted = self._find_wanted()
        self._made = self._find_made()
        self._names: dict[tuple[str, int], str] = {}

    def rewrite(self) -> frozenset[str]:
        """Changes the graph's nodes and declarations; returns the initialisers that are to become float16."""
        made_by_nodes = {name for node in self._graph.node for name in node.output}
        nodes = [cast for name in self._wanted if name not in made_by_nodes for cast in self._casts(name)]
        for index, node in enumerate(self._graph.node):
            made = list(node.output)
            self._connect(index, node)
            nodes.append(node)
            nodes += [cast for name in made for cast in self._casts(name)]
        replace_nodes(self._graph, nodes)
        for value in (*self._graph.value_info, *self._graph.input):  # an initialiser may be declared as an input too
            if self._made.get(value.name) == FLOAT16 and value.name not in self._outputs:
                value.type.tensor_type.elem_type = FLOAT16
        return frozenset(t.name for t in self._graph.initializer if self._made.get(t.name) == FLOAT16)

    def _find_wanted(self) -> dict[str, set[int]]:
        """In which forms each float32 value is used."""
        wanted: dict[str, set[int]] = {name: {FLOAT} for name in sorted(self._outputs)}
        for index, node in enumerate(self._graph.node):
            for slot, name in enumerate(node.input):
                wanted.setdefault(name, set()).add(self._takes(index, slot))
            for name in sorted(captured(node)):
                wanted.setdefault(name, set()).add(FLOAT)
        return {name: forms for name, forms in wanted.items() if self._model.types.get(name) == FLOAT}

    def _find_made(self) -> dict[str, int]:
        """In which form each float32 value is made. Constants can be made in either, inputs are what they are."""
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
        """What a value is called in a form: its own name in the one it is made in, but for the graph's outputs."""
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
        """Names a node's inputs and outputs in the forms that it takes and makes."""
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
        """Where a node says what it makes, says so."""
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to":
                attribute.i = FLOAT16
            if node.op_type == "Constant" and attribute.name == "value":
                array = self._model.array(attribute.t)
                attribute.t.CopyFrom(numpy_helper.from_array(array, attribute.t.name))
                _halve(attribute.t)


def _rename(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    """Uses other values of the graph around it, however deep."""
    for node in graph.node:
        for slot, name in enumerate(node.input):
            node.input[slot] = names.get(name, name)
        for body in bodies(node):
            _rename(body, names)
    for value in graph.output:
        value.name = names.get(value.name, value.name)
