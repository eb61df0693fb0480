"""What a detector family is, and what the rules that recognise one look at.

A family turns a model's output tensors into `Detections`. Its file holds the decoder and the rules that
claim a model for it; a rule looks at `Evidence` and returns a `Claim`, or None when it has nothing to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

import msgspec

from edged.tensors import Array, TensorSpec
from edged.vision.detections import Detections
from edged.vision.metadata import ExportMetadata
from edged.vision.placement import Placement
from edged.vision.preprocess import PictureInput, Preprocess


class Thresholds(msgspec.Struct, frozen=True):
    """Which detections stay: score above `score`; overlap (IoU) with a better one of the class at most `iou`.

    The defaults are those of `yolo predict` (0.25, 0.7, 300), so that a model answers as it did for whoever
    trained it. A lower `iou` such as 0.45 gives fewer doubles and loses neighbours in a crowd.
    """

    score: float = 0.25
    iou: float = 0.7
    max_detections: int = 300
    class_agnostic: bool = False


class Family(Protocol):
    """An opened family: knows how to feed one model and how to read its outputs. Stateless, safe to share."""

    @property
    def name(self) -> str: ...

    @property
    def preprocess(self) -> Preprocess: ...

    @property
    def names(self) -> tuple[str, ...]: ...

    def decode(
        self, outputs: Mapping[str, Array], index: int, placement: Placement, thresholds: Thresholds
    ) -> Detections:
        """Detections of picture `index` of the batch, in pixels of the original picture, best score first.

        `outputs` are the model's tensors by name, batch first; they are only read, never kept.
        """
        ...


class Evidence(msgspec.Struct, frozen=True):
    """All that a rule may look at."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    metadata: ExportMetadata
    picture: PictureInput | None
    size: tuple[int, int] | None  # (width, height) of the input, where anything says it

    def cells(self, strides: tuple[int, ...] = (8, 16, 32)) -> int | None:
        """Grid cells over all strides, which is the number of predictions of an anchor-free detector."""
        if self.size is None:
            return None
        width, height = self.size
        return sum(-(-width // s) * -(-height // s) for s in strides)

    @property
    def only_output(self) -> TensorSpec | None:
        return self.outputs[0] if len(self.outputs) == 1 else None


class Claim(msgspec.Struct, frozen=True):
    """A rule's verdict: the family it claims the model for, or None for "known, but not decoded"; and why.

    `output` is the tensor to decode and `classes` how many classes it has, where the shape says.
    """

    family: str | None
    reason: str
    output: str = ""
    classes: int | None = None


Rule: TypeAlias = Callable[[Evidence], Claim | None]


def not_decoded(what: str) -> Claim:
    return Claim(None, f"{what}, which is not decoded yet; raw tensors are served")
