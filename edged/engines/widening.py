"""How far a range of shapes is widened for the requests that came. Pure.

A range never shrinks, and sizes are rounded outwards so that few new ones call for another build: to powers of two
below 16, to quarters of an octave above, which is at most a quarter more. Whatever power of two divides a size divides
the rounded one as well, as models with strides want it.
"""

from __future__ import annotations

import math

import msgspec

from edged.backends.contract import Signature
from edged.backends.profile import Profile, Range, Shape
from edged.serving.extents import Kind, Seen
from edged.tensors import ANY_SHAPE, TensorSpec, numpy_dtype

_HOUR = 3600.0
_PATIENCE = 10  # times the quiet time that is waited for quiet at most
_MOST_DIMENSIONS = 8  # of a tensor in the builders


def widened(now: Profile, signature: Signature, seen: Seen, most_bytes: int, *, usual: bool) -> Profile:
    """The range that takes what came, or `now` itself where that is enough, or more cannot be had.

    The most frequent kinds of requests come first; one whose range would let the inputs take more than `most_bytes` is
    left out, and so is one without elements. `now` is empty where nothing told a range so far. `usual` says whether
    the shapes to be fast at are to be those of the most frequent kind; otherwise they stay.
    """
    specs = [spec for spec in signature.inputs if not spec.is_static]
    if not specs or any(spec.shape == ANY_SHAPE or len(spec.shape) > _MOST_DIMENSIONS for spec in specs):
        return now
    found, before = now, now
    for kind in seen.kinds:
        if all(spec.name in kind.shapes and spec.admits(kind.shapes[spec.name]) for spec in specs):
            found = _with(found, signature, specs, kind, most_bytes)
    if found == before:
        return now
    best = next((kind for kind in seen.kinds if _takes(found, specs, kind)), None) if usual or not now.ranges else None
    return found if best is None else Profile(tuple(_fast_at(each, best.shapes[each.name]) for each in found.ranges))


def _with(now: Profile, signature: Signature, specs: list[TensorSpec], kind: Kind, most_bytes: int) -> Profile:
    if _takes(now, specs, kind) or any(0 in kind.shapes[spec.name] for spec in specs):
        return now
    wider = Profile(tuple(_extended(now.range(spec.name), spec, kind.shapes[spec.name]) for spec in specs))
    return now if wider.problem() or size(wider, signature) > most_bytes else wider


def size(profile: Profile, signature: Signature) -> int:
    """Bytes of all inputs in the largest shapes of a range; an element of text counts as eight."""
    total = 0
    for spec in signature.inputs:
        found = profile.range(spec.name)
        shape = found.maximum if found is not None else tuple(d for d in spec.shape if isinstance(d, int))
        total += math.prod(shape) * numpy_dtype(spec.datatype).itemsize
    return total


def _takes(profile: Profile, specs: list[TensorSpec], kind: Kind) -> bool:
    ranges = {spec.name: profile.range(spec.name) for spec in specs}
    return all(each is not None and each.contains(kind.shapes.get(name, ())) for name, each in ranges.items())


def _extended(now: Range | None, spec: TensorSpec, shape: Shape) -> Range:
    fixed = [isinstance(dim, int) for dim in spec.shape]
    low = tuple(n if still else down(n) for n, still in zip(shape, fixed, strict=True))
    high = tuple(n if still else up(n) for n, still in zip(shape, fixed, strict=True))
    if now is None:
        return Range(spec.name, low, shape, high)
    # Rounded only where the range has to give way: what somebody set stays as it was set.
    least = tuple(n if s >= n else r for n, s, r in zip(now.minimum, shape, low, strict=True))
    most = tuple(n if s <= n else r for n, s, r in zip(now.maximum, shape, high, strict=True))
    return Range(spec.name, least, now.optimum, most)


def _fast_at(range_: Range, shape: Shape) -> Range:
    return msgspec.structs.replace(range_, optimum=shape)


def up(n: int) -> int:
    """The next size to round up to."""
    step = _step(n)
    return 1 << (n - 1).bit_length() if 0 < n < 16 else -(-n // step) * step


def down(n: int) -> int:
    """The next size to round down to."""
    return 1 << (n.bit_length() - 1) if 0 < n < 16 else n // _step(n) * _step(n)


def _step(n: int) -> int:
    """A quarter of the octave that a size lies in."""
    return 1 << max(0, n.bit_length() - 3)


class Demand(msgspec.Struct, frozen=True):
    """A wider range that requests call for: since when, and since when it has been this very one. Seconds."""

    profile: Profile
    since: float
    settled: float

    def updated(self, wanted: Profile, now: float) -> Demand:
        """What is called for now."""
        return self if wanted == self.profile else Demand(wanted, self.since, now)

    def is_due(self, now: float, quiet: float) -> bool:
        """Whether it has not grown for long enough, or for too long not to."""
        return now - self.settled >= quiet or now - self.since >= _PATIENCE * quiet


def recent(times: tuple[float, ...], now: float) -> tuple[float, ...]:
    """Of the times at which ranges were widened, those of the last hour. A clock that was set back forgets."""
    return tuple(time for time in times if now - _HOUR < time <= now)
