"""`edged device`: the facts about this box that decide whether an engine is valid on it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from edged.cli import common
from edged.errors import NotFound


def refresh(target: common.Target = None, json: common.Json = False) -> None:
    """Have the daemon read its facts again now, as after a driver or library was changed, and print what changed.

    The daemon notices by itself too; a package's trigger calls this so as not to wait.
    """
    from edged.client.client import Client

    with Client(target) as client:
        changes = client.refresh_device()
    if json:
        common.print_json(msgspec.json.encode({"changes": [change.json() for change in changes]}))
        return
    for change in changes:
        common.show(f"{change.part}: {change.old or 'absent'} → {change.new or 'absent'}")
    if not changes:
        common.show("nothing changed")


def device(
    context: typer.Context,
    root: Annotated[
        Path | None,
        typer.Option("--root", help="Read the facts of a recorded device below this directory.", show_default=False),
    ] = None,
    target: common.Target = None,
    json: common.Json = False,
) -> None:
    """Show the named facts about hardware, drivers and runtimes: of this box, or of the daemon's with --target."""
    if context.invoked_subcommand is not None:
        return
    facts = _remote(target) if target else _local(root or Path("/"))
    if json:
        common.print_json(msgspec.json.encode(facts))
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in facts["facts"].items():
        table.add_row(name, value)
    for found in facts.get("devices", ()):
        memory = f", {found['memory_mb']} MiB" if found["memory_mb"] else ""
        table.add_row(f"device {found['name']}", f"{found['description']}{memory}")
    table.add_row("digest", facts["digest"])
    common.show(table)


def register(app: typer.Typer) -> None:
    group = typer.Typer(invoke_without_command=True)
    group.callback()(common.command(device))
    group.command("refresh")(common.command(refresh))
    app.add_typer(group, name="device")


def _local(root: Path) -> dict[str, Any]:
    from edged.device.devices import devices
    from edged.device.fingerprint import probe

    if not root.is_dir():
        raise NotFound(f"there is no directory {root}")
    fingerprint = probe(root)
    found = [msgspec.to_builtins(item) for item in devices(fingerprint)]
    return {"facts": fingerprint.facts, "devices": found, "digest": fingerprint.digest}


def _remote(target: str) -> dict[str, Any]:
    from edged.client.client import Client
    from edged.device.devices import devices
    from edged.device.fingerprint import Fingerprint

    with Client(target) as client:
        said = client.device()
    found = [msgspec.to_builtins(item) for item in devices(Fingerprint(said.facts))]
    return {"facts": dict(sorted(said.facts.items())), "devices": found, "digest": said.digest}
