"""Open dimensions: the settings `shapes.*` for requests outside the range that engines are built for, and dimensions
that several inputs share. Pure.

    shapes.policy      any: an engine that takes any shape answers (the default); refuse: return an error;
                       learn: like any, and also build engines for a wider range
    shapes.quiet_s     learn: edged builds engines for the wanted range if it has not grown for this many seconds, and
                       after ten times as long in any case
    shapes.most_mb     learn: MiB of all inputs of the largest request in the range; edged does not widen it further
    shapes.per_hour    learn: number of wider ranges for which edged may begin to build engines in an hour
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from edged.backends.contract import Signature
from edged.backends.profile import Shape, is_named
from edged.errors import ConfigError
from edged.tensors import ANY_SHAPE
from edged.vision.settings import integer, number

POLICY, _QUIET, _MOST, _RATE = "shapes.policy", "shapes.quiet_s", "shapes.most_mb", "shapes.per_hour"
NAMES = (POLICY, _QUIET, _MOST, _RATE)
_KINDS: tuple[PolicyKind, ...] = ("any", "refuse", "learn")
_QUIET_S, _MOST_MB, _PER_HOUR = 30.0, 128, 4

PolicyKind: TypeAlias = Literal["any", "refuse", "learn"]


class ShapePolicy(msgspec.Struct, frozen=True):
    """The settings `shapes.*`. `quiet_s` is in seconds. `most_bytes` limits all inputs of one request together."""

    kind: PolicyKind = "any"
    quiet_s: float = _QUIET_S
    most_bytes: int = _MOST_MB << 20
    per_hour: int = _PER_HOUR


class Tie(msgspec.Struct, frozen=True):
    """A named open dimension of the model, and the inputs and axes that have it."""

    name: str
    places: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return f"{self.name}: {', '.join(f'{name}[{axis}]' for name, axis in self.places)}"


def policy(settings: Mapping[str, str]) -> ShapePolicy:
    """Read the policy from a model's settings. Raises ConfigError for an invalid value."""
    text = settings.get(POLICY, _KINDS[0])
    kind = next((each for each in _KINDS if each == text), None)
    if kind is None:
        raise ConfigError(f"setting {POLICY}={text[:40]!r}: choose from {', '.join(_KINDS)}")
    quiet, most = number(settings, _QUIET, 0.0, 86400.0), integer(settings, _MOST, 1, 1 << 16)
    rate = integer(settings, _RATE, 1, 3600)
    return ShapePolicy(
        kind,
        _QUIET_S if quiet is None else quiet,
        (most or _MOST_MB) << 20,
        rate or _PER_HOUR,
    )


def ties(signature: Signature) -> tuple[Tie, ...]:
    """Return the named open dimensions that several inputs or axes share. Dimensions with one name have one size."""
    places: dict[str, list[tuple[str, int]]] = {}
    for spec in signature.inputs:
        for axis, dim in enumerate(spec.shape if spec.shape != ANY_SHAPE else ()):
            if isinstance(dim, str) and is_named(dim):
                places.setdefault(dim, []).append((spec.name, axis))
    return tuple(Tie(name, tuple(found)) for name, found in places.items() if len(found) > 1)


def unequal(tied: tuple[Tie, ...], shapes: Mapping[str, Shape]) -> str:
    """Return an error message for inputs that differ in a shared dimension; empty if all agree. `shapes` must have the
    ranks of the model's inputs. Inputs that are missing in `shapes` are not checked."""
    for tie in tied:
        given = [(name, axis) for name, axis in tie.places if name in shapes]
        if len({shapes[name][axis] for name, axis in given}) > 1:
            (first, at), (name, axis) = _differing(given, shapes)
            wanted = list(shapes[name])
            wanted[axis] = shapes[first][at]
            return (
                f"input {name!r} is {list(shapes[name])}, but its dimension {axis} ({tie.name[:60]!r}) must equal"
                f" dimension {at} of input {first!r}, which is {list(shapes[first])}; send {wanted}"
            )
    return ""


def _differing(places: list[tuple[str, int]], shapes: Mapping[str, Shape]) -> tuple[tuple[str, int], tuple[str, int]]:
    """Return the first of the places (input, axis) that must have equal sizes, and the first place with a different
    size."""
    first = places[0]
    size = shapes[first[0]][first[1]]
    return first, next((name, axis) for name, axis in places if shapes[name][axis] != size)
