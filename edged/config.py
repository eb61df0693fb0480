"""The daemon's configuration: typed, frozen, from one TOML file. Unknown names are refused."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Annotated

import msgspec

from edged.build.child import Limits
from edged.errors import ConfigError
from edged.serving.link import HostLimits


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class Config(_Strict, frozen=True):
    """Everything that can be configured.

    listen: addresses, `unix:PATH` or `HOST:PORT`; empty for the default socket.
    state, cache: directories for models, and for engines; empty for the defaults.
    models: model files to serve where they lie, by name.
    build: limits of one build child. hosts: limits of an engine host.
    stop_seconds: how long running calls may take to end when the daemon stops.
    """

    listen: tuple[str, ...] = ()
    state: str = ""
    cache: str = ""
    models: dict[str, str] = {}
    build: Limits = Limits()
    hosts: HostLimits = HostLimits()
    stop_seconds: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 5.0


def load(path: Path) -> Config:
    """Reads a configuration file. ConfigError, in one line, for anything wrong with it."""
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Config)
    except OSError as error:
        raise ConfigError(f"configuration {path} cannot be read: {error.strerror}") from error
    except msgspec.ValidationError as error:
        raise ConfigError(f"configuration {path}: {_explain(str(error))}") from error
    except (msgspec.DecodeError, ValueError) as error:
        raise ConfigError(f"configuration {path} is not valid TOML: {error}") from error


def _explain(message: str) -> str:
    """Adds the nearest known name to msgspec's message about an unknown one."""
    unknown = re.search(r"unknown field `(\w+)`", message)
    if unknown is None:
        return message
    names = [*Config.__struct_fields__, *Limits.__struct_fields__, *HostLimits.__struct_fields__]
    close = difflib.get_close_matches(unknown[1], names, n=1)
    return message + (f"; did you mean `{close[0]}`?" if close else f"; there are {', '.join(names)}")
