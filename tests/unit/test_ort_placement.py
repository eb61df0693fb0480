"""Where ONNX Runtime says that nodes run, and which of them belong on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edged.backends import registry
from edged.backends.contract import Order, Recipe
from edged.backends.ort import placement
from edged.backends.ort.placement import PlacedNode
from edged.backends.ort.runtime import CPU, create, session_options
from edged.jobs import engine_graph
from edged.jobs.tasks import load_graphs
from tests import models
from tests.models import model, value

# Lines of ONNX Runtime 1.23's verbose log, from a session with another provider.
LOG = """\
2026-11-21 08:02:05.50 [V:onnxruntime:, session_state.cc:1307 VerifyEachNodeIsAssignedToAnEp] Node placements
2026-11-21 08:02:05.50 [V:onnxruntime:, session_state.cc:1313 VerifyEachNodeIsAssignedToAnEp]  Node(s) placed on \
[CUDAExecutionProvider]. Number of nodes: 1
2026-11-21 08:02:05.50 [V:onnxruntime:, session_state.cc:1315 VerifyEachNodeIsAssignedToAnEp]   Conv (layer (1))
2026-11-21 08:02:05.50 [V:onnxruntime:, session_state.cc:1313 VerifyEachNodeIsAssignedToAnEp]  Node(s) placed on \
[CPUExecutionProvider]. Number of nodes: 2
2026-11-21 08:02:05.50 [V:onnxruntime:, session_state.cc:1315 VerifyEachNodeIsAssignedToAnEp]   Cast ()
2026-11-21 08:02:05.50 [V:onnxruntime:, session_state.cc:1315 VerifyEachNodeIsAssignedToAnEp]   Loop (turns)
\x1b[0;93m2026-11-21 08:02:05.50 [W:onnxruntime:, session_state.cc:1327 VerifyEachNodeIsAssignedToAnEp] Some nodes \
were not assigned to the preferred execution providers.\x1b[m
"""


def node(op: str, inputs: str, outputs: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), name=f"{op} {outputs}", **attributes)


def number(name: str, *values: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def shape_work(
    nodes: list[onnx.NodeProto], constants: list[onnx.TensorProto], folder: Path, *inputs: onnx.ValueInfoProto
) -> set[str]:
    inputs = inputs or (value("x", "FP32", ["n", 3, 4]),)
    proto = model(nodes, list(inputs), [value("y", "FP32", None)], constants)
    return set(engine_graph.read(models.save(proto, folder / "model.onnx")).shape_work())


# -- what the runtime tells -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (models.conv, {"Conv": 1, "GlobalAveragePool": 1, "Relu": 1}),
        (models.several, {"Add": 1, "Mul": 1, "Sub": 1}),
    ],
)
def test_a_cpu_engine_records_its_nodes(tmp_path: Path, make: object, expected: dict[str, int]) -> None:
    proto = make()  # type: ignore[operator]
    order = Order(str(models.save(proto, tmp_path / "model.onnx")), models.signature(proto), Recipe("onnxruntime"))
    (tmp_path / "out").mkdir()
    made = registry.load("onnxruntime").build(order, tmp_path / "out", lambda fraction: None, load_graphs)
    assert list(made.nodes) == ["CPUExecutionProvider"]
    found = made.nodes["CPUExecutionProvider"]
    if placement._KEPT:
        assert found == expected
    else:  # what is told then is the graph that was saved, with what the optimiser made of it
        assert found
    assert made.fallback == ()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.onnx"]


@pytest.mark.skipif(not placement._KEPT, reason="this ONNX Runtime does not name nodes")
def test_nodes_in_bodies_are_told_too(tmp_path: Path) -> None:
    path = models.save(models.loop(), tmp_path / "model.onnx")
    _, placed = placement.made(session_options("all", 1), lambda options: create(str(path), options, CPU))
    assert placement.on(placed) == Counter(Cast=1, Loop=1, Identity=1, Add=1)


def test_the_log_of_an_older_runtime_is_read() -> None:
    placed = placement.from_log(LOG.splitlines(keepends=True))
    assert placed == (
        PlacedNode("CUDAExecutionProvider", "layer (1)", "Conv"),
        PlacedNode("CPUExecutionProvider", "", "Cast"),
        PlacedNode("CPUExecutionProvider", "turns", "Loop"),
    )
    assert placement.counts(placed) == {
        "CPUExecutionProvider": {"Cast": 1, "Loop": 1},
        "CUDAExecutionProvider": {"Conv": 1},
    }


def test_the_log_of_an_older_runtime_that_gives_all_to_one_provider_tells_only_how_many() -> None:
    line = (
        "2026-11-21 08:02:05.22 [V:onnxruntime:, session_state.cc:1310 VerifyEachNodeIsAssignedToAnEp]"
        "  All nodes placed on [CUDAExecutionProvider]. Number of nodes: 3"
    )
    assert placement.from_log([line]) == (PlacedNode("CUDAExecutionProvider"),) * 3


def test_what_others_write_meanwhile_is_passed_on_and_the_runtimes_own_is_not() -> None:
    code = (
        "import os\n"
        "from edged.backends.ort import placement\n"
        f"log = {LOG!r}\n"
        "with placement._standard_error() as file:\n"
        "    os.write(2, log.encode() + b'a warning of somebody else\\n')\n"
        "    file.seek(0)\n"
        "    assert len(placement.from_log(line.decode() for line in file)) == 3\n"
        "os.write(2, b'and later\\n')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == "a warning of somebody else\nand later\n"


def test_words_are_the_most_frequent_first() -> None:
    assert placement.words(Counter(Loop=1, NonMaxSuppression=2, Cast=1)) == "2 NonMaxSuppression, 1 Cast, 1 Loop"
    assert placement.words(Counter({"": 4})) == "4 nodes"


# -- names ----------------------------------------------------------------------------------------------------------


def test_every_node_has_a_name_of_its_own_also_in_bodies(tmp_path: Path) -> None:
    proto = models.loop()
    for each in proto.graph.node:
        each.name = "same"
    out = tmp_path / "out.onnx"
    engine_graph.write_named(models.save(proto, tmp_path / "model.onnx"), out)
    body = next(n for n in onnx.load(out).graph.node if n.op_type == "Loop").attribute[0].g
    names = [n.name for n in (*onnx.load(out).graph.node, *body.node)]
    assert all(names)
    assert len(set(names)) == len(names)
    x = np.ones(2, np.float32)
    session = create(str(out), session_options("all", 1))
    assert session.run(None, {"times": np.array(3, np.int32), "x": x})[0].tolist() == [8, 8]


def test_write_named_model_that_lists_its_initializers_as_inputs_leaves_real_inputs(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    engine_graph.write_named(models.save(models.listed_initializers(), tmp_path / "model.onnx"), out)
    assert [value.name for value in onnx.load(out).graph.input] == ["x"]


def test_weights_outside_are_written_beside_the_named_graph_in_one_file(tmp_path: Path) -> None:
    path = models.external(tmp_path / "model", "deep/weights.bin", columns=5000)
    out = tmp_path / "out" / "model.onnx"
    out.parent.mkdir()
    engine_graph.write_named(path, out)
    assert sorted(file.name for file in out.parent.iterdir()) == ["model.onnx", "model.onnx.data"]


# -- what belongs on the CPU ----------------------------------------------------------------------------------------


def test_what_is_made_of_sizes_and_constants_alone_is_shape_work(tmp_path: Path) -> None:
    nodes = [
        node("Relu", "x", "r"),
        node("Shape", "r", "s"),
        node("Gather", "s zero", "n"),
        node("Cast", "n", "f", to=TensorProto.FLOAT),
        node("Floor", "f", "g"),
        node("Cast", "g", "i", to=TensorProto.INT64),
        node("Unsqueeze", "i axis", "u"),
        node("Concat", "u rest", "to", axis=0),
        node("Reshape", "r to", "y"),
    ]
    found = shape_work(nodes, [number("zero", 0), number("axis", 0), number("rest", -1)], tmp_path)
    assert found == {n.name for n in nodes} - {"Relu r", "Reshape y"}


def test_what_reads_the_values_of_a_picture_is_not_shape_work_however_small(tmp_path: Path) -> None:
    nodes = [
        node("ReduceMax", "x", "m", keepdims=0),
        node("Shape", "x", "s"),
        node("Cast", "m", "c", to=TensorProto.INT64),
        node("Mul", "s c", "to"),
        node("Reshape", "x to", "y"),
    ]
    assert shape_work(nodes, [], tmp_path) == {"Shape s"}


def test_what_reads_nothing_but_constants_or_nothing_at_all_is_not_shape_work(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Constant", [], ["k"], name="k", value=number("", 1)),
        node("Add", "one k", "two"),
        node("RandomNormal", "", "noise", shape=[3]),
        node("Add", "x noise", "y"),
    ]
    assert shape_work(nodes, [number("one", 1)], tmp_path) == set()


def test_a_copy_between_the_memories_is_as_what_it_copies(tmp_path: Path) -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("MemcpyToHost", "s", "s2"),
        node("MemcpyToHost", "x", "x2"),
        node("Mul", "s2 s2", "t"),
        node("Det", "x2", "y"),
    ]
    assert shape_work(nodes, [], tmp_path) == {"Shape s", "MemcpyToHost s2", "Mul t"}


def test_a_loop_over_values_is_no_shape_work_but_counting_its_turns_is(tmp_path: Path) -> None:
    body = helper.make_graph(
        [node("Less", "turn most", "on"), node("Mul", "v s", "w")],
        "body",
        [value("turn", "INT64", []), value("go", "BOOL", []), value("v", "FP32", [3])],
        [value("on", "BOOL", []), value("w", "FP32", [3])],
    )
    nodes = [
        node("Shape", "x", "sizes"),
        node("Cast", "sizes", "s", to=TensorProto.FLOAT),
        helper.make_node("Loop", ["most", "", "x"], ["y"], name="loop", body=body),
    ]
    inputs = value("x", "FP32", [3])
    assert shape_work(nodes, [number("most", 3)], tmp_path, inputs) == {"Shape sizes", "Cast s", "Less on"}


def test_a_branch_on_a_size_is_shape_work_only_if_all_that_it_uses_is(tmp_path: Path) -> None:
    def branch(source: str) -> dict[str, onnx.GraphProto]:
        made = {}
        for name in ("then", "else"):
            inside = [node("Identity", source, f"{name}{source}")]
            made[f"{name}_branch"] = helper.make_graph(inside, name, [], [value(f"{name}{source}", "FP32", None)])
        return made

    nodes = [
        node("Size", "x", "s"),
        node("Cast", "s", "b", to=TensorProto.BOOL),
        helper.make_node("If", ["b"], ["i"], name="if of sizes", **branch("s")),
        helper.make_node("If", ["b"], ["y"], name="if of values", **branch("x")),
    ]
    found = shape_work(nodes, [], tmp_path)
    assert {"if of sizes", "Identity thens", "Identity elses"} <= found
    assert found.isdisjoint({"if of values", "Identity thenx", "Identity elsex"})


# -- the environment ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["onnxruntime", "trt.api"])
def test_cuda_counts_all_devices_by_pci_address_whatever_the_environment_says(module: str) -> None:
    names = ["CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"]
    code = f"import os, edged.backends.{module}; print(*map(os.environ.get, {names}))"
    environment = os.environ | {"CUDA_DEVICE_ORDER": "FASTEST_FIRST", "CUDA_VISIBLE_DEVICES": "1"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "PCI_BUS_ID None"
