"""Conversion to int8: positions of Q/DQ pairs, layers that stay in float32, and invalid calibration data."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edged.errors import EngineUnusable, Unsuitable
from edged.jobs import onnx_int8
from edged.jobs.int8_layers import check
from edged.jobs.int8_pictures import SEVEN_BITS, Way
from edged.jobs.onnx_graph import Model
from edged.jobs.onnx_int8 import prepare
from edged.jobs.precision import Calibration, Converted, convert
from tests import models
from tests.models import model, value
from tests.unit import precision_models as nets
from tests.unit.precision_models import CHANNELS, SHAPE, SIZE, answers, constant, conv, network, store

SAMPLES = [nets.picture(seed) for seed in range(4)]


def quantise(source: onnx.ModelProto | Path, folder: Path, samples: Calibration = SAMPLES) -> tuple[Converted, Path]:
    """Convert a model. Check that the result is valid, with the same interface, similar answers, and no other files."""
    if isinstance(source, onnx.ModelProto):
        source = store(source, folder)
    out = folder / "out" / "int8.onnx"
    out.parent.mkdir()
    # On every processor: on those without VNNI, OpenVINO's sums of 8-bit products overflow.
    converted = convert(source, "int8", out, samples, Way(levels=SEVEN_BITS))
    assert converted.path == str(out)
    assert {path.name for path in out.parent.iterdir()} <= {"int8.onnx", "int8.onnx.data"}
    onnx.checker.check_model(str(out), full_check=True)
    assert nets.declared(out) == nets.declared(source)
    expected, found = answers(source, samples[0]), answers(out, samples[0])
    assert list(expected) == list(found)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_allclose(found[name], array, atol=float(np.abs(array).max()) * 0.05, err_msg=name)
    return converted, out


def producers(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    return {name: n for n in graph.node for name in n.output}


def quantised(path: Path) -> list[str]:
    """Return the names of layers with inputs from Q/DQ pairs."""
    graph = onnx.load(path).graph
    made = producers(graph)
    return [n.name for n in graph.node if n.input and made.get(n.input[0], n).op_type == "DequantizeLinear"]


# -- the pairs ------------------------------------------------------------------------------------------------------


def test_convert_pairs_are_at_both_inputs_of_each_layer(tmp_path: Path) -> None:
    converted, out = quantise(nets.chain(4), tmp_path)
    graph = onnx.load(out).graph
    made, held = producers(graph), {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    layers = [n for n in graph.node if n.op_type == "Conv"]
    for layer in layers[:-1]:
        for slot in (0, 1):
            second = made[layer.input[slot]]
            first = made[second.input[0]]
            assert (first.op_type, second.op_type) == ("QuantizeLinear", "DequantizeLinear")
            assert list(first.input[1:]) == list(second.input[1:])
            zero, scale = held[second.input[2]], held[second.input[1]]
            assert zero.dtype == np.int8
            assert not zero.any()
            assert scale.shape == ((CHANNELS,) if slot else ())
            assert held[first.input[0]].dtype == np.float32 if slot else first.input[0] not in held
        assert held[layer.input[2]].dtype == np.float32
    users = {name: {n.op_type for n in graph.node if name in n.input} for name in made}
    assert all(users[n.output[0]] == {"DequantizeLinear"} for n in graph.node if n.op_type == "QuantizeLinear")
    assert all(users[n.output[0]] == {"Conv"} for n in graph.node if n.op_type == "DequantizeLinear")
    assert converted.kept_fp32 == ("Conv: the last layer before an output",)
    assert converted.notes == ()


def test_convert_pairs_compute_in_eight_bits(tmp_path: Path) -> None:
    _, out = quantise(nets.chain(3), tmp_path)
    proto = onnx.load(out)
    first = next(n for n in proto.graph.node if n.op_type == "QuantizeLinear" and n.input[0] == "x")
    proto.graph.output.append(helper.make_tensor_value_info(first.output[0], TensorProto.INT8, None))
    onnx.save(proto, out)
    found = answers(out, SAMPLES[0])[first.output[0]]
    assert found.dtype == np.int8
    assert 100 < found.max() <= 127


def test_convert_layers_that_do_not_gain_stay_float32(tmp_path: Path) -> None:
    between = [
        f"d = Conv<pads = [1, 1, 1, 1], group = {CHANNELS}>(a, deep)",
        "t = Transpose<perm = [0, 1, 3, 2]>(d)",
        "m = MatMul(d, t)",
        "b = Relu(m)",
    ]
    converted, out = quantise(network(between, [nets.random("deep", CHANNELS, 1, 3, 3)]), tmp_path)
    assert quantised(out) == ["conv a"]
    assert converted.kept_fp32 == (
        "Conv: depthwise: its channels differ too much for one scale",
        "MatMul: its weights are not constant",
        "Conv: the last layer before an output",
    )


@pytest.mark.parametrize("transposed", [0, 1])
def test_convert_matrices_have_a_scale_for_each_column(tmp_path: Path, transposed: int) -> None:
    layers = models.nodes(
        "p = MatMul(x, w)",
        "a = Add(p, d)",
        "r = Relu(a)",
        f"g = Gemm<transB = {transposed}>(r, v, c)",
        "s = Relu(g)",
        "h = Gemm<beta = 0.5>(s, u, c)",
        "y = MatMul(h, w2)",
    )
    shapes = {
        "w": (12, 16),
        "v": (24, 16) if transposed else (16, 24),
        "c": (24,),
        "d": (16,),
        "u": (24, 24),
        "w2": (24, 5),
    }
    constants = [nets.random(name, *shape) for name, shape in shapes.items()]
    proto = model(layers, [value("x", "FP32", [2, 12])], [value("y", "FP32", [2, 5])], constants)
    samples = [{"x": np.random.default_rng(seed).random((2, 12), np.float32)} for seed in range(4)]
    converted, out = quantise(proto, tmp_path, samples)
    graph = onnx.load(out).graph
    sizes = {t.name: list(t.dims) for t in graph.initializer}
    scales = [sizes[n.input[1]] for n in graph.node if n.op_type == "QuantizeLinear"]
    assert sorted(scales) == [[], [], [16], [24]]
    assert "Gemm: its attribute 'beta' scales the bias" in converted.kept_fp32


@pytest.mark.parametrize(
    ("between", "outputs", "count"),
    [
        pytest.param(["b = ConvTranspose<pads = [1, 1, 1, 1]>(a, w3)"], ["y"], 2, id="transposed convolution"),
        pytest.param(["r = Relu(a)", conv("r", "b", "w3")], ["y", "r"], 2, id="output that a layer uses"),
        pytest.param(["n = Sub(a, a)", conv("n", "c", "w3"), "b = Add(a, c)"], ["y"], 2, id="only zeros"),
    ],
)
def test_convert_quantises_inner_layers_but_no_outputs(
    tmp_path: Path, between: list[str | onnx.NodeProto], outputs: list[str], count: int
) -> None:
    ends = [value(name, "FP32", SHAPE) for name in outputs]
    _, out = quantise(network(between, [nets.random("w3", 8, 8, 3, 3)], outputs=ends), tmp_path)
    made = producers(onnx.load(out).graph)
    assert "DequantizeLinear" not in {made[name].op_type for name in outputs}
    assert len(quantised(out)) == count


# -- the file -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("opset", "ir_version", "made"),
    [(8, 3, (13, 7)), (9, 4, (13, 7)), (13, 9, (13, 9)), (17, 9, (17, 9)), (20, 9, (20, 9))],
)
def test_convert_raises_the_opset_only_if_it_is_too_old(
    tmp_path: Path, opset: int, ir_version: int, made: tuple[int, int]
) -> None:
    proto = nets.chain(3, opset=opset, ir_version=ir_version, metadata={"stride": "32"})
    converted, out = quantise(proto, tmp_path)
    found = onnx.load(out)
    assert [(e.domain, e.version) for e in found.opset_import] == [("", made[0])]
    assert (found.ir_version, found.producer_name) == (made[1], "edged-tests")
    assert {entry.key: entry.value for entry in found.metadata_props} == {"stride": "32"}
    raised = f"opset raised from {opset} to 13: older opsets have no Q/DQ with a scale for each channel"
    assert converted.notes == (() if opset == made[0] else (raised,))


def test_convert_external_weights_stay_external(tmp_path: Path) -> None:
    source = store(nets.chain(4), tmp_path / "model", is_external=True)
    before = {path.name: path.read_bytes() for path in source.parent.iterdir()}
    _, out = quantise(source, tmp_path)
    assert {path.name for path in out.parent.iterdir()} == {"int8.onnx", "int8.onnx.data"}
    assert {path.name: path.read_bytes() for path in source.parent.iterdir()} == before


def test_convert_writes_only_into_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Path] = []
    make = tempfile.mkdtemp

    def spy(*args: str | None, **named: str | None) -> str:
        folders.append(Path(make(*args, **named)))
        return str(folders[-1])

    monkeypatch.setattr(tempfile, "mkdtemp", spy)
    quantise(nets.chain(3, opset=9, ir_version=4), tmp_path)
    assert folders
    assert all(folder.is_relative_to(tmp_path / "out") for folder in folders)


def test_convert_failure_leaves_no_files(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    wrong = [{"x": np.zeros((1, 3, SIZE, SIZE + 1), np.float32)}]
    with pytest.raises(EngineUnusable, match="cannot be quantised"):
        convert(store(nets.chain(3), tmp_path), "int8", out / "int8.onnx", wrong)
    assert list(out.iterdir()) == []


def test_convert_same_data_makes_the_same_file(tmp_path: Path) -> None:
    """Each conversion runs in another process with another hash seed, so that Python's sets have another order."""
    source = store(nets.chain(4), tmp_path)
    program = """if True:
        import sys
        from pathlib import Path
        from edged.jobs.precision import convert
        from tests.unit.test_precision_int8 import SAMPLES
        convert(Path(sys.argv[1]), "int8", Path(sys.argv[2]), SAMPLES)
    """
    made = []
    for seed in ("1", "2"):
        out = tmp_path / f"int8-{seed}.onnx"
        command = [sys.executable, "-c", program, str(source), str(out)]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONHASHSEED": seed})
        made.append(out.read_bytes())
    assert made[0] == made[1]


