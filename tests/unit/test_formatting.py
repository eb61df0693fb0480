"""Counts, times and sizes as text, for commands and the page."""

from __future__ import annotations

import pytest

from edged.formatting import many, size


@pytest.mark.parametrize(
    ("count", "what", "shown"),
    [(0, "frame", "0 frames"), (1, "frame", "1 frame"), (2, "swap", "2 swaps"), (2, "class", "2 classes")],
)
def test_many_agrees_with_the_count(count: int, what: str, shown: str) -> None:
    assert many(count, what) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (1, "1 byte"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_960, "1.0 MB"),
        (2_000_000_000_000, "2000.0 GB"),
    ],
)
def test_size_has_the_unit_that_fits(count: int, shown: str) -> None:
    assert size(count) == shown
