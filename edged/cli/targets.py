"""The daemons or folders that a command uses, and the options that name them."""

from __future__ import annotations

import functools
import inspect
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from edged import paths
from edged.cli import common
from edged.cli.inventory import Box, load
from edged.client import address
from edged.errors import InvalidInput

if TYPE_CHECKING:
    from edged.cli.local import LocalBox
    from edged.client.client import Client

_TIMEOUT_S = 30.0

TargetsOption = Annotated[list[str] | None, typer.Option("--target", "-t", metavar="ADDRESS", help=common.TARGET_HELP)]
InventoryOption = Annotated[
    Path | None,
    typer.Option("--inventory", metavar="FILE", help="Call the boxes of this file; --target selects boxes by name."),
]
GroupsOption = Annotated[
    list[str] | None, typer.Option("--group", metavar="NAME", help="Only boxes of this group; repeatable.")
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0.001,
        help=f"Time limit for each box's answer; default {_TIMEOUT_S:g}, or the inventory's.",
    ),
]
_OPTIONS = {"target": TargetsOption, "inventory": InventoryOption, "group": GroupsOption, "timeout": TimeoutOption}


class Targets(msgspec.Struct, frozen=True):
    """The values of the options that name daemons. `targets` are addresses, or names of boxes if an `inventory` is
    given."""

    targets: tuple[str, ...] = ()
    inventory: Path | None = None
    groups: tuple[str, ...] = ()
    timeout: float | None = None

    @property
    def is_fleet(self) -> bool:
        """Whether answers are shown with the names of their boxes. This is so if several targets or an inventory are
        given."""
        return self.inventory is not None or len(self.targets) > 1

    @property
    def target(self) -> str | None:
        """The address of the only daemon, as the user gave it. None for a fleet, or if the user gave no address.
        Without an address, EDGED_TARGET or the default socket is used."""
        return None if self.is_fleet else next(iter(self.targets), None)

    @property
    def named(self) -> str | None:
        """The inventory or the addresses that the user gave, as one text; None if neither was given."""
        return str(self.inventory) if self.inventory is not None else ", ".join(self.targets) or None

    def boxes(self) -> tuple[Box, ...]:
        """Return the boxes of a fleet. Raises ConfigError for an invalid inventory, InvalidInput for an unknown box."""
        if self.inventory is not None:
            chosen = load(self.inventory).select(self.groups, self.targets)
            return tuple(self.with_timeout(box) for box in chosen)
        unlike = {address.resolve(target): target for target in reversed(self.targets)}
        return tuple(self.with_timeout(Box(target, target)) for target in reversed(unlike.values()))

    def client(self) -> Client:
        """Open a client of the only daemon. Raises InvalidInput for a fleet."""
        from edged.client.client import Client

        if self.is_fleet:
            raise InvalidInput(
                "this command can call only one box; name the box with one --target, without --inventory"
            )
        return Client(self.target, timeout=self.timeout or _TIMEOUT_S)

    def with_timeout(self, box: Box) -> Box:
        """Return the box with the timeout that the user gave; the same box if the user gave none."""
        if self.timeout is None:
            return box
        return msgspec.structs.replace(box, settings=msgspec.structs.replace(box.settings, timeout_s=self.timeout))


DEFAULT_TARGETS = Targets()


def client_of(box: Box) -> Client:
    """Open a client of a box with its credentials. Raises InvalidInput if they cannot be used."""
    from edged.client.client import Client

    return Client(box.target, timeout=box.settings.timeout_s or _TIMEOUT_S, credentials=box.credentials())


def with_target_options(function: Callable[..., None]) -> Callable[..., None]:
    """Return the command with its parameter `targets` replaced by the options that name daemons. Their values reach the
    command as a `Targets`. A command without this parameter is returned unchanged."""
    if "targets" not in function.__annotations__:
        return function
    known = inspect.signature(function, eval_str=True)

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        target, inventory, group, timeout = (kwargs.pop(name, None) for name in _OPTIONS)
        if group and inventory is None:
            raise InvalidInput("--group can be used only with --inventory FILE")
        function(*args, targets=Targets(tuple(target or ()), inventory, tuple(group or ()), timeout), **kwargs)

    kind = inspect.Parameter.KEYWORD_ONLY
    options = [inspect.Parameter(name, kind, default=None, annotation=each) for name, each in _OPTIONS.items()]
    parameters: list[inspect.Parameter] = []
    for parameter in known.parameters.values():
        parameters += options if parameter.name == "targets" else [parameter.replace(kind=kind)]
    # typer reads both: the signature for the parameters, the annotations for their types.
    wrapped.__signature__ = known.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapped


StateOption = Annotated[
    Path | None,
    typer.Option("--state", help="Directory of models, used instead of a daemon, even if EDGED_TARGET is set."),
]
CacheOption = Annotated[
    Path | None,
    typer.Option("--cache", help="Directory of engines, used instead of a daemon, even if EDGED_TARGET is set."),
]


def is_daemon_addressed(target: str | None, *folders: Path | None) -> bool:
    """Whether a command calls a daemon.

    It calls the daemon that `target` or EDGED_TARGET names. If both are empty, it calls the daemon on the default
    socket, provided that a daemon accepts connections there. If a folder is named, EDGED_TARGET is ignored and no
    daemon is called. Raises InvalidInput if both `target` and a folder are named.
    """
    if any(folders):
        if target:
            raise InvalidInput(
                "a daemon has its own folders, so --target and --inventory cannot be used with --state or --cache"
            )
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


def local_box(
    state: Path | None = None, cache: Path | None = None, seconds: float | None = None, memory_mb: int | None = None
) -> LocalBox:
    """Return a `LocalBox` with this box's folders. `seconds` and `memory_mb` limit the examination of models; by
    default the limits come from the environment. Models may use the families that the default configuration file and
    the environment allow.

    The modules that read models and build engines are imported here, since importing them is slow.
    """
    from edged.cli.config import read_usual
    from edged.cli.local import LocalBox
    from edged.config import child_limits

    reading, _ = read_usual()
    limits = child_limits.admission_limits(seconds, memory_mb)
    return LocalBox(state, cache, limits, reading.config.families.allow)
