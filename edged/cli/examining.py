"""Options of commands that examine a model: what it is asked with, and how long and how much that may take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edged.config import limits
from edged.errors import InvalidInput

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
