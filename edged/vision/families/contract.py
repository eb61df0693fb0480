"""The interface of a detector family, and of the rules that recognise one.

A family turns a model's output tensors into `Detections`. Its file holds the decoder and the rules that claim a model
for it: a rule gets `Evidence` and returns a `Claim`, or None if it does not apply.
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
    """Which detections are returned: score above `score`, IoU with a better one of the same class at most `iou`.

    The defaults are those of `yolo predict` (0.25, 0.7, 300), so that a model answers as in training. A lower `iou`
    such as 0.45 gives fewer duplicates and loses neighbours in a crowd.

    If the model's graph includes the NMS, `iou` applies only with `class_agnostic`, between different classes. Of a
    classifier's classes the best `max_detections` with at least `score` are returned; its defaults are 5 and 0.
    """

    score: float = 0.25
    iou: float = 0.7
    max_detections: int = 300
    class_agnostic: bool = False


class Opened(Protocol):
    """A family opened for one model. Stateless, safe to share between threads."""

    @property
    def name(self) -> str: ...

    @property
    def preprocess(self) -> Preprocess: ...

    @property
    def names(self) -> tuple[str, ...]: ...

    def extra_inputs(self, placements: Sequence[Placement]) -> Mapping[str, Array]:
        """Return the model's inputs besides the picture, by name, for a batch of pictures with these placements.

        Each has a first dimension of len(placements), and must be padded if the batch is. Most models have none.
        """
        ...


class Family(Opened, Protocol):
    """Decodes detections from a model's outputs."""

    def decode(
        self, outputs: Mapping[str, Array], index: int, placement: Placement, thresholds: Thresholds
    ) -> Detections:
        """Return detections of picture `index` of the batch, in pixels of the original picture, best score first.

        `outputs` are the model's tensors by name, batch first; they are not modified or kept.
        """
        ...


@runtime_checkable
class HasCheapBoxes(Family, Protocol):
    """A family whose boxes cost far less than its complete detections."""

    def boxes(
        self, outputs: Mapping[str, Array], index: int, placement: Placement, thresholds: Thresholds
    ) -> Detections:
        """As `decode`, with boxes, scores and classes only."""
        ...


@runtime_checkable
class Classifier(Opened, Protocol):
    """Decodes classes of the whole picture from a model's outputs."""

    def classify(self, outputs: Mapping[str, Array], index: int, thresholds: Thresholds) -> Classes:
        """Return the classes of picture `index` of the batch, best first; see `Thresholds`."""
        ...


class Reading(msgspec.Struct, frozen=True):
    """Which tensors are decoded, and their layout: plain data, part of the recognition.

    `outputs` are in the family's own order. `form` is one of the family's layouts, if it has several. `keypoints` is
    the number of keypoints per detection, and of values per keypoint. `anchors` are width, height, width, ... in input
    pixels, a row for each scale.

    `is_list`: rows are sorted by score, or as many as were found, so that row i of two engines need not match.
    `is_suppressed`: the graph also drops duplicates or weak detections. `dense` are the outputs that are not lists even
    then. `classes` is the number of classes in the tensors; 0 if unknown.
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
        """The number of values per detection: one per class, and `besides` others."""
        return besides + self.classes if self.classes else at_least(besides + 1)


class Evidence(msgspec.Struct, frozen=True):
    """What is known about a model when its family is recognised."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    metadata: ExportMetadata
    picture: PictureInput | None
    size: tuple[int, int] | None  # (width, height) of the input, if known
    settings: Mapping[str, str] = {}
    operators: frozenset[str] | None = None  # names of those in the graph; None if unknown
    heads: Mapping[str, str] | None = None  # the operator of each output; None if unknown

    def cells(self, strides: tuple[int, ...] = (8, 16, 32)) -> int | None:
        """Grid cells over all strides: the number of predictions of an anchor-free detector."""
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
        """The only output, [M, 7], if it may have a row per detection; a single row is a classifier's."""
        output = self.only_output
        if output is None or len(output.shape) != 2 or output.shape[1] != 7 or output.shape[0] == 1:
            return None
        return output

    @property
    def may_be_classes(self) -> bool:
        """Whether the output [M, 7] may be seven classes per picture: it has as many rows as pictures, as far as the
        file declares. A list of detections comes from a NonMaxSuppression operator."""
        output, picture = self.only_output, self.picture
        if output is None or picture is None or "NonMaxSuppression" in (self.operators or ()):
            return False
        return any(spec.name == picture.name and spec.shape[0] == output.shape[0] for spec in self.inputs)

    @property
    def only_output(self) -> TensorSpec | None:
        return self.outputs[0] if len(self.outputs) == 1 else None


class Claim(msgspec.Struct, frozen=True):
    """A rule's verdict: the family, or None for "known, but not decoded", and the reason.

    `output` is the tensor to decode and `classes` its number of classes, if the shape has it. If decoding needs more,
    `reading` is set and `output` is empty. `background` is the number of background slots before the classes.
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


class FamilySpec(msgspec.Struct, frozen=True):
    """A family's entry points; `extra_inputs` are the inputs that it fills besides the picture."""

    by_setting: Callable[[Evidence], Claim]
    feed: Callable[[Preprocess], Preprocess]
    open: Callable[[Preprocess, tuple[str, ...], Reading], Family | Classifier]
    thresholds: Thresholds = Thresholds()
    extra_inputs: tuple[str, ...] = ()


class Decoder(msgspec.Struct, frozen=True):
    """Base of most families."""

    preprocess: Preprocess
    names: tuple[str, ...]
    reading: Reading

    def extra_inputs(self, placements: Sequence[Placement]) -> Mapping[str, Array]:
        """See `Opened.extra_inputs`."""
        return {}


def require(evidence: Evidence, family: str, needs: str, holds: bool) -> None:
    """ConfigError unless the model `holds` what the family that the user set needs."""
    if evidence.picture is not None and holds:
        return
    outputs = ", ".join(f"{spec.name} [{','.join(map(str, spec.shape))}]" for spec in evidence.outputs)
    what = "one picture input" if evidence.picture is None else needs
    raise ConfigError(f"family={family} needs {what}; the model has {outputs[:200]}; set family=raw")


def rows_of_picture(rows: Array, index: int) -> Array:
    """The rows of one picture in a table whose first column is the picture's index."""
    found: Array = rows[np.equal(rows[:, 0], index)]
    return found


def not_decoded(what: str) -> Claim:
    return Claim(None, f"{what}, which is not decoded yet; raw tensors are served")


def undecided(what: str, *families: str) -> Claim:
    """Claim nothing; the reason names the settings that decide."""
    return Claim(None, f"{what}: set {', '.join(f'family={name}' for name in families)} or family=raw")
