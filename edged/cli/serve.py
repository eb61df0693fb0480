"""`edged serve`: the daemon in the foreground, as systemd runs it."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from edged.cli import common
from edged.errors import ConfigError


def serve(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Configuration file (TOML).", show_default=False)
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", metavar="NAME=FILE", help="Serve a model file where it lies; repeatable."),
    ] = None,
    listen: Annotated[
        list[str] | None,
        typer.Option("--listen", "-l", metavar="ADDRESS", help="unix:PATH or HOST:PORT on this machine; repeatable."),
    ] = None,
    state: Annotated[Path | None, typer.Option("--state", help="Directory for models.", show_default=False)] = None,
    cache: Annotated[Path | None, typer.Option("--cache", help="Directory for engines.", show_default=False)] = None,
) -> None:
    """Run the daemon: serve every model of the repository, and build, verify and swap engines beneath.

    Options go before the configuration file. Stops on SIGTERM or Ctrl-C; a second one leaves at once.
    """
    import uvloop

    from edged import config as configuration
    from edged import daemon

    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname).1s %(name)s: %(message)s", stream=sys.stderr
    )
    settings = configuration.load(config) if config else configuration.Config()
    settings = msgspec.structs.replace(
        settings,
        listen=tuple(listen) if listen else settings.listen,
        state=str(state) if state else settings.state,
        cache=str(cache) if cache else settings.cache,
        models={**settings.models, **_models(model or [])},
    )
    uvloop.run(daemon.serve(settings, _announce))


def register(app: typer.Typer) -> None:
    app.command("serve")(common.command(serve))


def _announce(addresses: list[str]) -> None:
    """Tells whoever started the daemon, on standard output, where it answers."""
    for address in addresses:
        print(f"listening on {address}", flush=True)


def _models(words: list[str]) -> dict[str, str]:
    models = {}
    for word in words:
        name, equals, path = word.partition("=")
        if not equals or not name or not path:
            raise ConfigError(f"--model {word!r} is not NAME=FILE")
        models[name] = path
    return models
