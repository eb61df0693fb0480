"""Reads an engine's output tensors and checks their shapes before they are decoded.

A model file can leave sizes open or declare them wrongly, and runtimes return whatever the graph computes: a tensor of
unexpected shape must not be decoded as boxes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from edged.errors import EngineUnusable
from edged.tensors import Array

Size: TypeAlias = int | range

ANY = range(sys.maxsize)
AT_LEAST_ONE = range(1, sys.maxsize)

# Floats, and integers as used for labels and counts. Shorter integers are quantised values, or hold BF16.
_NUMBERS = "efdilq"


def at_least(size: int) -> Size:
    return range(size, sys.maxsize)


def checked_tensor(outputs: Mapping[str, Array], name: str, *sizes: Size) -> Array:
    """Return the numeric tensor `name`; EngineUnusable if it is missing or an axis is not of the given size."""
    found = outputs.get(name)
    if found is None:
        raise EngineUnusable(f"the engine returned no output {name}; set family=raw to get the outputs that it returns")
    if found.dtype.char not in _NUMBERS or len(found.shape) != len(sizes) or not all(map(_fits, found.shape, sizes)):
        raise _unexpected(name, found, sizes)
    return found


def picture_tensor(outputs: Mapping[str, Array], name: str, index: int, *sizes: Size) -> Array:
    """Return picture `index` of a batched tensor; EngineUnusable if it is not there, or as `checked_tensor`."""
    found = checked_tensor(outputs, name, ANY, *sizes)
    if index >= len(found):
        raise _unexpected(name, found, (at_least(index + 1), *sizes))
    part: Array = found[index]
    return part


def picture_vector(outputs: Mapping[str, Array], name: str, index: int, size: Size) -> Array:
    """Return picture `index` of a tensor [N, size]; further axes of size 1 are dropped."""
    found = outputs.get(name)
    if found is not None and found.ndim > 2 and all(extent == 1 for extent in found.shape[2:]):
        outputs = {name: found.reshape(found.shape[:2])}
    return picture_tensor(outputs, name, index, size)


def picture_scalar(outputs: Mapping[str, Array], name: str, index: int) -> float:
    """Return the value of picture `index` in a tensor [N]; further axes of size 1 are dropped."""
    found = outputs.get(name)
    if found is not None and found.ndim > 1:
        return float(picture_vector(outputs, name, index, 1)[0])
    return float(picture_tensor(outputs, name, index))


def counted(outputs: Mapping[str, Array], names: Sequence[str], index: int) -> tuple[Array, Array, Array]:
    """Return boxes [n, 4], scores [n] and class ids [n] of picture `index`, of a graph that pads to a fixed length.

    `names` are the tensors of the count ([N] or [N, 1]), the boxes [N, K, 4], scores and class ids [N, K]. A count that
    is not finite is taken as zero, one above K as K. EngineUnusable if the shapes differ from these.
    """
    count, boxes, scores, class_ids = names
    all_boxes = picture_tensor(outputs, boxes, index, ANY, 4)
    all_scores, ids = (picture_vector(outputs, name, index, len(all_boxes)) for name in (scores, class_ids))
    value = picture_scalar(outputs, count, index)
    n = int(min(max(value, 0), len(all_boxes))) if np.isfinite(value) else 0
    return all_boxes[:n], all_scores[:n], ids[:n]


def _fits(extent: int, size: Size) -> bool:
    return extent in size if isinstance(size, range) else extent == size


def _unexpected(name: str, found: Array, sizes: tuple[Size, ...]) -> EngineUnusable:
    wanted = ",".join(map(_size_text, sizes))
    got = ",".join(map(str, found.shape))
    return EngineUnusable(
        f"output {name} is {found.dtype}[{got}], expected numbers [{wanted}]: the model's output differs from"
        " what its file declares, or the model is of another family; set family, or family=raw"
    )


def _size_text(size: Size) -> str:
    if not isinstance(size, range):
        return str(size)
    return f">={size.start}" if size.start > 1 else "any"
