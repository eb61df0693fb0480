"""Engines of ONNX Runtime on a device that has an execution provider, and the nodes that still run on the CPU.

An engine consists of the model's graph and a list of the nodes that the CPU ran when the engine was built. The graph is
optimised each time the engine is opened. The optimised graph is not saved, because it is already partitioned: it
contains nodes that copy between host and device. In the next session, these nodes may collide with newly inserted
copies or have no kernel (microsoft/onnxruntime issue 11348). Above level `basic` the graph also has fused nodes that
only one provider knows. Optimising at opening gives the same graph and placement as in the build, and takes little time
compared with loading CUDA.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter
from pathlib import Path

import msgspec
import onnxruntime as ort

from edged.backends.artefact import Artefact
from edged.backends.contract import Composition, Graph, Graphs, Order, Recipe, counted
from edged.backends.ort import placement, runtime
from edged.backends.ort.placement import Placement
from edged.backends.ort.runtime import CPU_PROVIDER, CpuForbidden, Provider, create, session_options
from edged.backends.ort.session import DeviceSession
from edged.decoding import ready
from edged.errors import EngineDamaged, EngineUnusable, Unsuitable
from edged.files import NOT_JSON

_GRAPH = "model.onnx"
_PLACED = "placement.json"


class Placed(msgspec.Struct, frozen=True):
    """The content of an engine's file placement.json. `on_cpu` maps each operator to the number of its nodes that the
    CPU ran when the engine was built.

    `is_whole`: the provider ran all nodes. Then each opening sets the option that makes ONNX Runtime fail instead of
    using the CPU.
    """

    provider: str
    is_whole: bool
    on_cpu: dict[str, int]


def build(order: Order, out: Path, where: Provider, graphs: Graphs) -> Composition:
    """Write the engine's files; return its composition. Raises Unsuitable if no node would run on the device."""
    graph, recipe = graphs.write_named(Path(order.model), out / _GRAPH), order.recipe
    source = str(out / _GRAPH)
    try:
        placed, is_whole = _try(source, recipe, where, whole=True)[1], True
        parted = graph
    except CpuForbidden:
        is_whole = False
        placed, parted = _parted(source, recipe, where, out, graph, graphs)
    if is_whole and not all(node.operator for node in placed):
        placed = placement.everywhere(graph, where.name)
    if not placement.on(placed, where.name):
        raise Unsuitable(f"none of the model's operators runs on {where.device}; use the CPU")
    on_cpu = placement.on(placed)
    (out / _PLACED).write_bytes(msgspec.json.encode(Placed(where.name, is_whole, dict(on_cpu))))
    counts, notes = graph.layers(recipe.precision)
    made = _composition(placed, parted.shape_work() if on_cpu else frozenset(), is_whole)
    return msgspec.structs.replace(made, layers=counts, notes=(*notes, *made.notes))


def open(order: Order, artefact: Artefact, where: Provider) -> DeviceSession:
    """Open an engine. Raises EngineUnusable if nodes would run on the CPU that ran on the device in the build, and
    EngineDamaged if a file of the engine is altered."""
    before, source, weights = _before(artefact), artefact.load(_GRAPH), ""
    if artefact.files.keys() - {_GRAPH, _PLACED}:
        artefact.check()
        weights = artefact.root
    try:
        # If the session forbids the CPU, its placement does not matter: only nodes inside subgraphs may be on the CPU.
        whole = before.is_whole
        session, placed = _try(source, order.recipe, where, whole=whole, weights=weights, matters=not whole)
    except CpuForbidden as error:
        # In a session that allows the CPU, ONNX Runtime reports which nodes run on it, or why the provider fails.
        _, placed = _try(source, order.recipe, where, whole=False, weights=weights)
        _require_unmoved(placed, before, where)
        raise EngineUnusable(
            f"{error}; {where.device} ran all nodes when this engine was built; build the engine again"
        ) from error
    _require_unmoved(placed, before, where)
    kind, _, index = where.device.partition(":")
    # Before 1.24, a session that forbids the CPU reports no placement. In such a session, the provider runs all nodes.
    nodes = placement.counts(placed) or {where.name: {}}
    return DeviceSession(session, order.signature, kind, int(index or 0), nodes)


def _try(
    source: str | bytes,
    recipe: Recipe,
    where: Provider,
    *,
    whole: bool,
    weights: str = "",
    save: Path | None = None,
    matters: bool = True,
) -> tuple[ort.InferenceSession, Placement]:
    options = session_options(recipe.optimization, recipe.threads)
    # Weights are allocated outside the arena: their size never changes, and in the arena they would fragment it.
    options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
    if whole:
        runtime.forbid_cpu(options)
    if weights:
        runtime.read_weights(options, weights)
    if save is not None:
        options.optimized_model_filepath = str(save)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", f"{save.name}.data")
    return placement.made(options, lambda ready: create(source, ready, where), matters=matters)


def _parted(
    source: str, recipe: Recipe, where: Provider, out: Path, graph: Graph, graphs: Graphs
) -> tuple[Placement, Graph]:
    """Return the placement of the nodes, and the optimised graph, which has the nodes of the placement: the optimiser
    adds and renames nodes before it partitions the graph. If the provider compiles its part of the graph, the optimised
    graph cannot be saved. Then return `graph` instead."""
    with tempfile.TemporaryDirectory(prefix=".placed-", dir=out) as folder:
        save = Path(folder) / _GRAPH
        with contextlib.suppress(EngineUnusable):
            placed = _try(source, recipe, where, whole=False, save=save)[1]
            return placed, graphs.read(save)
    return _try(source, recipe, where, whole=False)[1], graph


def _composition(placed: Placement, shape_work: frozenset[str], is_whole: bool) -> Composition:
    on_cpu = [node for node in placed if node.provider == CPU_PROVIDER]
    work = Counter(node.operator for node in on_cpu if node.name not in shape_work)
    fallback, notes = list[str](), list[str]()
    if work:
        fallback.append(f"{counted(work)} run on the CPU ({work.total()} of {len(placed)} nodes)")
    elif not is_whole and not on_cpu:  # ONNX Runtime before 1.27 does not report nodes that it casts to float32
        fallback.append("some nodes run on the CPU; ONNX Runtime does not report which")
    by_design = Counter(node.operator for node in on_cpu) - work
    if by_design:
        notes.append(f"nodes on the CPU because they only compute shapes: {counted(by_design)}")
    return Composition(nodes=placement.counts(placed), fallback=tuple(fallback), notes=tuple(notes))


def _before(artefact: Artefact) -> Placed:
    try:
        return msgspec.json.decode(artefact.load(_PLACED), type=ready(Placed))
    except NOT_JSON as error:
        raise EngineDamaged(f"engine file {_PLACED} is invalid; the engine will be rebuilt") from error


def _require_unmoved(placed: Placement, before: Placed, where: Provider) -> None:
    moved = placement.on(placed) - Counter(before.on_cpu)
    if moved:
        raise EngineUnusable(
            f"{counted(moved)} ran on {where.device} when this engine was built but would run on the CPU now;"
            " build the engine again"
        )
