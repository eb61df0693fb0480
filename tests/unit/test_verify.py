"""Verdicts: differences of every kind are rejected, and rounding is accepted."""

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
from edged.verification.standard import TOLERANCES, Tolerance
from edged.verification.verify import NO_VALUES, Pair, judge
from tests.drift import as_bf16, as_fp16

RANDOM = np.random.default_rng(5)
FP32 = TOLERANCES["fp32"]
REFERENCE = RANDOM.standard_normal((4, 250)).astype(np.float32)


def verdict(reference: Array, answer: Array, precision: str = "fp32") -> Verdict:
    return judge([Pair({"y": reference}, {"y": answer})], TOLERANCES[precision])


def changed(value: float, reference: Array = REFERENCE) -> Array:
    answer = reference.copy()
    answer[0, 0] = value
    return answer


def filled(value: float, dtype: type = np.float32, shape: tuple[int, ...] = (2, 3)) -> Array:
    return np.full(shape, value, dtype)


def texts(*elements: bytes) -> Array:
    return np.array(elements, np.object_)


def test_judge_same_answer_has_perfect_figures() -> None:
    found = verdict(REFERENCE, REFERENCE.copy())
    assert found.accepted
    assert found.reason == ""
    figures = dict.fromkeys(("cosine", "finite", "top1"), 1.0)
    assert found.figures == figures | dict.fromkeys(("relative_l2", "p99_abs", "outliers", "unequal"), 0.0)


@pytest.mark.parametrize(
    ("precision", "error", "accepted"),
    [
        ("fp32", 1e-6, True),
        *(
            (p, e * f, f == 1)
            for p, e in (("fp32", 1e-4), ("fp16", 1e-3), ("bf16", 8e-3), ("int8", 5e-2))
            for f in (1, 40)
        ),
    ],
)
def test_judge_noise_is_accepted_by_the_precision_only(precision: str, error: float, accepted: bool) -> None:
    noise = RANDOM.standard_normal(REFERENCE.shape).astype(np.float32)
    assert verdict(REFERENCE, REFERENCE + noise * np.float32(error), precision).accepted is accepted


WRONG: dict[str, tuple[Array, str]] = {
    "NaN in one element": (changed(np.nan), "finite"),
    "infinity in one element": (changed(np.inf), "finite"),
    "NaN everywhere": (np.full_like(REFERENCE, np.nan), "finite"),
    "zeros": (np.zeros_like(REFERENCE), "cosine"),
    "constant": (np.ones_like(REFERENCE), "cosine"),
    "opposite sign": (-REFERENCE, "cosine"),
    "another row first": (np.roll(REFERENCE, 1, axis=0), "cosine"),
    "half as large": (REFERENCE * np.float32(0.5), "relative_l2"),
    "one percent larger": (REFERENCE * np.float32(1.01), "relative_l2"),
    "shifted": (REFERENCE + np.float32(0.1), "cosine"),
    "one element far off": (changed(100), "cosine"),
}


@pytest.mark.parametrize(("answer", "figure"), WRONG.values(), ids=WRONG)
def test_judge_planted_difference_names_the_figure_that_shows_it(answer: Array, figure: str) -> None:
    found = verdict(REFERENCE, answer)
    assert not found.accepted
    assert found.reason.startswith(figure)
    assert found.figures
    assert "\n" not in found.reason


