"""Tables of six and of seven columns are several formats: what tells them apart, and what does not."""

from __future__ import annotations

import pytest

from edged.errors import ConfigError
from edged.vision.metadata import read_metadata
from tests.vision_encoders import CLASSES, HEIGHT, NAMES, WIDTH
from tests.vision_exports import EXPORTS, see, spec

DETECT = {"task": "detect", "names": str(NAMES), "stride": "32", "imgsz": f"[{HEIGHT}, {WIDTH}]"}
TWO = {**DETECT, "names": "{0: 'cat', 1: 'dog'}"}
FLAGS = {"end2end": "False", "args": "{'nms': False}"}
SIX = (spec("output0", 1, 300, 6),)


@pytest.mark.parametrize(
    ("metadata", "family", "form"),
    [
        ({**DETECT, "end2end": "True"}, "ultralytics-end2end", ""),
        ({**TWO, "end2end": "True"}, "ultralytics-end2end", ""),
        ({**DETECT, "end2end": "False", "args": "{'nms': True}"}, "ultralytics-end2end", ""),
        ({**DETECT, "version": "8.3.0"}, "ultralytics-end2end", ""),
        ({**DETECT, "version": "8.3.100", "args": "{'nms': False}"}, "ultralytics-end2end", ""),
        ({**DETECT, "version": "8.3.100", "args": "{'nms': True}"}, "ultralytics-end2end", ""),
        ({**TWO, "version": "8.3.100", "args": "{'nms': False}"}, None, ""),
        ({**DETECT, **FLAGS, "version": "8.4.60"}, "rtdetr-ultralytics", "best"),
        ({**DETECT, **FLAGS, "version": "8.4.90", "head": "RTDETRDecoder"}, "rtdetr-ultralytics", "best"),
        ({**DETECT, "head": "RTDETRDecoder"}, "rtdetr-ultralytics", "best"),
        # With two classes both layouts of RT-DETR have six columns.
        ({**TWO, **FLAGS, "version": "8.4.46"}, "rtdetr-ultralytics", "each"),
        ({**TWO, **FLAGS, "version": "8.4.47"}, "rtdetr-ultralytics", "best"),
        # Nothing certain: none of these is guessed.
        ({**TWO, "version": "8.3.0"}, None, ""),
        ({**DETECT, "version": "8.4.60"}, None, ""),
        ({**DETECT, **FLAGS}, None, ""),
        ({**DETECT, **FLAGS, "head": "Detect", "version": "8.4.90"}, None, ""),
        (DETECT, None, ""),
        ({}, None, ""),
    ],
)
def test_six_columns_are_told_apart_by_metadata_alone(metadata: dict[str, str], family: str | None, form: str) -> None:
    found = see(EXPORTS["ultralytics"], outputs=SIX, metadata=metadata)
    assert (found.family, found.reading.form) == (family, form), found.reason
    if family is None:
        assert "family=" in found.reason


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("8.4.47", (8, 4, 47)),
        ("8.4.47.post1", (8, 4, 47)),
        ("8.4.47rc2", (8, 4, 47)),
        ("8.4", None),
        ("8.4.x", None),
        ("v8.4.47", None),
        ("8.4." + "9" * 100_000, None),
        ("", None),
        ("\ud800", None),
    ],
)
def test_versions_that_cannot_be_read_count_as_absent(text: str, version: tuple[int, int, int] | None) -> None:
    said = read_metadata({"version": text})
    assert said.version == version
    found = see(EXPORTS["ultralytics"], outputs=SIX, metadata={**TWO, **FLAGS, "version": text})
    assert found.family == ("rtdetr-ultralytics" if version else None)


OPEN = (spec("output0", "batch", 300, "anchors"),)


