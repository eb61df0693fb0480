"""ONNX Runtime's CUDA provider on a real GPU: answers, node placement, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from edged.backends.artefact import Artefact
from edged.backends.contract import Composition, Order, Recipe
from edged.errors import EngineUnusable
from edged.jobs.precision import Precision, convert
from edged.tensors import Array, numpy_dtype
from tests import engines, models
from tests.engines import opened
from tests.gpu.conftest import Gpu
from tests.unit import precision_models as nets

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
SAMPLES = [nets.picture(seed) for seed in range(4)]


@pytest.fixture(autouse=True)
def provider(gpu: Gpu) -> None:
    ort = pytest.importorskip("onnxruntime")
    if CUDA not in ort.get_available_providers():
        pytest.skip("this onnxruntime has no CUDA provider; install onnxruntime-gpu")


def build(folder: Path, proto: onnx.ModelProto, precision: str = "fp32", **more: object) -> tuple[Order, Composition]:
    """Build an engine for the first GPU; return the order that opens it, and its composition."""
    wanted = engines.order(folder, proto, "onnxruntime", device="cuda:0", precision=precision, **more)
    if precision in ("fp16", "int8"):
        (folder / precision).mkdir()
        made = convert(Path(wanted.model), precision, folder / precision / "model.onnx", SAMPLES)  # type: ignore[arg-type]
        wanted = msgspec.structs.replace(wanted, model=made.path)
    return engines.build(wanted, folder / f"engine-{precision}")


def reference(folder: Path, proto: onnx.ModelProto, inputs: dict[str, Array]) -> dict[str, Array]:
    return engines.reference(folder, proto).infer(inputs)


def apart(found: Array, expected: Array) -> float:
    """Return the largest difference, relative to the largest value."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def product(size: int = 512) -> onnx.ModelProto:
    return models.matmul(size, size)


def partial() -> onnx.ModelProto:
    """Return a graph with Det, for which the CUDA provider has no kernel, between operators that it supports."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Add", ["a", "a"], ["b"]),
        helper.make_node("Det", ["b"], ["d"]),
        helper.make_node("Mul", ["d", "d"], ["y"]),
    ]
    return models.model(nodes, [models.value("x", "FP32", [5, 3, 3])], [models.value("y", "FP32", [5])])


def halved() -> onnx.ModelProto:
    """Return a graph for the first half of an open batch; the end of the slice is computed from the batch size."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Shape", ["r"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Div", ["n", "two"], ["end"]),
        helper.make_node("Slice", ["r", "zero", "end", "zero"], ["y"]),
    ]
    constants = [numpy_helper.from_array(np.array([v], np.int64), n) for n, v in (("zero", 0), ("two", 2))]
    inputs, outputs = [models.value("x", "FP32", ["n", 3, 4])], [models.value("y", "FP32", ["m", 3, 4])]
    return models.model(nodes, inputs, outputs, constants)


# -- answers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [models.conv, nets.chain, nets.relu])
def test_engine_answers_as_the_reference_entirely_on_the_gpu(tmp_path: Path, make: object) -> None:
    proto = make()  # type: ignore[operator]
    order, composition = build(tmp_path, proto)
    assert list(composition.nodes) == [CUDA]
    assert composition.fallback == ()
    assert composition.layers.keys() == {"fp32"}
    session = opened(order)
    (spec,) = order.signature.inputs
    for seed in range(5):
        x = np.random.default_rng(seed).random(spec.dims, np.float32)
        expected, answer = reference(tmp_path, proto, {"x": x}), session.infer({"x": x})
        for name, array in expected.items():
            assert apart(answer[name], array) < 1e-4
    session.close()


def test_engine_answer_is_unchanged_by_the_next_inference(tmp_path: Path) -> None:
    session = opened(build(tmp_path, models.several())[0])
    ones = np.ones((1, 3), np.float32)
    first = session.infer({"a": ones, "b": ones})["sum"]
    for number in range(3, 6):
        session.infer({"a": ones * number, "b": ones})
    np.testing.assert_array_equal(first, [[2, 2, 2]])
    assert list(session.infer({"b": ones, "a": ones}, ["prod", "diff"])) == ["prod", "diff"]


def test_shapes_may_change_from_frame_to_frame(tmp_path: Path) -> None:
    session = opened(build(tmp_path, models.dynamic())[0])
    for size in (4, 8, 0, 64, 4):
        x = np.random.default_rng(size).standard_normal((1, 3, size, 5)).astype(np.float32)
        np.testing.assert_array_equal(session.infer({"x": x})["y"], np.maximum(x, 0))


@pytest.mark.parametrize("datatype", ["FP32", "FP16", "INT32", "INT64", "UINT8", "BOOL"])
def test_datatypes_pass_through(tmp_path: Path, datatype: str) -> None:
    session = opened(build(tmp_path, models.identity(datatype, [5]))[0])
    array = np.array([0, 1, 1, 0, 1]).astype(numpy_dtype(datatype))
    for _ in range(2):
        assert session.infer({"x": array})["y"].tolist() == array.tolist()


