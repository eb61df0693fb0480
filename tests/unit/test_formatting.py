"""Counts, times and sizes as text, for commands and the page."""

from __future__ import annotations

import pytest

from edged.formatting import many


@pytest.mark.parametrize(
    ("count", "what", "shown"),
    [(0, "frame", "0 frames"), (1, "frame", "1 frame"), (2, "swap", "2 swaps"), (2, "class", "2 classes")],
)
def test_many_agrees_with_the_count(count: int, what: str, shown: str) -> None:
    assert many(count, what) == shown
