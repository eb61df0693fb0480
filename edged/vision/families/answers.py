"""What an engine answered, held to what a decoder reads.

A file can leave sizes open and can be wrong about the rest, and runtimes answer with whatever comes out: a tensor of
other sizes must not be taken for boxes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TypeAlias

from edged.errors import EngineUnusable
from edged.tensors import Array

Size: TypeAlias = int | range

ANY = range(sys.maxsize)
SOME = range(1, sys.maxsize)

# Floats, and integers as labels and counts are; shorter ones are quantised, or hold BF16.
_NUMBERS = "efdilq"


def at_least(size: int) -> Size:
    return range(size, sys.maxsize)


def whole(outputs: Mapping[str, Array], name: str, *sizes: Size) -> Array:
    """A tensor of numbers with an axis of each of these sizes. EngineUnusable where it is another or missing."""
    found = outputs.get(name)
    if found is None:
        raise EngineUnusable(f"the engine gave no {name}; set family=raw for the tensors that it gives")
    if found.dtype.char not in _NUMBERS or len(found.shape) != len(sizes) or not all(map(_fits, found.shape, sizes)):
        raise _strange(name, found, sizes)
    return found


def picture(outputs: Mapping[str, Array], name: str, index: int, *sizes: Size) -> Array:
    """Of a tensor, batch first, the part of one picture. EngineUnusable as for `whole`, or where it is not there."""
    found = whole(outputs, name, ANY, *sizes)
    if index >= len(found):
        raise _strange(name, found, (at_least(index + 1), *sizes))
    part: Array = found[index]
    return part


def line(outputs: Mapping[str, Array], name: str, index: int, size: Size) -> Array:
    """As `picture`, one value after the other: further axes of one are no axes."""
    found = outputs.get(name)
    if found is not None and found.ndim > 2 and all(extent == 1 for extent in found.shape[2:]):
        outputs = {name: found.reshape(found.shape[:2])}
    return picture(outputs, name, index, size)


def number(outputs: Mapping[str, Array], name: str, index: int) -> float:
    """The one value of a picture in a tensor [N], or with further axes of one. EngineUnusable as for `picture`."""
    found = outputs.get(name)
    if found is not None and found.ndim > 1:
        return float(line(outputs, name, index, 1)[0])
    return float(picture(outputs, name, index))


def _fits(extent: int, size: Size) -> bool:
    return extent in size if isinstance(size, range) else extent == size


def _strange(name: str, found: Array, sizes: tuple[Size, ...]) -> EngineUnusable:
    wanted = ",".join(map(_told, sizes))
    got = ",".join(map(str, found.shape))
    return EngineUnusable(
        f"{name} came out as {found.dtype}[{got}] and is read as numbers [{wanted}]: the model does not answer as its"
        " file says, or is of another family; set family, or family=raw for its tensors"
    )


def _told(size: Size) -> str:
    if not isinstance(size, range):
        return str(size)
    return f">={size.start}" if size.start > 1 else "any"
