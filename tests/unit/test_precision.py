"""A model in float16, said in its graph: what changes, what stays, and that it is still the same model."""

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
from tests.unit.precision_models import CHANNELS, SIZE, answers, constant, conv, kinds, network, relu, store

HALF, SINGLE = TensorProto.FLOAT16, TensorProto.FLOAT
SHAPE = [1, CHANNELS, SIZE, SIZE]


def node(op: str, inputs: list[str], outputs: list[str], **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, **attributes)


def halve(proto: onnx.ModelProto, folder: Path, inputs: dict[str, Array] | None = None) -> tuple[Converted, Path]:
    """Converts, and checks what must be so of every model: it is valid, declares the same and answers the same."""
    source, out = store(proto, folder), folder / "out" / "half.onnx"
    out.parent.mkdir()
    converted = convert(source, "fp16", out)
    assert converted.path == str(out)
    onnx.checker.check_model(str(out), full_check=True)
    made = onnx.load(out)
    assert made.ir_version == proto.ir_version
    assert sorted((e.domain, e.version) for e in made.opset_import) == sorted(
        (e.domain, e.version) for e in proto.opset_import
    )
    assert nets.declared(out) == nets.declared(source)
    inputs = inputs or nets.picture()
    expected, found = answers(source, inputs), answers(out, inputs)
    assert list(expected) == list(found)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_allclose(found[name], array, atol=float(np.abs(array).max()) * 5e-3, err_msg=name)
    return converted, out


def operators(path: Path) -> list[str]:
    return [n.op_type for n in onnx.load(path).graph.node]


# -- what changes ---------------------------------------------------------------------------------------------------


def test_layers_and_what_lies_between_become_float16(tmp_path: Path) -> None:
    converted, out = halve(relu(behind=[node("Sigmoid", ["y"], ["p"])], outputs=[value("p", "FP32", SHAPE)]), tmp_path)
    assert operators(out) == ["Cast", "Conv", "Relu", "Conv", "Cast", "Sigmoid"]
    found = kinds(out)
    assert [found[name] for name in ("w1", "a", "b", "w2", "y")] == [HALF] * 5
    assert found["p"] == SINGLE
    assert converted.kept_fp32 == ("Sigmoid: after the last layer",)


def test_the_file_takes_half_the_room(tmp_path: Path) -> None:
    _, out = halve(nets.chain(6), tmp_path)
    assert out.stat().st_size < 0.6 * (tmp_path / "model.onnx").stat().st_size


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 17, 20])
def test_every_opset_stays_what_it_is(tmp_path: Path, opset: int) -> None:
    halve(relu(opset=opset, ir_version=8), tmp_path)


def test_batch_normalisation_and_residuals_between_layers(tmp_path: Path) -> None:
    stats = [nets.random(name, CHANNELS) for name in ("scale", "shift", "mean")]
    between = [
        node("BatchNormalization", ["a", "scale", "shift", "mean", "variance"], ["n"]),
        node("Add", ["a", "n"], ["b"]),
    ]
    converted, out = halve(network(between, [*stats, constant("variance", np.ones(CHANNELS))]), tmp_path)
    assert converted.kept_fp32 == ()
    assert operators(out).count("Cast") == 2


def test_numbers_in_attributes_of_constants_become_float16_too(tmp_path: Path) -> None:
    between = [
        node("Constant", [], ["two"], value_float=2.0),
        node("Constant", [], ["three"], value_floats=[3.0]),
        node("Constant", [], ["four"], value=constant("", 4.0)),
        node("Mul", ["a", "two"], ["m"]),
        node("Add", ["m", "three"], ["n"]),
        node("Sub", ["n", "four"], ["b"]),
    ]
    _, out = halve(network(between), tmp_path)
    assert operators(out).count("Cast") == 2


# -- what stays -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "proto",
    [models.gather(), models.matmul(columns=64, datatype="FP16"), models.several(), models.text(), models.noisy()],
    ids=["gather", "float16", "no layers", "text", "random"],
)
def test_what_has_no_float32_layer_is_left_alone(tmp_path: Path, proto: onnx.ModelProto) -> None:
    source, out = store(proto, tmp_path), tmp_path / "out.onnx"
    assert convert(source, "fp16", out).path == str(source)
    assert not out.exists()


