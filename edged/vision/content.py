"""A content is a model's answer about a whole picture: classes, a class map, a depth map, an embedding, a text or an
anomaly.

Processes send contents to each other as MessagePack. `unpack` checks every size, because a hostile model may have taken
over the engine host (the process that runs the model) that sends the content. Detections have a separate packed form
(`edged.vision.detections`), because most frames have detections.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from edged.vision.detections import MOST_DETECTIONS, class_name

MOST_SIDE = 8192  # the largest width or height of a map
_MOST_CELLS = 1 << 22  # of a map of values: 8 MiB
# Limits of a class map, because the daemon decodes the runs and names the areas on its event loop.
_MOST_RUNS, MOST_AREAS = 1 << 15, 1000
MOST_TEXT = 4096  # characters
MOST_VALUES = 1 << 16  # of an embedding, because JSON writes the values as text
_MOST_PACKED = 9 << 20  # bytes: the largest map of values, and some more
_STEPS = 65535  # the highest level of a `ValueMap`
LARGEST = float(np.finfo(np.float32).max)  # numbers in messages are float32
_TOLERANCE = 1e-3  # of the length of an embedding

Box: TypeAlias = tuple[int, int, int, int]  # x1, y1, x2, y2 in pixels of the picture as sent
_LEVEL = np.dtype("<u2")
_FLOAT = np.dtype("<f4")


class Classes(msgspec.Struct, frozen=True, array_like=True, tag="classes", forbid_unknown_fields=True):
    """k classes, the best first. `class_ids` are the numbers of the classes, `scores` are in 0..1."""

    class_ids: tuple[int, ...] = ()
    scores: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.class_ids) > MOST_DETECTIONS:
            raise ValueError(f"there are {len(self.class_ids)} classes; at most {MOST_DETECTIONS} are possible")
        if len(self.class_ids) != len(self.scores) or not _are_float32(*self.scores):
            raise ValueError(
                f"there are {len(self.class_ids)} classes with {len(self.scores)} scores; the numbers must be equal,"
                " and all scores must be finite"
            )

    @classmethod
    def of(cls, class_ids: npt.ArrayLike, scores: npt.ArrayLike) -> Classes:
        """Convert array-likes [k]. Raises ValueError for more than `MOST_DETECTIONS` classes, for different lengths,
        and for a score that is not finite."""
        return cls(tuple(np.asarray(class_ids, np.int64).tolist()), tuple(np.asarray(scores, np.float32).tolist()))


class ClassMap(msgspec.Struct, frozen=True, array_like=True, tag="class-map", forbid_unknown_fields=True):
    """The class of every cell of a grid of `width` x `height` cells that covers the picture.

    The cells are stored as runs of equal cells, row by row from the upper left. `class_ids` has the class of each run.
    `lengths` has the number of cells in each run, at least 1; the lengths add up to width * height. If the model gets
    only a part of the picture, `box` is this part, and the map covers only this part.
    """

    width: int
    height: int
    class_ids: tuple[int, ...]
    lengths: tuple[int, ...]
    box: Box | None = None

    def __post_init__(self) -> None:
        _check_sides(self.width, self.height, self.box)
        cells = self.width * self.height
        if len(self.class_ids) != len(self.lengths) or min(self.lengths, default=0) < 1 or sum(self.lengths) != cells:
            raise ValueError(f"the runs of a class map do not add up to {self.width}x{self.height} cells")
        if len(self.lengths) > _MOST_RUNS or min(self.class_ids) < 0 or max(self.class_ids) >= 1 << 31:
            raise ValueError(
                f"a class map has {len(self.lengths)} runs, and class ids in {min(self.class_ids)}.."
                f"{max(self.class_ids)}; it must have at most {_MOST_RUNS} runs, and class ids in 0..2^31-1"
            )

    @classmethod
    def of(cls, cells: npt.NDArray[np.integer], box: Box | None = None) -> ClassMap:
        """Encode class ids [height, width]. While the map has too many runs (noise), or a side above `MOST_SIDE`, halve
        its width and height."""
        while True:
            flat = np.ascontiguousarray(cells).reshape(-1)
            starts = np.concatenate(([0], np.flatnonzero(flat[1:] != flat[:-1]) + 1))
            if len(starts) <= _MOST_RUNS and max(cells.shape) <= MOST_SIDE:
                break
            cells = cells[::2, ::2]
        lengths = np.diff(np.append(starts, flat.size))
        return cls(cells.shape[1], cells.shape[0], tuple(flat[starts].tolist()), tuple(lengths.tolist()), box)

    def cells(self) -> npt.NDArray[np.int32]:
        """Return the class ids, int32 [height, width]."""
        return np.repeat(np.array(self.class_ids, np.int32), self.lengths).reshape(self.height, self.width)

    def resized(self, width: int, height: int) -> npt.NDArray[np.int32]:
        """Return the class ids for a grid of `width` x `height` cells, int32 [height, width]. Each cell has the class
        of the nearest cell of the map. With the size of the picture (or of `box`), each cell is one pixel."""
        rows, columns = _nearest(height, self.height), _nearest(width, self.width)
        resized: npt.NDArray[np.int32] = self.cells()[rows[:, None], columns]
        return resized

    def shares(self) -> list[tuple[int, float]]:
        """Return (class id, share of the map in 0..1) of each class in the map, the largest share first. Return at most
        `MOST_AREAS` classes; only noise has more."""
        ids, index = np.unique(self.class_ids, return_inverse=True)
        areas = np.bincount(index, weights=self.lengths) / (self.width * self.height)
        order = np.argsort(-areas, kind="stable")[:MOST_AREAS]
        return list(zip(ids[order].tolist(), areas[order].tolist(), strict=True))


class ValueMap(msgspec.Struct, frozen=True, array_like=True, tag="values", forbid_unknown_fields=True):
    """A number for every cell of a grid of `width` x `height` cells that covers the picture, or `box` as in a
    `ClassMap`.

    `data` has little-endian uint16 levels, row by row. A level from 0 to 65535 stands linearly for a number from `low`
    to `high`. The rounding error is at most (high - low) / 131070.
    """

    width: int
    height: int
    low: float
    high: float
    data: bytes
    box: Box | None = None

    def __post_init__(self) -> None:
        _check_sides(self.width, self.height, self.box)
        if self.width * self.height > _MOST_CELLS:
            raise ValueError(
                f"a map of {self.width}x{self.height} values is too large; at most {_MOST_CELLS} are possible"
            )
        if len(self.data) != self.width * self.height * _LEVEL.itemsize:
            raise ValueError(
                f"the data of a map of {self.width}x{self.height} cells has {len(self.data)} bytes; each cell needs"
                f" {_LEVEL.itemsize} bytes"
            )
        if not (_are_float32(self.low, self.high) and self.low <= self.high):
            raise ValueError(
                f"the lowest value of a map is {self.low} and the highest {self.high}; both must be finite, and the"
                " first not above the second"
            )

    @classmethod
    def of(cls, values: npt.NDArray[np.floating], box: Box | None = None) -> ValueMap:
        """Encode values [height, width]. Values that are not finite as float32 become the lowest finite value, or 0 if
        no value is finite. While the map has a side above `MOST_SIDE`, or more than 4 million cells, halve its width
        and height."""
        while max(values.shape) > MOST_SIDE or values.size > _MOST_CELLS:
            values = values[::2, ::2]
        height, width = values.shape
        known = np.abs(values) <= LARGEST
        if not known.all():
            values = np.where(known, values, values.min(initial=np.inf, where=known) if known.any() else 0)
        low, high = float(values.min()), float(values.max())
        scale = _STEPS / (high - low) if high > low else 0.0
        levels = np.subtract(values, low, dtype=np.float64)
        levels *= scale
        return cls(width, height, low, high, np.rint(levels, out=levels).astype(_LEVEL).tobytes(), box)

    def levels(self) -> npt.NDArray[np.uint16]:
        """Return the levels, uint16 [height, width], read-only."""
        return np.frombuffer(self.data, _LEVEL).reshape(self.height, self.width)

    def values(self) -> npt.NDArray[np.float32]:
        """Return the numbers, float32 [height, width]."""
        found = self.levels() * ((self.high - self.low) / _STEPS) + self.low
        return found.astype(np.float32)

    def resized(self, width: int, height: int) -> npt.NDArray[np.float32]:
        """Return the numbers for a grid of `width` x `height` cells, float32 [height, width]. Each number is
        interpolated between the four nearest cells of the map. With the size of the picture (or of `box`), each cell is
        one pixel."""
        values = self.values()
        top, bottom, down = _between(height, self.height)
        left, right, across = _between(width, self.width)
        rows = values[top] * (1 - down[:, None]) + values[bottom] * down[:, None]
        resized = rows[:, left] * (1 - across) + rows[:, right] * across
        return resized.astype(np.float32, copy=False)


class Depth(msgspec.Struct, frozen=True, array_like=True, tag="depth", forbid_unknown_fields=True):
    """The depth at each place of the picture. If `is_inverse`, larger values are nearer. `unit` is "m" for metres. If
    `unit` is empty, the depth has no scale: only the ratio or order of two values has a meaning."""

    map: ValueMap
    is_inverse: bool
    unit: str = ""


class Embedding(msgspec.Struct, frozen=True, array_like=True, tag="embedding", forbid_unknown_fields=True):
    """A vector that is near the vectors of similar pictures. `data` has the values, little-endian float32. The vector
    has length 1, or only zeros. A vector of zeros is similar to no vector.

    The daemon looks the vector up in the model's gallery (named vectors of pictures). `similarity` is the cosine with
    the nearest vector of the gallery, -1..1. `label` is the name of this nearest vector if the similarity is at least
    the threshold, otherwise empty. Without a gallery `label` is empty and `similarity` is 0.
    """

    data: bytes
    label: str = ""
    similarity: float = 0.0

    def __post_init__(self) -> None:
        values, rest = divmod(len(self.data), _FLOAT.itemsize)
        if rest or not 1 <= values <= MOST_VALUES:
            raise ValueError(
                f"an embedding has {len(self.data)} bytes; only 1 to {MOST_VALUES} values of 4 bytes are possible"
            )
        length = float(np.linalg.norm(self.vector().astype(np.float64)))
        if length and not abs(length - 1) < _TOLERANCE:  # also true for NaN
            raise ValueError(
                f"the Euclidean length of an embedding is {length:g}; it must be 1, or 0 for a vector of zeros"
            )
        if not _are_float32(self.similarity):
            raise ValueError(f"the similarity of an embedding is {self.similarity}; it must be a finite number")

    @classmethod
    def of(cls, values: npt.ArrayLike) -> Embedding:
        """Normalise a vector [n] to length 1; a vector of zeros stays as it is. Raises ValueError for more than
        `MOST_VALUES` values, and for NaN and infinity."""
        vector = np.asarray(values, np.float64).reshape(-1)
        vector = vector / (np.abs(vector).max(initial=0.0) or 1.0)  # so that the squares of the values are in range
        length = float(np.linalg.norm(vector))
        return cls((vector / (length or 1.0)).astype(_FLOAT).tobytes())

    def vector(self) -> npt.NDArray[np.float32]:
        """Return the values, float32 [n], read-only."""
        return np.frombuffer(self.data, _FLOAT)

    def cosine(self, other: Embedding) -> float:
        """Return the cosine of the angle to another vector, -1..1. Raises ValueError if the sizes differ."""
        return float(np.clip(self.vector() @ other.vector(), -1.0, 1.0))


class Text(msgspec.Struct, frozen=True, array_like=True, tag="text", forbid_unknown_fields=True):
    """The text in the picture, and its score in 0..1. The text is empty if the model has found no text."""

    text: str
    score: float

    def __post_init__(self) -> None:
        if len(self.text) > MOST_TEXT or not _are_float32(self.score):
            raise ValueError(
                f"a text has {len(self.text)} characters and the score {self.score}; it must have at most {MOST_TEXT}"
                " characters, and its score must be finite"
            )


class Anomaly(msgspec.Struct, frozen=True, array_like=True, tag="anomaly", forbid_unknown_fields=True):
    """How unusual the picture is. `score` is in the model's own scale. `is_anomalous` says whether the score is at
    least the threshold. `map` has the score of each cell; None if the model has no map."""

    score: float
    is_anomalous: bool
    map: ValueMap | None = None

    def __post_init__(self) -> None:
        if not _are_float32(self.score):
            raise ValueError(f"the anomaly score is {self.score}; it must be a finite number")


Content = Classes | ClassMap | Depth | Embedding | Text | Anomaly

_ENCODER, _DECODER = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Content)


def pack(content: Content) -> bytes:
    return _ENCODER.encode(content)


def unpack(packed: bytes | memoryview) -> Content:
    """Reverse `pack`. Raises ValueError if the bytes are not a valid content."""
    if len(packed) > _MOST_PACKED:
        raise ValueError(f"the content has {len(packed)} bytes; at most {_MOST_PACKED} are allowed")
    content: Content = _DECODER.decode(packed)
    return content


class Line(NamedTuple):
    """A line of text that describes a content to people. `class_id` selects the colour of the line; -1 if the line is
    not about a class."""

    text: str
    class_id: int = -1


def lines(content: Content, names: Sequence[str]) -> Iterator[Line]:
    """Yield lines of text about a content for pictures and terminals, the most important line first. `names` are the
    model's class names."""
    if isinstance(content, Classes):
        for number, score in zip(content.class_ids, content.scores, strict=True):
            yield Line(f"{class_name(names, number)} {score:.0%}", number)
    elif isinstance(content, ClassMap):
        for number, share in content.shares():
            yield Line(f"{class_name(names, number)} {share:.0%}", number)
    elif isinstance(content, Depth):
        low, high, unit = content.map.low, content.map.high, f" {content.unit}" if content.unit else ""
        yield Line(f"{'inverse depth' if content.is_inverse else 'depth'} {low:.3g} to {high:.3g}{unit}")
    elif isinstance(content, Embedding):
        if content.label or content.similarity:
            yield Line(f"{content.label or 'unknown'} {content.similarity:.0%}")
        else:
            yield Line(f"embedding of {len(content.vector())} values")
    elif isinstance(content, Text):
        yield Line(f"{content.text} {content.score:.0%}" if content.text else "no text")
    else:
        yield Line(f"{'anomaly' if content.is_anomalous else 'normal'} {content.score:.3g}")


