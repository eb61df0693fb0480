"""Where an opened engine's nodes run against where they ran when it was verified, with real sessions and stand-ins."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import pytest

from edged.backends import registry
from edged.backends.artefact import Artefact
from edged.backends.contract import UNOPTIMISED, Nodes, Order, Placed, Recipe
from edged.engines.opener import misplaced_nodes
from edged.jobs.tasks import load_graphs
from tests import models

# ONNX Runtime 1.23, the last for Python 3.10, does not say which operators a session on the CPU has.
TELLS_OPERATORS = hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info")
CUDA = Recipe("onnxruntime", device="cuda:0")
CPU = Recipe("onnxruntime")
REFERENCE = Recipe("onnxruntime", optimization=UNOPTIMISED)
VERIFIED: Nodes = {"CUDAExecutionProvider": {"Conv": 39, "Relu": 33}, "CPUExecutionProvider": {"Shape": 2}}


def test_an_engine_that_came_up_as_it_was_verified_is_at_home() -> None:
    assert misplaced_nodes(CUDA, VERIFIED, VERIFIED) == ()


def test_a_provider_that_vanished_is_told_with_where_its_nodes_are_now() -> None:
    (line,) = misplaced_nodes(CUDA, VERIFIED, {"CPUExecutionProvider": {"Conv": 39, "Relu": 33, "Shape": 2}})
    assert line == "nothing runs on CUDAExecutionProvider: its nodes are on CPUExecutionProvider"


def test_nodes_that_moved_are_counted_by_operator_and_those_that_were_there_before_are_not() -> None:
    now = {"CUDAExecutionProvider": {"Conv": 38, "Relu": 33}, "CPUExecutionProvider": {"Shape": 2, "Conv": 1}}
    assert misplaced_nodes(CUDA, VERIFIED, now) == (
        "1 Conv run on CPUExecutionProvider instead of CUDAExecutionProvider",
    )


def test_fewer_nodes_on_the_device_are_told_although_none_turned_up_elsewhere() -> None:
    now = {"CUDAExecutionProvider": {"Conv": 30, "Relu": 33}, "CPUExecutionProvider": {"Shape": 2}}
    (line,) = misplaced_nodes(CUDA, VERIFIED, now)
    assert line == "9 of 72 nodes are not on CUDAExecutionProvider any more: 9 Conv"


def test_many_operators_are_cut_short() -> None:
    now = {"CUDAExecutionProvider": {"Conv": 1}, "CPUExecutionProvider": {f"Op{i}": 9 - i for i in range(8)}}
    (line,) = misplaced_nodes(CUDA, VERIFIED, now)
    assert line.startswith("9 Op0, 8 Op1, 7 Op2, 6 Op3, 5 Op4, … run on")


@pytest.mark.parametrize("recipe", [CPU, REFERENCE])
def test_whatever_is_for_the_cpu_runs_on_nothing_else(recipe: Recipe) -> None:
    assert misplaced_nodes(recipe, {}, {"CPUExecutionProvider": {"Add": 1}}) == ()
    (line,) = misplaced_nodes(recipe, {}, {"CPUExecutionProvider": {}, "XnnpackExecutionProvider": {"Add": 1}})
    assert line == "1 Add run on XnnpackExecutionProvider instead of CPUExecutionProvider"
    (line,) = misplaced_nodes(recipe, {}, {"CPUExecutionProvider": {}, "XnnpackExecutionProvider": {}})
    assert line == "some nodes run on XnnpackExecutionProvider instead of CPUExecutionProvider"


def test_an_optimised_graph_on_the_cpu_may_hold_other_nodes_than_were_counted_while_it_was_made() -> None:
    assert misplaced_nodes(CPU, {"CPUExecutionProvider": {"Conv": 3}}, {"CPUExecutionProvider": {"FusedConv": 2}}) == ()


def test_one_of_several_devices_of_a_kind_is_that_kind() -> None:
    recipe = Recipe("openvino", device="intel-gpu:1")
    assert misplaced_nodes(recipe, {"GPU.1": {"Convolution": 3}}, {"GPU.1": {"Convolution": 3}}) == ()
    assert misplaced_nodes(recipe, {"GPU.1": {"Convolution": 3}}, {"CPU": {"Convolution": 3}}) != ()


def test_where_a_runtime_does_not_tell_nothing_is_known() -> None:
    assert misplaced_nodes(CUDA, VERIFIED, {}) == ()
    assert misplaced_nodes(CUDA, VERIFIED, {"CUDAExecutionProvider": {}}) == ()
    assert misplaced_nodes(Recipe("tensorrt", device="cuda:0"), {}, {"TensorRT": {}}) == ()


# -- what real sessions tell ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "null"])
def test_every_session_of_an_engine_tells_where_its_nodes_run(backend: str, tmp_path: Path) -> None:
    proto, recipe, out = models.conv(), Recipe(backend), tmp_path / "engine"
    out.mkdir()
    order = Order(str(models.save(proto, tmp_path / "model.onnx")), models.signature(proto), recipe)
    recorded = registry.load(backend).build(order, out, lambda share: None, load_graphs)
    session = registry.load(backend).open(Order(order.model, order.signature, recipe, Artefact.seal(out)))
    assert isinstance(session, Placed)
    nodes = session.nodes()
    assert len(nodes) == 1
    assert misplaced_nodes(recipe, recorded.nodes, nodes) == ()
    if backend != "null" and (backend != "onnxruntime" or TELLS_OPERATORS):
        assert sum(next(iter(nodes.values())).values()) > 0
    session.close()


def test_the_reference_tells_it_of_the_model_as_it_was_written(tmp_path: Path) -> None:
    proto = models.matmul()
    order = Order(str(models.save(proto, tmp_path / "model.onnx")), models.signature(proto), REFERENCE)
    session = registry.load("onnxruntime").open(order)
    assert isinstance(session, Placed)
    assert session.nodes() == {"CPUExecutionProvider": {"MatMul": 1} if TELLS_OPERATORS else {}}
    assert misplaced_nodes(REFERENCE, {}, session.nodes()) == ()
