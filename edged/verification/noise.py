"""How far two right answers to one probe may be apart. Pure.

Two runtimes add in another order and approximate functions differently, so their answers differ in the last bits of
whatever was added up. How much that is for one model is measured on the reference: it is asked again with every input
moved by one step of its type (`nudged`). What that does not show is the accuracy of a runtime's functions, which goes
by the range of a function and not by its value: ONNX Runtime's Sigmoid is off by 9e-8 also where its value is 1e-9. So
noise is at least one step of float32 at the largest value that the output ever has, or at one for probabilities.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from edged.tensors import Array

_Floats = npt.NDArray[np.float64]

# Right engines were seen to be off by up to 21 times the noise, and by more than 8 in two of 1,000 elements at most:
# ONNX Runtime and OpenVINO, with detectors, classifiers, readers of text and of voices, on x86 with AVX-512.
_FACTOR = 16.0
_STEP = float(np.finfo(np.float32).eps)
_SEED = 20240301


class Noise(msgspec.Struct, frozen=True):
    """How far one output moves, by row and by column of its last two axes of more than one element; either holds for
    all of its elements, so that the smaller one does."""

    rows: Array
    columns: Array
    least: float = 0.0

    def floor(self) -> _Floats:
        """The difference from which on an element is off; broadcasts to the output without its axes of one element."""
        return np.asarray(_FACTOR * np.maximum(np.minimum(self.rows, self.columns), self.least), np.float64)


UNMEASURED = Noise(np.zeros((), np.float32), np.zeros((), np.float32))


def nudged(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Inputs whose floats are each moved up or down by one step of their type; always the same."""
    random = np.random.default_rng(_SEED)
    return {name: _moved(array, random) for name, array in inputs.items()}


def measured(answer: Mapping[str, Array], moved: Mapping[str, Array]) -> dict[str, Noise]:
    """The noise of every output of floats, from the answers to a probe and to the same one `nudged`."""
    return {name: _noise(array, moved.get(name)) for name, array in answer.items() if array.dtype.kind == "f"}


def least(answers: Iterable[Mapping[str, Array]]) -> dict[str, float]:
    """For every output of floats the noise that it has at least, from the answers to all probes."""
    ranges: dict[str, tuple[float, float]] = {}
    for answer in answers:
        for name, array in answer.items():
            if array.dtype.kind == "f" and (finite := array[np.isfinite(array)]).size:
                low, high = ranges.get(name, (np.inf, -np.inf))
                ranges[name] = min(low, float(finite.min())), max(high, float(finite.max()))
    return {name: _STEP * _scale(low, high) for name, (low, high) in ranges.items()}


def without(difference: _Floats, noise: Noise | None) -> _Floats:
    """A difference, in the output's shape, less what of it is noise."""
    if noise is None:
        return difference
    squeezed = difference.squeeze()
    rest = np.maximum(np.abs(squeezed) - noise.floor(), 0.0)
    return np.asarray(np.copysign(rest, squeezed), np.float64).reshape(difference.shape)


def _scale(low: float, high: float) -> float:
    return 1.0 if low >= 0.0 and high <= 1.0 and high > 0.0 else max(abs(low), abs(high))


def _moved(array: Array, random: np.random.Generator) -> Array:
    if array.dtype.kind != "f":
        return array
    target = np.where(random.integers(0, 2, array.shape, dtype=np.int8) > 0, np.inf, -np.inf).astype(array.dtype)
    moved: Array = np.where(array == 0, array, np.nextafter(array, target))
    return np.ascontiguousarray(moved)


def _noise(answer: Array, moved: Array | None) -> Noise:
    if moved is None or moved.shape != answer.shape or not answer.size:
        return UNMEASURED
    with np.errstate(invalid="ignore", over="ignore"):
        away = np.abs(moved.astype(np.float64) - answer.astype(np.float64)).squeeze()
    away = np.where(np.isfinite(away), away, 0.0).astype(np.float32)
    rows = away.max(axis=-1, keepdims=True) if away.ndim else away
    columns = away.max(axis=-2, keepdims=True) if away.ndim >= 2 else rows
    return Noise(rows, columns)
