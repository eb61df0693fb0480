"""`edged status` and `edged device`: a daemon's state, and the facts of its box."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.filesize import decimal
from rich.table import Table

from edged import formatting
from edged.api_types import AlarmInfo, StatusInfo
from edged.cli import common, remote
from edged.cli.remote import RemoteCommand
from edged.cli.targets import DEFAULT_TARGETS, Targets
from edged.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from edged.client.client import Client
    from edged.device.fingerprint import Fingerprint


def status(targets: Targets = DEFAULT_TARGETS, json: common.Json = False) -> None:
    """Show the daemon at a glance: models, engines, builds, alarms.

    Exit status: 0 no alarm is raised, 1 an alarm is raised or no daemon answers.
    """
    command = RemoteCommand(
        call=lambda client: client.status(),
        render=lambda found: [_summary(found)],
        to_json=StatusInfo.json,
        failure=_trouble,
        table=_table,
    )
    remote.run(command, targets, json)


def _trouble(found: StatusInfo) -> str:
    kinds = sorted({alarm.kind for alarm in found.alarms})
    return f"{len(found.alarms)} {'alarm' if len(found.alarms) == 1 else 'alarms'}: {', '.join(kinds)}" if kinds else ""


def _table(boxes: Mapping[str, StatusInfo]) -> Table:
    """Return a table with a row for each box, with its builds and alarms."""
    table = common.table("BOX", "VERSION", "UP", "SERVING", "ENGINES", "MAKING", "ALARMS")
    for name, found in boxes.items():
        table.add_row(
            name,
            found.version,
            formatting.span(found.uptime_s),
            f"{found.serving} of {found.models}",
            f"{found.engines}, {decimal(found.engine_bytes)}",
            "\n".join(formatting.line(engine) for engine in found.building) or found.paused,
            "\n".join(_alarm(alarm) for alarm in found.alarms),
        )
    return table


def _summary(found: StatusInfo) -> Table:
    rows = {
        "edged": f"{found.version}, up {formatting.span(found.uptime_s)}",
        "models": f"{found.serving} of {found.models} serve",
        "engines": _engines(found),
        **({"paused": found.paused} if found.paused else {}),
        "making": "\n".join(formatting.line(engine) for engine in found.building) or "none",
        **({"page": found.page} if found.page else {}),
        "alarms": "\n".join(_alarm(alarm) for alarm in found.alarms) or "none",
    }
    return common.fact_table(rows)


def _engines(found: StatusInfo) -> str:
    budget = f" of {decimal(found.budget_bytes)}" if found.budget_bytes else ""
    return f"{found.engines}, {decimal(found.engine_bytes)}{budget}; {decimal(found.free_bytes)} free on the disk"


def _alarm(alarm: AlarmInfo) -> str:
    about = " ".join(filter(None, (alarm.model, alarm.engine[:12]))) if not alarm.camera else ""
    text = f"{about}: {alarm.message}" if about else alarm.message
    return f"{alarm.kind} since {formatting.moment(alarm.since_unix_s)}: {text}"


def refresh(targets: Targets = DEFAULT_TARGETS, json: common.Json = False) -> None:
    """Make the daemon read its box's facts again; print the changes.

    Use it after a change of a driver or library.

    The daemon also notices changes itself, but later. Package triggers run this command.
    """
    command = RemoteCommand(
        call=lambda client: client.refresh_device(),
        render=lambda changes: (
            [f"{change.part}: {change.old or 'absent'} → {change.new or 'absent'}" for change in changes]
            or ["nothing changed"]
        ),
        to_json=lambda changes: {"changes": [change.json() for change in changes]},
    )
    remote.run(command, targets, json)


def device(
    context: typer.Context,
    root: Annotated[
        Path | None, typer.Option("--root", help="Read the facts of a recorded device below this directory.")
    ] = None,
    targets: Targets = DEFAULT_TARGETS,
    json: common.Json = False,
) -> None:
    """Show facts about hardware, drivers and runtimes.

    The facts are about this box, or with --target about the daemon's box. A changed fact can make an engine invalid.
    """
    if context.invoked_subcommand is not None:
        return
    command = RemoteCommand(call=_remote, render=lambda facts: [_fact_table(facts)], to_json=lambda facts: facts)
    if targets.named is None:
        command.show(_local(root or Path("/")), json)
    elif root is not None:
        raise InvalidInput("--root cannot be used with --target or --inventory; a recorded device needs no daemon")
    else:
        remote.run(command, targets, json)


def _fact_table(facts: dict[str, Any]) -> Table:
    rows = dict(facts["facts"])
    for found in facts["devices"]:
        memory = f", {found['memory_mb']} MiB" if found["memory_mb"] else ""
        rows[f"device {found['name']}"] = f"{found['description']}{memory}"
    return common.fact_table({**rows, "digest": facts["digest"]})


def _local(root: Path) -> dict[str, Any]:
    from edged.device.fingerprint import probe

    if not root.is_dir():
        raise NotFound(f"directory {root} does not exist")
    fingerprint = probe(root)
    return _described(fingerprint, fingerprint.digest)


def _remote(client: Client) -> dict[str, Any]:
    from edged.device.fingerprint import Fingerprint

    found = client.device()
    return _described(Fingerprint(found.facts), found.digest)


def _described(fingerprint: Fingerprint, digest: str) -> dict[str, Any]:
    from edged.device.fingerprint import devices

    found = [msgspec.to_builtins(item) for item in devices(fingerprint)]
    return {"facts": fingerprint.facts, "devices": found, "digest": digest}
