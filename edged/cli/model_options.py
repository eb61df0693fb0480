"""The options by which a model is repaired, and how what was done is told."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from edged.config import limits
from edged.errors import InvalidInput
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


Seconds = Annotated[
    float | None,
    typer.Option(
        "--seconds",
        envvar=limits.ADMISSION_SECONDS,
        help="How long examining a model of up to 100 MiB may take; larger ones get more.",
        show_default=False,
    ),
]
MemoryMb = Annotated[
    int | None,
    typer.Option(
        "--memory-mb",
        envvar=limits.ADMISSION_MEMORY_MB,
        help="MiB that examining a model may take, besides three times its own size.",
        show_default=False,
    ),
]

Samples = Annotated[
    list[Path] | None,
    typer.Option(
        "--samples",
        metavar="DIR_OR_FILE",
        help="JPEG or PNG pictures to verify its engines with, tensors as *.npz of an array for each input, or a folder"
        " of them; repeatable, 32 at most.",
        show_default=False,
    ),
]


def require_no_limits(context: typer.Context) -> None:
    """InvalidInput where a daemon is asked and the command line says how long or how much examining may take; what the
    environment says is for commands that find none."""
    for name in ("seconds", "memory_mb"):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = f"--{name.replace('_', '-')}"
            raise InvalidInput(
                f"{option} is for commands without a daemon, which goes by admission.{name} of its configuration; give"
                " --state to do without it, or set that"
            )
