"""The load of the processors, and when it counts as low."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.device.load import LoadMonitor, Ticks, read, was_loaded

WHOLE = Ticks(busy=10 + 20 + 30 + 6 + 7 + 8, total=981)  # without idle and iowait


@pytest.mark.parametrize(
    ("text", "ticks"),
    [
        ("cpu  10 20 30 400 500 6 7 8 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n", WHOLE),
        ("cpu  10 20 30 400 500 6 7 8 9 9\n", WHOLE),  # guest time is part of user time
        ("cpu  10 20 30 400\n", Ticks(60, 460)),
        *((text, Ticks()) for text in ("", "cpu\n", "cpu 1 2 3\n", "cpu a b c d\n", "intr 1 2 3 4\n", "\xff\n")),
    ],
)
def test_read_ticks_returns_the_sums_of_the_first_line(tmp_path: Path, text: str, ticks: Ticks) -> None:
    (tmp_path / "stat").write_text(text)
    assert read(tmp_path / "stat") == ticks


def test_read_missing_file_returns_no_ticks(tmp_path: Path) -> None:
    assert read(tmp_path / "missing") == Ticks()
    assert Ticks().share_since(Ticks()) == 0


def test_read_on_this_box_returns_ticks() -> None:
    assert 0 < read().busy <= read().total


def test_share_since_covers_the_time_between_readings() -> None:
    assert Ticks(150, 1200).share_since(Ticks(100, 1000)) == 0.25
    assert Ticks(100, 1000).share_since(Ticks(100, 1000)) == 0


TICKS = st.builds(Ticks, busy=st.integers(0, 1000), total=st.integers(0, 1000))


@given(TICKS, TICKS)
def test_share_since_counts_that_jump_is_from_0_to_1(one: Ticks, other: Ticks) -> None:
    assert 0 <= other.share_since(one) <= 1


class Box:
    """Processors with a load that the test sets, sampled once a second."""

    def __init__(self) -> None:
        self.load, self.now, self.ticks, self.looks = LoadMonitor(self._read), 1000.0, Ticks(500, 5000), 0

    def _read(self) -> Ticks:
        self.looks += 1
        return self.ticks

    def go_on(self, seconds: int, share: float) -> None:
        for _ in range(seconds):
            self.now += 1
            self.ticks = Ticks(self.ticks.busy + round(share * 200), self.ticks.total + 200)
            self.load.sample(self.now)

    @property
    def is_low(self) -> bool:
        return self.load.is_low(self.now)


@pytest.fixture
def box() -> Box:
    return Box()


def test_load_first_sample_is_unknown(box: Box) -> None:
    box.load.sample(box.now)
    assert box.load.busy == 0
    assert not box.is_low


def test_load_low_for_a_while_is_low(box: Box) -> None:
    box.go_on(5, 0.1)
    assert box.load.busy == pytest.approx(0.1)
    assert not box.is_low
    box.go_on(40, 0.1)
    assert box.is_low


def test_load_burst_restarts_the_wait(box: Box) -> None:
    box.go_on(60, 0.0)
    box.go_on(1, 0.9)
    assert not box.is_low
    box.go_on(5, 0.0)
    assert not box.is_low
    box.go_on(40, 0.0)
    assert box.is_low


def test_load_busy_box_is_never_low(box: Box) -> None:
    box.go_on(600, 0.5)
    assert box.load.busy == 0.5
    assert not box.is_low


def test_sample_within_a_second_reads_nothing(box: Box) -> None:
    for _ in range(10):
        box.load.sample(box.now)
        box.now += 0.05
    assert box.looks == 1


@pytest.mark.parametrize(("load", "is_doubted"), [(None, False), (0.0, False), (0.1, False), (0.6, True), (1.0, True)])
def test_was_loaded_is_true_above_the_limit(load: float | None, is_doubted: bool) -> None:
    assert was_loaded(load) is is_doubted
