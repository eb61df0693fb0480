"""Segmentation and depth from files to the results of a daemon: settings, regions, verification."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper
from typer.testing import CliRunner

from edged.cli.app import app
from edged.vision.content import ClassMap, Depth
from tests import models
from tests.integration.daemon import Daemon

pytestmark = pytest.mark.timeout(240)

HEIGHT, WIDTH = 64, 96  # of the inputs
# 192 x 128 pixels, BGR: the left half is red, of the right half the upper part green and the lower part blue.
PICTURE = np.zeros((128, 192, 3), np.uint8)
PICTURE[:, :96, 2] = PICTURE[:64, 96:, 1] = PICTURE[64:, 96:, 0] = 255
RED, GREEN, BLUE = 0, 1, 2


def write_segmentation(folder: Path) -> Path:
    """Write a model whose logits, of a quarter of the input, are the colours, with the files of Hugging Face."""
    nodes = models.nodes(
        "cells = AveragePool <kernel_shape = [4, 4], strides = [4, 4]> (pixel_values)",
        "logits = Conv <kernel_shape = [1, 1]> (cells, w)",
    )
    weights = numpy_helper.from_array(np.eye(3, dtype=np.float32).reshape(3, 3, 1, 1) * 4, "w")
    inputs = [models.value("pixel_values", "FP32", (1, 3, HEIGHT, WIDTH))]
    outputs = [models.value("logits", "FP32", (1, 3, HEIGHT // 4, WIDTH // 4))]
    labels = {"0": "red", "1": "green", "2": "blue"}
    config = {"model_type": "segformer", "architectures": ["SegformerForSemanticSegmentation"], "id2label": labels}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps({"do_normalize": False}))
    return models.save(models.model(nodes, inputs, outputs, [weights]), folder / "model.onnx")


def write_depth(path: Path) -> Path:
    """Write a model whose depth is 2, and in red places 12."""
    nodes = models.nodes(
        "scaled = Conv <kernel_shape = [1, 1]> (image, w, b)",
        "predicted_depth = Squeeze (scaled, axis)",
    )
    weights = [
        numpy_helper.from_array(np.array([10, 0, 0], np.float32).reshape(1, 3, 1, 1), "w"),
        numpy_helper.from_array(np.array([2], np.float32), "b"),
        numpy_helper.from_array(np.array([1], np.int64), "axis"),
    ]
    inputs = [models.value("image", "FP32", (1, 3, HEIGHT, WIDTH))]
    outputs = [models.value("predicted_depth", "FP32", (1, HEIGHT, WIDTH))]
    return models.save(models.model(nodes, inputs, outputs, weights), path)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("maps")
    segmentation, depth = write_segmentation(folder / "colours"), write_depth(folder / "depth.onnx")
    one_engine = ("backends=onnxruntime", "precisions=fp32", "threads=1")
    unnormalised = ("preprocess.mean=0", "preprocess.std=1", "family=depth-metric")
    with Daemon() as daemon:
        for name, path, settings in (("colours", segmentation, ()), ("depth", depth, unnormalised)):
            options = [word for each in (*one_engine, *settings) for word in ("--set", each)]
            added = CliRunner().invoke(app, ["models", "add", name, str(path), *options, "--target", daemon.unix])
            assert added.exit_code == 0, added.output
        for name in ("colours", "depth"):
            daemon.ready(name)
        yield daemon


def test_daemon_returns_the_classes_of_the_picture_with_names_of_config_json(daemon: Daemon) -> None:
    with daemon.client() as client:
        found = client.infer("colours", PICTURE)
    assert isinstance(found.content, ClassMap)
    assert (found.content.width, found.content.height, found.content.box) == (WIDTH, HEIGHT, None)
    assert [(area.label, area.share) for area in found.areas] == [
        ("red", pytest.approx(0.5)),
        ("green", pytest.approx(0.25)),
        ("blue", pytest.approx(0.25)),
    ]
    cells = found.content.resized(192, 128)
    assert (cells[10, 10], cells[10, 180], cells[120, 180]) == (RED, GREEN, BLUE)
    seen = found.supervision()
    assert seen.data["class_name"].tolist() == ["red", "green", "blue"]
    assert seen.mask.sum(axis=(1, 2)).tolist() == [96 * 128, 96 * 64, 96 * 64]


def test_daemon_returns_the_classes_of_a_turned_region_as_the_picture_was_sent(daemon: Daemon) -> None:
    with daemon.client() as client:
        for rotation in (0, 90, 180, 270):
            found = client.infer("colours", PICTURE, region=(64, 32, 128, 96), rotation=rotation)
            assert isinstance(found.content, ClassMap)
            assert found.content.box == (64, 32, 192, 128)
            cells = found.content.resized(128, 96)
            assert (cells[2, 2], cells[2, 125], cells[93, 2], cells[93, 125]) == (RED, GREEN, RED, BLUE)


def test_daemon_returns_depth_in_metres(daemon: Daemon) -> None:
    with daemon.client() as client:
        found = client.infer("depth", PICTURE).content
    assert isinstance(found, Depth)
    assert (found.unit, found.is_inverse) == ("m", False)
    metres = found.map.resized(192, 128)
    assert metres[[10, 10, 120], [10, 180, 180]].tolist() == pytest.approx([12, 2, 2], abs=1e-3)


@pytest.mark.parametrize(("model", "figure", "best"), [("colours", "class_map", 1.0), ("depth", "depth", 0.0)])
def test_engines_are_verified_by_what_clients_see(daemon: Daemon, model: str, figure: str, best: float) -> None:
    verdicts = [each.verdict for each in daemon.settled(model) if each.verdict is not None]
    assert verdicts
    for verdict in verdicts:
        assert verdict.accepted, verdict.reason
        assert verdict.figures[figure] == pytest.approx(best, abs=0.01)