ALIKE: dict[str, tuple[Array, Array]] = {
    "NaN in both": (changed(np.nan), changed(np.nan)),
    "texts": (texts(b"a", b"b"), texts(b"a", b"b")),
    "zeros": (filled(0), filled(0)),
    "halves whose squares overflow": (filled(60_000, np.float16), filled(60_000, np.float16)),
    **{f"scalar {shape}": (filled(2, shape=shape), filled(2, shape=shape)) for shape in ((), (1,), (1, 1))},
}
DIFFERENT: dict[str, tuple[Array, Array]] = {
    "NaN in both, the rest twice as large": (changed(np.nan), changed(np.nan, REFERENCE * 2)),
    "number instead of NaN": (changed(np.nan), REFERENCE),
    "NaN instead of infinity": (changed(-np.inf), changed(np.nan)),
    "infinity with another sign": (changed(np.inf), changed(-np.inf)),
    "infinity instead of NaN": (changed(np.nan), changed(np.inf)),
    "nothing is a number": (filled(np.inf), filled(np.nan)),
    "large doubles": (np.array([[1e200, 2e200]]), np.array([[2e200, 1e200]])),
    "texts": (texts(b"a", b"b"), texts(b"a", b"c")),
    "small instead of zeros": (filled(0), filled(1e-3)),
    "zeros instead of small": (filled(1e-3), filled(0)),
    "halves with another sign": (filled(60_000, np.float16), filled(-60_000, np.float16)),
    "more rows than none": (np.zeros((0, 4), np.float32), np.zeros((1, 4), np.float32)),
    **{f"scalar {shape}": (filled(2, shape=shape), filled(3, shape=shape)) for shape in ((), (1,), (1, 1))},
}


@pytest.mark.parametrize(("reference", "answer"), ALIKE.values(), ids=ALIKE)
def test_judge_alike_is_accepted(reference: Array, answer: Array) -> None:
    assert verdict(reference, answer).accepted


@pytest.mark.parametrize(("reference", "answer"), DIFFERENT.values(), ids=DIFFERENT)
def test_judge_different_is_rejected(reference: Array, answer: Array) -> None:
    assert not verdict(reference, answer).accepted


GOOD, BAD = Pair({"y": REFERENCE}, {"y": REFERENCE}), Pair({"y": REFERENCE}, {"y": REFERENCE * 2})
_EMPTY = np.zeros((0, 4), np.float32)
PAIRS: dict[str, tuple[list[Pair], bool]] = {
    "good ones": ([GOOD] * 3, True),
    "one bad": ([GOOD, GOOD, BAD, GOOD], False),
    "one bad output": ([Pair({"a": REFERENCE, "b": REFERENCE}, {"a": REFERENCE, "b": -REFERENCE})], False),
    "more outputs than the reference": ([Pair({"y": REFERENCE}, {"y": REFERENCE, "more": REFERENCE})], True),
    "an empty output": ([Pair({"y": REFERENCE, "e": _EMPTY}, {"y": REFERENCE, "e": _EMPTY})], True),
    "none": ([], False),
    "no outputs": ([Pair({}, {"y": REFERENCE})], False),
}


@pytest.mark.parametrize(("pairs", "accepted"), PAIRS.values(), ids=PAIRS)
def test_judge_several_pairs_is_accepted_if_all_outputs_agree(pairs: list[Pair], accepted: bool) -> None:
    assert judge(pairs, FP32).accepted is accepted


_NONE = np.zeros((0, 7), np.float32)
_NANS = np.full((1, 10), np.nan, np.float32)
_NOTHING, _NOT_NUMBERS = Pair({"y": _NONE}, {"y": _NONE}), Pair({"y": _NANS}, {"y": _NANS})
_SPARSE: dict[str, tuple[list[Pair], bool]] = {
    "no rows": ([_NOTHING] * 5, False),
    "NaN": ([_NOT_NUMBERS] * 5, False),
    "infinity": ([Pair({"y": filled(np.inf)}, {"y": filled(np.inf)})], False),
    "no rows or NaN": ([_NOTHING, _NOT_NUMBERS], False),
    "no texts": ([Pair({"y": texts()}, {"y": texts()})], False),
    "rows once": ([_NOTHING] * 4 + [Pair({"y": REFERENCE[:, :7]}, {"y": REFERENCE[:, :7]})], True),
    "rows first": ([Pair({"y": REFERENCE[:, :7]}, {"y": REFERENCE[:, :7]})] + [_NOTHING] * 4, True),
    "NaN in one element": ([Pair({"y": changed(np.nan)}, {"y": changed(np.nan)})], True),
    "no rows next to numbers": ([Pair({"y": REFERENCE, "e": _NONE}, {"y": REFERENCE, "e": _NONE})], True),
    "no rows next to their number": (
        [Pair({"y": _NONE, "n": np.zeros(1, np.int32)}, {"y": _NONE, "n": np.zeros(1, np.int32)})],
        True,
    ),
}


