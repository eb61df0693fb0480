"""Detectors of queries: RF-DETR, and RT-DETR with its second input."""

from __future__ import annotations

import pytest

from edged.errors import ConfigError
from edged.tensors import TensorSpec
from edged.vision.family import open_family
from tests.vision_encoders import HEIGHT, WIDTH
from tests.vision_exports import EXPORTS, see, spec


@pytest.mark.parametrize(
    ("slots", "settings", "names", "told"),
    [
        (91, {}, 0, "all slots"),
        (6, {}, 0, "the last slot"),
        (6, {"names": "a,b,c,d,e"}, 5, "the last slot"),
        (6, {"names": "a,b,c,d,e,f"}, 6, "all slots"),
        (91, {"names": ",".join("x" * 90)}, 90, "the last slot"),
        (6, {"decode.background": "none"}, 0, "all slots"),
        (91, {"decode.background": "last"}, 0, "the last slot"),
    ],
)
def test_the_last_slot_of_rfdetr_is_no_class_unless_it_is_cocos(
    slots: int, settings: dict[str, str], names: int, told: str
) -> None:
    outputs = (spec("dets", 1, 300, 4), spec("labels", 1, 300, slots))
    found = see(EXPORTS["rf-detr, coco"], settings, outputs=outputs)
    assert found.family == "rfdetr"
    assert told in found.reason
    assert len(found.names) == names


def test_rfdetr_with_masks_is_not_its_detector() -> None:
    masks = spec("masks", 1, 300, 28, 28)
    found = see(EXPORTS["rf-detr, coco"], outputs=(*EXPORTS["rf-detr, coco"].outputs, masks))
    assert found.family is None


def test_names_of_rfdetr_that_fit_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="names lists 3 classes, the model has 5"):
        see(EXPORTS["rf-detr, own classes"], {"names": "a,b,c"})


SIZES = TensorSpec("orig_target_sizes", "INT64", (1, 2))


@pytest.mark.parametrize(
    "sizes",
    [
        TensorSpec("orig_target_sizes", "FP32", (1, 2)),
        TensorSpec("orig_target_sizes", "INT64", (2,)),
        TensorSpec("orig_target_sizes", "INT64", (1, 4)),
    ],
)
def test_sizes_of_another_kind_are_not_filled(sizes: TensorSpec) -> None:
    export = EXPORTS["rt-detr"]
    found = see(export, inputs=(export.inputs[0], sizes))
    assert found.family is None
    assert found.preprocess is None
    with pytest.raises(ConfigError, match="orig_target_sizes"):
        see(export, {"family": "rtdetr"}, inputs=(export.inputs[0], sizes))


def test_a_further_input_is_still_too_many() -> None:
    export = EXPORTS["rt-detr"]
    found = see(export, inputs=(*export.inputs, TensorSpec("scale", "FP32", (1,))))
    assert found.family is None
    assert "looks like rtdetr" in found.reason


def test_sizes_are_of_the_input_width_first() -> None:
    export = EXPORTS["rt-detr"]
    placements = [export.place(1280, 720), export.place(333, 1001)]
    found = open_family(export.recognition).extra_inputs(placements)
    assert {name: (a.dtype.name, a.tolist()) for name, a in found.items()} == {
        "orig_target_sizes": ("int64", [[WIDTH, HEIGHT], [WIDTH, HEIGHT]])
    }
    others = [one for name, one in EXPORTS.items() if name != "rt-detr"]
    assert all(open_family(one.recognition).extra_inputs(placements) == {} for one in others)


def test_raw_leaves_a_second_input_to_whoever_asks() -> None:
    found = see(EXPORTS["rt-detr"], {"family": "raw"})
    assert (found.family, found.preprocess) == (None, None)
    assert "orig_target_sizes" not in found.reason
