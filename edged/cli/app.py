"""The command line's top: every command registers itself here."""

from __future__ import annotations

from typing import Annotated

import typer
from typer.core import TyperGroup

from edged.cli import (
    config,
    demo,
    doctor,
    engines,
    events,
    infer,
    inspect,
    inventory,
    models,
    serve,
    status,
    stream,
    tokens,
    top,
)
from edged.version import __version__

# As one meets them: try it, run it, give it models, use them, look beneath.
_COMMANDS = {
    "demo": demo.register,
    "serve": serve.register,
    "config": config.register,
    "models": models.register,
    "inspect": inspect.register,
    "infer": infer.register,
    "stream": stream.register,
    "cameras": status.register_cameras,
    "status": status.register,
    "top": top.register,
    "engines": engines.register,
    "events": events.register,
    "inventory": inventory.register_check,
    "device": status.register_device,
    "doctor": doctor.register,
    "reload": serve.register_reload,
    "tokens": tokens.register,
}


class _InOrder(TyperGroup):
    """Lists the commands in their order here; typer would put the groups behind all others."""

    def list_commands(self, ctx: object) -> list[str]:
        return list(_COMMANDS)


app = typer.Typer(
    name="edged",
    cls=_InOrder,
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


for _register in _COMMANDS.values():
    _register(app)
