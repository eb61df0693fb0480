"""Detections: packing, selecting, suppressing, and Roboflow's JSON."""

from __future__ import annotations

import itertools
import json
import uuid

import cv2
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.vision.detections import RECORD, Detections
from edged.vision.masks import encode
from edged.vision.nms import nms
from edged.vision.roboflow import roboflow

RNG = np.random.default_rng(5)


def some(n: int) -> Detections:
    corner = RNG.uniform(0, 500, (n, 2))
    boxes = np.concatenate([corner, corner + RNG.uniform(1, 90, (n, 2))], axis=1)
    return Detections.of(boxes, RNG.uniform(0, 1, n), RNG.integers(0, 80, n))


def test_detections_torn_or_uneven_are_refused():
    with pytest.raises(ValueError):
        Detections.unpack(bytes(RECORD.itemsize + 1))
    with pytest.raises(ValueError, match="2 scores"):
        Detections.of([[0, 0, 1, 1]], [0.1, 0.2], [0])


PARTS = ("masks", "keypoints", "corners", "tracker_ids")


def rich(n: int, parts: tuple[str, ...] = PARTS, width: int = 640, height: int = 480) -> Detections:
    plain = some(n)
    more = {
        "masks": [encode(RNG.random((9, 7)) < 0.7, 11 * i, 5 * i, width, height) for i in range(n)],
        "keypoints": RNG.uniform(0, 400, (n, 17, 3)),
        "corners": RNG.uniform(0, 400, (n, 4, 2)),
        "tracker_ids": RNG.integers(0, 2**40, n),
    }
    return Detections.of(plain.boxes, plain.scores, plain.class_ids, **{part: more[part] for part in parts})


def same(one: Detections, other: Detections) -> bool:
    for field in ("boxes", "scores", "class_ids", "keypoints", "corners", "tracker_ids"):
        ours, theirs = getattr(one, field), getattr(other, field)
        if (ours is None) != (theirs is None):
            return False
        if ours is not None and not (ours.dtype == theirs.dtype and np.array_equal(ours, theirs)):
            return False
    if one.masks is None or other.masks is None:
        return one.masks is other.masks
    return len(one.masks) == len(other.masks) and all(map(np.array_equal, one.masks, other.masks))


@pytest.mark.parametrize("n", [0, 1, 9])
@pytest.mark.parametrize("parts", [p for k in range(5) for p in itertools.combinations(PARTS, k)], ids=str)
def test_unpack_returns_all_parts_that_were_packed(parts, n):
    detections = rich(n, parts)
    packed = detections.pack()
    assert (len(packed) == n * RECORD.itemsize) == (not parts), "a plain record stays as small as it is"
    back = Detections.unpack(packed)
    assert same(back, detections)
    assert [part for part in PARTS if getattr(back, part) is not None] == list(parts)
    buffer = bytearray(packed)
    back = Detections.unpack(memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    assert same(back, detections), "the parts are copies"


def test_unpack_torn_parts_are_refused():
    packed = rich(3).pack()
    for size in range(4, len(packed)):
        with pytest.raises(ValueError):
            Detections.unpack(packed[:size])
    for longer in (packed + b"\0", packed + packed):
        with pytest.raises(ValueError):
            Detections.unpack(longer)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_unpack_spoiled_header_is_refused_or_consistent(data):
    packed = bytearray(rich(3).pack())
    for _ in range(data.draw(st.integers(1, 4))):
        packed[data.draw(st.integers(4, 23))] = data.draw(st.integers(0, 255))
    try:
        back = Detections.unpack(bytes(packed))
    except ValueError:
        return
    assert all(getattr(back, part) is None or len(getattr(back, part)) == len(back) for part in PARTS)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("masks", [[4]]),
        ("keypoints", np.zeros((2, 5, 2))),
        ("keypoints", np.zeros((3, 5, 3))),
        ("keypoints", np.zeros((2, 3))),
        ("corners", np.zeros((2, 4))),
        ("tracker_ids", [1]),
    ],
)
def test_detections_parts_of_another_length_or_shape_are_refused(part, value):
    with pytest.raises(ValueError):
        Detections.of([[0, 0, 1, 1]] * 2, [0.1, 0.2], [0, 0], **{part: value})


@pytest.mark.parametrize("rows", [np.array([4, 1]), np.arange(6) > 2, slice(1, 4), slice(0, 0), np.array([], np.intp)])
def test_select_applies_to_all_parts(rows):
    detections = rich(6)
    chosen = detections.select(rows)
    numbers = np.arange(6)[rows]
    assert np.array_equal(chosen.scores, detections.scores[numbers])
    assert np.array_equal(chosen.keypoints, detections.keypoints[numbers])
    assert np.array_equal(chosen.corners, detections.corners[numbers])
    assert np.array_equal(chosen.tracker_ids, detections.tracker_ids[numbers])
    assert len(chosen.masks) == len(numbers)
    assert all(chosen.masks[i] is detections.masks[n] for i, n in enumerate(numbers))


