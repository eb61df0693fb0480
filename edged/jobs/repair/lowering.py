"""Converts a model to an older version of ONNX's operators, one version after the other. Runs in the child.

A node stays if its definition did not change. For a changed definition, the first rule that applies is used:

1. keep the node if the new version only allows more types;
2. rewrite the node (`nodes.py`) if the onnx package's converter cannot convert it or ignores a change of meaning;
3. convert the node with that converter;
4. keep the node if it uses nothing that is new.

An operator that the older version lacks is replaced with the function that defines it. If the definition of every node
is unchanged or falls under rule 1, ONNX's definitions prove the result (`LoweredGraph.by_definition`). Otherwise only a
comparison of answers can prove it.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx.defs
import onnx.inliner
import onnx.shape_inference
import onnx.version_converter
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from edged import packages
from edged.backends.contract import one_line
from edged.errors import ModelRefused, Unsuitable
from edged.ipc.job_messages import Lower, Lowered
from edged.jobs.onnx_graph import Names, replace_nodes
from edged.jobs.onnx_walk import ONNX_DOMAINS, Walk, all_graphs, bodies, graphs
from edged.jobs.repair.nodes import REWRITES, Likeness, Scope, changed, likeness, schema, small_constants

_LARGE = 1 << 16  # bytes of a constant
_DEEPEST = 50  # graphs inside graphs
_MOST_NODES = 1_000_000  # an operator that is replaced by its function may become many nodes
_OLDEST_IR = 4  # the first IR version in which constants need not be inputs as well
# Features, by the IR version that introduced them. Older readers do not know these features. Element types have their
# names in onnx.TensorProto.
_TYPES = {
    9: ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"),
    10: ("UINT4", "INT4"),
    11: ("FLOAT4E2M1",),
    12: ("FLOAT8E8M0",),
    13: ("UINT2", "INT2"),
}
_FUNCTIONS, _OVERLOADS, _DEVICES = 8, 10, 11


def write_lowered(job: Lower) -> Lowered:
    """Write a model in an older opset, an older IR version or both. Raises ModelRefused if the model cannot be read,
    Unsuitable if it cannot be converted."""
    try:
        model = onnx.load(job.path, load_external_data=False)
    except Exception as error:  # the parser's errors have no common class
        raise ModelRefused(f"{Path(job.path).name} cannot be read: {one_line(error)}") from error
    done, details = LoweredGraph(), list[str]()
    if job.opset:
        if model.functions:  # each function has its own versions
            model = onnx.inliner.inline_local_functions(model)
            details.append("local functions inlined")
        done = lower(model, job.opset)
    if job.ir:
        stamp_ir_version(model, job.ir)
    Path(job.out).write_bytes(model.SerializeToString())
    return Lowered(done.by_definition and not details, (*details, *done.details))


class LoweredGraph:
    """The changes to a model. `details` has one line for each kind of change. `by_definition`: whether, by ONNX's
    definitions, all nodes mean the same as before."""

    def __init__(self) -> None:
        self.by_definition = True
        self.how: collections.Counter[str] = collections.Counter()

    @property
    def details(self) -> tuple[str, ...]:
        return tuple(f"{count} {how}" for how, count in sorted(self.how.items()))


def opset_of(model: ModelProto) -> int:
    """Return the version of the default opset of a model; 0 if it declares none."""
    return max((entry.version for entry in model.opset_import if entry.domain in ONNX_DOMAINS), default=0)


def newest_known() -> int:
    """Return the newest opset that the installed onnx package defines."""
    return int(onnx.defs.onnx_opset_version())


def lower(model: ModelProto, target: int) -> LoweredGraph:
    """Convert a model without local functions to opset `target`, in place. Raises Unsuitable, with the operator and its
    version, if an operator cannot be converted. After this error the model is invalid."""
    source, lowered = opset_of(model), LoweredGraph()
    if source > newest_known():
        raise Unsuitable(
            f"opset {source} is newer than the installed onnx package supports ({newest_known()}); update the "
            f"package: {packages.install('onnx', option='-U')}"
        )
    used = _used(model.graph)
    with _without_weights(model.graph):
        for version in range(source, target, -1):
            _Floor(model, version, lowered).lower()
            _stamp(model, version - 1)
    _drop_unused(model.graph, used)
    return lowered


@contextlib.contextmanager
def _without_weights(graph: GraphProto) -> Iterator[None]:
    """A context in which large constants have no values and are declared as external. Types are inferred for each
    version, from a copy of the model. Without the values, the copies are small."""
    large = [tensor for tensor in graph.initializer if len(tensor.raw_data) > _LARGE]
    values = [tensor.raw_data for tensor in large]
    for tensor in large:
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
    yield
    for tensor, value in zip(large, values, strict=True):
        tensor.raw_data = value
        tensor.ClearField("data_location")


def _stamp(model: ModelProto, version: int) -> None:
    for entry in model.opset_import:
        if entry.domain in ONNX_DOMAINS:
            entry.version = version


class _Floor:
    """Converts a model from opset `version` to the previous opset."""

    def __init__(self, model: ModelProto, version: int, lowered: LoweredGraph) -> None:
        self._graph, self._version, self._lowered = model.graph, version, lowered
        self._model = model
        self._new_name = Names(model.graph).new

    def lower(self) -> None:
        if not any(self._is_concerned(node) for node in _nodes(self._graph)):
            return
        self._graph_down(self._graph, Scope({}, {}), _typed(self._model).graph, 0)

    def _is_concerned(self, node: NodeProto) -> bool:
        if node.domain not in ONNX_DOMAINS:
            return False
        found = schema(node.op_type, self._version)
        return found is not None and found.since_version == self._version

    def _graph_down(self, graph: GraphProto, outer: Scope, typed: GraphProto, depth: int) -> None:
        if depth > _DEEPEST:
            raise Unsuitable(f"the model's graphs are nested more than {_DEEPEST} levels deep")
        scope = _scope(graph, typed, outer)
        made: list[NodeProto] = []
        for node, twin in zip(graph.node, typed.node, strict=True):
            for body, typed_body in zip(bodies(node), bodies(twin), strict=True):
                self._graph_down(body, scope, typed_body, depth + 1)
            made.extend(self._node_down(node, scope))
            if len(made) > _MOST_NODES:
                raise Unsuitable(f"the model has more than {_MOST_NODES} nodes after operators are replaced")
        replace_nodes(graph, made)

    def _node_down(self, node: NodeProto, scope: Scope) -> list[NodeProto]:
        if not self._is_concerned(node):
            return [node]
        new, old = schema(node.op_type, self._version), schema(node.op_type, self._version - 1)
        assert new is not None
        if old is None or old.deprecated:
            return self._written_out(node, scope)
        like, why = likeness(node, scope, new, old)
        if like is Likeness.SAME:
            return [node]
        self._lowered.by_definition = False
        rewrite = REWRITES.get((node.op_type, self._version))
        if rewrite is not None:
            self._report(node, "rewritten")
            return rewrite(node, scope, self._new_name)
        failed = ""
        if not any(True for _ in bodies(node)):  # the converter would not see the values that a nested graph captures
            try:
                made = self._converted(node, scope)
            except Exception as error:  # errors from C++ have no common class
                failed = _reason(error)
            else:
                self._report(node, "converted")
                return made
        if like is Likeness.ALIKE:
            self._report(node, "kept unchanged")
            return [node]
        raise Unsuitable(f"{self._called(node)} cannot be converted to opset {self._version - 1}: {why or failed}")

    def _converted(self, node: NodeProto, scope: Scope) -> list[NodeProto]:
        def convert(alone: ModelProto) -> ModelProto:
            return onnx.version_converter.convert_version(alone, self._version - 1)

        made = changed(node, scope, self._version, convert, self._new_name)
        for each in made:  # the converter may keep attributes that the older version lacks
            old = schema(each.op_type, self._version - 1)
            like, why = (
                likeness(each, scope, old, old) if old is not None else (Likeness.OTHER, "the older opset lacks it")
            )
            if like is Likeness.OTHER:
                raise ValueError(why)
        return made

    def _written_out(self, node: NodeProto, scope: Scope) -> list[NodeProto]:
        """Replace an operator that the older version lacks with the function by which ONNX defines it."""
        self._lowered.by_definition = False
        came = f"{self._called(node)} was added in opset {self._version} and has no older equivalent"

        def write_out(alone: ModelProto) -> ModelProto:
            return onnx.inliner.inline_selected_functions(
                alone, [("", node.op_type)], exclude=False, inline_schema_functions=True
            )

        try:
            made = changed(node, scope, self._version, write_out, self._new_name)
        except Exception as error:  # errors from C++ have no common class
            raise Unsuitable(f"{came}: {_reason(error)}") from error
        if any(each.op_type == node.op_type for each in made):
            raise Unsuitable(f"{came}; export the model with opset {self._version - 1}, or update the runtime")
        self._report(node, "written out")
        typed = _part_types(made, scope, self._version)
        return [each for inner in made for each in self._node_down(inner, typed)]

    def _called(self, node: NodeProto) -> str:
        name = f" (node {node.name[:80]!r})" if node.name else ""
        return f"operator {node.op_type}{name}"

    def _report(self, node: NodeProto, how: str) -> None:
        self._lowered.how[f"{node.op_type} {how} for opset {self._version - 1}"] += 1


def _typed(model: ModelProto) -> ModelProto:
    """Return the model with the inferred types of its values, or unchanged if inference fails."""
    try:
        return onnx.shape_inference.infer_shapes(model)
    except Exception:  # types are not required: without them, only a comparison of answers can prove the result
        return model


def _part_types(nodes: list[NodeProto], scope: Scope, opset: int) -> Scope:
    """Return `scope` with the types of the values between `nodes`, and with their Constant nodes. `nodes` together
    replace one node."""
    outside = {name for node in nodes for name in node.input} - {name for node in nodes for name in node.output}
    inputs = [scope.types[name] for name in sorted(outside) if name in scope.types]
    tensors = [scope.constants[name] for name in sorted(outside) if name in scope.constants]
    outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in nodes[-1].output if name]
    graph = onnx.helper.make_graph(nodes, "part", inputs, outputs, tensors)
    typed = _typed(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])).graph
    return scope.inner({value.name: value for value in typed.value_info}, small_constants(nodes))


def _scope(graph: GraphProto, typed: GraphProto, outer: Scope) -> Scope:
    values = (*typed.value_info, *typed.input, *typed.output)
    types = {value.name: value for value in values if value.HasField("type")}
    constants = {tensor.name: tensor for tensor in graph.initializer} | small_constants(graph.node)
    return outer.inner(types, constants)


def _reason(error: Exception) -> str:
    """Return the converter's message without its source position: `TEXT` for `...: Assertion `x` failed: TEXT`."""
    text = " ".join(str(error).split())
    return text.rpartition("failed: ")[2][:200] or type(error).__name__


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    return (node for part in graphs(graph) for node in part.node)