def _are_float32(*numbers: float) -> bool:
    """Whether all numbers are finite and stay finite as float32."""
    return all(abs(number) <= LARGEST for number in numbers)


def _check_sides(width: int, height: int, box: Box | None) -> None:
    if not (1 <= width <= MOST_SIDE and 1 <= height <= MOST_SIDE):
        raise ValueError(f"a map of {width}x{height} cells is impossible; each side must be 1 to {MOST_SIDE}")
    if box is not None and not (0 <= box[0] < box[2] < 1 << 31 and 0 <= box[1] < box[3] < 1 << 31):
        raise ValueError(
            f"the box of a map is {box}; it must be x1, y1, x2, y2 in pixels of the picture, with 0 <= x1 < x2 < 2^31"
            " and 0 <= y1 < y2 < 2^31"
        )


def _nearest(count: int, cells: int) -> npt.NDArray[np.int64]:
    """Divide a line of `cells` cells into `count` places. Return the cell that contains the centre of each place."""
    return (np.arange(count) * 2 + 1) * cells // (count * 2)


def _between(count: int, cells: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Divide a line of `cells` cells into `count` places. For linear interpolation at the centre of each place, return
    the two nearest cells and the weight of the second cell."""
    at = np.clip((np.arange(count) + 0.5) * cells / count - 0.5, 0, cells - 1)
    first = at.astype(np.int64)
    return first, np.minimum(first + 1, cells - 1), (at - first).astype(np.float32)