@pytest.mark.parametrize(("pairs", "accepted"), _SPARSE.values(), ids=_SPARSE)
def test_judge_answers_without_a_value_are_rejected_if_values_are_needed(pairs: list[Pair], accepted: bool) -> None:
    found = judge(pairs, FP32, needs_values=True)
    assert found.accepted is accepted
    assert ("--samples" in found.reason) is (NO_VALUES in found.figures) is not accepted
    assert judge(pairs, FP32).accepted


def test_judge_without_values_names_a_difference_first() -> None:
    found = judge([Pair({"y": _NANS}, {"y": np.zeros_like(_NANS)})], FP32, needs_values=True)
    assert not found.accepted
    assert "finite" in found.reason


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
def test_judge_missing_output_or_another_dtype_or_shape_is_rejected_by_name(answer: dict[str, Array]) -> None:
    found = judge([Pair({"y": REFERENCE}, answer)], FP32)
    assert not found.accepted
    assert "'y'" in found.reason
    assert "float32[4, 250]" in found.reason


def test_judge_wrong_scores_are_seen_next_to_large_coordinates() -> None:
    boxes, scores = RANDOM.uniform(0, 640, (1, 4, 8400)), RANDOM.uniform(0, 1, (1, 80, 8400)) ** 8
    reference = np.concatenate([boxes, scores], axis=1).astype(np.float32)
    answer = reference.copy()
    answer[:, 4:] = np.clip(answer[:, 4:] + RANDOM.uniform(-0.1, 0.1, scores.shape).astype(np.float32), 0, 1)
    assert not verdict(reference, answer).accepted


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64, np.bool_, np.uint16])
def test_judge_integers_and_booleans_are_counted_if_they_differ(dtype: type) -> None:
    reference = RANDOM.integers(0, 2, 10_000).astype(dtype)
    few, many = reference.copy(), reference.copy()
    for array, count in ((few, 5), (many, 20)):
        array[:count] = array[:count] == 0
    assert verdict(reference, few).figures["unequal"] == pytest.approx(0.0005)
    assert verdict(reference, few).accepted
    assert not verdict(reference, many).accepted


def test_judge_large_integers_are_not_compared_as_floats() -> None:
    reference = filled(2**62, np.int64)
    assert verdict(reference, reference + 1).figures["unequal"] == 1.0


def test_judge_top1_is_the_share_of_rows_with_the_same_winner() -> None:
    answer = REFERENCE.copy()
    answer[0, (answer[0].argmax() + 1) % 250] = answer[0].max() + 1
    assert verdict(REFERENCE, answer).figures["top1"] == 0.75


# -- classifiers ----------------------------------------------------------------------------------------------------

FREE = {"cosine": 0.0, "relative_l2": 9.0, "outliers": 1.0}  # only the winner decides
WINNER = msgspec.structs.replace(FP32, **FREE)


def scores(winner: int, lead: float) -> Array:
    """Return one row, [1, 10], of ones and a winner that is larger by `lead`."""
    row = np.ones((1, 10), np.float32)
    row[0, winner] += lead
    return row


def test_judge_classifier_with_another_clear_winner_is_rejected() -> None:
    pairs = [Pair({"y": scores(n, 1)}, {"y": scores(n, 1)}) for n in range(9)]
    assert judge(pairs, WINNER).accepted
    found = judge([*pairs, Pair({"y": scores(3, 1)}, {"y": scores(4, 1)})], WINNER)
    assert not found.accepted
    assert found.reason.startswith("top1 0.9 is below the bound 0.999")
    assert found.figures["top1"] == 0.9  # the share over all samples, not the lowest


