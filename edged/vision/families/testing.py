"""Tests of a family of another package: recognises and decodes as an engine host does, with the same checks."""

from __future__ import annotations

from collections.abc import Mapping

from edged.family_packages import Package
from edged.tensors import Array, TensorSpec
from edged.vision.detections import Classes, Detections
from edged.vision.families.contract import Classifier, Family
from edged.vision.families.decoding import Thresholds
from edged.vision.families.third_party import Kind, ThirdParty
from edged.vision.family import recognise
from edged.vision.placement import place

_PACKAGE = Package("under-test", "0", "")


class FamilyTest:
    """A family for a model with these inputs and outputs. `settings` are the model's; by default they name the family.

    `recognition` is edged's recognition of the model. Raises FamilyFailed if edged cannot use the class, ConfigError if
    the settings name the family and it does not fit the model.
    """

    def __init__(
        self,
        kind: Kind,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        *,
        settings: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        other = ThirdParty.of(kind, kind.name, _PACKAGE)
        wanted = {"family": kind.name} if settings is None else settings
        self.recognition = recognise(inputs, outputs, metadata or {}, wanted, others=(other,))
        self._kind = other.kind

    def detect(
        self,
        outputs: Mapping[str, Array],
        *,
        width: int,
        height: int,
        index: int = 0,
        thresholds: Thresholds | None = None,
    ) -> Detections:
        """Decode picture `index` of the model's outputs, for a picture of width x height pixels. Raises FamilyFailed if
        the family raises an error or returns something invalid."""
        preprocess, family = self.recognition.preprocess, self._open()
        assert preprocess is not None
        assert isinstance(family, Family), f"{family.name} is no detector"
        placement = place(width, height, preprocess.width, preprocess.height, preprocess.fit, preprocess.zoom)
        return family.decode(outputs, index, placement, thresholds or self.recognition.thresholds)

    def classify(self, outputs: Mapping[str, Array], *, index: int = 0) -> Classes:
        """Like `detect`, for a classifier."""
        family = self._open()
        assert isinstance(family, Classifier), f"{family.name} is no classifier"
        return family.classify(outputs, index, self.recognition.thresholds)

    def _open(self) -> Family | Classifier:
        found = self.recognition
        assert found.family == self._kind.name, f"the model is not recognised: {found.reason}"
        assert found.preprocess is not None
        return self._kind(found.preprocess, found.names, found.reading)
