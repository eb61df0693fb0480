"""How pictures are fed to each family, and which settings say otherwise."""

from __future__ import annotations

import msgspec
import pytest

from edged.errors import ConfigError
from edged.tensors import TensorSpec
from edged.vision.family import Thresholds, recognise
from edged.vision.placement import Fit, place
from edged.vision.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from tests.vision_encoders import HEIGHT, MOST, WIDTH
from tests.vision_exports import EXPORTS, see, spec

HALF = (0.5, 0.5, 0.5)
LETTERBOX = Preprocess(WIDTH, HEIGHT, fit=Fit.LETTERBOX, pad=114)
STRETCH = Preprocess(WIDTH, HEIGHT, fit=Fit.STRETCH)
FED = {
    "ultralytics": LETTERBOX,
    "ultralytics, nms-free": LETTERBOX,
    "ultralytics rt-detr": STRETCH,
    "yolov5": LETTERBOX,
    "yolov7, end to end": LETTERBOX,
    "yolox": Preprocess(WIDTH, HEIGHT, color="bgr", fit=Fit.TOP_LEFT, pad=114, scale=1.0),
    "yolo-nas, flat": Preprocess(
        WIDTH, HEIGHT, datatype="UINT8", fit=Fit.LETTERBOX, pad=114, scale=1.0, zoom=636 / 640
    ),
    "rt-detr": STRETCH,
    "rf-detr, coco": msgspec.structs.replace(STRETCH, mean=IMAGENET_MEAN, std=IMAGENET_STD),
    "deepstream-yolo": LETTERBOX,
    "ssd, priors": msgspec.structs.replace(STRETCH, mean=HALF, std=HALF),
}


@pytest.mark.parametrize("name", FED)
def test_each_family_is_fed_as_its_exporter_feeds_it(name: str) -> None:
    assert EXPORTS[name].recognition.preprocess == FED[name]


def test_settings_win_over_what_a_family_is_fed_with() -> None:
    found = see(EXPORTS["yolox"], {"preprocess.color": "rgb", "preprocess.fit": "stretch", "preprocess.zoom": "0.5"})
    assert found.preprocess is not None
    assert (found.preprocess.color, found.preprocess.fit, found.preprocess.zoom) == ("rgb", Fit.STRETCH, 0.5)


def test_the_long_side_of_yolo_nas_is_636_of_640() -> None:
    wide = place(1280, 720, 640, 640, Fit.LETTERBOX, 636 / 640)
    assert (wide.inner, wide.pad_x, wide.pad_y) == ((636, 358), 2, 141)
    high = place(481, 1000, 640, 640, Fit.LETTERBOX, 636 / 640)
    assert (high.inner, high.pad_x, high.pad_y) == ((306, 636), 167, 2)


@pytest.mark.parametrize("family", sorted({export.family for export in EXPORTS.values()}))
def test_a_family_that_does_not_fit_says_what_it_needs_and_what_there_is(family: str) -> None:
    inputs = (TensorSpec("images", "FP32", (1, 3, HEIGHT, WIDTH)),)
    with pytest.raises(ConfigError, match=rf"family={family} needs .*set family=raw"):
        recognise(inputs, (spec("y", 1, 2, 3, 4, 5, 6),), {}, {"family": family})
    with pytest.raises(ConfigError, match=rf"family={family} needs"):
        recognise((TensorSpec("ids", "INT64", (1, 8)),), (spec("y", 2),), {}, {"family": family})


def test_an_input_of_gigabytes_is_fed_by_nobody() -> None:
    inputs = (TensorSpec("images", "FP32", (1, 3, 16384, 16384)),)
    found = see(EXPORTS["ultralytics, nms-free"], inputs=inputs)
    assert (found.family, found.preprocess) == (None, None)
    assert "images wants 16384x16384 pixels, over the limit" in found.reason
    assert "over the limit" in see(EXPORTS["ultralytics"], {"family": "raw"}, inputs=inputs).picture


def test_unknown_settings_of_decoding_are_named() -> None:
    two = {"decode.anchor": "1,2", "preprocess.colour": "rgb", "thresholds.qqqqqqqqq": "1"}
    told = r"unknown settings decode\.anchor \(did .*\?\), preprocess\.colour \(did you mean preprocess\.color\?\)"
    with pytest.raises(ConfigError, match=told):
        see(EXPORTS["ultralytics"], two)
    with pytest.raises(ConfigError, match=r" and 995 more$"):
        see(EXPORTS["ultralytics"], {f"decode.{i}": "" for i in range(1000)})
    with pytest.raises(ConfigError, match=r"unknown setting decode\.anchor; did you mean decode\.anchors"):
        see(EXPORTS["yolox"], {"decode.anchor": "1,2"})


def test_thresholds_are_the_settings_for_every_family() -> None:
    for export in EXPORTS.values():
        told = {**export.settings, "thresholds.score": "0.5", "thresholds.iou": "0.45"}
        assert see(export, told, operators=export.operators).thresholds == Thresholds(0.5, 0.45)


def test_lists_of_any_length_are_lists() -> None:
    outputs = (spec("output0", 1, MOST, 6),)
    assert see(EXPORTS["ultralytics, nms-free"], outputs=outputs).reading.is_list