@pytest.mark.parametrize(
    ("metadata", "family", "form"),
    [
        ({**DETECT, "end2end": "True"}, "ultralytics-end2end", ""),
        ({**DETECT, "end2end": "False", "args": "{'nms': True}"}, "ultralytics-end2end", ""),
        ({**DETECT, **FLAGS, "version": "8.4.90", "head": "RTDETRDecoder"}, "rtdetr-ultralytics", "best"),
        ({**DETECT, **FLAGS, "version": "8.4.47"}, "rtdetr-ultralytics", "best"),
        ({**DETECT, **FLAGS, "version": "8.4.46"}, "rtdetr-ultralytics", "each"),
        ({**DETECT, **FLAGS}, None, ""),
        (DETECT, None, ""),
        ({}, None, ""),
    ],
)
def test_dynamic_exports_leave_the_columns_open(metadata: dict[str, str], family: str | None, form: str) -> None:
    found = see(EXPORTS["ultralytics"], outputs=OPEN, metadata=metadata)
    assert (found.family, found.reading.form) == (family, form), found.reason


def test_a_dynamic_one_to_many_head_has_its_classes_in_rows() -> None:
    outputs = (spec("output0", "batch", 4 + CLASSES, "anchors"),)
    for more in ({"version": "8.3.0"}, {**FLAGS, "version": "8.4.90"}):
        found = see(EXPORTS["ultralytics"], outputs=outputs, metadata={**DETECT, **more})
        assert found.family == "ultralytics", found.reason


def test_rtdetr_of_two_classes_needs_a_version_or_a_setting() -> None:
    for settings in ({"decode.scores": "each"}, {"decode.scores": "best"}):
        found = see(EXPORTS["ultralytics"], {**settings, "family": "rtdetr-ultralytics"}, outputs=SIX, metadata=TWO)
        assert found.reading.form == settings["decode.scores"]
    with pytest.raises(ConfigError, match=r"decode\.scores=best .* decode\.scores=each"):
        see(EXPORTS["ultralytics"], {"family": "rtdetr-ultralytics"}, outputs=SIX, metadata={})
    found = see(EXPORTS["ultralytics"], {"family": "rtdetr-ultralytics", "names": "a,b,c"}, outputs=SIX, metadata={})
    assert (found.reading.form, found.names) == ("best", ("a", "b", "c"))


def test_only_suppression_in_the_graph_makes_counts_uncertain() -> None:
    assert EXPORTS["ultralytics, nms=True"].recognition.reading.is_suppressed
    assert not EXPORTS["ultralytics, nms-free"].recognition.reading.is_suppressed
    lists = [name for name, export in EXPORTS.items() if export.recognition.reading.is_list]
    assert all(not EXPORTS[name].needs_nms or name == "deepstream-yolo" for name in lists)


# -- seven columns --------------------------------------------------------------------------------------------------


def test_seven_columns_are_told_apart_by_names_and_datatype() -> None:
    flat = (spec("output", "m", 7),)
    assert see(EXPORTS["yolov7 --max-wh"], outputs=flat).family == "yolov7"
    assert see(EXPORTS["yolo-nas, flat"], outputs=flat).family == "yolo-nas"
    unknown = see(EXPORTS["yolov7 --max-wh"], outputs=(spec("detections", "m", 7),))
    assert unknown.family is None
    assert "family=yolov7, family=yolo-nas, family=classification or family=raw" in unknown.reason


def test_a_classifier_of_seven_classes_is_no_list_of_detections() -> None:
    for name in ("yolov7 --max-wh", "yolo-nas, flat"):
        assert see(EXPORTS[name], outputs=(spec("logits", "n", 7),)).family == "classification"
        a_row_each = see(EXPORTS[name], outputs=(spec("output", "n", 7),))
        assert a_row_each.family is None
        assert "or classes: set family=yolov7" in a_row_each.reason
        suppressed = frozenset({"Conv", "NonMaxSuppression"})
        assert (
            see(EXPORTS[name], outputs=(spec("output", "n", 7),), operators=suppressed).family == EXPORTS[name].family
        )
        one_row = see(EXPORTS[name], outputs=(spec("output", 1, 7),))
        assert one_row.family is None
        assert "family=classification or family=raw" in one_row.reason
        assert see(EXPORTS[name], {"names": "a,b,c,d,e,f,g"}).family == EXPORTS[name].family
