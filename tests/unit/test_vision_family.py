"""Recognition of models by metadata, shapes and settings, and the reasons if it fails."""

from __future__ import annotations

import pytest

from edged.errors import ConfigError, Unsupported
from edged.tensors import TensorSpec
from edged.vision.family import Recognition, Thresholds, open_family, recognise
from edged.vision.placement import Fit
from edged.vision.preprocess import Preprocess, preprocess_for

COCO = {i: f"class {i}" for i in range(80)}
DETECT = {
    "task": "detect",
    "names": str(COCO),
    "stride": "32",
    "imgsz": "[640, 640]",
    "end2end": "False",
    "args": "{'batch': 1, 'half': False, 'opset': None, 'conf': 1e-05, 'nms': False}",
}


def image(*shape, datatype="FP32", name="images"):
    return (TensorSpec(name, datatype, shape or (1, 3, 640, 640)),)


def output(*shape, name="output0", datatype="FP32"):
    return TensorSpec(name, datatype, shape)


YOLO = (output(1, 84, 8400),)


def see(outputs=YOLO, metadata=None, settings=None, inputs=None) -> Recognition:
    return recognise(inputs or image(), tuple(outputs), metadata or {}, settings or {})


def without(*keys, **more):
    return {**{k: v for k, v in DETECT.items() if k not in keys}, **more}


# --- recognised


@pytest.mark.parametrize("drop", [(), ("args",), ("end2end", "args"), ("imgsz",), ("stride",)])
def test_recognise_detector_by_metadata(drop):
    found = see(metadata=without(*drop))
    assert found.family == "ultralytics"
    assert "task=detect" in found.reason
    assert found.names[:2] == ("class 0", "class 1")
    assert len(found.names) == 80
    assert found.preprocess == Preprocess(640, 640, 3, "NCHW", "FP32", "rgb", Fit.LETTERBOX, 114, 1 / 255)
    assert "letterbox" in found.picture
    assert (found.input, found.output, found.thresholds) == (
        "images",
        "output0",
        Thresholds(0.25, 0.7, 300, False),
    )


def test_recognise_open_input_has_size_of_metadata_or_settings():
    dynamic = image("batch", 3, "height", "width")
    outputs = (output("batch", 84, "anchors"),)
    found = see(outputs, {**DETECT, "imgsz": "[384, 672]"}, inputs=dynamic)
    assert found.preprocess
    assert (found.preprocess.width, found.preprocess.height) == (672, 384)
    sized = {"preprocess.width": "320", "preprocess.height": "256"}
    found = see(outputs, DETECT, sized, inputs=dynamic)
    assert found.preprocess
    assert (found.preprocess.width, found.preprocess.height) == (320, 256)
    found = see(outputs, without("imgsz"), inputs=dynamic)
    assert found.family is None
    assert found.preprocess is None
    assert "preprocess.width" in found.reason


@pytest.mark.parametrize(
    ("height", "width", "cells"), [(320, 320, 2100), (640, 640, 8400), (384, 640, 5040), (736, 1280, 19320)]
)
def test_recognise_detector_by_number_of_cells(height, width, cells):
    found = see((output(1, 7, cells),), inputs=image(1, 3, height, width))
    assert found.family == "ultralytics"
    assert "number of rows" in found.reason
    assert "3 classes" in found.reason
    assert see((output(1, 7, cells + 1),), inputs=image(1, 3, height, width)).family is None


@pytest.mark.parametrize(("datatype", "scale"), [("FP16", 1 / 255), ("UINT8", 1.0)])
def test_recognise_scales_by_datatype_of_input(datatype, scale):
    found = see(metadata=DETECT, inputs=image(1, 3, 640, 640, datatype=datatype))
    assert found.preprocess
    assert (found.preprocess.datatype, found.preprocess.scale) == (datatype, scale)


# --- ambiguous formats

