"""Open dimensions: the settings `shapes.*`, which say what becomes of a request whose shapes lie outside the range that
engines are built for, and the dimensions of several inputs that are one in the model. Pure.

    shapes.policy      any: an engine that takes any shape answers it (the default); refuse: it is an error of the
                       client's; learn: as any, and engines of a range that takes it are built
    shapes.quiet_s     learn: how many seconds no request has called for a still wider range before one is built
    shapes.most_mb     learn: what the inputs of one request may take in the largest shapes, in MiB
    shapes.per_hour    learn: how many wider ranges may be begun in an hour
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
    """What `shapes.*` says: `most_bytes` is of all inputs of one request together, `quiet_s` in seconds."""

    kind: PolicyKind = "any"
    quiet_s: float = _QUIET_S
    most_bytes: int = _MOST_MB << 20
    per_hour: int = _PER_HOUR


class Tie(msgspec.Struct, frozen=True):
    """One open dimension of the model by its name, and every place of the inputs that has it: input and axis."""

    name: str
    places: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return f"{self.name}: {', '.join(f'{name}[{axis}]' for name, axis in self.places)}"


def policy(settings: Mapping[str, str]) -> ShapePolicy:
    """What a model's settings say."""
    said = settings.get(POLICY, _KINDS[0])
    kind = next((each for each in _KINDS if each == said), None)
    if kind is None:
        raise ConfigError(f"setting {POLICY}={said[:40]!r}: choose from {', '.join(_KINDS)}")
    quiet, most = number(settings, _QUIET, 0.0, 86400.0), integer(settings, _MOST, 1, 1 << 16)
    rate = integer(settings, _RATE, 1, 3600)
    return ShapePolicy(
        kind,
        _QUIET_S if quiet is None else quiet,
        (most or _MOST_MB) << 20,
        rate or _PER_HOUR,
    )


def ties(signature: Signature) -> tuple[Tie, ...]:
    """The dimensions that several places of the inputs have in common, by the names that the model's writer gave."""
    places: dict[str, list[tuple[str, int]]] = {}
    for spec in signature.inputs:
        for axis, dim in enumerate(spec.shape if spec.shape != ANY_SHAPE else ()):
            if isinstance(dim, str) and is_named(dim):
                places.setdefault(dim, []).append((spec.name, axis))
    return tuple(Tie(name, tuple(found)) for name, found in places.items() if len(found) > 1)


def unequal(tied: tuple[Tie, ...], shapes: Mapping[str, Shape]) -> str:
    """Which inputs differ in a dimension that is one in the model, and what they may be; empty where none do.

    `shapes` have the ranks of the model's inputs; those that are missing are somebody else's.
    """
    for tie in tied:
        given = [(name, axis) for name, axis in tie.places if name in shapes]
        if len({shapes[name][axis] for name, axis in given}) > 1:
            (first, at), (name, axis) = _differing(given, shapes)
            wanted = list(shapes[name])
            wanted[axis] = shapes[first][at]
            return (
                f"input {name!r} is {list(shapes[name])}, and its dimension {axis} ({tie.name[:60]!r}) is the one of"
                f" input {first!r}, {list(shapes[first])}; with that it is {wanted}"
            )
    return ""


def _differing(places: list[tuple[str, int]], shapes: Mapping[str, Shape]) -> tuple[tuple[str, int], tuple[str, int]]:
    """The first place, and the first that differs from it."""
    first = places[0]
    size = shapes[first[0]][first[1]]
    return first, next((name, axis) for name, axis in places if shapes[name][axis] != size)
