"""The base of all tables of the configuration, and the keys of `[frames]`, `[describe.NAME]` and `[pipelines.NAME]`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

MOST_FRAMES = 10_000  # of a model: their index is one file
MOST_CAMERAS = 256  # in `cameras` of one `Collect`
LONGEST_HOURS = 24.0 * 90
_MOST_CROPS = 64  # a host gets and answers all crops of a frame in one message
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of the file. The docstring of a subclass describes the table, the `Meta` of a field describes a key."""


def check_names(field: str, names: Iterable[str]) -> None:
    """Raise ValueError if a name in the table `field` is invalid. The names of cameras, zones, lines and pipelines are
    used in topics of messages, names of files and labels of metrics, so only some characters are allowed."""
    for name in names:
        if not _NAME.fullmatch(name):
            rule = "use 1 to 64 letters, digits, dots, hyphens and underscores; begin with a letter or digit"
            raise ValueError(f"{field} has the invalid name {name[:70]!r}; {rule}")


class Collect(Table, frozen=True):
    """Frames that are collected for the model of this name, unless the model already has collected frames."""

    cameras: Annotated[
        tuple[str, ...],
        Meta(
            max_length=MOST_CAMERAS,
            description="Names of cameras; empty for all that send frames to the model.",
            examples=[["hall", "yard"]],
        ),
    ] = ()
    frames: Annotated[int, Meta(ge=1, le=MOST_FRAMES, description="How many frames to keep.")] = 500
    over_hours: Annotated[
        float, Meta(ge=0.001, le=LONGEST_HOURS, description="Hours to spread the frames over; a day or more is best.")
    ] = 24.0


class Frames(Table, frozen=True):
    """Space and age of the frames that are collected from live cameras (docs/frames.md)."""

    limit_mb: Annotated[int, Meta(ge=1, le=1 << 30, description="Space for the frames of all models, in MiB.")] = 2048
    model_mb: Annotated[int, Meta(ge=1, le=1 << 30, description="Space for the frames of one model, in MiB.")] = 512
    keep_days: Annotated[float, Meta(gt=0, le=3650, description="Age in days above which frames are deleted.")] = 90.0
    collect: dict[str, Collect] = msgspec.field(default_factory=dict)


class Describe(Table, frozen=True):
    """A rule: if a camera's detector sees a class for some time, the best frame goes to a language model, and its
    answer becomes an event (docs/language.md). Camera frames and chats have priority over descriptions."""

    camera: Annotated[str, Meta(description="The camera, by its id in streams.", examples=["gate"])]
    model: Annotated[
        str,
        Meta(
            description="The language model. If it takes pictures, it gets the frame; otherwise only the detections.",
            examples=["qwen-vl"],
        ),
    ]
    classes: Annotated[
        tuple[str, ...], Meta(description="Classes of which one must be seen; empty for any.", examples=[["person"]])
    ] = ()
    seconds: Annotated[
        float, Meta(ge=0, le=3600, description="For how long one of the classes must be seen, in seconds.")
    ] = 2.0
    score: Annotated[float, Meta(ge=0, le=1, description="The least score of a detection that counts.")] = 0.5
    every_seconds: Annotated[
        float, Meta(ge=1, le=86400, description="Seconds between two descriptions of this rule, at least.")
    ] = 60.0
    prompt: Annotated[str, Meta(description="What the model is asked; {camera} and {detections} are replaced.")] = (
        "What happens at camera {camera}? One sentence. Detected: {detections}."
    )
    max_tokens: Annotated[int, Meta(ge=1, le=4096, description="The longest description, in tokens.")] = 64

    def __post_init__(self) -> None:
        for key, value in (("camera", self.camera), ("model", self.model), ("prompt", self.prompt)):
            if not value:
                raise ValueError(f"{key} is empty; give a value")
        for word in re.findall(r"\{\w+\}", self.prompt):
            if word not in ("{camera}", "{detections}"):
                raise ValueError(f"prompt has {word}, which is not replaced; use only {{camera}} and {{detections}}")


class Pipeline(Table, frozen=True):
    """Runs two models on each frame: the second gets a crop of each detection of the first. Clients and cameras use the
    name of a pipeline like the name of a model."""

    detect: Annotated[str, Meta(description="The detector that gets the frames.", examples=["plates"])]
    then: Annotated[
        str,
        Meta(description="The model that gets the crops: any that takes pictures and has a family.", examples=["ocr"]),
    ]
    crop: Annotated[
        Literal["box", "corners"],
        Meta(
            description='What is cut out. "box": the box; "corners": the oriented box, turned upright, if the detector'
            " gives corners, otherwise the box."
        ),
    ] = "box"
    margin: Annotated[
        float, Meta(ge=0, le=2, description="Added on each side of a box, as a share of its width or height.")
    ] = 0.0
    classes: Annotated[
        tuple[str, ...],
        Meta(description="Classes whose detections get a crop; empty for all.", examples=[["plate"]]),
    ] = ()
    most: Annotated[
        int, Meta(ge=1, le=_MOST_CROPS, description="Most crops for a frame; the best scores have priority.")
    ] = 8

    def __post_init__(self) -> None:
        for key, model in (("detect", self.detect), ("then", self.then)):
            if not model:
                raise ValueError(f"{key} is empty; name a model")


def check_pipelines(pipelines: Mapping[str, Pipeline]) -> None:
    """Raise ValueError if a pipeline has an invalid name, or if a step names a pipeline: steps are models, so no
    pipeline can contain itself."""
    check_names("pipelines", pipelines)
    for name, pipeline in pipelines.items():
        for key, model in (("detect", pipeline.detect), ("then", pipeline.then)):
            if model in pipelines:
                raise ValueError(f"pipelines.{name}.{key} is set to a pipeline, {model!r}; name a model")
