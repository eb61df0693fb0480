"""Defines callers and their roles. Addresses, tokens and certificates grant roles, and methods need roles. Pure.

A method that is missing from `METHODS` is denied to all; a test checks that every registered method is listed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias, cast, get_args
from urllib.parse import unquote

import msgspec

from edged.api.auth.tokens import Token
from edged.api.endpoints.address import is_loopback
from edged.config.schema import Access, Tls
from edged.config.schema import Role as Role
from edged.errors import ConfigError, EdgedError, Forbidden, InvalidInput, Unauthenticated

Roles: TypeAlias = "frozenset[Role]"

ALL: Roles = frozenset(get_args(Role))
_UNENCRYPTED: Roles = frozenset({"infer", "read"})
NONE: Roles = frozenset()


def parse_roles(words: Iterable[str]) -> Roles:
    """Return the roles with these names. Raises InvalidInput for an unknown name."""
    found = [word.strip() for word in words]
    for word in found:
        if word not in ALL:
            raise InvalidInput(f"role {word[:40]!r} does not exist; choose from {describe_roles(ALL)}")
    return cast("Roles", frozenset(found))


def describe_roles(roles: Roles) -> str:
    """Return the names of roles, in a fixed order; "none" for no role."""
    return ", ".join(role for role in get_args(Role) if role in roles) or "none"


# The groups whose members may open the default sockets, if these groups exist.
INFER_GROUP, OPERATE_GROUP = "edged", "edged-operate"


class ListenerPolicy(msgspec.Struct, frozen=True):
    """The access rules of one address of the daemon.

    `roles` are granted to every client that reaches the address. `is_local`: only clients on this machine reach the
    address, by unix socket or by loopback without TLS. `asks_certificates`: clients must show a certificate. `group`:
    the group that may open a default socket; empty for other addresses. `operators` is another address, at which
    operators can call; the messages of refusals name this address.
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
    """Return the policy of an address. `defaults` are the default sockets for inference and for operators, None if the
    daemon does not serve both.

    Raises ConfigError if other machines could reach the address without TLS and `access.unencrypted` does not allow
    that. Also raises it if an address with TLS, or an address in `access.unencrypted`, grants the role `operate` to all
    clients.
    """
    infer, operate = defaults or ("", "")
    granted = access.grants.get(address)
    roles: Roles | None = None if granted is None else frozenset(granted)
    name = f"socket {address.rpartition('/')[2]}" if address.startswith("unix:") else address
    if address.startswith("unix:"):
        if address == operate:
            return ListenerPolicy(name, ALL if roles is None else roles, group=OPERATE_GROUP, address=address)
        if address == infer:
            usual = frozenset(access.unix) if roles is None else roles
            return ListenerPolicy(name, usual, group=INFER_GROUP, operators=operate, address=address)
        # The file's owner and group decide who can open it.
        return ListenerPolicy(name, ALL if roles is None else roles, address=address)
    is_here = is_loopback(address)
    if tls.certificate and (tls.on_loopback or not is_here):
        asks = bool(tls.client_ca) and address not in tls.without_client_certificate
        if roles is not None and "operate" in roles:
            raise ConfigError(
                f"access.grants gives role operate to all clients of {address}; give it only to tokens or certificates"
            )
        return ListenerPolicy(name, NONE if roles is None else roles, False, True, asks, address=address)
    if not is_here and address in access.unencrypted:
        if roles is not None and "operate" in roles:
            raise ConfigError(
                f"access.grants gives role operate to all clients of {address}, without TLS; give it only to tokens"
            )
        return ListenerPolicy(name, _UNENCRYPTED if roles is None else roles, False, address=address)
    if not is_here:
        port = address.rpartition(":")[2]
        raise ConfigError(
            f"listen address {address!r} could be reachable from other machines without TLS; set [tls], or use"
            f" localhost:{port}"
        )
    return ListenerPolicy(
        "loopback", frozenset(access.loopback) if roles is None else roles, operators=operate, address=address
    )


def page_policy(address: str, access: Access, tls: Tls) -> ListenerPolicy:
    """Return the policy of the page's address. `access.unencrypted` does not apply to the page, because browsers sign
    in there with tokens. Raises ConfigError like `listener_policy`, and for a unix socket."""
    if address.startswith("unix:"):
        raise ConfigError(f"page.listen {address!r} is a unix socket, which browsers cannot open; use localhost:PORT")
    return listener_policy(address, msgspec.structs.replace(access, unencrypted=()), tls)


