"""Compares a model's tensors with signatures: counts points for equal names and shapes, and describes differences.

This module is pure, and the cost of a comparison is bounded. A model may have huge names and thousands of tensors, so
only the first tensors are compared, and their names are cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from edged.tensors import TensorSpec
from edged.vision.signatures import Signature, TensorPattern, Values

_MOST_TENSORS = 32  # the most inputs, and the most outputs, that are compared
_MOST_NAMED = 3  # names in one difference
_LONGEST_NAME, _LONGEST_DIM, _MOST_DIMS = 48, 16, 8

# The points for an equal name, and the costs of differences. `TensorPattern.points` has the points for shapes.
_NAME, _COMMON_NAME = 3, 1
_MISSING, _SHAPE, _EXTRA, _RENAMED = 3, 2, 2, 1
# Models of many kinds have these names, so an equal name means little.
_COMMON = frozenset({"data", "image", "images", "input", "input.1", "output", "output0", "outputs", "x"}) | frozenset(
    {"boxes", "embeddings", "features", "labels", "logits", "masks", "scores"}
)


class Tensors(msgspec.Struct, frozen=True):
    """The tensors of a model that are compared with signatures. `size` is the (width, height) of the picture that the
    model takes, None if unknown."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    size: tuple[int, int] | None = None
    more_inputs: int = 0  # number of inputs that are not compared
    more_outputs: int = 0

    @classmethod
    def of(
        cls, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], size: tuple[int, int] | None
    ) -> Tensors:
        beyond = (max(0, len(specs) - _MOST_TENSORS) for specs in (inputs, outputs))
        return cls(tuple(map(_cut, inputs[:_MOST_TENSORS])), tuple(map(_cut, outputs[:_MOST_TENSORS])), size, *beyond)


class Comparison(msgspec.Struct, frozen=True):
    """The result of comparing a model with a signature.

    `points` count what the model and the signature have in common. `differences` are texts, and `cost` rates these
    differences. `is_readable` says that the model has all tensors of the signature. Their names may differ, and the
    model may have further tensors.
    """

    points: int
    cost: int
    differences: tuple[str, ...]
    is_readable: bool

    @property
    def is_near(self) -> bool:
        """Whether the model resembles the signature: at least 4 points, and a cost of at most half the points."""
        return self.points >= 4 and self.cost * 2 <= self.points

    @property
    def score(self) -> int:
        """The sort key of comparisons; the highest is the nearest."""
        return self.points - 2 * self.cost


def compare(known: Signature, tensors: Tensors) -> Comparison:
    """Compare a model's tensors with a signature."""
    values: Values = {} if tensors.size is None else {"W": tensors.size[0], "H": tensors.size[1]}
    sides = []
    if known.inputs or known.more_inputs:
        sides.append(_side("input", known.inputs, tensors.inputs, tensors.more_inputs, known.more_inputs, values))
    sides.append(_side("output", known.outputs, tensors.outputs, tensors.more_outputs, known.more_outputs, values))
    return Comparison(
        sum(side.points for side in sides),
        sum(side.cost for side in sides),
        tuple(text for side in sides for text in side.differences),
        all(side.is_readable for side in sides),
    )


def best(known: Iterable[Signature], tensors: Tensors) -> Comparison:
    """Return the comparison with the nearest of several signatures."""
    return max((compare(each, tensors) for each in known), key=lambda found: found.score)


def nearest_form(known: Iterable[Signature], tensors: Tensors) -> Signature:
    """Return the nearest of several signatures."""
    return max(known, key=lambda each: compare(each, tensors).score)


def shown(spec: TensorSpec) -> str:
    """Return a tensor's name and shape as text that fits in a line."""
    return f"{_name(spec)} {_shape(spec)}"


class _Pairing(msgspec.Struct):
    """Pairs of tensors of a model and patterns of a signature. The pairs in `unlike` have different shapes, the pairs
    in `renamed` different names. `missing` are the patterns without a tensor, `left` the tensors without a pattern."""

    points: int
    unlike: list[tuple[TensorPattern, TensorSpec]]
    renamed: list[tuple[TensorPattern, TensorSpec]]
    missing: list[TensorPattern]
    left: list[TensorSpec]


