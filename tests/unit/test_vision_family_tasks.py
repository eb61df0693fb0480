"""Recognition of Ultralytics segment, pose and obb models."""

from __future__ import annotations

import numpy as np
import pytest

from edged.errors import ConfigError
from edged.tensors import TensorSpec
from edged.verification.verify import matcher_for
from edged.vision.family import Recognition, Thresholds, open_family, recognise
from edged.vision.placement import Fit, place

IMAGE = (TensorSpec("images", "FP32", (1, 3, 640, 640)),)
NAMES = {0: "ship", 1: "plane"}
PROTOTYPES = (1, 32, 160, 160)


def exported(task: str, **more: str) -> dict[str, str]:
    metadata = {"task": task, "names": str(NAMES), "stride": "32", "imgsz": "[640, 640]", "end2end": "False"}
    if task == "pose":
        metadata["kpt_shape"] = "[17, 3]"
    return {key: value for key, value in (metadata | more).items() if value}


def see(*shapes: tuple[int | str, ...], metadata: dict[str, str] | None = None, **settings: str) -> Recognition:
    outputs = tuple(TensorSpec(f"output{i}", "FP32", shape) for i, shape in enumerate(shapes))
    return recognise(IMAGE, outputs, metadata or {}, settings)


SHAPES = {
    ("segment", "cells"): ((1, 4 + 2 + 32, 8400), PROTOTYPES),
    ("segment", "rows"): ((1, 300, 6 + 32), PROTOTYPES),
    ("pose", "cells"): ((1, 4 + 2 + 51, 8400),),
    ("pose", "rows"): ((1, 300, 6 + 51),),
    ("obb", "cells"): ((1, 4 + 2 + 1, 8400),),
    ("obb", "rows"): ((1, 300, 7),),
}


@pytest.mark.parametrize(("task", "form"), SHAPES)
@pytest.mark.parametrize("how", ["end2end", "nms", "silent"])
def test_recognise_task_and_form_by_metadata(task, form, how):
    rows = str(form == "rows")
    more = {"end2end": {"end2end": rows}, "nms": {"args": f"{{'nms': {rows}}}"}, "silent": {"end2end": ""}}[how]
    if how == "nms" and form == "rows":
        more["end2end"] = "False"
    found = see(*SHAPES[task, form], metadata=exported(task, **more))
    assert found.family == f"ultralytics-{task}"
    assert found.reading.form == form
    assert found.reading.is_list == (form == "rows")
    assert found.reading.is_suppressed == (form == "rows" and how != "end2end"), "an NMS-free head leaves that open"
    assert found.names == ("ship", "plane")
    assert found.thresholds == Thresholds()
    assert found.preprocess is not None
    assert (found.preprocess.fit, found.preprocess.pad, found.preprocess.color) == (Fit.LETTERBOX, 114, "rgb")
    assert found.reading.outputs == tuple(f"output{i}" for i in range(len(SHAPES[task, form])))
    assert found.reading.keypoints == ((17, 3) if task == "pose" else (0, 0))
    assert f"task={task}" in found.reason
    matcher = matcher_for(found, 0.1)
    assert matcher
    assert matcher.lists == ({"output0"} if form == "rows" else set()), "prototypes are compared value by value"


@pytest.mark.parametrize(("task", "form"), SHAPES)
def test_open_family_of_task_decodes(task, form):
    shapes = SHAPES[task, form]
    family = open_family(see(*shapes, metadata=exported(task, end2end=str(form == "rows"))))
    outputs = {f"output{i}": np.zeros(shape, np.float32) for i, shape in enumerate(shapes)}
    table = outputs["output0"][0]
    box, score = (320, 320, 100, 50), 0.75
    if form == "rows":
        table[0, :6] = (*(box if task == "obb" else (270, 295, 370, 345)), score, 1)
    else:
        table[:4, 0], table[5, 0] = box, score
    if task == "segment":
        outputs["output1"][0, 0] = 1
        table[(0, 6) if form == "rows" else (6, 0)] = 1
    found = family.decode(outputs, 0, place(640, 640, 640, 640, Fit.LETTERBOX), Thresholds())
    assert np.allclose(found.boxes, [(270, 295, 370, 345)])
    assert found.class_ids.tolist() == [1]
    parts = {"segment": found.masks, "pose": found.keypoints, "obb": found.corners}
    assert [name for name, part in parts.items() if part is not None] == [task]


def test_recognise_open_shapes_of_tasks_by_metadata():
    found = see(("batch", 38, "anchors"), ("batch", 32, "h", "w"), metadata=exported("segment"))
    assert (found.family, found.reading.form) == ("ultralytics-segment", "cells")
    assert see(("batch", "rows", 57), metadata=exported("pose", end2end="True")).reading.form == "rows"
    assert see(("batch", "rows", "columns"), metadata=exported("obb")).names == ("ship", "plane")


@pytest.mark.parametrize(
    ("task", "shapes", "more", "words"),
    [
        ("segment", ((1, 38, 8400),), {}, "but the family needs one output"),
        ("segment", ((1, 39, 8400), PROTOTYPES), {}, "but the family needs one output"),
        ("segment", ((1, 300, 6), PROTOTYPES), {"end2end": "True"}, "but the family needs one output"),
        ("pose", ((1, 57, 8400),), {"kpt_shape": ""}, "family=ultralytics-pose"),
        ("pose", ((1, 57, 8400),), {"kpt_shape": "[21, 3]"}, "but the family needs one output"),
        ("pose", ((1, 57, 8400),), {"kpt_shape": "'many'"}, "unreadable metadata: kpt_shape"),
        ("obb", ((1, 9, 8400),), {}, "but the family needs one output"),
        ("obb", ((1, 300, 6),), {"end2end": "True"}, "but the family needs one output"),
    ],
)
def test_recognise_task_with_other_tensors_is_raw(task, shapes, more, words):
    found = see(*shapes, metadata=exported(task, **more))
    assert found.family is None
    assert words in found.reason
    assert f"task={task}" in found.reason


@pytest.mark.parametrize(("task", "form"), SHAPES)
def test_recognise_task_by_setting_without_metadata(task, form):
    found = see(*SHAPES[task, form], family=f"ultralytics-{task}", names="ship,plane")
    assert found.family == f"ultralytics-{task}"
    assert (found.reading.form, found.names) == (form, ("ship", "plane"))
    assert found.reading.keypoints == ((17, 3) if task == "pose" else (0, 0))


def test_recognise_keypoints_by_setting_fill_the_table():
    assert see((1, 56, 8400), family="ultralytics-pose").reading.keypoints == (17, 3)
    assert see((1, 5 + 8, 8400), family="ultralytics-pose").reading.keypoints == (4, 2)
    assert see((1, 300, 6 + 10), family="ultralytics-pose").reading.keypoints == (5, 2)
    with pytest.raises(ConfigError, match="family=ultralytics-pose needs"):
        see((1, 5, 8400), family="ultralytics-pose")


@pytest.mark.parametrize(
    ("family", "shapes"),
    [
        ("ultralytics-segment", ((1, 38, 8400),)),
        ("ultralytics-segment", ((1, 20, 8400), PROTOTYPES)),
        ("ultralytics-pose", ((1, 5, 7, 7),)),
        ("ultralytics-obb", ((1, 5, 8400),)),
        ("ultralytics-obb", ()),
    ],
)
def test_recognise_task_by_setting_with_other_tensors_is_refused(family, shapes):
    with pytest.raises(ConfigError, match=f"family={family} needs one output .*; set family=raw"):
        see(*shapes, family=family)
