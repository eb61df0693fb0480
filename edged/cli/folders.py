"""Options that name the folders of this box, and the box itself for commands that find no daemon."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edged import paths
from edged.errors import InvalidInput

if TYPE_CHECKING:
    from edged.cli.local import Box

State = Annotated[
    Path | None,
    typer.Option(
        "--state", help="Directory for models; no daemon is asked then, whatever EDGED_TARGET says.", show_default=False
    ),
]
Cache = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        help="Directory for engines; no daemon is asked then, whatever EDGED_TARGET says.",
        show_default=False,
    ),
]


def daemon_is_meant(target: str | None, *folders: Path | None) -> bool:
    """Whether a command goes to a daemon: one is named, or no folder is and one answers on the default socket.

    A folder that is named comes before EDGED_TARGET. InvalidInput when a daemon and a folder are both named.
    """
    if any(folders):
        if target:
            raise InvalidInput("a daemon has its own folders: give --target, or --state and --cache, not both")
        return False
    if target or os.environ.get("EDGED_TARGET", "").strip():
        return True
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe_socket:
        probe_socket.settimeout(1.0)
        try:
            probe_socket.connect(str(paths.client_socket()))
        except OSError:
            return False
    return True


def box(
    state: Path | None = None, cache: Path | None = None, seconds: float | None = None, memory_mb: int | None = None
) -> Box:
    """The box as its folders are; `seconds` and `memory_mb` limit the examination of models, where the environment
    does not. What reads models and builds engines takes long to import, and only now is needed."""
    from edged.cli.local import Box
    from edged.config import limits

    return Box(state, cache, limits.admission_limits(seconds, memory_mb))
