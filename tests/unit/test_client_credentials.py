"""Credentials of clients: TLS, certificates, tokens, and what is refused before anything is sent."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

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


@pytest.fixture(scope="module")
def client_pair(authority: Authority) -> tuple[Path, Path]:
    return authority.sign("operator")


def server_side(
    authority: Authority, name: str = "server", *names: str, mutual: bool = False
) -> grpc.ServerCredentials:
    certificate, key = authority.sign(name, *(names or ("DNS:localhost", "IP:127.0.0.1")))
    pair = ((key.read_bytes(), certificate.read_bytes()),)
    return grpc.ssl_server_credentials(pair, authority.ca.read_bytes() if mutual else None, mutual)


@pytest.fixture
def tls(authority: Authority) -> Iterator[Running]:
    with Running(None, server_side(authority), guarded=True) as running:
        yield running


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
        ({"EDGED_CERTIFICATE": "/c"}, "go together"),
        ({"EDGED_KEY": "/k"}, "go together"),
        ({"EDGED_TOKEN": "a", "EDGED_TOKEN_FILE": "/t"}, "both given"),
        ({"EDGED_TOKEN": f"{TOKEN} and more"}, "is not a token"),
        ({"EDGED_TOKEN": f"{TOKEN}\nX-Role: operate"}, "is not a token"),
        ({"EDGED_TOKEN": f"{TOKEN}é"}, "is not a token"),
        ({"EDGED_TOKEN": TOKEN * 1000}, "longer than"),
        ({"EDGED_TOKEN_FILE": "/nowhere/token"}, "cannot be read: No such file"),
    ],
)
def test_credentials_invalid_values_raise_without_the_token(given: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as raised:
        Credentials.from_environment(given)
    assert TOKEN not in str(raised.value)


@pytest.mark.parametrize("content", [b"", b" \n", b"\xff\xfe", b"two\nlines"])
def test_credentials_unusable_token_file_raises(tmp_path: Path, content: bytes) -> None:
    place = tmp_path / "token"
    place.write_bytes(content)
    with pytest.raises(InvalidInput, match=str(place)):
        read_token(place)


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, False), (0o644, True)])
def test_read_token_exposed_file_warns_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warned: bool
) -> None:
    place = tmp_path / "token"
    place.write_text(TOKEN)
    place.chmod(mode)
    with caplog.at_level(logging.WARNING):
        assert read_token(place) == TOKEN
    assert ("is readable by other users" in caplog.text) == warned
    assert read_token(place) == TOKEN  # as for the next box, or when one is tried again
    assert caplog.text.count("is readable by other users") == warned
    assert TOKEN not in caplog.text


# --- targets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "local"),
    [
        ("unix:/run/x", True),
        ("localhost:1", True),
        ("127.8.0.1:1", True),
        ("[::1]:1", True),
        ("tls:localhost:1", True),
        ("box:1", False),
        ("10.0.0.1:1", False),
        ("[fe80::1]:1", False),
        ("localhost.example.com:1", False),
        ("127.0.0.1.example.com:1", False),
    ],
)
def test_is_here_sockets_and_loopback_only(target: str, local: bool) -> None:
    assert is_here(target) == local


def test_is_secured_tls_by_prefix_or_files() -> None:
    nothing, ca, token = Credentials(), Credentials(ca="/ca"), Credentials(token=TOKEN)
    pair = Credentials(certificate="/c", key="/k")
    plain = {"unix:/s": (nothing, ca, pair, token), "localhost:1": (nothing, token), "box:1": (nothing,)}
    secured = {"localhost:1": (ca, pair), "box:1": (ca, pair), "tls:box:1": (nothing, ca, pair, token)}
    for target, several in plain.items():
        assert not any(is_secured(target, each) for each in several), target
    for target, several in secured.items():
        assert all(is_secured(target, each) for each in several), target
    with pytest.raises(InvalidInput, match="in the clear") as raised:
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
def test_client_trusted_ca_connects(tls: Running, authority: Authority, prefix: str) -> None:
    trusting = Credentials(ca=str(authority.ca), token=TOKEN)
    with Client(prefix + tls.target, credentials=trusting, timeout=10) as client:
        assert client.status().version
    assert tls.daemon.shown[-1][1] == f"Bearer {TOKEN}"


def test_client_without_credentials_uses_the_environment(
    tls: Running, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGED_CA", str(authority.ca))
    with Client(tls.target, timeout=10) as client:
        assert client.status().version


def refusal(target: str, credentials: Credentials | None = None) -> str:
    """The message of the NotReady that a call raises."""
    with Client(target, credentials=credentials, timeout=5) as client, pytest.raises(NotReady) as raised:
        client.status()
    return str(raised.value)


def test_client_untrusted_ca_raises_not_ready(tls: Running, tmp_path: Path) -> None:
    assert "EDGED_CA" in refusal(tls.target, Credentials(ca=str(Authority(tmp_path, "other").ca)))
    assert tls.daemon.shown == []


def test_client_certificate_of_another_host_needs_server_name(authority: Authority) -> None:
    ca = str(authority.ca)
    with Running(None, server_side(authority, "box7", "DNS:box7.example")) as running:
        assert "EDGED_SERVER_NAME" in refusal(running.target, Credentials(ca=ca))
        with Client(running.target, credentials=Credentials(ca=ca, server_name="box7.example"), timeout=10) as client:
            assert client.status().version


def test_client_expired_certificate_raises_not_ready(authority: Authority) -> None:
    certificate, key = authority.sign("late", "IP:127.0.0.1", days=-1)
    secured = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
    with Running(None, secured) as running:
        assert "has expired" in refusal(running.target, Credentials(ca=str(authority.ca)))


def test_client_mutual_tls_sends_certificate(authority: Authority, client_pair: tuple[Path, Path]) -> None:
    ca, (certificate, key) = str(authority.ca), client_pair
    with Running(None, server_side(authority, "mutual", "IP:127.0.0.1", mutual=True)) as running:
        with Client(running.target, credentials=Credentials.of(ca=ca, certificate=certificate, key=key)) as client:
            assert client.status().version
        assert "EDGED_CERTIFICATE" in refusal(running.target, Credentials(ca=ca))


def test_client_plaintext_to_tls_and_back_raises_not_ready(tls: Running, authority: Authority) -> None:
    assert "EDGED_CA" in refusal(tls.target)
    with Running(None) as plain:
        assert "does not speak TLS" in refusal(plain.target, Credentials(ca=str(authority.ca)))


def test_require_usable_bad_file_is_named(tmp_path: Path, authority: Authority, client_pair: tuple[Path, Path]) -> None:
    certificate, _ = client_pair
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
