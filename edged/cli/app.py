"""The command line's top: every command registers itself here."""

from __future__ import annotations

from typing import Annotated

import typer

from edged.cli import demo, device, engines, events, infer, inspect, models, serve, stream
from edged.version import __version__

app = typer.Typer(
    name="edged",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Serve ONNX models to cameras from verified engines that fit the box as it is now.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"edged {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Options of edged itself."""


for _module in (demo, serve, models, engines, inspect, device, infer, stream, events):
    _module.register(app)