SIX = (output(1, 300, 6),)
END2END, RTDETR, DEEPSTREAM = "family=ultralytics-end2end", "family=rtdetr-ultralytics", "family=deepstream-yolo"


@pytest.mark.parametrize(
    ("outputs", "metadata", "words"),
    [
        (SIX, without("end2end", "args"), ("one of three formats", END2END, RTDETR, DEEPSTREAM, "family=raw")),
        (SIX, {}, ("output0 [1,300,6] has one of three formats", END2END, RTDETR, DEEPSTREAM, "family=raw")),
        (SIX, {**DETECT, "end2end": "[["}, ("one of three formats", "unreadable metadata: end2end")),
        (YOLO, {**DETECT, "end2end": "True"}, ("but not the tensor of one", "family=ultralytics,")),
        (YOLO, {**DETECT, "args": "{'nms': True}"}, ("but not the tensor of one", "family=ultralytics,")),
        ((output(1, 300, 84),), {}, ("300 queries", RTDETR)),
        ((output(1, 56, 8400),), {}, ("keypoints", "family=ultralytics")),
        (
            (output(1, 20, 8400),),
            {"names": str(dict.fromkeys(range(15), "x")), "stride": "32"},
            ("metadata has 15 names", "family=ultralytics"),
        ),
        (
            (output(1, 116, 8400), output(1, 32, 160, 160, name="output1")),
            {},
            ("family=ultralytics-segment", "family=raw"),
        ),
        ((output(1, 84, 8400), output(1, 84, 8400, name="1770")), {}, ("family=ultralytics ", "family=raw")),
        ((output(1, 8400, 85, name="output"),), {}, ("decode.boxes=grid", "decode.boxes=pixels", "family=raw")),
        ((output(1, 8400, 85, name="y"),), {}, ("family=yolox", "family=yolov6", "family=raw")),
        ((output(1, 25200, 6),), {}, ("family=yolov5", DEEPSTREAM)),
        (tuple(output(1, 3, s, s, 85, name=f"o{s}") for s in (80, 40, 20)), {}, ("raw heads", "decode.anchors")),
        ((output("n", 7),), {}, ("two formats", "family=yolov7", "family=yolo-nas", "family=classification")),
        (tuple(output(1, 300, name=n) for n in ("labels", "boxes", "scores")), {}, ("no input orig_target_sizes",)),
        (
            (output(1, 10, 4), output(1, 10, name="a"), output(1, 10, name="b"), output(1, name="c")),
            {},
            ("four outputs", "family=ssd"),
        ),
        ((output(1, 99, 4), output(1, 99, 21, name="b")), {}, ("a table of boxes", "family=ssd")),
        ((output(1, 512),), {}, ("output0 [1,512]", "embedding", "family=classification", "family=raw")),
        ((output(1, 3, 640, 640),), {}, ("several maps", "family=segmentation", "family=paddleseg")),
        ((output(1, 3, 640, 480),), {}, ("match nothing", "docs/families.md")),
        ((output(1, 84, 8401),), DETECT, ("match nothing", "docs/families.md")),
    ],
)
def test_recognise_ambiguous_format_is_not_guessed(outputs, metadata, words):
    inputs = image(name="picture")
    if outputs[0].name == "output":
        inputs = image()
    found = see(outputs, metadata, inputs=inputs)
    assert found.family is None
    assert all(word in found.reason for word in words), found.reason
    assert found.preprocess is not None
    with pytest.raises(Unsupported):
        open_family(found)


def test_recognise_second_input_or_no_picture_is_raw():
    found = see(metadata=DETECT, inputs=(*image(), TensorSpec("scale", "FP32", (1,))))
    assert found.family is None
    assert "besides images" in found.reason
    found = see((output(1, 2),), inputs=(TensorSpec("ids", "INT64", (1, 128)),))
    assert (found.family, found.preprocess, found.input) == (None, None, "")
    assert "no input takes a picture" in found.picture


