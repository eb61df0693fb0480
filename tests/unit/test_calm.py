"""How busy the processors are, and whether that has been little for long enough to be believed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.device.load import Ticks, read
from edged.engines import calm as calm_module
from edged.engines.calm import Calm, was_loaded

# -- what the kernel says -------------------------------------------------------------------------------------------


def stat(tmp_path: Path, text: str) -> Path:
    place = tmp_path / "stat"
    place.write_text(text)
    return place


def test_idle_and_waiting_for_the_disk_are_not_work(tmp_path: Path) -> None:
    place = stat(tmp_path, "cpu  10 20 30 400 500 6 7 8 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
    assert read(place) == Ticks(busy=10 + 20 + 30 + 6 + 7 + 8, total=981)


def test_time_of_guests_is_part_of_what_users_took_and_counts_once(tmp_path: Path) -> None:
    with_guests = read(stat(tmp_path, "cpu  10 20 30 400 500 6 7 8 9 9\n"))
    assert with_guests == read(stat(tmp_path, "cpu  10 20 30 400 500 6 7 8 0 0\n"))


def test_a_kernel_with_fewer_columns_is_understood(tmp_path: Path) -> None:
    assert read(stat(tmp_path, "cpu  10 20 30 400\n")) == Ticks(60, 460)


@pytest.mark.parametrize("text", ["", "cpu\n", "cpu 1 2 3\n", "cpu a b c d\n", "intr 1 2 3 4\n", "\xff\n"])
def test_what_is_no_count_of_ticks_says_nothing(tmp_path: Path, text: str) -> None:
    assert read(stat(tmp_path, text)) == Ticks()


def test_a_box_that_does_not_tell_is_not_busy(tmp_path: Path) -> None:
    assert read(tmp_path / "missing") == Ticks()
    assert Ticks().share_since(Ticks()) == 0


def test_this_box_tells() -> None:
    assert 0 < read().busy <= read().total


def test_the_share_is_of_the_time_between_two_readings() -> None:
    assert Ticks(150, 1200).share_since(Ticks(100, 1000)) == 0.25
    assert Ticks(100, 1000).share_since(Ticks(100, 1000)) == 0


TICKS = st.builds(Ticks, busy=st.integers(0, 1000), total=st.integers(0, 1000))


@given(TICKS, TICKS)
def test_a_share_is_never_below_nothing_or_above_all_even_when_the_counts_jump(one: Ticks, other: Ticks) -> None:
    assert 0 <= other.share_since(one) <= 1


# -- calm -----------------------------------------------------------------------------------------------------------


class Box:
    """Processors that are as busy as a test says, looked at once a second."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calm, self.now, self.ticks, self.looks = Calm(), 1000.0, Ticks(500, 5000), 0
        patch.setattr(calm_module, "read", self._read)

    def _read(self) -> Ticks:
        self.looks += 1
        return self.ticks

    def go_on(self, seconds: int, share: float) -> None:
        for _ in range(seconds):
            self.now += 1
            self.ticks = Ticks(self.ticks.busy + round(share * 200), self.ticks.total + 200)
            self.calm.look(self.now)

    @property
    def is_calm(self) -> bool:
        return self.calm.has_lasted(self.now)


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch) -> Box:
    return Box(monkeypatch)


def test_the_first_look_says_nothing_yet(box: Box) -> None:
    box.calm.look(box.now)
    assert box.calm.busy == 0
    assert not box.is_calm


def test_a_box_is_calm_only_after_it_was_for_a_while(box: Box) -> None:
    box.go_on(5, 0.1)
    assert box.calm.busy == pytest.approx(0.1)
    assert not box.is_calm
    box.go_on(40, 0.1)
    assert box.is_calm


def test_every_burst_of_work_begins_the_wait_anew(box: Box) -> None:
    box.go_on(60, 0.0)
    box.go_on(1, 0.9)
    assert not box.is_calm
    box.go_on(5, 0.0)
    assert not box.is_calm
    box.go_on(40, 0.0)
    assert box.is_calm


def test_a_busy_box_never_becomes_calm(box: Box) -> None:
    box.go_on(600, 0.5)
    assert box.calm.busy == 0.5
    assert not box.is_calm


def test_looking_more_often_than_once_a_second_reads_nothing(box: Box) -> None:
    for _ in range(10):
        box.calm.look(box.now)
        box.now += 0.05
    assert box.looks == 1


@pytest.mark.parametrize(("load", "is_doubted"), [(None, False), (0.0, False), (0.1, False), (0.6, True), (1.0, True)])
def test_figures_are_doubted_when_others_used_much_of_the_box(load: float | None, is_doubted: bool) -> None:
    assert was_loaded(load) is is_doubted
