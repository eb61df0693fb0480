"""Ids of moving figures with a known truth, at the frame rates of cameras."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import pytest

from edged.vision.detections import Detections
from tests.moving import Motion, Score, Seen, Sight, crossing, drawn, watch

pytest.importorskip("trackers", reason="the library of edged[tracking] is not installed")
from edged.tracker.tracks import MOST, ByteTracker, Clock, margin

PERFECT = Sight()
POOR = Sight(noise=0.03, missed=0.1, unsure=0.15, false_alarms=0.5)


def follow(frames: Iterable[Seen], tracker: ByteTracker | None = None) -> Score:
    tracker, score = tracker or ByteTracker(), Score()
    for seen in frames:
        ids = ids_of(tracker, seen.found, seen.captured)
        assert len({i for i in ids if i > 0}) == sum(i > 0 for i in ids)  # one object, one id
        score.add(seen, ids)
    return score


def ids_of(tracker: ByteTracker, found: Detections, captured: float) -> list[int]:
    ids = tracker.update(found.boxes, found.scores, found.class_ids, captured)
    assert ids.dtype == np.int64
    return ids.tolist()


def scores(scene: Callable[[int], Motion], step: int, length: int = 300, sight: Sight = PERFECT) -> list[Score]:
    return [follow(watch(scene(seed), range(0, length, step), sight, seed)) for seed in range(4)]


def mean(found: list[Score]) -> float:
    return sum(score.idf1 for score in found) / len(found)


@pytest.mark.parametrize("step", [1, 3, 6])
def test_update_figures_that_do_not_cross_are_never_mixed_up(step):
    for score in scores(drawn, step, 300):
        assert score.switches == 0
        assert score.given == set(range(1, 7))  # as many ids as objects, from 1
        assert score.idf1 > 0.95


@pytest.mark.parametrize(("step", "bound"), [(1, 0.98), (3, 0.98), (6, 0.97)])
def test_update_crossing_figures_keep_their_ids_at_5_fps_and_more(step, bound):
    assert mean(scores(crossing, step)) >= bound


def test_update_poor_detections_change_few_ids():
    assert mean(scores(crossing, 2, 600, POOR)) > 0.75
    assert mean(scores(drawn, 3, 600, POOR)) > 0.82


def test_update_at_2_fps_follows_most_figures():
    assert mean(scores(crossing, 15, 900)) > 0.7


def test_update_at_a_changing_rate_changes_few_ids():
    found = []
    for seed in range(4):
        steps = np.random.default_rng(seed).integers(1, 9, 100).cumsum().tolist()
        found.append(follow(watch(crossing(seed), steps, Sight(noise=0.02, missed=0.05), seed)))
    assert mean(found) > 0.87


def test_update_uses_the_time_between_frames():
    steps = [np.random.default_rng(seed).integers(1, 12, 80).cumsum().tolist() for seed in range(4)]
    with_times = [follow(watch(crossing(seed), steps[seed])) for seed in range(4)]
    timeless = [[replace(seen, captured=0.0) for seen in watch(crossing(seed), steps[seed])] for seed in range(4)]
    without = [follow(frames) for frames in timeless]
    assert mean(with_times) > mean(without) + 0.2


def test_ids_continue_those_of_an_earlier_tracker():
    tracker = ByteTracker(after=40)
    score = follow(watch(drawn(1), range(20)), tracker)
    assert score.given == set(range(41, 47))
    assert tracker.last == 46


def test_ids_are_never_repeated():
    tracker = ByteTracker()
    first = follow(watch(drawn(1), range(20)), tracker).given
    second = follow(watch(drawn(2), range(3000, 3020)), tracker).given  # other objects, much later
    assert not first & second
    assert tracker.last == max(second)


BOX = [100.0, 100.0, 200.0, 200.0]


def test_ids_come_with_the_second_frame_in_the_order_of_the_rows():
    tracker = ByteTracker()
    found = Detections.of([BOX, [300, 100, 400, 200], [500, 100, 600, 200]], [0.9, 0.5, 0.3], [0, 0, 0])
    assert ids_of(tracker, found, 0.0) == [-1, -1, -1]
    first = ids_of(tracker, found, 0.1)
    assert sorted(first) == [-1, 1, 2]
    assert first[2] == -1  # its score is too low to begin a track
    assert ids_of(tracker, found.select(np.array([2, 1, 0])), 0.2) == first[::-1]


def test_ids_detection_with_low_score_continues_a_track():
    tracker = ByteTracker()
    for moment, score in enumerate((0.9, 0.9, 0.2)):
        ids = ids_of(tracker, Detections.of([BOX], [score], [0]), moment / 10)
    assert ids == [1]


def test_ids_of_classes_in_one_place_are_never_mixed_up():
    tracker = ByteTracker()
    both = Detections.of([BOX, BOX], [0.9, 0.8], [3, 7])
    seen = [ids_of(tracker, both, moment / 10) for moment in range(3)]
    assert sorted(seen[1]) == [1, 2]
    assert seen[2] == seen[1]
    only = Detections.of([BOX], [0.9], [7])
    assert ids_of(tracker, only, 0.3) == [seen[1][1]]
    other = Detections.of([BOX], [0.9], [4])  # the same place, another class: another object
    ids_of(tracker, other, 0.4)
    assert ids_of(tracker, other, 0.5) == [3]


def test_ids_of_classes_at_the_edges_of_a_large_picture_are_never_mixed_up():
    tracker = ByteTracker()
    edges = Detections.of([[0, 0, 9000, 9000], [60000, 0, 65535, 9000]], [0.9, 0.9], [1, 0])
    assert sorted([ids_of(tracker, edges, moment / 2) for moment in range(2)][1]) == [1, 2]
    assert ids_of(tracker, edges.select(np.array([1, 0])), 1.0) == ids_of(tracker, edges, 1.5)[::-1]


def test_ids_invalid_boxes_have_none():
    tracker = ByteTracker()
    odd = [[math.nan] * 4, [0, 0, math.inf, 10], [50, 50, 50, 90], [90, 90, 10, 10], [-3e38, 0, 3e38, 10], BOX]
    found = Detections(np.array(odd, np.float32), np.full(6, 0.9, np.float32), np.zeros(6, np.int32))
    for moment in range(3):
        ids = ids_of(tracker, found, moment / 10)
    assert ids == [-1, -1, -1, -1, -1, 1]


@pytest.mark.parametrize(("back", "expected"), [(1.3, [1]), (30.0, [2])], ids=["short", "long"])
def test_ids_of_an_object_that_returns_depend_on_its_absence(back, expected):
    tracker, found = ByteTracker(), Detections.of([BOX], [0.9], [0])
    for moment in (0.0, 0.1):
        ids_of(tracker, found, moment)
    for moment in range(2, 12):
        assert ids_of(tracker, Detections.empty(), moment / 10) == []
    for moment in (back, back + 0.1):
        ids = ids_of(tracker, found, moment)
    assert ids == expected


def test_ids_of_too_many_objects_are_limited():
    left = np.arange(MOST + 50, dtype=np.float32) * 40
    boxes = np.stack([left % 4000, left // 4000 * 40, left % 4000 + 30, left // 4000 * 40 + 30], axis=1)
    found = Detections.of(boxes, np.full(len(boxes), 0.9), np.zeros(len(boxes)))
    tracker = ByteTracker()
    for moment in range(2):
        ids = ids_of(tracker, found, moment / 10)
    assert set(ids[:MOST]) == set(range(1, MOST + 1))
    assert set(ids[MOST:]) == {-1}


def test_clock_only_advances():
    clock, times = Clock(), (5.0, 5.1, 5.1, 4.0, 4.2, math.nan, 4.4, 4.5, math.inf, 1e12, 1e12 + 0.5)
    moments = [clock.now]
    for captured in times:
        assert clock.advance(captured) > 0
        moments.append(clock.now)
    assert all(0 < b - a <= 60 for a, b in itertools.pairwise(moments))
    assert clock.advance(1e12 + 0.75) == pytest.approx(0.25)


@pytest.mark.parametrize("times", [[0.0] * 30, [-moment / 10 for moment in range(30)], [math.nan] * 30])
def test_update_with_useless_capture_times_keeps_ids(times):
    seen = list(watch(drawn(3), range(30)))
    score = follow(replace(s, captured=t) for t, s in zip(times, seen, strict=True))
    assert score.switches == 0
    assert score.given == set(range(1, 7))


def test_margin_grows_with_the_gap():
    assert margin(1 / 30) == margin(0.1) == 0
    assert 0 < margin(0.15) < margin(0.2) < margin(0.3) <= margin(0.5) == margin(60.0) == 1