def test_float32_is_the_model_itself(tmp_path: Path) -> None:
    source = store(relu(), tmp_path)
    assert convert(source, "fp32", tmp_path / "out.onnx") == Converted(str(source), "fp32")
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_a_value_that_two_nodes_want_in_float32_is_cast_once(tmp_path: Path) -> None:
    between = [
        node("TopK", ["a", "k"], ["v", "unused"], axis=3),
        node("Pow", ["a", "two"], ["p"]),
        node("Mul", ["p", "v"], ["m"]),
        node("Add", ["m", "a"], ["b"]),
    ]
    constants = [constant("k", [SIZE], np.int64), constant("two", 2.0)]
    converted, out = halve(network(between, constants), tmp_path)
    assert [line.split(":")[0] for line in converted.kept_fp32] == ["TopK", "Pow"]
    made = onnx.load(out).graph
    assert [n.input[0] for n in made.node if n.op_type == "Cast"].count("a") == 1
    assert {n.input[0] for n in made.node if n.op_type in ("TopK", "Pow")} == {"a.fp32"}


def test_scales_of_a_resize_stay_float32_while_its_values_do_not(tmp_path: Path) -> None:
    between = [
        node("Resize", ["a", "region", "twice"], ["r"], mode="nearest"),
        node("Resize", ["r", "region", "half"], ["b"], mode="nearest"),
    ]
    constants = [constant("region", []), constant("twice", [1, 1, 2, 2]), constant("half", [1, 1, 0.5, 0.5])]
    converted, out = halve(network(between, constants), tmp_path)
    assert [kinds(out)[name] for name in ("region", "twice", "r")] == [SINGLE, SINGLE, HALF]
    assert converted.kept_fp32 == ()


def test_upsample_of_old_opsets(tmp_path: Path) -> None:
    between = [node("Upsample", ["a", "once"], ["b"], mode="nearest")]
    _, out = halve(network(between, [constant("once", [1, 1, 1, 1])], opset=9, ir_version=4), tmp_path)
    assert kinds(out)["once"] == SINGLE


def test_sizes_computed_in_floats_stay_exact(tmp_path: Path) -> None:
    """2049 is no float16: a picture would be resized to 2048."""
    nodes = [
        conv("x", "a", "w1"),
        node("Shape", ["x"], ["shape"]),
        node("Cast", ["shape"], ["floats"], to=SINGLE),
        node("Mul", ["floats", "ratio"], ["scaled"]),
        node("Cast", ["scaled"], ["sizes"], to=TensorProto.INT64),
        node("Resize", ["a", "", "", "sizes"], ["r"], mode="nearest"),
        conv("r", "y", "w2"),
    ]
    proto = model(
        nodes,
        [value("x", "FP32", [1, 8, "h", 3])],
        [value("y", "FP32", [1, 8, "h2", 3])],
        [nets.random("w1", 8, 8, 3, 3), nets.random("w2", 8, 8, 3, 3), constant("ratio", [1, 1, 1, 1])],
    )
    converted, _ = halve(proto, tmp_path, {"x": np.random.default_rng(0).random((1, 8, 2049, 3), np.float32)})
    assert all("Resize" not in line for line in converted.kept_fp32)


def test_the_mean_of_a_distribution_is_box_decoding_and_no_layer(tmp_path: Path) -> None:
    behind = [
        node("Softmax", ["y"], ["s"], axis=1),
        node("Conv", ["s", "bins"], ["d"]),
        node("Mul", ["d", "stride"], ["box"]),
    ]
    bins = constant("bins", np.arange(CHANNELS).reshape(1, CHANNELS, 1, 1))
    outputs = [value("box", "FP32", [1, 1, SIZE, SIZE])]
    proto = network([node("Relu", ["a"], ["b"])], [bins, constant("stride", 32.0)], behind=behind, outputs=outputs)
    converted, _ = halve(proto, tmp_path)
    assert {line.split(":")[0] for line in converted.kept_fp32} == {"Softmax", "Conv", "Mul"}