@pytest.mark.parametrize("between", ["Relu", "Identity", "Sigmoid"])
def test_convert_products_without_bias_are_not_quantised_before_another(tmp_path: Path, between: str) -> None:
    """OpenVINO 2026.4 answers wrongly then, with one thread."""
    layers = models.nodes(
        "p = MatMul(x, w)", f"r = {between}(p)", "q = MatMul(r, v)", "s = Relu(q)", "y = MatMul(s, u)"
    )
    constants = [nets.random(name, 32, 32) for name in "wvu"]
    proto = model(layers, [value("x", "FP32", [4, 32])], [value("y", "FP32", [4, 32])], constants)
    samples = [{"x": np.random.default_rng(seed).random((4, 32), np.float32)} for seed in range(4)]
    converted, out = quantise(proto, tmp_path, samples)
    count = 1 if between != "Sigmoid" else 2
    assert len(quantised(out)) == count
    reason = "MatMul: it has no bias and precedes another int8 layer; runtimes compute this wrongly"
    assert (reason in converted.kept_fp32) == (count == 1)
    openvino = pytest.importorskip("openvino")
    compiled = openvino.Core().compile_model(
        str(out), "CPU", {"INFERENCE_NUM_THREADS": "1", "INFERENCE_PRECISION_HINT": "f32"}
    )
    found, expected = np.array(compiled(samples[0])[0]), answers(out, samples[0])["y"]
    share = 0.2 if platform.machine() == "aarch64" else 0.05  # there OpenVINO's int8 products differ (docs/int8.md)
    np.testing.assert_allclose(found, expected, atol=float(np.abs(expected).max()) * share)


