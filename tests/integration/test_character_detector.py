"""A trained YOLOX with nothing set: the detector of characters that the package `ddddocr` carries, on drawn text."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from edged.client import Client, Detection
from tests.integration.daemon import Daemon

Box = tuple[float, float, float, float]
Pixels = npt.NDArray[np.uint8]

pytestmark = pytest.mark.long


def _write(text: str, size: tuple[int, int], scale: float, thickness: int) -> tuple[Pixels, list[Box]]:
    """Characters in several colours on light gray, and where each of them is."""
    width, height = size
    picture = np.full((height, width, 3), 235, np.uint8)
    boxes: list[Box] = []
    left = width // 12
    for number, character in enumerate(text):
        before = picture.copy()
        ink = (40 + 20 * number, 30, 160 - 20 * number)
        at, font = (left, height * 11 // 20), cv2.FONT_HERSHEY_DUPLEX
        cv2.putText(picture, character, at, font, scale, ink, thickness, cv2.LINE_AA)
        rows, columns = np.nonzero((picture != before).any(axis=2))
        boxes.append((columns.min(), rows.min(), columns.max() + 1, rows.max() + 1))
        left = int(columns.max()) + width // 16
    return picture, boxes


PICTURES = {
    "wide": _write("7XQ3", (640, 360), 2.5, 5),
    "high": _write("A8K", (333, 601), 1.8, 4),
    "odd": _write("RTKB", (501, 299), 2.2, 4),
}


@pytest.fixture(scope="module")
def characters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    found = importlib.util.find_spec("ddddocr")
    if found is None or found.origin is None:
        pytest.skip("the package ddddocr is not installed")
    samples = []
    for name, (picture, _) in PICTURES.items():
        samples.append(tmp_path_factory.mktemp("samples") / f"{name}.png")
        assert cv2.imwrite(str(samples[-1]), picture)
    with Daemon() as daemon, daemon.client() as client:
        client.add_model("characters", Path(found.origin).parent / "common_det.onnx", samples=samples)
        daemon.ready("characters")
        daemon.settled("characters")
        yield client


def _iou(one: Box, other: Box) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    shared = max(0.0, width) * max(0.0, height)
    return shared / ((one[2] - one[0]) * (one[3] - one[1]) + (other[2] - other[0]) * (other[3] - other[1]) - shared)


def _box(found: Detection) -> Box:
    return found.x1, found.y1, found.x2, found.y2


def test_it_is_recognised_by_its_shape_and_graph_alone(characters: Client) -> None:
    (model,) = characters.models()
    assert model.family == "yolox"


@pytest.mark.parametrize("name", PICTURES)
def test_every_character_is_detected_once_at_its_place(characters: Client, name: str) -> None:
    picture, boxes = PICTURES[name]
    result = characters.infer("characters", picture)
    assert result.error is None
    found = [_box(one) for one in result.detections]
    assert len(found) == len(boxes)
    for box in boxes:
        assert max(_iou(box, other) for other in found) > 0.7


def test_an_empty_page_has_no_characters(characters: Client) -> None:
    assert characters.infer("characters", np.full((300, 400, 3), 235, np.uint8)).detections == ()


def test_every_engine_was_judged_by_its_boxes(characters: Client) -> None:
    engines = [one for one in characters.engines("characters") if one.state in ("ready", "serving")]
    assert engines
    for engine in engines:
        assert engine.verdict is not None
        assert engine.verdict.figures["boxes"] > 0.99
