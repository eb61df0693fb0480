"""Loads families of other packages: checks whether edged accepts the classes, and checks the results of their methods.

Every error in the code of a family becomes a FamilyFailed that names the package of the family.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, cast

import msgspec
import numpy as np

from edged import family_packages
from edged.decoding import ready
from edged.errors import ConfigError, EngineUnusable, FamilyFailed
from edged.family_packages import Package
from edged.version import __version__
from edged.vision import content as contents
from edged.vision.content import Content
from edged.vision.detections import MOST_DETECTIONS, Detections
from edged.vision.families.contract import CONTRACT, Claim, ContentFamily, Evidence, Family, Opened, Reading
from edged.vision.families.decoding import Thresholds
from edged.vision.preprocess import Preprocess
from edged.vision.signatures import Signature

Kind: TypeAlias = type[Family] | type[ContentFamily]

RULE_NAMES = ("by_metadata", "by_names", "by_shape")  # in the order in which they are applied
_LONGEST = 400  # characters of a reason
_MOST_NAMES = 1 << 16
_T = TypeVar("_T")


class ThirdParty(msgspec.Struct, frozen=True):
    """A family of another package, loaded in this process. The methods of `kind` return only checked values."""

    package: Package
    kind: Kind

    @classmethod
    def load(cls, family: str, package: Package) -> ThirdParty:
        """Load a family. Raises FamilyFailed if edged cannot use the class, and the errors of
        `family_packages.load`."""
        return cls(package, _loaded(family, package))

    @classmethod
    def of(cls, found: object, family: str, package: Package) -> ThirdParty:
        """Check a class that is already loaded. Raises FamilyFailed if edged cannot use the class."""
        return cls(package, _checked_class(found, family, package))

    @property
    def name(self) -> str:
        return self.kind.name

    def open(self, preprocess: Preprocess, names: tuple[str, ...], reading: Reading) -> Family | ContentFamily:
        """Open the family for a model. Raises FamilyFailed if the family's code raises an error."""
        try:
            return self.kind(preprocess, names, reading)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise _failed(self.name, self.package, error, "opening it for a model") from error

    def claim(self, evidence: Evidence, reason: str) -> Claim | None:
        """Match a model by its tensors only. Raises ConfigError if a setting is wrong, FamilyFailed if the family's
        code raises another error or returns something invalid."""
        return self._ask(evidence, lambda: self.kind.claim(evidence, reason))

    def by_rule(self, rule: str, evidence: Evidence) -> Claim | None:
        """Apply one of `RULE_NAMES`; return None if the family does not have this rule. Raises errors like `claim`."""
        found = getattr(self.kind, rule, None)
        return None if found is None else self._ask(evidence, lambda: found(evidence))

    def _ask(self, evidence: Evidence, ask: Callable[[], object]) -> Claim | None:
        try:
            claim = ask()
            return None if claim is None else _checked_claim(claim, self.kind, evidence, str(self.package))
        except (ConfigError, KeyboardInterrupt):  # a setting of the user is wrong, or Ctrl-C
            raise
        except BaseException as error:
            raise _failed(self.name, self.package, error, "recognising a model") from error


@functools.cache  # each probe of a verification opens the family again
def _loaded(family: str, package: Package) -> Kind:
    return _checked_class(family_packages.load(family, package), family, package)


def _checked_class(found: object, family: str, package: Package) -> Kind:
    """Return a subclass of the family `found` whose methods check the results of the methods of `found`. Raises
    FamilyFailed if edged cannot use `found`."""
    if not (inspect.isclass(found) and issubclass(found, (Family, ContentFamily))):
        raise _failed(family, package, "the entry point names no subclass of Family or ContentFamily")
    _require_contract(found, family, package)
    try:
        _require_attributes(found, family)
        return _guarded(found, package)
    except Exception as error:
        raise _failed(family, package, error, "the class cannot be used") from error


def _require_contract(found: Kind, family: str, package: Package) -> None:
    """Raise FamilyFailed unless the class was written for this version of the contract."""
    version = getattr(found, "contract", None)
    if version == CONTRACT and type(version) is int:
        return
    if type(version) is not int:
        why = f"the class names no version of the family contract; add `contract = {CONTRACT}` to the class"
    else:
        remedy = "update edged" if version > CONTRACT else f"install a newer version of {package.name}"
        why = f"the class is for version {version} of the family contract, edged {__version__} has {CONTRACT}; {remedy}"
    raise _failed(family, package, why)


