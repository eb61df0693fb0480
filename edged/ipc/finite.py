"""NaN and infinity in outputs: the host finds them, the daemon counts how often a model had them lately."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from edged.errors import NotFinite
from edged.models.limits import FINITE, Bounds
from edged.tensors import Array, TensorSpec

QUIET_SECONDS = 300.0  # without one, after which a spell is over
_FLOATS = ("FP16", "BF16", "FP32", "FP64")
# 16-bit formats are checked as integers: an exponent of all ones is NaN or infinity. numpy has no bfloat16 and takes
# twenty times as long for float16.
_EXPONENTS = {"FP16": 0x7C00, "BF16": 0x7F80}


def is_finite(array: Array, datatype: str) -> bool:
    """Whether all of an output is finite; takes about as long as reading it once."""
    exponent = _EXPONENTS.get(datatype)
    if exponent is None or not array.size:
        return bool(np.count_nonzero(np.isfinite(array)) == array.size)  # `all` of a small array takes twice as long
    return int((array.view(np.uint16) & exponent).max()) < exponent


def watched(bounds: Bounds, outputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """The outputs of a model that are checked: those of floats, or none if its settings say so."""
    if bounds.finite == "ignore":
        return ()
    return tuple(spec for spec in outputs if spec.datatype in _FLOATS)


class FiniteCheck:
    """Checks the outputs of one model."""

    def __init__(self, bounds: Bounds, outputs: Sequence[TensorSpec]) -> None:
        self._datatypes = {spec.name: spec.datatype for spec in watched(bounds, outputs)}
        self._model, self._refuses = bounds.model, bounds.finite == "refuse"

    def bad(self, outputs: Mapping[str, Array], row: int | None = None, rows: int = 1) -> tuple[str, ...]:
        """Names of the outputs that hold NaN or infinity; with `row`, of that row only."""
        found = []
        for name, datatype in self._datatypes.items():
            array = outputs.get(name)
            if array is not None and not is_finite(array if row is None else _row(array, row, rows), datatype):
                found.append(name)
        return tuple(found)

    def require(self, bad: tuple[str, ...]) -> None:
        """Raise NotFinite if an output is not finite and the model's settings refuse that."""
        if bad and self._refuses:
            raise NotFinite(
                f"output {bad[0]!r} of model {self._model!r} holds NaN or infinity, which {FINITE}=refuse refuses;"
                " check what was sent, or let the model compute in fp32 (precisions=fp32)",
                bad,
            )


def _row(array: Array, row: int, rows: int) -> Array:
    is_rows = rows > 1 and array.ndim > 0 and array.shape[0] == rows
    return array[row : row + 1] if is_rows else array


class Spell(msgspec.Struct, frozen=True):
    """A period in which an output was not always finite: seconds of time.monotonic(), and answers since it began."""

    output: str
    began: float
    last: float
    bad: int
    answers: int


class Finiteness:
    """Counts the answers of one model that were not finite. `counts` is the total by output."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._answers = 0
        self._spells: dict[str, Spell] = {}  # `answers` is the count before it began

    def answered(self, bad: Iterable[str], now: float) -> None:
        """Count an answer; `bad` are its outputs that hold NaN or infinity."""
        for output in bad:
            self.counts[output] += 1
            known = self._spells.get(output)
            if known is None or now - known.last > QUIET_SECONDS:
                known = Spell(output, now, now, 0, self._answers)
            self._spells[output] = msgspec.structs.replace(known, last=now, bad=known.bad + 1)
        self._answers += 1

    def spells(self, now: float) -> tuple[Spell, ...]:
        """The spells that are not over."""
        return tuple(
            msgspec.structs.replace(spell, answers=self._answers - spell.answers)
            for spell in self._spells.values()
            if now - spell.last <= QUIET_SECONDS
        )
