"""Credentials of clients: TLS, certificates, tokens, and mistakes that raise before anything is sent."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from edged.client import AsyncClient, Client
from edged.client.address import is_here
from edged.client.credentials import Credentials, is_secured, read_token
from edged.errors import EdgedError, InvalidInput, NotReady
from tests import models
from tests.certificates import Authority
from tests.unit.client_daemon import Running

pytestmark = pytest.mark.timeout(60)

TOKEN = "sesame-0123456789"
PICTURE = np.zeros((4, 4, 3), np.uint8)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


def server_side(
    authority: Authority,
    name: str = "server",
    names: Sequence[str] = ("DNS:localhost", "IP:127.0.0.1"),
    *,
    mutual: bool = False,
    days: int = 30,
) -> grpc.ServerCredentials:
    certificate, key = authority.sign(name, *names, days=days)
    pair = ((key.read_bytes(), certificate.read_bytes()),)
    return grpc.ssl_server_credentials(pair, authority.ca.read_bytes() if mutual else None, mutual)


# --- reading --------------------------------------------------------------------------------------------------------


def test_credentials_environment_gives_files_and_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    token.chmod(0o600)
    environment = {"EDGED_CA": "/ca", "EDGED_CERTIFICATE": "/c", "EDGED_KEY": "/k", "EDGED_SERVER_NAME": "box"}
    found = Credentials.from_environment({**environment, "EDGED_TOKEN_FILE": str(token)})
    assert found == Credentials("/ca", "/c", "/k", TOKEN, "box")
    assert Credentials.from_environment({"EDGED_TOKEN": TOKEN}) == Credentials(token=TOKEN)
    assert Credentials.from_environment({}) == Credentials()


def test_credentials_repr_hides_the_token() -> None:
    made = Credentials(ca="/ca", token=TOKEN)
    assert TOKEN not in f"{made!r} {made} {[made]}"
    assert "/ca" in repr(made)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"EDGED_CERTIFICATE": "/c"}, "client certificate"),
        ({"EDGED_KEY": "/k"}, "client certificate"),
        ({"EDGED_TOKEN": "a", "EDGED_TOKEN_FILE": "/t"}, "both a token"),
        ({"EDGED_TOKEN": f"{TOKEN} and more"}, "the token is invalid"),
        ({"EDGED_TOKEN": f"{TOKEN}\nX-Role: operate"}, "the token is invalid"),
        ({"EDGED_TOKEN": f"{TOKEN}é"}, "the token is invalid"),
        ({"EDGED_TOKEN": TOKEN * 1000}, "longer than"),
        ({"EDGED_TOKEN_FILE": "/nowhere/token"}, "cannot be read: No such file"),
    ],
)
def test_credentials_invalid_values_raise_without_the_token(given: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as raised:
        Credentials.from_environment(given)
    assert TOKEN not in str(raised.value)


@pytest.mark.parametrize("content", [b"", b" \n", b"\xff\xfe", b"two\nlines"])
def test_read_token_unusable_file_raises(tmp_path: Path, content: bytes) -> None:
    place = tmp_path / "token"
    place.write_bytes(content)
    with pytest.raises(InvalidInput, match=str(place)):
        read_token(place)


@pytest.mark.parametrize(("mode", "warnings"), [(0o600, 0), (0o640, 0), (0o644, 1)])
def test_read_token_exposed_file_warns_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warnings: int
) -> None:
    place = tmp_path / "token"
    place.write_text(TOKEN)
    place.chmod(mode)
    with caplog.at_level(logging.WARNING):
        assert [read_token(place) for _ in range(2)] == [TOKEN] * 2  # a second time, as for another box or attempt
    assert caplog.text.count("is readable by other users") == warnings
    assert TOKEN not in caplog.text


# --- targets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["unix:/run/x", "localhost:1", "127.8.0.1:1", "[::1]:1", "tls:localhost:1"])
def test_is_here_of_sockets_and_loopback_is_true(target: str) -> None:
    assert is_here(target)


@pytest.mark.parametrize(
    "target", ["box:1", "10.0.0.1:1", "[fe80::1]:1", "localhost.example.com:1", "127.0.0.1.example.com:1"]
)
def test_is_here_of_other_machines_is_false(target: str) -> None:
    assert not is_here(target)


def test_is_secured_follows_prefix_and_credentials() -> None:
    nothing, ca, token = Credentials(), Credentials(ca="/ca"), Credentials(token=TOKEN)
    pair = Credentials(certificate="/c", key="/k")
    plain = {"unix:/s": (nothing, ca, pair, token), "localhost:1": (nothing, token), "box:1": (nothing,)}
    secured = {"localhost:1": (ca, pair), "box:1": (ca, pair), "tls:box:1": (nothing, ca, pair, token)}
    for target, several in plain.items():
        assert not any(is_secured(target, each) for each in several), target
    for target, several in secured.items():
        assert all(is_secured(target, each) for each in several), target
    with pytest.raises(InvalidInput, match="is not sent to") as raised:
        is_secured("box:1", token)
    assert TOKEN not in str(raised.value)


# --- connections ----------------------------------------------------------------------------------------------------


def test_client_every_kind_of_call_sends_the_token(tmp_path: Path) -> None:
    with Running(f"unix:{tmp_path}/s", guarded=True) as running:
        running.daemon.token = TOKEN
        with Client(running.target, credentials=Credentials(token=TOKEN), timeout=10) as client:
            assert client.status().version
            assert len(list(client.events())) == 3
            assert [result.camera for result in client.stream("shapes", [PICTURE], lossless=True)] == ["camera"]
            client.add_model("m", models.save(models.identity(), tmp_path / "m.onnx"))
    called = {method.rpartition("/")[2] for method, _ in running.daemon.shown}
    assert called >= {"GetStatus", "WatchEvents", "Detect", "AddModel"}
    assert {shown for _, shown in running.daemon.shown} == {f"Bearer {TOKEN}"}


async def test_async_client_sends_the_token(tmp_path: Path) -> None:
    with Running(f"unix:{tmp_path}/s", guarded=True) as running:
        running.daemon.token = TOKEN
        async with AsyncClient(running.target, credentials=Credentials(token=TOKEN), timeout=10) as client:
            assert (await client.status()).version
            assert len([event async for event in client.events()]) == 3


def test_client_missing_token_raises_unauthenticated(tmp_path: Path) -> None:
    with Running(f"unix:{tmp_path}/s", guarded=True) as running:
        running.daemon.token = TOKEN
        with Client(running.target, timeout=10) as client, pytest.raises(EdgedError, match="token is not known"):
            client.status()


@pytest.mark.parametrize("prefix", ["", "tls:"])
@pytest.mark.parametrize("by", ["argument", "environment"])
def test_client_trusted_ca_connects(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, prefix: str, by: str
) -> None:
    monkeypatch.setenv("EDGED_CA", str(authority.ca) if by == "environment" else "/nowhere/ca.pem")
    credentials = Credentials(ca=str(authority.ca), token=TOKEN) if by == "argument" else None
    with (
        Running(None, server_side(authority), guarded=True) as running,
        Client(prefix + running.target, credentials=credentials, timeout=10) as client,
    ):
        assert client.status().version
    assert running.daemon.shown[-1][1] == (f"Bearer {TOKEN}" if by == "argument" else "")


@pytest.mark.parametrize(
    ("server", "trusts", "words"),
    [
        ({}, "", "EDGED_CA"),
        ({}, "other", "EDGED_CA"),
        ({"names": ["DNS:box7.example"]}, "authority", "EDGED_SERVER_NAME"),
        ({"days": -1}, "authority", "has expired"),
        ({"mutual": True}, "authority", "EDGED_CERTIFICATE"),
        (None, "authority", "does not speak TLS"),
    ],
    ids=["plaintext", "other CA", "other host", "expired", "no certificate", "server without TLS"],
)
def test_client_refused_handshake_raises_with_the_remedy(
    authority: Authority, tmp_path: Path, server: dict[str, Any] | None, trusts: str, words: str
) -> None:
    certificates = {"": "", "authority": str(authority.ca), "other": str(Authority(tmp_path, "other").ca)}
    secured = None if server is None else server_side(authority, **server)
    with (
        Running(None, secured, guarded=True) as running,
        Client(running.target, credentials=Credentials(ca=certificates[trusts]), timeout=5) as client,
        pytest.raises(NotReady, match=words),
    ):
        client.status()
    assert running.daemon.shown == []


def test_client_server_name_and_own_certificate_connect(authority: Authority) -> None:
    certificate, key = authority.sign("operator")
    credentials = Credentials.of(ca=authority.ca, certificate=certificate, key=key, server_name="box7.example")
    with (
        Running(None, server_side(authority, "box7", ["DNS:box7.example"], mutual=True)) as running,
        Client(running.target, credentials=credentials, timeout=10) as client,
    ):
        assert client.status().version


def test_client_unusable_file_is_named(tmp_path: Path, authority: Authority) -> None:
    certificate, _ = authority.sign("operator")
    _, another = authority.sign("another")
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no PEM")
    for credentials, words in (
        (Credentials(ca="/nowhere/ca.pem"), "CA /nowhere/ca.pem cannot be read: No such file"),
        (Credentials(ca=str(garbage)), f"CA {garbage} cannot be used"),
        (Credentials.of(certificate=certificate, key=another), "key values mismatch"),
        (Credentials.of(certificate=certificate, key=garbage), "cannot be used"),
        (Credentials.of(certificate=tmp_path / "none.pem", key=another), "cannot be read"),
    ):
        with pytest.raises(InvalidInput, match=words):
            Client("tls:localhost:1", credentials=credentials)