def _require_attributes(found: Kind, family: str) -> None:
    """Raise an error if a class attribute is missing or of another type."""
    if getattr(found, "name", None) != family:
        raise _Invalid(f"attribute 'name' is {getattr(found, 'name', None)!r}, the entry point is named {family!r}")
    signatures = getattr(found, "signatures", ())
    if not isinstance(signatures, tuple) or not signatures or not all(isinstance(s, Signature) for s in signatures):
        raise _Invalid("attribute 'signatures' is missing or invalid; make it with edged.vision.signatures.patterns")
    if not isinstance(found.thresholds, Thresholds):
        raise _Invalid("attribute 'thresholds' is not a Thresholds")
    if not 1 <= _plain(found.thresholds, Thresholds).max_detections <= MOST_DETECTIONS:
        raise _Invalid(f"attribute 'thresholds': max_detections is not in 1..{MOST_DETECTIONS}")
    if not (isinstance(found.own_inputs, tuple) and all(isinstance(name, str) for name in found.own_inputs)):
        raise _Invalid("attribute 'own_inputs' is not a tuple of names")
    for rule in ("claim", *RULE_NAMES):
        method = getattr(found, rule, None)
        if not callable(method) and (method is not None or rule == "claim"):
            raise _Invalid(f"{rule!r} is not a class method")
    size = {"width": 1, "height": 1}
    unknown = set(found.feed) - set(Preprocess.__struct_fields__) | set(found.feed) & set(size)
    if unknown:
        words = ", ".join(sorted(unknown))
        raise _Invalid(f"attribute 'feed' has {words}; use fields of Preprocess except width and height")
    if 0.0 in _plain({**size, **found.feed}, Preprocess).std:
        raise _Invalid("attribute 'feed' has a zero in 'std', but every pixel value is divided by std")


def _guarded(found: Kind, package: Package) -> Kind:
    """Return a subclass whose public methods raise FamilyFailed for every error and for every invalid answer."""
    methods = {name: _guard(found, name, package) for name in _CHECKS if callable(getattr(found, name, None))}
    body = {"__module__": found.__module__, "__qualname__": found.__qualname__, **methods}
    return cast(Kind, types.new_class(found.__name__, (found,), {"frozen": True}, lambda space: space.update(body)))


def _guard(found: Kind, name: str, package: Package) -> Callable[..., object]:
    inner, check = getattr(found, name), _CHECKS[name]

    @functools.wraps(inner)
    def guarded(self: Opened, *arguments: Any, **named: Any) -> object:
        try:
            return check(self, inner(self, *arguments, **named), (*arguments, *named.values()))
        except (FamilyFailed, MemoryError, KeyboardInterrupt):
            raise
        except BaseException as error:  # also SystemExit and panics of Rust: a thread of a host would end silently
            raise _failed(self.name, package, error, name) from error

    return guarded


def _failed(family: str, package: Package, error: BaseException | str, what: str = "") -> FamilyFailed:
    """Return an error that names the package and describes `error`. The description begins with the class of `error`,
    unless `error` is an EngineUnusable or the error of a check."""
    if isinstance(error, FamilyFailed):
        return error
    plain = isinstance(error, (EngineUnusable, _Invalid, msgspec.ValidationError))
    return family_packages.failed(family, package, str(error) if plain else error, what)


# -- what a family returns -------------------------------------------------------------------------------------------


class _Invalid(ValueError):
    """An answer that does not fulfil the contract."""


Arguments: TypeAlias = Sequence[Any]


def _plain(value: object, kind: type[_T]) -> _T:
    """Return a copy of a value in which all fields have the right types. Raises msgspec.ValidationError if a field has
    a wrong type. NaN and infinity have a wrong type, too, because the copy goes through JSON, where they become
    null."""
    return msgspec.json.decode(msgspec.json.encode(value), type=ready(kind))


