"""The options by which a model is repaired, and how what was done is told."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from edged.models.repair import Record

Convert: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--convert",
        help="Repair what keeps it from being served as it is meant: an opset or IR version too new for the runtimes "
        "here, inputs declared otherwise than what they take.",
    ),
]
Steps: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--convert-step",
        metavar="STEP",
        help="Make this repair, needed or not: opset, opset=N, ir, ir=N, dims, sizes (pictures of any size), simplify; "
        "repeatable. With --convert the needed ones as well.",
    ),
]


def told(record: Record | None) -> tuple[str, ...]:
    """What was done, for whoever asked for it; nothing for others."""
    if record is None:
        return ()
    left_out = (f"left out: {line}" for line in record.left_out)
    if not record.steps:
        return ("nothing had to be repaired", *left_out)
    return (*(done.line() for done in record.steps), *left_out)
