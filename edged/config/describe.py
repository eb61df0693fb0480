"""Keys of `[describe.NAME]`: when a language model describes what a camera sees."""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta

from edged.config.table import Table


class Describe(Table, frozen=True):
    """A rule: if a camera's detector sees a class for some time, the best frame goes to a language model, and its
    answer becomes an event (docs/language.md). Frames of cameras and chats come first."""

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
                raise ValueError(f"{key} is empty; set it")
        for word in re.findall(r"\{\w+\}", self.prompt):
            if word not in ("{camera}", "{detections}"):
                raise ValueError(f"prompt has {word}; only {{camera}} and {{detections}} are replaced")