def _checked_claim(claim: object, kind: Kind, evidence: Evidence, package: str) -> Claim:
    """Return a claim as plain data of the right types. Its reason names the package."""
    if not isinstance(claim, Claim):
        raise _Invalid(f"it returned {type(claim).__name__}, not a Claim")
    found = _plain(claim, Claim)
    if found.family not in (None, kind.name):
        raise _Invalid(f"its claim is for another family, {found.family!r}")
    outputs = set(evidence.output_names)
    unknown = [name for name in (*found.reading.outputs, *found.reading.dense) if name not in outputs]
    if unknown:
        raise _Invalid(f"its claim reads output {unknown[0]!r}, which the model does not have")
    if found.family is not None and not found.reading.outputs:
        raise _Invalid("its claim names no outputs to read")
    filled = {name for name, _ in (*found.reading.extras, *found.reading.constants)}
    own = {spec.name for spec in evidence.inputs if spec.name in kind.own_inputs}
    if found.family is not None and filled != own:
        raise _Invalid(f"its claim fills the inputs {sorted(filled)}, but of own_inputs the model has {sorted(own)}")
    uneven = [name for name, rows in found.reading.constants if len({len(row) for row in rows}) != 1 or not rows[0]]
    if uneven:
        raise _Invalid(f"its claim has rows of different or no length for the constant input {uneven[0]!r}")
    if (found.classes or 0) < 0 or found.background < 0 or len(found.names) > _MOST_NAMES:
        raise _Invalid(f"its claim has a negative number of classes or background slots, or over {_MOST_NAMES} names")
    reason = " ".join(found.reason.split())[:_LONGEST]
    return msgspec.structs.replace(found, reason=f"{reason} (package {package})")


def _detections(family: Opened, found: object, arguments: Arguments) -> Detections:
    if not isinstance(found, Detections):
        raise _Invalid(f"it returned {type(found).__name__}, not Detections")
    n = len(_array("scores", found.scores, "f", None))
    limit = next((each.max_detections for each in arguments if isinstance(each, Thresholds)), n)
    if n > limit:
        raise _Invalid(f"it returned {n} detections, but thresholds.max_detections is {limit}")
    _array("boxes", found.boxes, "f", n, 4)
    _array("class_ids", found.class_ids, "iu", n)
    if found.keypoints is not None:
        _array("keypoints", found.keypoints, "f", n, None, 3)
    if found.corners is not None:
        _array("corners", found.corners, "f", n, 4, 2)
    for mask in found.masks or ():
        _array("a mask", mask, "u", None)
    if found.masks is not None and len(found.masks) != n:
        raise _Invalid(f"it returned {len(found.masks)} masks for {n} detections")
    if found.tracker_ids is not None:
        raise _Invalid("it returned tracker_ids, but only edged's tracker sets them")
    fields = {name: getattr(found, name) for name in ("masks", "keypoints", "corners")}
    return Detections.of(found.boxes, found.scores, found.class_ids, **fields)


def _content(family: Opened, found: object, arguments: Arguments) -> Content:
    if not isinstance(found, Content):
        raise _Invalid(f"it returned {type(found).__name__}, not a type of edged.vision.content")
    return contents.unpack(contents.pack(found))  # checks all fields


def _inputs(family: Opened, found: object, arguments: Arguments) -> Mapping[str, Any]:
    if not isinstance(found, Mapping):
        raise _Invalid(f"it returned {type(found).__name__}, not a mapping from inputs to arrays")
    pictures = len(arguments[0])
    shapes = {name: (pictures, *shape) for name, shape in family.reading.extras}
    shapes |= {name: (pictures * len(rows), len(rows[0])) for name, rows in family.reading.constants}
    if found.keys() != shapes.keys():
        raise _Invalid(f"it returned the inputs {sorted(map(str, found))}, but its claim fills {sorted(shapes)}")
    for name, array in found.items():
        _array(f"input {name!r}", array, "fiub", *shapes[name])
    return dict(found)


# For each method of the contract: the check of the results.
_CHECKS: dict[str, Callable[[Opened, object, Arguments], object]] = {
    "decode": _detections,
    "boxes": _detections,
    "content": _content,
    "extra_inputs": _inputs,
}


def _array(what: str, found: object, kinds: str, *sizes: int | None) -> Any:
    """Return `found` if it is an array with finite values, a dtype kind in `kinds` and the shape `sizes` (None: any
    size). Otherwise raise _Invalid."""
    if not isinstance(found, np.ndarray) or found.dtype.kind not in kinds:
        kind = found.dtype if isinstance(found, np.ndarray) else type(found).__name__
        raise _Invalid(f"{what} is {kind}, not an array of {' or '.join(_KINDS[each] for each in kinds)}")
    is_shape = len(found.shape) == len(sizes) and all(w in (None, n) for n, w in zip(found.shape, sizes, strict=True))
    if not is_shape:
        wanted = ", ".join("any" if size is None else str(size) for size in sizes)
        raise _Invalid(f"{what} has shape {list(found.shape)}, expected [{wanted}]")
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        raise _Invalid(f"{what} holds NaN or infinity")
    return found


_KINDS = {"f": "floats", "i": "integers", "u": "unsigned integers", "b": "booleans"}
