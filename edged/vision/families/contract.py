"""The interface of a family of models: rules that recognise a model, and a decoder of its outputs.

A family is a class with the tensors that it needs, its preprocessing, `claim`, which matches a model's tensors, and
`decode` (detections) or `content` (the whole picture). `Ssd` is a short example. Its optional rules `by_metadata`,
`by_names` and `by_shape` are listed in `edged.vision.family`. A rule gets `Evidence` and returns a `Claim`, or None if
it does not apply. If the setting `family` names the family, `claim` is called without any rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, TypeAlias

import msgspec
import numpy as np

from edged.tensors import Array, Dim, TensorSpec
from edged.vision.content import Classes, Content
from edged.vision.detections import Detections
from edged.vision.families.decoding import Floats, Outputs, Size, Thresholds, at_least
from edged.vision.metadata import ExportMetadata
from edged.vision.placement import Fit, Placement
from edged.vision.preprocess import PictureInput, Preprocess


class Reading(msgspec.Struct, frozen=True):
    """Which tensors are decoded, and their layout: plain data, part of the recognition.

    `outputs` are in the family's own order. `form` is one of the family's layouts, if it has several. `keypoints` is
    (number of keypoints per detection, number of values per keypoint). `anchors` are width, height, width, ... in input
    pixels, a row for each scale.

    `is_list`: rows are sorted by score, or their number varies, so row i of two engines need not match. `dense` names
    outputs of such a model that can still be compared row by row, such as mask prototypes. `is_suppressed`: the graph
    also drops duplicates or weak detections. `classes` is the number of classes in the tensors; 0 if unknown. `extras`
    are the inputs besides the picture that the family fills: their names, and their shapes for one picture.
    """

    outputs: tuple[str, ...] = ()
    form: str = ""
    anchors: tuple[tuple[float, ...], ...] = ()
    keypoints: tuple[int, int] = (0, 0)
    is_list: bool = False
    is_suppressed: bool = False
    dense: tuple[str, ...] = ()
    classes: int = 0
    extras: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def width(self, besides: int) -> Size:
        """Return the number of values per detection: one per class, and `besides` others."""
        return besides + self.classes if self.classes else at_least(besides + 1)


class Evidence(msgspec.Struct, frozen=True):
    """The facts about a model with a picture input from which its family is recognised."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    metadata: ExportMetadata
    picture: PictureInput
    size: tuple[int, int] | None  # (width, height) of the input, if known
    settings: Mapping[str, str] = {}
    operators: frozenset[str] | None = None  # names of those in the graph; None if unknown
    heads: Mapping[str, str] | None = None  # the operator of each output; None if unknown

    def cells(self, strides: tuple[int, ...] = (8, 16, 32)) -> int | None:
        """Return the number of grid cells at these strides, which is the number of predictions of an anchor-free
        detector; None if the input size is unknown."""
        if self.size is None:
            return None
        width, height = self.size
        return sum(-(-width // s) * -(-height // s) for s in strides)

    @property
    def output_names(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self.outputs)

    @property
    def only_output(self) -> TensorSpec | None:
        return self.outputs[0] if len(self.outputs) == 1 else None

    def table(self, least: int) -> TensorSpec | None:
        """Return the only output, if it is [N, rows, columns] with at least `least` columns or an open number."""
        output = self.only_output
        if output is None or len(output.shape) != 3:
            return None
        columns = output.shape[2]
        return output if isinstance(columns, str) or columns >= least else None

    @property
    def flat_list(self) -> TensorSpec | None:
        """Return the only output, if it is [M, 7] and may have a row per detection. With exactly one row it is a
        classifier's."""
        output = self.only_output
        if output is None or len(output.shape) != 2 or output.shape[1] != 7 or output.shape[0] == 1:
            return None
        return output

    @property
    def may_be_classes(self) -> bool:
        """Whether the output [M, 7] may be seven classes per picture: as far as the file declares, it has one row per
        picture. A list of detections would need a NonMaxSuppression operator in the graph."""
        output = self.only_output
        if output is None or "NonMaxSuppression" in (self.operators or ()):
            return False
        return any(spec.name == self.picture.name and spec.shape[0] == output.shape[0] for spec in self.inputs)


class Claim(msgspec.Struct, frozen=True):
    """A rule's verdict: the family, or None for "known, but not decoded", and the reason.

    `classes` is the number of class slots, if the shape shows it. It includes the `background` slots that come first,
    but not background slots at the end. `names` are the classes' names if neither the file nor the settings have any.
    """

    family: str | None
    reason: str
    reading: Reading = Reading()
    classes: int | None = None
    background: int = 0
    names: tuple[str, ...] = ()


Rule: TypeAlias = Callable[[Evidence], Claim | None]
Feed: TypeAlias = Mapping[str, object]  # fields of `Preprocess`


class Opened(msgspec.Struct, frozen=True):
    """A family opened for one model. Stateless, safe to share between threads."""

    name: ClassVar[str]
    needs: ClassVar[str]  # the tensors, for the error if `claim` returns None
    feed: ClassVar[Feed] = {"fit": Fit.LETTERBOX}  # how pictures are fed; see `preprocess.preprocess_for`
    thresholds: ClassVar[Thresholds] = Thresholds()
    own_inputs: ClassVar[tuple[str, ...]] = ()  # the inputs that `extra_inputs` fills

    preprocess: Preprocess
    names: tuple[str, ...]
    reading: Reading

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        """Match a model by its tensors only. A claim without a family says which setting is missing."""
        raise NotImplementedError

    def extra_inputs(self, placements: Sequence[Placement]) -> Mapping[str, Array]:
        """Return the inputs besides the picture that the family fills, by name, for a batch of pictures with these
        placements.

        Each has a first dimension of len(placements). Most models have no such inputs.
        """
        return {}


class Family(Opened, frozen=True):
    """Decodes detections from a model's outputs."""

    def grid(self, stride: int) -> tuple[int, int]:
        """Return columns and rows of a grid with cells of stride x stride input pixels; partial cells count."""
        return -(-self.preprocess.width // stride), -(-self.preprocess.height // stride)

    def decode(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        """Return detections of picture `index` of the batch, in pixels of the original picture, best score first.

        `outputs` are the model's tensors by name, batch first; they are not modified or kept.
        """
        raise NotImplementedError

    def boxes(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        """Like `decode`, but return only boxes, scores and classes if the rest would cost much more."""
        return self.decode(outputs, index, placement, thresholds)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the input."""
        return self.preprocess.width, self.preprocess.height

    def in_pixels(self, relative: Array) -> Floats:
        """Convert boxes [n, 4] in 0..1 of the input to input pixels."""
        return relative.astype(np.float32, copy=False) * np.array(self.size * 2, np.float32)


class ContentFamily(Opened, frozen=True):
    """Decodes what a model says about the whole picture."""

    def content(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Content:
        """Return the content of picture `index` of the batch. Maps cover the original picture, without the padding of
        the input.

        `outputs` are the model's tensors by name, batch first; they are not modified or kept.
        """
        raise NotImplementedError


class Classifier(ContentFamily, frozen=True):
    """Decodes classes of the whole picture."""

    def content(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Classes:
        return self.classify(outputs, index, thresholds)

    def classify(self, outputs: Outputs, index: int, thresholds: Thresholds) -> Classes:
        """Return the classes of picture `index` of the batch, best first; see `Thresholds`."""
        raise NotImplementedError


def count_classes(dim: Dim, besides: int = 0) -> int | None:
    """Return the number of classes along a dimension with `besides` other values; None if the dimension is open."""
    return dim - besides if isinstance(dim, int) else None


def may_be(shape: tuple[Dim, ...], *sizes: int | None) -> bool:
    """Whether a declared shape can have these sizes. Open dimensions match any size; None matches any dimension."""
    return len(shape) == len(sizes) and all(
        size is None or isinstance(dim, str) or dim == size for dim, size in zip(shape, sizes, strict=True)
    )


def suppressed_list(outputs: tuple[str, ...], form: str) -> Reading:
    """Return the reading of a list that the graph's own NMS produced."""
    return Reading(outputs, form, is_list=True, is_suppressed=True)


def not_decoded(what: str) -> Claim:
    return Claim(None, f"{what}, which is not decoded yet; raw tensors are served")


def undecided(what: str, *families: str) -> Claim:
    """Return a claim without a family; its reason names the settings that decide."""
    return Claim(None, f"{what}: set {', '.join(f'family={name}' for name in families)} or family=raw")