def require_known(access: Access, tls: Tls, addresses: Iterable[str], without_roles: Iterable[str] = ()) -> None:
    """Raise ConfigError if the access rules name an address at which the daemon does not listen: a typo could leave
    another address more open than intended. `without_roles` are addresses whose callers need no role. `access.grants`
    must not name these addresses, because a grant would have no effect there."""
    guarded, others = list(addresses), list(without_roles)
    for key, named, known in (
        ("access.grants", access.grants, guarded),
        ("access.unencrypted", access.unencrypted, [*guarded, *others]),
        ("tls.without_client_certificate", tls.without_client_certificate, guarded),
    ):
        for address in named:
            if address not in known:
                close = difflib.get_close_matches(address, known, n=1)
                hint = f"did you mean {close[0]}?" if close else f"known addresses: {', '.join(known)}"
                raise ConfigError(f"{key} names {address}, but the daemon does not listen there; {hint}")


def listener_warning(found: ListenerPolicy) -> str:
    """Return a warning for the log if an address grants roles to every client on other machines; otherwise empty."""
    if not found.is_local and found.roles:
        how = "" if found.has_tls else ", without TLS"
        return f"address {found.name} grants {describe_roles(found.roles)} to every client that reaches it{how}"
    return ""


_BEARER = "bearer "
_TO_CREATE = "edged tokens new NAME --role ROLE"


