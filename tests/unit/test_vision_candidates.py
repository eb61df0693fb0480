"""The families that are tried on a picture, and the picture of their results."""

from __future__ import annotations

import numpy as np
import pytest

from edged.tensors import TensorSpec
from edged.vision.candidates import Candidate, candidates
from edged.vision.contact_sheet import SIDE, Tile, contact_sheet, fit
from tests.vision_exports import EXPORTS, Export


def tried(export: Export, **settings: str) -> tuple[Candidate, ...]:
    return candidates(export.inputs, export.outputs, export.metadata, settings, export.operators)


@pytest.mark.parametrize("name", EXPORTS)
def test_candidates_of_export_contain_its_family(name: str) -> None:
    export = EXPORTS[name]
    given = {key: value for key, value in export.settings.items() if key == "prompts"}  # only the user knows them
    found = [each for each in tried(export, **given) if each.recognition.family == export.family]
    assert found, name
    assert all(each.settings["family"] == each.recognition.family for each in found)
    assert all(each.recognition.preprocess is not None for each in found)


def test_candidates_begin_with_the_recognised_family() -> None:
    assert tried(EXPORTS["deepstream-yolo"])[0].settings == {"family": "deepstream-yolo"}
    assert {each.settings["family"] for each in tried(EXPORTS["transformers, detr"])} == {
        "detr",
        "deformable-detr",
        "rtdetr-transformers",
    }


def test_candidates_that_need_a_setting_are_tried_with_each_value() -> None:
    outputs = (TensorSpec("y", "FP32", (1, 300, 6)),)
    found = candidates(EXPORTS["ultralytics"].inputs, outputs, {}, {})
    of_rtdetr = [each.settings for each in found if each.settings["family"] == "rtdetr-ultralytics"]
    assert of_rtdetr == [{"family": "rtdetr-ultralytics", "decode.scores": each} for each in ("best", "each")]
    heads = [each.settings["family"] for each in tried(EXPORTS["yolov7, raw heads"])]
    assert heads == ["yolov7", "yolov7"], "the anchors of YOLOv5 and of YOLOv7"


@pytest.mark.parametrize("name", ["transformers, owlvit", "transformers, owlv2", "transformers, grounding dino"])
def test_candidates_of_prompted_model_need_the_prompts(name: str) -> None:
    export = EXPORTS[name]
    assert tried(export) == ()
    assert tried(export, prompts="a cat") == (), "without token ids"
    found = {each.settings["family"] for each in tried(export, prompts=export.settings["prompts"])}
    assert found == ({"grounding-dino"} if export.family == "grounding-dino" else {"owlvit", "owlv2"})


def test_candidates_of_anomaly_model_need_the_threshold() -> None:
    inputs, outputs = EXPORTS["ultralytics"].inputs, (TensorSpec("output", "FP32", ("n", 1, "h", "w")),)

    def families(**settings: str) -> set[str]:
        return {each.settings["family"] for each in candidates(inputs, outputs, {}, settings)}

    assert families(**{"thresholds.score": "0.5"}) - families() == {"anomalib-v1"}


def test_candidates_keep_the_given_settings_except_family() -> None:
    found = tried(EXPORTS["yolov5"], **{"family": "raw", "thresholds.score": "0.9", "preprocess.color": "bgr"})
    assert {each.recognition.thresholds.score for each in found} == {0.9}
    assert {each.recognition.preprocess.color for each in found if each.recognition.preprocess} == {"bgr"}
    assert all("thresholds.score" not in each.settings for each in found)


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ("ids", (TensorSpec("logits", "FP32", (1, 8)),)),
        ("images", (TensorSpec("y", "FP32", (1, 7, 9, 11, 2)),)),
        ("images", (TensorSpec("y", "BF16", (1, 84, 8400)),)),
    ],
)
def test_candidates_of_model_that_no_family_accepts_are_none(inputs: str, outputs: tuple[TensorSpec, ...]) -> None:
    specs = {"ids": TensorSpec("ids", "INT64", (1, 8)), "images": TensorSpec("images", "FP32", (1, 3, 640, 640))}
    assert candidates((specs[inputs],), outputs, {}, {}) == ()


def test_candidates_with_an_input_that_none_fills_are_none() -> None:
    export = EXPORTS["yolov5"]
    inputs = (*export.inputs, TensorSpec("scale", "FP32", (1,)))
    assert candidates(inputs, export.outputs, {}, {}) == ()


@pytest.mark.parametrize(("width", "height"), [(1920, 1080), (10, 7), (1, 4000), (360, 360)])
def test_fit_picture_has_the_side_of_a_tile(width: int, height: int) -> None:
    fitted = fit(np.zeros((height, width, 3), np.uint8))
    assert max(fitted.shape[:2]) == SIDE
    assert min(fitted.shape[:2]) >= 1


@pytest.mark.parametrize("count", [1, 2, 3, 10, 48])
def test_contact_sheet_shows_every_tile(count: int) -> None:
    colors = [(0, 60 + 4 * number, 255 - 4 * number) for number in range(count)]
    tiles = [Tile(np.full((200, SIDE, 3), color, np.uint8), "family=x" * 40, "0 found\u20ac\n") for color in colors]
    sheet = contact_sheet(tiles)
    shown = np.unique(sheet @ np.array([1, 1 << 8, 1 << 16]))
    assert set(shown) >= {blue + (green << 8) + (red << 16) for blue, green, red in colors}
    lines = sheet[:40, SIDE + 6 :]
    assert count == 1 or lines.any()
