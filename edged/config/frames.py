"""Keys of `[frames]`: frames that are collected from live cameras, to calibrate and judge engines."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from edged.config.table import Table

MOST_FRAMES = 10_000  # of a model: their index is one file
MOST_CAMERAS = 256  # in `cameras` of one `Collect`
LONGEST_HOURS = 24.0 * 90


class Collect(Table, frozen=True):
    """Frames that are collected for the model of this name, unless there are some already."""

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
        float, Meta(ge=0.001, le=LONGEST_HOURS, description="Hours over which they are spread; a day or more is best.")
    ] = 24.0


class Frames(Table, frozen=True):
    """Space and age of the frames that are collected from live cameras (docs/frames.md)."""

    limit_mb: Annotated[int, Meta(ge=1, le=1 << 30, description="Space for the frames of all models, in MiB.")] = 2048
    model_mb: Annotated[int, Meta(ge=1, le=1 << 30, description="Space for the frames of one model, in MiB.")] = 512
    keep_days: Annotated[float, Meta(gt=0, le=3650, description="Age in days above which frames are deleted.")] = 90.0
    collect: dict[str, Collect] = msgspec.field(default_factory=dict)
