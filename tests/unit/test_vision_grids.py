"""Detectors with a row for each cell or anchor: YOLOv5, YOLOv7, YOLOX, DeepStream-Yolo."""

from __future__ import annotations

import pytest

from edged.errors import ConfigError
from edged.tensors import TensorSpec
from tests.vision_encoders import CELLS, CLASSES, HEIGHT, WIDTH
from tests.vision_exports import EXPORTS, see, spec


def test_p6_models_of_yolov5_have_four_grids() -> None:
    rows = 3 * sum((1280 // s) ** 2 for s in (8, 16, 32, 64))
    inputs = (TensorSpec("images", "FP32", (1, 3, 1280, 1280)),)
    assert see(EXPORTS["yolov5"], outputs=(spec("output0", 1, rows, 10),), inputs=inputs).family == "yolov5"
    assert see(EXPORTS["yolov5"], outputs=(spec("output0", 1, rows + 1, 10),), inputs=inputs).family is None


def test_a_dynamic_yolov5_is_told_by_its_names_and_columns() -> None:
    outputs = (spec("output0", "n", "rows", 5 + CLASSES),)
    assert see(EXPORTS["yolov5"], outputs=outputs).family == "yolov5"
    assert see(EXPORTS["yolov5"], outputs=(spec("output0", "n", "rows", 6 + CLASSES),)).family is None


def test_old_exports_of_yolov5_carry_their_raw_heads() -> None:
    heads = tuple(spec(f"h{s}", 1, 3, HEIGHT // s, WIDTH // s, 5 + CLASSES) for s in (8, 16, 32))
    found = see(EXPORTS["yolov5"], outputs=(*heads, *EXPORTS["yolov5"].outputs))
    assert (found.family, found.output) == ("yolov5", "output0")


def test_yolov5_with_masks_is_not_its_detector() -> None:
    masks = spec("output1", 1, 32, HEIGHT // 4, WIDTH // 4)
    table = spec("output0", 1, 3 * CELLS, 5 + CLASSES + 32)
    assert see(EXPORTS["yolov5"], outputs=(table, masks)).family is None


def test_raw_heads_need_their_anchors() -> None:
    heads = EXPORTS["yolov7, raw heads"]
    assert "decode.anchors" in see(heads).reason
    with pytest.raises(ConfigError, match=r"set decode\.anchors"):
        see(heads, {"family": "yolov7"})
    for anchors, says in {
        "1,2,3,4": "the model's heads 3, 3, 3",
        "1,2; 3,4; 5,6": "1, 1, 1 anchors",
        "1,2,3; 1,2,3; 1,2,3": "pairs",
        "1,0; 1,2; 1,2": "above 0",
        "": "pairs",
        "a,b": "not a number",
    }.items():
        with pytest.raises(ConfigError, match=says):
            see(heads, {"decode.anchors": anchors})


def test_raw_heads_are_put_in_order_of_their_grids() -> None:
    heads = EXPORTS["yolov7, raw heads"]
    found = see(heads, heads.settings, outputs=heads.outputs[::-1])
    assert found.reading.outputs == ("head0", "head1", "head2")


@pytest.mark.parametrize(
    ("operators", "settings", "form"),
    [
        (frozenset({"Conv"}), {}, "grid"),
        (frozenset({"Conv", "Exp"}), {}, "pixels"),
        (frozenset({"Conv", "Exp"}), {"decode.boxes": "grid"}, "grid"),
        (None, {"decode.boxes": "pixels"}, "pixels"),
    ],
)
def test_an_exp_in_the_graph_means_decoded_boxes(
    operators: frozenset[str] | None, settings: dict[str, str], form: str
) -> None:
    for more in ({}, {"family": "yolox"}):
        found = see(EXPORTS["yolox"], {**settings, **more}, operators=operators)
        assert (found.family, found.reading.form) == ("yolox", form)


def test_yolox_is_not_guessed_without_the_graph() -> None:
    assert "decode.boxes=grid" in see(EXPORTS["yolox"], operators=None).reason
    with pytest.raises(ConfigError, match=r"decode\.boxes=grid"):
        see(EXPORTS["yolox"], {"family": "yolox"}, operators=None)
    with pytest.raises(ConfigError, match=r"decode\.boxes=metres.*known: grid, pixels"):
        see(EXPORTS["yolox"], {"decode.boxes": "metres"})


def test_a_yolox_of_another_grid_is_refused_by_the_setting() -> None:
    with pytest.raises(ConfigError, match=f"needs {CELLS} rows"):
        see(EXPORTS["yolox"], {"family": "yolox"}, outputs=(spec("output", 1, CELLS + 1, 10),))


def test_six_columns_a_cell_are_told_apart_by_names() -> None:
    outputs = (spec("output", 1, CELLS, 6),)
    assert see(EXPORTS["yolox"], outputs=outputs).family == "yolox"
    assert see(EXPORTS["deepstream-yolo"], outputs=outputs).family == "deepstream-yolo"
    found = see(EXPORTS["yolox"], outputs=outputs, inputs=(TensorSpec("data", "FP32", (1, 3, HEIGHT, WIDTH)),))
    assert found.family is None
    assert "family=yolox, family=yolov5, family=deepstream-yolo or family=raw" in found.reason


def test_a_few_rows_of_six_are_no_deepstream_export() -> None:
    found = see(EXPORTS["deepstream-yolo"], outputs=(spec("output", 1, 300, 6),))
    assert found.family is None
    assert "family=deepstream-yolo" in found.reason


def test_three_rows_a_cell_of_deepstream_are_its_own() -> None:
    assert see(EXPORTS["deepstream-yolo"], outputs=(spec("output", 1, 3 * CELLS, 6),)).family == "deepstream-yolo"
