"""What every command shares: its options, where it prints, and how it ends."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
from collections.abc import Callable
from typing import Annotated, ParamSpec

import typer
from rich.console import Console

from edged.errors import EdgedError, InvalidInput

Parameters = ParamSpec("Parameters")

Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-t",
        metavar="ADDRESS",
        help="The daemon: unix:/PATH or HOST:PORT; otherwise EDGED_TARGET, otherwise its default socket.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Score = Annotated[
    float | None,
    typer.Option(
        "--score", min=0.0, max=1.0, help="Leave out detections below this score, 0 to 1.", show_default=False
    ),
]

FAILED, USAGE = 1, 2
_INTERRUPTED = 128 + signal.SIGINT
_NOBODY_READS = 128 + signal.SIGPIPE

# Labels and messages are data: brackets in them are no markup, colons no emoji.
out = Console(markup=False, emoji=False, highlight=False)
err = Console(stderr=True, markup=False, emoji=False, highlight=False)


def command(function: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """A command that ends as a shell expects: an EdgedError is one line on stderr and status 1, or 2 where the
    arguments, the settings or the model are at fault; Ctrl-C is 130; a closed pipe is quiet."""

    @functools.wraps(function)
    def wrapped(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        try:
            function(*args, **kwargs)
            sys.stdout.flush()  # a closed pipe is met here, not while the interpreter exits
        except EdgedError as error:
            typer.echo(f"edged: {error.message}", err=True)
            raise typer.Exit(USAGE if isinstance(error, InvalidInput) else FAILED) from None
        except KeyboardInterrupt:
            raise typer.Exit(_INTERRUPTED) from None
        except BrokenPipeError:
            _discard_output()
            raise typer.Exit(_NOBODY_READS) from None

    return wrapped


def print_json(encoded: bytes) -> None:
    """One line of JSON, at once: the reader may be a pipe that waits for it."""
    sys.stdout.write(encoded.decode() + "\n")
    sys.stdout.flush()


def _discard_output() -> None:
    """What is still buffered goes nowhere; the interpreter would complain about it at exit."""
    with contextlib.suppress(OSError, ValueError):  # a test's standard output is no file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