# -- preparation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "proto",
    [
        nets.chain(3),
        nets.chain(3, opset=8, ir_version=3),
        network(
            [
                "n = BatchNormalization(a, s, t, m, v)",
                "two = Constant<value = float[1] {2.0}>()",
                "b = Mul(n, two)",
            ],
            [nets.random(name, CHANNELS) for name in "stm"] + [constant("v", np.full(CHANNELS, 0.3))],
        ),
        network(["b = Upsample(a, once)"], [constant("once", [1, 1, 1, 1])], opset=9, ir_version=4),
    ],
    ids=["plain", "old", "batch normalisation", "upsample"],
)
def test_prepare_changes_no_answer(tmp_path: Path, proto: onnx.ModelProto) -> None:
    if proto.ir_version < 4:
        proto.graph.input.extend(value(t.name, "FP32", list(t.dims)) for t in proto.graph.initializer)
    source = store(proto, tmp_path)
    prepared, _ = prepare(Model.read(source), tmp_path)
    for sample in SAMPLES:
        expected, found = answers(source, sample), answers(prepared, sample)
        for name, array in expected.items():
            np.testing.assert_allclose(found[name], array, atol=1e-5)
    graph = onnx.load(prepared).graph
    assert not {"BatchNormalization", "Constant", "Upsample"} & {n.op_type for n in graph.node}
    names = [n.name for n in graph.node]
    assert all(names)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "line", ["b = HardSwish(a)", "b = Mish(a)", 'b = Gelu<approximate = "tanh">(a)', "b = HardSwish(w3)"]
)
def test_prepare_keeps_activations_whole_that_are_functions(tmp_path: Path, line: str) -> None:
    """ONNX Runtime inlines them while it folds constants, and OpenVINO fuses only the whole into an int8 layer."""
    source = store(network([line], [nets.random("w3", 1, CHANNELS, SIZE, SIZE)]), tmp_path)
    prepared, _ = prepare(Model.read(source), tmp_path)
    kinds = [node.op_type for node in onnx.load(prepared).graph.node]
    if "w3" not in line:  # a constant may be folded
        assert kinds == ["Conv", line.split()[2].split("(")[0].split("<")[0], "Conv"]
    for sample in SAMPLES:
        expected, found = (np.asarray(answers(path, sample)["y"], float) for path in (source, prepared))
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_convert_weights_in_constant_nodes_are_found_without_folding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folding is skipped if it adds operators that only ONNX Runtime has."""
    monkeypatch.setattr(onnx_int8, "_fold", lambda model, work: model)
    weights = helper.make_node("Constant", [], ["w3"], value=nets.random("", 8, 8, 3, 3))
    between = ["r = Relu(a)", weights, conv("r", "b", "w3")]
    _, out = quantise(network(between), tmp_path)
    assert quantised(out) == ["conv a", "conv b"]


# -- calibration data -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        ([], "needs calibration data"),
        ([{}], "sample 1 has nothing, but the model takes x float32"),
        ([*SAMPLES, {"y": SAMPLES[0]["x"]}], "sample 5 has y float32"),
        ([{"x": SAMPLES[0]["x"].astype(np.float64)}], "x float64"),
        ([{"x": np.full((1, 3, SIZE, SIZE), np.nan, np.float32)}], "not finite"),
    ],
)
def test_convert_calibration_data_that_does_not_fit_is_unsuitable(
    tmp_path: Path, samples: Calibration, reason: str
) -> None:
    with pytest.raises(Unsuitable, match=reason):
        convert(store(nets.chain(3), tmp_path), "int8", tmp_path / "out.onnx", samples)


def test_convert_values_without_a_finite_range_are_unusable(tmp_path: Path) -> None:
    constants = [constant("huge", 3e38), nets.random("w3", 8, 8, 3, 3)]
    between = ["m = Mul(a, huge)", "n = Mul(m, huge)", conv("n", "b", "w3")]
    with pytest.raises(EngineUnusable, match="no finite range"):
        convert(store(network(between, constants), tmp_path), "int8", tmp_path / "out.onnx", SAMPLES)


def test_check_result_float32_layer_or_infinite_scale_is_unusable(tmp_path: Path) -> None:
    _, out = quantise(nets.chain(3), tmp_path)
    check(Model.read(out), ["conv c0", "conv c1"])
    with pytest.raises(EngineUnusable, match="conv y"):
        check(Model.read(out), ["conv y"])
    for scale in (np.nan, np.inf, 0.0):
        proto = onnx.load(out)
        name = next(n for n in proto.graph.node if n.op_type == "DequantizeLinear").input[1]
        tensor = next(t for t in proto.graph.initializer if t.name == name)
        tensor.CopyFrom(numpy_helper.from_array(np.full(tuple(tensor.dims), scale, np.float32), name))
        with pytest.raises(EngineUnusable, match="has no finite range"):
            check(Model(proto, tmp_path), ["conv c0", "conv c1"])


@pytest.mark.parametrize("proto", [nets.chain(1), models.several()], ids=["one layer", "no layer"])
def test_convert_model_with_nothing_to_quantise_is_unsuitable(tmp_path: Path, proto: onnx.ModelProto) -> None:
    names = [entry.name for entry in proto.graph.input]
    shapes = [[dim.dim_value for dim in entry.type.tensor_type.shape.dim] for entry in proto.graph.input]
    sample = {name: np.ones(shape, np.float32) for name, shape in zip(names, shapes, strict=True)}
    with pytest.raises(Unsuitable, match="no layer that int8 would speed up"):
        convert(store(proto, tmp_path), "int8", tmp_path / "out.onnx", [sample])
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_convert_quantised_model_is_returned_for_int8_and_refused_for_fp16(tmp_path: Path) -> None:
    _, made = quantise(nets.chain(3), tmp_path)
    again = convert(made, "int8", tmp_path / "again.onnx", SAMPLES)
    assert (again.path, again.notes) == (str(made), ("the model is quantised already",))
    with pytest.raises(Unsuitable, match="is quantised"):
        convert(made, "fp16", tmp_path / "half.onnx")
