"""ONNX Runtime: the backend, and its engines on the CPU. Engines on a GPU are in `ort/device.py`.

On the CPU an engine is the graph that the optimiser made for this CPU, saved as ONNX. At level `all` the graph is
specific to the CPU's instruction set. The graph does not record the version of the runtime. So the engine's key
contains the instruction set and the version. A session without optimisation is the reference: edged compares the
answers of all other engines with the answers of this session.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from edged.backends.contract import UNOPTIMISED, Backend, Composition, Graphs, Operators, Order, Session, one_line
from edged.backends.ort import device, placement, runtime
from edged.backends.ort.placement import Placement
from edged.backends.ort.runtime import create, session_options
from edged.backends.ort.session import CpuSession
from edged.errors import EdgedError, EngineUnusable, NotTaken

if TYPE_CHECKING:
    from onnxruntime import InferenceSession  # at run time the package must be imported after `ort` sets its variables

_BLOB = "model.onnx"
_WEIGHTS = "weights.bin"
# If a model file has more bytes, the weights are saved next to the graph, because protobuf cannot hold 2 GiB.
_LARGE = 1 << 30
_IR_VERSION_TAG = 0x08  # of ModelProto.ir_version, a varint of one byte up to 127
_FIRST_WITHOUT = 4  # the first IR version in which initializers need not be inputs
# Prefixes: `[ONNXRuntimeError] : 1 : FAIL : `, `/onnxruntime_src/.../model.cc:256 onnxruntime::Model::Model(...) `.
_CODE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")
_SOURCE = re.compile(
    r"^(?:Exception during initialization: )?/onnxruntime_src/\S+:\d+ .*?\)(?: const)?(?: \[with [^]]*\])? (?=\S)"
)
_LOADING = re.compile(r"^Load model from .*? failed: ?")
_NODE = re.compile(
    r"[Nn]ode:? ?\(?(?:with name )?['\"]?(?P<node>[^'\"()]*?)['\"]?\)? (?:Op|of)\b|In Node, \(\"(?P<other>[^\"]*)\""
)
_UNREGISTERED = re.compile(r"No Op registered for (?P<name>\S+) with domain_version of")
_UNKNOWN = re.compile(r"Fatal error: (?P<domain>[^:\s]*):(?P<name>[^(\s]+)\(.*?is not a registered function/op")
_NO_KERNEL = re.compile(
    r"Could not find an implementation for (?P<name>[^(\s]+)\(\d+\) node with name '(?P<node>[^']*)'"
)
_SHAPE_OUTSIDE = re.compile(r"Cannot parse data from external tensors\..* for tensor: (?P<name>.+)")
_MEMORY = re.compile(
    r"bad_alloc|bad allocation|Failed to allocate memory|out of memory|Cannot allocate memory|Available memory of",
    re.IGNORECASE,
)


class _OnnxRuntime:
    name = "onnxruntime"
    converted_in_graph = frozenset({"fp16", "int8"})

    def version(self) -> str:
        return runtime.version()

    def build(
        self, order: Order, out: Path, report: Callable[[float], None], graphs: Callable[[], Graphs]
    ) -> Composition:
        where = runtime.provider(order.recipe)
        if not where.is_cpu:
            return device.build(order, out, where, graphs())
        inputs = {spec.name for spec in order.signature.inputs}
        session, placed = _saved(order, out, order.model)
        if session.get_overridable_initializers():  # the optimiser does not fold weights that requests may override
            del session
            _, placed = _saved(order, out, graphs().with_inputs(Path(order.model), inputs))
        elif _lists_constants(out / _BLOB):
            (out / _BLOB).write_bytes(graphs().with_inputs(out / _BLOB, inputs))
        return _composition(placed, order.recipe.precision, out / _BLOB, graphs)

    def open(self, order: Order) -> Session:
        recipe, where = order.recipe, runtime.provider(order.recipe)
        if recipe.is_reference:
            options = session_options(UNOPTIMISED, order.threads)
            made, nodes = placement.opened(options, lambda ready: create(order.model, ready, where))
            return CpuSession(made, order.signature, nodes)
        if order.artefact is None:
            raise EngineUnusable("this engine has not been built yet")
        if not where.is_cpu:
            return device.open(order, order.artefact, where)
        # The saved graph is already optimised.
        options = session_options(UNOPTIMISED, order.threads)
        if _WEIGHTS in order.artefact.files:
            order.artefact.check()
            runtime.read_weights(options, order.artefact.root)
        graph = order.artefact.load(_BLOB)
        made, nodes = placement.opened(options, lambda ready: create(graph, ready))
        return CpuSession(made, order.signature, nodes)

    def check(self, model: Path) -> None:
        create(str(model), session_options(UNOPTIMISED, 1))

    def operators(self) -> Operators | None:
        return operators()

    def trial(self, order: Order) -> Session:
        options = session_options(UNOPTIMISED, order.recipe.threads)
        try:
            return CpuSession(create(order.model, options), order.signature)
        except EngineUnusable as error:
            raise describe_refusal(error) from error


def _saved(order: Order, out: Path, model: str | bytes) -> tuple[InferenceSession, Placement]:
    """Open a session of `model` (a path, or the content of a model file), which saves the optimised graph in `out`.
    Return the session and the placement of its nodes."""
    options = session_options(order.recipe.optimization, order.recipe.threads)
    options.optimized_model_filepath = str(out / _BLOB)
    # Without a separate weights file, the saved graph would refer to the model's external weights.
    if order.external or _size(order.model) > _LARGE:
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", _WEIGHTS)
    if isinstance(model, bytes):
        runtime.read_weights(options, os.path.dirname(order.model))
    return placement.made(options, lambda ready: create(model, ready))


def _composition(placed: Placement, precision: str, saved: Path, graphs: Callable[[], Graphs]) -> Composition:
    """Return the composition of an engine. The saved graph is read only for facts that the runtime does not report: the
    precision of layers, and before ONNX Runtime 1.24 the operators."""
    is_named = all(node.operator for node in placed)
    if is_named and precision not in _OnnxRuntime.converted_in_graph:
        return Composition(nodes=placement.counts(placed))
    try:
        graph = graphs().read(saved)
    except EdgedError:  # the composition is for people to read; the engine does not depend on it
        return Composition(nodes=placement.counts(placed))
    layers, notes = graph.layers(precision)
    placed = placed if is_named else placement.everywhere(graph, runtime.CPU_PROVIDER)
    return Composition(layers=layers, nodes=placement.counts(placed), notes=notes)


def _lists_constants(saved: Path) -> bool:
    """Whether a saved graph has an IR version below 4, in which every initializer is also an input.

    The version is the first field of ModelProto, and ONNX Runtime writes fields in order.
    """
    with saved.open("rb") as file:
        tag, version = file.read(2)
    return tag == _IR_VERSION_TAG and version < _FIRST_WITHOUT


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0  # the runtime reports the error better


def operators() -> Operators | None:
    """Return the operators that the runtime has; None if this version does not list them."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    list_all = getattr(state, "get_all_operator_schema", None)
    if list_all is None:
        return None
    found: Operators = {}
    for schema in list_all():
        names = found.setdefault(schema.domain or "ai.onnx", {})
        names[schema.name] = min(schema.since_version, names.get(schema.name, schema.since_version))
    return found


