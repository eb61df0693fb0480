"""Layers that int8 computes, and where their Q/DQ pairs are: per tensor, per channel of a depthwise convolution."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from edged.jobs.int8_layers import Floats, asymmetric, choose, quantise, symmetric
from edged.jobs.int8_pictures import Way
from edged.jobs.onnx_graph import Model
from edged.jobs.onnx_int8 import prepare
from edged.jobs.precision import convert
from tests.unit import precision_models as nets
from tests.unit.precision_models import CHANNELS, answers, conv, network, store

SAMPLES = [nets.picture(seed) for seed in range(4)]
DEPTHWISE = Way(asymmetric=True)


def mixed(**more: object) -> onnx.ModelProto:
    """Two layers read the same value: a depthwise convolution and another one."""
    between = [
        f"d = Conv<pads = [1, 1, 1, 1], group = {CHANNELS}>(a, deep)",
        conv("a", "c", "w3"),
        "b = Add(d, c)",
    ]
    return network(between, [nets.random("deep", CHANNELS, 1, 3, 3), nets.random("w3", 8, 8, 3, 3)], **more)  # type: ignore[arg-type]


def inputs_of(path: Path) -> dict[str, tuple[onnx.NodeProto, onnx.NodeProto, np.ndarray]]:
    """Return Q, DQ and the scale at the first input of each quantised layer, by the layer's output."""
    graph = onnx.load(path).graph
    made = {name: node for node in graph.node for name in node.output}
    held = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    found = {}
    for node in graph.node:
        second = made.get(node.input[0]) if node.op_type in ("Conv", "ConvTranspose") else None
        if second is not None and second.op_type == "DequantizeLinear":
            found[node.output[0]] = made[second.input[0]], second, held[second.input[1]]
    return found


def axis(node: onnx.NodeProto) -> int | None:
    return next((attribute.i for attribute in node.attribute if attribute.name == "axis"), None)


@pytest.mark.parametrize("opset", [9, 13, 17, 18, 20])
def test_convert_depthwise_input_has_a_pair_of_its_own_with_a_scale_for_each_channel(
    tmp_path: Path, opset: int
) -> None:
    source = store(mixed(opset=opset, ir_version=8), tmp_path)
    convert(source, "int8", tmp_path / "int8.onnx", SAMPLES, DEPTHWISE)
    found = inputs_of(tmp_path / "int8.onnx")
    (deep_q, deep_dq, deep_scale), (q, _, scale) = found["d"], found["c"]
    assert (deep_scale.shape, scale.shape) == ((CHANNELS,), ())
    assert (axis(deep_q), axis(deep_dq)) == (1, 1)
    assert deep_q.input[0] == q.input[0] == "a", "both read the float32 value, not each other's"
    assert deep_q.output[0] != q.output[0]
    values = np.stack([np.asarray(answers(outputs(source, "a"), sample)["a"]) for sample in SAMPLES])
    assert scale == pytest.approx((values.max() - values.min()) / 255, rel=1e-5)
    assert deep_scale == pytest.approx((values.max((0, 1, 3, 4)) - values.min((0, 1, 3, 4))) / 255, rel=1e-5)
    assert {held.dtype for held in zeros(tmp_path / "int8.onnx")} == {np.dtype(np.uint8), np.dtype(np.int8)}
    onnx.checker.check_model(str(tmp_path / "int8.onnx"), full_check=True)
    expected, made = (np.asarray(answers(path, SAMPLES[0])["y"], float) for path in (source, tmp_path / "int8.onnx"))
    np.testing.assert_allclose(made, expected, atol=float(np.abs(expected).max()) * 0.05)


def outputs(source: Path, *names: str) -> Path:
    """Write a copy of the model that also returns these values."""
    proto = onnx.load(source)
    proto.graph.output.extend(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names)
    onnx.save(proto, source.with_name("more.onnx"))
    return source.with_name("more.onnx")


def test_convert_first_recipe_leaves_depthwise_layers_in_float32(tmp_path: Path) -> None:
    made = convert(store(mixed(), tmp_path), "int8", tmp_path / "int8.onnx", SAMPLES)
    assert set(inputs_of(tmp_path / "int8.onnx")) == {"a", "c"}
    assert "Conv: depthwise: its channels differ too much for one scale" in made.kept_fp32


