"""Zones and lines: objects inside, visits and crossings, also on drawn scenes with known positions."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from edged.capture.zones import LineWatch, Presence, Standing, Watch, ZoneWatch, contains, standing
from edged.client.result import Detection, Result, Timings
from edged.config.cameras import Line, Zone
from edged.shapes import CLASSES, Scene

SQUARE = ((0.2, 0.2), (0.8, 0.2), (0.8, 0.8), (0.2, 0.8))
LEVEL = ((0.0, 0.5), (1.0, 0.5))


def result(detections: Iterable[Detection], width: int = 100, height: int = 100) -> Result:
    found = tuple(detections)
    return Result("hall", 1, "m", width, height, found, {}, 1.0, Timings(), "", "", 0, None)


def at(x: float, y: float, label: str = "person", tracker_id: int | None = None) -> Standing:
    return Standing(label, tracker_id, x, y)


def zone(on_seconds: float = 0.0, off_seconds: float = 0.0, classes: tuple[str, ...] = ()) -> ZoneWatch:
    return ZoneWatch("door", Zone(points=SQUARE, on_seconds=on_seconds, off_seconds=off_seconds, classes=classes))


def kinds(watch: ZoneWatch | LineWatch, objects: Iterable[Standing], now: float) -> list[str]:
    return [each.kind for each in watch.update(list(objects), now, 1e9 + now)]


@pytest.mark.parametrize(("rotation", "x", "y"), [(0, 0.3, 0.4), (90, 0.7, 0.4), (180, 0.7, 0.8), (270, 0.3, 0.8)])
def test_standing_of_a_rotated_picture_is_the_middle_of_the_shown_lower_edge(rotation: int, x: float, y: float) -> None:
    """The box is (20, 20) to (40, 40) in a picture of 100x100."""
    box = Detection(20, 20, 40, 40, 0.9, 0, "person")
    (found,) = standing(result([box]), rotation)
    assert (found.x, found.y) == pytest.approx((x, y))


def test_contains_polygon_with_a_notch() -> None:
    corners = np.array([(0, 0), (1, 0), (1, 1), (0.5, 0.5), (0, 1)], float)
    points = np.array([(0.1, 0.5), (0.5, 0.9), (0.9, 0.8), (0.5, 0.4), (-0.1, 0.5), (1.1, 0.5)])
    assert contains(corners, points).tolist() == [True, False, True, True, False, False]
    assert contains(corners, np.empty((0, 2))).tolist() == []


def test_presence_single_frames_neither_begin_nor_end_it() -> None:
    presence = Presence(on_seconds=0.5, off_seconds=2.0)
    seen = [(0.0, True), (0.1, False), (0.4, True), (0.6, True), (1.0, False), (2.5, False), (2.6, True), (4.5, False)]
    states = []
    for now, is_there in seen:
        presence.update(is_there, now)
        states.append(presence.is_on)
    assert states == [False, False, False, True, True, True, True, True]
    assert presence.update(False, 4.7)
    assert not presence.is_on


def test_presence_short_appearances_never_begin_it() -> None:
    presence = Presence(on_seconds=0.5, off_seconds=2.0)
    for now in (0.0, 5.0, 10.0):  # further apart than off_seconds
        assert not presence.update(True, now)
        assert not presence.update(False, now + 1)


def test_presence_at_less_than_one_picture_a_second_begins_and_ends() -> None:
    presence = Presence(on_seconds=15.0, off_seconds=3.0)
    states = []
    for number, is_there in enumerate((True, True, False, True, True, True, False)):
        presence.update(is_there, number * 10.0)
        states.append(presence.is_on)
    assert states == [False, False, False, False, False, True, False]


def test_watch_time_without_frames_does_not_count_as_presence() -> None:
    watch = Watch({"door": Zone(points=SQUARE, on_seconds=10, off_seconds=3)}, {})
    seen = result([Detection(40, 40, 60, 60, 0.9, 0, "person")])
    assert watch.update(seen, 0.0, 1e9) == ()
    assert watch.pass_time(5.0, 1e9) == ()
    assert watch.update(seen, 3600.0, 1e9) == ()
    assert [each.kind for each in watch.update(seen, 3610.0, 1e9)] == ["occupied"]


def test_zone_counts_classes_and_visits() -> None:
    door = zone(classes=("person", "dog"))
    assert kinds(door, [at(0.5, 0.5), at(0.3, 0.3), at(0.5, 0.5, "dog"), at(0.5, 0.5, "cat"), at(0.9, 0.9)], 1.0) == [
        "occupied"
    ]
    assert door.state.counts == {"person": 2, "dog": 1}
    assert (door.state.occupied, door.state.since_unix_s, door.state.visits) == (True, 1e9 + 1, 1)
    assert kinds(door, [at(0.5, 0.5)], 2.0) == []
    assert door.state.counts == {"person": 1, "dog": 0}
    assert kinds(door, [], 3.0) == ["free"]
    assert kinds(door, [at(0.5, 0.5)], 4.0) == ["occupied"]
    assert door.state.visits == 2


def test_zone_count_of_a_missed_object_is_held_for_off_seconds() -> None:
    door = zone(on_seconds=0.5, off_seconds=2.0)
    for now in (0.0, 0.3, 0.6):
        kinds(door, [at(0.5, 0.5), at(0.6, 0.6)], now)
    assert door.state.counts == {"person": 2}
    kinds(door, [at(0.5, 0.5)], 0.9)  # the detector misses one
    assert door.state.counts == {"person": 2}
    kinds(door, [at(0.5, 0.5)], 3.0)
    assert door.state.counts == {"person": 1}


def walk(line: LineWatch, *ys: float, tracker_id: int = 1, x: float = 0.5, begin: float = 0.0) -> list[str]:
    return [
        kind
        for number, y in enumerate(ys)
        for kind in kinds(line, [at(x, y, tracker_id=tracker_id)], begin + number / 10)
    ]


def test_line_counts_upward_as_entered_and_downward_as_left() -> None:
    line = LineWatch("way", Line(points=LEVEL))
    assert walk(line, 0.9, 0.6, 0.4, 0.1) == ["entered"]
    assert walk(line, 0.3, 0.6, begin=1.0) == ["left"]
    assert (line.state.entered, line.state.left) == ({"person": 1}, {"person": 1})


def test_line_object_that_stands_on_it_counts_once() -> None:
    line = LineWatch("way", Line(points=LEVEL))
    assert walk(line, 0.7, 0.505, 0.495, 0.505, 0.498, 0.502, 0.3) == ["entered"]


def test_line_is_crossed_only_between_its_ends() -> None:
    line = LineWatch("way", Line(points=((0.4, 0.5), (0.6, 0.5))))
    assert walk(line, 0.8, 0.2, x=0.7) == []
    assert walk(line, 0.8, 0.2, x=0.5, tracker_id=2) == ["entered"]


def test_line_ignores_objects_without_id_or_of_other_classes() -> None:
    line = LineWatch("way", Line(points=LEVEL, classes=("person",)))
    for y, now in ((0.8, 0.0), (0.2, 0.1)):
        assert kinds(line, [at(0.5, y), at(0.4, y, "dog", 7)], now) == []


def test_line_forgets_objects_that_were_away_for_long() -> None:
    line = LineWatch("way", Line(points=LEVEL))
    walk(line, 0.8)
    assert walk(line, 0.2, begin=1000.0) == []


def test_watch_frees_zones_when_no_frame_comes() -> None:
    watch = Watch({"door": Zone(points=SQUARE, on_seconds=0, off_seconds=3)}, {})
    box = Detection(40, 40, 60, 60, 0.9, 0, "person")
    assert [each.kind for each in watch.update(result([box]), 1.0, 1e9)] == ["occupied"]
    assert watch.pass_time(2.0, 1e9) == ()
    assert [each.kind for each in watch.pass_time(4.1, 1e9)] == ["free"]


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_watch_counts_on_a_drawn_scene_are_exact(seed: int) -> None:
    """The expected counts of line and zone are computed from the scene's true positions."""
    scene, frames = Scene(seed), 400
    points = ((0.0, 0.6), (1.0, 0.6))
    watch = Watch(
        {"left": Zone(points=((0, 0), (0.5, 0), (0.5, 1), (0, 1)), on_seconds=0, off_seconds=0)},
        {"way": Line(points=points)},
    )
    sides: dict[int, int] = {}
    expected = {"entered": 0, "left": 0}
    for index in range(frames):
        _, truths = scene.frame(index)
        boxes = [
            Detection(t.x1, t.y1, t.x2, t.y2, 1.0, t.class_id, CLASSES[t.class_id], tracker_id=number)
            for number, t in enumerate(truths)
        ]
        watch.update(result(boxes, scene.width, scene.height), index / 15, 0.0)
        for number, t in enumerate(truths):
            above = 0.6 - t.y2 / scene.height
            if abs(above) >= 0.01:
                side = 1 if above > 0 else -1
                if sides.get(number, side) != side:
                    expected["entered" if side > 0 else "left"] += 1
                sides[number] = side
        inside = sum((t.x1 + t.x2) / 2 / scene.width < 0.5 and t.y2 <= scene.height for t in truths)
        if not any(t.y2 >= scene.height for t in truths):  # a figure exactly on the border may count or not
            assert sum(watch.zones()["left"].counts.values()) == inside
    state = watch.lines()["way"]
    assert sum(state.entered.values()) == expected["entered"]
    assert sum(state.left.values()) == expected["left"]
    assert expected["entered"] + expected["left"] > 0
