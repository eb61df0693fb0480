"""Measures the values in a model on calibration data, and estimates the range of each that int8 should cover.

The largest value is a poor range if a few values are far larger than all others. Then int8 has few levels left for the
other values. So there are several estimates. `onnx_int8` chooses among them by comparing answers. All estimates are
computed from histograms, which are filled while the model runs, so that memory does not grow with the number of
pictures.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edged.backends.ort.quantize import Runner
from edged.errors import EngineUnusable
from edged.jobs.int8_layers import Value, add_watches
from edged.jobs.onnx_graph import Model
from edged.tensors import Array

_Floats = npt.NDArray[np.float64]
_BINS = 2048
_SAMPLED = 1 << 16  # about this many elements of a value are counted for one picture
_LEVELS = 127.0
_TINY = float(np.finfo(np.float32).tiny)


class Range:
    """The range of a value in one or more rows (channels). Each row has its least and largest element, and a histogram
    of the sizes (absolute values) of its elements."""

    def __init__(self, rows: int) -> None:
        self.least: _Floats = np.zeros(rows)  # zero is always in the range
        self.most: _Floats = np.zeros(rows)
        self.counts = np.zeros((rows, _BINS), np.int64)
        self.top: _Floats = np.full(rows, _TINY)  # upper end of a row's last bin

    @property
    def largest(self) -> _Floats:
        """The largest size in each row."""
        found: _Floats = np.maximum(-self.least, self.most)
        return found

    def add(self, least: _Floats, most: _Floats, some: _Floats) -> None:
        """Count the values of one inference. `least` and `most` are the bounds of each row, [rows]. `some` are the
        absolute values of a sample, [rows, n]."""
        most = np.where(np.isfinite(some).all(axis=1), most, np.inf)
        self.least, self.most = np.minimum(self.least, least), np.maximum(self.most, most)
        if not np.isfinite(self.largest).all():
            return  # no scale is possible, which `onnx_int8` reports
        self._widen()
        rows = np.arange(len(self.top))[:, None]
        bins = np.minimum((some / self.top[:, None] * _BINS).astype(np.int64), _BINS - 1)
        self.counts += np.bincount((rows * _BINS + bins).ravel(), minlength=self.counts.size).reshape(-1, _BINS)

    def _widen(self) -> None:
        """Double the width of the bins of each row until its largest value fits. A row without counts gets bins up to
        its largest value at once."""
        empty = ~self.counts.any(axis=1)
        self.top[empty] = np.maximum(self.largest[empty], _TINY)
        while (small := self.largest > self.top).any():
            folded = self.counts[small].reshape(-1, _BINS // 2, 2).sum(axis=2)
            self.counts[small] = np.concatenate([folded, np.zeros_like(folded)], axis=1)
            self.top[small] *= 2

    def percentile(self, share: float) -> _Floats:
        """Return for each row a size that `share` of the values do not exceed."""
        total = self.counts.sum(axis=1, keepdims=True)
        index = (self.counts.cumsum(axis=1) < share * total).sum(axis=1)
        found: _Floats = np.minimum((index + 1) / _BINS * self.top, self.largest)
        return found

    def least_error(self) -> _Floats:
        """Return for each row the range with the least sum of squared errors from rounding and from clipping."""
        middles, ends = (np.arange(_BINS) + 0.5) / _BINS, (np.arange(_BINS) + 1.0) / _BINS  # in units of `top`
        # Sums over the values above the end of each bin.
        number, first, second = (_above(self.counts * middles**power) for power in (0, 1, 2))
        rounded = (self.counts.sum(axis=1, keepdims=True) - number) * (ends / _LEVELS) ** 2 / 12
        error = rounded + second - 2 * ends * first + ends**2 * number
        found: _Floats = np.minimum(ends[np.argmin(error, axis=1)] * self.top, self.largest)
        return found


def _above(values: _Floats) -> _Floats:
    """Return for each element the sum of the elements after it in its row."""
    tails: _Floats = values[:, ::-1].cumsum(axis=1)[:, ::-1] - values
    return tails


# The estimates, by the names that notes show.
ESTIMATES: Mapping[str, Callable[[Range], _Floats]] = {
    "largest value": lambda found: found.largest,
    "99.99 % of the values": lambda found: found.percentile(0.9999),
    "99.9 % of the values": lambda found: found.percentile(0.999),
    "least squared error": Range.least_error,
}
LARGEST = next(iter(ESTIMATES))


def measure(
    prepared: Path,
    values: Collection[Value],
    calibration: Iterable[Mapping[str, Array]],
    work: Path,
    notify: Callable[[], None],
) -> dict[Value, Range]:
    """Run a prepared model on the calibration data, and return the range of each value. `notify` is called before each
    inference. Writes into the folder `work`.

    Raises EngineUnusable if the model does not run.
    """
    model = Model.read(prepared)
    names = add_watches(model, values, _SAMPLED)
    model.write(work / "watched.onnx")
    with _quantising():
        runner = Runner(work / "watched.onnx")
    ranges: dict[Value, Range] = {}
    for inputs in calibration:
        notify()
        with _quantising():
            answer = runner.run(inputs, [name for watch in names.values() for name in watch])
        for value, watch in names.items():
            least, most = (answer[name].astype(np.float64) for name in (watch.least, watch.most))
            # A batch counts as more values of the same channels.
            rows = answer[watch.some].transpose(1, 0, 2).reshape(least.shape[1], -1)
            found = ranges.setdefault(value, Range(len(rows)))
            found.add(least.min(axis=0), most.max(axis=0), rows.astype(np.float64))
    return ranges


@contextlib.contextmanager
def _quantising() -> Iterator[None]:
    try:
        yield
    except EngineUnusable as error:
        raise EngineUnusable(f"the model cannot be quantised: {error}; give other samples, or use fp16") from error
