"""The interface of a family of models: rules that recognise a model, and a decoder of its outputs.

A family is a class with the signatures of its tensors, its preprocessing, and two methods. `claim` matches a model's
tensors. The other method is `decode`, which returns detections, or `content`, which returns an answer about the whole
picture. `FastestDet` is a short example. A family can also have the rules `by_metadata`, `by_names` and `by_shape`,
which `edged.vision.family` lists. A rule gets `Evidence` and returns a `Claim`, or None if the rule does not apply. If
the setting `family` names the family, no rule is applied: `claim` is called directly.

Families of other packages fulfil the same contract (docs/third-party-families.md). Such a class names the version of
the contract that it was written for: `contract = 1`. Increase `CONTRACT` only if a correct family of the previous
version would no longer work. Do not increase it for additions that old families can ignore.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, TypeAlias

import msgspec
import numpy as np

from edged.tensors import Array, Dim, TensorSpec
from edged.vision.comparison import Tensors
from edged.vision.content import Classes, Content
from edged.vision.detections import Detections
from edged.vision.families.decoding import Floats, Outputs, Size, Thresholds, at_least
from edged.vision.metadata import ExportMetadata
from edged.vision.placement import Fit, Placement
from edged.vision.preprocess import PictureInput, Preprocess
from edged.vision.signatures import Signature
from edged.vision.sound import Sound

CONTRACT = 1


class Reading(msgspec.Struct, frozen=True):
    """The tensors that are decoded, and their layout. Plain data, part of the recognition.

    `outputs` are in the family's own order. `form` names the layout, if the family has several layouts. `keypoints` is
    (number of keypoints per detection, number of values per keypoint). `anchors` are width, height, width, ... in input
    pixels, a row for each scale.

    If `is_list`, rows are sorted by score, or their number varies, so rows with the same number in the answers of two
    engines need not match. `dense` names outputs of such a model that can still be compared row by row, such as mask
    prototypes. If `is_suppressed`, the graph also drops duplicates or weak detections. `classes` is the number of
    classes in the tensors; 0 if unknown. `unclip` is the factor for enlarging the rectangles of `DbNet`.

    A family can fill inputs other than the picture. `extras` has the names of such inputs, and their shapes for one
    picture. `constants` has the names and rows of INT64 inputs [rows, columns] with the same values for every picture,
    such as the token ids of prompts. A model with constants gets one picture at a time.
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
    constants: tuple[tuple[str, tuple[tuple[int, ...], ...]], ...] = ()
    unclip: float = 0.0

    @property
    def exact(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the inputs in `extras` and `constants` by name, if the model has `constants`: it then gets one
        picture at a time, so the shapes are fixed. Empty for other models: their shapes depend on the number of
        pictures."""
        if not self.constants:
            return {}
        shapes = {name: (1, *shape) for name, shape in self.extras}
        return shapes | {name: (len(rows), len(rows[0])) for name, rows in self.constants}

    def width(self, besides: int) -> Size:
        """Return the number of values per detection: one per class, and `besides` other values. If the number of
        classes is unknown, return a range."""
        return besides + self.classes if self.classes else at_least(besides + 1)


class Evidence(msgspec.Struct, frozen=True):
    """The facts about a model that takes pictures, from which rules recognise the family of the model."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    metadata: ExportMetadata
    picture: PictureInput
    size: tuple[int, int] | None  # (width, height) of the input, if known
    settings: Mapping[str, str] = {}
    operators: frozenset[str] | None = None  # names of the operators in the graph; None if unknown
    heads: Mapping[str, str] | None = None  # the operator that computes each output; None if unknown

    @property
    def tensors(self) -> Tensors:
        """The tensors that are compared with signatures."""
        return Tensors.of(self.inputs, self.outputs, self.size)

    def cells(self, strides: tuple[int, ...] = (8, 16, 32)) -> int | None:
        """Return the number of grid cells at these strides; None if the input size is unknown. An anchor-free detector
        has one prediction for each of these cells."""
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
        """The only output, if it is [M, 7] and may have a row per detection. None if the file declares exactly one row,
        because a classifier has such an output."""
        output = self.only_output
        if output is None or len(output.shape) != 2 or output.shape[1] != 7 or output.shape[0] == 1:
            return None
        return output

    @property
    def may_be_classes(self) -> bool:
        """Whether an output [M, 7] may be seven classes per picture: the file declares as many rows as pictures, and
        the graph has no NonMaxSuppression operator, which would make a list of detections."""
        output = self.only_output
        if output is None or "NonMaxSuppression" in (self.operators or ()):
            return False
        return any(spec.name == self.picture.name and spec.shape[0] == output.shape[0] for spec in self.inputs)


class Claim(msgspec.Struct, frozen=True):
    """A rule's verdict: the reason, and the family, or None for "known, but not decoded" and for "undecided".

    `classes` is the number of class slots, or None if the shape does not show it. The number includes the `background`
    slots that come first, but not background slots at the end. `names` are the names of the classes if neither the file
    nor the settings have names. `thresholds` replace the family's default thresholds if these do not suit this form.
    `sound` says how a model that takes sound is fed.

    Without a family, `between` are the families that the setting `family` can choose, and `kind` is the kind of a model
    whose tensors are not decoded (see `edged.vision.kinds`).
    """

    family: str | None
    reason: str
    reading: Reading = Reading()
    classes: int | None = None
    background: int = 0
    names: tuple[str, ...] = ()
    thresholds: Thresholds | None = None
    between: tuple[str, ...] = ()
    kind: str = ""
    sound: Sound | None = None


# Other datatypes are not decoded: numpy holds quantised values and BF16 as plain integers.
_DECODED = frozenset({"FP64", "FP32", "FP16", "INT32", "INT64"})


def readable(claim: Claim, outputs: tuple[TensorSpec, ...]) -> Claim:
    """Return the claim, or a claim without a family if an output has a datatype that is not decoded."""
    for spec in outputs:
        if spec.name in claim.reading.outputs and spec.datatype not in _DECODED:
            what = f"output {spec.name} has the datatype {spec.datatype}, which is not decoded"
            return Claim(None, f"looks like {claim.family}, but {what}")
    return claim


Rule: TypeAlias = Callable[[Evidence], Claim | None]
Feed: TypeAlias = Mapping[str, object]  # fields of `Preprocess`


class Opened(msgspec.Struct, frozen=True):
    """Base of `Family` and `ContentFamily`: the decoder for the outputs of one model. Stateless, safe to share between
    threads."""

    contract: ClassVar[int]  # the version of this contract; only families of other packages name it
    name: ClassVar[str]
    signatures: ClassVar[tuple[Signature, ...]]  # one for each form; only to find similar families
    feed: ClassVar[Feed] = {"fit": Fit.LETTERBOX}  # how pictures are fed; see `preprocess.preprocess_for`
    thresholds: ClassVar[Thresholds] = Thresholds()
    score_range: ClassVar[tuple[float, float]] = (0.0, 1.0)  # of the setting thresholds.score
    own_inputs: ClassVar[tuple[str, ...]] = ()  # the inputs that `extra_inputs` fills
    open_size: ClassVar[tuple[int, int] | None] = None  # width and height if neither the model nor settings fix them

    preprocess: Preprocess
    names: tuple[str, ...]
    reading: Reading

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        """Match a model by its tensors only. `reason` says why edged tries this family, and begins the reason of the
        claim. Return None if the tensors do not fit. If a setting is missing, return a claim that has no family, and
        names the setting in its reason."""
        raise NotImplementedError

    def extra_inputs(self, placements: Sequence[Placement]) -> Mapping[str, Array]:
        """Return the tensors of the inputs in `own_inputs`, by name. The batch has a picture for each of `placements`.

        The first dimension is len(placements) for an input in `Reading.extras`, and len(placements) times the number of
        rows for an input in `Reading.constants`. Most models have no such inputs.
        """
        return {}


class Family(Opened, frozen=True):
    """Decodes detections from a model's outputs."""

    # Whether even a threshold of 0 may give no detection, because detections are not cells or rows of an output.
    may_find_nothing: ClassVar[bool] = False

    def grid(self, stride: int) -> tuple[int, int]:
        """Return columns and rows of a grid with cells of stride x stride input pixels. Partial cells are included."""
        return -(-self.preprocess.width // stride), -(-self.preprocess.height // stride)

    def decode(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        """Return detections of picture `index` of the batch, in pixels of the original picture, best score first.

        `outputs` maps names to the model's tensors, batch first. This method does not modify or keep the tensors.
        """
        raise NotImplementedError

    def boxes(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        """Like `decode`, but a family may leave out fields that cost much more than boxes, scores and classes."""
        return self.decode(outputs, index, placement, thresholds)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the input."""
        return self.preprocess.width, self.preprocess.height

    def in_pixels(self, relative: Array) -> Floats:
        """Convert boxes [n, 4] in 0..1 of the input to input pixels."""
        return relative.astype(np.float32, copy=False) * np.array(self.size * 2, np.float32)


class ContentFamily(Opened, frozen=True):
    """Decodes a model's answer about the whole picture."""

    def content(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Content:
        """Return the content of picture `index` of the batch. A map covers the original picture, without the padding of
        the input. If the model got only a part of the picture, the map covers this part, and its field `box` is the
        part (see `families.maps`).

        `outputs` maps names to the model's tensors, batch first. This method does not modify or keep the tensors.
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
    """Return the reading of a list of detections, if the graph does the NMS. `outputs` and `form` are as in
    `Reading`."""
    return Reading(outputs, form, is_list=True, is_suppressed=True)


def not_decoded(what: str) -> Claim:
    return Claim(None, f"{what}; edged does not decode this form yet; raw tensors are served")


def undecided(what: str, *families: str) -> Claim:
    """Return a claim without a family, which lets the user choose one of `families` with the setting `family`. Later
    `recognise` removes the families that do not accept the model, and names the others in the reason."""
    return Claim(None, what, between=families)
