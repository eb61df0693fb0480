"""`edged tokens`: the secrets by which clients prove who they are."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.table import Table

from edged.cli import common

if TYPE_CHECKING:
    from edged.api.auth.tokens import TokenFile

_File = Annotated[
    Path | None,
    typer.Option(
        "--file",
        help="The file of tokens, if the configuration names one (access.tokens_file).",
        show_default=False,
    ),
]
_State = Annotated[
    Path | None,
    typer.Option("--state", help="The daemon's directory for models, which has the tokens.", show_default=False),
]


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name, for the log and for revoking it.")],
    role: Annotated[
        list[str] | None,
        typer.Option("--role", "-r", metavar="ROLE", help="infer, read or operate; repeatable, or with commas."),
    ] = None,
    days: Annotated[
        float, typer.Option("--days", min=0.0, max=36500.0, help="Until it expires; 0 for never.", show_default=True)
    ] = 0.0,
    file: _File = None,
    state: _State = None,
    json: common.Json = False,
) -> None:
    """Make a token and print it once.

    Only its SHA-256 is kept. A running daemon knows it within seconds.

    Clients send it as the header "authorization: Bearer TOKEN"; edged's own take it from EDGED_TOKEN or
    EDGED_TOKEN_FILE.
    """
    from edged.api.auth import policy, tokens

    wanted = policy.parse_roles([word for each in role or [] for word in each.split(",")])
    token, secret = tokens.make(name, wanted, days)
    _kept(file, state).add(token)
    if json:
        shown = {"name": name, "roles": list(token.roles), "expires": token.expires or None, "token": secret}
        common.print_json(msgspec.json.encode(shown))
    else:
        common.err.print(f"{name} may: {policy.describe_roles(wanted)}; this is shown once:")
        common.show(secret)


def list_(file: _File = None, state: _State = None, json: common.Json = False) -> None:
    """List the tokens: names, roles, when they expire."""
    from edged.api.auth import policy

    found = _kept(file, state).read()
    if json:
        told = [
            {"name": t.name, "roles": list(t.roles), "created": t.created, "expires": t.expires or None} for t in found
        ]
        common.print_json(msgspec.json.encode(told))
        return
    table = Table("NAME", "ROLES", "CREATED", "EXPIRES", box=None, pad_edge=False)
    for token in found:
        table.add_row(
            token.name, policy.describe_roles(frozenset(token.roles)), _date(token.created), _expiry(token.expires)
        )
    common.show(table if found else "no tokens; make one: edged tokens new NAME --role infer")


def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The token's name.")],
    file: _File = None,
    state: _State = None,
) -> None:
    """Revoke a token.

    A running daemon refuses it within seconds, and ends the streams that were started with it."""
    _kept(file, state).revoke(name)
    common.show(f"{name} is revoked")


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Make, list and revoke tokens of clients; see docs/security.md.")
    group.command("new")(common.command(new))
    group.command("list")(common.command(list_))
    group.command("revoke")(common.command(revoke))
    app.add_typer(group, name="tokens")


def _kept(file: Path | None, state: Path | None) -> TokenFile:
    from edged import paths
    from edged.api.auth.guard import tokens_path
    from edged.api.auth.tokens import TokenFile
    from edged.config.access import Access

    return TokenFile(tokens_path(Access(tokens_file=str(file or "")), (state or paths.default_state_dir()).absolute()))


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d") if seconds else "-"


def _expiry(seconds: float) -> str:
    if not seconds:
        return "never"
    return f"{_date(seconds)}, expired" if time.time() >= seconds else _date(seconds)
