"""`edged tokens`: create, list and revoke the tokens of clients."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from edged.cli import common

if TYPE_CHECKING:
    from edged.api.auth.tokens import TokenFile

_File = Annotated[
    Path | None, typer.Option("--file", help="The file of tokens, if the configuration sets access.tokens_file.")
]
_State = Annotated[
    Path | None, typer.Option("--state", help="The daemon's directory for models, which contains the tokens.")
]


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The token's name, for the log and for revoking it.")],
    role: Annotated[
        list[str] | None,
        typer.Option("--role", "-r", metavar="ROLE", help="infer, read or operate; repeatable, or with commas."),
    ] = None,
    days: Annotated[
        float,
        typer.Option("--days", min=0.0, max=36500.0, help="Days until the token expires; 0: never.", show_default=True),
    ] = 0.0,
    file: _File = None,
    state: _State = None,
    json: common.Json = False,
) -> None:
    """Create a token and print it once.

    Only its SHA-256 is stored. A running daemon accepts the token within seconds.

    Clients send the header "authorization: Bearer TOKEN". The edged commands and client library read EDGED_TOKEN or
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
        common.err.print(
            f"new token {name} with the roles {policy.describe_roles(wanted)}; the token is shown only now:"
        )
        common.show(secret)


def list_(file: _File = None, state: _State = None, json: common.Json = False) -> None:
    """List the tokens: names, roles, when they expire."""
    from edged.api.auth import policy

    found = _kept(file, state).read()
    if json:
        listed = [
            {"name": t.name, "roles": list(t.roles), "created": t.created, "expires": t.expires or None} for t in found
        ]
        common.print_json(msgspec.json.encode(listed))
        return
    table = common.table("NAME", "ROLES", "CREATED", "EXPIRES")
    for token in found:
        table.add_row(
            token.name, policy.describe_roles(frozenset(token.roles)), _date(token.created), _expiry(token.expires)
        )
    common.show(table if found else "no tokens; create one: edged tokens new NAME --role infer")


def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The token's name.")],
    file: _File = None,
    state: _State = None,
) -> None:
    """Revoke a token.

    A running daemon refuses the token within seconds, and ends streams that use it.
    """
    _kept(file, state).revoke(name)
    common.show(f"token {name} revoked")


def _kept(file: Path | None, state: Path | None) -> TokenFile:
    from edged import paths
    from edged.api.auth.guard import tokens_path
    from edged.api.auth.tokens import TokenFile
    from edged.config.schema import Access

    return TokenFile(tokens_path(Access(tokens_file=str(file or "")), (state or paths.default_state_dir()).absolute()))


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d") if seconds else "-"


def _expiry(seconds: float) -> str:
    if not seconds:
        return "never"
    return f"{_date(seconds)}, expired" if time.time() >= seconds else _date(seconds)