def test_external_weights_are_part_of_the_engine(tmp_path: Path) -> None:
    path = models.external(tmp_path / "model", "deep/weights.bin", columns=5000)
    weights = np.frombuffer((path.parent / "deep" / "weights.bin").read_bytes(), np.float32).reshape(4, 5000)
    recipe, signature = Recipe("onnxruntime", device="cuda:0"), models.signature(models.matmul(columns=5000))
    wanted = Order(str(path), signature, recipe, external=("deep/weights.bin",))
    built, _ = engines.build(wanted, tmp_path / "out")
    path.unlink()
    (path.parent / "deep" / "weights.bin").unlink()
    x = np.float32([[1, 2, 3, 4]])
    answer = opened(built).infer({"x": x})["y"]
    assert apart(answer, x @ weights) < 1e-5


# -- precisions -----------------------------------------------------------------------------------------------------


def test_tf32_differs_from_fp32(tmp_path: Path, gpu: Gpu) -> None:
    proto, x = product(), np.random.default_rng(0).standard_normal((1, 512)).astype(np.float32)
    expected = x.astype(np.float64) @ numpy_helper.to_array(proto.graph.initializer[0]).astype(np.float64)
    batch = np.repeat(x, 64, axis=0)  # one row does not use tensor cores
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 64
    proto.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 64
    errors = {}
    for precision in ("fp32", "tf32"):
        session = opened(build(tmp_path, proto, precision)[0])
        errors[precision] = apart(session.infer({"x": batch})["y"], np.repeat(expected, 64, axis=0))
        session.close()
    assert errors["fp32"] < 1e-5
    if (gpu.major, gpu.minor) < (8, 0):
        pytest.skip("this GPU has no TensorFloat-32")
    assert 2e-5 < errors["tf32"] < 1e-2


@pytest.mark.parametrize(("precision", "most"), [("fp16", 5e-3), ("int8", 5e-2)])
def test_converted_graph_answers_within_tolerance(tmp_path: Path, precision: Precision, most: float) -> None:
    proto = nets.chain(4)
    order, composition = build(tmp_path, proto, precision)
    assert composition.fallback == ()
    if precision == "fp16":
        assert composition.layers["fp16"] >= 2
    session = opened(order)
    for seed in range(3):
        inputs = nets.picture(seed)
        assert apart(session.infer(inputs)["y"], reference(tmp_path, proto, inputs)["y"]) < most


# -- where nodes run ------------------------------------------------------------------------------------------------


def test_operators_the_gpu_lacks_are_reported_and_served(tmp_path: Path) -> None:
    proto = partial()
    order, composition = build(tmp_path, proto)
    assert composition.nodes[CPU]["Det"] == 1
    assert {"Relu", "Add"} <= composition.nodes[CUDA].keys()
    assert len(composition.fallback) == 1
    assert "1 Det" in composition.fallback[0]
    session = opened(order)
    x = np.random.default_rng(1).standard_normal((5, 3, 3)).astype(np.float32)
    assert apart(session.infer({"x": x})["y"], reference(tmp_path, proto, {"x": x})["y"]) < 1e-4


def test_cpu_node_reads_the_input_of_every_frame(tmp_path: Path) -> None:
    nodes = [helper.make_node("Det", ["x"], ["d"]), helper.make_node("Mul", ["d", "d"], ["y"])]
    proto = models.model(nodes, [models.value("x", "FP32", [5, 3, 3])], [models.value("y", "FP32", [5])])
    session = opened(build(tmp_path, proto)[0])
    for seed in range(4):
        x = np.random.default_rng(seed).standard_normal((5, 3, 3)).astype(np.float32)
        assert apart(session.infer({"x": x})["y"], reference(tmp_path, proto, {"x": x})["y"]) < 1e-4


def test_shape_computation_on_the_cpu_is_no_fallback(tmp_path: Path) -> None:
    order, composition = build(tmp_path, halved())
    assert composition.nodes[CPU].keys() <= {"Shape", "Gather", "Div"}
    assert composition.fallback == ()
    assert composition.notes[0].startswith("nodes on the CPU because they only compute shapes: ")
    session = opened(order)
    for batch in (2, 6):
        x = np.random.default_rng(batch).random((batch, 3, 4), np.float32)
        np.testing.assert_array_equal(session.infer({"x": x})["y"], x[: batch // 2])


def test_open_engine_whose_nodes_moved_to_the_cpu_is_refused(tmp_path: Path) -> None:
    order, _ = build(tmp_path, partial())
    assert order.artefact is not None
    place = Path(order.artefact.root) / "placement.json"
    for is_whole in (True, False):  # as if Det had run on the GPU
        place.write_text(json.dumps({"provider": CUDA, "is_whole": is_whole, "on_cpu": {}}))
        with pytest.raises(EngineUnusable, match=r"^1 Det ran on cuda:0 when this engine was built but would run on"):
            opened(msgspec.structs.replace(order, artefact=Artefact.seal(place.parent)))


def test_missing_gpu_is_refused_in_one_line(tmp_path: Path) -> None:
    order, _ = build(tmp_path, models.conv())
    with pytest.raises(EngineUnusable) as raised:
        opened(msgspec.structs.replace(order, recipe=Recipe("onnxruntime", device="cuda:63")))
    assert "\n" not in str(raised.value)
    assert "cuda:63" in str(raised.value)
