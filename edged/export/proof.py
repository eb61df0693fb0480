"""Compares the answers of an exported file with the framework's. Pure: answers in, a comparison out.

How much two correct answers differ depends on the model. For example, a top-k may order queries differently, which
moves whole rows. In the framework itself, noise in the last bit of the picture has the same effect.

So the framework also answers a *moved* input: each float in the input is changed by one step of its dtype
(`verification.noise.nudged`). An output of the file may differ by up to `_TIMES` times the resulting change.

If an output differs by more, perhaps only the order of its rows differs. So the sorted values of each column are
compared. The sorted values are also compared if the allowed difference is too large to prove anything. If the sorted
values differ or prove nothing, the decoded detections are compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from edged.tensors import Array
from edged.verification.boxes import Agreement, Matcher
from edged.verification.golden import Sample

_TIMES, _LEAST = 64.0, 2e-5  # `_LEAST` is a relative L2 norm: rounding, and functions of other libraries
# In float16, one step of the input is as large as the rounding errors of the whole model, so the factor is smaller.
_TIMES_HALF, _LEAST_HALF = 8.0, 5e-3
_MEANINGLESS, _MEANINGLESS_HALF = 0.01, 0.05  # an allowance above this proves nothing
_ALIKE = 0.99  # share of the detections that file and framework must have in common
_UNPROVEN = (
    "noise in the last bit of the inputs changes the framework's own answers too much for a comparison; give pictures"
    " that show something with --samples"
)


_NOTHING = "no output has a finite value that is the same in two runs, so nothing can be compared"


class Compared(msgspec.Struct, frozen=True):
    """The comparison of one output for one input. `difference` is the difference between the answers of file and
    framework, and `allowed` is its limit. Both are relative L2 norms; for outputs that are not floats, they are shares
    of unequal elements. `picture` names the input."""

    output: str
    picture: str
    difference: float
    allowed: float
    meaningless: float = _MEANINGLESS
    shapes: str = ""  # the difference between the shapes; empty if the shapes are equal

    @property
    def is_right(self) -> bool:
        return self.difference <= self.allowed

    @property
    def is_clear(self) -> bool:
        """Whether the comparison proves something."""
        return self.allowed <= self.meaningless


class Proof(msgspec.Struct, frozen=True):
    """The outcome over all inputs. `by` says which values were compared: elements, sorted values, or detections.
    `problem` says why the file is not proven; empty if it is. `worst` is the largest difference."""

    by: str
    inputs: int
    worst: Compared
    detections: int = 0
    problem: str = ""


class Answers(msgspec.Struct, frozen=True):
    """The answers to one golden input. `sample` has the input and the exported file's answer. `framework` is the
    framework's answer to this input, and `moved` its answer to the moved input."""

    sample: Sample
    framework: Mapping[str, Array]
    moved: Mapping[str, Array]

    @property
    def picture(self) -> str:
        """The name of the input for people."""
        return self.sample.name or f"{self.sample.kind} noise"


def prove(answers: Sequence[Answers], matcher: Matcher | None, half: bool = False) -> Proof:
    """Compare all answers. `matcher` finds detections; None if the model has none. `half` means a float16 export."""
    pairs = [(each, name) for each in answers for name in each.sample.outputs]
    if not any(_has_values(each.framework[name]) for each, name in pairs):
        nothing = Compared("", answers[0].picture, 0.0, 1.0)
        return Proof("elements", len(answers), nothing, problem=_NOTHING)
    found = [_elements(each, name, half) for each, name in pairs]
    by, worst = "elements", _worst(found)
    if math.isfinite(worst.difference) and not all(each.is_right and each.is_clear for each in found):
        found = [_elements(each, name, half, is_sorted=True) for each, name in pairs]
        by, worst = "sorted values", _worst(found)
    if wrong := [each for each in found if not each.is_right]:
        worst = _worst(wrong)
        if matcher is None or not matcher.lists.issuperset(each.output for each in wrong):
            return Proof(by, len(answers), worst, problem=_difference(worst))
    elif all(each.is_clear for each in found):
        return Proof(by, len(answers), worst)
    agreement = own = Agreement()
    for each in answers:
        if matcher is not None and (placed := each.sample.placement) is not None:
            agreement += matcher.compare(each.framework, each.sample.outputs, placed)
            own += matcher.compare(each.framework, each.moved, placed)
    if agreement.share is None or own.share is None or own.share < _ALIKE:
        return Proof("detections", len(answers), worst, problem=_UNPROVEN)
    problem = f"only {agreement.share:.1%} of the detections are the same" if agreement.share < _ALIKE else ""
    return Proof("detections", len(answers), worst, agreement.expected, problem)


