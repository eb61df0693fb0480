"""The command line's top: every command registers itself here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer
from typer.core import TyperGroup

from edged.cli import (
    common,
    config,
    demo,
    doctor,
    engine_commands,
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
from edged.cli.targets import with_target_options
from edged.version import __version__


def _command(function: Callable[..., None]) -> Callable[..., None]:
    return common.command(with_target_options(function))


def _group(
    text: str | None, *functions: Callable[..., None], callback: Callable[..., None] | None = None
) -> typer.Typer:
    """Return a group of commands, named as their functions; `callback` is the command of the group itself."""
    group = typer.Typer(help=text, no_args_is_help=callback is None, invoke_without_command=callback is not None)
    group.callback()(_command(callback) if callback else lambda: None)
    for function in functions:
        group.command(function.__name__.rstrip("_"))(_command(function))
    return group


# As one meets them: try it, run it, give it models, use them, look beneath.
_COMMANDS: dict[str, Callable[..., None] | typer.Typer] = {
    "demo": demo.demo,
    "serve": serve.serve,
    "config": _group("The configuration file: write, check and show one.", config.init, config.check, config.show),
    "models": _group("List, show, add and remove models.", models.add, models.list_, models.show, models.remove),
    "inspect": inspect.inspect,
    "infer": infer.infer,
    "stream": stream.stream,
    "cameras": status.cameras,
    "status": status.status,
    "top": top.top,
    "engines": _group(
        "List, explain, build, verify and evict engines.",
        *engines.COMMANDS,
        *engine_commands.COMMANDS,
    ),
    "events": events.events,
    "inventory": _group("Check files of boxes for --inventory.", inventory.check),
    "device": _group(status.device.__doc__, status.refresh, callback=status.device),
    "doctor": doctor.doctor,
    "reload": serve.reload,
    "tokens": _group(
        "Create, list and revoke tokens of clients; see docs/security.md.", tokens.new, tokens.list_, tokens.revoke
    ),
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


for _name, _each in _COMMANDS.items():
    if isinstance(_each, typer.Typer):
        app.add_typer(_each, name=_name)
    else:
        app.command(_name)(_command(_each))
