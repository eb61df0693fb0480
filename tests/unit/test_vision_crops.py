"""Crops of a picture for a second model: which detections get one, and what it shows."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.vision.crops import CropRule, choose
from edged.vision.detections import Detections
from edged.vision.placement import Fit, Region, Roi
from edged.vision.prepare import Preparer
from edged.vision.preprocess import Preprocess
from edged.vision.tilted import TiltedWindow, upright

NAMES = ("plate", "car")


def found(*boxes: tuple[float, float, float, float], scores: list[float] | None = None) -> Detections:
    count = len(boxes)
    return Detections.of(boxes, scores or [1 - 0.1 * n for n in range(count)], [n % 2 for n in range(count)])


def regions(detections: Detections, rule: CropRule | None = None, rotation: int = 0) -> list[Roi]:
    return list(choose(detections, NAMES, rule or CropRule(), 100, 80, rotation).regions)


def test_choose_box_gets_the_smallest_region_of_whole_pixels() -> None:
    assert regions(found((10.2, 20.0, 30.0, 40.7))) == [Roi(Region(10, 20, 20, 21))]


def test_choose_margin_enlarges_each_side_within_the_picture() -> None:
    rule = CropRule(margin=0.5)
    assert regions(found((20, 20, 40, 30), (0, 60, 20, 80)), rule) == [
        Roi(Region(10, 15, 40, 20)),
        Roi(Region(0, 50, 30, 30)),
    ]


def test_choose_region_keeps_the_rotation_of_the_frame() -> None:
    assert regions(found((0, 0, 10, 10)), rotation=270) == [Roi(Region(0, 0, 10, 10), 270)]


def test_choose_best_scores_go_first_and_the_others_are_counted() -> None:
    detections = found(*[(n, 0, n + 5, 5) for n in range(5)], scores=[0.1, 0.9, 0.3, 0.8, 0.2])
    crops = choose(detections, NAMES, CropRule(most=2), 100, 80)
    assert (crops.rows, crops.left_out) == ((1, 3), 3)


def test_choose_other_classes_get_no_crop_and_are_not_counted() -> None:
    crops = choose(found(*[(0, 0, 5, 5)] * 5), NAMES, CropRule(frozenset({"car"})), 100, 80)
    assert (crops.rows, crops.left_out) == ((1, 3), 0)


def test_choose_class_without_a_name_is_its_number() -> None:
    detections = Detections.of([(0, 0, 5, 5)], [0.5], [7])
    assert choose(detections, NAMES, CropRule(frozenset({"7"})), 100, 80).rows == (0,)


@pytest.mark.parametrize(
    "box",
    [
        (float("nan"), 0, 5, 5),
        (0, 0, float("inf"), 5),
        (200, 0, 300, 5),  # outside
        (-9, -9, -1, -1),
        (5, 5, 5, 5),  # without an area
        (9, 9, 3, 3),
    ],
)
def test_choose_box_without_an_area_in_the_picture_is_left_out(box: tuple[float, float, float, float]) -> None:
    crops = choose(found(box, (0, 0, 5, 5)), NAMES, CropRule(), 100, 80)
    assert (crops.rows, crops.left_out) == ((1,), 1)


@pytest.mark.parametrize("size", [(0, 5), (5, -1), (1 << 20, 1 << 20)])
def test_choose_impossible_size_of_the_picture_raises(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="picture of"):
        choose(found((0, 0, 5, 5)), NAMES, CropRule(), *size)


FLOATS = st.floats(width=32)


@given(
    st.lists(st.tuples(FLOATS, FLOATS, FLOATS, FLOATS, FLOATS), max_size=8),
    st.lists(FLOATS, min_size=64, max_size=64),
    st.floats(0, 2),
    st.booleans(),
    st.integers(1, 64),
    st.sampled_from([0, 90, 180, 270]),
)
def test_choose_any_detections_give_regions_inside_the_picture(
    rows: list[tuple[float, float, float, float, float]],
    corners: list[float],
    margin: float,
    is_upright: bool,
    most: int,
    rotation: int,
) -> None:
    """A hostile model may have taken over the host that found the boxes."""
    shapes = np.array(corners[: 8 * len(rows)], np.float32).reshape(-1, 4, 2)
    scores = [row[4] for row in rows]
    detections = Detections.of([row[:4] for row in rows], scores, [0] * len(rows), corners=shapes)
    crops = choose(detections, NAMES, CropRule(most=most, margin=margin, is_upright=is_upright), 100, 80, rotation)
    assert len(crops.rows) + crops.left_out == len(rows)
    for roi in crops.regions:
        if roi.corners is not None:
            window = TiltedWindow.of(roi.corners, 100, 80)
            assert 1 <= window.width * window.height <= 3 * 100 * 80
            continue
        assert roi.region is not None
        assert min(roi.region.width, roi.region.height) >= 1
        assert roi.region.x + roi.region.width <= 100
        assert roi.region.y + roi.region.height <= 80


# -- tilted crops ------------------------------------------------------------------------------------------------------

STRAIGHT = np.array([(20, 10), (60, 10), (60, 40), (20, 40)], np.float32)
PICTURE = np.random.default_rng(0).integers(0, 255, (80, 100, 3), np.uint8)
TURNS = {90: cv2.ROTATE_90_CLOCKWISE, 180: cv2.ROTATE_180, 270: cv2.ROTATE_90_COUNTERCLOCKWISE}


def preparer(fit: Fit = Fit.STRETCH, width: int = 40, height: int = 30, **more: object) -> Preparer:
    return Preparer(Preprocess(width=width, height=height, fit=fit, datatype="UINT8", layout="NHWC", **more))  # type: ignore[arg-type]


def shown(roi: Roi | None, picture: np.ndarray = PICTURE, fit: Fit = Fit.STRETCH, **more: object) -> np.ndarray:
    made = preparer(fit, **more)
    out = np.zeros(made.preprocess.shape, np.uint8)
    made.prepare(picture, out, roi)
    return out


def tilted(degrees: float, centre: tuple[float, float] = (50, 40), size: tuple[float, float] = (40, 20)) -> np.ndarray:
    """Return the corners of a rectangle that is turned clockwise."""
    angle = np.radians(degrees)
    turn = np.array(((np.cos(angle), np.sin(angle)), (-np.sin(angle), np.cos(angle))))
    half = np.array(size) / 2
    return (np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)]) * half @ turn + centre).astype(np.float32)


def test_upright_crop_of_an_untilted_box_is_its_region() -> None:
    corners = Roi(corners=upright(STRAIGHT))
    assert np.array_equal(shown(corners), shown(Roi(Region(20, 10, 40, 30))))


@pytest.mark.parametrize("degrees", [90, 180, 270])
def test_upright_crop_of_a_rotated_frame_is_rotated_as_the_frame(degrees: int) -> None:
    corners = Roi(corners=upright(STRAIGHT, degrees))
    width, height = (30, 40) if degrees != 180 else (40, 30)
    expected = cv2.rotate(PICTURE[10:40, 20:60], TURNS[degrees])[:, :, ::-1]  # RGB
    assert np.array_equal(shown(corners, width=width, height=height), expected)


@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize("is_reversed", [False, True])
def test_upright_order_of_the_corners_does_not_matter(first: int, is_reversed: bool) -> None:
    corners = np.roll(tilted(20), first, axis=0)[:: -1 if is_reversed else 1]
    assert upright(corners) == upright(tilted(20))


@pytest.mark.parametrize("degrees", [-40, -10, 0, 30, 44])
def test_upright_crop_is_turned_by_at_most_45_degrees(degrees: float) -> None:
    (left, top), (right, beside), *_ = upright(tilted(degrees))
    assert np.degrees(np.arctan2(beside - top, right - left)) == pytest.approx(degrees, abs=0.01)


def test_upright_crop_of_a_tilted_box_shows_its_contents_upright() -> None:
    picture = np.zeros((80, 100, 3), np.uint8)
    half = tilted(30)
    cv2.fillPoly(picture, [np.round(half).astype(np.int32)], (255, 255, 255))
    middle = (half[0] + half[1]) / 2, (half[3] + half[2]) / 2
    right = np.array([middle[0], half[1], half[2], middle[1]])
    cv2.fillPoly(picture, [np.round(right).astype(np.int32)], (0, 0, 255))
    seen = shown(Roi(corners=upright(half)), picture, width=40, height=20)
    assert seen[3:-3, 3:17].mean() > 250  # white on the left
    assert seen[3:-3, 23:-3, 0].mean() > 250  # red on the right, in RGB
    assert seen[3:-3, 23:-3, 1:].mean() < 5


@pytest.mark.parametrize("fit", list(Fit))
def test_tilted_placement_maps_points_back_to_the_picture(fit: Fit) -> None:
    made = preparer(fit, 64, 64)
    corners = upright(tilted(30))
    placement = made.prepare(PICTURE, np.zeros(made.preprocess.shape, np.uint8), Roi(corners=corners))
    points = np.array([(10, 20), (32, 32), (50, 40)], np.float32)
    there = placement.points_to_original(points)
    matrix = placement.to_input()
    assert there @ matrix[:, :2].T + matrix[:, 2] == pytest.approx(points, abs=1e-3)
    middle = (32, 16 if fit is Fit.TOP_LEFT else 32)
    assert placement.points_to_original(np.array([middle], np.float32))[0] == pytest.approx((50, 40), abs=1.0)


def test_tilted_placement_gives_boxes_that_contain_what_was_found() -> None:
    made = preparer(Fit.STRETCH, 40, 20)
    corners = tilted(30)
    placement = made.prepare(PICTURE, np.zeros(made.preprocess.shape, np.uint8), Roi(corners=upright(corners)))
    (box,) = placement.to_original(np.array([(0, 0, 40, 20)], np.float32))
    assert box == pytest.approx(np.concatenate((corners.min(axis=0), corners.max(axis=0))), abs=0.01)
    (empty,) = placement.to_original(np.array([(9, 9, 3, 3)], np.float32))
    assert empty[0] == empty[2]


def test_choose_upright_box_without_corners_is_the_box() -> None:
    assert regions(found((0, 0, 10, 10)), CropRule(is_upright=True)) == [Roi(Region(0, 0, 10, 10))]


def test_choose_upright_margin_enlarges_the_rectangle_around_its_centre() -> None:
    detections = Detections.of([(20, 10, 60, 40)], [1], [0], corners=STRAIGHT[None])
    (roi,) = regions(detections, CropRule(is_upright=True, margin=0.1))
    assert roi.corners is not None
    assert np.array(roi.corners) == pytest.approx(np.array([(16, 7), (64, 7), (64, 43), (16, 43)]))


@pytest.mark.parametrize(
    "corners",
    [
        np.full((4, 2), np.nan),
        STRAIGHT * 1e6,
        STRAIGHT + 1000,
        np.repeat(STRAIGHT[:1], 4, axis=0),  # without an area
    ],
)
def test_choose_unusable_corners_fall_back_to_the_box(corners: np.ndarray) -> None:
    detections = Detections.of([(20, 10, 60, 40)], [1], [0], corners=corners[None])
    assert regions(detections, CropRule(is_upright=True)) == [Roi(Region(20, 10, 40, 30))]
