"""Compares an engine's answers with the reference's. Pure: arrays in, figures and a verdict out."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
import numpy.typing as npt

from edged.store.record import Verdict
from edged.tensors import Array

_Floats = npt.NDArray[np.float64]


class Tolerance(msgspec.Struct, frozen=True):
    """How far an engine may be from the reference. All figures are the worst over outputs and samples."""

    cosine: float  # at least: cosine of the angle between the flattened outputs
    relative_l2: float  # at most: norm of the difference over norm of the reference
    unequal: float  # at most: share of elements that differ, for integers, booleans and strings
    finite: float = 1.0  # at least: share of elements that are finite where the reference is


# Reassociated sums move float32 answers by about 1e-6; halves by about 1e-3. Far above that something is wrong.
TOLERANCES = {
    "fp32": Tolerance(cosine=0.99999, relative_l2=2e-3, unequal=0.001),
    "fp16": Tolerance(cosine=0.999, relative_l2=3e-2, unequal=0.01),
    "bf16": Tolerance(cosine=0.995, relative_l2=1e-1, unequal=0.02),
    "int8": Tolerance(cosine=0.98, relative_l2=2e-1, unequal=0.05),
}


def judge(pairs: Iterable[tuple[dict[str, Array], dict[str, Array]]], tolerance: Tolerance) -> Verdict:
    """The verdict over (reference outputs, engine outputs) of every sample."""
    worst = {"cosine": 1.0, "relative_l2": 0.0, "p99_abs": 0.0, "unequal": 0.0, "finite": 1.0, "top1": 1.0}
    compared = 0
    for expected, answer in pairs:
        for name, reference in expected.items():
            found = answer.get(name)
            if found is None or found.shape != reference.shape or found.dtype != reference.dtype:
                got = "nothing" if found is None else f"{found.dtype}{list(found.shape)}"
                reason = f"output {name!r}: {got} instead of {reference.dtype}{list(reference.shape)}"
                return Verdict(False, reason, {})
            compared += 1
            for figure, value in _figures(reference, found).items():
                keep_low = figure in ("cosine", "finite", "top1")
                worst[figure] = min(worst[figure], value) if keep_low else max(worst[figure], value)
    if not compared:
        return Verdict(False, "nothing to compare: the reference's outputs differ from run to run", {})
    return _decide(worst, tolerance)


def _decide(figures: dict[str, float], tolerance: Tolerance) -> Verdict:
    rounded = {name: float(f"{value:.6g}") for name, value in figures.items()}
    for name, bound, is_floor in (
        ("finite", tolerance.finite, True),
        ("cosine", tolerance.cosine, True),
        ("relative_l2", tolerance.relative_l2, False),
        ("unequal", tolerance.unequal, False),
    ):
        value = figures[name]
        if value < bound if is_floor else value > bound:
            relation = "below" if is_floor else "above"
            return Verdict(False, f"{name} {value:.6g} is {relation} {bound:g} against the reference", rounded)
    return Verdict(True, "", rounded)


def _figures(reference: Array, answer: Array) -> dict[str, float]:
    if reference.size == 0:
        return {}
    if reference.dtype.kind != "f":
        return {"unequal": float(np.count_nonzero(reference != answer)) / reference.size}
    expected, found = reference.astype(np.float64).ravel(), answer.astype(np.float64).ravel()
    sound = np.isfinite(expected)
    finite = float(np.count_nonzero(np.isfinite(found) == sound)) / sound.size
    both = sound & np.isfinite(found)
    if not both.any():
        return {"finite": finite}
    return {"finite": finite, "top1": _top1(reference, answer), **_distances(expected[both], found[both])}


def _distances(expected: _Floats, found: _Floats) -> dict[str, float]:
    norm, other = float(np.linalg.norm(expected)), float(np.linalg.norm(found))
    difference = np.abs(expected - found)
    distance = float(np.linalg.norm(difference))
    # Two outputs of zeros point nowhere; they are equal or they are not.
    cosine = float(expected @ found) / (norm * other) if norm and other else float(norm == other)
    relative = distance / norm if norm else (0.0 if distance == 0 else 1.0)
    return {"cosine": cosine, "relative_l2": relative, "p99_abs": float(np.quantile(difference, 0.99))}


def _top1(reference: Array, answer: Array) -> float:
    """Share of rows whose largest element is the same; rows are the last axis."""
    if reference.ndim < 2:
        return 1.0
    return float(np.mean(np.argmax(reference, axis=-1) == np.argmax(answer, axis=-1)))
