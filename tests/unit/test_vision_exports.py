"""Every supported detector format, with planted objects in its tensors: boxes are in pixels of the picture."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.vision.detections import Detections
from edged.vision.family import Family, Recognition, Thresholds, open_family
from tests.vision_encoders import CLASSES, HEIGHT, WIDTH, Outputs, Planted, as_fp16
from tests.vision_exports import EXPORTS, Export

EVERY = pytest.mark.parametrize("export", EXPORTS.values(), ids=EXPORTS)
WIDE, HIGH, ODD, TINY = (1280, 720), (720, 1280), (333, 1001), (37, 21)
LOOSE = Thresholds(score=0.1, max_detections=4096)


def opened(export: Export) -> Family:
    family = open_family(export.recognition)
    assert isinstance(family, Family)
    return family


def decode(export: Export, outputs: Outputs, size: tuple[int, int], index: int = 0, **more: object) -> Detections:
    thresholds = msgspec.structs.replace(LOOSE, **more)
    return opened(export).decode(outputs, index, export.place(*size), thresholds)


def things(size: tuple[int, int], seed: int, count: int = 6) -> list[Planted]:
    """Return separate objects in pixels of a picture: the first in a corner, the last in the opposite one."""
    width, height = size
    random = np.random.default_rng(seed)
    across = width / count
    found = []
    for i in range(count):
        left, right = across * (i + random.uniform(0, 0.2)), across * (i + random.uniform(0.6, 1))
        top, bottom = height * random.uniform(0, 0.4), height * random.uniform(0.5, 1)
        found.append(Planted((left, top, right, bottom), int(random.integers(1, CLASSES)), 0.3 + 0.1 * i))
    found[0] = found[0]._replace(box=(0, 0, *found[0].box[2:]))
    found[-1] = found[-1]._replace(box=(*found[-1].box[:2], width, height))
    return found


def check(found: Detections, planted: list[Planted], pixels: float, scores: float = 1e-5) -> None:
    expected = sorted(planted, key=lambda one: -one.score)
    assert found.class_ids.tolist() == [one.class_id for one in expected]
    np.testing.assert_allclose(found.scores, [one.score for one in expected], rtol=0, atol=scores)
    np.testing.assert_allclose(found.boxes, np.reshape([one.box for one in expected], (-1, 4)), rtol=0, atol=pixels)
    assert (found.boxes.dtype, found.scores.dtype, found.class_ids.dtype) == (np.float32, np.float32, np.int32)


@EVERY
def test_recognise_export_survives_encoding(export: Export) -> None:
    found = export.recognition
    assert found.family == export.family, found.reason
    assert set(found.reading.outputs) <= {spec.name for spec in export.outputs}
    assert found.output in found.reading.outputs
    assert msgspec.json.decode(msgspec.json.encode(found), type=Recognition) == found
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=Recognition) == found
    family = opened(export)
    assert (family.name, family.preprocess, family.names) == (found.family, found.preprocess, found.names)


@EVERY
@pytest.mark.parametrize("size", [WIDE, HIGH, ODD, TINY, (WIDTH, HEIGHT)])
def test_decode_planted_objects_of_each_picture(export: Export, size: tuple[int, int]) -> None:
    pictures = [things(size, seed) for seed in (1, 2)] + [[]]
    placement = export.place(*size)
    outputs = export.encode([[one.lay(placement) for one in picture] for picture in pictures])
    for index, planted in enumerate(pictures):
        check(decode(export, outputs, size, index), planted, pixels=2e-3 * max(size) / WIDTH + 1e-3, scores=1e-3)


@EVERY
def test_recognise_by_setting_equals_by_evidence(export: Export) -> None:
    """The setting is sufficient if the shapes of the tensors are known."""
    recognised = export.recognition
    found = dataclasses.replace(export, settings={**export.settings, "family": export.family}).recognition
    assert found.is_set
    assert (found.family, found.output) == (recognised.family, recognised.output)
    assert (found.reading.outputs, found.reading.form) == (recognised.reading.outputs, recognised.reading.form)


@EVERY
def test_decode_half_precision_moves_boxes_by_at_most_a_pixel(export: Export) -> None:
    planted = things((WIDTH, HEIGHT), 3)
    placement = export.place(WIDTH, HEIGHT)
    outputs = as_fp16(export.encode([[one.lay(placement) for one in planted]]))
    check(decode(export, outputs, (WIDTH, HEIGHT)), planted, pixels=1.0, scores=2e-3)


def crowd(score: float = 0.3) -> list[Planted]:
    """Return a thousand separate small objects, in pixels of a picture of the input's size."""
    places = [(x, y) for y in range(0, HEIGHT - 8, 8) for x in range(0, WIDTH - 8, 8)][:1000]
    return [Planted((x + 1, y + 1, x + 7, y + 6), 1 + i % 4, score + i / 2000) for i, (x, y) in enumerate(places)]


