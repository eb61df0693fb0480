"""Judgements: how closely an engine's answers agree with the reference's on frames of the box's own cameras. A
judgement is part of the engine's record."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

# too_few: the frames show too few objects for a decision, so the engine is refused. no_frames: the collection's frames
# are gone (their retention ended, or a newer collection began), so only the golden answers decide about the engine.
Outcome: TypeAlias = Literal["alike", "different", "too_few", "no_frames"]


class Box(msgspec.Struct, frozen=True, array_like=True):
    """A detection, in pixels of its frame."""

    x1: float
    y1: float
    x2: float
    y2: float
    score: float
    label: str


class Point(msgspec.Struct, frozen=True):
    """Precision and recall of the engine if only its detections with at least this score count."""

    score: float
    precision: float
    recall: float


class Tally(msgspec.Struct, frozen=True):
    """The figures of one class, or of one camera. `objects` counts the detections of the reference. `found` counts all
    detections of the engine, right or wrong. For models without detections, each frame counts as one object."""

    name: str
    objects: int
    found: int
    figures: dict[str, float]


class WorstFrame(msgspec.Struct, frozen=True):
    """One of the frames on which the engine differs most. `name` is its file in the collection.

    `expected` and `found` are the best detections of the reference and of the engine. For models other than detectors,
    `expected_lines` and `found_lines` describe the two answers.
    """

    name: str
    camera: str
    figures: dict[str, float]
    expected: tuple[Box, ...] = ()
    found: tuple[Box, ...] = ()
    expected_lines: tuple[str, ...] = ()
    found_lines: tuple[str, ...] = ()


class Judgement(msgspec.Struct, frozen=True):
    """The outcome of comparing an engine with the reference on held-out frames of a collection.

    `reason` says why the engine is refused; empty if it is not. `figures` are over all frames. If a figure is beyond
    its limit in `bounds`, the engine is refused. `objects` counts the reference's detections, or the frames if the
    model has no detections. `skipped` counts the frames that could not be read.
    """

    collection: str
    outcome: Outcome
    reason: str = ""
    frames: int = 0
    skipped: int = 0
    objects: int = 0
    figures: dict[str, float] = {}
    bounds: dict[str, float] = {}
    classes: tuple[Tally, ...] = ()
    cameras: tuple[Tally, ...] = ()
    curve: tuple[Point, ...] = ()
    worst: tuple[WorstFrame, ...] = ()

    @property
    def accepts(self) -> bool:
        """Whether the engine may serve, as far as the frames show."""
        return not self.reason
