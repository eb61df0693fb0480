"""Signatures: patterns for the names and shapes of a model's tensors, and the points that a tensor gets for a match.

Examples of signatures, with or without inputs:

    scores [N, P, slots], boxes [N, P, 4]
    images, orig_target_sizes [N, 2] -> labels [N, Q], boxes [N, Q, 4], scores [N, Q]
    input_ids, ... -> logits [N, L, V], present*, ...

- A tensor without a name in the signature may have any name, and a tensor without brackets any shape. `[]` is a scalar.
  `a|b` is one of two names. `a?`: the name is usually `a`, but any other name is possible, too. `a*` stands for one or
  more tensors whose names begin with `a`. `...` at the end allows further tensors. Without `->`, inputs do not matter.
- `N` is the batch, which is not compared. `H` and `W` are the sides of the picture, `H/8` is a side of a grid, rounded
  up. `cells` counts the cells of all grids of strides 8, 16 and 32. `cells64` and `cells128` also count the grids of
  larger strides, up to 64 and 128. `cells/8` counts only the grid of stride 8.
- Other words stand for a number of at least 1, the same number in the whole signature: `5+classes`, `3*cells`,
  `classes+32`. `scale*H` is `H` times a whole number of at least 2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from edged.tensors import Dim, TensorSpec

_LONGEST_TEXT = 160
_GRID, _NUMBER = 2, 1  # the points for an equal size of a grid, and for another equal number

_SPLIT = re.compile(r",(?![^\[]*\])")  # commas outside brackets
_TENSOR = re.compile(r"(?P<name>[^\s\[]*)\s*(?:\[(?P<dims>[^\]]*)\])?")
_DIM = re.compile(
    r"(?:(?P<add>\d+)\+)?(?:(?P<times>\w+)\*)?(?P<symbol>[A-Za-z]\w*)(?:/(?P<over>\d+))?(?:\+(?P<more>\d+))?"
)
_USUAL = re.compile(r"\S+\? ")
_STRIDES = {"cells": (8, 16, 32), "cells64": (8, 16, 32, 64), "cells128": (8, 16, 32, 64, 128)}
_BATCH = "N"

Values: TypeAlias = dict[str, int]  # the numbers that words stand for


class DimPattern(msgspec.Struct, frozen=True):
    """One dimension: `add + times * symbol / over`. Without a symbol, the dimension is `add`. `scale`, if set, is a
    word that replaces the factor `times`."""

    add: int = 0
    times: int = 1
    symbol: str = ""
    over: int = 1
    scale: str = ""

    def value(self, values: Mapping[str, int]) -> int | None:
        """Return the size of the dimension if `values` has the numbers for its words, otherwise None."""
        if not self.symbol:
            return self.add
        base = _geometry(self.symbol, self.over, values)
        scale = values.get(self.scale) if self.scale else self.times
        return None if base is None or scale is None else self.add + scale * base

    def points(self, actual: Dim, values: Values) -> int | None:
        """Return the points for the dimension `actual` if it matches, otherwise None. If the pattern has a word that is
        not in `values`, add the word with its number."""
        if isinstance(actual, str) or self.symbol == _BATCH:
            return 0
        known = self.value(values)
        if known is not None:
            is_grid = known > 1 and (self.symbol in ("H", "W") or self.symbol in _STRIDES)
            return (_GRID if is_grid else _NUMBER) if actual == known else None
        word, part = self.symbol, self.times
        if self.scale:
            base = _geometry(self.symbol, self.over, values)
            if base is None:
                return 0
            word, part = self.scale, base
        elif self.over != 1 or self.symbol in _STRIDES:
            return 0  # the size of the picture is not known
        number, rest = divmod(actual - self.add, part)
        if rest or number < (2 if self.scale else 1):
            return None
        values[word] = number
        return _GRID if self.scale else 0


class TensorPattern(msgspec.Struct, frozen=True):
    """One tensor of a signature. `names` are the possible names, empty for any name. If `is_usual`, other names are
    possible, too. If `is_start`, the pattern stands for all tensors whose names begin with one of `names`. `dims` is
    None if the shape does not matter."""

    names: tuple[str, ...] = ()
    dims: tuple[DimPattern, ...] | None = None
    is_usual: bool = False
    is_start: bool = False
    text: str = ""  # as written

    @property
    def has_fixed_name(self) -> bool:
        return bool(self.names) and not self.is_usual

    def has_name(self, name: str) -> bool:
        return any(map(name.startswith, self.names)) if self.is_start else name in self.names

    def points(self, spec: TensorSpec, values: Values) -> int | None:
        """Return the points for the shape of a tensor if it matches, otherwise None. The name does not count."""
        if self.dims is None:
            return 0
        if len(self.dims) != len(spec.shape):
            return None
        tried, total = dict(values), 0
        for pattern, actual in zip(self.dims, spec.shape, strict=True):
            points = pattern.points(actual, tried)
            if points is None:
                return None
            total += points
        values.update(tried)
        return total

    def shape(self, values: Mapping[str, int]) -> str:
        """Return the shape as text. A dimension that depends on the size of the picture is a number. All other
        dimensions are as written in the signature."""
        shown = []
        for written, dim in zip(self.text.split(","), self.dims or (), strict=False):
            value = dim.value(values) if dim.symbol in _STRIDES or dim.symbol in ("H", "W") else None
            shown.append(written.strip() if value is None else str(value))
        return f"[{', '.join(shown)}]"


class Signature(msgspec.Struct, frozen=True):
    """The tensors of a kind of model, in one of its forms. `inputs` is empty if only the outputs matter. `more_outputs`
    and `more_inputs` allow further tensors."""

    outputs: tuple[TensorPattern, ...]
    inputs: tuple[TensorPattern, ...] = ()
    more_outputs: bool = False
    more_inputs: bool = False
    text: str = ""


def pattern(text: str) -> Signature:
    """Parse a signature; see the module. Raises ValueError if the text is not a signature."""
    before, arrow, after = text.rpartition("->")
    inputs, more_inputs = _tensors(before) if arrow else ((), False)
    outputs, more_outputs = _tensors(after)
    return Signature(outputs, inputs, more_outputs, more_inputs, text)


def patterns(*texts: str) -> tuple[Signature, ...]:
    """Parse the signatures of one kind of model, one for each of its forms."""
    return tuple(map(pattern, texts))


def needs(known: Signature) -> str:
    """Return a signature as written, without names such as `a?`, shortened to one line."""
    text = _USUAL.sub("", known.text)
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT].rpartition(', ')[0]}, ..."


def _geometry(symbol: str, over: int, values: Mapping[str, int]) -> int | None:
    """Return the number for a symbol: a side of the picture or of a grid, a number of cells, or the number that another
    word stands for. Return None if the number is not known."""
    if symbol not in _STRIDES:
        value = values.get(symbol)
        return None if value is None else -(-value // over)
    height, width = values.get("H"), values.get("W")
    if height is None or width is None:
        return None
    strides = _STRIDES[symbol] if over == 1 else (over,)
    return sum(-(-width // s) * -(-height // s) for s in strides)


def _tensors(text: str) -> tuple[tuple[TensorPattern, ...], bool]:
    parts = [part.strip() for part in _SPLIT.split(text)]
    has_more = parts[-1] == "..."
    return tuple(map(_tensor, parts[:-1] if has_more else parts)), has_more


def _tensor(text: str) -> TensorPattern:
    found = _TENSOR.fullmatch(text)
    if found is None or not text:
        raise ValueError(f"tensor {text!r} of a signature is invalid; write it like 'scores? [N, classes]'")
    name, dims = found["name"], found["dims"]
    return TensorPattern(
        tuple(name.rstrip("*?").split("|")) if name else (),
        None if dims is None else tuple(map(_dim, dims.split(","))) if dims.strip() else (),
        is_usual=name.endswith("?"),
        is_start=name.endswith("*"),
        text=dims or "",
    )


def _dim(text: str) -> DimPattern:
    text = text.strip()
    if text.isdecimal():
        return DimPattern(int(text))
    found = _DIM.fullmatch(text)
    if found is None:
        raise ValueError(f"dimension {text!r} of a signature is invalid; write it like '4', 'H/8' or '4+classes'")
    times = found["times"] or "1"
    return DimPattern(
        int(found["add"] or 0) + int(found["more"] or 0),
        int(times) if times.isdecimal() else 1,
        found["symbol"],
        int(found["over"] or 1),
        "" if times.isdecimal() else times,
    )
