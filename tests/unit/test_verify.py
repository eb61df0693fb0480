"""The judge of answers: every kind of wrong is seen, and what is right to rounding passes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edged.store.record import Verdict
from edged.tensors import Array
from edged.verification.standard import TOLERANCES
from edged.verification.verify import Pair, judge
from tests.drift import as_bf16, as_fp16

RANDOM = np.random.default_rng(5)
FP32 = TOLERANCES["fp32"]
REFERENCE = RANDOM.standard_normal((4, 250)).astype(np.float32)


def verdict(reference: Array, answer: Array, precision: str = "fp32") -> Verdict:
    return judge([Pair({"y": reference}, {"y": answer})], TOLERANCES[precision])


def changed(position: tuple[int, ...], value: float, reference: Array = REFERENCE) -> Array:
    answer = reference.copy()
    answer[position] = value
    return answer


def test_the_same_answer_is_accepted_with_perfect_figures() -> None:
    found = verdict(REFERENCE, REFERENCE.copy())
    assert found.accepted
    assert found.reason == ""
    assert found.figures == {
        "cosine": 1.0,
        "relative_l2": 0.0,
        "p99_abs": 0.0,
        "outliers": 0.0,
        "unequal": 0.0,
        "finite": 1.0,
        "top1": 1.0,
    }


def test_rounding_of_another_order_of_sums_is_accepted() -> None:
    noise = RANDOM.standard_normal(REFERENCE.shape).astype(np.float32) * np.float32(1e-6)
    assert verdict(REFERENCE, REFERENCE + noise).accepted


@pytest.mark.parametrize(("precision", "error"), [("fp32", 1e-4), ("fp16", 1e-3), ("bf16", 8e-3), ("int8", 5e-2)])
def test_each_precision_admits_its_own_error_and_not_that_of_the_coarser_ones(precision: str, error: float) -> None:
    noise = RANDOM.standard_normal(REFERENCE.shape).astype(np.float32)
    assert verdict(REFERENCE, REFERENCE + noise * np.float32(error), precision).accepted
    assert not verdict(REFERENCE, REFERENCE + noise * np.float32(error * 40), precision).accepted


WRONG: dict[str, tuple[Array, str]] = {
    "NaN in one element": (changed((1, 2), np.nan), "finite"),
    "infinity in one element": (changed((1, 2), np.inf), "finite"),
    "NaN everywhere": (np.full_like(REFERENCE, np.nan), "finite"),
    "zeros": (np.zeros_like(REFERENCE), "cosine"),
    "constant": (np.ones_like(REFERENCE), "cosine"),
    "opposite sign": (-REFERENCE, "cosine"),
    "another row first": (np.roll(REFERENCE, 1, axis=0), "cosine"),
    "half as large": (REFERENCE * np.float32(0.5), "relative_l2"),
    "one percent larger": (REFERENCE * np.float32(1.01), "relative_l2"),
    "shifted": (REFERENCE + np.float32(0.1), "cosine"),
    "one element far off": (changed((0, 0), 100), "cosine"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_planted_difference_is_rejected_and_the_figure_that_shows_it_is_named(what: str) -> None:
    answer, figure = WRONG[what]
    found = verdict(REFERENCE, answer)
    assert not found.accepted
    assert found.reason.startswith(figure)
    assert found.figures
    assert "\n" not in found.reason


def test_one_bad_sample_among_good_ones_is_enough() -> None:
    good = Pair({"y": REFERENCE}, {"y": REFERENCE})
    bad = Pair({"y": REFERENCE}, {"y": REFERENCE * 2})
    assert not judge([good, good, bad, good], FP32).accepted
    assert judge([good] * 3, FP32).accepted


def test_one_bad_output_among_good_ones_is_enough() -> None:
    pairs = [Pair({"a": REFERENCE, "b": REFERENCE}, {"a": REFERENCE, "b": -REFERENCE})]
    assert not judge(pairs, FP32).accepted


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"z": REFERENCE},
        {"y": REFERENCE.astype(np.float64)},
        {"y": REFERENCE.astype(np.float16)},
        {"y": REFERENCE[:2]},
        {"y": REFERENCE.ravel()},
        {"y": REFERENCE[None]},
    ],
)
def test_a_missing_output_or_another_dtype_or_shape_is_rejected_by_name(answer: dict[str, Array]) -> None:
    found = judge([Pair({"y": REFERENCE}, answer)], FP32)
    assert not found.accepted
    assert "'y'" in found.reason
    assert "float32[4, 250]" in found.reason


def test_outputs_beyond_the_references_do_not_matter() -> None:
    assert judge([Pair({"y": REFERENCE}, {"y": REFERENCE, "more": REFERENCE})], FP32).accepted


def test_nothing_to_compare_is_not_accepted() -> None:
    assert not judge([], FP32).accepted
    assert not judge([Pair({}, {"y": REFERENCE})], FP32).accepted


def test_what_is_not_finite_in_both_does_not_count_against_the_rest() -> None:
    reference = changed((0, 0), np.nan)
    assert verdict(reference, reference.copy()).accepted
    assert not verdict(reference, reference * 2).accepted
    assert not verdict(reference, REFERENCE).accepted  # a number where the reference has none


@pytest.mark.parametrize(("expected", "found"), [(-np.inf, np.nan), (np.inf, -np.inf), (np.nan, np.inf)])
def test_infinities_of_the_reference_must_be_the_same_in_the_answer(expected: float, found: float) -> None:
    assert not verdict(changed((0, 0), expected), changed((0, 0), found)).accepted


def test_an_answer_of_which_nothing_is_a_number_is_not_accepted() -> None:
    assert not verdict(np.full((2, 3), np.inf, np.float32), np.full((2, 3), np.nan, np.float32)).accepted


def test_doubles_of_any_size_are_compared() -> None:
    assert not verdict(np.array([[1e200, 2e200]]), np.array([[2e200, 1e200]])).accepted


def test_scores_that_are_all_wrong_are_seen_beside_large_coordinates() -> None:
    boxes = RANDOM.uniform(0, 640, (1, 4, 8400))
    scores = RANDOM.uniform(0, 1, (1, 80, 8400)) ** 8
    reference = np.concatenate([boxes, scores], axis=1).astype(np.float32)
    answer = reference.copy()
    answer[:, 4:] = np.clip(answer[:, 4:] + RANDOM.uniform(-0.1, 0.1, scores.shape).astype(np.float32), 0, 1)
    assert not verdict(reference, answer).accepted


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64, np.bool_, np.uint16])
def test_integers_and_booleans_are_counted_where_they_differ(dtype: type) -> None:
    reference = RANDOM.integers(0, 2, 10_000).astype(dtype)
    few, many = reference.copy(), reference.copy()
    few[:5] = 1 - few[:5] if dtype is not np.bool_ else ~few[:5]
    many[:20] = 1 - many[:20] if dtype is not np.bool_ else ~many[:20]
    assert verdict(reference, few).figures["unequal"] == pytest.approx(0.0005)
    assert verdict(reference, few).accepted
    assert not verdict(reference, many).accepted


def test_large_integers_are_not_compared_as_floats() -> None:
    reference = np.full(10, 2**62, np.int64)
    assert verdict(reference, reference + 1).figures["unequal"] == 1.0


def test_strings_are_compared_as_strings() -> None:
    reference = np.array([b"a", b"b"], np.object_)
    assert verdict(reference, reference.copy()).accepted
    assert not verdict(reference, np.array([b"a", b"c"], np.object_)).accepted


def test_two_outputs_of_zeros_are_equal_and_one_of_zeros_is_not() -> None:
    zeros = np.zeros((2, 3), np.float32)
    assert verdict(zeros, zeros.copy()).accepted
    assert not verdict(zeros, zeros + np.float32(1e-3)).accepted
    assert not verdict(zeros + np.float32(1e-3), zeros).accepted


def test_empty_outputs_beside_others_are_no_difference() -> None:
    empty = np.zeros((0, 4), np.float32)
    assert judge([Pair({"y": REFERENCE, "e": empty}, {"y": REFERENCE, "e": empty})], FP32).accepted
    assert not verdict(empty, np.zeros((1, 4), np.float32)).accepted


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_scalars_are_compared(shape: tuple[int, ...]) -> None:
    assert verdict(np.full(shape, 2, np.float32), np.full(shape, 2, np.float32)).accepted
    assert not verdict(np.full(shape, 2, np.float32), np.full(shape, 3, np.float32)).accepted


def test_top1_is_the_share_of_rows_with_the_same_winner() -> None:
    answer = REFERENCE.copy()
    answer[0, (answer[0].argmax() + 1) % 250] = answer[0].max() + 1
    assert verdict(REFERENCE, answer).figures["top1"] == 0.75


def test_halves_are_compared_without_overflow() -> None:
    reference = np.full((2, 500), 60_000, np.float16)
    assert verdict(reference, reference.copy()).figures["cosine"] == pytest.approx(1)
    assert verdict(reference, reference.copy()).accepted
    assert not verdict(reference, -reference).accepted


# -- classifiers ----------------------------------------------------------------------------------------------------

# Everything but who wins is free, so that it alone decides.
WINNER = msgspec.structs.replace(FP32, cosine=0.0, relative_l2=9.0, outliers=1.0)


def scores(winner: int, lead: float, classes: int = 10) -> Array:
    """One row, [1, classes], of ones below a winner that leads by so much."""
    row = np.ones((1, classes), np.float32)
    row[0, winner] += lead
    return row


def test_a_classifier_whose_clear_winner_changes_is_rejected() -> None:
    pairs = [Pair({"y": scores(n, 1)}, {"y": scores(n, 1)}) for n in range(9)]
    assert judge(pairs, WINNER).accepted
    found = judge([*pairs, Pair({"y": scores(3, 1)}, {"y": scores(4, 1)})], WINNER)
    assert not found.accepted
    assert found.reason.startswith("top1 0.9 is below 0.999")
    assert found.figures["top1"] == 0.9  # over all questions, not the worst of them


def test_a_tie_that_falls_the_other_way_rejects_no_engine() -> None:
    nearly = [(scores(3, 1e-4), scores(4, 1e-4)), (scores(3, 1), scores(3, 1))]
    found = judge([Pair({"y": one}, {"y": other}) for one, other in nearly], FP32)
    assert found.accepted, found.reason
    assert found.figures["top1"] == 1.0


def test_a_lead_is_clear_when_it_is_more_than_the_precision_lets_elements_move() -> None:
    for precision, tolerance in TOLERANCES.items():
        free = msgspec.structs.replace(tolerance, cosine=0.0, relative_l2=9.0, outliers=1.0)
        lead = 2 * tolerance.element / (1 - 2 * tolerance.element)  # of a winner that is 1 + lead
        for factor, accepted in ((0.9, True), (1.1, False)):
            pair = Pair({"y": scores(1, lead * factor)}, {"y": scores(2, lead * factor)})
            assert judge([pair], free).accepted == accepted, precision


def test_rows_of_noise_have_no_clear_winner_so_that_top1_is_not_decided_on() -> None:
    flat = np.ones((1, 1000), np.float32)
    found = judge([Pair({"y": flat}, {"y": flat + RANDOM.normal(0, 1e-5, flat.shape).astype(np.float32)})], FP32)
    assert found.accepted, found.reason


def test_who_wins_on_inputs_that_no_model_is_made_for_says_nothing() -> None:
    wrong = Pair({"y": scores(3, 1)}, {"y": scores(4, 1)}, extreme=True)
    assert judge([wrong], WINNER).accepted
    assert not judge([wrong], FP32).accepted  # the other figures still say something


@pytest.mark.parametrize("shape", [(10,), (10, 1), (1, 5, 10), (1, 10, 2, 2)])
def test_outputs_of_other_shapes_are_no_classifiers(shape: tuple[int, ...]) -> None:
    one = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    assert judge([Pair({"y": one}, {"y": one[::-1].copy()})], WINNER).accepted


def test_a_row_that_is_no_number_does_not_break_the_others() -> None:
    broken = np.concatenate([scores(1, 1), scores(2, 1), scores(3, 1)])
    broken[1, 5] = np.nan
    broken[2, 5] = np.inf
    found = judge([Pair({"y": broken}, {"y": broken.copy()})], FP32)
    assert found.accepted, found.reason
    assert found.figures["top1"] == 1.0


# -- reasons --------------------------------------------------------------------------------------------------------


def test_every_figure_that_fails_is_named_with_its_bound() -> None:
    found = verdict(REFERENCE, REFERENCE * np.float32(1.01))
    parts = found.reason.removesuffix(", against the reference").split("; ")
    assert [part.split()[0] for part in parts] == ["relative_l2", "outliers"]
    assert re.fullmatch(r"relative_l2 0\.0\d+ is above 0\.002", parts[0])


def test_a_reason_names_the_picture_that_shows_it_most() -> None:
    pairs = [
        Pair({"y": REFERENCE}, {"y": REFERENCE}, "street.jpg"),
        Pair({"y": REFERENCE}, {"y": REFERENCE * np.float32(1.02)}, "night.jpg"),
        Pair({"y": REFERENCE}, {"y": REFERENCE * np.float32(1.01)}, "hall.jpg"),
    ]
    assert "relative_l2 0.02 is above 0.002 (worst on night.jpg)" in judge(pairs, FP32).reason


def test_a_bound_of_the_models_own_changes_the_verdict() -> None:
    off = [Pair({"y": REFERENCE}, {"y": REFERENCE * np.float32(1.004)})]
    assert not judge(off, FP32).accepted
    assert judge(off, msgspec.structs.replace(FP32, relative_l2=0.01)).accepted
    halves = TOLERANCES["fp16"]
    assert judge(off, halves).accepted
    assert not judge(off, msgspec.structs.replace(halves, relative_l2=0.001)).accepted


# -- drift of lower precisions --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("precision", "rounded"), [("fp16", as_fp16), ("bf16", as_bf16)])
@pytest.mark.parametrize("shape", [(1, 1000), (4, 250), (1, 84, 500), (1, 16, 8, 8)])
def test_answers_rounded_to_a_precision_are_right_for_it(
    precision: str, rounded: Callable[[Array], Array], shape: tuple[int, ...]
) -> None:
    reference = RANDOM.standard_normal(shape).astype(np.float32)
    assert verdict(reference, rounded(reference), precision).accepted


def test_fp32_measures_the_drift_of_lower_precisions_and_refuses_that_of_bf16() -> None:
    half, brain = verdict(REFERENCE, as_fp16(REFERENCE)), verdict(REFERENCE, as_bf16(REFERENCE))
    assert 1e-4 < half.figures["relative_l2"] < 3e-4
    assert 1e-3 < brain.figures["relative_l2"] < 3e-3
    strict = msgspec.structs.replace(FP32, relative_l2=1e-3)
    assert judge([Pair({"y": REFERENCE}, {"y": as_fp16(REFERENCE)})], strict).accepted
    assert not judge([Pair({"y": REFERENCE}, {"y": as_bf16(REFERENCE)})], strict).accepted


FLOATS = hnp.arrays(
    np.float32, hnp.array_shapes(max_dims=3, max_side=5), elements=st.floats(-1e6, 1e6, width=32, allow_subnormal=False)
)
ANY = hnp.arrays(np.float32, hnp.array_shapes(max_dims=3, max_side=4, min_side=0), elements=st.floats(width=32))


@given(FLOATS)
def test_any_answer_equal_to_the_reference_is_accepted(array: Array) -> None:
    assert verdict(array, array.copy()).accepted


@given(ANY, ANY)
def test_whatever_is_compared_the_figures_are_finite_and_rejections_have_a_reason(one: Array, other: Array) -> None:
    found = verdict(one, other)
    assert all(math.isfinite(value) for value in found.figures.values())
    assert found.accepted == (found.reason == "")


@given(FLOATS, st.floats(0.01, 100).filter(lambda f: abs(f - 1) > 0.01))
def test_a_scaled_answer_is_rejected_unless_there_is_nothing_to_scale(array: Array, factor: float) -> None:
    scaled = (array * np.float32(factor)).astype(np.float32)
    assert verdict(array, scaled).accepted == bool(np.array_equal(array, scaled))


@given(FLOATS, st.data())
def test_a_nan_anywhere_is_rejected(array: Array, data: st.DataObject) -> None:
    answer = array.copy()
    answer.flat[data.draw(st.integers(0, array.size - 1))] = np.nan
    assert not verdict(array, answer).accepted


@given(FLOATS)
def test_the_verdict_does_not_depend_on_who_is_the_reference_for_equal_norms(array: Array) -> None:
    turned = np.roll(array.ravel(), 1).reshape(array.shape)
    one, other = verdict(array, turned), verdict(turned, array)
    assert one.accepted == other.accepted
    assert one.figures["relative_l2"] == pytest.approx(other.figures["relative_l2"], rel=1e-3)


@pytest.mark.parametrize("shape", [(1, 1000), (1, 1000, 1, 1), (1000,)])
def test_small_scores_of_a_classifier_are_measured_by_the_large_ones_beside_them(shape: tuple[int, ...]) -> None:
    scores = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    found = verdict(scores, scores + np.float32(0.002) * np.sign(scores), "bf16")
    assert found.figures["outliers"] == 0.0
    assert found.accepted
    wrong = scores.copy()
    wrong.flat[::10] += 2.0
    assert verdict(scores, wrong, "bf16").figures["outliers"] == pytest.approx(0.1)