def _side(
    what: str,
    patterns: tuple[TensorPattern, ...],
    specs: tuple[TensorSpec, ...],
    beyond: int,
    may_have_more: bool,
    values: Values,
) -> Comparison:
    """Compare a model's inputs or outputs, `specs`, with `patterns`; `what` is "input" or "output". `beyond` counts
    further tensors, which are not compared."""
    pairing = _Pairing(0, [], [], [], list(specs))
    _pair_by_name(pairing, patterns, values)
    _pair_by_shape(pairing, values)
    is_readable = not pairing.missing and not pairing.unlike
    if not beyond:
        _pair_in_order(pairing)
    extras = 0 if may_have_more else len(pairing.left) + beyond
    texts = (
        *_missing(what, pairing.missing, values),
        *(f"{what} {_name(spec)} is {_shape(spec)}, not {p.shape(values)}" for p, spec in pairing.unlike),
        *(f"{what} {_name(spec)} is not named {' or '.join(p.names)}" for p, spec in pairing.renamed),
        *(
            [f"the model has {extras} more {what}{'s' * (extras > 1)} ({_names(pairing.left, extras)})"]
            if extras
            else []
        ),
    )
    cost = _MISSING * len(pairing.missing) + _SHAPE * len(pairing.unlike) + _RENAMED * len(pairing.renamed)
    return Comparison(pairing.points, cost + _EXTRA * extras, texts, is_readable)


def _pair_by_name(pairing: _Pairing, patterns: tuple[TensorPattern, ...], values: Values) -> None:
    for pattern in patterns:
        named = [spec for spec in pairing.left if pattern.has_name(spec.name)]
        if not named:
            pairing.missing.append(pattern)
        for spec in named if pattern.is_start else named[:1]:
            pairing.left.remove(spec)
            found = pattern.points(spec, values)
            if found is None:
                pairing.unlike.append((pattern, spec))
            pairing.points += (found or 0) + (_COMMON_NAME if spec.name in _COMMON else _NAME)


def _pair_by_shape(pairing: _Pairing, values: Values) -> None:
    """Pair each pattern that has no tensor yet with the first tensor whose shape fits."""
    for pattern in tuple(pairing.missing):
        match = next(_fitting(pattern, pairing.left, values), None)
        if match is None:
            continue
        spec, points = match
        pairing.missing.remove(pattern)
        pairing.left.remove(spec)
        pairing.points += points
        if pattern.has_fixed_name:
            pairing.renamed.append((pattern, spec))


def _pair_in_order(pairing: _Pairing) -> None:
    """Pair the remaining tensors, in order, with the patterns that have no fixed name, although the shapes differ. Do
    nothing if the numbers of these tensors and patterns differ."""
    unnamed = [pattern for pattern in pairing.missing if not pattern.has_fixed_name]
    if len(unnamed) == len(pairing.left):
        pairing.unlike += zip(unnamed, pairing.left, strict=True)
        pairing.missing = [pattern for pattern in pairing.missing if pattern.has_fixed_name]
        pairing.left = []


def _fitting(pattern: TensorPattern, specs: list[TensorSpec], values: Values) -> Iterator[tuple[TensorSpec, int]]:
    """Yield each tensor whose shape matches the pattern, and the points for the shape. Yield nothing for a pattern that
    can match only by name."""
    if pattern.is_start or (pattern.names and pattern.dims is None):
        return
    for spec in specs:
        found = pattern.points(spec, values)
        if found is not None:
            yield spec, found


def _missing(what: str, patterns: list[TensorPattern], values: Mapping[str, int]) -> list[str]:
    if not patterns:
        return []
    names = ["|".join(p.names) + "*" * p.is_start if p.names else p.shape(values) for p in patterns]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    several = len(names) > 1
    return [f"{what}{'s' * several} {', '.join(names[:_MOST_NAMED])}{more} {'are' if several else 'is'} missing"]


def _names(specs: list[TensorSpec], count: int) -> str:
    names = [_name(spec) for spec in specs[:_MOST_NAMED]]
    return ", ".join([*names, *(["..."] if count > len(names) else [])])


def _name(spec: TensorSpec) -> str:
    return spec.name if len(spec.name) <= _LONGEST_NAME else f"{spec.name[: _LONGEST_NAME - 3]}..."


def _shape(spec: TensorSpec) -> str:
    dims = [str(dim)[:_LONGEST_DIM] for dim in spec.shape[:_MOST_DIMS]]
    return f"[{','.join([*dims, *(['...'] if len(spec.shape) > _MOST_DIMS else [])])}]"


def _cut(spec: TensorSpec) -> TensorSpec:
    """Return a tensor with a shortened name and shape, so that comparing is cheap. The limits are above the length of
    every pattern's name and shape, so shortening does not change which patterns match."""
    return TensorSpec(spec.name[: 2 * _LONGEST_NAME], spec.datatype, spec.shape[: 2 * _MOST_DIMS])
