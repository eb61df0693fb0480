"""The batch check: whether a model's rows are independent, found by comparing a batch with its single rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from edged.errors import EngineUnusable
from edged.jobs.batch_check import batch_gain
from edged.tensors import Array

INPUTS = {"x": np.arange(200, dtype=np.float32).reshape(2, 100)}


class Computed:
    """A session that computes a function. Each call takes 1 ms plus `row_ms` for each row."""

    def __init__(self, function: Callable[[Array], Array], row_ms: float = 0.0) -> None:
        self._function, self._row_ms = function, row_ms

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        time.sleep((1.0 + self._row_ms * len(inputs["x"])) / 1e3)
        return {"y": self._function(inputs["x"])}

    def close(self) -> None:
        pass


def only_one(x: Array) -> Array:
    if len(x) > 1:
        raise EngineUnusable("it takes one row")
    return x


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 2,
        lambda x: x.mean(axis=1, keepdims=True),
        lambda x: x.astype(np.float32) @ np.ones((100, 3), np.float32),
        lambda x: x.argmax(axis=1),
    ],
    ids=["each element", "over a row", "a product", "integers"],
)
def test_batch_gain_of_independent_rows_is_above_one(function: Callable[[Array], Array]) -> None:
    assert batch_gain(Computed(function), INPUTS) > 1.5


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x - x.mean(axis=0, keepdims=True),
        lambda x: np.exp(x - x.max()) / np.exp(x - x.max()).sum(),
        lambda x: x[::-1],
        lambda x: x.sum(axis=0, keepdims=True),
        lambda x: x.reshape(-1),
        lambda x: np.float32(x.sum()),
        lambda x: np.full((len(x), 2), np.nan, np.float32),
        lambda x: np.ones((len(x), 2), np.float32),
        lambda x: x + np.float32(len(x) > 1),
        only_one,
    ],
    ids=[
        "mean over the batch",
        "softmax over the batch",
        "reversed",
        "summed up",
        "without rows",
        "a number",
        "not finite",
        "all the same",
        "more for a batch",
        "one row only",
    ],
)
def test_batch_gain_of_rows_that_are_not_proven_independent_is_zero(function: Callable[[Array], Array]) -> None:
    assert batch_gain(Computed(function), INPUTS) == 0.0


def test_batch_gain_follows_the_time_of_a_row() -> None:
    """If a row takes as long in a batch as alone, batching gains little."""
    cheap, costly = (batch_gain(Computed(lambda x: x * 2, row_ms), INPUTS) for row_ms in (0.0, 10.0))
    assert costly < 1.25 < cheap
