"""The root of the command line: lists all commands, and imports a command when it is used."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any, TypeAlias

import typer
from typer.core import TyperGroup

from edged.cli.examples import epilog
from edged.version import __version__

_Command: TypeAlias = Callable[..., None]


def _function(module: str, name: str) -> Callable[[], _Command]:
    """Return a function that imports `edged.cli.MODULE` and returns its function `name`, which is a command."""

    def load() -> _Command:
        found: _Command = getattr(import_module(f"edged.cli.{module}"), name)
        return found

    return load


def _command(function: _Command) -> _Command:
    from edged.cli import common
    from edged.cli.targets import with_target_options

    return common.command(with_target_options(function))


def _group(name: str, text: str | None, *functions: _Command, callback: _Command | None = None) -> typer.Typer:
    """Return a typer group with one command for each function. A command has the name of its function, without a
    trailing `_`. `callback` runs if the user gives only the group's name; without a callback, typer shows the help."""
    options: dict[str, Any] = {"help": text, "epilog": epilog(name), "invoke_without_command": callback is not None}
    group = typer.Typer(no_args_is_help=callback is None, **options)
    group.callback()(_command(callback) if callback else lambda: None)
    for function in functions:
        word = function.__name__.rstrip("_")
        group.command(word, epilog=epilog(f"{name} {word}"))(_command(function))
    return group


def _family() -> typer.Typer:
    from edged.cli import family

    text = "Model families of other packages: create one, list all."
    return _group("family", text, family.new, family.list_)


def _config() -> typer.Typer:
    from edged.cli import config

    return _group(
        "config", "The configuration file: write, check and show one.", config.init, config.check, config.show
    )


def _models() -> typer.Typer:
    from edged.cli import models

    return _group("models", "List, show, add, change and remove models.", *models.COMMANDS)


def _cameras() -> typer.Typer:
    from edged.cli import cameras

    subcommands = (cameras.add, cameras.set_, cameras.show, cameras.enable, cameras.disable, cameras.remove)
    return _group("cameras", cameras.cameras.__doc__, *subcommands, callback=cameras.cameras)


def _gallery() -> typer.Typer:
    from edged.cli import gallery

    text = "Give names to faces and other embeddings."
    return _group("gallery", text, gallery.add, gallery.list_, gallery.remove)


def _samples() -> typer.Typer:
    from edged.cli import samples

    text = "Collect frames of live cameras, to calibrate and judge engines."
    return _group("samples", text, samples.collect, samples.list_, samples.show, samples.stop, samples.remove)


def _engines() -> typer.Typer:
    from edged.cli import engine_commands, engines

    text = "List, explain, build, verify and evict engines."
    return _group("engines", text, *engines.COMMANDS, *engine_commands.COMMANDS)


def _fleet() -> typer.Typer:
    from edged.cli import fleet
    from edged.cli.rollout import commands

    text = "Many boxes: share engines, and change boxes in waves."
    group = _group("fleet", text, *fleet.COMMANDS)
    group.add_typer(_group("fleet rollout", "Change many boxes in waves.", *commands.COMMANDS), name="rollout")
    return group


def _inventory() -> typer.Typer:
    from edged.cli import inventory

    return _group("inventory", "Check an inventory: a file of boxes, for --inventory.", inventory.check)


def _device() -> typer.Typer:
    from edged.cli import status

    return _group("device", status.device.__doc__, status.refresh, callback=status.device)


def _tokens() -> typer.Typer:
    from edged.cli import tokens

    text = "Create, list and revoke tokens of clients."
    return _group("tokens", text, tokens.new, tokens.list_, tokens.revoke)


def _tls() -> typer.Typer:
    from edged.cli import tls

    return _group("tls", "Make certificates for boxes and their clients.", tls.new)


# In the order of use: try edged, run it, add models, use them, look into details.
_COMMANDS: dict[str, Callable[[], _Command | typer.Typer]] = {
    "up": _function("up", "up"),
    "demo": _function("demo", "demo"),
    "serve": _function("serve", "serve"),
    "config": _config,
    "models": _models,
    "export": _function("export", "export"),
    "family": _family,
    "inspect": _function("inspect", "inspect"),
    "infer": _function("infer", "infer"),
    "chat": _function("chat", "chat"),
    "stream": _function("stream", "stream"),
    "pipelines": _function("pipelines", "pipelines"),
    "cameras": _cameras,
    "gallery": _gallery,
    "samples": _samples,
    "status": _function("status", "status"),
    "top": _function("top", "top"),
    "page": _function("page", "page"),
    "engines": _engines,
    "events": _function("events", "events"),
    "logs": _function("logs", "logs"),
    "fleet": _fleet,
    "inventory": _inventory,
    "device": _device,
    "doctor": _function("doctor", "doctor"),
    "self-check": _function("self_check", "self_check"),
    "report": _function("report", "report"),
    "reload": _function("serve", "reload"),
    "tokens": _tokens,
    "tls": _tls,
}


def _typer(**options: Any) -> typer.Typer:
    options = {"add_completion": False} | options
    return typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, **options)


class _Commands(TyperGroup):
    """All commands, in the order of `_COMMANDS`. Looking up a known command imports only that command's module. Showing
    the help, or looking up an unknown command, imports the modules of all commands."""

    def list_commands(self, ctx: object) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        for name in (cmd_name,) if cmd_name in _COMMANDS else _COMMANDS:
            if name not in self.commands:
                self._load(name)
        return super().get_command(ctx, cmd_name)

    def _load(self, name: str) -> None:
        loaded, alone = _COMMANDS[name](), _typer()
        alone.callback()(lambda: None)
        if isinstance(loaded, typer.Typer):
            alone.add_typer(loaded, name=name)
        else:
            alone.command(name, epilog=epilog(name))(_command(loaded))
        self.commands[name] = typer.main.get_group(alone).commands[name]


app = _typer(
    name="edged",
    cls=_Commands,
    add_completion=True,
    no_args_is_help=True,
    help="Serve ONNX models to cameras from verified engines that fit the box as it is now.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"edged {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    target: Annotated[
        list[str] | None,
        typer.Option("--target", "-t", metavar="ADDRESS", help="The daemon to call; can also follow the command."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON; can also follow the command.")] = False,
) -> None:
    """Store --target and --json for the command that follows. `_version` implements --version."""
    from edged.cli import common

    common.root_options.targets, common.root_options.json = tuple(target or ()), json
