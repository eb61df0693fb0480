"""What a detector family is, and what the rules that recognise one look at.

A family turns a model's output tensors into `Detections`. Its file holds the decoder and the rules that
claim a model for it; a rule looks at `Evidence` and returns a `Claim`, or None when it has nothing to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

import msgspec
import numpy as np

from edged.errors import ConfigError
from edged.tensors import Array, TensorSpec
from edged.vision.detections import Classes, Detections
from edged.vision.families.outputs import Size, at_least
from edged.vision.metadata import ExportMetadata
from edged.vision.placement import Placement
from edged.vision.preprocess import PictureInput, Preprocess


class Thresholds(msgspec.Struct, frozen=True):
    """Which detections stay: score above `score`; overlap (IoU) with a better one of the class at most `iou`.

    The defaults are those of `yolo predict` (0.25, 0.7, 300), so that a model answers as it did for whoever
    trained it. A lower `iou` such as 0.45 gives fewer doubles and loses neighbours in a crowd.

    Where a model's own graph leaves no doubles, `iou` counts only with `class_agnostic`, which then removes those
    of different classes. Of a classifier's classes the best `max_detections` with at least `score` stay; its
    defaults are 5 and 0.
    """

    score: float = 0.25
    iou: float = 0.7
    max_detections: int = 300
    class_agnostic: bool = False


class Opened(Protocol):
    """What every opened family has: how to feed one model and what to call its answers. Stateless, safe to share."""

    @property
    def name(self) -> str: ...

    @property
    def preprocess(self) -> Preprocess: ...

    @property
    def names(self) -> tuple[str, ...]: ...

    def companions(self, placements: Sequence[Placement]) -> Mapping[str, Array]:
        """The model's inputs besides the picture, by name, for a batch of pictures that lie as `placements` say.

        Each has a first dimension of len(placements): where a batch is filled up, so must they be. Most models
        have none.
        """
        ...


class Family(Opened, Protocol):
    """Reads detections from a model's outputs."""

    def decode(
        self, outputs: Mapping[str, Array], index: int, placement: Placement, thresholds: Thresholds
    ) -> Detections:
        """Detections of picture `index` of the batch, in pixels of the original picture, best score first.

        `outputs` are the model's tensors by name, batch first; they are only read, never kept.
        """
        ...


@runtime_checkable
class Costly(Family, Protocol):
    """A family whose detections are far more work than their boxes."""

    def boxes(
        self, outputs: Mapping[str, Array], index: int, placement: Placement, thresholds: Thresholds
    ) -> Detections:
        """As `decode`, but boxes, scores and classes are enough."""
        ...


@runtime_checkable
class Classifier(Opened, Protocol):
    """Reads classes of the whole picture from a model's outputs."""

    def classify(self, outputs: Mapping[str, Array], index: int, thresholds: Thresholds) -> Classes:
        """The best classes of picture `index` of the batch, best first; see `Thresholds` for which."""
        ...


class Reading(msgspec.Struct, frozen=True):
    """Which tensors are decoded and how they are written: plain data, kept with the recognition.

    `outputs` are in the family's own order. `form` is one of the family's layouts, where it has several.
    `keypoints` is how many each detection has, and how many values each of those.
    `anchors` are width, height, width, ... in input pixels, a row for each scale. `is_list` says that rows come in
    order of score, or as many as were found, so that a row of one engine is not the same row of another's;
    `is_suppressed` that the graph also decided which of them are doubles, or too weak to be told. `dense` are those of
    `outputs` that are no lists even so: each of their values has its place. `classes` is how many classes the tensors
    tell of, where anything says; 0 where their shape leaves it open.
    """

    outputs: tuple[str, ...] = ()
    form: str = ""
    anchors: tuple[tuple[float, ...], ...] = ()
    keypoints: tuple[int, int] = (0, 0)
    is_list: bool = False
    is_suppressed: bool = False
    dense: tuple[str, ...] = ()
    classes: int = 0

    def width(self, besides: int) -> Size:
        """How many values a detection has where each class has one: those, and so many besides."""
        return besides + self.classes if self.classes else at_least(besides + 1)


