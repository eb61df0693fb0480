"""Exports of Hugging Face and anomalib, added by the command line alone: files next to the model have the settings."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from edged.client import Client
from edged.errors import InvalidInput
from edged.vision.content import Anomaly, Embedding
from tests.integration.daemon import Daemon
from tests.integration.onnx_files import write

pytestmark = pytest.mark.heavy

# Means of red, green and blue as logits, for pictures of any size; as Optimum declares the tensors of a classifier.
LOGITS = """(float[batch_size,num_channels,height,width] pixel_values) => (float[batch_size,3] logits) {
    means = GlobalAveragePool(pixel_values)
    logits = Flatten(means)
}"""
TOKENS = """(float[batch_size,3,height,width] pixel_values) => (float[batch_size,t,8] last_hidden_state)
    <int64[1] axis = {1}, float[3,8] w = {1,0,0,0,0,0,0,1, 0,1,0,0,0,0,1,0, 0,0,1,0,0,1,0,0}> {
    means = GlobalAveragePool(pixel_values)
    rows = Flatten(means)
    values = MatMul(rows, w)
    last_hidden_state = Unsqueeze(values, axis)
}"""
# As anomalib 2 exports: the brightest of 8 x 8 parts is the score.
ANOMALY = """(float[n,3,64,64] input) => (float[n] pred_score, bool[n] pred_label, float[n,1,8,8] anomaly_map,
    bool[n,1,8,8] pred_mask) <float half = {0.5}, int64[1] batch = {-1}, int64[2] axes = {2, 3}> {
    grey = ReduceMean<axes = [1], keepdims = 1>(input)
    anomaly_map = AveragePool<kernel_shape = [8, 8], strides = [8, 8]>(grey)
    best = GlobalMaxPool(anomaly_map)
    pred_score = Reshape(best, batch)
    pred_label = Greater(pred_score, half)
    pred_mask = Greater(anomaly_map, half)
}"""
ANOMALY_V1 = """(float[n,3,64,64] input) => (float[n,1,8,8] output) <float scale = {40.0}> {
    grey = ReduceMean<axes = [1], keepdims = 1>(input)
    small = AveragePool<kernel_shape = [8, 8], strides = [8, 8]>(grey)
    output = Mul(small, scale)
}"""
LABELS = {"0": "red, crimson", "1": "green", "2": "blue"}
VIT = {"size": {"height": 32, "width": 32}, "do_normalize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
RESNET = {**VIT, "size": {"shortest_edge": 32}, "crop_pct": 0.875}
CROP = {"crop_size": {"height": 32, "width": 32}, "do_center_crop": True}
MOBILENET = {**VIT, **CROP, "size": {"shortest_edge": 36}}
PROCESSORS = {"vit": VIT, "resnet": RESNET, "mobilenet_v2": MOBILENET}


@pytest.fixture(scope="module")
def box() -> Iterator[Daemon]:
    with Daemon(builds=False) as daemon:
        yield daemon


def add(box: Daemon, folder: Path, name: str, graph: str, files: dict[str, object], *options: str) -> str:
    """Run `edged models add` on a model with these files next to it; return its output."""
    write(folder / "model.onnx", graph)
    for file, content in files.items():
        (folder / file).write_text(json.dumps(content))
    command = box.command("models", "add", name, str(folder / "model.onnx"), "--target", box.unix, *options)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    box.ready(name)
    return done.stdout


def picture(*, red: int = 0, green: int = 0, blue: int = 0) -> bytes:
    """The left and right quarters are grey; the rest has this colour."""
    pixels = np.full((64, 128, 3), 120, np.uint8)
    pixels[:, 32:96] = (blue, green, red)
    return cv2.imencode(".png", pixels)[1].tobytes()


@pytest.mark.parametrize("kind", PROCESSORS)
def test_classifier_of_hugging_face_added_alone_answers_with_names(box: Daemon, tmp_path: Path, kind: str) -> None:
    config = {"model_type": kind, "architectures": ["XForImageClassification"], "id2label": LABELS}
    said = add(box, tmp_path, kind, LOGITS, {"config.json": config, "preprocessor_config.json": PROCESSORS[kind]})
    assert "from config.json and preprocessor_config.json: names" in said
    with box.client() as client:
        found = client.infer(kind, picture(green=255)).classes
    assert found[0].label == "green"
    assert {each.label for each in found} == {"red", "green", "blue"}
    shown = 0.5 if kind == "vit" else 1.0  # stretched: half of the input is grey
    logits = np.array([1, -1, -1]) * shown
    expected = np.exp(logits) / np.exp(logits).sum()
    assert found[0].score == pytest.approx(expected[0], abs=0.02)


def test_classifier_of_several_labels_reports_those_above_a_half(box: Daemon, tmp_path: Path) -> None:
    config = {
        "model_type": "vit",
        "architectures": ["ViTForImageClassification"],
        "id2label": LABELS,
        "problem_type": "multi_label_classification",
    }
    add(box, tmp_path, "labels", LOGITS, {"config.json": config, "preprocessor_config.json": RESNET})
    with box.client() as client:
        found = client.infer("labels", picture(green=255, blue=255)).classes
        assert {each.label for each in found} == {"green", "blue"}
        assert found[0].score == pytest.approx(1 / (1 + np.exp(-1)), abs=0.02)
        assert client.infer("labels", picture()).classes == ()
        assert len(client.infer("labels", picture(), score=0.0).classes) == 3


def test_encoder_of_hugging_face_added_alone_answers_with_an_embedding(box: Daemon, tmp_path: Path) -> None:
    files = {"config.json": {"model_type": "dinov2"}, "preprocessor_config.json": MOBILENET}
    add(box, tmp_path, "dino", TOKENS, files)
    with box.client() as client:
        found = client.infer("dino", picture(green=255)).content
    assert isinstance(found, Embedding)
    expected = np.array([-1, 1, -1, 0, 0, -1, 1, -1])
    np.testing.assert_allclose(found.vector(), expected / np.linalg.norm(expected), atol=0.02)


def check_anomaly(client: Client, name: str, scale: float) -> None:
    normal = client.infer(name, picture()).content
    unusual = client.infer(name, picture(red=255, green=255, blue=255)).content
    assert isinstance(normal, Anomaly)
    assert isinstance(unusual, Anomaly)
    assert (normal.is_anomalous, unusual.is_anomalous) == (False, True)
    assert unusual.score == pytest.approx(scale, rel=0.01)
    assert unusual.map is not None
    heat = unusual.map.values()
    assert heat.shape == (8, 8)
    assert (heat[:, 3] > heat[:, 0] + scale / 4).all()


def test_anomalib_2_is_recognised_and_answers_with_score_label_and_map(box: Daemon, tmp_path: Path) -> None:
    add(box, tmp_path, "bottle", ANOMALY, {})
    with box.client() as client:
        (found,) = (each for each in client.models() if each.name == "bottle")
        assert found.family == "anomalib"
        check_anomaly(client, "bottle", 1)


def test_anomalib_1_has_the_threshold_of_its_metadata(box: Daemon, tmp_path: Path) -> None:
    thresholds = {"image_threshold": 30.5, "pixel_threshold": 29.0, "task": "segmentation"}
    said = add(box, tmp_path, "cable", ANOMALY_V1, {"metadata.json": thresholds})
    assert "from metadata.json: family, thresholds.score" in said
    with box.client() as client:
        check_anomaly(client, "cable", 40)
        assert client.infer("cable", picture(), iou=0.5).content is not None
        with pytest.raises(InvalidInput):
            client.infer("cable", picture(), score=2.0)


@pytest.mark.long
def test_engines_of_embeddings_and_anomalies_are_verified_by_their_figures(tmp_path: Path) -> None:
    with Daemon() as daemon, daemon.client() as client:
        client.add_model("bottle", write(tmp_path / "bottle.onnx", ANOMALY))
        client.add_model(
            "dino",
            write(tmp_path / "dino.onnx", TOKENS),
            {**dict.fromkeys(("preprocess.width", "preprocess.height"), "32"), "family": "dinov2"},
        )
        for name, figure in (("bottle", "anomaly"), ("dino", "embedding")):
            engines = [each for each in daemon.settled(name) if each.verdict is not None]
            assert engines
            assert all(each.verdict.accepted and figure in each.verdict.figures for each in engines if each.verdict)