class Caller(msgspec.Struct, frozen=True):
    """A caller and its roles.

    `key` identifies the client whose usage is limited. `has_shown`: a token or certificate identifies the caller.
    `is_known`: `has_shown`, or the address is local and grants roles. `proof` has the digest of the token, and those
    names in the certificate that `access.certificates` lists. `given` are the roles that token and certificate grant.
    `address` is the daemon's address that the caller used. `problem` says what is wrong with the caller's credentials.
    `remedy` says how to get more roles, as the end of a message.
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
    """Return a caller without credentials. `peer` is the client as gRPC names it."""
    remedy = f"; operators use {listener.operators}" if listener.operators else ""
    if listener.is_local and not listener.has_tls and not listener.group:
        others = f"{listener.operators} or " if listener.operators else ""
        remedy = f"; operators use {others}a token: edged tokens new NAME --role operate"
    if listener.is_local:
        return Caller(
            listener.name, listener.roles, listener.name, bool(listener.roles), remedy=remedy, address=listener.address
        )
    host = host_of(peer)
    return Caller(host or "unknown", listener.roles, f"host {host}", remedy=remedy, address=listener.address)


def with_token(caller: Caller, token: Token | None, now: float) -> Caller:
    """Return `caller` with the name of its token, and with the token's roles added. If the token is unknown (None) or
    has expired, set only `problem`. `now` is in seconds since the epoch."""
    if token is None:
        return msgspec.structs.replace(
            caller, problem="the token is unknown; list the tokens on the daemon's machine: edged tokens list"
        )
    if token.expires and now >= token.expires:
        problem = f"the token {token.name} has expired; make another on the daemon's machine: {_TO_CREATE}"
        return msgspec.structs.replace(caller, problem=problem)
    who = f"token {token.name}"
    return _known(caller, who, frozenset(token.roles), (*caller.proof, token.sha256))


def malformed_token(caller: Caller) -> Caller:
    """Return `caller` with the problem that its header `authorization` is not a bearer token."""
    problem = f"the header 'authorization' is not 'Bearer TOKEN'; to make a token on the daemon's machine: {_TO_CREATE}"
    return msgspec.structs.replace(caller, problem=problem)


def with_certificate(
    caller: Caller, names: Iterable[str], known: Mapping[str, tuple[Role, ...]], expires: float, now: float
) -> Caller:
    """Return `caller` with a name in its certificate, and with the certificate's roles added. If the certificate has
    expired, set only `problem`. `names` are the names in the certificate, the common name last. `known` has the roles
    of each name. `expires` and `now` are in seconds since the epoch."""
    shown = list(names)
    if not shown:
        return caller
    if now >= expires:  # the certificate was valid at the TLS handshake, but may have expired
        return msgspec.structs.replace(caller, problem=f"the certificate of {shown[0][:80]} has expired; renew it")
    given = roles_of(shown, known)
    name = next((name for name in shown if name in known), shown[0])[:80]
    who = f"certificate {name}"
    remedy = "" if given else f"; grant roles to {name!r} in access.certificates"
    found = _known(caller, who, given, tuple(name for name in shown if name in known))
    return msgspec.structs.replace(found, remedy=remedy or caller.remedy)


def _known(caller: Caller, who: str, given: Roles, proof: tuple[str, ...]) -> Caller:
    """Return `caller` with the name `who`, its previous roles, and the roles `given` of its token or certificate."""
    return msgspec.structs.replace(
        caller,
        name=who,
        roles=caller.roles | given,
        key=who,
        is_known=True,
        has_shown=True,
        proof=proof,
        given=caller.given | given,
    )


def roles_of(names: Iterable[str], known: Mapping[str, tuple[Role, ...]]) -> Roles:
    """Return the union of the roles of some names. `known` has the roles of each name."""
    return frozenset(role for name in names for role in known.get(name, ()))


def secret_of(authorization: str) -> str | None:
    """Return the token in the header `authorization` (RFC 6750); None if the header has another form."""
    if authorization[: len(_BEARER)].lower() != _BEARER:
        return None
    return authorization[len(_BEARER) :].strip() or None


def host_of(peer: str) -> str:
    """Return the host in gRPC's name of a client, such as `ipv4:1.2.3.4:56` or `ipv6:%5B::1%5D:56`; empty for
    `unix:`."""
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return ""
    return unquote(rest).rpartition(":")[0].strip("[]")


# For health checks, which have no token: any client that reaches the address may ask if the daemon answers.
PUBLIC: Final[Roles | None] = None
OPERATE: Final[Roles] = frozenset({"operate"})
READ: Final[Roles] = frozenset({"read", "operate"})
INFER: Final[Roles] = frozenset({"infer", "operate"})
# For methods that inference clients call before their first request, and that readers call.
KNOW: Final[Roles] = INFER | READ

_CAMERAS, _OPERATIONS, _LANGUAGE = (f"/edged.v1.{name}/" for name in ("Cameras", "Operations", "Language"))
INFERENCE: Final = "/inference.GRPCInferenceService/"
_HEALTH = "/grpc.health.v1.Health/"
RELOAD: Final = f"{_OPERATIONS}Reload"

# For methods that are missing from `METHODS`.
DENY_ALL: Final[Roles] = NONE

METHODS: Final[dict[str, Roles | None]] = {
    f"{service}{name}": roles
    for roles, service, names in (
        (PUBLIC, _HEALTH, "Check Watch"),
        (PUBLIC, INFERENCE, "ServerLive ServerReady ModelReady"),
        (KNOW, "/grpc.reflection.v1alpha.ServerReflection/", "ServerReflectionInfo"),
        (KNOW, INFERENCE, "ServerMetadata ModelMetadata ModelConfig RepositoryIndex ModelStatistics"),
        (INFER, _CAMERAS, "Detect DetectOne"),
        (INFER, INFERENCE, "ModelInfer ModelStreamInfer"),
        # Regions carry requests and responses; `shared_memory.py` also checks that the client is on this machine.
        (INFER, INFERENCE, "SystemSharedMemoryStatus SystemSharedMemoryRegister SystemSharedMemoryUnregister"),
        (INFER, INFERENCE, "CudaSharedMemoryStatus CudaSharedMemoryRegister CudaSharedMemoryUnregister"),
        (OPERATE, INFERENCE, "RepositoryModelLoad RepositoryModelUnload"),
        (OPERATE, INFERENCE, "TraceSetting LogSettings"),  # each method both reads and changes settings
        (
            READ,
            _OPERATIONS,
            "ListModels ListPipelines ListEngines ExplainEngine ListCameras GetStatus GetLoad GetDevice WatchEvents",
        ),
        (
            OPERATE,
            _OPERATIONS,
            "AddModel RemoveModel RestoreModel Rebuild Verify Cancel Pin Unpin Evict RefreshDevice Reload",
        ),
        (OPERATE, _OPERATIONS, "AddToGallery RemoveFromGallery"),
        (READ, _OPERATIONS, "ListGalleries"),
        (OPERATE, _OPERATIONS, "EngineReport"),  # the report may show pictures that cameras took hours ago
        (OPERATE, _OPERATIONS, "CollectFrames StopCollecting RemoveFrames"),
        (READ, _OPERATIONS, "ListFrames"),
        (OPERATE, _OPERATIONS, "AddCamera SetCamera RemoveCamera SetModel TryModel"),
        (READ, _OPERATIONS, "WatchPictures"),
        (KNOW, _LANGUAGE, "LanguageModels"),
        (INFER, _LANGUAGE, "Chat"),
    )
    for name in names.split()
}


def refusal(method: str, caller: Caller) -> EdgedError | None:
    """Return why a caller may not call a method, such as `/edged.v1.Cameras/Detect`; None if the caller may."""
    if caller.problem:  # also for methods that need no role, so that clients learn that their secret is wrong
        return Unauthenticated(caller.problem)
    needed = METHODS.get(method, DENY_ALL)
    if needed is None or caller.roles & needed:
        return None
    name = method.rpartition("/")[2]
    if not caller.roles and not caller.is_known:
        return Unauthenticated(f"{name} needs a token; set EDGED_TOKEN{caller.remedy}")
    least = least_role(method)
    has = f"{caller.name} has {describe_roles(caller.roles)}" if caller.roles else f"{caller.name} has no role here"
    return Forbidden(f"{name} needs the role {least}, and {has}{caller.remedy}")


def least_role(method: str) -> str:
    """Return the least role that may call a method, or "infer or read" if either role may; empty if the method needs no
    role."""
    needed = METHODS.get(method, DENY_ALL)
    if needed is None:
        return ""
    return " or ".join(role for role in ("infer", "read") if role in needed) or "operate"


def is_audited(method: str) -> bool:
    """Whether the audit log records calls of a method."""
    return METHODS.get(method, OPERATE) == OPERATE
