"""The addresses, as far as access goes: what each gives to whoever reaches it. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import msgspec

from edged.api.auth.roles import ALL, NONE, Roles, told
from edged.api.lanes.address import is_loopback
from edged.config.access import Access, Tls
from edged.errors import ConfigError

# The groups whose members may open the default sockets, where there are such groups.
INFER_GROUP, OPERATE_GROUP = "edged", "edged-operate"


class Door(msgspec.Struct, frozen=True):
    """An address of the daemon.

    `roles` are those of whoever reaches it. `is_local`: only from this machine, as a unix socket or loopback in the
    clear. `has_tls`, `asks_certificates`: what a connection begins with. `group` may open its socket, where it is one
    of the default ones. `operators` is the address that they would use instead.
    """

    name: str
    roles: Roles
    is_local: bool = True
    has_tls: bool = False
    asks_certificates: bool = False
    group: str = ""
    operators: str = ""
    address: str = ""


def door(address: str, access: Access, tls: Tls, defaults: tuple[str, str] | None = None) -> Door:
    """What an address gives. `defaults` are the two default sockets, for frames and for operators, where both serve.

    ConfigError for an address that other machines reach and that is not secured.
    """
    infer, operate = defaults or ("", "")
    roles, name = _granted(address, access), _name(address)
    if address.startswith("unix:"):
        if address == operate:
            return Door(name, ALL if roles is None else roles, group=OPERATE_GROUP, address=address)
        if address == infer:
            usual = frozenset(access.unix) if roles is None else roles
            return Door(name, usual, group=INFER_GROUP, operators=operate, address=address)
        # Its file's permissions are the owner's and the group's: whoever can open it was meant to.
        return Door(name, ALL if roles is None else roles, address=address)
    is_here = is_loopback(address)
    if tls.certificate and (tls.on_loopback or not is_here):
        asks = bool(tls.client_ca) and address not in tls.without_client_certificate
        if roles is not None and "operate" in roles:
            raise ConfigError(
                f"access.grants lets everybody who reaches {address} operate; give it to tokens or certificates"
            )
        return Door(name, NONE if roles is None else roles, False, True, asks, address=address)
    if not is_here:
        port = address.rpartition(":")[2]
        raise ConfigError(
            f"listen address {address!r} may be reachable from other machines; set [tls], or use localhost:{port}"
        )
    return Door("loopback", frozenset(access.loopback) if roles is None else roles, operators=operate, address=address)


def require_known(access: Access, tls: Tls, addresses: Iterable[str]) -> None:
    """ConfigError where the configuration says something about an address at which nothing listens: a slip there would
    leave another one more open than was meant."""
    there = list(addresses)
    for key, named in (
        ("access.grants", access.grants),
        ("tls.without_client_certificate", tls.without_client_certificate),
    ):
        for address in named:
            if address not in there:
                close = difflib.get_close_matches(address, there, n=1)
                hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(there)}"
                raise ConfigError(f"{key} names {address}, where nothing listens; {hint}")


def warning(found: Door) -> str:
    """What whoever reads the log should know of an address; empty where nothing is unusual."""
    if found.has_tls and found.roles:
        return f"{found.name} gives the roles {told(found.roles)} to everybody who reaches it"
    return ""


def _granted(address: str, access: Access) -> Roles | None:
    given = access.grants.get(address)
    return None if given is None else frozenset(given)


def _name(address: str) -> str:
    return f"socket {address.rpartition('/')[2]}" if address.startswith("unix:") else address