_UNCLEAR = np.concatenate([scores(1, 1), scores(2, 1), scores(3, 1)])
_UNCLEAR[1, 5], _UNCLEAR[2, 5] = np.nan, np.inf
_FLAT = np.ones((1, 1000), np.float32)


@pytest.mark.parametrize(
    ("reference", "answer"),
    [
        pytest.param(scores(3, 1e-4), scores(4, 1e-4), id="tie"),
        pytest.param(_UNCLEAR, _UNCLEAR.copy(), id="rows that are no numbers"),
        pytest.param(_FLAT, _FLAT + RANDOM.normal(0, 1e-5, _FLAT.shape).astype(np.float32), id="rows of noise"),
    ],
)
def test_judge_rows_without_a_clear_winner_do_not_count(reference: Array, answer: Array) -> None:
    clear = Pair({"y": scores(3, 1)}, {"y": scores(3, 1)})
    found = judge([Pair({"y": reference}, {"y": answer}), clear], FP32)
    assert found.accepted, found.reason
    assert found.figures["top1"] == 1.0


@pytest.mark.parametrize(("precision", "tolerance"), TOLERANCES.items())
def test_judge_clear_lead_is_more_than_elements_may_move(precision: str, tolerance: Tolerance) -> None:
    free = msgspec.structs.replace(tolerance, **FREE)
    lead = 2 * tolerance.element / (1 - 2 * tolerance.element)  # of a winner that is 1 + lead
    for factor, accepted in ((0.9, True), (1.1, False)):
        pair = Pair({"y": scores(1, lead * factor)}, {"y": scores(2, lead * factor)})
        assert judge([pair], free).accepted == accepted


def test_judge_winners_on_extreme_inputs_do_not_count() -> None:
    wrong = Pair({"y": scores(3, 1)}, {"y": scores(4, 1)}, extreme=True)
    assert judge([wrong], WINNER).accepted
    assert not judge([wrong], FP32).accepted  # but other figures count


@pytest.mark.parametrize("shape", [(10,), (10, 1), (1, 5, 10), (1, 10, 2, 2)])
def test_judge_outputs_of_other_shapes_are_no_classifiers(shape: tuple[int, ...]) -> None:
    one = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    assert judge([Pair({"y": one}, {"y": one[::-1].copy()})], WINNER).accepted


@pytest.mark.parametrize("shape", [(1, 1000), (1, 1000, 1, 1), (1000,)])
def test_judge_small_scores_of_a_classifier_are_measured_by_the_large_ones(shape: tuple[int, ...]) -> None:
    scores = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    found = verdict(scores, scores + np.float32(0.002) * np.sign(scores), "bf16")
    assert found.figures["outliers"] == 0.0
    assert found.accepted
    wrong = scores.copy()
    wrong.flat[::10] += 2.0
    assert verdict(scores, wrong, "bf16").figures["outliers"] == pytest.approx(0.1)


# -- reasons and bounds ---------------------------------------------------------------------------------------------


def test_judge_reason_names_each_figure_that_fails_with_its_bound() -> None:
    found = verdict(REFERENCE, REFERENCE * np.float32(1.01))
    parts = found.reason.removesuffix(", compared with the reference").split("; ")
    assert [part.split()[0] for part in parts] == ["relative_l2", "outliers"]
    assert re.fullmatch(r"relative_l2 0\.0\d+ is above the bound 0\.002", parts[0])


def test_judge_reason_names_the_picture_that_shows_it_most() -> None:
    factors = {"street.jpg": 1.0, "night.jpg": 1.02, "hall.jpg": 1.01}
    pairs = [Pair({"y": REFERENCE}, {"y": REFERENCE * np.float32(f)}, name) for name, f in factors.items()]
    assert "relative_l2 0.02 is above the bound 0.002 (worst on night.jpg)" in judge(pairs, FP32).reason