def _worst(found: Sequence[Compared]) -> Compared:
    return max(found, key=lambda each: each.difference / each.allowed)


def _difference(worst: Compared) -> str:
    place = f"output {worst.output!r} for {worst.picture}"
    if worst.shapes:
        return f"{place} {worst.shapes}"
    return f"{place} differs by {worst.difference:.2g} (relative L2); at most {worst.allowed:.2g} is allowed"


def _elements(answers: Answers, name: str, half: bool, is_sorted: bool = False) -> Compared:
    expected, found, moved = answers.framework[name], answers.sample.outputs[name], answers.moved[name]
    if expected.shape != found.shape:
        shapes = f"has the shape {list(found.shape)} instead of {list(expected.shape)}"
        return Compared(name, answers.picture, math.inf, 1.0, shapes=shapes)
    if moved.shape != expected.shape:  # the shape depends on noise, so a comparison proves nothing
        return Compared(name, answers.picture, 0.0, math.inf)
    if expected.dtype.kind != "f":
        share, own = (float(np.mean(_texts(expected) != _texts(each))) if each.size else 0.0 for each in (found, moved))
        return Compared(name, answers.picture, share, own or 1e-9)
    if is_sorted and expected.ndim > 1:
        expected, found, moved = (np.sort(each, axis=-2) for each in (expected, found, moved))
    is_half = half or expected.dtype == np.float16
    least, times, meaningless = (
        (_LEAST_HALF, _TIMES_HALF, _MEANINGLESS_HALF) if is_half else (_LEAST, _TIMES, _MEANINGLESS)
    )
    allowed = max(least, times * _distance(expected, moved))
    return Compared(name, answers.picture, _distance(expected, found), allowed, meaningless)


def _has_values(values: Array) -> bool:
    return bool(np.isfinite(values).any()) if values.dtype.kind == "f" else values.size > 0


def _texts(values: Array) -> npt.NDArray[np.str_]:
    return np.array([each.decode() if isinstance(each, bytes) else str(each) for each in values.ravel().tolist()])


def _distance(expected: Array, found: Array) -> float:
    """Return the relative L2 distance of the finite elements; infinite if elements that are not finite differ."""
    one, other = expected.astype(np.float64), found.astype(np.float64)
    finite = np.isfinite(one)
    if not np.array_equal(one[~finite], other[~finite], equal_nan=True) or not np.isfinite(other[finite]).all():
        return math.inf
    one, other = one[finite], other[finite]
    norm = float(np.linalg.norm(one))
    distance = float(np.linalg.norm(other - one))
    return distance / norm if norm else float(distance > 0)


def first_difference(
    framework: Mapping[str, Array], moved: Mapping[str, Array], file: Mapping[str, Array]
) -> str | None:
    """Return the first module that differs after the last module that agrees; None if no module differs there.

    The arguments map "module|shape" to samples of the outputs, in the order of execution. Exporters merge modules, such
    as a convolution and the batch normalisation that follows it. In a correct file, the output of a merged module may
    differ, but the outputs of later modules agree. So a module that differs does not count if a later module agrees.
    """
    first: str | None = None
    for name, expected in framework.items():
        if (found := file.get(name)) is None or found.shape != expected.shape or name not in moved:
            continue
        allowed = max(_LEAST, _TIMES * _distance(expected, moved[name]))
        if _distance(expected, found) <= allowed:
            first = None
        elif first is None:
            first = name.partition("|")[0].removeprefix("model.")
    return first
