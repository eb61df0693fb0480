"""Roles of listener addresses and callers, and refusals of callers without the role."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from edged.api.auth import policy
from edged.api.auth.guard import Guard
from edged.api.auth.policy import Caller, ListenerPolicy, listener_policy
from edged.api.auth.tokens import Token
from edged.config import Access, Tls
from edged.errors import ConfigError, EdgedError, Forbidden, InvalidInput, Unauthenticated

PAIR = ("unix:/run/edged/edged.sock", "unix:/run/edged/operate.sock")
NO_TLS, TLS = Tls(), Tls(certificate="c", key="k")
MTLS = Tls(certificate="c", key="k", client_ca="a", without_client_certificate=("0.0.0.0:2",))
DETECT, REMOVE = "/edged.v1.Cameras/Detect", "/edged.v1.Operations/RemoveModel"
LIST, HEALTH = "/edged.v1.Operations/ListModels", "/grpc.health.v1.Health/Check"
ALL = {"infer", "read", "operate"}


@pytest.mark.parametrize(
    ("address", "access", "tls", "roles"),
    [
        (PAIR[0], Access(), NO_TLS, {"infer", "read"}),
        (PAIR[1], Access(), NO_TLS, ALL),
        (PAIR[0], Access(unix=("infer", "operate")), NO_TLS, {"infer", "operate"}),
        ("unix:/mine.sock", Access(), NO_TLS, ALL),
        ("unix:/mine.sock", Access(grants={"unix:/mine.sock": ("read",)}), NO_TLS, {"read"}),
        ("localhost:1", Access(), NO_TLS, {"infer", "read"}),
        ("localhost:1", Access(loopback=("infer",)), NO_TLS, {"infer"}),
        ("[::1]:1", Access(grants={"[::1]:1": ()}), NO_TLS, set()),
        ("localhost:1", Access(), TLS, set()),
        ("localhost:1", Access(), Tls(certificate="c", key="k", on_loopback=False), {"infer", "read"}),
        ("0.0.0.0:1", Access(), TLS, set()),
        ("box.lan:1", Access(grants={"box.lan:1": ("infer",)}), TLS, {"infer"}),
        ("0.0.0.0:1", Access(unencrypted=("0.0.0.0:1",)), NO_TLS, {"infer", "read"}),
        ("0.0.0.0:1", Access(unencrypted=("0.0.0.0:1",), grants={"0.0.0.0:1": ("infer",)}), NO_TLS, {"infer"}),
    ],
)
def test_listener_policy_grants_roles(address: str, access: Access, tls: Tls, roles: set[str]) -> None:
    assert listener_policy(address, access, tls, PAIR).roles == roles


def test_listener_policy_of_default_sockets_has_groups_if_both_are_served() -> None:
    assert listener_policy(PAIR[0], Access(), NO_TLS).roles == policy.ALL
    assert [listener_policy(address, Access(), NO_TLS, PAIR).group for address in PAIR] == ["edged", "edged-operate"]


@pytest.mark.parametrize("address", ["0.0.0.0:1", "192.168.1.5:1", "box.lan:1", "[::]:1"])
def test_listener_policy_of_a_remote_address_needs_tls(address: str) -> None:
    with pytest.raises(ConfigError, match="localhost:1"):
        listener_policy(address, Access(), NO_TLS)
    assert listener_policy(address, Access(), TLS).has_tls


def test_listener_policy_without_tls_is_of_the_named_address_only_and_never_for_operators() -> None:
    access = Access(unencrypted=("0.0.0.0:1",), grants={"0.0.0.0:1": ("operate",)})
    with pytest.raises(ConfigError, match="without TLS"):
        listener_policy("0.0.0.0:1", access, NO_TLS)
    with pytest.raises(ConfigError, match="localhost:2"):
        listener_policy("0.0.0.0:2", access, NO_TLS)
    found = listener_policy("0.0.0.0:1", Access(unencrypted=("0.0.0.0:1",)), NO_TLS)
    assert not found.is_local
    assert "to every client that reaches it, without TLS" in policy.listener_warning(found)
    assert listener_policy("0.0.0.0:1", Access(unencrypted=("0.0.0.0:1",)), TLS).has_tls
    with pytest.raises(ConfigError, match=r"access.unencrypted names 0.0.0.0:3"):
        policy.require_known(Access(unencrypted=("0.0.0.0:3",)), NO_TLS, ["0.0.0.0:1"])


def test_page_policy_of_a_remote_address_needs_tls_even_if_unencrypted_addresses_are_allowed() -> None:
    access = Access(unencrypted=("0.0.0.0:1",))
    with pytest.raises(ConfigError, match="without TLS"):
        policy.page_policy("0.0.0.0:1", access, NO_TLS)
    assert policy.page_policy("0.0.0.0:1", access, TLS).has_tls
    assert policy.page_policy("localhost:1", access, NO_TLS).is_local
    with pytest.raises(ConfigError, match="unix socket"):
        policy.page_policy("unix:/mine.sock", access, NO_TLS)


@pytest.mark.parametrize(
    ("address", "tls", "asks"), [("0.0.0.0:1", MTLS, True), ("0.0.0.0:2", MTLS, False), ("0.0.0.0:1", TLS, False)]
)
def test_listener_policy_asks_for_certificates_as_configured(address: str, tls: Tls, asks: bool) -> None:
    assert listener_policy(address, Access(), tls).asks_certificates is asks


def test_listener_policy_of_a_remote_address_never_grants_operate_and_warns_of_other_roles() -> None:
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0:1"):
        listener_policy("0.0.0.0:1", Access(grants={"0.0.0.0:1": ("operate",)}), TLS)
    granted = listener_policy("0.0.0.0:1", Access(grants={"0.0.0.0:1": ("infer",)}), TLS)
    assert "infer" in policy.listener_warning(granted)


@pytest.mark.parametrize(
    ("access", "tls", "words"),
    [
        (Access(grants={"unix:/x.sok": ("read",)}), NO_TLS, r"unix:/x.sok.*unix:/x.sock"),
        (Access(), MTLS, r"tls\.without_client_certificate.*0\.0\.0\.0:2"),
    ],
)
def test_require_known_address_that_is_not_listened_on_is_refused(access: Access, tls: Tls, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        policy.require_known(access, tls, ["unix:/x.sock", "localhost:1"])


# -- callers --------------------------------------------------------------------------------------------------------

FAR = ListenerPolicy("0.0.0.0:1", policy.NONE, is_local=False, has_tls=True)
SOCKET = listener_policy(PAIR[0], Access(), NO_TLS, PAIR)
OPERATE = listener_policy(PAIR[1], Access(), NO_TLS, PAIR)
TOKEN = Token("yard", "0" * 64, ("infer",), expires=100.0)
KNOWN: dict[str, tuple[policy.Role, ...]] = {"a.lan": ("infer",), "spiffe://x/a": ("read",)}
REMOTE, LOCAL = policy.anonymous(FAR, "ipv4:1.2.3.4:567"), policy.anonymous(SOCKET)


def with_certificate(*names: str, now: float = 0.0) -> Caller:
    return policy.with_certificate(REMOTE, names, KNOWN, 100.0, now)


@pytest.mark.parametrize(
    ("caller", "method", "error"),
    [
        (REMOTE, HEALTH, None),
        (REMOTE, DETECT, Unauthenticated),
        (LOCAL, DETECT, None),
        (LOCAL, REMOVE, Forbidden),
        (policy.with_token(REMOTE, TOKEN, now=99.0), DETECT, None),
        (policy.with_token(REMOTE, TOKEN, now=99.0), LIST, Forbidden),
        (policy.with_token(REMOTE, TOKEN, now=100.0), DETECT, Unauthenticated),
        (policy.with_token(LOCAL, None, now=0.0), DETECT, Unauthenticated),
        (policy.with_token(LOCAL, None, now=0.0), HEALTH, Unauthenticated),
        (with_certificate("a.lan"), DETECT, None),
        (with_certificate("a.lan", now=100.0), DETECT, Unauthenticated),
        (with_certificate("c.lan"), DETECT, Forbidden),
        (policy.anonymous(OPERATE), REMOVE, None),
        (policy.anonymous(OPERATE), "/edged.v1.Operations/Forgotten", Forbidden),
    ],
)
def test_refusal_of_a_caller(caller: Caller, method: str, error: type[EdgedError] | None) -> None:
    assert type(policy.refusal(method, caller)) is (error or type(None))


@pytest.mark.parametrize(
    ("caller", "name", "key", "roles"),
    [
        (REMOTE, "1.2.3.4", "host 1.2.3.4", set()),
        (policy.with_token(REMOTE, TOKEN, now=0.0), "token yard", "token yard", {"infer"}),
        (policy.with_token(LOCAL, TOKEN, now=0.0), "token yard", "token yard", {"infer", "read"}),
        (
            with_certificate("b.lan", "spiffe://x/a", "a.lan"),
            "certificate spiffe://x/a",
            "certificate spiffe://x/a",
            {"infer", "read"},
        ),
    ],
)
def test_caller_has_a_name_a_key_and_roles(caller: Caller, name: str, key: str, roles: set[str]) -> None:
    assert (caller.name, caller.key, caller.roles) == (name, key, roles)


@pytest.mark.parametrize(
    ("caller", "method", "remedy"),
    [
        (LOCAL, REMOVE, f"operators use {PAIR[1]}"),
        (with_certificate("c.lan"), DETECT, "grant roles to 'c.lan' in access.certificates"),
        (policy.anonymous(listener_policy("localhost:1", Access(), NO_TLS)), REMOVE, "edged tokens new"),
        (policy.anonymous(listener_policy("localhost:1", Access(), NO_TLS, PAIR)), REMOVE, f"{PAIR[1]} or a token"),
    ],
)
def test_refusal_says_how_to_get_the_role(caller: Caller, method: str, remedy: str) -> None:
    assert remedy in str(policy.refusal(method, caller))


@pytest.mark.parametrize(
    ("function", "text", "value"),
    [
        (policy.secret_of, "Bearer abc", "abc"),
        (policy.secret_of, "bearer  abc ", "abc"),
        *((policy.secret_of, text, None) for text in ("Basic abc", "Bearer ", "abc", "")),
        (policy.host_of, "ipv4:1.2.3.4:56", "1.2.3.4"),
        *((policy.host_of, text, "::1") for text in ("ipv6:%5B::1%5D:56", "ipv6:[::1]:56")),
        *((policy.host_of, text, "") for text in ("unix:", "")),
    ],
)
def test_secret_of_a_header_and_host_of_a_peer(function: Callable[[str], str], text: str, value: str | None) -> None:
    assert function(text) == value


def test_parse_roles_by_name() -> None:
    assert policy.parse_roles(["infer", " read"]) == {"infer", "read"}
    with pytest.raises(InvalidInput, match="'root'"):
        policy.parse_roles(["root"])


@pytest.mark.parametrize("half", [{"certificate": "c"}, {"client_ca": "a"}])
def test_tls_incomplete_settings_are_refused(half: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"tls|together"):
        Tls(**half)  # type: ignore[arg-type]


def test_guard_reconfigure_applies_all_or_nothing(tmp_path: Path) -> None:
    guard = Guard(Access(), NO_TLS, tmp_path)
    with pytest.raises(ConfigError):
        asyncio.run(guard.reconfigure_tls(TLS))
    with pytest.raises(ConfigError):
        asyncio.run(guard.reconfigure(Access(grants={"unix:/y": ("read",)}), ["unix:/x"]))
    assert guard.listener("unix:/x").roles == ALL
    asyncio.run(guard.reconfigure(Access(grants={"unix:/x": ("read",)}), ["unix:/x"]))
    assert guard.listener("unix:/x").roles == {"read"}
