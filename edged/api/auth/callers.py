"""Who calls: what an address gives to whoever reaches it, and what a token or a certificate adds. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import unquote

import msgspec

from edged.api.auth.doors import Door
from edged.api.auth.roles import NONE, Role, Roles
from edged.api.auth.tokens import Token

_BEARER = "bearer "


class Caller(msgspec.Struct, frozen=True):
    """Who calls, by a name for people, and with which roles.

    `key` is whom limits count it for. `is_known`: whether it is clear who it is; `has_shown`: by a token or a
    certificate, and `given` are the roles that it has by its `proof`: the digest of the token, or names in the
    certificate. `address` is the daemon's that it called. `problem` says what is wrong with what it showed, `remedy`
    what else it could do where its roles are too few.
    """

    name: str
    roles: Roles
    key: str
    is_known: bool = False
    problem: str = ""
    remedy: str = ""
    has_shown: bool = False
    proof: tuple[str, ...] = ()
    given: Roles = NONE
    address: str = ""


def at(door: Door, peer: str = "") -> Caller:
    """Somebody who shows nothing. `peer` is the client as gRPC names it."""
    remedy = f"; operators use {door.operators}" if door.operators else ""
    if door.is_local and not door.has_tls and not door.group:
        others = f"{door.operators} or " if door.operators else ""
        remedy = f"; operators use {others}a token: edged tokens new NAME --role operate"
    if door.is_local:
        return Caller(door.name, door.roles, door.name, bool(door.roles), remedy=remedy, address=door.address)
    host = host_of(peer)
    return Caller(host or "somebody", door.roles, f"host {host}", remedy=remedy, address=door.address)


def with_token(caller: Caller, token: Token | None, now: float) -> Caller:
    """The caller, who shows a token, which is None where nobody was given it; `now` in seconds since the epoch."""
    if token is None:
        return msgspec.structs.replace(
            caller, problem="this token is not known here; see on the daemon's machine: edged tokens list"
        )
    if token.expires and now >= token.expires:
        problem = f"the token {token.name} has expired; make another on the daemon's machine: edged tokens new"
        return msgspec.structs.replace(caller, problem=problem)
    who = f"token {token.name}"
    return _known(caller, who, frozenset(token.roles), (token.sha256,))


def ill_formed(caller: Caller) -> Caller:
    """The caller, who shows something that is no token at all."""
    problem = "the header authorization is not 'Bearer TOKEN'; make one on the daemon's machine: edged tokens new"
    return msgspec.structs.replace(caller, problem=problem)


def with_certificate(
    caller: Caller, names: Iterable[str], known: Mapping[str, tuple[Role, ...]], expires: float, now: float
) -> Caller:
    """The caller, whose certificate has these names, the common one last, and is good until `expires`."""
    shown = list(names)
    if not shown:
        return caller
    if now >= expires:  # it was good when the connection was made
        return msgspec.structs.replace(caller, problem=f"the certificate of {shown[0][:80]} has expired; renew it")
    given = roles_of(shown, known)
    name = next((name for name in shown if name in known), shown[0])[:80]
    who = f"certificate {name}"
    remedy = "" if given else f"; give it some: access.certificates, {name!r}"
    found = _known(caller, who, given, tuple(name for name in shown if name in known))
    return msgspec.structs.replace(found, remedy=remedy or caller.remedy)


def _known(caller: Caller, who: str, given: Roles, proof: tuple[str, ...]) -> Caller:
    """The caller under a name of its own, with the roles that what it shows gives it."""
    return msgspec.structs.replace(
        caller,
        name=who,
        roles=caller.roles | given,
        key=who,
        is_known=True,
        has_shown=True,
        proof=proof,
        given=given,
    )


def roles_of(names: Iterable[str], known: Mapping[str, tuple[Role, ...]]) -> Roles:
    """Those of a certificate with these names: all of them count together."""
    return frozenset(role for name in names for role in known.get(name, ()))


def secret_of(authorization: str) -> str | None:
    """The token in the value of the header `authorization` (RFC 6750), None where it is something else."""
    if authorization[: len(_BEARER)].lower() != _BEARER:
        return None
    return authorization[len(_BEARER) :].strip() or None


def host_of(peer: str) -> str:
    """The host in a client as gRPC names it, `ipv4:1.2.3.4:56` or `ipv6:%5B::1%5D:56`; empty for a unix socket."""
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return ""
    return unquote(rest).rpartition(":")[0].strip("[]")
