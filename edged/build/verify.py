"""Compares an engine's answers with the reference's. Pure: arrays in, figures and a verdict out."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from edged.build.standard import Tolerance
from edged.store.record import Verdict
from edged.tensors import Array

_Floats = npt.NDArray[np.float64]
_TINY = 1e-12  # a column of zeros has no scale


def judge(pairs: Iterable[tuple[dict[str, Array], dict[str, Array]]], tolerance: Tolerance) -> Verdict:
    """The verdict over (reference outputs, engine outputs) of every sample."""
    worst = dict.fromkeys(("cosine", "finite", "top1"), 1.0)
    worst |= dict.fromkeys(("relative_l2", "p99_abs", "outliers", "unequal"), 0.0)
    compared = 0
    for expected, answer in pairs:
        for name, reference in expected.items():
            found = answer.get(name)
            if found is None or found.shape != reference.shape or found.dtype != reference.dtype:
                got = "nothing" if found is None else f"{found.dtype}{list(found.shape)}"
                reason = f"output {name!r}: {got} instead of {reference.dtype}{list(reference.shape)}"
                return Verdict(False, reason, {})
            compared += 1
            for figure, value in _figures(reference, found, tolerance.element).items():
                keep_low = figure in ("cosine", "finite", "top1")
                if math.isnan(value) or (value < worst[figure] if keep_low else value > worst[figure]):
                    worst[figure] = value
    if not compared:
        return Verdict(False, "nothing to compare: the reference's outputs differ from run to run", {})
    return _decide(worst, tolerance)


def _decide(figures: dict[str, float], tolerance: Tolerance) -> Verdict:
    rounded = {name: float(f"{value:.6g}") for name, value in figures.items()}
    for name, bound, is_floor in (
        ("finite", tolerance.finite, True),
        ("cosine", tolerance.cosine, True),
        ("relative_l2", tolerance.relative_l2, False),
        ("outliers", tolerance.outliers, False),
        ("unequal", tolerance.unequal, False),
    ):
        value = figures[name]
        if not (value >= bound if is_floor else value <= bound):  # so that NaN fails as well
            relation = "below" if is_floor else "above"
            return Verdict(False, f"{name} {value:.6g} is {relation} {bound:g} against the reference", rounded)
    return Verdict(True, "", rounded)


def _figures(reference: Array, answer: Array, element: float) -> dict[str, float]:
    if reference.size == 0:
        return {}
    if reference.dtype.kind != "f":
        return {"unequal": float(np.count_nonzero(reference != answer)) / reference.size}
    expected, found = reference.astype(np.float64), answer.astype(np.float64)
    sound = np.isfinite(expected)
    alike = np.where(sound, np.isfinite(found), (expected == found) | (np.isnan(expected) & np.isnan(found)))
    finite = float(np.count_nonzero(alike)) / alike.size
    both = sound & np.isfinite(found)
    if not both.any():
        return {"finite": finite}
    figures = {"finite": finite, "top1": _top1(reference, answer), **_distances(expected[both], found[both])}
    return {**figures, "outliers": _outliers(np.where(both, expected, 0.0), np.where(both, found, 0.0), element)}


def _outliers(expected: _Floats, found: _Floats, element: float) -> float:
    """Share of elements that are off by more than `element` of the largest value beside them.

    Beside them means in their row or in their column, whichever is smaller: where one tensor holds boxes in pixels and
    scores below one, a wrong score must not hide behind the boxes.
    """
    size = np.abs(expected)
    scale = size.max(axis=-1, keepdims=True) if size.ndim else size
    if size.ndim >= 2:
        scale = np.minimum(scale, size.max(axis=-2, keepdims=True))
    return float(np.mean(np.abs(expected - found) > element * scale + _TINY))


def _distances(expected: _Floats, found: _Floats) -> dict[str, float]:
    # Scaled to about one, so that squares of huge values do not overflow.
    scale = max(float(np.abs(expected).max()), float(np.abs(found).max())) or 1.0
    one, other = expected / scale, found / scale
    norm, length = float(np.linalg.norm(one)), float(np.linalg.norm(other))
    difference = np.abs(one - other)
    distance = float(np.linalg.norm(difference))
    # Two outputs of zeros point nowhere; they are equal or they are not.
    cosine = float(one @ other) / (norm * length) if norm and length else float(norm == length)
    relative = distance / norm if norm else (0.0 if distance == 0 else 1.0)
    return {"cosine": cosine, "relative_l2": relative, "p99_abs": float(np.quantile(difference, 0.99)) * scale}


def _top1(reference: Array, answer: Array) -> float:
    """Share of rows whose largest element is the same; rows are the last axis."""
    if reference.ndim < 2:
        return 1.0
    return float(np.mean(np.argmax(reference, axis=-1) == np.argmax(answer, axis=-1)))
