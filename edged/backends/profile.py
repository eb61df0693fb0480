"""The range of shapes that an engine must accept, for backends that build engines for a range of shapes. Pure.

If a model has open dimensions, these backends need three shapes for each input: the smallest, the one to optimise for,
and the largest. If edged cannot derive the shapes from the model, the setting `profile.INPUT` must give them:

    profile.images = "1x3x320x320 1x3x640x640 4x3x640x640"

A single shape in the setting stands for all three. The text in `Recipe.profile` is
`images=1x3x320x320:1x3x640x640:4x3x640x640`, with percent-encoded names, inputs in the order of the model, joined by
";". Inputs with a fixed shape are left out.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping
from typing import TypeAlias
from urllib.parse import quote, unquote

import msgspec

from edged.backends.contract import Signature
from edged.errors import ConfigError, Unsuitable
from edged.tensors import ANY_SHAPE, Dim, TensorSpec
from edged.vision.preprocess import find_picture

PREFIX = "profile."
# Builders count dimensions and elements of a tensor in signed 32-bit integers.
_LARGEST = (1 << 31) - 1
_MOST_DIMENSIONS = 8
_BATCH = (1, 1, 8)
_EXAMPLE = (1, 64, 512)
_BATCH_NAME = re.compile(r"(?i).*batch.*|n|b|bs|num_?images")
# Names that exporters give to dimensions without a name.
_NAMELESS = re.compile(r"\?|unk__\d+|dim_?\d+|dynamic_?ax[ei]s_\d+|None|-1")
_SHAPE = re.compile(r"[0-9]{1,10}(x[0-9]{1,10}){0,7}")

Shape: TypeAlias = tuple[int, ...]
# One dimension's smallest, usual and largest size.
Sizes: TypeAlias = tuple[int, int, int]


class Range(msgspec.Struct, frozen=True):
    """The range of shapes of one input: the smallest, the one to optimise for, the largest, all of equal rank."""

    name: str
    minimum: Shape
    optimum: Shape
    maximum: Shape

    def __str__(self) -> str:
        return f"{quote(self.name, safe='/')}={':'.join(_write(s) for s in (self.minimum, self.optimum, self.maximum))}"

    def contains(self, shape: Shape) -> bool:
        return len(shape) == len(self.minimum) and all(
            low <= size <= high for low, size, high in zip(self.minimum, shape, self.maximum, strict=True)
        )


class Profile(msgspec.Struct, frozen=True):
    """A range for every input with an open dimension, in the order of the model; empty without such inputs."""

    ranges: tuple[Range, ...] = ()

    @classmethod
    def of(
        cls,
        signature: Signature,
        settings: Mapping[str, str],
        picture: tuple[int, int] | None,
        exact: Mapping[str, Shape] = {},
    ) -> Profile:
        """Return the profile of a model. `picture` is the width and height in pixels of the model's pictures, if known.
        `exact` has the shapes of inputs that edged itself fills. If `exact` is not empty, the model gets one picture at
        a time.

        Without a setting, pictures have the size `picture`, and a batch is 1 to 8 and optimised for 1. Other open
        dimensions get the range of a dimension with the same name. Raises ConfigError if a setting is malformed or does
        not fit the model, Unsuitable if the range of an open dimension is unknown.
        """
        given = {key[len(PREFIX) :]: _read_setting(key, settings[key]) for key in settings if key.startswith(PREFIX)}
        _require_inputs(signature, given)
        symbols: dict[str, tuple[str, Sizes]] = {}
        for spec in signature.inputs:
            if spec.name in given:
                _fit(spec, given[spec.name], symbols)
        _require_pictures(_one_picture(signature, picture), given)
        known = {name: sizes for name, (_, sizes) in symbols.items()}
        for spec in signature.inputs:
            for axis, sizes in _defaults(spec, signature, picture, exact):
                known.setdefault(_symbol(spec, axis), sizes)
        open_inputs = [spec for spec in signature.inputs if not spec.is_static]
        return cls(tuple(given.get(spec.name) or _filled(spec, known) for spec in open_inputs))

    @classmethod
    def parse(cls, text: str) -> Profile:
        """Parse the text of a profile. Raises ConfigError if the text is not as `str` writes a profile."""
        profile = cls(tuple(_read_range(word) for word in text.split(";")) if text else ())
        if str(profile) != text or len({r.name for r in profile.ranges}) != len(profile.ranges):
            raise ConfigError(f"invalid profile {text[:80]!r}: it is not in the form that edged writes")
        return profile

    def __str__(self) -> str:
        return ";".join(map(str, self.ranges))

    def range(self, name: str) -> Range | None:
        """Return the range of one input; None if its shape is fixed."""
        return next((r for r in self.ranges if r.name == name), None)

    def contains(self, name: str, shape: Shape) -> bool:
        """Whether an engine with this profile accepts a shape. Always true for an input with a fixed shape, because
        such shapes are not checked here."""
        found = self.range(name)
        return found is None or found.contains(shape)

    def takes(self, shapes: Mapping[str, Shape]) -> bool:
        """Whether an engine with this profile accepts inputs with these shapes together."""
        return all(self.contains(name, shape) for name, shape in shapes.items())

    def problem(self) -> str:
        """Return why no engine can be built for the profile; empty if an engine can be built."""
        problems = ((each, _problem(each.minimum, each.optimum, each.maximum)) for each in self.ranges)
        return next((f"input {_short(each.name)}: {problem}" for each, problem in problems if problem), "")


def check(settings: Mapping[str, str]) -> None:
    """Raise ConfigError if a setting under `profile.` is malformed."""
    for key in settings:
        if key.startswith(PREFIX):
            _read_setting(key, settings[key])


@functools.lru_cache(maxsize=256)
def parsed(text: str) -> Profile:
    """Return the profile that the text of `Recipe.profile` describes; empty if the engine accepts any shape. Results
    are cached."""
    return Profile.parse(text)


def given(settings: Mapping[str, str], name: str) -> Range | None:
    """Return the range of an input in the settings; None without a range. Raises ConfigError if the setting is
    malformed."""
    text = settings.get(PREFIX + name)
    return None if text is None else _read_setting(PREFIX + name, text)


# -- settings -------------------------------------------------------------------------------------------------------


def _read_setting(key: str, text: str) -> Range:
    if key == PREFIX:
        raise ConfigError('setting "profile." does not name an input; write profile.INPUT, such as profile.images')
    words = text.replace(",", " ").split()  # a TOML list arrives as a text with commas
    if len(words) not in (1, 3) or not all(map(_SHAPE.fullmatch, words)):
        example = f'{_short(key)} = "1x3x320x320 1x3x640x640 4x3x640x640"'
        raise ConfigError(f"setting {_short(key)}={_short(text)!r} must be one shape or three shapes; write {example}")
    shapes = [_read_shape(word) for word in words]
    shapes = shapes * 3 if len(shapes) == 1 else shapes
    problem = _problem(*shapes)
    if problem:
        raise ConfigError(f"setting {_short(key)}={_short(text)!r}: {problem}")
    return Range(key[len(PREFIX) :], *shapes)


def _problem(minimum: Shape, optimum: Shape, maximum: Shape) -> str:
    """Return why three shapes do not form a range; empty if they do."""
    if not len(minimum) == len(optimum) == len(maximum):
        return "the three shapes have unequal numbers of dimensions"
    for axis, (low, middle, high) in enumerate(zip(minimum, optimum, maximum, strict=True)):
        if not low <= middle <= high:
            return f"dimension {axis} is {low}, {middle}, {high}; give smallest, usual and largest size in this order"
    if 0 in optimum:
        return "a dimension is 0; only the smallest of three shapes can have a dimension of 0"
    if math.prod(maximum) > _LARGEST:
        return f"the largest shape has more than {_LARGEST} elements"
    return ""


def _require_inputs(signature: Signature, given: Mapping[str, Range]) -> None:
    names = [spec.name for spec in signature.inputs]
    for name in given:
        if name not in names:
            offered = ", ".join(_short(n) for n in names[:8])
            raise ConfigError(f"setting {PREFIX}{_short(name)}: the model has no such input; its inputs are {offered}")


def _fit(spec: TensorSpec, range_: Range, symbols: dict[str, tuple[str, Sizes]]) -> None:
    """Add the sizes of an input's open dimensions to `symbols`. Raises ConfigError if the range does not fit the
    input's rank and fixed dimensions, or if `symbols` has other sizes for one of the open dimensions."""
    key = PREFIX + _short(spec.name)
    if spec.shape != ANY_SHAPE and len(spec.shape) != len(range_.minimum):
        raise ConfigError(
            f"setting {key} has {len(range_.minimum)} dimensions, but the model's input has {len(spec.shape)}"
        )
    for axis, (dim, *found) in enumerate(
        zip(_dims(spec), range_.minimum, range_.optimum, range_.maximum, strict=False)
    ):
        low, middle, high = found
        sizes = (low, middle, high)
        if isinstance(dim, int):
            if sizes != (dim, dim, dim):
                raise ConfigError(f"setting {key}: dimension {axis} is {dim} in the model; give this size")
            continue
        symbol = _symbol(spec, axis)
        other, before = symbols.setdefault(symbol, (key, sizes))
        if before != sizes:
            keys = f"setting {key}" if other == key else f"settings {other} and {key}"
            raise ConfigError(f"dimension {dim!r} has different sizes in {keys}; give equal sizes")


