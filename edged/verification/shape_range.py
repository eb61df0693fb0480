"""The range of shapes that a model's engines must accept, and the shapes in it that are probed. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from collections.abc import Set as AnySet
from typing import TypeAlias

import msgspec

from edged.backends.contract import Signature
from edged.backends.profile import PREFIX, Profile, Range
from edged.errors import Unsuitable
from edged.models.model import Model
from edged.tensors import ANY_SHAPE, Dim, TensorSpec, numpy_dtype

_LARGEST_BATCH = 32 << 20  # bytes of one input; larger shapes at the limits of a range are not probed

Shapes: TypeAlias = dict[str, tuple[int, ...]]


class ShapeRange(msgspec.Struct, frozen=True):
    """A model's range of shapes, which is the same for all devices; empty if the range is unknown. `given` has the
    names of the inputs whose range was set by the setting `profile.INPUT` or learnt from traffic.
    """

    profile: Profile = Profile()
    given: tuple[str, ...] = ()

    @classmethod
    def of(cls, model: Model) -> ShapeRange:
        """Return the range that was learnt from a model's traffic. If none was learnt, return the range from `read`."""
        if model.learnt.ranges:
            return cls(model.learnt, tuple(sorted(each.name for each in model.learnt.ranges)))
        exact = model.recognition.reading.exact
        return cls.read(model.inspection.signature, model.entry.settings, model.picture, exact)

    @classmethod
    def read(
        cls,
        signature: Signature,
        settings: Mapping[str, str],
        picture: tuple[int, int] | None,
        exact: Mapping[str, tuple[int, ...]] = {},
    ) -> ShapeRange:
        """Return the range that `Profile.of` derives from the signature and the settings; empty if it derives none."""
        try:
            profile = Profile.of(signature, settings, picture, exact)
        except Unsuitable:
            return cls()
        return cls(profile, tuple(sorted(key[len(PREFIX) :] for key in settings if key.startswith(PREFIX))))

    def contains(self, shapes: Shapes) -> bool:
        return all(self.profile.contains(name, shape) for name, shape in shapes.items())

    def usual(self, signature: Signature) -> Shapes | None:
        """Return, for each input, the shape that engines are optimised for; None if the range is unknown."""
        return {s.name: self._shape(s) for s in signature.inputs} if self.profile.ranges else None

    def batch(self, signature: Signature) -> Shapes | None:
        """Return the usual shapes with the largest batch. None if the largest batch is the usual batch in all ranges
        that were set or learnt. None, too, if an input with the largest batch is too large to probe."""
        grows = {r.name for r in self.profile.ranges if r.name in self.given and r.maximum[:1] > r.optimum[:1]}
        if not grows:
            return None
        leading = {spec.shape[0] for spec in signature.inputs if spec.name in grows} - {"?", *ANY_SHAPE}
        shapes = {spec.name: self._shape(spec, leading) for spec in signature.inputs}
        return shapes if _is_cheap(signature, shapes) else None

    def edges(self, signature: Signature) -> list[Shapes]:
        """Return the shapes at the limits of ranges that were set or learnt, without duplicates. They are the usual
        shapes with the largest batch, the smallest shapes, and the largest shapes. Shapes that are too large to probe
        are left out."""
        batch = self.batch(signature)
        found = [] if batch is None else [batch]
        if not self.given:
            return found
        for side in (_minimum, _maximum):
            shapes = {spec.name: self._at(spec, side) for spec in signature.inputs}
            if shapes not in (*found, self.usual(signature)) and 0 not in map(math.prod, shapes.values()):
                found.append(shapes)
        return [shapes for shapes in found if _is_cheap(signature, shapes)]

    def _at(self, spec: TensorSpec, side: Callable[[Range], tuple[int, ...]]) -> tuple[int, ...]:
        found = self.profile.range(spec.name)
        return side(found) if found is not None else tuple(dim for dim in spec.shape if isinstance(dim, int))

    def _shape(self, spec: TensorSpec, leading: AnySet[Dim] | None = None) -> tuple[int, ...]:
        """Return the usual shape of an input. If `leading` is given, the first dimension and the dimensions with a name
        in `leading` have their largest size."""
        found = self.profile.range(spec.name)
        if found is None:
            return tuple(dim for dim in spec.shape if isinstance(dim, int))
        shape = list(found.optimum)
        for axis, dim in enumerate(spec.shape if leading is not None else ()):
            if axis == 0 or dim in (leading or ()):
                shape[axis] = found.maximum[axis]
        return tuple(shape)


def _is_cheap(signature: Signature, shapes: Shapes) -> bool:
    sizes = (math.prod(shapes[spec.name]) * numpy_dtype(spec.datatype).itemsize for spec in signature.inputs)
    return all(size <= _LARGEST_BATCH for size in sizes)


def _minimum(found: Range) -> tuple[int, ...]:
    return found.minimum


def _maximum(found: Range) -> tuple[int, ...]:
    return found.maximum