@pytest.mark.parametrize(
    ("precision", "bounds", "accepted"),
    [
        ("fp32", {}, False),
        ("fp32", {"relative_l2": 0.01}, True),
        ("fp16", {}, True),
        ("fp16", {"relative_l2": 0.001}, False),
    ],
)
def test_judge_bounds_of_the_model_replace_the_usual(precision: str, bounds: dict[str, float], accepted: bool) -> None:
    pairs = [Pair({"y": REFERENCE}, {"y": REFERENCE * np.float32(1.004)})]
    assert judge(pairs, msgspec.structs.replace(TOLERANCES[precision], **bounds)).accepted is accepted


@pytest.mark.parametrize(("precision", "rounded"), [("fp16", as_fp16), ("bf16", as_bf16)])
@pytest.mark.parametrize("shape", [(1, 1000), (4, 250), (1, 84, 500), (1, 16, 8, 8)])
def test_judge_answer_rounded_to_a_precision_is_accepted_by_it(
    precision: str, rounded: Callable[[Array], Array], shape: tuple[int, ...]
) -> None:
    reference = RANDOM.standard_normal(shape).astype(np.float32)
    assert verdict(reference, rounded(reference), precision).accepted


@pytest.mark.parametrize(("rounded", "drift", "accepted"), [(as_fp16, 2e-4, True), (as_bf16, 2e-3, False)])
def test_judge_measures_the_drift_of_lower_precisions(
    rounded: Callable[[Array], Array], drift: float, accepted: bool
) -> None:
    strict = msgspec.structs.replace(FP32, relative_l2=1e-3)
    found = judge([Pair({"y": REFERENCE}, {"y": rounded(REFERENCE)})], strict)
    assert found.figures["relative_l2"] == pytest.approx(drift, rel=0.5)
    assert found.accepted is accepted


# -- properties -----------------------------------------------------------------------------------------------------

FLOATS = hnp.arrays(
    np.float32, hnp.array_shapes(max_dims=3, max_side=5), elements=st.floats(-1e6, 1e6, width=32, allow_subnormal=False)
)
ANY = hnp.arrays(np.float32, hnp.array_shapes(max_dims=3, max_side=4, min_side=0), elements=st.floats(width=32))


@given(FLOATS)
def test_judge_any_equal_answer_is_accepted(array: Array) -> None:
    assert verdict(array, array.copy()).accepted


@given(ANY, ANY)
def test_judge_any_two_have_finite_figures_and_rejections_a_reason(one: Array, other: Array) -> None:
    found = verdict(one, other)
    assert all(math.isfinite(value) for value in found.figures.values())
    assert found.accepted == (found.reason == "")


@given(FLOATS, st.floats(0.01, 100).filter(lambda f: abs(f - 1) > 0.01))
def test_judge_any_scaled_answer_is_rejected(array: Array, factor: float) -> None:
    scaled = (array * np.float32(factor)).astype(np.float32)
    assert verdict(array, scaled).accepted == bool(np.array_equal(array, scaled))


@given(FLOATS, st.data())
def test_judge_nan_anywhere_is_rejected(array: Array, data: st.DataObject) -> None:
    answer = array.copy()
    answer.flat[data.draw(st.integers(0, array.size - 1))] = np.nan
    assert not verdict(array, answer).accepted


@given(FLOATS)
def test_judge_is_symmetric_for_equal_norms(array: Array) -> None:
    turned = np.roll(array.ravel(), 1).reshape(array.shape)
    one, other = verdict(array, turned), verdict(turned, array)
    assert one.accepted == other.accepted
    assert one.figures["relative_l2"] == pytest.approx(other.figures["relative_l2"], rel=1e-3)