def _require_pictures(one: tuple[str, Shape] | None, given: Mapping[str, Range]) -> None:
    """Raise ConfigError if a given range excludes a single picture of the model's size."""
    if one is not None and one[0] in given and not given[one[0]].contains(one[1]):
        name, shape = one
        raise ConfigError(
            f"setting {PREFIX}{_short(name)} excludes {_write(shape)}, the shape of a single picture of the model's"
            " size; widen the range, or change preprocess.width and preprocess.height"
        )


# -- sizes without a setting ----------------------------------------------------------------------------------------


def _defaults(
    spec: TensorSpec, signature: Signature, picture: tuple[int, int] | None, exact: Mapping[str, Shape]
) -> Iterator[tuple[int, Sizes]]:
    """Yield the axis and the sizes of each open dimension of an input, if edged knows the sizes without a setting."""
    one = _one_picture(signature, picture)
    takes_picture = one is not None and one[0] == spec.name
    known = one[1] if one is not None and takes_picture and exact else exact.get(spec.name)
    if known is not None:
        yield from ((axis, (size, size, size)) for axis, size in enumerate(known) if isinstance(spec.shape[axis], str))
        return
    if one is not None and takes_picture:
        for axis, size in list(enumerate(one[1]))[1:]:
            if isinstance(spec.shape[axis], str):
                yield axis, (size, size, size)
    if spec.shape and spec.shape != ANY_SHAPE and isinstance(spec.shape[0], str):
        name, is_nameless = spec.shape[0], _NAMELESS.fullmatch(spec.shape[0]) is not None
        if takes_picture or _BATCH_NAME.fullmatch(name) or (is_nameless and len(spec.shape) > 1):
            yield 0, _BATCH


