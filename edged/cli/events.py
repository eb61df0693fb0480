"""`edged events`: what happened, and what happens."""

from __future__ import annotations

import datetime
from typing import Annotated

import msgspec
import typer

from edged.cli import common
from edged.client.operations import EventInfo


def events(
    target: common.Target = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what happens, until Ctrl-C.")] = False,
    after: Annotated[int, typer.Option("--after", min=0, help="Only events with a higher sequence number.")] = 0,
    json: common.Json = False,
) -> None:
    """Show what happened in the daemon: models read, engines built, verified and serving, hosts lost, device changes.

    With --json one object a line; `sequence` of the last one, given as --after, resumes where it ended.
    """
    from edged.client.client import Client

    with Client(target) as client:
        for event in client.events(after, follow=follow):
            if json:
                common.print_json(msgspec.json.encode(event.json()))
            else:
                common.out.print(_line(event), soft_wrap=True)


def register(app: typer.Typer) -> None:
    app.command("events")(common.command(events))


def _line(event: EventInfo) -> str:
    moment = datetime.datetime.fromtimestamp(event.unix_s, tz=datetime.timezone.utc).astimezone()
    detail = ", ".join(f"{name} {value}" for name, value in event.detail.items() if value)
    words = (str(event.sequence), f"{moment:%H:%M:%S}", event.kind, event.model, event.engine[:12], detail)
    return "  ".join(word for word in words if word)
