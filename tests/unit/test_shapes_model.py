"""The detector that comes with edged: its format, and its accuracy on scenes that it was not trained on.

Decoding and suppression are implemented here again, so that a defect in edged's code cannot hide one of the model.
"""

from __future__ import annotations

import ast
from typing import Any

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest

from edged.shapes import CLASSES, MODEL_PATH, Counts, Prediction, Scene, match

SIZE = 320
CELLS = 2100
UNSEEN = 2_000_000_000  # training draws its seeds below 1_000_000_000


@pytest.fixture(scope="module")
def session() -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(MODEL_PATH), options, providers=["CPUExecutionProvider"])


def detect(session: onnxruntime.InferenceSession, picture: Any, threshold: float) -> list[Prediction]:
    height, width = picture.shape[:2]
    scale = min(SIZE / width, SIZE / height)
    wide, high = round(width * scale), round(height * scale)
    left, top = (SIZE - wide) // 2, (SIZE - high) // 2
    square = np.full((SIZE, SIZE, 3), 114, np.uint8)
    square[top : top + high, left : left + wide] = cv2.resize(picture, (wide, high))
    tensor = cv2.cvtColor(square, cv2.COLOR_BGR2RGB).transpose(2, 0, 1)[None].astype(np.float32) / 255
    rows = session.run(None, {"images": tensor})[0][0].T
    found: list[Prediction] = []
    for row in sorted(rows[rows[:, 4:].max(axis=1) >= threshold], key=lambda r: -r[4:].max()):
        x, y, w, h = ((row[:4] - (left, top, 0, 0)) / scale).tolist()
        box = Prediction(int(row[4:].argmax()), float(row[4:].max()), x - w / 2, y - h / 2, x + w / 2, y + h / 2)
        if all(overlap(box, other) <= 0.5 for other in found):
            found.append(box)
    return found


def overlap(a: Prediction, b: Prediction) -> float:
    both = max(0.0, min(a.x2, b.x2) - max(a.x1, b.x1)) * max(0.0, min(a.y2, b.y2) - max(a.y1, b.y1))
    return both / ((a.x2 - a.x1) * (a.y2 - a.y1) + (b.x2 - b.x1) * (b.y2 - b.y1) - both)


def test_model_is_small_and_old_enough_for_older_runtimes() -> None:
    assert MODEL_PATH.stat().st_size < 1_000_000
    model = onnx.load(MODEL_PATH)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 17)]
    assert model.ir_version <= 10
    assert "Shape" not in {node.op_type for node in model.graph.node}  # sizes are fixed: nothing to compute


def test_model_has_one_picture_as_input_and_one_table_as_output(session: onnxruntime.InferenceSession) -> None:
    (given,), (got,) = session.get_inputs(), session.get_outputs()
    assert (given.name, given.shape, given.type) == ("images", [1, 3, SIZE, SIZE], "tensor(float)")
    assert (got.name, got.shape, got.type) == ("output0", [1, 4 + len(CLASSES), CELLS], "tensor(float)")


def test_model_metadata_is_that_of_an_ultralytics_export(session: onnxruntime.InferenceSession) -> None:
    facts = session.get_modelmeta().custom_metadata_map
    assert facts["task"] == "detect"
    assert facts["author"] == "edged"
    assert ast.literal_eval(facts["names"]) == dict(enumerate(CLASSES))
    assert ast.literal_eval(facts["imgsz"]) == [SIZE, SIZE]
    assert (ast.literal_eval(facts["stride"]), ast.literal_eval(facts["batch"])) == (32, 1)
    assert ast.literal_eval(facts["end2end"]) is False
    assert isinstance(ast.literal_eval(facts["args"]), dict)
    assert facts["description"]
    assert facts["version"]


def test_model_outputs_are_probabilities_and_pixels(session: onnxruntime.InferenceSession) -> None:
    noise = np.random.default_rng(0).random((1, 3, SIZE, SIZE), np.float32)
    table = session.run(None, {"images": noise})[0][0]
    assert np.isfinite(table).all()
    assert table[4:].min() >= 0
    assert table[4:].max() <= 1
    assert table[2:4].min() >= 0


@pytest.mark.parametrize("quality", [None, 80], ids=["raw", "jpeg"])
@pytest.mark.parametrize("size", [(320, 240), (640, 480), (1280, 720)], ids=str)
def test_model_detects_figures_of_unseen_scenes(
    session: onnxruntime.InferenceSession, size: tuple[int, int], quality: int | None
) -> None:
    counts = Counts()
    for number in range(15):
        scene = Scene(UNSEEN + number, *size, shapes=1 + number % 8)
        for index in (10, 200):
            picture, truths = scene.frame(index)
            if quality is not None:
                packed = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
                picture = cv2.imdecode(packed, cv2.IMREAD_COLOR)  # type: ignore[assignment]
            counts += match(detect(session, picture, 0.4), truths)
    assert counts.precision >= 0.95, counts
    assert counts.recall >= 0.95, counts


def test_model_finds_nothing_in_empty_scenes(session: onnxruntime.InferenceSession) -> None:
    pictures = [Scene(UNSEEN + n, shapes=0).frame(0)[0] for n in range(20)]
    assert sum(len(detect(session, picture, 0.4)) for picture in pictures) <= 1