def test_boxes_for_a_second_stage_are_not_between_its_layers(tmp_path: Path) -> None:
    """What a layer says of positions is heard by RoiAlign, not by the layer behind it."""
    nodes = [
        conv("x", "a", "w1"),
        node("Relu", ["a"], ["f"]),
        node("GlobalAveragePool", ["f"], ["g"]),
        node("Reshape", ["g", "rows"], ["r"]),
        node("Mul", ["r", "huge"], ["rois"]),
        node("RoiAlign", ["f", "rois", "batch"], ["c"], output_height=4, output_width=4),
        conv("c", "y", "w2"),
    ]
    constants = [nets.random("w1", 8, 3, 3, 3), nets.random("w2", 8, 8, 3, 3), constant("huge", [4.0])]
    constants += [constant("rows", [2, 4], np.int64), constant("batch", [0, 0], np.int64)]
    proto = model(nodes, [value("x", "FP32", [1, 3, SIZE, SIZE])], [value("y", "FP32", [2, 8, 4, 4])], constants)
    converted, _ = halve(proto, tmp_path)
    assert "Mul: after the last layer" in converted.kept_fp32
    assert "RoiAlign: positions and choices must be exact" in converted.kept_fp32


# -- numbers that float16 does not have -----------------------------------------------------------------------------


def test_a_constant_beyond_float16_keeps_its_nodes(tmp_path: Path) -> None:
    between = [node("Mul", ["a", "big"], ["m"]), node("Div", ["m", "big"], ["b"])]
    converted, out = halve(network(between, [constant("big", 1e8)]), tmp_path)
    assert converted.kept_fp32 == (
        "Mul: constant 'big' holds 1e+08, beyond float16",
        "Div: it works on what float16 cannot hold",
    )
    assert kinds(out)["m"] == SINGLE


def test_an_epsilon_that_would_vanish_keeps_the_division_that_it_guards(tmp_path: Path) -> None:
    between = [
        node("Sub", ["a", "a"], ["zero"]),
        node("Add", ["zero", "eps"], ["d"]),
        node("Div", ["zero", "d"], ["q"]),
        node("Add", ["a", "q"], ["b"]),
    ]
    converted, out = halve(network(between, [constant("eps", 1e-12)]), tmp_path)
    assert converted.kept_fp32[0] == "Add: constant 'eps' holds nothing above 1e-12, too small for float16"
    assert not any(np.isnan(array).any() for array in answers(out, nets.picture()).values())


def test_a_bound_beyond_float16_is_no_bound(tmp_path: Path) -> None:
    constants = [constant("low", 0.0), constant("high", np.finfo(np.float32).max)]
    converted, _ = halve(network([node("Clip", ["a", "low", "high"], ["b"])], constants), tmp_path)
    assert converted.kept_fp32 == ()


def test_weights_beyond_float16_keep_their_layer(tmp_path: Path) -> None:
    between = [node("Relu", ["a"], ["r"]), conv("r", "b", "w3")]
    converted, _ = halve(network(between, [constant("w3", np.full((8, 8, 3, 3), 1e6))]), tmp_path)
    assert converted.kept_fp32 == (
        "Conv: constant 'w3' holds 1e+06, beyond float16",
        "Conv: it works on what float16 cannot hold",  # a processor that has float16 makes infinity of it
    )


def test_what_limits_values_beyond_float16_is_float16_again(tmp_path: Path) -> None:
    between = [conv("a", "h", "w3"), node("Relu", ["h"], ["r"]), node("Tanh", ["r"], ["b"])]
    converted, out = halve(network(between, [constant("w3", np.full((8, 8, 3, 3), 1e6))]), tmp_path)
    assert converted.kept_fp32 == (
        "Conv: constant 'w3' holds 1e+06, beyond float16",
        "Relu: it works on what float16 cannot hold",
    )
    assert kinds(out)["b"] == HALF


