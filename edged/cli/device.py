"""`edged device`: the facts about this box that decide whether an engine is valid on it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.table import Table

from edged.cli import answers, common
from edged.cli.answers import Question
from edged.cli.reach import UNSAID, Reach, reaching
from edged.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from edged.client.client import Client


def refresh(reach: Reach = UNSAID, json: common.Json = False) -> None:
    """Have the daemon read its facts again; print what changed.

    For use after a driver or library was changed.

    The daemon notices by itself too; a package's trigger calls this so as not to wait.
    """
    question = Question(
        ask=lambda client: client.refresh_device(),
        tell=lambda changes: (
            [f"{change.part}: {change.old or 'absent'} → {change.new or 'absent'}" for change in changes]
            or ["nothing changed"]
        ),
        plain=lambda changes: {"changes": [change.json() for change in changes]},
    )
    answers.put(question, reach, json)


def device(
    context: typer.Context,
    root: Annotated[
        Path | None,
        typer.Option("--root", help="Read the facts of a recorded device below this directory.", show_default=False),
    ] = None,
    reach: Reach = UNSAID,
    json: common.Json = False,
) -> None:
    """Show facts about hardware, drivers and runtimes.

    Of this box, or of the daemon's with --target. A change of one of them can make an engine invalid."""
    if context.invoked_subcommand is not None:
        return
    question = Question(ask=_remote, tell=lambda facts: [_fact_table(facts)], plain=lambda facts: facts)
    if reach.named is None:
        answers.show(question.tell, question.plain, _local(root or Path("/")), json)
    elif root is not None:
        raise InvalidInput("a recorded device needs no daemon; give --root or a daemon, not both")
    else:
        answers.put(question, reach, json)


def register_device(app: typer.Typer) -> None:
    group = typer.Typer(invoke_without_command=True)
    group.callback()(common.command(reaching(device)))
    group.command("refresh")(common.command(reaching(refresh)))
    app.add_typer(group, name="device")


def _fact_table(facts: dict[str, Any]) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in facts["facts"].items():
        table.add_row(name, value)
    for found in facts.get("devices", ()):
        memory = f", {found['memory_mb']} MiB" if found["memory_mb"] else ""
        table.add_row(f"device {found['name']}", f"{found['description']}{memory}")
    table.add_row("digest", facts["digest"])
    return table


def _local(root: Path) -> dict[str, Any]:
    from edged.device.fingerprint import devices, probe

    if not root.is_dir():
        raise NotFound(f"there is no directory {root}")
    fingerprint = probe(root)
    found = [msgspec.to_builtins(item) for item in devices(fingerprint)]
    return {"facts": fingerprint.facts, "devices": found, "digest": fingerprint.digest}


def _remote(client: Client) -> dict[str, Any]:
    from edged.device.fingerprint import Fingerprint, devices

    said = client.device()
    found = [msgspec.to_builtins(item) for item in devices(Fingerprint(said.facts))]
    return {"facts": dict(sorted(said.facts.items())), "devices": found, "digest": said.digest}
