"""NaN and infinity in outputs: the host finds them, and the daemon counts the answers with them for each output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from edged.errors import NotFinite
from edged.models.limits import FINITE, Bounds
from edged.tensors import Array, TensorSpec

QUIET_SECONDS = 300.0  # a `Spell` is over after this long without NaN or infinity
_FLOATS = ("FP16", "BF16", "FP32", "FP64")
# 16-bit formats are checked as integers: a number whose exponent is all ones is NaN or infinity. numpy has no bfloat16,
# and takes twenty times as long for float16.
_EXPONENTS = {"FP16": 0x7C00, "BF16": 0x7F80}


def is_finite(array: Array, datatype: str) -> bool:
    """Whether all elements of an output are finite. Takes about as long as reading the array once."""
    exponent = _EXPONENTS.get(datatype)
    if exponent is None or not array.size:
        return bool(np.count_nonzero(np.isfinite(array)) == array.size)  # `np.all` takes twice as long on small arrays
    return int((array.view(np.uint16) & exponent).max()) < exponent


def watched(bounds: Bounds, outputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Return the outputs of a model that are checked: those of float datatypes; none if the settings disable checks."""
    if bounds.finite == "ignore":
        return ()
    return tuple(spec for spec in outputs if spec.datatype in _FLOATS)


class FiniteCheck:
    """Checks the outputs of one model."""

    def __init__(self, bounds: Bounds, outputs: Sequence[TensorSpec]) -> None:
        self._datatypes = {spec.name: spec.datatype for spec in watched(bounds, outputs)}
        self._model, self._refuses = bounds.model, bounds.finite == "refuse"

    def bad(self, outputs: Mapping[str, Array], row: int | None = None, rows: int = 1) -> tuple[str, ...]:
        """Return the names of the outputs that contain NaN or infinity. With `row`, check only this row of each output
        that has `rows` rows. Other outputs are checked as a whole, and so are all outputs if `rows` is 1."""
        found = []
        for name, datatype in self._datatypes.items():
            array = outputs.get(name)
            if array is not None and not is_finite(array if row is None else _row(array, row, rows), datatype):
                found.append(name)
        return tuple(found)

    def require(self, bad: tuple[str, ...]) -> None:
        """Raise NotFinite if `bad` is not empty and the model's settings say that such answers are refused."""
        if bad and self._refuses:
            raise NotFinite(
                f"output {bad[0]!r} of model {self._model!r} holds NaN or infinity, and {FINITE}=refuse is set;"
                " check the request's inputs, or let the model compute in fp32 (precisions=fp32)",
                bad,
            )


def _row(array: Array, row: int, rows: int) -> Array:
    is_rows = rows > 1 and array.ndim > 0 and array.shape[0] == rows
    return array[row : row + 1] if is_rows else array


class Spell(msgspec.Struct, frozen=True):
    """A period in which an output was sometimes not finite. `began` and `last`: times of time.monotonic(). `answers`:
    the model's answers since `began`; `bad`: how many of them contained NaN or infinity in this output."""

    output: str
    began: float
    last: float
    bad: int
    answers: int


class Finiteness:
    """Counts the answers of one model that contained NaN or infinity: `counts` has their number for each output."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._answers = 0
        self._spells: dict[str, Spell] = {}  # in these, `answers` is the model's count before the spell began

    def answered(self, bad: Iterable[str], now: float) -> None:
        """Count an answer; `bad` names its outputs that contain NaN or infinity."""
        for output in bad:
            self.counts[output] += 1
            known = self._spells.get(output)
            if known is None or now - known.last > QUIET_SECONDS:
                known = Spell(output, now, now, 0, self._answers)
            self._spells[output] = msgspec.structs.replace(known, last=now, bad=known.bad + 1)
        self._answers += 1

    def spells(self, now: float) -> tuple[Spell, ...]:
        """Return the spells that are not over at the time `now`."""
        return tuple(
            msgspec.structs.replace(spell, answers=self._answers - spell.answers)
            for spell in self._spells.values()
            if now - spell.last <= QUIET_SECONDS
        )
