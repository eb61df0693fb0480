"""Figures of a soak: steady growth is found, and fluctuations are ignored."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from tests.soak.figures import Figures
from tests.soak.verdict import FEWEST, SLACK, Stretch, growths, row

_CALM = Figures(120, 60, 16, 4, 119, 17, 8, 0, 15)


def rounds(name: str, *values: int) -> list[Figures]:
    return [msgspec.structs.replace(_CALM, **{name: value}) for value in values]


@pytest.mark.parametrize("name", SLACK)
def test_growths_finds_a_leak_in_every_figure(name: str) -> None:
    start, step = getattr(_CALM, name), SLACK[name] + 1
    found = growths(rounds(name, *(start + step * number for number in range(8))))
    assert len(found) == 1
    assert found[0].startswith(f"{name} grew from {start + step} to {start + 6 * step}")


def test_growths_slow_leak_is_found_in_many_rounds() -> None:
    assert growths(rounds("daemon_fds", *(60 + number // 4 for number in range(40))))
    assert growths(rounds("daemon_mb", *(120 + number // 2 for number in range(90))))


@pytest.mark.parametrize(
    "values", [(60, 62, 60, 63, 60, 64, 61, 70), (90, 60, 60, 60, 60, 60), (60, 62, 62, 62, 62, 62)]
)
def test_growths_ignores_peaks_and_single_steps(values: tuple[int, ...]) -> None:
    assert growths(rounds("daemon_fds", *values)) == []


@pytest.mark.parametrize("name", ["daemon_mb", "host_mb"])
def test_growths_ignores_one_step_of_memory(name: str) -> None:
    step = [91, 91, 96, 113, 110, 113, 115, 111]
    assert growths(rounds(name, *(step[0] + (each - step[0]) * SLACK[name] // 12 for each in step))) == []


@pytest.mark.parametrize("noise", [(0, 0), (0, 3), (3, 0)])
def test_growths_leak_just_above_the_slack_is_found_in_eight_rounds(noise: tuple[int, int]) -> None:
    """Eight rounds with 4 MiB more in each: 20 MiB between the first two and the last two."""
    assert growths(rounds("daemon_mb", *(120 + 4 * number + noise[number % 2] for number in range(8))))


def test_growths_too_few_rounds_are_reported() -> None:
    assert growths([_CALM] * (FEWEST - 1))
    assert growths([_CALM] * FEWEST) == []


@pytest.mark.parametrize("seconds", [120, 600, 3600, 86400])
def test_stretch_has_time_for_enough_rounds(seconds: float) -> None:
    stretch = Stretch.of(seconds)
    assert 10 <= stretch.round <= 120
    assert (seconds - stretch.warming) / stretch.round > FEWEST


def test_figures_count_the_process_and_its_folders(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "file").write_text("x")
    before = Figures.of(os.getpid(), tmp_path)
    read, write = os.pipe()
    try:
        after = Figures.of(os.getpid(), tmp_path)
    finally:
        os.close(read)
        os.close(write)
    assert after.daemon_fds == before.daemon_fds + 2
    assert after.daemon_mb > 10
    assert after.files == 1
    assert str(after.daemon_mb) in row("1.0", after)
