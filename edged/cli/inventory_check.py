"""`edged inventory`: whether a file of boxes is as it should be."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from edged.cli import common
from edged.cli.inventory import Box, load
from edged.client import address
from edged.errors import InvalidInput


class Checked(msgspec.Struct, frozen=True):
    """A box as it would be asked: `how` is tls, tls with a certificate, or plain, with a token or without; `problem` is
    why it cannot be."""

    box: str
    target: str
    groups: tuple[str, ...]
    how: str = ""
    problem: str = ""


def check(
    file: Annotated[Path, typer.Argument(help="The inventory, a TOML file.")],
    json: common.Json = False,
) -> None:
    """Check an inventory with its certificates and tokens.

    No box is contacted.

    The exit status is 0 when all could be asked, 1 when one could not, 2 when the file is wrong.
    """
    found = [_checked(box) for box in load(file).boxes]
    if json:
        common.print_json(msgspec.json.encode({"boxes": found}))
    else:
        common.show(_table(found))
    if any(each.problem for each in found):
        raise typer.Exit(common.FAILED)


def register_check(app: typer.Typer) -> None:
    inventory = typer.Typer(no_args_is_help=True, help="Check files of boxes for --inventory.")
    inventory.command("check")(common.command(check))
    inventory.callback()(lambda: None)  # so that the one command keeps its name
    app.add_typer(inventory, name="inventory")


def _checked(box: Box) -> Checked:
    from edged.client.credentials import is_secured, require_usable

    target = address.resolve(box.target)
    try:
        credentials = box.credentials()
        secured = is_secured(target, credentials)
        if secured:
            require_usable(credentials)
    except InvalidInput as error:
        return Checked(box.name, target, box.groups, problem=error.message)
    shown = [name for name in ("certificate", "token") if getattr(credentials, name)]
    if not secured:
        shown = [name for name in shown if name == "token"]
    how = "tls" if secured else "plain"
    return Checked(box.name, target, box.groups, f"{how}, {' and '.join(shown)}" if shown else how)


def _table(found: list[Checked]) -> Table:
    table = Table("BOX", "TARGET", "GROUPS", "HOW", "PROBLEM", box=None, pad_edge=False)
    for each in found:
        table.add_row(each.box, each.target, ", ".join(each.groups), each.how, each.problem)
    return table