def _used(graph: GraphProto) -> set[str]:
    return {name for node in _nodes(graph) for name in node.input} | {value.name for value in graph.output}


def _drop_unused(graph: GraphProto, before: set[str]) -> None:
    """Remove those constants in `before` that no node uses any more, such as axes that became an attribute."""
    gone = before - _used(graph) - {value.name for part in graphs(graph) for value in part.output}
    dropped = {tensor.name for tensor in graph.initializer} & gone
    for values in (graph.initializer, graph.input):  # an old model declares its constants as inputs too
        for place in reversed(range(len(values))):
            if values[place].name in dropped:
                del values[place]
    kept = [node for node in graph.node if node.op_type != "Constant" or not set(node.output) <= gone]
    if len(kept) < len(graph.node):
        replace_nodes(graph, kept)


def stamp_ir_version(model: ModelProto, target: int) -> None:
    """Set an older IR version. Raises Unsuitable if the model uses a feature that this version lacks."""
    if model.ir_version > onnx.IR_VERSION:
        raise Unsuitable(
            f"IR version {model.ir_version} is newer than the installed onnx package supports ({onnx.IR_VERSION}); "
            f"update the package: {packages.install('onnx', option='-U')}"
        )
    needed, what = max(_ir_needs(model))
    if needed > target:
        raise Unsuitable(f"the model has {what}, which IR version {target} does not support; update the runtime")
    model.ir_version = target


