"""Tests a family of another package: recognises a model and decodes outputs as an engine host does, with all checks."""

from __future__ import annotations

from collections.abc import Mapping

from edged.family_packages import Package
from edged.tensors import Array, TensorSpec
from edged.vision.content import Content
from edged.vision.detections import Detections
from edged.vision.families.contract import ContentFamily, Family
from edged.vision.families.decoding import Thresholds
from edged.vision.families.third_party import Kind, ThirdParty
from edged.vision.family import recognise
from edged.vision.placement import Placement, place

_PACKAGE = Package("under-test", "0", "")


class FamilyTest:
    """A family under test, for a model with these inputs and outputs. `settings` are the settings of the model; by
    default they name the family.

    `recognition` is edged's recognition of the model. The constructor raises FamilyFailed if edged cannot use the
    class, and ConfigError if the settings name the family but the family does not accept the model.
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
        self._other = ThirdParty.of(kind, kind.name, _PACKAGE)
        wanted = {"family": kind.name} if settings is None else settings
        self.recognition = recognise(inputs, outputs, metadata or {}, wanted, others=(self._other,))

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
        family, placement = self._open(), self._place(width, height)
        assert isinstance(family, Family), f"{family.name} is not a detector"
        return family.decode(outputs, index, placement, thresholds or self.recognition.thresholds)

    def content(self, outputs: Mapping[str, Array], *, width: int, height: int, index: int = 0) -> Content:
        """Like `detect`, but for a `ContentFamily`: a family that decodes an answer about the whole picture."""
        family, placement = self._open(), self._place(width, height)
        assert isinstance(family, ContentFamily), f"{family.name} is a detector"
        return family.content(outputs, index, placement, self.recognition.thresholds)

    def _place(self, width: int, height: int) -> Placement:
        wanted = self.recognition.preprocess
        assert wanted is not None
        return place(width, height, wanted.width, wanted.height, wanted.fit, wanted.zoom)

    def _open(self) -> Family | ContentFamily:
        found = self.recognition
        assert found.family == self._other.name, f"the model is not recognised: {found.reason}"
        assert found.preprocess is not None
        return self._other.open(found.preprocess, found.names, found.reading)