def test_roboflow_ids_are_new_uuids():
    ids = [p["detection_id"] for p in roboflow(some(50), (), 640, 480)["predictions"]]
    assert len({uuid.UUID(i) for i in ids}) == 50
    assert all(uuid.UUID(i).version == 4 for i in ids)
    assert roboflow(Detections.empty(), (), 1, 1)["predictions"] == []


def test_roboflow_has_masks_corners_keypoints_and_trackers():
    square = encode(np.ones((3, 4), np.bool_), 5, 6, 640, 480)
    keypoints = [[[1.5, 2.5, 0.25], [3.5, 4.5, 0.75]]]
    corners = [[[1, 2], [3, 4], [5, 6], [7, 8]]]
    box = ([[5, 6, 9, 9]], [0.5], [0])
    detections = Detections.of(*box, masks=[square], keypoints=keypoints, corners=corners, tracker_ids=[2**40])
    result = roboflow(detections, ("cat",), 640, 480)
    (prediction,) = result["predictions"]
    box_fields = {"x": 7.0, "y": 7.5, "width": 4.0, "height": 3.0, "confidence": 0.5, "class": "cat", "class_id": 0}
    assert prediction.items() >= box_fields.items()
    assert result["image"] == {"width": 640, "height": 480}
    assert roboflow(Detections.of([[0, 0, 1, 1]], [0.25], [7]), ("cat",), 9, 9)["predictions"][0]["class"] == "7"
    assert sorted((p["x"], p["y"]) for p in prediction["points"]) == [(5, 6), (5, 8), (8, 6), (8, 8)]
    assert prediction["keypoints"] == [
        {"x": 1.5, "y": 2.5, "confidence": 0.25, "class": "0", "class_id": 0},
        {"x": 3.5, "y": 4.5, "confidence": 0.75, "class": "1", "class_id": 1},
    ]
    assert prediction["tracker_id"] == 2**40
    lost = roboflow(Detections.of(*box, tracker_ids=[-1]), (), 640, 480)["predictions"][0]
    assert "tracker_id" not in lost, "it is not tracked"
    assert json.loads(json.dumps(result)) == result
    oriented = roboflow(Detections.of(*box, corners=corners), (), 640, 480)["predictions"][0]["points"]
    assert oriented == [{"x": float(x), "y": float(y)} for x, y in corners[0]]


def test_supervision_reads_all_parts():
    supervision = pytest.importorskip("supervision")
    detections = rich(5, ("keypoints", "tracker_ids"))
    discs = [cv2.circle(np.zeros((480, 640), np.uint8), (90 + 80 * i, 200), 30, 1, -1).astype(bool) for i in range(5)]
    masks = tuple(encode(disc, 0, 0, 640, 480) for disc in discs)
    result = roboflow(msgspec.structs.replace(detections, masks=masks), [f"c{i}" for i in range(80)], 640, 480)
    read = supervision.Detections.from_inference(result)
    np.testing.assert_allclose(read.xyxy, detections.boxes, atol=1e-3)
    assert np.array_equal(read.class_id, detections.class_ids)
    assert list(read.data["class_name"]) == [f"c{i}" for i in detections.class_ids]
    assert np.array_equal(read.tracker_id, detections.tracker_ids)
    assert np.array_equal(read.mask, discs)
    points = supervision.KeyPoints.from_inference(result)
    np.testing.assert_allclose(points.xy, detections.keypoints[..., :2], atol=1e-3)
    confidence = getattr(points, "keypoint_confidence", None)
    np.testing.assert_allclose(points.confidence if confidence is None else confidence, detections.keypoints[..., 2])
    assert np.array_equal(points.class_id, detections.class_ids)


def test_supervision_reads_the_smallest_masks():
    supervision = pytest.importorskip("supervision")
    shapes = [np.ones(shape, np.bool_) for shape in ((1, 1), (1, 2), (2, 1), (2, 2))]
    masks = [encode(shape, 20 + i, 30, 64, 48) for i, shape in enumerate(shapes)]
    detections = Detections.of([[0, 0, 9, 9]] * 4, [0.5] * 4, [0] * 4, masks=masks)
    read = supervision.Detections.from_inference(roboflow(detections, (), 64, 48))
    assert [int(mask.sum()) for mask in read.mask] == [1, 2, 2, 4]


# --- nms


