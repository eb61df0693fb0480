"""Placement of nodes by ONNX Runtime, and shape computations, which belong on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

from edged.backends.contract import counted
from edged.backends.ort import placement
from edged.backends.ort.placement import PlacedNode
from edged.backends.ort.runtime import CPU, create, session_options
from edged.jobs import engine_graph
from tests import models
from tests.engines import build, order

# From the verbose log of ONNX Runtime 1.23, of a session with another provider.
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


def shape_work(folder: Path, graph: str) -> set[str]:
    return set(engine_graph.read(models.save(models.parse(graph), folder / "model.onnx")).shape_work())


# -- what the runtime reports ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (models.conv, {"Conv": 1, "GlobalAveragePool": 1, "Relu": 1}),
        (models.several, {"Add": 1, "Mul": 1, "Sub": 1}),
    ],
)
def test_build_cpu_engine_records_its_nodes(tmp_path: Path, make: object, expected: dict[str, int]) -> None:
    proto = make()  # type: ignore[operator]
    _, made = build(order(tmp_path, proto, "onnxruntime"), tmp_path / "out")
    assert list(made.nodes) == ["CPUExecutionProvider"]
    found = made.nodes["CPUExecutionProvider"]
    if placement._KEPT:
        assert found == expected
    else:  # an older runtime: the nodes of the saved, optimised graph
        assert found
    assert made.fallback == ()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.onnx"]


@pytest.mark.skipif(not placement._KEPT, reason="this ONNX Runtime does not name nodes")
def test_made_counts_nodes_in_bodies(tmp_path: Path) -> None:
    path = models.save(models.loop(), tmp_path / "model.onnx")
    _, placed = placement.made(session_options("all", 1), lambda options: create(str(path), options, CPU))
    assert placement.on(placed) == Counter(Cast=1, Loop=1, Identity=1, Add=1)


def test_from_log_reads_the_log_of_an_older_runtime() -> None:
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


def test_from_log_all_nodes_on_one_provider_are_counted() -> None:
    line = (
        "2026-11-21 08:02:05.22 [V:onnxruntime:, session_state.cc:1310 VerifyEachNodeIsAssignedToAnEp]"
        "  All nodes placed on [CUDAExecutionProvider]. Number of nodes: 3"
    )
    assert placement.from_log([line]) == (PlacedNode("CUDAExecutionProvider"),) * 3


def test_standard_error_passes_on_only_other_lines() -> None:
    code = (
        "import os\n"
        "from edged.backends.ort import placement\n"
        f"log = {LOG!r}\n"
        "with placement._standard_error() as file:\n"
        "    os.write(2, log.encode() + b'another warning\\n')\n"
        "    file.seek(0)\n"
        "    assert len(placement.from_log(line.decode() for line in file)) == 3\n"
        "os.write(2, b'and later\\n')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == "another warning\nand later\n"


def test_words_list_the_most_frequent_first() -> None:
    assert counted(Counter(Loop=1, NonMaxSuppression=2, Cast=1)) == "2 NonMaxSuppression, 1 Cast, 1 Loop"
    assert counted(Counter({"": 4})) == "4 nodes"


# -- names ----------------------------------------------------------------------------------------------------------


def test_write_named_gives_each_node_a_unique_name(tmp_path: Path) -> None:
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


def test_write_named_external_weights_go_into_one_file(tmp_path: Path) -> None:
    path = models.external(tmp_path / "model", "deep/weights.bin", columns=5000)
    out = tmp_path / "out" / "model.onnx"
    out.parent.mkdir()
    engine_graph.write_named(path, out)
    assert sorted(file.name for file in out.parent.iterdir()) == ["model.onnx", "model.onnx.data"]


# -- shape computations ---------------------------------------------------------------------------------------------


SHAPE_WORK: dict[str, tuple[str, set[str]]] = {
    "sizes and constants": (
        """(float[n,3,4] x) => (float[] y) <int64[1] zero = {0}, int64[1] axis = {0}, int64[1] rest = {-1}> {
            r = Relu(x)
            [shape] s = Shape(r)
            [gather] n = Gather(s, zero)
            [float] f = Cast<to = 1>(n)
            [floor] g = Floor(f)
            [int] i = Cast<to = 7>(g)
            [unsqueeze] u = Unsqueeze(i, axis)
            [concat] to = Concat<axis = 0>(u, rest)
            y = Reshape(r, to)
        }""",
        {"shape", "gather", "float", "floor", "int", "unsqueeze", "concat"},
    ),
    "values of a picture, however small": (
        """(float[n,3,4] x) => (float[] y) {
            m = ReduceMax<keepdims = 0>(x)
            [shape] s = Shape(x)
            c = Cast<to = 7>(m)
            to = Mul(s, c)
            y = Reshape(x, to)
        }""",
        {"shape"},
    ),
    "only constants, or nothing": (
        """(float[n,3,4] x) => (float[] y) <int64[1] one = {1}> {
            k = Constant<value = int64[1] {1}>()
            two = Add(one, k)
            noise = RandomNormal<shape = [3]>()
            y = Add(x, noise)
        }""",
        set(),
    ),
    "copies between memories": (
        """(float[n,3,4] x) => (float[] y) {
            [shape] s = Shape(x)
            [copy] s2 = MemcpyToHost(s)
            x2 = MemcpyToHost(x)
            [mul] t = Mul(s2, s2)
            y = Det(x2)
        }""",
        {"shape", "copy", "mul"},
    ),
    "loop over values, but not counting its turns": (
        """(float[3] x) => (float[] y) <int64[1] most = {3}> {
            [shape] sizes = Shape(x)
            [float] s = Cast<to = 1>(sizes)
            y = Loop(most, , x) <
                body = body (int64 turn, bool go, float[3] v) => (bool on, float[3] w)
                    { [less] on = Less(turn, most) w = Mul(v, s) }
            >
        }""",
        {"shape", "float", "less"},
    ),
    "branches on a size": (
        """(float[n,3,4] x) => (float[] y) {
            [size] s = Size(x)
            [bool] b = Cast<to = 9>(s)
            [choice] i = If(b) <
                then_branch = t () => (int64[] ts) { [then] ts = Identity(s) },
                else_branch = e () => (int64[] es) { [else] es = Identity(s) }
            >
            y = If(b) <
                then_branch = t () => (float[] tx) { tx = Identity(x) },
                else_branch = e () => (float[] ex) { ex = Identity(x) }
            >
        }""",
        {"size", "bool", "choice", "then", "else"},
    ),
}


@pytest.mark.parametrize(("graph", "wanted"), SHAPE_WORK.values(), ids=SHAPE_WORK)
def test_shape_work_has_only_nodes_computed_from_sizes(tmp_path: Path, graph: str, wanted: set[str]) -> None:
    assert shape_work(tmp_path, graph) == wanted


# -- the environment ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["onnxruntime", "trt.api"])
def test_import_counts_cuda_devices_by_pci_address(module: str) -> None:
    names = ["CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"]
    code = f"import os, edged.backends.{module}; print(*map(os.environ.get, {names}))"
    environment = os.environ | {"CUDA_DEVICE_ORDER": "FASTEST_FIRST", "CUDA_VISIBLE_DEVICES": "1"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "PCI_BUS_ID None"
