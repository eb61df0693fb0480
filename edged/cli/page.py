"""`edged page`: prints the address of a box's page."""

from __future__ import annotations

import webbrowser
from typing import TYPE_CHECKING, Annotated

import typer

from edged.cli import common, remote
from edged.cli.remote import RemoteCommand
from edged.cli.targets import DEFAULT_TARGETS, Targets
from edged.errors import InvalidInput, Refused

if TYPE_CHECKING:
    from edged.client.client import Client


def page(
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser of this desktop.")] = False,
    targets: Targets = DEFAULT_TARGETS,
    json: common.Json = False,
) -> None:
    """Print the address of the page that shows the box in a browser.

    The page shows the live picture of each camera, models, alarms and events. It is off by default. To turn it on, set
    the key `listen` in the table [page] of the daemon's configuration; see docs/page.md.

    edged page --open
    """
    command = RemoteCommand(call=_address, render=lambda found: [found], to_json=lambda found: {"page": found})
    if open_ and targets.is_fleet:
        raise InvalidInput(
            "--open can open the page of only one box, but several are selected; name one box with --target"
        )
    remote.run(command, targets, json)
    if not open_:
        return
    with targets.client() as client:
        if not webbrowser.open(_address(client)):
            raise Refused("no browser was found on this machine; open the page's address yourself")


def _address(client: Client) -> str:
    address = client.status().page
    if not address:
        raise Refused(
            'the page of this box is off; set listen = "localhost:8080" below [page] in the box\'s configuration,'
            " then: edged reload"
        )
    return address
