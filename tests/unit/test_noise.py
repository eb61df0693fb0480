"""Noise: the part of a difference between two answers that is rounding."""

from __future__ import annotations

import numpy as np
import pytest

from edged.store.record import Verdict
from edged.tensors import Array
from edged.verification import noise
from edged.verification.golden import Sample, with_least_noise
from edged.verification.probes import PICTURE, WIDE
from edged.verification.standard import TOLERANCES
from edged.verification.verify import Pair, judge

RANDOM = np.random.default_rng(11)


def verdict(expected: Array, moved: Array, answer: Array) -> Verdict:
    sample = Sample({}, {"y": expected}, PICTURE, noise=noise.measured({"y": expected}, {"y": moved}))
    (settled,) = with_least_noise([sample])
    return judge([Pair.of(settled, {"y": answer})], TOLERANCES["fp32"])


def test_judge_tiny_probabilities_with_another_sigmoid_are_accepted() -> None:
    """ONNX Runtime's Sigmoid has an absolute error of 9e-8, OpenVINO's a relative error. A picture without
    objects has scores below both."""
    exact = 10 ** RANDOM.uniform(-12, -5, (1, 2000, 80))
    rounded = exact + RANDOM.uniform(-9e-8, 9e-8, exact.shape)
    found = verdict(np.abs(rounded).astype(np.float32), np.abs(rounded).astype(np.float32), exact.astype(np.float32))
    assert found.accepted, found.reason


def test_judge_state_with_columns_of_two_small_values_is_accepted() -> None:
    """In a state [2, 1, 128] most columns have two values near zero, too small to estimate their rounding."""
    state = (RANDOM.standard_normal((2, 1, 128)) ** 5).astype(np.float32)
    state[:, :, ::3] *= 1e-6
    off = state + RANDOM.uniform(-8e-7, 8e-7, state.shape).astype(np.float32)
    found = verdict(state, state + np.float32(1e-7), off)
    assert found.accepted, found.reason


def test_judge_model_that_amplifies_rounding_is_measured_by_its_own_noise() -> None:
    answer = RANDOM.standard_normal((1, 50, 50)).astype(np.float32)
    noisy = (RANDOM.standard_normal(answer.shape) * 2e-2).astype(np.float32)
    off = answer + (RANDOM.standard_normal(answer.shape) * 5e-2).astype(np.float32)
    assert verdict(answer, answer + noisy, off).accepted
    assert not verdict(answer, answer, off).accepted


def test_judge_noise_of_one_row_does_not_excuse_another() -> None:
    answer = RANDOM.standard_normal((100, 200)).astype(np.float32)
    moved, off = answer.copy(), answer.copy()
    moved[7] += 1
    off[8] += 1
    assert verdict(answer, moved, moved).accepted
    assert not verdict(answer, moved, off).accepted


@pytest.mark.parametrize("factor", [1.05, 0.5, -1.0])
def test_judge_wrong_probabilities_of_any_size_are_rejected(factor: float) -> None:
    scores = (10 ** RANDOM.uniform(-4, 0, (1, 100, 20))).astype(np.float32)
    assert not verdict(scores, scores, np.clip(scores * np.float32(factor), 0, 1)).accepted


def test_least_noise_follows_the_values_of_all_usual_probes() -> None:
    small, large = np.full((1, 4), 1e-3, np.float32), np.full((1, 4), 100, np.float32)
    samples = [Sample({}, {"y": small}), Sample({}, {"y": large}), Sample({}, {"y": large * 1e6}, WIDE)]
    least = [float(sample.noise["y"].least.bounds().max()) for sample in with_least_noise(samples)]
    assert least[0] == least[1] == pytest.approx(100 * 2**-23)
    assert least[2] == pytest.approx(1e8 * 2**-23)


def test_least_noise_follows_rows_and_columns_from_one_step_at_32() -> None:
    table = np.full((1, 3, 4), 1e-3, np.float32)
    table[0, 1, 1:] = 100
    other = table / 2
    other[0, 0, 2], other[0, 2, 3] = -40, np.nan
    least = noise.least([{"y": table}, {"y": other}, {"y": table[:, :2] * 1e3}])
    bounds = least["y", (1, 3, 4)].bounds() * 2**23
    assert bounds == pytest.approx(np.array([[32, 40, 40, 40], [32, 100, 100, 100], [32, 32, 32, 32]]))
    assert least["y", (1, 2, 4)].bounds().max() == pytest.approx(1e5 * 2**-23)


@pytest.mark.parametrize(
    ("values", "scale"),
    [([0.0, 1e-9], 1), ([0.0, 0.0], 0), ([-1e-6, 2e-6], 2e-6), ([-3.0, 1.0], 3), ([np.nan, np.inf], 0)],
)
def test_least_noise_of_an_output_with_small_values_is_below_a_step_at_1_unless_it_may_hold_scores(
    values: list[float], scale: float
) -> None:
    least = noise.least([{"y": np.array(values, np.float32)}])["y", (2,)]
    assert least.bounds().max() == pytest.approx(scale * 2**-23)


@pytest.mark.parametrize("mask", [-1e4, -65504.0, -1e9, float(np.finfo(np.float32).min)])
def test_judge_masked_column_does_not_excuse_other_values(mask: float) -> None:
    """A decoder of text masks the classes that cannot follow."""
    logits = (RANDOM.standard_normal((1, 100, 81)) * 4).astype(np.float32)
    random = (RANDOM.standard_normal(logits.shape) * 4).astype(np.float32)
    rounded = logits * np.float32(1 + 1e-6)
    for array in (logits, random, rounded):
        array[..., -1] = mask
    found = verdict(logits, logits, random)
    assert not found.accepted
    assert "outliers" in found.reason
    assert verdict(logits, logits, rounded).accepted


def test_nudged_moves_only_floats_by_one_step() -> None:
    inputs = {
        "x": RANDOM.random((3, 4)).astype(np.float32),
        "h": np.array([1, 0, -2], np.float16),
        "n": np.arange(3),
        "t": np.array([b"a"], np.object_),
    }
    moved = noise.nudged(inputs)
    assert set(np.abs(moved["x"].view(np.int32) - inputs["x"].view(np.int32)).ravel()) == {1}
    assert moved["h"][1] == 0
    assert 0 < np.abs(moved["h"] - inputs["h"]).max() < 2e-3
    assert moved["n"] is inputs["n"]
    assert moved["t"] is inputs["t"]
    assert all(np.array_equal(moved[name], again) for name, again in noise.nudged(inputs).items())


@pytest.mark.parametrize("shape", [(), (1,), (0, 4), (1, 1, 5), (2, 3, 4)])
def test_measured_answers_of_any_shape_have_a_floor_of_that_shape(shape: tuple[int, ...]) -> None:
    answer = np.ones(shape, np.float32)
    found = noise.measured({"y": answer}, {"y": answer * np.float32(1.5)})["y"]
    rest = noise.without(np.full(shape, 20.0), found)
    assert rest.shape == shape
    assert np.all(rest == 20 - 16 * 0.5)


def test_measured_answers_that_change_their_shape_or_are_not_finite_have_no_noise() -> None:
    answer = np.array([1, np.inf, np.nan], np.float32)
    assert not noise.measured({"y": answer}, {"y": answer[:2]})["y"].floor().any()
    assert not noise.measured({"y": answer}, {"y": answer[::-1]})["y"].floor().any()
