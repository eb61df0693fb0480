"""A model that was read and can be served: what the disk has, what the file holds, what its pictures mean."""

from __future__ import annotations

import contextlib

import msgspec

from edged.backend.artefact import Artefact
from edged.backend.contract import Effort, Order, Recipe
from edged.backend.profile import Profile
from edged.errors import ConfigError, ModelRefused, Unsuitable
from edged.model.inspection import Inspection
from edged.model.repository import ModelEntry
from edged.vision.family import Recognition, recognise


class Model(msgspec.Struct, frozen=True):
    """An inspected model with its settings applied."""

    entry: ModelEntry
    inspection: Inspection
    recognition: Recognition

    @classmethod
    def of(cls, entry: ModelEntry, inspection: Inspection) -> Model:
        """ConfigError when the settings do not fit the model, ModelRefused when nothing could be asked of it."""
        if entry.problem:
            raise ConfigError(f"model {entry.name}: {entry.problem}")
        if inspection.refusal:
            raise ModelRefused(inspection.refusal)
        signature = inspection.signature
        if not signature.outputs:
            raise ModelRefused(f"model {entry.name} has no outputs")
        recognition = recognise(
            signature.inputs, signature.outputs, inspection.metadata, entry.settings, inspection.operators
        )
        model = cls(entry, inspection, recognition)
        with contextlib.suppress(Unsuitable):  # only some engines need a range of shapes; it is for them to say
            Profile.of(signature, entry.settings, model.picture)
        return model

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def digest(self) -> str:
        return self.inspection.digest

    @property
    def picture(self) -> tuple[int, int] | None:
        """Width and height of the pictures it takes, in pixels; None when it takes none."""
        preprocess = self.recognition.preprocess
        return (preprocess.width, preprocess.height) if preprocess else None

    @property
    def is_static(self) -> bool:
        """Whether every input has one size only."""
        return all(spec.is_static for spec in self.inspection.signature.inputs)

    @property
    def samples(self) -> tuple[str, ...]:
        """Paths of the pictures that its user gave for verifying engines with; none for a model that takes none."""
        return self.entry.samples if self.recognition.preprocess else ()

    def order(self, recipe: Recipe, artefact: Artefact | None = None, effort: Effort = "full") -> Order:
        """An order for one of its engines; without an artefact it is not built yet, or a reference."""
        external = tuple(file.path for file in self.inspection.external)
        return Order(self.entry.path, self.inspection.signature, recipe, artefact, external, self.digest, effort)
