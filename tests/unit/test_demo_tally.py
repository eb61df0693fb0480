"""The demonstration's account: exact whatever comes back, and figures that mean what they say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.demo.report import CameraCounts, FrameCounts, percentile
from edged.shapes import Prediction, Truth

_RESULTS = st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=40)
_STREAMS = st.lists(st.tuples(_RESULTS, st.integers(0, 9)), max_size=4)
_SQUARE = Truth(1, 10, 10, 50, 50)


def _play(camera: CameraCounts, streams: list[tuple[list[tuple[bool, int]], int]]) -> tuple[int, int]:
    """Streams one after the other: results (fine or an error, frames skipped before it), then frames that are lost.
    Returns how many were sent, and how many of them were lost."""
    total = all_lost = 0
    for results, lost in streams:
        for fine, skipped in results:
            if fine:
                camera.on_answer(5.0, skipped)
            else:
                camera.on_failure(skipped)
        sent = sum(1 + skipped for _, skipped in results) + lost
        assert camera.on_closed(sent) == lost
        total, all_lost = total + sent, all_lost + lost
    return total, all_lost


@given(_STREAMS)
def test_every_frame_sent_is_answered_skipped_or_failed(streams: list[tuple[list[tuple[bool, int]], int]]) -> None:
    camera = CameraCounts("cam1")
    sent, lost = _play(camera, streams)
    assert camera.sent == sent == camera.answered + camera.skipped + camera.failed
    answers = [fine for results, _ in streams for fine, _ in results]
    assert (camera.answered, camera.failed) == (sum(answers), len(answers) - sum(answers) + lost)


@given(st.lists(_STREAMS, min_size=1, max_size=4))
def test_the_total_is_the_sum_of_the_cameras(
    played: list[list[tuple[list[tuple[bool, int]], int]]],
) -> None:
    counts = FrameCounts([f"cam{n}" for n in range(len(played))], judged=False)
    sent = sum(_play(camera, streams)[0] for camera, streams in zip(counts.cameras, played, strict=True))
    assert counts.sent == sent == counts.answered + counts.skipped + counts.failed


def test_more_answers_than_frames_are_not_hidden() -> None:
    camera = CameraCounts("cam1")
    camera.on_answer(1.0, 3)
    assert camera.on_closed(2) == 0
    assert camera.sent != camera.answered + camera.skipped + camera.failed


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 1))
def test_a_percentile_is_the_smallest_value_that_covers_its_share(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found is not None
    assert found in values
    assert sum(v <= found for v in values) >= share * len(values) - 1e-9
    assert sum(v < found for v in values) <= share * len(values)


def test_percentiles_of_known_values() -> None:
    values = [float(v) for v in range(100, 0, -1)]
    assert [percentile(values, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1, 50, 99, 100]
    assert percentile([], 0.5) is None


def test_rate_and_age_are_those_of_the_last_seconds() -> None:
    now = 100.0
    camera = CameraCounts("cam1", clock=lambda: now)
    assert camera.lately() == (0.0, None)
    for age in (10.0, 30.0):
        camera.on_answer(age, 0)
    assert camera.lately() == (1.0, 20.0)
    now += 1.0
    camera.on_answer(50.0, 0)
    now += 1.5
    assert camera.lately() == (0.5, 50.0)


def test_detections_are_compared_with_the_truth_from_the_score_on() -> None:
    counts = FrameCounts(["cam1"], judged=True)
    assert (counts.precision, counts.recall) == (None, None)  # nothing was answered: nothing can be said
    right, wrong = Prediction(1, 0.9, 11, 10, 50, 50), Prediction(1, 0.4, 60, 60, 90, 90)
    weak = Prediction(1, 0.39, 60, 60, 90, 90)
    counts.ages.append(1.0)
    counts.judge([right, wrong, weak], [_SQUARE])
    counts.judge([], [_SQUARE])
    assert (counts.precision, counts.recall) == (0.5, 0.5)


@pytest.mark.parametrize("judged", [True, False])
def test_without_a_truth_there_is_no_precision(judged: bool) -> None:
    counts = FrameCounts(["cam1"], judged=judged)
    counts.ages.append(1.0)
    counts.judge([], [_SQUARE])
    assert (counts.recall is None) is not judged
