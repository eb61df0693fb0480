"""The figures of a demonstration: frames, rates and ages of its cameras, precision and recall."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.client.requests import FrameCounts as StreamCounts
from edged.demo.report import CameraCounts, FrameCounts, Totals, percentile
from edged.shapes import Prediction, Truth

_SQUARE = Truth(1, 10, 10, 50, 50)


def stream(sent: int, answered: int, skipped: int = 0, failed: int = 0) -> StreamCounts:
    counts = StreamCounts()
    counts.sent, counts.answered, counts.skipped, counts.failed = sent, answered, skipped, failed
    return counts


def test_totals_are_sums_over_streams_and_cameras() -> None:
    counts = FrameCounts(["cam1", "cam2"], judged=False)
    counts.cameras[0].streams += [stream(9, 4, 3, 1), stream(5, 5)]
    counts.cameras[1].streams += [stream(2, 2)]
    counts.cameras[0].streams[0].on_lost()  # a frame without an answer
    assert counts.cameras[0].totals() == Totals(14, 9, 3, 2)
    assert counts.totals() == Totals(16, 11, 3, 2)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 1))
def test_percentile_is_the_smallest_value_that_covers_its_share(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found is not None
    assert found in values
    assert sum(v <= found for v in values) >= share * len(values) - 1e-9
    assert sum(v < found for v in values) <= share * len(values)


def test_percentile_without_values_returns_none() -> None:
    assert percentile([], 0.5) is None


def test_lately_covers_the_last_seconds() -> None:
    now = 100.0
    camera = CameraCounts("cam1", clock=lambda: now)
    assert camera.lately() == (0.0, None)
    for age in (10.0, 30.0):
        camera.on_answer(age)
    assert camera.lately() == (1.0, 20.0)
    now += 1.0
    camera.on_answer(50.0)
    now += 1.5
    assert camera.lately() == (0.5, 50.0)


@pytest.mark.parametrize("judged", [True, False])
def test_judge_compares_detections_from_the_score_on(judged: bool) -> None:
    counts = FrameCounts(["cam1"], judged=judged)
    assert (counts.precision, counts.recall) == (None, None)  # nothing was answered
    right, wrong = Prediction(1, 0.9, 11, 10, 50, 50), Prediction(1, 0.4, 60, 60, 90, 90)
    weak = Prediction(1, 0.39, 60, 60, 90, 90)
    counts.ages.append(1.0)
    counts.judge([right, wrong, weak], [_SQUARE])
    counts.judge([], [_SQUARE])
    assert (counts.precision, counts.recall) == ((0.5, 0.5) if judged else (None, None))
