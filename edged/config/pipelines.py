"""Keys of `[pipelines.NAME]`: two models that answer frames together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta

from edged.config.cameras import check_names
from edged.config.table import Table

_MOST_CROPS = 64  # a host gets and answers all crops of a frame in one message


class Pipeline(Table, frozen=True):
    """Two models that answer frames together: the second gets a crop of each detection of the first. Clients and
    cameras use the name of a pipeline like the name of a model."""

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
                raise ValueError(f"pipelines.{name}.{key} names a pipeline, {model!r}; name a model")
