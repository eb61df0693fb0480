"""Addresses, callers and roles: what each gives, and what is said to whom it does not suffice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from edged.api.auth import policy
from edged.api.auth.guard import Guard
from edged.api.auth.policy import ListenerPolicy, listener_policy
from edged.api.auth.tokens import Token
from edged.config import Access, Tls
from edged.errors import ConfigError, Forbidden, InvalidInput, Unauthenticated

_PAIR = ("unix:/run/edged/edged.sock", "unix:/run/edged/operate.sock")
_TLS = Tls(certificate="c", key="k")
_MTLS = Tls(certificate="c", key="k", client_ca="a", without_client_certificate=("0.0.0.0:2",))
_DETECT, _REMOVE = "/edged.v1.Cameras/Detect", "/edged.v1.Operations/RemoveModel"
_LIST, _HEALTH = "/edged.v1.Operations/ListModels", "/grpc.health.v1.Health/Check"


@pytest.mark.parametrize(
    ("address", "access", "tls", "expected"),
    [
        (_PAIR[0], Access(), Tls(), {"infer", "read"}),
        (_PAIR[1], Access(), Tls(), {"infer", "read", "operate"}),
        (_PAIR[0], Access(unix=("infer", "operate")), Tls(), {"infer", "operate"}),
        ("unix:/mine.sock", Access(), Tls(), {"infer", "read", "operate"}),
        ("unix:/mine.sock", Access(grants={"unix:/mine.sock": ("read",)}), Tls(), {"read"}),
        ("localhost:1", Access(), Tls(), {"infer", "read"}),
        ("localhost:1", Access(loopback=("infer",)), Tls(), {"infer"}),
        ("[::1]:1", Access(grants={"[::1]:1": ()}), Tls(), set()),
        ("localhost:1", Access(), _TLS, set()),
        ("localhost:1", Access(), Tls(certificate="c", key="k", on_loopback=False), {"infer", "read"}),
        ("0.0.0.0:1", Access(), _TLS, set()),
        ("box.lan:1", Access(grants={"box.lan:1": ("infer",)}), _TLS, {"infer"}),
    ],
)
def test_what_an_address_gives(address: str, access: Access, tls: Tls, expected: set[str]) -> None:
    assert listener_policy(address, access, tls, _PAIR).roles == expected


def test_one_default_socket_alone_answers_everybody_and_two_have_groups() -> None:
    assert listener_policy(_PAIR[0], Access(), Tls()).roles == policy.ALL
    assert [listener_policy(address, Access(), Tls(), _PAIR).group for address in _PAIR] == ["edged", "edged-operate"]


@pytest.mark.parametrize("address", ["0.0.0.0:1", "192.168.1.5:1", "box.lan:1", "[::]:1"])
def test_other_machines_are_reached_only_with_tls(address: str) -> None:
    with pytest.raises(ConfigError, match=r"set \[tls\], or use localhost:1"):
        listener_policy(address, Access(), Tls())
    assert listener_policy(address, Access(), _TLS).has_tls


def test_certificates_are_asked_for_where_the_configuration_wants_it() -> None:
    assert listener_policy("0.0.0.0:1", Access(), _MTLS).asks_certificates
    assert not listener_policy("0.0.0.0:2", Access(), _MTLS).asks_certificates
    assert not listener_policy("0.0.0.0:1", Access(), _TLS).asks_certificates


def test_nobody_is_an_operator_for_reaching_a_port() -> None:
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0:1"):
        listener_policy("0.0.0.0:1", Access(grants={"0.0.0.0:1": ("operate",)}), _TLS)
    assert "infer" in policy.listener_warning(
        listener_policy("0.0.0.0:1", Access(grants={"0.0.0.0:1": ("infer",)}), _TLS)
    )


def test_a_grant_of_an_address_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"unix:/x.sok.*did you mean unix:/x.sock\?"):
        policy.require_known(Access(grants={"unix:/x.sok": ("read",)}), Tls(), ["unix:/x.sock", "localhost:1"])
    with pytest.raises(ConfigError, match=r"tls\.without_client_certificate names 0\.0\.0\.0:2"):
        policy.require_known(Access(), _MTLS, ["0.0.0.0:1"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"certificate": "c"}, "go together"),
        ({"client_ca": "a"}, "needs tls.certificate"),
    ],
)
def test_half_of_tls_is_refused(words: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tls(**words)  # type: ignore[arg-type]


_FAR = ListenerPolicy("0.0.0.0:1", policy.NONE, is_local=False, has_tls=True)
_SOCKET = listener_policy(_PAIR[0], Access(), Tls(), _PAIR)
_TOKEN = Token("yard", "0" * 64, ("infer",), expires=100.0)


def test_who_shows_nothing_may_what_the_address_gives() -> None:
    somebody = policy.anonymous(_FAR, "ipv4:1.2.3.4:567")
    assert somebody.key == "host 1.2.3.4"
    assert policy.refusal(_HEALTH, somebody) is None
    assert isinstance(policy.refusal(_DETECT, somebody), Unauthenticated)
    local = policy.anonymous(_SOCKET)
    assert policy.refusal(_DETECT, local) is None
    refused = policy.refusal(_REMOVE, local)
    assert isinstance(refused, Forbidden)
    assert str(refused) == (
        "RemoveModel needs the role operate, and socket edged.sock has read, infer; operators use"
        " unix:/run/edged/operate.sock"
    )


@pytest.mark.parametrize(
    ("defaults", "remedy"), [(None, "a token: edged tokens new"), (_PAIR, f"{_PAIR[1]} or a token: edged tokens new")]
)
def test_refusal_of_an_operator_over_loopback_says_how_to_get_the_role(
    defaults: tuple[str, str] | None, remedy: str
) -> None:
    refused = policy.refusal(_REMOVE, policy.anonymous(listener_policy("localhost:1", Access(), Tls(), defaults)))
    assert isinstance(refused, Forbidden)
    assert remedy in str(refused)


def test_a_token_adds_its_roles_until_it_expires() -> None:
    known = policy.with_token(policy.anonymous(_FAR, "ipv4:1.2.3.4:5"), _TOKEN, now=99.0)
    assert (known.name, known.key, known.roles) == ("token yard", "token yard", {"infer"})
    assert policy.refusal(_DETECT, known) is None
    assert isinstance(policy.refusal(_LIST, known), Forbidden)
    late = policy.with_token(policy.anonymous(_FAR), _TOKEN, now=100.0)
    assert isinstance(policy.refusal(_DETECT, late), Unauthenticated)
    on_socket = policy.with_token(policy.anonymous(_SOCKET), _TOKEN, now=0.0)
    assert on_socket.roles == {"infer", "read"}


def test_a_wrong_token_is_refused_also_where_nothing_is_needed() -> None:
    wrong = policy.with_token(policy.anonymous(_SOCKET), None, now=0.0)
    assert isinstance(policy.refusal(_DETECT, wrong), Unauthenticated)
    assert isinstance(policy.refusal(_HEALTH, wrong), Unauthenticated)


def test_a_certificate_has_the_roles_of_all_its_names() -> None:
    known: dict[str, tuple[policy.Role, ...]] = {"a.lan": ("infer",), "spiffe://x/a": ("read",)}
    who = policy.with_certificate(policy.anonymous(_FAR), ["b.lan", "spiffe://x/a", "a.lan"], known, 100.0, 0.0)
    assert (who.roles, who.name) == ({"infer", "read"}, "certificate spiffe://x/a")
    stranger = policy.with_certificate(policy.anonymous(_FAR), ["c.lan"], known, 100.0, 0.0)
    refused = policy.refusal(_DETECT, stranger)
    assert isinstance(refused, Forbidden)
    assert "access.certificates, 'c.lan'" in str(refused)
    ended = policy.with_certificate(policy.anonymous(_FAR), ["a.lan"], known, 100.0, 100.0)
    assert isinstance(policy.refusal(_DETECT, ended), Unauthenticated)


def test_a_method_that_is_not_in_the_table_is_nobodys() -> None:
    operator = policy.anonymous(listener_policy(_PAIR[1], Access(), Tls(), _PAIR))
    assert isinstance(policy.refusal("/edged.v1.Operations/Forgotten", operator), Forbidden)


@pytest.mark.parametrize(
    ("header", "secret"),
    [
        ("Bearer abc", "abc"),
        ("bearer  abc ", "abc"),
        ("Basic abc", None),
        ("Bearer ", None),
        ("abc", None),
        ("", None),
    ],
)
def test_the_header(header: str, secret: str | None) -> None:
    assert policy.secret_of(header) == secret


@pytest.mark.parametrize(
    ("peer", "host"),
    [("ipv4:1.2.3.4:56", "1.2.3.4"), ("ipv6:%5B::1%5D:56", "::1"), ("ipv6:[::1]:56", "::1"), ("unix:", ""), ("", "")],
)
def test_the_host_of_a_peer(peer: str, host: str) -> None:
    assert policy.host_of(peer) == host


def test_roles_by_name() -> None:
    assert policy.parse_roles(["infer", " read"]) == {"infer", "read"}
    with pytest.raises(InvalidInput, match="role 'root'"):
        policy.parse_roles(["root"])


def test_what_listens_already_is_not_made_another(tmp_path: Path) -> None:
    guard = Guard(Access(), Tls(), tmp_path)
    with pytest.raises(ConfigError, match="fixed at start"):
        asyncio.run(guard.reconfigure_tls(_TLS))
    with pytest.raises(ConfigError, match="not listened on"):
        asyncio.run(guard.reconfigure(Access(grants={"unix:/y": ("read",)}), ["unix:/x"]))
    asyncio.run(guard.reconfigure(Access(grants={"unix:/x": ("read",)}), ["unix:/x"]))
    assert guard.listener("unix:/x").roles == {"read"}