class Evidence(msgspec.Struct, frozen=True):
    """All that a rule may look at."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    metadata: ExportMetadata
    picture: PictureInput | None
    size: tuple[int, int] | None  # (width, height) of the input, where anything says it
    settings: Mapping[str, str] = {}
    operators: frozenset[str] | None = None  # names of those in the graph; None where nobody looked
    heads: Mapping[str, str] | None = None  # the operator that makes each output; None where nobody looked

    def cells(self, strides: tuple[int, ...] = (8, 16, 32)) -> int | None:
        """Grid cells over all strides, which is the number of predictions of an anchor-free detector."""
        if self.size is None:
            return None
        width, height = self.size
        return sum(-(-width // s) * -(-height // s) for s in strides)

    @property
    def output_names(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self.outputs)

    def output(self, name: str) -> TensorSpec | None:
        return next((spec for spec in self.outputs if spec.name == name), None)

    @property
    def flat_list(self) -> TensorSpec | None:
        """The only output, [M, 7], where it may be a row for each detection; a single row is a classifier's."""
        output = self.only_output
        if output is None or len(output.shape) != 2 or output.shape[1] != 7 or output.shape[0] == 1:
            return None
        return output

    @property
    def may_be_classes(self) -> bool:
        """Whether the one output, [M, 7], has as many rows as there are pictures, for all that the file says: a row of
        seven classes for each. A list of detections comes from an operator that suppresses."""
        output, picture = self.only_output, self.picture
        if output is None or picture is None or "NonMaxSuppression" in (self.operators or ()):
            return False
        return any(spec.name == picture.name and spec.shape[0] == output.shape[0] for spec in self.inputs)

    @property
    def only_output(self) -> TensorSpec | None:
        return self.outputs[0] if len(self.outputs) == 1 else None


class Claim(msgspec.Struct, frozen=True):
    """A rule's verdict: the family it claims the model for, or None for "known, but not decoded"; and why.

    `output` is the tensor to decode and `classes` how many classes it has, where the shape says. Where more must be
    known, `reading` says it all and `output` is left empty. `background` is how many slots before the classes stand
    for none of them.
    """

    family: str | None
    reason: str
    output: str = ""
    classes: int | None = None
    reading: Reading | None = None
    background: int = 0

    @property
    def read(self) -> Reading:
        return self.reading or Reading((self.output,) if self.output else ())


Rule: TypeAlias = Callable[[Evidence], Claim | None]


class Maker(msgspec.Struct, frozen=True):
    """How a family is claimed by setting, fed and opened; `companions` are the inputs it fills besides the picture."""

    by_setting: Callable[[Evidence], Claim]
    feed: Callable[[Preprocess], Preprocess]
    open: Callable[[Preprocess, tuple[str, ...], Reading], Family | Classifier]
    thresholds: Thresholds = Thresholds()
    companions: tuple[str, ...] = ()


class Decoder(msgspec.Struct, frozen=True):
    """What most families are made of."""

    preprocess: Preprocess
    names: tuple[str, ...]
    reading: Reading

    def companions(self, placements: Sequence[Placement]) -> Mapping[str, Array]:
        """See `Opened.companions`: none."""
        return {}


def demand(evidence: Evidence, family: str, needs: str, holds: bool) -> None:
    """ConfigError where the user names a family whose tensors the model does not have."""
    if evidence.picture is not None and holds:
        return
    told = ", ".join(f"{spec.name} [{','.join(map(str, spec.shape))}]" for spec in evidence.outputs)
    what = "one picture input" if evidence.picture is None else needs
    raise ConfigError(f"family={family} needs {what}; the model has {told[:200]}; set family=raw")


def of_picture(rows: Array, index: int) -> Array:
    """The rows of one picture where the first column says whose they are."""
    found: Array = rows[np.equal(rows[:, 0], index)]
    return found


def not_decoded(what: str) -> Claim:
    return Claim(None, f"{what}, which is not decoded yet; raw tensors are served")


def undecided(what: str, *families: str) -> Claim:
    """Nothing is guessed: the reason names the settings that decide."""
    return Claim(None, f"{what}: set {', '.join(f'family={name}' for name in families)} or family=raw")