def test_a_mask_beyond_float16_keeps_nothing_behind_the_softmax(tmp_path: Path) -> None:
    mask = np.zeros((1, 8, 16, 16), np.float32)
    mask[..., ::2] = -1e9
    between = [node("Add", ["a", "mask"], ["m"]), node("Softmax", ["m"], ["b"], axis=-1)]
    converted, out = halve(network(between, [constant("mask", mask)]), tmp_path)
    assert converted.kept_fp32 == (
        "Add: constant 'mask' holds 1e+09, beyond float16",
        "Softmax: it works on what float16 cannot hold",
    )
    assert kinds(out)["w2"] == HALF


def test_a_bias_of_next_to_nothing_keeps_nothing(tmp_path: Path) -> None:
    proto = nets.chain(2)
    next(t for t in proto.graph.initializer if t.name == "bias0").CopyFrom(constant("bias0", np.full(CHANNELS, 1e-20)))
    assert halve(proto, tmp_path)[0].kept_fp32 == ()


# -- graphs that are hard to change ---------------------------------------------------------------------------------


def branch(name: str, op: str, constants: list[onnx.TensorProto]) -> onnx.GraphProto:
    return helper.make_graph([node(op, ["a", "k"], [name])], name, [], [value(name, "FP32", SHAPE)], constants)


@pytest.mark.parametrize("up", [True, False])
def test_branches_hear_float32_of_a_layer(tmp_path: Path, up: bool) -> None:
    """Both have an initialiser of their own, of one name."""
    between = [
        node("Relu", ["a"], ["r"]),
        node(
            "If",
            ["up"],
            ["i"],
            then_branch=branch("t", "Max", [constant("k", [2.0])]),
            else_branch=branch("e", "Mul", [constant("k", [3.0])]),
        ),
        node("Add", ["r", "i"], ["b"]),
    ]
    proto = network(between, inputs=[value("up", "BOOL", [])])
    converted, out = halve(proto, tmp_path, {**nets.picture(), "up": np.array(up)})
    assert converted.kept_fp32 == ("If: it contains subgraphs",)
    assert operators(out).count("Cast") == 4


def test_a_loop_between_layers(tmp_path: Path) -> None:
    body = helper.make_graph(
        [node("Identity", ["go"], ["on"]), node("Add", ["v", "a"], ["u"])],
        "body",
        [value("i", "INT64", []), value("go", "BOOL", []), value("v", "FP32", SHAPE)],
        [value("on", "BOOL", []), value("u", "FP32", SHAPE)],
    )
    constants = [constant("times", 3, np.int64), constant("yes", True, np.bool_)]
    halve(network([node("Loop", ["times", "yes", "a"], ["b"], body=body)], constants), tmp_path)


def test_functions_become_part_of_the_graph(tmp_path: Path) -> None:
    function = helper.make_function(
        "own",
        "Twice",
        ["i"],
        ["o"],
        [node("Constant", [], ["k"], value=constant("", [2.0])), node("Mul", ["i", "k"], ["o"])],
        [helper.make_opsetid("", models.OPSET)],
    )
    proto = network([node("Twice", ["a"], ["b"], domain="own")], functions=[function], domains={"own": 1})
    converted, out = halve(proto, tmp_path)
    assert "Mul" in operators(out)
    assert converted.kept_fp32 == ()


def test_an_operator_of_somebody_else_keeps_its_types(tmp_path: Path) -> None:
    between = [node("Gelu", ["a"], ["g"], domain="com.microsoft"), node("Relu", ["g"], ["b"])]
    source = store(network(between, domains={"com.microsoft": 1}), tmp_path)
    converted = convert(source, "fp16", tmp_path / "half.onnx")
    expected, found = answers(source, nets.picture())["y"], answers(converted.path, nets.picture())["y"]
    np.testing.assert_allclose(found, expected, atol=5e-3)


def test_nodes_without_names_and_with_names_like_ours(tmp_path: Path) -> None:
    between = [node("Relu", ["a"], ["x.fp16"]), node("Relu", ["x.fp16"], ["b"], name="x.to_fp16")]
    _, out = halve(network(between), tmp_path)
    names = [n.name for n in onnx.load(out).graph.node if n.name]
    assert len(names) == len(set(names))


