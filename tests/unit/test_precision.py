"""Conversion to float16: nodes that change, nodes that stay in float32, and unchanged interfaces and answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edged.errors import EngineUnusable, Unsuitable
from edged.jobs.precision import Converted, convert
from edged.tensors import Array
from tests import models
from tests.models import model, value
from tests.unit import precision_models as nets
from tests.unit.precision_models import CHANNELS, SHAPE, SIZE, answers, constant, conv, kinds, network, relu, store

HALF, SINGLE = TensorProto.FLOAT16, TensorProto.FLOAT
BEYOND = "its inputs can exceed the range of float16"
HUGE_WEIGHTS = constant("w3", np.full((8, 8, 3, 3), 1e6))


def halve(proto: onnx.ModelProto, folder: Path, inputs: dict[str, Array] | None = None) -> tuple[Converted, Path]:
    """Convert a model. Check that the result is valid, and has the same inputs, outputs and answers."""
    source, out = store(proto, folder), folder / "out" / "half.onnx"
    out.parent.mkdir()
    converted = convert(source, "fp16", out)
    assert converted.path == str(out)
    onnx.checker.check_model(str(out), full_check=True)
    made = onnx.load(out)
    assert made.ir_version == proto.ir_version
    versions = [sorted((e.domain, e.version) for e in each.opset_import) for each in (made, proto)]
    assert versions[0] == versions[1]
    assert nets.declared(out) == nets.declared(source)
    names = [n.name for n in made.graph.node if n.name]
    assert len(names) == len(set(names))
    inputs = inputs or nets.picture()
    expected, found = answers(source, inputs), answers(out, inputs)
    assert list(expected) == list(found)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_allclose(found[name], array, atol=float(np.abs(array).max()) * 5e-3, err_msg=name)
    return converted, out


def operators(path: Path) -> list[str]:
    return [n.op_type for n in onnx.load(path).graph.node]


# -- between two layers ---------------------------------------------------------------------------------------------

MASK = np.zeros((1, 8, 16, 16), np.float32)
MASK[..., ::2] = -1e9

# (nodes between two layers, their constants, lines about nodes that stay in float32, element types of some values).
# Without lines, the only casts are those of the input and the output.
BETWEEN: dict[str, tuple[list[str | onnx.NodeProto], list[onnx.TensorProto], tuple[str, ...], dict[str, int]]] = {
    "batch normalisation and residual": (
        ["n = BatchNormalization(a, scale, shift, mean, variance)", "b = Add(a, n)"],
        [*(nets.random(n, CHANNELS) for n in ("scale", "shift", "mean")), constant("variance", np.ones(CHANNELS))],
        (),
        {},
    ),
    "numbers in attributes of constants": (
        [
            "two = Constant<value_float = 2.0>()",
            "three = Constant<value_floats = [3.0]>()",
            "four = Constant<value = float {4.0}>()",
            "m = Mul(a, two)",
            "n = Add(m, three)",
            "b = Sub(n, four)",
        ],
        [],
        (),
        {},
    ),
    "scales of a resize": (
        ['r = Resize<mode = "nearest">(a, region, twice)', 'b = Resize<mode = "nearest">(r, region, half)'],
        [constant("region", []), constant("twice", [1, 1, 2, 2]), constant("half", [1, 1, 0.5, 0.5])],
        (),
        {"region": SINGLE, "twice": SINGLE, "r": HALF},
    ),
    "constant beyond float16": (
        ["m = Mul(a, big)", "b = Div(m, big)"],
        [constant("big", 1e8)],
        ("Mul: constant 'big' holds 1e+08, which is beyond the range of float16", f"Div: {BEYOND}"),
        {"m": SINGLE},
    ),
    "bound beyond float16 is no bound": (
        ["b = Clip(a, low, high)"],
        [constant("low", 0.0), constant("high", np.finfo(np.float32).max)],
        (),
        {},
    ),
    "weights beyond float16": (
        ["r = Relu(a)", conv("r", "b", "w3")],
        [HUGE_WEIGHTS],
        # The next layer stays too, because its input is infinite on a processor with float16.
        ("Conv: constant 'w3' holds 1e+06, which is beyond the range of float16", f"Conv: {BEYOND}"),
        {},
    ),
    "operator that limits values": (
        [conv("a", "h", "w3"), "r = Relu(h)", "b = Tanh(r)"],
        [HUGE_WEIGHTS],
        ("Conv: constant 'w3' holds 1e+06, which is beyond the range of float16", f"Relu: {BEYOND}"),
        {"b": HALF},
    ),
    "mask before a softmax": (
        ["m = Add(a, mask)", "b = Softmax<axis = -1>(m)"],
        [constant("mask", MASK)],
        ("Add: constant 'mask' holds 1e+09, which is beyond the range of float16", f"Softmax: {BEYOND}"),
        {"w2": HALF},
    ),
    "names like those of casts": (
        [helper.make_node("Relu", ["a"], ["x.fp16"]), helper.make_node("Relu", ["x.fp16"], ["b"], name="x.to_fp16")],
        [],
        (),
        {},
    ),
}


@pytest.mark.parametrize(("between", "constants", "kept", "types"), BETWEEN.values(), ids=BETWEEN)
def test_convert_nodes_between_layers_become_float16_if_they_can(
    tmp_path: Path,
    between: list[str | onnx.NodeProto],
    constants: list[onnx.TensorProto],
    kept: tuple[str, ...],
    types: dict[str, int],
) -> None:
    converted, out = halve(network(between, constants), tmp_path)
    assert converted.kept_fp32 == kept
    if not kept:
        assert operators(out).count("Cast") == 2
    found = kinds(out)
    assert {name: found[name] for name in types} == types


def test_convert_layers_and_nodes_between_are_float16_and_the_file_smaller(tmp_path: Path) -> None:
    converted, out = halve(relu(behind=["p = Sigmoid(y)"], outputs=[value("p", "FP32", SHAPE)]), tmp_path)
    assert operators(out) == ["Cast", "Conv", "Relu", "Conv", "Cast", "Sigmoid"]
    found = kinds(out)
    assert [found[name] for name in ("w1", "a", "b", "w2", "y", "p")] == [*[HALF] * 5, SINGLE]
    assert converted.kept_fp32 == ("Sigmoid: after the last layer",)
    assert out.stat().st_size < 0.7 * (tmp_path / "model.onnx").stat().st_size


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 17, 20])
def test_convert_keeps_the_opset(tmp_path: Path, opset: int) -> None:
    halve(relu(opset=opset, ir_version=8), tmp_path)


def test_convert_scales_of_upsample_stay_float32(tmp_path: Path) -> None:
    between = ['b = Upsample<mode = "nearest">(a, once)']
    _, out = halve(network(between, [constant("once", [1, 1, 1, 1])], opset=9, ir_version=4), tmp_path)
    assert kinds(out)["once"] == SINGLE


@pytest.mark.parametrize(
    "proto",
    [models.gather(), models.matmul(columns=64, datatype="FP16"), models.several(), models.text(), models.noisy()],
    ids=["gather", "float16", "no layers", "text", "random"],
)
def test_convert_without_a_float32_layer_changes_nothing(tmp_path: Path, proto: onnx.ModelProto) -> None:
    source, out = store(proto, tmp_path), tmp_path / "out.onnx"
    assert convert(source, "fp16", out).path == str(source)
    assert not out.exists()


def test_convert_to_float32_returns_the_model_itself(tmp_path: Path) -> None:
    source = store(relu(), tmp_path)
    assert convert(source, "fp32", tmp_path / "out.onnx") == Converted(str(source))
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_convert_value_that_two_nodes_need_in_float32_is_cast_once(tmp_path: Path) -> None:
    between = ["v, unused = TopK<axis = 3>(a, k)", "p = Pow(a, two)", "m = Mul(p, v)", "b = Add(m, a)"]
    constants = [constant("k", [SIZE], np.int64), constant("two", 2.0)]
    converted, out = halve(network(between, constants), tmp_path)
    assert [line.split(":")[0] for line in converted.kept_fp32] == ["TopK", "Pow"]
    made = onnx.load(out).graph
    assert [n.input[0] for n in made.node if n.op_type == "Cast"].count("a") == 1
    assert {n.input[0] for n in made.node if n.op_type in ("TopK", "Pow")} == {"a.fp32"}


def test_convert_epsilon_that_would_vanish_keeps_its_division(tmp_path: Path) -> None:
    between = ["zero = Sub(a, a)", "d = Add(zero, eps)", "q = Div(zero, d)", "b = Add(a, q)"]
    converted, out = halve(network(between, [constant("eps", 1e-12)]), tmp_path)
    assert converted.kept_fp32[0] == "Add: constant 'eps' holds only values up to 1e-12, too small for float16"
    assert not any(np.isnan(array).any() for array in answers(out, nets.picture()).values())


def test_convert_bias_that_vanishes_keeps_nothing(tmp_path: Path) -> None:
    proto = nets.chain(2)
    next(t for t in proto.graph.initializer if t.name == "bias0").CopyFrom(constant("bias0", np.full(CHANNELS, 1e-20)))
    assert halve(proto, tmp_path)[0].kept_fp32 == ()


# -- positions and sizes --------------------------------------------------------------------------------------------


def test_convert_sizes_computed_in_floats_stay_exact(tmp_path: Path) -> None:
    """Float16 cannot represent 2049, so the picture would be resized to 2048."""
    lines = models.nodes(
        conv("x", "a", "w1"),
        "shape = Shape(x)",
        "floats = Cast<to = 1>(shape)",
        "scaled = Mul(floats, ratio)",
        "sizes = Cast<to = 7>(scaled)",
        'r = Resize<mode = "nearest">(a, , , sizes)',
        conv("r", "y", "w2"),
    )
    ends = [value("x", "FP32", [1, 8, "h", 3])], [value("y", "FP32", [1, 8, "h2", 3])]
    weights = [nets.random("w1", 8, 8, 3, 3), nets.random("w2", 8, 8, 3, 3), constant("ratio", [1, 1, 1, 1])]
    inputs = {"x": np.random.default_rng(0).random((1, 8, 2049, 3), np.float32)}
    converted, _ = halve(model(lines, *ends, weights), tmp_path, inputs)
    assert all("Resize" not in line for line in converted.kept_fp32)


def test_convert_convolution_of_box_decoding_is_no_layer(tmp_path: Path) -> None:
    behind = ["s = Softmax<axis = 1>(y)", "d = Conv(s, bins)", "box = Mul(d, stride)"]
    bins = constant("bins", np.arange(CHANNELS).reshape(1, CHANNELS, 1, 1))
    outputs = [value("box", "FP32", [1, 1, SIZE, SIZE])]
    proto = network(["b = Relu(a)"], [bins, constant("stride", 32.0)], behind=behind, outputs=outputs)
    converted, _ = halve(proto, tmp_path)
    assert {line.split(":")[0] for line in converted.kept_fp32} == {"Softmax", "Conv", "Mul"}


def test_convert_boxes_for_a_second_stage_stay_float32(tmp_path: Path) -> None:
    """RoiAlign reads the positions that the first layer computes; the layer after it does not."""
    lines = models.nodes(
        conv("x", "a", "w1"),
        "f = Relu(a)",
        "g = GlobalAveragePool(f)",
        "r = Reshape(g, rows)",
        "rois = Mul(r, huge)",
        "c = RoiAlign<output_height = 4, output_width = 4>(f, rois, batch)",
        conv("c", "y", "w2"),
    )
    constants = [nets.random("w1", 8, 3, 3, 3), nets.random("w2", 8, 8, 3, 3), constant("huge", [4.0])]
    constants += [constant("rows", [2, 4], np.int64), constant("batch", [0, 0], np.int64)]
    proto = model(lines, [value("x", "FP32", [1, 3, SIZE, SIZE])], [value("y", "FP32", [2, 8, 4, 4])], constants)
    converted, _ = halve(proto, tmp_path)
    assert "Mul: after the last layer" in converted.kept_fp32
    assert "RoiAlign: positions and choices must be exact" in converted.kept_fp32


# -- graphs that are hard to change ---------------------------------------------------------------------------------


@pytest.mark.parametrize("up", [True, False])
def test_convert_branches_read_a_layer_in_float32(tmp_path: Path, up: bool) -> None:
    """Both branches have an initializer with the same name."""
    choice = """i = If(up) <
        then_branch = t () => (float[1,8,16,16] t) <float[1] k = {2.0}> { t = Max(a, k) },
        else_branch = e () => (float[1,8,16,16] e) <float[1] k = {3.0}> { e = Mul(a, k) }
    >"""
    proto = network(["r = Relu(a)", choice, "b = Add(r, i)"], inputs=[value("up", "BOOL", [])])
    converted, out = halve(proto, tmp_path, {**nets.picture(), "up": np.array(up)})
    assert converted.kept_fp32 == ("If: it contains subgraphs",)
    assert operators(out).count("Cast") == 4


def test_convert_loop_between_layers_is_valid(tmp_path: Path) -> None:
    loop = """b = Loop(times, yes, a) <
        body = body (int64 i, bool go, float[1,8,16,16] v) => (bool on, float[1,8,16,16] u)
            { on = Identity(go) u = Add(v, a) }
    >"""
    halve(network([loop], [constant("times", 3, np.int64), constant("yes", True, np.bool_)]), tmp_path)


def test_convert_functions_become_part_of_the_graph(tmp_path: Path) -> None:
    body = models.nodes("k = Constant<value = float[1] {2.0}>()", "o = Mul(i, k)")
    function = helper.make_function("own", "Twice", ["i"], ["o"], body, [helper.make_opsetid("", models.OPSET)])
    converted, out = halve(network(["b = own.Twice(a)"], functions=[function], domains={"own": 1}), tmp_path)
    assert "Mul" in operators(out)
    assert converted.kept_fp32 == ()


def test_convert_operator_of_another_domain_keeps_its_types(tmp_path: Path) -> None:
    between = ["g = com.microsoft.Gelu(a)", "b = Relu(g)"]
    source = store(network(between, domains={"com.microsoft": 1}), tmp_path)
    converted = convert(source, "fp16", tmp_path / "half.onnx")
    expected, found = answers(source, nets.picture())["y"], answers(converted.path, nets.picture())["y"]
    np.testing.assert_allclose(found, expected, atol=5e-3)


def test_convert_nodes_in_reverse_order_are_sorted(tmp_path: Path) -> None:
    graph = nets.chain(3).graph
    _, out = halve(model(list(graph.node)[::-1], graph.input, graph.output, graph.initializer), tmp_path)
    assert operators(out) == ["Cast", "Conv", "Relu", "Conv", "Relu", "Conv", "Cast"]


def test_convert_outputs_that_are_also_inputs_or_constants_stay_valid(tmp_path: Path) -> None:
    outputs = [value(name, "FP32", SHAPE) for name in ("y", "a", "b")]
    outputs += [value("x", "FP32", [1, 3, SIZE, SIZE]), value("bias", "FP32", [1])]
    halve(network(["b = Add(a, bias)"], [constant("bias", [0.1])], outputs=outputs), tmp_path)


def test_convert_initializers_that_are_declared_as_inputs_are_converted(tmp_path: Path) -> None:
    """Before IR version 4 all initializers were declared as inputs."""
    inputs = [value("w1", "FP32", [CHANNELS, 3, 3, 3]), value("w2", "FP32", [CHANNELS, CHANNELS, 3, 3])]
    _, out = halve(relu(inputs=inputs, opset=8, ir_version=3), tmp_path)
    assert kinds(out)["w1"] == HALF
    assert operators(out).count("Cast") == 2


def test_convert_model_with_dynamic_sizes_is_valid(tmp_path: Path) -> None:
    proto = relu()
    for entry in (proto.graph.input[0], proto.graph.output[0]):
        for axis, name in ((0, "n"), (2, "h"), (3, "w")):
            entry.type.tensor_type.shape.dim[axis].dim_param = name
    halve(proto, tmp_path, {"x": np.random.default_rng(0).random((2, 3, 24, 8), np.float32)})


# -- files ----------------------------------------------------------------------------------------------------------


def test_convert_external_weights_go_into_one_file_next_to_the_new_model(tmp_path: Path) -> None:
    source, out = store(nets.chain(4), tmp_path / "model", is_external=True), tmp_path / "out" / "half.onnx"
    expected = answers(source, nets.picture())["y"]
    out.parent.mkdir()
    convert(source, "fp16", out)
    for path in source.parent.iterdir():
        path.unlink()
    assert sorted(path.name for path in out.parent.iterdir()) == ["half.onnx", "half.onnx.data"]
    np.testing.assert_allclose(answers(out, nets.picture())["y"], expected, atol=float(np.abs(expected).max()) * 5e-3)


def test_convert_missing_weights_are_unusable(tmp_path: Path) -> None:
    source = store(nets.chain(2), tmp_path / "model", is_external=True)
    (source.parent / "weights.bin").unlink()
    with pytest.raises(EngineUnusable):
        convert(source, "fp16", tmp_path / "out.onnx")


def test_convert_never_overwrites_a_file(tmp_path: Path) -> None:
    source = store(relu(), tmp_path)
    before = source.read_bytes()
    with pytest.raises(FileExistsError):
        convert(source, "fp16", source)
    assert source.read_bytes() == before


def test_convert_file_that_is_no_model_is_unusable(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"\xff" * 100)
    with pytest.raises(EngineUnusable):
        convert(tmp_path / "model.onnx", "fp16", tmp_path / "out.onnx")


@pytest.mark.parametrize(
    ("proto", "reason"),
    [(network(["b = Add(a, c)", "c = Relu(b)"]), "cycle"), (relu(opset=5, ir_version=3), "opset 5")],
    ids=["cycle", "too old"],
)
def test_convert_unsuitable_model_is_refused(tmp_path: Path, proto: onnx.ModelProto, reason: str) -> None:
    with pytest.raises(Unsuitable, match=reason):
        convert(store(proto, tmp_path), "fp16", tmp_path / "out.onnx")


def test_import_precision_loads_no_onnx() -> None:
    program = "import sys, edged.jobs.precision; print({'onnx', 'onnxruntime'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