def describe_refusal(error: EngineUnusable) -> NotTaken:
    """Return the runtime's refusal of a model as NotTaken: a message, a code, and the operator and node if known."""
    text = " ".join(str(error.__cause__ or error).split())
    message = f"ONNX Runtime refuses the model: {_plain(text)}"
    if match := _NO_KERNEL.search(text):
        return NotTaken(message, "not_implemented", match["name"], match["node"])
    if match := _UNREGISTERED.search(text):
        return NotTaken(message, "unknown_operator", match["name"], _node(text))
    if match := _UNKNOWN.search(text):
        domain = match["domain"]
        operator = match["name"] if domain in ("", "ai.onnx") else f"{domain}.{match['name']}"
        return NotTaken(message, "unknown_operator", operator, _node(text))
    if match := _SHAPE_OUTSIDE.search(text):
        what = f"tensor {match['name'][:100]!r} holds a shape or axes, so it cannot be external data"
        return NotTaken(f"ONNX Runtime refuses the model: {what}", "shape_outside", "", _node(text))
    if is_memory(text):
        return NotTaken(message, "too_much_memory", "", _node(text))
    return NotTaken(message, "refused", "", _node(text))


def is_memory(text: str) -> bool:
    """Whether a message says that memory could not be allocated."""
    return _MEMORY.search(text) is not None


def _plain(text: str) -> str:
    """Return a message without its error code, source location and C++ function."""
    text = _SOURCE.sub("", _LOADING.sub("", _CODE.sub("", text)))
    return one_line(Exception(_SOURCE.sub("", text)), 300)


def _node(text: str) -> str:
    match = _NODE.search(text)
    return (match["node"] or match["other"] or "") if match else ""


BACKEND: Backend = _OnnxRuntime()
