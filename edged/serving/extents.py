"""Records the shapes of a model's answered requests in bounded memory. Pure.

The smallest and largest size of each dimension are exact. The most frequent combinations of input shapes are counted.
Failed requests are not recorded, because the model may not support their shapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from edged.backends.profile import Range, Shape

MOST_KINDS = 64  # combinations that are counted separately; a further one replaces the rarest
_PENDING = 256  # combinations that are collected before they are merged into the counts
_OLD = 1 << 20  # when one combination reaches this count, all counts are halved, so that new traffic can outweigh old

# The shapes of a request's inputs, in the order of the names.
Combination: TypeAlias = tuple[tuple[str, Shape], ...]


class Kind(msgspec.Struct, frozen=True):
    """A shape for each input, and the number of requests with this combination."""

    shapes: dict[str, Shape]
    count: int


class Seen(msgspec.Struct, frozen=True):
    """The shapes of all requests so far. `requests` is the number of requests. `kinds` has at most `MOST_KINDS` of
    their combinations of shapes, the most frequent first. `smallest` and `largest` map each input to the bounds of its
    dimensions."""

    requests: int = 0
    kinds: tuple[Kind, ...] = ()
    smallest: dict[str, Shape] = {}
    largest: dict[str, Shape] = {}

    def range(self, name: str) -> Range | None:
        """Return the smallest, most frequent and largest size of each dimension of an input; None if no request had the
        input."""
        least, most = self.smallest.get(name), self.largest.get(name)
        if least is None or most is None or len(least) != len(most):
            return None
        found = [(kind.shapes[name], kind.count) for kind in self.kinds if len(kind.shapes.get(name, ())) == len(least)]
        usual = tuple(_most_frequent((shape[axis], count) for shape, count in found) for axis in range(len(least)))
        return Range(name, least, usual, most) if found else None


class Traffic:
    """Records the shapes of one model's requests. `version` increases with every new kind."""

    def __init__(self, seen: Seen | None = None) -> None:
        seen = seen or Seen()
        self.version = 0
        self._requests = seen.requests
        self._kinds = {_combination(kind.shapes): kind.count for kind in seen.kinds[:MOST_KINDS]}
        self._smallest, self._largest = dict(seen.smallest), dict(seen.largest)
        self._pending: dict[Combination, int] = {}

    def note(self, shapes: Combination) -> None:
        """Record an answered request. This method runs for every request. To be fast, it mostly only increments a
        count."""
        self._pending[shapes] = self._pending.get(shapes, 0) + 1
        if len(self._pending) >= _PENDING:
            self._sort_in()

    def seen(self) -> Seen:
        """Return the shapes of all requests so far."""
        self._sort_in()
        kinds = sorted(self._kinds.items(), key=lambda item: -item[1])
        return Seen(
            self._requests,
            tuple(Kind(dict(shapes), count) for shapes, count in kinds),
            dict(self._smallest),
            dict(self._largest),
        )

    def look(self) -> int:
        """Merge the requests that `note` recorded into the counts, and return `version`."""
        self._sort_in()
        return self.version

    def _sort_in(self) -> None:
        pending, self._pending = self._pending, {}
        for shapes, count in pending.items():
            self._requests += count
            if shapes not in self._kinds:
                self.version += 1
                self._bound(shapes)
                if len(self._kinds) >= MOST_KINDS:
                    del self._kinds[min(self._kinds, key=self._kinds.__getitem__)]  # among equals, the oldest
            self._kinds[shapes] = self._kinds.get(shapes, 0) + count
        if any(count >= _OLD for count in self._kinds.values()):
            self._kinds = {shapes: max(1, count // 2) for shapes, count in self._kinds.items()}

    def _bound(self, shapes: Combination) -> None:
        for name, shape in shapes:
            least, most = self._smallest.get(name, shape), self._largest.get(name, shape)
            if len(least) != len(shape) or len(most) != len(shape):  # the rank varies: the bounds are of the first rank
                continue
            self._smallest[name] = tuple(map(min, least, shape))
            self._largest[name] = tuple(map(max, most, shape))


def _combination(shapes: Mapping[str, Shape]) -> Combination:
    return tuple(shapes.items())


def _most_frequent(sizes: Iterable[tuple[int, int]]) -> int:
    """Return the most frequent size from pairs of a size and its count; the smallest if several are equally
    frequent."""
    counts: dict[int, int] = {}
    for size, count in sizes:
        counts[size] = counts.get(size, 0) + count
    return min(counts, key=lambda size: (-counts[size], size), default=0)
