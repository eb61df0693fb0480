"""Ranges of values on calibration data: histograms, estimates, and their measurement while a model runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edged.jobs.int8_layers import Value
from edged.jobs.int8_ranges import ESTIMATES, LARGEST, Range, measure
from edged.jobs.onnx_graph import Model
from edged.jobs.onnx_int8 import prepare
from tests import models
from tests.models import model, value
from tests.unit import precision_models as nets

RANDOM = np.random.default_rng(0)


def of(*batches: np.ndarray) -> Range:
    """Return the range of absolute values [rows, n]."""
    found = Range(len(batches[0]))
    for batch in batches:
        found.add(batch.min(axis=1), batch.max(axis=1), np.abs(batch))
    return found


def test_range_percentiles_are_those_of_the_values_whatever_the_order() -> None:
    small, large = RANDOM.random((2, 20_000)), RANDOM.random((2, 20_000)) * 50
    for found in (of(small, large), of(large, small)):
        every = np.concatenate([small, large], axis=1)
        assert found.largest == pytest.approx(every.max(axis=1))
        expected = np.quantile(every, 0.99, axis=1)
        assert found.percentile(0.99) == pytest.approx(expected, rel=0.02)
        assert found.counts.sum(axis=1).tolist() == [40_000, 40_000]


def test_range_estimates_ignore_planted_outliers() -> None:
    values = np.abs(RANDOM.standard_normal((1, 200_000)))
    values[0, :10] = 1000.0
    found = of(values[:, :100_000], values[:, 100_000:])
    assert ESTIMATES[LARGEST](found) == 1000.0
    for name in ("99.99 % of the values", "99.9 % of the values", "least squared error"):
        covered = ESTIMATES[name](found)[0]
        assert covered < (1000.0 if name == "least squared error" else 5.0), name
    # With few values far outside and many levels, clipping costs more than rounding: the largest value is best.
    plain = of(np.abs(RANDOM.random((1, 100_000))))
    assert plain.least_error()[0] > 0.95 * plain.largest[0]


def test_range_least_error_is_the_minimum_of_the_measured_error() -> None:
    values = np.abs(RANDOM.standard_t(3, (1, 50_000)))
    found = of(values)

    def error(covered: float) -> float:
        step = covered / 127
        return float(((np.round(np.minimum(values, covered) / step) * step - values) ** 2).mean())

    best = found.least_error()[0]
    assert best < found.largest[0]
    assert error(best) <= min(error(found.largest[0] * share) for share in (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)) * 1.05


def test_range_of_zeros_is_zero_and_of_infinity_infinite() -> None:
    nothing = of(np.zeros((2, 10)))
    assert [estimate(nothing).tolist() for estimate in ESTIMATES.values()] == [[0.0, 0.0]] * len(ESTIMATES)
    for wrong in (np.inf, np.nan):
        found = Range(1)
        found.add(np.array([0.0]), np.array([1.0]), np.array([[1.0, wrong]]))
        assert found.largest[0] == np.inf


@pytest.mark.parametrize("opset", [13, 17, 18, 20])
@pytest.mark.parametrize("batch", [1, 2])
def test_measure_returns_the_largest_values_of_tensors_and_channels(tmp_path: Path, opset: int, batch: int) -> None:
    proto = model(
        models.nodes("a = Relu(x)", "s = Conv<pads = [1, 1, 1, 1]>(a, w)", "y = Identity(s)"),
        [value("x", "FP32", [batch, 3, "h", "w"])],
        [value("y", "FP32", [batch, 3, "h", "w"])],
        [nets.random("w", 3, 3, 3, 3)],
        opset=opset,
    )
    prepared, _ = prepare(Model.read(nets.store(proto, tmp_path)), tmp_path)
    scale = np.array([1.0, 5.0, 0.0], np.float32).reshape(1, 3, 1, 1)
    samples = [{"x": RANDOM.random((batch, 3, size, 9), np.float32) * scale * (1 + size)} for size in (8, 16, 12)]
    calls: list[int] = []
    wanted = [Value("a"), Value("a", by_channel=True)]
    found = measure(prepared, wanted, samples, tmp_path, lambda: calls.append(1))
    every = [sample["x"].transpose(1, 0, 2, 3).reshape(3, -1) for sample in samples]
    assert len(calls) == 3
    assert found[Value("a")].largest == pytest.approx([max(each.max() for each in every)])
    assert found[Value("a", by_channel=True)].largest == pytest.approx(np.max([e.max(axis=1) for e in every], axis=0))
    assert found[Value("a", by_channel=True)].least.tolist() == [0.0, 0.0, 0.0]
    assert found[Value("a")].counts.sum() == sum(each.size for each in every)


def test_measure_samples_large_values_but_finds_their_maximum(tmp_path: Path) -> None:
    proto = model(
        models.nodes("a = Relu(x)", "y = Neg(a)"),
        [value("x", "FP32", [1, 1, 512, 512])],
        [value("y", "FP32", [1, 1, 512, 512])],
    )
    prepared, _ = prepare(Model.read(nets.store(proto, tmp_path)), tmp_path)
    picture = RANDOM.random((1, 1, 512, 512), np.float32)
    picture[0, 0, 17, 3] = 77.0
    found = measure(prepared, [Value("a")], [{"x": picture}], tmp_path, lambda: None)[Value("a")]
    assert found.largest == 77.0
    assert 40_000 < found.counts.sum() < 90_000
    assert found.percentile(0.5)[0] == pytest.approx(0.5, abs=0.05)


def test_range_has_both_ends() -> None:
    found = of(np.array([[-3.0, 1.0], [0.5, 2.0]]), np.array([[-1.0, 2.0], [1.0, 1.0]]))
    assert found.least.tolist() == [-3.0, 0.0]
    assert found.most.tolist() == [2.0, 2.0]
    assert found.largest.tolist() == [3.0, 2.0]
