"""The best classes of an output, as text: the classification extension. Pure."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from edged.errors import InvalidInput, TooLarge
from edged.raw_contents import to_array
from edged.serving.work import OutputView
from edged.tensors import Array

_UNFIT = ("BYTES", "BOOL")
_MOST_ENTRIES = 1 << 16  # of one answer: the daemon writes them between frames of cameras


def classify(tensor: OutputView, classes: int, labels: Sequence[str], by_row: bool) -> OutputView:
    """A BYTES tensor of at most `classes` strings `SCORE:INDEX` or `SCORE:INDEX:LABEL`, the highest score first.

    `by_row`: for each row of the first dimension, shape [rows, n]; otherwise of all values, shape [n]. Equal scores
    come in the order of their indexes, what is not a number last. InvalidInput for an output without numbers, TooLarge
    for more strings than are worth writing.
    """
    if tensor.datatype in _UNFIT:
        raise InvalidInput(f"output {tensor.name!r} is {tensor.datatype} and holds no scores; ask for it as it is")
    shape = tensor.shape
    values = to_array(tensor.name, tensor.datatype, shape, tensor.data)
    scores = _widened(values, tensor.datatype)
    by_row = by_row and bool(shape)
    rows = scores.reshape(shape[0] if by_row else 1, -1) if scores.size else np.empty((shape[0] if by_row else 1, 0))
    count = min(classes, rows.shape[1])
    if len(rows) * count > _MOST_ENTRIES:
        raise TooLarge(
            f"output {tensor.name!r} would be {len(rows) * count} classes; ask for fewer, at most {_MOST_ENTRIES}"
        )
    strings = [_entry(row, index, labels) for row in rows for index in _best(row, count)]
    data = b"".join(struct.pack("<I", len(text)) + text for text in strings)
    return OutputView(tensor.name, "BYTES", (len(rows), count) if by_row else (count,), memoryview(data))


def _widened(values: Array, datatype: str) -> Array:
    if datatype == "BF16":  # the upper half of a float32
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32) if datatype == "FP16" else values


def _best(row: Array, count: int) -> list[int]:
    """The indexes of the `count` highest scores. Outputs are not sorted whole: a few of very many are asked for."""
    if not count:
        return []
    known = np.arange(len(row)) if row.dtype.kind in "iu" else np.flatnonzero(~np.isnan(row))
    scores = row[known]
    if count < len(known):
        lowest = np.partition(scores, len(scores) - count)[len(scores) - count]
        above = np.flatnonzero(scores > lowest)
        equal = np.flatnonzero(scores == lowest)[: count - len(above)]
        chosen = np.sort(np.concatenate([above, equal]))
        known, scores = known[chosen], scores[chosen]
    # Sorting ascending from the far end and turning it round keeps equal scores in order.
    order = len(scores) - 1 - np.argsort(scores[::-1], kind="stable")[::-1]
    best = known[order]
    if len(best) < count:
        best = np.concatenate([best, np.flatnonzero(np.isnan(row))[: count - len(best)]])
    return [int(index) for index in best]


def _entry(row: Array, index: int, labels: Sequence[str]) -> bytes:
    score = f"{float(row[index]):f}" if row.dtype.kind == "f" else f"{int(row[index])}"
    label = f":{labels[index]}" if index < len(labels) and labels[index] else ""
    return f"{score}:{index}{label}".encode()
