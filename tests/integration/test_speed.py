"""A smoke test of a benchmark row, with wide margins; `make bench` measures properly."""

from __future__ import annotations

import pytest

from tests.bench.rows import Bench, tensors

pytestmark = pytest.mark.heavy


def test_tensors_row_identity_model_stays_within_wide_margin_of_empty_call() -> None:
    lines = [line for line in tensors(Bench(rounds=1, seconds=0.3)) if line.figure == "p50 ms"]

    assert len(lines) == 2
    assert all(0 < line.ratio < 50 for line in lines), lines
