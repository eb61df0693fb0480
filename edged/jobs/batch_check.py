"""Checks whether a model's rows are independent, so that requests can be batched, and how much faster a batch is."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

import numpy as np

from edged.backends.contract import Session
from edged.errors import EngineUnusable, InvalidInput
from edged.tensors import Array

_ROWS = 4
# Tolerances, because sums of a batch have another order: a share of each value, and a share of the largest value.
_RELATIVE, _ABSOLUTE = 1e-3, 1e-5
_SECONDS = 1.0  # if the four single requests take longer, the measurement is not repeated
_RUNS = 5

Tensors = Mapping[str, Array]


def batch_gain(session: Session, inputs: Tensors) -> float:
    """Return how many times faster a batch of four rows is than four single requests; 0 if rows are not independent.

    `inputs` maps the names of inputs to the arrays of a request that the session has answered. The first dimension is
    tried as the batch dimension, and only the first row of each array is used. Rows are independent if the rows of the
    batch's answer equal the answers to single requests within rounding.
    """
    rows = [_row(inputs, number) for number in range(_ROWS)]
    try:
        started = time.perf_counter()
        singles = [session.infer(row) for row in rows]
        single_seconds = time.perf_counter() - started
        batch = {name: np.ascontiguousarray(np.concatenate([row[name] for row in rows])) for name in inputs}
        started = time.perf_counter()
        together = session.infer(batch)
        batch_seconds = time.perf_counter() - started
        if not _is_same(singles, together):
            return 0.0
        if single_seconds < _SECONDS:
            single_seconds = min(_seconds(session, rows) for _ in range(_RUNS))
            batch_seconds = min(_seconds(session, [batch]) for _ in range(_RUNS))
    except (EngineUnusable, InvalidInput, MemoryError):  # the model takes no batches, which is not an error
        return 0.0
    return round(single_seconds / batch_seconds, 3)


def _row(inputs: Tensors, number: int) -> dict[str, Array]:
    """Return a row of inputs: for number 0 the first row, otherwise a row of random values from the first row. So the
    rows of a batch differ, and the model accepts all their values."""
    found, random = {}, np.random.default_rng(number)
    for name, array in inputs.items():
        row = array[:1]
        found[name] = row if not number or not row.size else random.choice(row.reshape(-1), row.size).reshape(row.shape)
    return found


def _is_same(singles: Iterable[Tensors], together: Tensors) -> bool:
    """Whether row i of each output of a batch equals the output of the i-th single row. False if all rows have the same
    answer, because equal answers prove nothing."""
    singles = [{name: np.array(array) for name, array in single.items()} for single in singles]
    for name, batch in together.items():
        expected = [single[name] for single in singles]
        if any(part.ndim == 0 or part.shape[0] != 1 for part in expected) or batch.shape[:1] != (len(expected),):
            return False
        whole = np.concatenate(expected)
        if batch.dtype.kind not in "fc":
            if not np.array_equal(whole, batch):
                return False
            continue
        largest = float(np.max(np.abs(whole), initial=0.0))
        if not np.isfinite(largest) or not np.allclose(whole, batch, rtol=_RELATIVE, atol=_ABSOLUTE * largest):
            return False
    return any(not np.array_equal(single[name], singles[0][name]) for single in singles[1:] for name in single)


def _seconds(session: Session, runs: Iterable[Tensors]) -> float:
    started = time.perf_counter()
    for inputs in runs:
        session.infer(inputs)
    return time.perf_counter() - started