def test_convert_layers_that_share_a_value_or_weights_share_the_pair(tmp_path: Path) -> None:
    between: list[str | onnx.NodeProto] = [conv("a", "c", "w3"), conv("a", "d", "w3"), "b = Add(c, d)"]
    convert(store(network(between, [nets.random("w3", 8, 8, 3, 3)]), tmp_path), "int8", tmp_path / "o.onnx", SAMPLES)
    kinds = [node.op_type for node in onnx.load(tmp_path / "o.onnx").graph.node]
    assert kinds.count("QuantizeLinear") == kinds.count("DequantizeLinear") == 4  # x, w1, a, w3


def test_choose_says_for_each_layer_where_its_channels_are(tmp_path: Path) -> None:
    between = [
        "t = ConvTranspose<pads = [1, 1, 1, 1]>(a, turned)",
        f"b = Conv<pads = [1, 1, 1, 1], group = {CHANNELS}>(t, deep)",
    ]
    constants = [nets.random("turned", 8, 8, 3, 3), nets.random("deep", CHANNELS, 1, 3, 3)]
    prepared, _ = prepare(Model.read(store(network(between, constants), tmp_path)), tmp_path)
    layers, _ = choose(Model.read(prepared), depthwise=True)
    assert [(layer.kind, layer.axis, layer.value.by_channel) for layer in layers] == [
        ("Conv", 0, False),
        ("ConvTranspose", 1, False),
        ("Conv", 0, True),
    ]
    assert [layer.value.name for layer in choose(Model.read(prepared), depthwise=False)[0]] == ["x", "a"]


def zeros(path: Path) -> list[np.ndarray]:
    """Return the zero points of a quantised model."""
    graph = onnx.load(path).graph
    held = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    return [held[node.input[2]] for node in graph.node if node.op_type == "QuantizeLinear"]


def test_scales_of_zeros_are_one_and_of_infinity_infinite() -> None:
    found = symmetric(np.array([0.0, 127.0, np.inf]))
    assert found.scale.tolist() == [1.0, 1.0, np.inf]
    assert found.zero.tolist() == [0, 0, 0]
    assert found.zero.dtype == np.int8


@pytest.mark.parametrize(
    ("least", "most", "scale", "zero"),
    [
        (0.0, 255.0, 1.0, 0),
        (-127.5, 127.5, 1.0, 128),
        (5.0, 51.0, 0.2, 0),  # zero is always in the range, because of padding
        (-51.0, -5.0, 0.2, 255),
        (0.0, 0.0, 1.0, 0),
    ],
)
def test_asymmetric_range_fills_eight_bits(least: float, most: float, scale: float, zero: int) -> None:
    found = asymmetric(np.array([least]), np.array([most]))
    assert found.scale == pytest.approx([scale])
    assert found.zero.tolist() == [zero]
    assert found.zero.dtype == np.uint8


@pytest.mark.parametrize("bias", [True, False])
def test_quantise_adds_corrections_to_biases(tmp_path: Path, bias: bool) -> None:
    proto = nets.chain(3) if bias else network([conv("a", "c0", "w3"), "b = Relu(c0)"], [nets.random("w3", 8, 8, 3, 3)])
    prepared, _ = prepare(Model.read(store(proto, tmp_path)), tmp_path)
    layers, _ = choose(Model.read(prepared), depthwise=False)
    scales = {layer.value: symmetric(np.ones(1)) for layer in layers}
    correction = np.arange(CHANNELS, dtype=np.float32)
    plain, corrected = Model.read(prepared), Model.read(prepared)
    quantise(plain, layers, scales)
    quantise(corrected, layers, scales, {"conv c0": correction})
    found = list[Floats]()
    for number, model in enumerate((plain, corrected)):
        model.write(tmp_path / f"{number}.onnx")
        found.append(np.asarray(answers(outputs(tmp_path / f"{number}.onnx", "c0"), SAMPLES[0])["c0"], np.float32))
    np.testing.assert_allclose((found[1] - found[0]).mean(axis=(0, 2, 3)), correction, atol=1e-4)
    assert np.ptp(found[1] - found[0], axis=(2, 3)).max() < 1e-4
