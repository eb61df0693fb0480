"""Engines whose outputs differ from their model's file: one clear error, and never wrong boxes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from edged.errors import EngineUnusable
from edged.tensors import Array, TensorSpec
from edged.vision.detections import Detections
from edged.vision.families import decoding
from edged.vision.family import Family, Thresholds, open_family
from edged.vision.placement import Fit, place
from tests.vision_encoders import CELLS, CLASSES, HEIGHT, STRIDES, WIDTH, Outputs, Planted
from tests.vision_exports import EXPORTS, Export, see, spec

SEEN = [Planted((20, 30, 120, 90), 1, 0.9), Planted((150, 40, 210, 200), 2, 0.7), Planted((230, 10, 400, 240), 3, 0.5)]
BOTH = [SEEN, SEEN[:1]]
STRANGE: dict[str, Callable[[Array], Array | None]] = {
    "missing": lambda tensor: None,
    "of more axes": lambda tensor: tensor[None],
    "texts": lambda tensor: tensor.astype(object),
    "complex": lambda tensor: tensor.astype(np.complex64),
    "quantised": lambda tensor: tensor.astype(np.uint8),
    "BF16": lambda tensor: tensor.astype(np.uint16),
    "empty": lambda tensor: tensor[:0],
    "a scalar": lambda tensor: np.float32(tensor.max()).reshape(()),
}
EVERY = pytest.mark.parametrize("name", EXPORTS)


def decode(export: Export, outputs: Outputs, index: int = 0, score: float = 0.25) -> Detections:
    family = open_family(export.recognition)
    assert isinstance(family, Family)
    return family.decode(outputs, index, export.place(WIDTH, HEIGHT), Thresholds(score, max_detections=4096))


@EVERY
@pytest.mark.parametrize("how", STRANGE)
def test_decode_tensor_of_another_kind_is_refused(name: str, how: str) -> None:
    export = EXPORTS[name]
    for output in export.recognition.reading.outputs:
        outputs = export.encode(BOTH)
        strange = STRANGE[how](outputs.pop(output))
        if strange is not None:
            outputs[output] = strange
        if how == "empty" and strange is not None and strange.ndim in (2, 4) and strange.shape[-1] in (6, 7):
            continue  # an empty list
        with pytest.raises(EngineUnusable, match=output) as caught:
            decode(export, outputs)
        assert "family=raw" in str(caught.value)
        assert len(str(caught.value)) < 300


@EVERY
def test_decode_tensor_with_one_value_more_or_less_is_refused(name: str) -> None:
    export = EXPORTS[name]
    for output in export.recognition.reading.outputs:
        axis = 1 if export.family == "ultralytics" else -1
        if export.encode(BOTH)[output].ndim < 3 or (export.family, output) == ("grounding-dino", "logits"):
            continue  # the columns after those of the prompts' tokens do not matter
        for change in (lambda t, a: np.delete(t, -1, a), lambda t, a: np.concatenate([t, t.take([0], a)], a)):
            outputs = export.encode(BOTH)
            outputs[output] = change(outputs[output], axis)
            with pytest.raises(EngineUnusable, match=output):
                decode(export, outputs)


@EVERY
def test_decode_short_batch_is_refused(name: str) -> None:
    export = EXPORTS[name]
    outputs = export.encode([SEEN])
    # Lists without rows of the second picture.
    if any(array.shape[-1] == 7 and array.ndim != 3 for array in outputs.values()):
        assert len(decode(export, outputs, index=1)) == 0
        return
    with pytest.raises(EngineUnusable):
        decode(export, outputs, index=1)


def test_decode_open_sizes_are_checked() -> None:
    table = see(EXPORTS["ultralytics"], outputs=(spec("output0", "n", "rows", "cells"),))
    assert (table.family, table.reading.classes) == ("ultralytics", CLASSES)
    family = open_family(table)
    assert isinstance(family, Family)
    outputs, place = EXPORTS["ultralytics"].encode([SEEN]), EXPORTS["ultralytics"].place(WIDTH, HEIGHT)
    assert len(family.decode(outputs, 0, place, Thresholds())) == 3
    turned = {"output0": outputs["output0"].swapaxes(1, 2)}
    with pytest.raises(EngineUnusable, match=rf"float32\[1,{CELLS},{4 + CLASSES}\].*any,{4 + CLASSES},any"):
        family.decode(turned, 0, place, Thresholds())


def test_decode_yolox_of_other_grids_is_refused() -> None:
    """Rows beyond the grids have no position in the picture."""
    export = dataclasses.replace(
        EXPORTS["yolox"], outputs=(spec("output", "n", "rows", 5 + CLASSES),), settings={"family": "yolox"}
    )
    outputs = export.encode([SEEN])
    assert len(decode(export, outputs)) == 3
    longer = np.concatenate([outputs["output"], outputs["output"]], axis=1)
    with pytest.raises(EngineUnusable, match=f"{CELLS},{5 + CLASSES}"):
        decode(export, {"output": longer})


def test_decode_yolox_with_partial_cells_has_the_right_grids() -> None:
    """Grids include the partial cells at their edges."""
    width, height = 104, 72
    grids = [(-(-width // s), -(-height // s)) for s in STRIDES]
    cells = sum(across * down for across, down in grids)
    inputs = (TensorSpec("images", "FP32", (1, 3, height, width)),)
    found = see(EXPORTS["yolox"], inputs=inputs, outputs=(spec("output", 1, cells, 6),))
    assert found.family == "yolox"
    family = open_family(found)
    assert isinstance(family, Family)
    table = np.zeros((1, cells, 6), np.float32)
    # The cell at row 1, column 2 of the second grid, 16 pixels wide: its box is centred at its corner, 16 x 16.
    table[0, grids[0][0] * grids[0][1] + grids[1][0] + 2] = 0, 0, 0, 0, 1, 0.9
    boxes = family.decode({"output": table}, 0, place(width, height, width, height, Fit.TOP_LEFT), Thresholds()).boxes
    assert boxes.tolist() == [[24, 8, 40, 24]]


def test_decode_raw_heads_in_any_order_has_equal_boxes() -> None:
    export = EXPORTS["yolov7, raw heads"]
    outputs = export.encode([SEEN])
    wanted = decode(export, outputs)
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        heads = tuple(spec(f"head{i}", "n", 3, f"h{i}", f"w{i}", 5 + CLASSES) for i in order)
        found = decode(dataclasses.replace(export, outputs=heads), outputs)
        assert np.allclose(found.boxes, wanted.boxes)


def test_decode_openvino_list_ends_at_a_negative_picture() -> None:
    export = EXPORTS["ssd, openvino"]
    outputs = export.encode([SEEN])
    outputs["detection_out"][0, 0, 4] = 0, 1, 0.99, 0, 0, 1, 1  # from an earlier answer
    assert len(decode(export, outputs)) == 3


def test_decode_inverted_box_does_not_count_for_the_limit() -> None:
    export = EXPORTS["ultralytics"]
    outputs = export.encode([SEEN])
    best = int(outputs["output0"][0, 4 + SEEN[0].class_id].argmax())
    outputs["output0"][0, 2:4, best] *= -1
    family = open_family(export.recognition)
    assert isinstance(family, Family)
    found = family.decode(outputs, 0, export.place(WIDTH, HEIGHT), Thresholds(max_detections=1))
    assert found.class_ids.tolist() == [SEEN[1].class_id]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_decode_cells_count_once_if_finite_and_above_the_threshold(dtype: type) -> None:
    """A cell has a score for each class. Half floats are compared as integers, whose signs differ."""
    export = EXPORTS["ultralytics"]
    table = np.zeros((1, 4 + CLASSES, CELLS), dtype)
    table[:, 2:4], table[:, 4:] = 10, -3
    assert len(decode(export, {"output0": table}, score=0.0)) == 0
    for cell in range(5):
        table[0, :6, cell] = 50 + 20 * cell, 50, 10, 10, 0.25, 0.5  # of the classes 0 and 1
    for cell, row, bad in ((1, 4 + 3, np.nan), (2, 0, np.inf), (3, 2, -np.nan)):
        table[0, row, cell] = bad
    found = decode(export, {"output0": table}, score=0.0)
    assert found.class_ids.tolist() == [1, 1]
    assert found.boxes.tolist() == [[45, 45, 55, 55], [125, 45, 135, 55]]


@pytest.mark.parametrize("datatype", ["BF16", "UINT8", "INT8", "BYTES", "BOOL"])
@pytest.mark.parametrize("settings", [{}, {"family": "ultralytics"}])
def test_recognise_other_datatypes_are_not_decoded(datatype: str, settings: dict[str, str]) -> None:
    (output,) = EXPORTS["ultralytics"].outputs
    found = see(EXPORTS["ultralytics"], settings, outputs=(TensorSpec(output.name, datatype, output.shape),))
    assert found.family is None
    assert f"looks like ultralytics, but output output0 has the datatype {datatype}" in found.reason
    assert found.preprocess is not None


def test_picture_vector_drops_axes_of_one() -> None:
    scores = np.arange(6, dtype=np.float32).reshape(2, 3, 1, 1)
    assert decoding.picture_vector({"s": scores}, "s", 1, 3).tolist() == [3, 4, 5]
    assert decoding.picture_scalar({"n": np.array([[4], [7]])}, "n", 1) == 7
    assert decoding.picture_scalar({"n": np.array([4, 7])}, "n", 1) == 7
    for wrong in (np.zeros((2, 2)), np.zeros(()), np.zeros(1)):
        with pytest.raises(EngineUnusable, match="output n is"):
            decoding.picture_scalar({"n": wrong}, "n", 1)
