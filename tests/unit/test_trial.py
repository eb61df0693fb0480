"""Refusals of runtimes as findings with a remedy, and probes of runtimes that leave no files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest

from edged import family_packages
from edged.backends import one_node, onnxruntime
from edged.backends.contract import REFERENCE, Order, Recipe, Signature
from edged.backends.null import BACKEND
from edged.errors import EngineUnusable, NotTaken
from edged.ipc import job_messages as jobs
from edged.ipc.job_messages import RuntimeSupport
from edged.jobs import onnx_graph, runtimes, trial
from edged.jobs.inspect import inspect
from edged.models.entries import plain_entry
from edged.models.finding import Category, Stage
from edged.models.model import Model
from edged.tensors import Array
from edged.verification import pictures
from edged.verification.shape_range import ShapeRange
from edged.vision.families.third_party import ThirdParty
from edged.vision.family import recognise
from edged.vision.image import Image
from tests import models
from tests.family_package import install, save_model


def job(opset: int, nodes: dict[str, str] | None = None) -> jobs.Check:
    order = Order("model.onnx", Signature((), ()), Recipe("onnxruntime"), None, (), "")
    return jobs.Check(order, {"ai.onnx": opset}, 10, nodes or {}, None, ShapeRange())


def remedy(operator: str, opset: int) -> str:
    error = NotTaken("said", "not_implemented", operator, "nms")
    found = trial.refused(job(opset), error, "ONNX Runtime 1")
    assert found.category is Category.NOT_IMPLEMENTED
    return found.remedy


def test_refused_plugin_of_tensorrt_has_its_own_remedy() -> None:
    assert "TensorRT plugin" in remedy("EfficientNMS_TRT", 17)


def test_refused_shape_in_external_data_has_a_remedy() -> None:
    output = (
        "[ONNXRuntimeError] : 1 : FAIL : Load model from /m/m.onnx failed:Node () Op (Reshape) [ShapeInferenceError]"
        " Cannot parse data from external tensors. Please load external data into raw data for tensor: s"
    )
    error = onnxruntime.describe_refusal(EngineUnusable(output))
    assert error.why == "shape_outside"
    found = trial.refused(job(17), error, "ONNX Runtime 1")
    assert found.category is Category.REFUSED
    assert found.has_own_remedy


def test_write_external_data_keeps_shapes_in_the_file(tmp_path: Path) -> None:
    constants = {"shape": np.array([32, 16], np.int64), "w": np.ones((16, 64), np.float32)}
    model = models.parse("(float[512] x) => (float[32,64] y) { r = Reshape(x, shape) y = MatMul(r, w) }", constants)
    given, out = tmp_path / "given.onnx", tmp_path / "out.onnx"
    onnx.save(model, str(given), save_as_external_data=True, location="data", size_threshold=0)
    onnx_graph.Model.read(given).write(out)
    written = onnx.load(str(out), load_external_data=False).graph.initializer
    outside = {tensor.name for tensor in written if tensor.data_location == onnx.TensorProto.EXTERNAL}
    assert outside == {"w"}


def test_opset_too_old_offers_no_repair() -> None:
    """Repairs convert a model to older opsets only."""
    assert "--convert" not in remedy("BatchNormalization", 6)
    known = RuntimeSupport("1", 7, 26, 13)
    found = trial.opset(job(1), BACKEND, known, "ONNX Runtime 1")
    assert found is not None
    assert found.category is Category.OPSET_TOO_OLD
    assert "--convert" not in found.remedy


@pytest.mark.parametrize(
    ("graph", "opset", "category"),
    [
        ("(bool[2] x) => (bool[2] y) { y = Not(x) }", 1, None),  # ONNX has never changed this operator
        ("(float[2] x) => (float[2] y) { y = Relu(x) }", 1, Category.OPSET_TOO_OLD),
        ("(bool[2] x) => (bool[2] y) { y = Not(x) }", 0, Category.OPSET_TOO_OLD),
    ],
)
def test_attempt_old_opset_is_refused_only_if_the_runtime_refuses_it(
    tmp_path: Path, graph: str, opset: int, category: Category | None
) -> None:
    file = models.save(models.parse(graph, opset=opset), tmp_path / "m.onnx")
    order = Order(str(file), Signature((), ()), REFERENCE, None, (), "")
    check = jobs.Check(order, {"ai.onnx": opset}, 7, {}, None, ShapeRange(), through=Stage.SESSION)
    found = trial.attempt(check, onnxruntime.BACKEND, lambda _: None).finding
    assert (None if found is None else found.category) is category


def test_opset_too_new_of_another_domain_offers_no_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repairs convert only the opset of ai.onnx."""
    monkeypatch.setattr(trial, "newest_of", lambda *_: 4)
    check = msgspec.structs.replace(job(17), opsets={"ai.onnx": 17, "ai.onnx.ml": 5})
    found = trial.opset(check, BACKEND, RuntimeSupport("1", 7, 26, 13), "ONNX Runtime 1")
    assert found is not None
    assert found.category is Category.OPSET_TOO_NEW
    assert found.remedy == "export it with opset 4 or older of this domain"