def _one_picture(signature: Signature, picture: tuple[int, int] | None) -> tuple[str, Shape] | None:
    """Return the name of the input for pictures, and the shape of this input for a single picture. The shape has the
    model's batch size if that is fixed, otherwise 1. Return None if the model has no such input or `picture` is
    None."""
    found, _ = find_picture(signature.inputs)
    if picture is None or found is None:
        return None
    width, height = picture
    spec = next(spec for spec in signature.inputs if spec.name == found.name)
    batch = spec.shape[0] if isinstance(spec.shape[0], int) else 1
    sizes = (found.channels, height, width) if found.layout == "NCHW" else (height, width, found.channels)
    return found.name, (batch, *sizes)


def _filled(spec: TensorSpec, known: Mapping[str, Sizes]) -> Range:
    if spec.shape == ANY_SHAPE:
        raise Unsuitable(
            f"input {_short(spec.name)} can have any number of dimensions, but an engine needs a fixed number;"
            " export the model with a fixed number of dimensions"
        )
    if len(spec.shape) > _MOST_DIMENSIONS:
        raise Unsuitable(
            f"input {_short(spec.name)} has {len(spec.shape)} dimensions; an engine supports at most {_MOST_DIMENSIONS}"
        )
    found = [(d, d, d) if isinstance(d, int) else known.get(_symbol(spec, axis)) for axis, d in enumerate(spec.shape)]
    range_ = Range(spec.name, *(tuple((sizes or _EXAMPLE)[i] for sizes in found) for i in range(3)))
    if None in found:
        axis = found.index(None)
        shapes = " ".join(_write(shape) for shape in (range_.minimum, range_.optimum, range_.maximum))
        raise Unsuitable(
            f"input {_short(spec.name)} leaves dimension {axis} ({_short(str(spec.shape[axis]))}) open; an engine"
            f' needs a range for it: set {_example_key(spec.name)} = "{shapes}", or other shapes that you need'
        )
    problem = _problem(range_.minimum, range_.optimum, range_.maximum)
    if problem:
        raise Unsuitable(f"input {_short(spec.name)}: {problem}; set {_example_key(spec.name)}")
    return range_


def _symbol(spec: TensorSpec, axis: int) -> str:
    """Return a key for an open dimension. For a named dimension the key is the name, because dimensions of the same
    name have the same size. For an unnamed dimension, the key has the axis and the input."""
    dim = spec.shape[axis] if spec.shape != ANY_SHAPE else "?"
    return f"={dim}" if isinstance(dim, str) and is_named(dim) else f"@{axis} of {spec.name}"


def is_named(dim: str) -> bool:
    """Whether the author of the model chose this name of an open dimension. Names from exporters mean nothing."""
    return _NAMELESS.fullmatch(dim) is None


def _dims(spec: TensorSpec) -> tuple[Dim, ...]:
    return spec.shape if spec.shape != ANY_SHAPE else ()


# -- text -----------------------------------------------------------------------------------------------------------


def _write(shape: Shape) -> str:
    return "x".join(map(str, shape))


def _read_shape(word: str) -> Shape:
    return tuple(int(size) for size in word.split("x"))


def _read_range(word: str) -> Range:
    name, equals, shapes = word.partition("=")
    words = shapes.split(":")
    if not equals or len(words) != 3 or not all(map(_SHAPE.fullmatch, words)):
        raise ConfigError(f"invalid range of shapes {word[:80]!r}: it is not in the form that edged writes")
    minimum, optimum, maximum = map(_read_shape, words)
    problem = _problem(minimum, optimum, maximum)
    if problem:
        raise ConfigError(f"invalid range of shapes {word[:80]!r}: {problem}")
    return Range(unquote(name), minimum, optimum, maximum)


def _example_key(name: str) -> str:
    """Return the key of an input's setting as TOML writes it, in quotes if TOML requires them."""
    return PREFIX + name if re.fullmatch(r"[A-Za-z0-9_.-]+", name) else f'"{PREFIX}{_short(name)}"'


def _short(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
