"""Frame rates of a camera, and the rate limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.serving.camera import Limit, Rate


@pytest.mark.parametrize(("offered", "allowed"), [(30, 20), (30, 10), (25, 24), (60, 7), (30, 29), (10, 30), (30, 30)])
def test_limit_admits_the_allowed_rate(offered: int, allowed: int) -> None:
    limit = Limit(allowed)
    admitted = sum(limit.admits(1000 + number / offered) for number in range(60 * offered))
    assert admitted == pytest.approx(60 * min(offered, allowed), rel=0.02)


@given(st.lists(st.floats(0, 1), max_size=200), st.floats(0.5, 50))
def test_limit_never_admits_more_than_allowed(gaps: list[float], allowed: float) -> None:
    limit, now, times = Limit(allowed), 0.0, []
    for gap in gaps:
        now += gap
        if limit.admits(now):
            times.append(now)
    for index, first in enumerate(times):
        for last in range(index + 1, len(times)):
            assert last - index - 1 <= (times[last] - first) * allowed + 1e-6


def test_limit_of_zero_admits_all() -> None:
    assert all(Limit(0).admits(0.0) for _ in range(10))


def test_rate_covers_the_last_seconds_and_falls_without_frames() -> None:
    rate = Rate()
    assert rate.per_second(0.0) == 0.0
    rate.add(100.0)
    assert rate.per_second(100.0) == 0.0
    for number in range(1, 61):
        rate.add(100 + number / 20)
    assert rate.per_second(103.0) == pytest.approx(20, rel=0.03)
    assert rate.per_second(106.0) == pytest.approx(10, rel=0.05)
    assert rate.per_second(120.0) == 0.0