def test_nodes_in_any_order(tmp_path: Path) -> None:
    proto = nets.chain(3)
    nodes = list(proto.graph.node)[::-1]
    shuffled = model(nodes, proto.graph.input, proto.graph.output, proto.graph.initializer)
    _, out = halve(shuffled, tmp_path)
    assert operators(out) == ["Cast", "Conv", "Relu", "Conv", "Relu", "Conv", "Cast"]


def test_a_cycle_is_refused(tmp_path: Path) -> None:
    between = [node("Add", ["a", "c"], ["b"]), node("Relu", ["b"], ["c"])]
    with pytest.raises(Unsuitable, match="cycle"):
        convert(store(network(between), tmp_path), "fp16", tmp_path / "out.onnx")


def test_outputs_that_are_inputs_constants_and_used_inside(tmp_path: Path) -> None:
    outputs = [value(name, "FP32", SHAPE) for name in ("y", "a", "b")]
    outputs += [value("x", "FP32", [1, 3, SIZE, SIZE]), value("bias", "FP32", [1])]
    proto = network([node("Add", ["a", "bias"], ["b"])], [constant("bias", [0.1])], outputs=outputs)
    halve(proto, tmp_path)


def test_initialisers_that_are_declared_as_inputs(tmp_path: Path) -> None:
    """As all were before IR version 4."""
    proto = relu(
        inputs=[value("w1", "FP32", [CHANNELS, 3, 3, 3]), value("w2", "FP32", [CHANNELS, CHANNELS, 3, 3])],
        opset=8,
        ir_version=3,
    )
    _, out = halve(proto, tmp_path)
    assert kinds(out)["w1"] == HALF
    assert operators(out).count("Cast") == 2


def test_dynamic_sizes(tmp_path: Path) -> None:
    proto = relu()
    for entry in (proto.graph.input[0], proto.graph.output[0]):
        for axis, name in ((0, "n"), (2, "h"), (3, "w")):
            entry.type.tensor_type.shape.dim[axis].dim_param = name
    halve(proto, tmp_path, {"x": np.random.default_rng(0).random((2, 3, 24, 8), np.float32)})


# -- files ----------------------------------------------------------------------------------------------------------


def with_external_weights(folder: Path, proto: onnx.ModelProto) -> Path:
    folder.mkdir()
    path = folder / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def test_external_weights_go_into_one_file_beside_the_new_model(tmp_path: Path) -> None:
    source, out = with_external_weights(tmp_path / "model", nets.chain(4)), tmp_path / "out" / "half.onnx"
    expected = answers(source, nets.picture())["y"]
    out.parent.mkdir()
    convert(source, "fp16", out)
    for path in source.parent.iterdir():
        path.unlink()
    assert sorted(path.name for path in out.parent.iterdir()) == ["half.onnx", "half.onnx.data"]
    np.testing.assert_allclose(answers(out, nets.picture())["y"], expected, atol=float(np.abs(expected).max()) * 5e-3)


def test_weights_that_are_missing(tmp_path: Path) -> None:
    source = with_external_weights(tmp_path / "model", nets.chain(2))
    (source.parent / "weights.bin").unlink()
    with pytest.raises(EngineUnusable, match="cannot be read"):
        convert(source, "fp16", tmp_path / "out.onnx")


def test_no_file_is_overwritten(tmp_path: Path) -> None:
    source = store(relu(), tmp_path)
    before = source.read_bytes()
    with pytest.raises(FileExistsError):
        convert(source, "fp16", source)
    assert source.read_bytes() == before


def test_what_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"\xff" * 100)
    with pytest.raises(EngineUnusable, match=r"model\.onnx"):
        convert(tmp_path / "model.onnx", "fp16", tmp_path / "out.onnx")


def test_what_is_too_old(tmp_path: Path) -> None:
    with pytest.raises(Unsuitable, match="opset 5"):
        convert(store(relu(opset=5, ir_version=3), tmp_path), "fp16", tmp_path / "out.onnx")


def test_types_are_known_without_the_parser() -> None:
    program = "import sys, edged.jobs.precision; print({'onnx', 'onnxruntime'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