def by_the_book(boxes, scores, class_ids, iou, agnostic):
    """Suppress boxes one pair at a time, in double precision."""
    kept: list[int] = []
    for i in sorted((i for i in range(len(scores)) if scores[i] == scores[i]), key=lambda i: (-scores[i], i)):
        for j in kept:
            width = min(boxes[i][2], boxes[j][2]) - max(boxes[i][0], boxes[j][0])
            height = min(boxes[i][3], boxes[j][3]) - max(boxes[i][1], boxes[j][1])
            shared = max(width, 0) * max(height, 0)
            areas = sum((b[2] - b[0]) * (b[3] - b[1]) for b in (boxes[i], boxes[j]))
            if shared > iou * (areas - shared) and (agnostic or class_ids[i] == class_ids[j]):
                break
        else:
            kept.append(i)
    return kept


BOX = [0, 0, 100, 100]
NEAR = [5, 5, 105, 105]
FAR = [300, 300, 400, 400]
ROW = [[200 * i, 0, 200 * i + 9, 9] for i in range(9)]
NAN = float("nan")


def keep(boxes, scores, class_ids, **more):
    arguments = {"iou": 0.5, "max_detections": 300, **more}
    columns = np.array(boxes, np.float32).reshape(-1, 4), np.array(scores, np.float32), np.array(class_ids, np.int32)
    return nms(*columns, **arguments).tolist()


@pytest.mark.parametrize(
    ("boxes", "scores", "class_ids", "more", "kept"),
    [
        pytest.param([BOX, NEAR, FAR], [0.5, 0.9, 0.3], [0, 0, 0], {}, [1, 2], id="better"),
        pytest.param([BOX, NEAR], [0.5, 0.9], [0, 1], {}, [1, 0], id="classes"),
        pytest.param([BOX, NEAR], [0.5, 0.9], [0, 1], {"class_agnostic": True}, [1], id="agnostic"),
        pytest.param([[1e7 + v for v in BOX]] * 2, [0.5, 0.9], [0, 70000], {}, [1, 0], id="large coordinates"),
        pytest.param([], [], [], {}, [], id="nothing"),
        pytest.param([BOX, FAR], [NAN, 0.4], [0, 0], {}, [1], id="one nan"),
        pytest.param([BOX, FAR], [NAN, NAN], [0, 0], {}, [], id="only nan"),
        pytest.param([BOX] * 3, [0.5] * 3, [0] * 3, {}, [0], id="ties that overlap"),
        pytest.param([FAR, BOX], [0.5, 0.5], [0, 0], {}, [0, 1], id="ties apart"),
        pytest.param([[7, 7, 7, 7]] * 3, [0.3, 0.2, 0.1], [0] * 3, {}, [0, 1, 2], id="empty boxes"),
        pytest.param(ROW, np.arange(9) / 9, [0] * 9, {"max_detections": 2}, [8, 7], id="limit"),
        pytest.param(ROW, np.arange(9) / 9, [0] * 9, {"max_candidates": 3}, [8, 7, 6], id="candidates"),
        pytest.param([BOX, [0, 0, 100, 50]], [0.9, 0.8], [0, 0], {"iou": 0.5}, [0, 1], id="at the threshold"),
        pytest.param([BOX, [0, 0, 100, 50]], [0.9, 0.8], [0, 0], {"iou": 0.49}, [0], id="over the threshold"),
    ],
)
def test_nms_keeps_the_expected_boxes(boxes, scores, class_ids, more, kept):
    assert keep(boxes, scores, class_ids, **more) == kept


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 700), st.integers(1, 4), st.booleans(), st.integers(0, 2**31))
def test_nms_equals_a_loop_over_pairs(n, classes, agnostic, seed):
    rng = np.random.default_rng(seed)
    corner = rng.integers(0, 400, (n, 2))
    boxes = np.concatenate([corner, corner + rng.integers(1, 120, (n, 2))], axis=1)
    scores = np.round(rng.uniform(0, 1, n), 2).astype(np.float32)
    scores[rng.uniform(size=n) < 0.05] = np.nan
    class_ids = rng.integers(0, classes, n)
    expected = by_the_book(boxes.tolist(), scores.tolist(), class_ids.tolist(), 0.45, agnostic)
    assert keep(boxes, scores, class_ids, iou=0.45, max_detections=10**6, class_agnostic=agnostic) == expected


def test_nms_cost_of_many_candidates_without_overlap_is_bounded():
    boxes = [[20 * (i % 100), 20 * (i // 100), 20 * (i % 100) + 9, 20 * (i // 100) + 9] for i in range(10_000)]
    scores = RNG.permutation(10_000) / 10_000
    assert keep(boxes, scores, [0] * 10_000) == np.argsort(-scores)[:300].tolist()
