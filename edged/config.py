"""The daemon's configuration: typed, frozen, from one TOML file. Unknown names are refused."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec

from edged.build.child import Limits
from edged.errors import ConfigError
from edged.serving.link import HostLimits

ModelControl: TypeAlias = Literal["poll", "none", "explicit"]


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class Engines(_Strict, frozen=True):
    """How engines live.

    on_driver_change: what becomes of an engine when only a driver (or the processor's model) changed and all else of
    its key is equal: "verify" tries it in a child and keeps it if its answers are right, "rebuild" never does.
    budget_mb: mebibytes that all engines may take, 0 for no limit. keep_free_mb: mebibytes that stay free on the disk.
    attempts: failures in a row after which an engine is no longer tried by itself.
    regression_factor, regression_seconds: an alarm is raised when inference takes that many times as long as when the
    engine was measured, for at least so long.
    """

    on_driver_change: Literal["verify", "rebuild"] = "verify"
    budget_mb: Annotated[int, msgspec.Meta(ge=0, le=1 << 30)] = 0
    keep_free_mb: Annotated[int, msgspec.Meta(ge=0, le=1 << 30)] = 200
    attempts: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 4
    regression_factor: Annotated[float, msgspec.Meta(gt=1, le=1e6)] = 3.0
    regression_seconds: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 30.0


class Frigate(_Strict, frozen=True):
    """What Frigate's ZMQ detector connects to.

    endpoint: `ipc:///PATH` or `tcp://HOST:PORT`; beyond loopback only with allow_remote, for a container's bridge.
    model: which one serves; empty for the one that is called as Frigate's file, or else the only one.
    uploads: whether Frigate may send a model that is not there. score: 0 to 1, overrides the model's threshold.
    timeout_ms: after which nothing found is answered; below Frigate's own request_timeout_ms, 200.
    pixel_format: Frigate's input_pixel_format. labels: how many there are in Frigate's label map, 0 for as many as the
    model has names.
    """

    endpoint: str = "ipc:///tmp/cache/zmq_detector"
    model: str = ""
    uploads: bool = False
    score: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    timeout_ms: Annotated[int, msgspec.Meta(ge=1, le=60000)] = 150
    pixel_format: Literal["rgb", "bgr"] = "rgb"
    labels: Annotated[int, msgspec.Meta(ge=0, le=1 << 24)] = 0
    allow_remote: bool = False


class Zmq(_Strict, frozen=True):
    """Lanes over ZeroMQ: `ipc:///PATH` or `tcp://HOST:PORT` on this machine; empty for none.

    frames: where frames come in and results go back. publish: where results and events are told to whoever listens.
    """

    frames: str = ""
    publish: str = ""


class Http(_Strict, frozen=True):
    """The Open Inference Protocol over HTTP.

    listen: `HOST:PORT` on this machine's loopback, or `unix:PATH`; empty for none.
    body_mb: mebibytes that the body of a request may have; all together hold four times as much at most.
    """

    listen: str = ""
    body_mb: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 64


class Config(_Strict, frozen=True):
    """Everything that can be configured.

    listen: addresses, `unix:PATH` or `HOST:PORT`; empty for the default socket.
    state, cache: directories for models, and for engines; empty for the defaults.
    models: model files to serve where they lie, by name.
    model_control: which models of the folder are served: "poll" all, as they come and go; "none" all that are there at
    the start; "explicit" those that are loaded by command.
    startup_models: those that "explicit" begins with; "*" is all.
    engines: how engines live: space, drivers, alarms.
    build: limits of one build child. hosts: limits of an engine host.
    frigate: what Frigate connects to, where it is to. zmq: lanes over ZeroMQ.
    http: the Open Inference Protocol over HTTP.
    max_message_mb: mebibytes that a gRPC message to the daemon may have.
    allow_shared_memory_over_tcp: whether clients of Triton on this machine that come by TCP may register system shared
    memory; those on the unix socket may.
    stop_seconds: how long running calls may take to end when the daemon stops.
    """

    listen: tuple[str, ...] = ()
    state: str = ""
    cache: str = ""
    models: dict[str, str] = {}
    model_control: ModelControl = "poll"
    startup_models: tuple[str, ...] = ()
    engines: Engines = Engines()
    build: Limits = Limits()
    hosts: HostLimits = HostLimits()
    frigate: Frigate | None = None
    zmq: Zmq = Zmq()
    http: Http = Http()
    max_message_mb: Annotated[int, msgspec.Meta(ge=1, le=2047)] = 256
    allow_shared_memory_over_tcp: bool = False
    stop_seconds: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 5.0

    def __post_init__(self) -> None:
        if self.startup_models and self.model_control != "explicit":
            raise ValueError('startup_models goes with model_control = "explicit"; other modes begin with every model')


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
    names = [
        *Config.__struct_fields__,
        *Engines.__struct_fields__,
        *Limits.__struct_fields__,
        *HostLimits.__struct_fields__,
        *Frigate.__struct_fields__,
        *Zmq.__struct_fields__,
        *Http.__struct_fields__,
    ]
    close = difflib.get_close_matches(unknown[1], names, n=1)
    return message + (f"; did you mean `{close[0]}`?" if close else f"; there are {', '.join(names)}")