def test_operators_of_a_nameless_node_names_the_model() -> None:
    class Knowing:
        def operators(self) -> dict[str, dict[str, int]]:
            return {"ai.onnx": {"Relu": 6}}

    for operator in ("mine.Call", "Nope"):
        found = trial.operators(job(17, {operator: ""}), Knowing(), "OpenVINO 1")  # type: ignore[arg-type]
        assert found is not None
        assert found.message.startswith("the model uses")


def test_takes_writes_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    model = one_node.relu(13, 7)
    seen: list[bytes] = []

    class Listening(type(BACKEND)):  # type: ignore[misc]
        def check(self, model: Path) -> None:
            assert not list(tmp_path.iterdir())
            seen.append(model.read_bytes())
            if len(seen) > 1:
                raise EngineUnusable("no")

    assert runtimes.takes(Listening(), model)
    assert not runtimes.takes(Listening(), model)
    assert seen == [model, model]


class Answering:
    """A session that answers zeros."""

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        return {"y": np.zeros((1, 3, 32, 32), np.float32)}

    def close(self) -> None:
        """Do nothing."""


def test_inference_answered_drawn_picture_draws_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, drawn = tmp_path / "m.onnx", list[int]()

    def draw(seed: int) -> Iterator[Image]:
        for number in range(pictures.COUNT):
            drawn.append(number)
            yield np.zeros((32, 32, 3), np.uint8)

    monkeypatch.setattr(pictures, "draw", draw)
    onnx.save(models.parse("(float[1,3,32,32] x) => (float[1,3,32,32] y) { y = Relu(x) }"), str(path))
    model = Model.of(plain_entry("m", path, {}), inspect(path))
    check = msgspec.structs.replace(job(17), order=model.order(REFERENCE), recognition=model.recognition)
    assert trial.inference(check, model.recognition, Answering(), lambda: None) == (None, ())
    assert drawn == [0]


def test_inference_model_with_open_sizes_answers_one_shape_and_a_drawn_picture(tmp_path: Path) -> None:
    path, placed = tmp_path / "m.onnx", list[tuple[int, ...]]()

    class Noting(Answering):
        def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
            placed.append(inputs["x"].shape)
            if inputs["x"].shape[2] != 224:
                raise EngineUnusable("only 224")
            return {"y": np.zeros((1, 3, 32, 32), np.float32)}

    onnx.save(models.parse("(float[1,3,H,W] x) => (float[1,3,H,W] y) { y = Relu(x) }"), str(path))
    model = Model.of(plain_entry("m", path, {"preprocess.width": "224", "preprocess.height": "224"}), inspect(path))
    check = msgspec.structs.replace(job(17), order=model.order(REFERENCE), recognition=model.recognition)
    assert trial.inference(check, model.recognition, Noting(), lambda: None) == (None, ())
    answered = [shape for shape in placed if shape[2] == 224]
    assert len(answered) == 3  # two kinds of tensors, and a picture
    assert placed[-3:] == answered


@pytest.fixture
def _permitted() -> Iterator[None]:
    family_packages.permit()
    yield
    family_packages.permit(False)


@pytest.mark.usefixtures("_permitted")
def test_inference_family_that_needs_too_much_memory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "def decode(self, *arguments):\n    raise MemoryError\n\n\n@CLASS@.decode = decode\n"
    install(tmp_path, "greedy", code=body)
    monkeypatch.syspath_prepend(tmp_path)
    path = save_model(tmp_path / "m.onnx")
    about = inspect(path)
    (offer,) = (each for each in family_packages.offers() if each.family == "greedy")
    signature, other = about.signature, ThirdParty.load("greedy", offer.package)
    recognition = recognise(signature.inputs, signature.outputs, {}, {"family": "greedy"}, others=(other,))
    order = Model.of(plain_entry("m", path, {}), about).order(REFERENCE)
    check = msgspec.structs.replace(job(17), order=order, recognition=recognition)
    session = onnxruntime.BACKEND.trial(order)
    assert session is not None
    found, _ = trial.inference(check, recognition, session, lambda: None)
    assert found is not None
    assert found.category is Category.TOO_MUCH_MEMORY
    assert "family greedy of package edged-family-greedy 0.1.0" in found.message
