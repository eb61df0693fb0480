"""Which shapes a model's requests may have, beside what each input declares by itself."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from edged.backends.profile import PREFIX, Profile, Shape
from edged.errors import InvalidTensor
from edged.models import shapes as model_shapes
from edged.models.model import Model
from edged.models.shapes import POLICY, Tie
from edged.serving.extents import Combination
from edged.serving.work import InputTensor


class Bounds(msgspec.Struct, frozen=True):
    """`profile` is the range that requests must keep to, empty where any shape of the model's will do; `ties` are the
    dimensions that inputs have in common, `open` the inputs with an open dimension, in the order of the model."""

    profile: Profile = Profile()
    ties: tuple[Tie, ...] = ()
    open: tuple[str, ...] = ()

    @classmethod
    def of(cls, model: Model) -> Bounds:
        # Of the file: config.pbtxt may fix a dimension of one input and leave it open in another.
        signature = model.inspection.signature
        return cls(
            model.bounds,
            model_shapes.ties(signature),
            tuple(spec.name for spec in signature.inputs if not spec.is_static),
        )

    def check(self, shapes: Mapping[str, Shape]) -> None:
        """InvalidInput, naming the tensor, its shape and the shapes that it may have. Whatever engine serves at the
        moment: a client must not be refused from the next swap on."""
        for allowed in self.profile.ranges:
            shape = shapes.get(allowed.name)
            if shape is not None and not allowed.contains(shape):
                least, most = list(allowed.minimum), list(allowed.maximum)
                raise InvalidTensor(
                    f"input {allowed.name!r} is {list(shape)[:16]}, the model takes {least} to {most} here;"
                    f" its setting {PREFIX}{allowed.name} widens that, {POLICY} = any lifts it"
                )
        unequal = model_shapes.unequal(self.ties, shapes)
        if unequal:
            raise InvalidTensor(unequal)

    def combination(self, inputs: tuple[InputTensor, ...]) -> Combination:
        """The shapes of a request that engines may be built for."""
        shapes = {tensor.name: tensor.shape for tensor in inputs}
        return tuple((name, shapes[name]) for name in self.open if name in shapes)
