"""`edged serve` runs the daemon in the foreground, also for systemd. `edged reload` makes the daemon read its
configuration file again."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edged.api_types import ReloadedKey
from edged.cli import common, remote
from edged.cli.remote import RemoteCommand
from edged.cli.targets import DEFAULT_TARGETS, Targets
from edged.errors import ConfigError

if TYPE_CHECKING:
    from edged.config.reading import Options

_LOG = logging.getLogger("edged")
# The longest time for which a thread that works on a large body holds the GIL while the event loop waits for it. The
# event loop needs the GIL again after each system call. With Python's default of 5 ms, a camera got its answers five
# times as late.
_SWITCH_SECONDS = 0.0005


def serve(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Configuration file (TOML); see edged config.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            metavar="NAME=FILE",
            help="Serve a model from its file, folder or reference; repeatable.",
        ),
    ] = None,
    listen: Annotated[
        list[str] | None,
        typer.Option("--listen", "-l", metavar="ADDRESS", help="unix:PATH or HOST:PORT on this machine; repeatable."),
    ] = None,
    state: Annotated[Path | None, typer.Option("--state", help="Directory for models.")] = None,
    cache: Annotated[Path | None, typer.Option("--cache", help="Directory for engines.")] = None,
) -> None:
    """Run the daemon, in the foreground.

    It serves every model in its folder of models, and meanwhile builds, verifies and swaps in faster engines.

    Everything can be configured in a TOML file; edged config init prints one. Options override environment variables
    (such as EDGED_STATE), and these override the file. SIGHUP or edged reload reads the file again, but not the
    environment. SIGTERM or Ctrl-C stops the daemon; a second signal stops it at once.
    """
    gc.disable()
    import uvloop

    from edged import config as configuration
    from edged import logs, paths
    from edged.api.grpc.activation import Activation
    from edged.daemon import main as daemon
    from edged.daemon.fetching import Fetcher
    from edged.references.reference import parse

    # Objects of the imports live as long as the daemon. Without gc.freeze, each collection spends 20 ms on them.
    gc.freeze()
    gc.enable()
    activation = Activation.take(os.environ, os.getpid())
    logs.start()
    faulthandler.enable()  # logs every thread's stack at a crash or a watchdog's SIGABRT
    sys.setswitchinterval(_SWITCH_SECONDS)
    file = config or paths.default_config()
    environment = dict(os.environ)
    options = _options(listen or [], state, cache, model or [])

    def reading() -> configuration.Reading:
        # The default file need not exist, and may be created later.
        is_there = file is not None and (config is not None or file.exists())
        return configuration.read(file if is_there else None, environment, options)

    first = reading()
    logs.reconfigure(first.required().log)
    fetcher = Fetcher()
    settings = fetcher.resolve(first.required())

    def again() -> configuration.Config:
        found = fetcher.resolve(reading().required())
        fetcher.start()
        return found

    has_references = any(map(parse, first.required().models.values()))

    def ready(addresses: list[str]) -> None:
        for warning in first.warnings:
            _LOG.warning("%s", warning)
        _LOG.info("configuration: %s", first.summary())
        _announce(addresses)
        fetcher.start()

    uvloop.run(daemon.serve(settings, ready, again if file or has_references else None, activation))


def _announce(addresses: list[str]) -> None:
    """Print the addresses on standard output."""
    for address in addresses:
        print(f"listening on {address}", flush=True)


def _options(listen: list[str], state: Path | None, cache: Path | None, model: list[str]) -> Options:
    """Return a mapping from configuration keys to the name and value of each given option."""
    given: dict[str, tuple[str, object]] = {
        "listen": ("--listen", listen),
        "state": ("--state", str(state) if state else ""),
        "cache": ("--cache", str(cache) if cache else ""),
        "models": ("--model", _models(model)),
    }
    return {key: (option, value) for key, (option, value) in given.items() if value}


def _models(words: list[str]) -> dict[str, str]:
    models = {}
    for word in words:
        name, equals, path = word.partition("=")
        if not equals or not name or not path:
            raise ConfigError(f"invalid --model {word!r}; give NAME=FILE")
        models[name] = path
    return models


def reload(targets: Targets = DEFAULT_TARGETS, json: common.Json = False) -> None:
    """Make the daemon read its configuration file again.

    The daemon applies the changes; the command prints a line for each.

    If the file is invalid, the daemon keeps its configuration. Exit status: 0 every change is in force, 1 some changes
    are not, 2 the file is invalid.
    """
    command = RemoteCommand(
        call=lambda client: client.reload(),
        render=_lines,
        to_json=lambda keys: {"keys": [key.json() for key in keys]},
        failure=lambda keys: "; ".join(f"{key.key} is not in force: {key.problem}" for key in keys if key.problem),
        if_interrupted="the daemon finishes a reload that it has begun",
    )
    remote.run(command, targets, json)


def _lines(keys: Sequence[ReloadedKey]) -> list[str]:
    lines = [f"{key.change}: {key.problem}" if key.problem else key.change for key in keys]
    return lines or ["nothing changed"]