@EVERY
def test_decode_a_thousand_detections_are_kept_up_to_the_limit(export: Export) -> None:
    size, placement = (WIDTH, HEIGHT), export.place(WIDTH, HEIGHT)
    planted = crowd()
    outputs = export.encode([[one.lay(placement) for one in planted]])
    found = decode(export, outputs, size)
    assert len(found) == len(planted) == 1000
    best = decode(export, outputs, size, max_detections=300)
    expected = [one.class_id for one in sorted(planted, key=lambda one: -one.score)]
    assert best.class_ids.tolist() == expected[:300]
    np.testing.assert_allclose(best.scores, sorted((one.score for one in planted), reverse=True)[:300], atol=1e-4)


@EVERY
def test_decode_applies_thresholds(export: Export) -> None:
    planted = things(WIDE, 4)
    placement = export.place(*WIDE)
    outputs = export.encode([[one.lay(placement) for one in planted]])
    assert len(decode(export, outputs, WIDE, score=0.55)) == 3
    assert decode(export, outputs, WIDE, score=0.99).class_ids.tolist() == []
    assert len(decode(export, outputs, WIDE, max_detections=2)) == 2
    assert len(decode(export, outputs, WIDE, score=1.0)) == 0


@EVERY
def test_decode_suppresses_duplicates_if_needed_or_requested(export: Export) -> None:
    same = [Planted((100, 60, 160, 120), 2, 0.9), Planted((102, 62, 162, 122), 2, 0.8)]
    other = Planted((98, 58, 158, 118), 3, 0.7)
    placement = export.place(WIDTH, HEIGHT)
    outputs = export.encode([[one.lay(placement) for one in (*same, other)]])
    size = (WIDTH, HEIGHT)
    found = decode(export, outputs, size)
    assert found.class_ids.tolist() == ([2, 3] if export.needs_nms else [2, 2, 3])
    assert decode(export, outputs, size, class_agnostic=True).class_ids.tolist() == [2]
    assert decode(export, outputs, size, class_agnostic=True, iou=1.0).class_ids.tolist() == [2, 2, 3]


@EVERY
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_decode_values_that_are_not_finite_are_dropped(export: Export, bad: float) -> None:
    outputs = export.encode([[one.lay(export.place(*WIDE)) for one in things(WIDE, 5)]])
    for name, array in outputs.items():
        if array.dtype.kind == "f":
            spoiled = {**outputs, name: np.full_like(array, bad)}
            found = decode(export, spoiled, WIDE)
            assert np.isfinite(found.boxes).all()
            assert np.isfinite(found.scores).all()
    everything = {n: np.full_like(a, bad) if a.dtype.kind == "f" else a for n, a in outputs.items()}
    assert len(decode(export, everything, WIDE)) == 0


@EVERY
def test_decode_only_reads_the_outputs(export: Export) -> None:
    outputs = export.encode([[one.lay(export.place(*WIDE)) for one in things(WIDE, 6)]])
    for array in outputs.values():
        array.flags.writeable = False
    found = decode(export, outputs, WIDE)
    assert len(found) == 6
    for array in outputs.values():
        assert not any(np.shares_memory(array, kept) for kept in (found.boxes, found.scores, found.class_ids))


@EVERY
def test_decode_drops_boxes_in_the_padding_and_clips_others(export: Export) -> None:
    placement = export.place(*ODD)
    width, height = ODD
    edge = Planted((width - 30, 100, width + 30, height / 2), 2, 0.8)
    outside = Planted((width + 1, 10, width + 20, 300), 1, 0.9)
    found = decode(export, export.encode([[one.lay(placement) for one in (outside, edge)]]), ODD)
    assert found.class_ids.tolist() == [2]
    np.testing.assert_allclose(found.boxes, [[width - 30, 100, width, height / 2]], atol=0.05)


@settings(max_examples=25, deadline=None)
@given(st.data())
@EVERY
def test_decode_any_tensors_give_boxes_inside_the_picture(export: Export, data: st.DataObject) -> None:
    """The outputs are noise of any size, with any share of NaN."""
    random = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    scale, holes = data.draw(st.sampled_from([0.5, 1, 100, 1e6, 1e30])), data.draw(st.floats(0, 1))
    size = data.draw(st.sampled_from([WIDE, ODD, TINY]))
    outputs: Outputs = {}
    for name, array in export.encode([[]]).items():
        noise = random.standard_normal(array.shape or (1,)) * scale
        if array.dtype.kind == "f":
            noise[random.random(noise.shape) < holes * 0.01] = np.nan
            outputs[name] = noise.astype(array.dtype)
        else:
            outputs[name] = np.clip(noise, -(1 << 31), (1 << 31) - 1).astype(array.dtype)
    found = decode(export, outputs, size, score=0.25, max_detections=300)
    assert len(found) <= 300
    assert np.isfinite(found.boxes).all()
    assert np.isfinite(found.scores).all()
    assert (found.boxes >= 0).all()
    assert (found.boxes <= np.array(size * 2)).all()
    assert (np.diff(found.scores) <= 0).all()
    assert (found.class_ids >= 0).all()
