"""`edged events`: shows past events, and new events when they happen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from edged import formatting
from edged.api_types import EventInfo
from edged.cli import common, remote
from edged.cli.inventory import Box
from edged.cli.targets import DEFAULT_TARGETS, Targets
from edged.errors import InvalidInput
from edged.event_text import sentence

if TYPE_CHECKING:
    from edged.client.client import Client

_LONGEST = 19  # digits: every number with so many digits fits into the RPC's uint64


def events(
    targets: Targets = DEFAULT_TARGETS,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new events, until Ctrl-C.")] = False,
    after: Annotated[
        str, typer.Option("--after", metavar="[EPOCH:]N", help="Only events after event N of the daemon's start EPOCH.")
    ] = "0",
    json: common.Json = False,
) -> None:
    """Show what happened: builds, swaps, alarms, commands.

    With --json it prints one object per line. To resume, give `epoch` and `sequence` of the last event: --after
    EPOCH:SEQUENCE. After a restart of the daemon, the numbers begin again, and all events since the restart are shown.
    """
    epoch, number = position(after)
    if targets.is_fleet:
        if number or epoch:
            raise InvalidInput("--after cannot be used with several boxes; each box numbers its own events")
        _watch_fleet(targets.boxes(), follow, json)
        return
    with targets.client() as client:
        for event in client.events(number, epoch=epoch, follow=follow):
            if json:
                common.print_json(msgspec.json.encode(event.json()))
            else:
                common.out.print(_line(event), soft_wrap=True)


def _watch_fleet(boxes: Sequence[Box], follow: bool, json: bool) -> None:
    """Print events of several boxes as they arrive. Each line begins with the name of the box."""

    def work(client: Client, report: Callable[[EventInfo], None]) -> None:
        for event in client.events(follow=follow):
            report(event)

    def on_update(box: str, event: EventInfo) -> None:
        if json:
            common.print_json(msgspec.json.encode({"box": box, "update": event.json()}))
        else:
            common.out.print(f"{box:{width}}  {_line(event)}", soft_wrap=True)

    def on_outcome(end: remote.BoxOutcome[None]) -> None:
        if follow and end.error:  # the other boxes continue
            common.say(f"{end.box}: {end.error}")

    width = max(len(box.name) for box in boxes)
    command = remote.RemoteCommand[None](
        call=lambda _: None, render=lambda _: (), to_json=lambda _: None, if_interrupted=None if follow else ""
    )
    ended = remote.run_on_fleet(
        command, boxes, json, work, on_update=on_update, on_outcome=on_outcome, at_once=len(boxes)
    )
    remote.print_summary(ended, boxes, json)


def _line(event: EventInfo) -> str:
    return f"{event.sequence}  {formatting.clock(event.unix_s)}  {sentence(event.what, event.model, event.engine)}"


def position(text: str) -> tuple[str, int]:
    """Parse N or EPOCH:N into epoch (empty for N) and number. Raises InvalidInput for any other text."""
    epoch, colon, number = text.strip().rpartition(":")
    if not (number.isascii() and number.isdecimal()) or len(number) > _LONGEST or (colon and not epoch):
        raise InvalidInput(
            f"{text!r} is not an event number; give N or EPOCH:N, with sequence and epoch of edged events --json"
        )
    return epoch, int(number)
