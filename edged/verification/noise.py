"""How far two correct answers to one probe may differ. Pure.

Two runtimes add numbers in different orders and approximate functions differently, so their answers differ in the last
bits. To measure this difference for a model, the reference runs again with every input moved by one step of its type
(`nudged`). This does not measure how accurate a runtime's functions are. A function such as Sigmoid is approximated,
and its tiny values may be as inaccurate as its large values. ONNX Runtime's Sigmoid is off by 9e-8 even if its value is
1e-9. OpenVINO's Softplus is off by 8e-6 even if its value is 1e-30.

So the noise of an element has a lower limit, which is one step of float32 at the larger of two values. One is the
largest value of the element's row or of its column in all probes, whichever is smaller. The other is the largest value
of the whole output, but at most 32. A table may have pixels next to scores, or masked columns of -1e9. Without the
bound of 32, these values would excuse wrong scores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from edged.tensors import Array

_Floats = npt.NDArray[np.float64]

# Measured: correct engines are off by up to 21 times the noise, and by more than 8 times in at most 2 of 1,000 elements
# (ONNX Runtime and OpenVINO, with detectors, classifiers, text and speech recognition, on x86 with AVX-512).
_FACTOR = 16.0
_STEP = float(np.finfo(np.float32).eps)
_WHOLE = 32.0  # the largest value of a whole output that counts for each of its elements
_SEED = 20240301


class Maxima(msgspec.Struct, frozen=True):
    """The maximum of each row and of each column of one output. (Rows and columns are the last two axes with more than
    one element.) Both maxima bound an element, so the smaller one counts."""

    rows: Array
    columns: Array

    @classmethod
    def of(cls, values: Array) -> Maxima:
        """Return the maxima of `values`. No value may be negative, and no axis may have only one element."""
        rows = values.max(axis=-1, keepdims=True) if values.ndim else values
        return cls(rows, values.max(axis=-2, keepdims=True) if values.ndim >= 2 else rows)

    def joined(self, other: Maxima) -> Maxima:
        """Return the maxima over two outputs of the same shape."""
        return Maxima(np.maximum(self.rows, other.rows), np.maximum(self.columns, other.columns))

    def bounds(self) -> Array:
        """Return an upper bound of each element. The result broadcasts to the shape that remains if axes of size 1 are
        removed from the output's shape."""
        return np.asarray(np.minimum(self.rows, self.columns))


class Noise(msgspec.Struct, frozen=True):
    """How far two correct answers may differ in each element of one output. `change` is the measured difference.
    `least` is the lower limit of the noise, which also holds for an output that does not change."""

    change: Maxima
    least: Maxima

    def floor(self) -> _Floats:
        """Return, for each element, the largest difference that counts as noise. It broadcasts like `Maxima.bounds`."""
        return np.asarray(_FACTOR * np.maximum(self.change.bounds(), self.least.bounds()), np.float64)


_NONE = Maxima(np.zeros((), np.float32), np.zeros((), np.float32))
UNMEASURED = Noise(_NONE, _NONE)


def nudged(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return the inputs with each float, except zeros, moved up or down by one step of its type. The same inputs always
    move the same way."""
    random = np.random.default_rng(_SEED)
    return {name: _moved(array, random) for name, array in inputs.items()}


def measured(answer: Mapping[str, Array], moved: Mapping[str, Array]) -> dict[str, Noise]:
    """Return the noise of every float output. The noise is the difference between `answer`, the answer to a probe, and
    `moved`, the answer to the same probe after `nudged`."""
    return {name: _noise(array, moved.get(name)) for name, array in answer.items() if array.dtype.kind == "f"}


def least(answers: Iterable[Mapping[str, Array]]) -> dict[tuple[str, tuple[int, ...]], Maxima]:
    """Return the lower limit of the noise of every float output, as a mapping from (name, shape) to the limit. The
    limits are computed from the answers to all probes."""
    sizes: dict[tuple[str, tuple[int, ...]], Maxima] = {}
    ranges: dict[str, tuple[float, float]] = {}
    for answer in answers:
        for name, array in answer.items():
            if array.dtype.kind == "f" and array.size:
                finite = np.where(np.isfinite(array), array, array.dtype.type(0))
                low, high = ranges.get(name, (np.inf, -np.inf))
                ranges[name] = min(low, float(finite.min())), max(high, float(finite.max()))
                size, key = Maxima.of(np.abs(finite, out=finite).squeeze()), (name, array.shape)
                sizes[key] = sizes[key].joined(size) if key in sizes else size
    return {key: _steps(size, _smallest_scale(*ranges[key[0]])) for key, size in sizes.items()}


def without(difference: _Floats, noise: Noise | None) -> _Floats:
    """Return a difference minus its noise, in the output's shape. A difference within the noise becomes 0."""
    if noise is None:
        return difference
    squeezed = difference.squeeze()
    rest = np.maximum(np.abs(squeezed) - noise.floor(), 0.0)
    return np.asarray(np.copysign(rest, squeezed), np.float64).reshape(difference.shape)


def _smallest_scale(low: float, high: float) -> float:
    """Return the smallest scale of an output with values from `low` to `high`. The noise of each element is at least
    one step at this scale. If no value is negative, the values may be scores. Scores can be up to 1, even if they are
    tiny in all probes. So the scale is then at least 1."""
    largest = min(_WHOLE, max(abs(low), abs(high)))
    return max(1.0, largest) if low >= 0.0 and high > 0.0 else largest


def _steps(size: Maxima, smallest: float) -> Maxima:
    rows, columns = (
        _STEP * np.maximum(side.astype(np.result_type(side.dtype, np.float32)), smallest)
        for side in (size.rows, size.columns)
    )
    return Maxima(np.asarray(rows), np.asarray(columns))


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
    return Noise(Maxima.of(np.where(np.isfinite(away), away, 0.0).astype(np.float32)), _NONE)