def _ir_needs(model: ModelProto) -> Iterator[tuple[int, str]]:
    """Yield the features that a model uses, each with the IR version that introduced it."""
    yield _OLDEST_IR, "nothing"
    if model.functions:
        yield _FUNCTIONS, "local functions"
    if any(getattr(function, "overload", "") for function in model.functions):
        yield _OVERLOADS, "several functions with one name"
    if len(getattr(model, "configuration", ())):
        yield _DEVICES, "a distribution over devices"
    versions = {
        int(getattr(onnx.TensorProto, name)): (version, f"elements of type {name}")
        for version, names in _TYPES.items()
        for name in names
        if hasattr(onnx.TensorProto, name)
    }
    yield from (versions[element] for element in _elements(model) if element in versions)


def _elements(model: ModelProto) -> Iterator[int]:
    """Yield the element types of all tensors, values and type attributes, also in nested graphs."""
    walk = Walk.of(model)
    for graph in all_graphs(model):
        yield from (tensor.data_type for tensor in graph.initializer)
        yield from (v.type.tensor_type.elem_type for v in (*graph.input, *graph.output, *graph.value_info))
    for attribute in (attribute for node in walk.nodes for attribute in node.attribute):
        if attribute.HasField("t"):
            yield attribute.t.data_type
        if attribute.name in ("to", "dtype", "output_dtype"):
            yield attribute.i