# --- settings


def test_recognise_family_by_setting_is_used_or_refused():
    assert see(metadata=DETECT, settings={"family": "raw"}).family is None
    found = see((output(1, 56, 8400),), settings={"family": "ultralytics"})
    assert found.family == "ultralytics"
    assert found.names == ()
    assert "setting" in found.reason
    with pytest.raises(ConfigError, match="did you mean ultralytics"):
        see(settings={"family": "ultralitics"})
    with pytest.raises(ConfigError, match=r"known: ultralytics, .*yolox, .*, raw"):
        see(settings={"family": "qqq"})
    with pytest.raises(ConfigError, match="family=raw"):
        see((output(1, 1000),), settings={"family": "ultralytics"})
    with pytest.raises(ConfigError, match=r"has outputs output0 \[1,4,8400\]"):
        see((output(1, 4, 8400),), settings={"family": "ultralytics"})


def test_recognise_names_by_setting_are_used_or_refused():
    found = see((output(1, 6, 8400),), settings={"names": "cat, big dog"})
    assert found.names == ("cat", "big dog")
    with pytest.raises(ConfigError, match="3 classes, but the model has 80"):
        see(metadata=DETECT, settings={"names": "a,b,c"})
    with pytest.raises(ConfigError, match="empty"):
        see(metadata=DETECT, settings={"names": "a,,c"})


def test_recognise_preprocess_and_thresholds_by_setting_are_used():
    given = {
        "preprocess.color": "bgr",
        "preprocess.fit": "top_left",
        "preprocess.pad": "0",
        "preprocess.scale": "1/128",
        "preprocess.mean": "0.485, 0.456, 0.406",
        "preprocess.std": "0.5",
        "preprocess.width": "640",
        "thresholds.score": "0.5",
        "thresholds.iou": "0.45",
        "thresholds.max_detections": "10",
        "thresholds.class_agnostic": "yes",
        "other.key": "ignored",
    }
    for metadata in ({}, DETECT):
        found = see(metadata=metadata, settings=given)
        assert found.thresholds == Thresholds(0.5, 0.45, 10, True)
        assert found.preprocess == Preprocess(
            width=640,
            height=640,
            color="bgr",
            fit=Fit.TOP_LEFT,
            pad=0,
            scale=1 / 128,
            mean=(0.485, 0.456, 0.406),
            std=(0.5, 0.5, 0.5),
        )


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("preprocess.colour", "rgb", "did you mean preprocess.color?"),
        ("thresholds.scores", "1", "did you mean thresholds.score?"),
        ("preprocess.color", "gray", "preprocess.color=gray"),
        ("preprocess.fit", "leterbox", "did you mean letterbox?"),
        ("preprocess.pad", "256", "0..255"),
        ("preprocess.pad", "-1", "0..255"),
        ("preprocess.pad", "\u0661", "0..255"),
        ("preprocess.scale", "1/0", "not a number"),
        ("preprocess.scale", "nan", "not a number"),
        ("preprocess.mean", "1,2", "three"),
        ("preprocess.mean", "1,x,2", "not a number"),
        ("preprocess.std", "1,0,1", "zero"),
        ("preprocess.width", "320", "fixes this side to 640"),
        ("preprocess.height", "9" * 5000, "1..16384"),
        ("preprocess.scale", "2", "UINT8"),
        ("thresholds.score", "1.5", "0..1"),
        ("thresholds.iou", "much", "0..1"),
        ("thresholds.max_detections", "0", "1..4096"),
        ("thresholds.class_agnostic", "maybe", "must be true or false"),
    ],
)
def test_recognise_invalid_setting_is_named(key, value, says):
    for metadata, datatype in (({}, "FP32"), (DETECT, "FP32"), ({}, "UINT8")):
        if (datatype == "UINT8") != ("UINT8" in says):
            continue
        with pytest.raises(ConfigError) as error:
            see(metadata=metadata, settings={key: value}, inputs=image(datatype=datatype))
        assert says in error.value.message
        assert key in error.value.message
        assert len(error.value.message) < 200


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (image(1, 3, 48, 64), Preprocess(64, 48)),
        (image("n", 48, 64, 3), Preprocess(64, 48, layout="NHWC")),
        (
            image(1, 48, 64, 3, datatype="UINT8"),
            Preprocess(64, 48, layout="NHWC", datatype="UINT8", scale=1.0),
        ),
        (image(1, 1, 28, 28), Preprocess(28, 28, 1, color="gray")),
        (image(1, 28, 28, 1, datatype="FP16"), Preprocess(28, 28, 1, "NHWC", "FP16", "gray")),
    ],
)
def test_preprocess_for_picture_input_follows_its_shape(spec, expected):
    found, reason = preprocess_for(spec, {})
    assert found == expected
    assert "stretch" in reason


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (image(1, 4, 64, 64), "no input takes a picture"),
        (image(1, 3, 64, 64, datatype="INT8"), "no input takes a picture"),
        (image(3, 64, 64), "no input takes a picture"),
        ((*image(), *image(name="other")), "2 inputs could"),
        (image(1, 3, "h", "w"), "set preprocess.width and preprocess.height"),
        ((*image(1, 3, 64, 64), TensorSpec("k", "FP32", (1,))), "besides images"),
        ((), "no input takes a picture"),
    ],
)
def test_preprocess_for_other_inputs_has_a_reason(spec, says):
    assert preprocess_for(spec, {})[0] is None
    assert says in preprocess_for(spec, {})[1]


