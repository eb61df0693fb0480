"""Models of segmentation and depth as files: which engines verification accepts and rejects."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from edged.backends import registry
from edged.backends.contract import UNOPTIMISED, Order, Recipe, Session
from edged.jobs.inspect import inspect
from edged.jobs.precision import Precision, convert
from edged.models.entries import plain_entry
from edged.models.model import Model
from edged.store.record import Verdict
from edged.verification import golden
from edged.verification.golden import Sample, deciding
from edged.verification.pictures import TO_CALIBRATE
from edged.verification.probes import WIDE, Pictures
from edged.verification.standard import TOLERANCES
from edged.verification.verify import Pair, judge, matcher_for
from tests import models
from tests.engines import build, opened

SIDE = 160


class Net(NamedTuple):
    """A small network: convolutions with random weights, `stride` pixels for each cell of its output."""

    family: str
    output: str
    channels: int
    figure: str
    last: tuple[str, ...] = ()  # operators after the last convolution
    datatype: str = "FP32"
    seed: int = 1

    def save(self, path: Path, change: float = 0.0, bgr: bool = False) -> Path:
        """Write the model; or one whose weights differ by the share `change`, or that takes BGR."""
        random, other = np.random.default_rng(self.seed), np.random.default_rng(0)
        nodes, weights = [], []
        widths = (3, 16, 32, 32, self.channels)
        kernels = (3, 3, 3, 1)
        name = "images"
        for index, (size, step) in enumerate(zip(kernels, (2, 2, 1, 1), strict=True)):
            before, after = widths[index : index + 2]
            kernel = random.standard_normal((after, before, size, size)) * np.sqrt(2 / (before * size * size))
            kernel += change * kernel.std() * other.standard_normal(kernel.shape)
            if bgr and index == 0:
                kernel = kernel[:, ::-1]
            weights.append(numpy_helper.from_array(kernel.astype(np.float32), f"w{index}"))
            pads = [size // 2] * 4
            nodes.append(helper.make_node("Conv", [name, f"w{index}"], [f"c{index}"], strides=[step] * 2, pads=pads))
            if index < len(kernels) - 1:
                nodes.append(helper.make_node("Relu", [f"c{index}"], [f"r{index}"]))
            name = nodes[-1].output[0]
        for index, operator in enumerate(self.last):
            extra = {"ArgMax": {"axis": 1, "keepdims": 1}, "Cast": {"to": onnx.TensorProto.INT32}}.get(operator, {})
            nodes.append(helper.make_node(operator, [name], [f"last{index}"], **extra))
            name = nodes[-1].output[0]
        nodes[-1].output[0] = self.output
        cells = SIDE // 4
        channels = 1 if "ArgMax" in self.last else self.channels
        inputs = [models.value("images", "FP32", (1, 3, SIDE, SIDE))]
        outputs = [models.value(self.output, self.datatype, (1, channels, cells, cells))]
        return models.save(models.model(nodes, inputs, outputs, weights), path)


NETS = {
    "logits": Net("segmentation", "logits", 19, "class_map"),
    "150 classes": Net("segmentation", "logits", 150, "class_map"),
    "class numbers": Net("segmentation", "output", 19, "class_map", ("ArgMax", "Cast"), "INT32"),
    "mask": Net("segmentation", "output", 1, "class_map", ("Sigmoid",), seed=7),
    "inverse depth": Net("depth", "predicted_depth", 1, "depth", ("Softplus",)),
    "depth in metres": Net("depth-metric", "predicted_depth", 1, "depth", ("Softplus",)),
}


class Known(NamedTuple):
    model: Model
    samples: list[Sample]

    def verdict(self, session: Session, precision: str) -> Verdict:
        """Return the verdict on an engine by the bounds of a precision."""
        tolerance = TOLERANCES[precision]
        pairs = (
            Pair(s.outputs, session.infer(s.inputs), s.name, s.placement, s.kind == WIDE, s.noise)
            for s in deciding(self.samples, precision)
        )
        verdict = judge(pairs, tolerance, matcher_for(self.model.recognition, tolerance.box_score))
        session.close()
        return verdict

    def unoptimised(self, path: Path) -> Session:
        recipe = Recipe("onnxruntime", optimization=UNOPTIMISED)
        return registry.load("onnxruntime").open(Order(str(path), self.model.inspection.signature, recipe))


@pytest.fixture(scope="module", params=NETS)
def net(request: pytest.FixtureRequest) -> Net:
    return NETS[request.param]


@pytest.fixture(scope="module")
def known(net: Net, tmp_path_factory: pytest.TempPathFactory) -> Known:
    path = net.save(tmp_path_factory.mktemp("net") / "model.onnx")
    is_clear = "ArgMax" in net.last or net.output == "logits"
    model = Model.of(plain_entry("model", path, {} if is_clear else {"family": net.family}), inspect(path))
    assert model.recognition.family == net.family
    found = Known(model, [])
    session = found.unoptimised(path)
    samples = golden.make(session, model.inspection.signature, model.recognition).samples
    session.close()
    return Known(model, samples)


def file_of(known: Known) -> Path:
    return Path(known.model.order(Recipe("onnxruntime")).model)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_judge_engines_of_both_runtimes_are_accepted(net: Net, known: Known, backend: str, tmp_path: Path) -> None:
    order, _ = build(known.model.order(Recipe(backend)), tmp_path)
    verdict = known.verdict(opened(order), "fp32")
    assert verdict.accepted, verdict.reason
    assert verdict.figures[net.figure] == pytest.approx(1 if net.figure == "class_map" else 0, abs=2e-3)


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_judge_engine_of_a_lower_precision_is_accepted(
    net: Net, known: Known, precision: Precision, tmp_path: Path
) -> None:
    pictures = Pictures(known.model.inspection.signature, known.model.recognition)
    calibration = [probe.inputs for probe in pictures.drawn(TO_CALIBRATE)] if precision == "int8" else ()
    out = tmp_path / "model.onnx"
    convert(file_of(known), precision, out, calibration)
    verdict = known.verdict(known.unoptimised(out), precision)
    assert verdict.accepted, verdict.reason
    assert net.figure in verdict.figures


@pytest.mark.parametrize("wrong", [{"change": 0.3}, {"bgr": True}], ids=str)
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_judge_engine_with_other_weights_or_colours_is_rejected_by_what_clients_see(
    net: Net, known: Known, wrong: dict[str, float], precision: str, tmp_path: Path
) -> None:
    path = net.save(tmp_path / "model.onnx", **wrong)  # type: ignore[arg-type]
    verdict = known.verdict(known.unoptimised(path), precision)
    assert not verdict.accepted
    assert net.figure in verdict.reason, verdict.reason
