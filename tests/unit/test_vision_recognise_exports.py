"""Models that differ from an export in one property: the recognised family, and the settings that decide."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from edged.errors import ConfigError
from edged.tensors import Dim, TensorSpec
from edged.vision.family import Thresholds, open_family
from edged.vision.metadata import read_metadata
from edged.vision.placement import Fit
from edged.vision.preprocess import CLIP_MEAN, CLIP_STD, IMAGENET_MEAN, IMAGENET_STD, Preprocess
from tests.vision_encoders import CELLS, CLASSES, HEIGHT, MOST, NAMES, WIDTH
from tests.vision_exports import EXPORTS, see, spec

FAMILIES = sorted({export.family for export in EXPORTS.values()})
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
    "yolo-nas, flat": msgspec.structs.replace(LETTERBOX, datatype="UINT8", scale=1.0, zoom=636 / 640),
    "rt-detr": STRETCH,
    "rf-detr, coco": msgspec.structs.replace(STRETCH, mean=IMAGENET_MEAN, std=IMAGENET_STD),
    "deepstream-yolo": LETTERBOX,
    "ssd, priors": msgspec.structs.replace(STRETCH, mean=HALF, std=HALF),
    "yolov6": LETTERBOX,
    "damo-yolo": msgspec.structs.replace(STRETCH, scale=1.0),
    "transformers, detr": msgspec.structs.replace(STRETCH, mean=IMAGENET_MEAN, std=IMAGENET_STD),
    "transformers, deformable detr": msgspec.structs.replace(STRETCH, mean=IMAGENET_MEAN, std=IMAGENET_STD),
    "transformers, rt-detr": STRETCH,
    "transformers, owlvit": msgspec.structs.replace(STRETCH, mean=CLIP_MEAN, std=CLIP_STD),
    "transformers, owlv2": Preprocess(WIDTH, HEIGHT, fit=Fit.TOP_LEFT, pad=0, mean=CLIP_MEAN, std=CLIP_STD),
    "transformers, grounding dino": msgspec.structs.replace(STRETCH, mean=IMAGENET_MEAN, std=IMAGENET_STD),
    "rtmdet, mmdeploy": Preprocess(
        WIDTH,
        HEIGHT,
        color="bgr",
        fit=Fit.TOP_LEFT,
        scale=1.0,
        mean=(103.53, 116.28, 123.675),
        std=(57.375, 57.12, 58.395),
    ),
    "paddle, nms in the graph": STRETCH,
    "paddle, picodet": msgspec.structs.replace(STRETCH, mean=IMAGENET_MEAN, std=IMAGENET_STD),
    "efficientdet, automl": Preprocess(
        WIDTH,
        HEIGHT,
        layout="NHWC",
        datatype="UINT8",
        fit=Fit.TOP_LEFT,
        pad=116,
        scale=1.0,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
    ),
}


@pytest.mark.parametrize("name", FED)
def test_recognise_export_has_the_preprocessing_of_its_exporter(name: str) -> None:
    assert EXPORTS[name].recognition.preprocess == FED[name]


def test_recognise_settings_override_preprocessing_and_thresholds_of_every_family() -> None:
    fed = {"preprocess.color": "rgb", "preprocess.fit": "stretch", "preprocess.zoom": "0.5"}
    for export in EXPORTS.values():
        settings = {**export.settings, **fed, "thresholds.score": "0.5", "thresholds.iou": "0.45"}
        found = see(export, settings, operators=export.operators)
        assert found.thresholds == Thresholds(0.5, 0.45)
        assert found.preprocess is not None
        assert (found.preprocess.color, found.preprocess.fit, found.preprocess.zoom) == ("rgb", Fit.STRETCH, 0.5)


@pytest.mark.parametrize("family", FAMILIES)
def test_recognise_family_set_for_other_tensors_is_refused(family: str) -> None:
    export, outputs = EXPORTS["ultralytics"], (spec("y", 1, 2, 3, 4, 5, 6),)
    with pytest.raises(ConfigError, match=rf"family={family} needs .*set family=raw"):
        see(export, {"family": family}, outputs=outputs, metadata={})
    with pytest.raises(ConfigError, match=rf"family={family} needs one picture input"):
        see(export, {"family": family}, inputs=(TensorSpec("ids", "INT64", (1, 8)),))


def _image(*shape: Dim, name: str = "images") -> tuple[TensorSpec, ...]:
    return (TensorSpec(name, "FP32", shape or (1, 3, HEIGHT, WIDTH)),)


def _outputs(*shape: Dim, name: str = "output0") -> tuple[TensorSpec, ...]:
    return (spec(name, *shape),)


DETECT = {"task": "detect", "names": str(NAMES), "stride": "32", "imgsz": f"[{HEIGHT}, {WIDTH}]"}
TWO = {**DETECT, "names": "{0: 'cat', 1: 'dog'}"}
FLAGS = {"end2end": "False", "args": "{'nms': False}"}
P6 = 3 * sum((1280 // s) ** 2 for s in (8, 16, 32, 64))
HEADS = tuple(spec(f"h{s}", 1, 3, HEIGHT // s, WIDTH // s, 5 + CLASSES) for s in (8, 16, 32))
ANONYMOUS = tuple(spec(f"call:{i}", *shape) for i, shape in enumerate(((1, 10, 4), (1, 10), (1, 10), (1,))))
EXP = frozenset({"Conv", "Exp"})
NMS = frozenset({"Conv", "NonMaxSuppression"})
FLAT = ("yolov7 --max-wh", "yolo-nas, flat")
SEVEN = "family=yolov7, family=yolo-nas, family=classification or family=raw"
WIDE = {"inputs": _image(1, 3, 1280, 1280)}
Changes = dict[str, Any]  # arguments of `see`


@pytest.mark.parametrize(
    ("export", "changes", "family", "words"),
    [
        # YOLOv5: three rows per cell, or names and open rows
        ("yolov5", {"outputs": _outputs(1, P6, 10), **WIDE}, "yolov5", ""),
        ("yolov5", {"outputs": _outputs(1, P6 + 1, 10), **WIDE}, None, ""),
        ("yolov5", {"outputs": _outputs("n", "rows", 5 + CLASSES)}, "yolov5", ""),
        ("yolov5", {"outputs": _outputs("n", "rows", 6 + CLASSES)}, None, ""),
        ("yolov5", {"outputs": (*HEADS, *EXPORTS["yolov5"].outputs)}, "yolov5", "output0"),
        ("yolov5", {"outputs": (*_outputs(1, 3 * CELLS, 42), spec("m", 1, 32, 64, 104))}, None, ""),
        ("yolov7, raw heads", {}, None, "decode.anchors"),
        # YOLOX: an Exp in the graph means decoded boxes
        ("yolox", {}, "yolox", "boxes to be decoded"),
        ("yolox", {"operators": EXP}, "yolox", "decoded boxes"),
        ("yolox", {"operators": EXP, "settings": {"decode.boxes": "grid"}}, "yolox", "boxes to be decoded"),
        ("yolox", {"operators": None, "settings": {"decode.boxes": "pixels"}}, "yolox", "decoded boxes"),
        ("yolox", {"operators": None}, None, "decode.boxes=grid"),
        # six columns per cell
        ("yolox", {"outputs": _outputs(1, CELLS, 6, name="output")}, "yolox", ""),
        ("deepstream-yolo", {"outputs": _outputs(1, CELLS, 6, name="output")}, "deepstream-yolo", ""),
        ("deepstream-yolo", {"outputs": _outputs(1, 3 * CELLS, 6, name="output")}, "deepstream-yolo", ""),
        ("deepstream-yolo", {"outputs": _outputs(1, 300, 6, name="output")}, None, "family=deepstream-yolo"),
        (
            "yolox",
            {"outputs": _outputs(1, CELLS, 6, name="output"), "inputs": _image(name="data")},
            None,
            "family=yolox, family=yolov6, family=deepstream-yolo or family=raw",
        ),
        # seven columns
        ("yolov7 --max-wh", {"outputs": _outputs("m", 7, name="output")}, "yolov7", ""),
        ("yolo-nas, flat", {"outputs": _outputs("m", 7, name="output")}, "yolo-nas", ""),
        ("yolov7 --max-wh", {"outputs": _outputs("m", 7, name="detections")}, None, SEVEN),
        *((name, {"outputs": _outputs("n", 7, name="logits")}, "classification", "") for name in FLAT),
        *((name, {"outputs": _outputs("n", 7, name="output")}, None, "set family=yolov7") for name in FLAT),
        *((name, {"outputs": _outputs(1, 7, name="output")}, None, "family=classification") for name in FLAT),
        *(
            (name, {"outputs": _outputs("n", 7, name="output"), "operators": NMS}, EXPORTS[name].family, "")
            for name in FLAT
        ),
        *((name, {"settings": {"names": "a,b,c,d,e,f,g"}}, EXPORTS[name].family, "") for name in FLAT),
        # queries
        ("rf-detr, coco", {"outputs": (*EXPORTS["rf-detr, coco"].outputs, spec("m", 1, 300, 28, 28))}, None, ""),
        ("rt-detr", {"settings": {"family": "raw"}}, None, "raw"),
        (
            "rt-detr",
            {"inputs": (*EXPORTS["rt-detr"].inputs, TensorSpec("scale", "FP32", (1,)))},
            None,
            "looks like rtdetr",
        ),
        # SSD
        ("ssd, priors", {}, None, "family=ssd"),
        ("ssd, priors", {"operators": EXP}, "ssd", ""),
        ("ssd, priors", {"operators": None}, "ssd", ""),
        ("ssd, priors", {"outputs": (spec("scores", 1, 100, 6), spec("boxes", 1, 99, 4))}, None, ""),
        ("ssd, priors", {"outputs": (spec("a", 1, 99, 4), spec("b", 1, 99, 4))}, None, ""),
        ("ssd, tflite", {"outputs": ANONYMOUS}, None, "family=ssd"),
        # ultralytics
        ("ultralytics, nms-free", {"outputs": _outputs(1, MOST, 6)}, "ultralytics-end2end", ""),
        ("ultralytics", {"outputs": _outputs("n", 4 + CLASSES, "a"), "metadata": DETECT}, "ultralytics", ""),
        ("ultralytics", {"inputs": _image(1, 3, 16384, 16384)}, None, "16384x16384 pixels, over the limit"),
    ],
)
def test_recognise_changed_export_has_family_or_reason(
    export: str, changes: Changes, family: str | None, words: str
) -> None:
    found = see(EXPORTS[export], **changes)
    assert found.family == family, found.reason
    assert words in f"{found.reason} {found.output} {found.picture}"


@pytest.mark.parametrize(
    ("export", "changes", "outputs"),
    [
        ("yolov7, raw heads", {"outputs": EXPORTS["yolov7, raw heads"].outputs[::-1]}, ("head0", "head1", "head2")),
        (
            "ssd, priors",
            {"outputs": (spec("scores", 1, 9, 4), spec("boxes", 1, 9, 4)), "operators": EXP},
            ("scores", "boxes"),
        ),
        (
            "ssd, tflite",
            {"settings": {"family": "ssd"}, "outputs": ANONYMOUS},
            tuple(f"call:{i}" for i in (3, 0, 2, 1)),
        ),
    ],
)
def test_recognise_outputs_in_another_order_are_sorted(export: str, changes: Changes, outputs: tuple[str, ...]) -> None:
    found = see(EXPORTS[export], **{"settings": EXPORTS[export].settings, **changes})
    assert found.reading.outputs == outputs


SIZES = ("orig_target_sizes", "INT64", (1, 2))


@pytest.mark.parametrize(
    ("export", "settings", "changes", "words"),
    [
        ("yolov7, raw heads", {"family": "yolov7"}, {}, r"set decode\.anchors"),
        *(
            ("yolov7, raw heads", {"decode.anchors": anchors}, {}, words)
            for anchors, words in {
                "1,2,3,4": "the model's heads have 3, 3, 3",
                "1,2; 3,4; 5,6": "1, 1, 1 anchors",
                "1,2,3; 1,2,3; 1,2,3": "pairs",
                "1,0; 1,2; 1,2": "above 0",
                "": "pairs",
                "a,b": "not a number",
            }.items()
        ),
        ("yolox", {"family": "yolox"}, {"operators": None}, r"decode\.boxes=grid"),
        ("yolox", {"decode.boxes": "metres"}, {"operators": None}, r"decode\.boxes=metres.*known: grid, pixels"),
        ("yolox", {"family": "yolox"}, {"outputs": _outputs(1, CELLS + 1, 10)}, f"needs {CELLS} rows"),
        ("rf-detr, own classes", {"names": "a,b,c"}, {}, "'names' lists 3 classes, but the model has 5"),
        ("ssd, priors", {"names": "bus"}, {"operators": EXP}, "'names' lists 1 classes"),
        (
            "ssd, priors",
            {"family": "ssd"},
            {"outputs": (spec("scores", 1, 100, 6), spec("boxes", 1, 99, 4))},
            r"family=ssd needs .*; the model has outputs scores \[1,100,6\], boxes \[1,99,4\]",
        ),
        (
            "ultralytics",
            {"family": "rtdetr-ultralytics"},
            {"outputs": _outputs(1, 300, 6), "metadata": {}},
            r"decode\.scores=best .* decode\.scores=each",
        ),
        (
            "ultralytics",
            {"decode.anchor": "1,2", "preprocess.colour": "rgb"},
            {},
            r"unknown settings decode\.anchor \(did .*\?\), preprocess\.colour \(did you mean preprocess\.color\?\)",
        ),
        ("ultralytics", {f"decode.{i}": "" for i in range(1000)}, {}, r" and 995 more$"),
        ("yolox", {"decode.anchor": "1,2"}, {}, r"unknown setting 'decode\.anchor'; did you mean decode\.anchors"),
    ],
)
def test_recognise_unfit_setting_is_refused(
    export: str, settings: dict[str, str], changes: Changes, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        see(EXPORTS[export], settings, **changes)


@pytest.mark.parametrize(
    "sizes", [("orig_target_sizes", "FP32", (1, 2)), ("orig_target_sizes", "INT64", (2,)), (*SIZES[:2], (1, 4))]
)
def test_recognise_sizes_of_another_kind_are_not_filled(sizes: tuple[str, str, tuple[int, ...]]) -> None:
    inputs = (EXPORTS["rt-detr"].inputs[0], TensorSpec(*sizes))
    found = see(EXPORTS["rt-detr"], inputs=inputs)
    assert (found.family, found.preprocess) == (None, None)
    with pytest.raises(ConfigError, match="orig_target_sizes"):
        see(EXPORTS["rt-detr"], {"family": "rtdetr"}, inputs=inputs)


def test_extra_inputs_are_sizes_factors_and_masks_of_the_whole_input() -> None:
    placements = [EXPORTS["rt-detr"].place(1280, 720), EXPORTS["rt-detr"].place(333, 1001)]
    plain = {name: export for name, export in EXPORTS.items() if not export.recognition.reading.constants}
    found = {name: open_family(export.recognition).extra_inputs(placements) for name, export in plain.items()}
    sizes = found.pop("rt-detr")["orig_target_sizes"]
    assert (sizes.dtype.name, sizes.tolist()) == ("int64", [[WIDTH, HEIGHT], [WIDTH, HEIGHT]])
    assert found.pop("transformers, detr")["pixel_mask"].tolist() == np.ones((2, 64, 64)).tolist()
    assert {name: array.tolist() for name, array in found.pop("paddle, nms in the graph").items()} == {
        "im_shape": [[HEIGHT, WIDTH]] * 2,
        "scale_factor": [[1, 1]] * 2,
    }
    assert found.pop("paddle, pp-yoloe")["scale_factor"].tolist() == [[1, 1]] * 2
    assert not any(found.values())


@pytest.mark.parametrize(
    ("slots", "settings", "names", "background"),
    [
        (91, {}, 0, "none"),
        (6, {}, 0, "last"),
        (6, {"names": "a,b,c,d,e"}, 5, "last"),
        (6, {"names": "a,b,c,d,e,f"}, 6, "none"),
        (91, {"names": ",".join("x" * 90)}, 90, "last"),
        (6, {"decode.background": "none"}, 0, "none"),
        (91, {"decode.background": "last"}, 0, "last"),
    ],
)
def test_recognise_rfdetr_background_has_the_expected_form(
    slots: int, settings: dict[str, str], names: int, background: str
) -> None:
    outputs = (spec("dets", 1, 300, 4), spec("labels", 1, 300, slots))
    found = see(EXPORTS["rf-detr, coco"], settings, outputs=outputs)
    assert (found.family, found.reading.form, len(found.names)) == ("rfdetr", background, names)


@pytest.mark.parametrize("names", ["bus,cat,dog,man,sun", "background,bus,cat,dog,man,sun"])
def test_recognise_ssd_names_may_omit_the_background(names: str) -> None:
    found = see(EXPORTS["ssd, priors"], {"names": names}, operators=EXP)
    assert found.names == ("background", "bus", "cat", "dog", "man", "sun")


# -- six columns of the ultralytics package -------------------------------------------------------------------------

END2END, RTDETR = "ultralytics-end2end", "rtdetr-ultralytics"


@pytest.mark.parametrize(
    ("metadata", "family", "form"),
    [
        ({**DETECT, "end2end": "True"}, END2END, ""),
        ({**TWO, "end2end": "True"}, END2END, ""),
        ({**DETECT, "end2end": "False", "args": "{'nms': True}"}, END2END, ""),
        ({**DETECT, "version": "8.3.0"}, END2END, ""),
        ({**DETECT, "version": "8.3.100", "args": "{'nms': False}"}, END2END, ""),
        ({**DETECT, "version": "8.3.100", "args": "{'nms': True}"}, END2END, ""),
        ({**TWO, "version": "8.3.100", "args": "{'nms': False}"}, None, ""),
        ({**DETECT, **FLAGS, "version": "8.4.60"}, RTDETR, "best"),
        ({**DETECT, **FLAGS, "version": "8.4.90", "head": "RTDETRDecoder"}, RTDETR, "best"),
        ({**DETECT, "head": "RTDETRDecoder"}, RTDETR, "best"),
        # With two classes both layouts of RT-DETR have six columns.
        ({**TWO, **FLAGS, "version": "8.4.46"}, RTDETR, "each"),
        ({**TWO, **FLAGS, "version": "8.4.47"}, RTDETR, "best"),
        # Ambiguous: none of these is guessed.
        ({**TWO, "version": "8.3.0"}, None, ""),
        ({**DETECT, "version": "8.4.60"}, None, ""),
        ({**DETECT, **FLAGS}, None, ""),
        ({**DETECT, **FLAGS, "head": "Detect", "version": "8.4.90"}, None, ""),
        (DETECT, None, ""),
        ({}, None, ""),
    ],
)
def test_recognise_six_columns_by_metadata_alone(metadata: dict[str, str], family: str | None, form: str) -> None:
    found = see(EXPORTS["ultralytics"], outputs=_outputs(1, 300, 6), metadata=metadata)
    assert (found.family, found.reading.form) == (family, form), found.reason
    assert family is not None or "family=" in found.reason


@pytest.mark.parametrize(
    ("metadata", "family", "form"),
    [
        ({**DETECT, "end2end": "True"}, END2END, ""),
        ({**DETECT, "end2end": "False", "args": "{'nms': True}"}, END2END, ""),
        ({**DETECT, **FLAGS, "version": "8.4.90", "head": "RTDETRDecoder"}, RTDETR, "best"),
        ({**DETECT, **FLAGS, "version": "8.4.47"}, RTDETR, "best"),
        ({**DETECT, **FLAGS, "version": "8.4.46"}, RTDETR, "each"),
        ({**DETECT, **FLAGS}, None, ""),
        (DETECT, None, ""),
        ({}, None, ""),
    ],
)
def test_recognise_open_columns_by_metadata_alone(metadata: dict[str, str], family: str | None, form: str) -> None:
    found = see(EXPORTS["ultralytics"], outputs=_outputs("batch", 300, "anchors"), metadata=metadata)
    assert (found.family, found.reading.form) == (family, form), found.reason


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("8.4.47", (8, 4, 47)),
        ("8.4.47.post1", (8, 4, 47)),
        ("8.4.47rc2", (8, 4, 47)),
        *((text, None) for text in ("8.4", "8.4.x", "v8.4.47", "8.4." + "9" * 100_000, "", "\ud800")),
    ],
)
def test_read_metadata_unreadable_version_counts_as_absent(text: str, version: tuple[int, int, int] | None) -> None:
    assert read_metadata({"version": text}).version == version


@pytest.mark.parametrize(
    ("settings", "form"),
    [({"decode.scores": "each"}, "each"), ({"decode.scores": "best"}, "best"), ({"names": "a,b,c"}, "best")],
)
def test_recognise_rtdetr_scores_by_setting_or_number_of_names(settings: dict[str, str], form: str) -> None:
    given = {**settings, "family": RTDETR}
    assert see(EXPORTS["ultralytics"], given, outputs=_outputs(1, 300, 6), metadata={}).reading.form == form


def test_recognise_only_graphs_with_nms_are_suppressed_lists() -> None:
    assert EXPORTS["ultralytics, nms=True"].recognition.reading.is_suppressed
    assert not EXPORTS["ultralytics, nms-free"].recognition.reading.is_suppressed
    lists = [name for name, export in EXPORTS.items() if export.recognition.reading.is_list]
    assert all(not EXPORTS[name].needs_nms or name == "deepstream-yolo" for name in lists)


def test_read_metadata_names_that_no_message_can_contain_are_unreadable() -> None:
    found = read_metadata({"names": "{0: '\\ud800', 1: 'dog'}"})
    assert (found.names, found.unreadable) == ((), ("names",))