# --- hostile metadata

HOSTILE = [
    "[" * 100_000 + "]" * 100_000,
    "-" * 1_000_000 + "1",
    "1" + "+1" * 400_000,
    "1-1" * 1000,
    "(" * 50 + ")" * 50,
    "{0: 'a'" * 5000,
    "'" * 400_001,
    "'" + "a\\'" * 150_000,
    "' \n" * 150_000,
    "'\\\n" * 150_000,
    "'''' '''" + "-" * 300_000 + "1",
    "0" * 500_000,
    "1." * 200_000,
    "[1," * 100_000,
    "1," * 200_000,
    " " * 500_000 + "x",
    "'a' " * 200_000,
    "9" * 1_000_000,
    "{" + "0: 'x', " * 100_000 + "}",
    "{1: 'starts at one'}",
    "{'0': 'text key'}",
    "{True: 'x'}",
    "{0: 5}",
    "{[]: 'unhashable'}",
    "{0: '" + "n" * 300 + "'}",
    "__import__('os').system('true')",
    "lambda: 0",
    "x" * 5_000_000,
    "\0",
    "",
    "b'bytes'",
    "None",
    "(,)",
    "1.2.3",
    "\ud800",
    5,
    None,
]


@pytest.mark.timeout(30)
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_recognise_hostile_metadata_counts_as_absent(text):
    for key in DETECT:
        found = see(metadata={**DETECT, key: text})
        assert len(found.reason) < 1000
        assert len(found.names) in (0, 80)
        if key == "names":
            # The shape is still recognised; only the names are missing.
            assert found.family == "ultralytics"
            assert "number of rows" in found.reason
            assert found.names == ()


def test_recognise_metadata_of_other_forms_is_read_or_reported():
    assert see(metadata={**DETECT, "names": "[["}).reason.endswith("; unreadable metadata: names")
    found = see(metadata={**DETECT, "imgsz": "[0, 99999999]", "args": "[]"})
    assert found.family == "ultralytics"
    assert "unreadable metadata: imgsz, args" in found.reason
    found = see((output(1, 6, 8400),), {**DETECT, "names": "['a\\nb', \"it's {odd: [\"]"})
    assert found.names == ("a b", "it's {odd: [")
