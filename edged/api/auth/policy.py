"""The one table of who may call what. Pure.

A method that is not in it may be called by nobody; a test sees to it that every one that is registered is.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias, cast, get_args
from urllib.parse import unquote

import msgspec

from edged.api.auth.tokens import Token
from edged.api.endpoints.address import is_loopback
from edged.config.access import Access, Tls
from edged.config.access import Role as Role
from edged.errors import ConfigError, EdgedError, Forbidden, InvalidInput, Unauthenticated

Roles: TypeAlias = "frozenset[Role]"

ALL: Roles = frozenset(get_args(Role))
NONE: Roles = frozenset()


def parse_roles(words: Iterable[str]) -> Roles:
    """Roles by their names. InvalidInput for what is none."""
    found = [word.strip() for word in words]
    for word in found:
        if word not in ALL:
            raise InvalidInput(f"there is no role {word[:40]!r}; there are {describe_roles(ALL)}")
    return cast("Roles", frozenset(found))


def describe_roles(roles: Roles) -> str:
    """For people, in an order that stays."""
    return ", ".join(role for role in get_args(Role) if role in roles) or "none"


# The groups whose members may open the default sockets, where there are such groups.
INFER_GROUP, OPERATE_GROUP = "edged", "edged-operate"


class ListenerPolicy(msgspec.Struct, frozen=True):
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


def listener_policy(address: str, access: Access, tls: Tls, defaults: tuple[str, str] | None = None) -> ListenerPolicy:
    """What an address gives. `defaults` are the two default sockets, for frames and for operators, where both serve.

    ConfigError for an address that other machines reach and that is not secured.
    """
    infer, operate = defaults or ("", "")
    roles, name = _granted(address, access), _name(address)
    if address.startswith("unix:"):
        if address == operate:
            return ListenerPolicy(name, ALL if roles is None else roles, group=OPERATE_GROUP, address=address)
        if address == infer:
            usual = frozenset(access.unix) if roles is None else roles
            return ListenerPolicy(name, usual, group=INFER_GROUP, operators=operate, address=address)
        # Its file's permissions are the owner's and the group's: whoever can open it was meant to.
        return ListenerPolicy(name, ALL if roles is None else roles, address=address)
    is_here = is_loopback(address)
    if tls.certificate and (tls.on_loopback or not is_here):
        asks = bool(tls.client_ca) and address not in tls.without_client_certificate
        if roles is not None and "operate" in roles:
            raise ConfigError(
                f"access.grants lets everybody who reaches {address} operate; give it to tokens or certificates"
            )
        return ListenerPolicy(name, NONE if roles is None else roles, False, True, asks, address=address)
    if not is_here:
        port = address.rpartition(":")[2]
        raise ConfigError(
            f"listen address {address!r} may be reachable from other machines; set [tls], or use localhost:{port}"
        )
    return ListenerPolicy(
        "loopback", frozenset(access.loopback) if roles is None else roles, operators=operate, address=address
    )


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


def listener_warning(found: ListenerPolicy) -> str:
    """What whoever reads the log should know of an address; empty where nothing is unusual."""
    if found.has_tls and found.roles:
        return f"{found.name} gives the roles {describe_roles(found.roles)} to everybody who reaches it"
    return ""


def _granted(address: str, access: Access) -> Roles | None:
    given = access.grants.get(address)
    return None if given is None else frozenset(given)


def _name(address: str) -> str:
    return f"socket {address.rpartition('/')[2]}" if address.startswith("unix:") else address


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


def anonymous(listener: ListenerPolicy, peer: str = "") -> Caller:
    """Somebody who shows nothing. `peer` is the client as gRPC names it."""
    remedy = f"; operators use {listener.operators}" if listener.operators else ""
    if listener.is_local and not listener.has_tls and not listener.group:
        others = f"{listener.operators} or " if listener.operators else ""
        remedy = f"; operators use {others}a token: edged tokens new NAME --role operate"
    if listener.is_local:
        return Caller(
            listener.name, listener.roles, listener.name, bool(listener.roles), remedy=remedy, address=listener.address
        )
    host = host_of(peer)
    return Caller(host or "somebody", listener.roles, f"host {host}", remedy=remedy, address=listener.address)


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


def malformed_token(caller: Caller) -> Caller:
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


# Whoever reaches the address: probes have no secret, and learn no more than whether there is an answer.
ANYBODY: Final[Roles | None] = None
OPERATE: Final[Roles] = frozenset({"operate"})
READ: Final[Roles] = frozenset({"read", "operate"})
INFER: Final[Roles] = frozenset({"infer", "operate"})
# What clients ask before their first request, and whoever looks.
KNOW: Final[Roles] = INFER | READ

_CAMERAS, _OPERATIONS = "/edged.v1.Cameras/", "/edged.v1.Operations/"
INFERENCE: Final = "/inference.GRPCInferenceService/"
_HEALTH = "/grpc.health.v1.Health/"

NOBODY: Final[Roles] = NONE

METHODS: Final[dict[str, Roles | None]] = {
    _HEALTH + "Check": ANYBODY,
    _HEALTH + "Watch": ANYBODY,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": KNOW,
    _CAMERAS + "Detect": INFER,
    _CAMERAS + "DetectOne": INFER,
    INFERENCE + "ServerLive": ANYBODY,
    INFERENCE + "ServerReady": ANYBODY,
    INFERENCE + "ModelReady": ANYBODY,
    INFERENCE + "ServerMetadata": KNOW,
    INFERENCE + "ModelMetadata": KNOW,
    INFERENCE + "ModelConfig": KNOW,
    INFERENCE + "RepositoryIndex": KNOW,
    INFERENCE + "ModelStatistics": KNOW,
    INFERENCE + "ModelInfer": INFER,
    INFERENCE + "ModelStreamInfer": INFER,
    # Regions are how requests come and go; which clients have them is a question of the machine as well.
    INFERENCE + "SystemSharedMemoryStatus": INFER,
    INFERENCE + "SystemSharedMemoryRegister": INFER,
    INFERENCE + "SystemSharedMemoryUnregister": INFER,
    INFERENCE + "CudaSharedMemoryStatus": INFER,
    INFERENCE + "CudaSharedMemoryRegister": INFER,
    INFERENCE + "CudaSharedMemoryUnregister": INFER,
    INFERENCE + "RepositoryModelLoad": OPERATE,
    INFERENCE + "RepositoryModelUnload": OPERATE,
    # Reading and changing these is one method.
    INFERENCE + "TraceSetting": OPERATE,
    INFERENCE + "LogSettings": OPERATE,
    _OPERATIONS + "ListModels": READ,
    _OPERATIONS + "ListEngines": READ,
    _OPERATIONS + "ExplainEngine": READ,
    _OPERATIONS + "GetStatus": READ,
    _OPERATIONS + "GetLoad": READ,
    _OPERATIONS + "GetDevice": READ,
    _OPERATIONS + "ListCameras": READ,
    _OPERATIONS + "WatchEvents": READ,
    _OPERATIONS + "AddModel": OPERATE,
    _OPERATIONS + "RemoveModel": OPERATE,
    _OPERATIONS + "Rebuild": OPERATE,
    _OPERATIONS + "Verify": OPERATE,
    _OPERATIONS + "Cancel": OPERATE,
    _OPERATIONS + "Pin": OPERATE,
    _OPERATIONS + "Unpin": OPERATE,
    _OPERATIONS + "Evict": OPERATE,
    _OPERATIONS + "RefreshDevice": OPERATE,
    _OPERATIONS + "Reload": OPERATE,
}


def refusal(method: str, caller: Caller) -> EdgedError | None:
    """Why a caller may not call a method, such as `/edged.v1.Cameras/Detect`; None where it may."""
    if caller.problem:  # also where anybody may: whoever shows a wrong secret wants to know
        return Unauthenticated(caller.problem)
    needed = METHODS.get(method, NOBODY)
    if needed is None or caller.roles & needed:
        return None
    name = method.rpartition("/")[2]
    if not caller.roles and not caller.is_known:
        return Unauthenticated(f"{name} is not for everybody here; send a token (EDGED_TOKEN){caller.remedy}")
    least = _least(needed)
    has = f"{caller.name} has {describe_roles(caller.roles)}" if caller.roles else f"{caller.name} has no role here"
    return Forbidden(f"{name} needs the role {least}, and {has}{caller.remedy}")


def is_audited(method: str) -> bool:
    """Whether it is written down who called it."""
    return METHODS.get(method, OPERATE) == OPERATE


def _least(needed: Roles) -> str:
    """What a caller would be given for it."""
    return " or ".join(role for role in ("infer", "read") if role in needed) or "operate"
