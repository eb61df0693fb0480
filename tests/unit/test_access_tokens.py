"""Tokens: creation, storage, lookup, revocation, untrusted token files, and calls whose caller loses token or role."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from edged.api.auth import policy, tokens
from edged.api.auth.guard import Guard, tokens_path
from edged.api.auth.policy import parse_roles
from edged.api.auth.tokens import TokenBook, TokenFile, make
from edged.config import Access, Tls
from edged.errors import AlreadyExists, ConfigError, Forbidden, InvalidInput, NotFound


def test_find_token_needs_its_exact_secret(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "access" / "tokens.json")
    assert file.read() == ()
    (one, secret), (two, other) = make("one", frozenset({"infer"})), make("two", frozenset({"read", "operate"}), 1.0)
    file.add(one)
    file.add(two)
    kept = file.read()
    assert tokens.find(kept, secret) == one
    assert tokens.find(kept, other) == two
    assert two.expires - two.created == pytest.approx(86400)
    for wrong in ("", secret[:-1], f"{secret}x", one.sha256, "\udcff"):
        assert tokens.find(kept, wrong) is None
    assert len(secret) >= 43  # 256 bits
    text = file.path.read_text()
    assert secret not in text
    assert other not in text
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert file.path.parent.stat().st_mode & 0o777 == 0o700


def test_add_taken_or_invalid_name_is_refused(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    file.add(make("one", frozenset({"infer"}))[0])
    with pytest.raises(AlreadyExists):
        file.add(make("one", frozenset({"read"}))[0])
    assert file.revoke("one").roles == ("infer",)
    with pytest.raises(NotFound):
        file.revoke("one")
    for name in ("", "a b", "-x", "x" * 65, "a\nb"):
        with pytest.raises(InvalidInput):
            make(name, frozenset({"read"}))
    with pytest.raises(InvalidInput, match="needs a role"):
        make("none", frozenset())


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"tokens": [{"name": "x", "sha256": "abc", "roles": []}]}',
        '{"tokens": [{"name": "x", "sha256": "' + "0" * 64 + '", "roles": ["root"]}]}',
        '{"tokens": [], "more": 1}',
    ],
)
def test_read_tokens_invalid_file_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="as a file of tokens"):
        TokenFile(path).read()


def test_read_file_that_others_may_use_is_refused(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    file.add(make("one", frozenset({"infer"}))[0])
    for mode in (0o640, 0o602, 0o644):
        file.path.chmod(mode)
        with pytest.raises(ConfigError, match=r"chmod 600"):
            file.read()
    file.path.unlink()
    file.path.mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        file.read()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_read_tokens_file_of_another_user_grants_nothing(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    file.add(make("one", frozenset({"infer"}))[0])
    os.chown(file.path, 1234, 1234)
    with pytest.raises(ConfigError, match="belongs to another user"):
        TokenBook(file)
    assert file.read()  # root may still list its tokens


def test_look_applies_changes_but_an_invalid_file_keeps_the_known_tokens(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    book = TokenBook(file)
    token, secret = make("one", frozenset({"infer"}))
    file.add(token)
    assert book.find(secret) is None
    assert book.look()
    assert book.find(secret) == token
    file.path.write_text("{")
    assert not book.look()
    assert "as a file of tokens" in book.problem
    assert book.find(secret) == token
    file.path.unlink()
    assert book.look()
    assert (book.find(secret), book.problem) == (None, "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_look_file_given_to_another_user_is_a_problem(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    file.add(make("a", frozenset({"infer"}))[0])
    book = TokenBook(file)
    os.chown(file.path, 12345, -1)
    assert not book.look()
    assert "another user" in book.problem
    assert [token.name for token in book.tokens] == ["a"]


def test_token_file_partial_files_of_killed_writers_are_removed(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "access" / "tokens.json")
    file.add(make("a", frozenset({"infer"}))[0])
    stray = file.path.with_name(".tokens.json.x.part")
    for act in (lambda: TokenBook(file), lambda: file.add(make("b", frozenset({"infer"}))[0])):
        stray.write_bytes(b"half")
        os.utime(stray, (1, 1))
        act()
        assert not stray.exists()


def test_lost_revoked_token_ends_its_calls_even_if_a_new_token_has_its_name(tmp_path: Path) -> None:
    file = TokenFile(tokens_path(Access(), tmp_path))
    token, secret = make("yard", parse_roles(["infer"]))
    file.add(token)
    guard = Guard(Access(), Tls(), tmp_path)
    who = guard.caller(guard.listener("localhost:8001"), f"Bearer {secret}")
    assert guard.lost(who) is None
    file.revoke("yard")
    file.add(make("yard", parse_roles(["infer"]))[0])
    guard.look()
    assert "token yard is no longer valid" in str(guard.lost(who))


def test_lost_certificate_that_lost_a_role_ends_its_calls(tmp_path: Path) -> None:
    access = Access(certificates={"anna": ("infer", "read"), "operators": ("operate",)})
    guard = Guard(access, Tls(), tmp_path)
    anonymous = policy.anonymous(guard.listener("localhost:8001"))
    who = policy.with_certificate(anonymous, ["anna", "anna.lan"], access.certificates, 2.0, 1.0)
    asyncio.run(guard.reconfigure(Access(certificates={"anna": ("infer", "read", "operate")}), []))
    assert guard.lost(who) is None
    asyncio.run(guard.reconfigure(Access(certificates={"anna": ("read",)}), []))
    assert "certificate anna has lost a role" in str(guard.lost(who))
    assert guard.lost(anonymous) is None


@pytest.mark.parametrize(("method", "is_answered"), [(policy.RELOAD, True), ("/edged.v1.Operations/Rebuild", False)])
async def test_watched_reload_that_takes_the_role_of_its_caller_is_answered(
    tmp_path: Path, method: str, is_answered: bool
) -> None:
    access = Access(certificates={"anna": ("operate",)})
    guard = Guard(access, Tls(), tmp_path)
    anonymous = policy.anonymous(guard.listener("localhost:8001"))
    who = policy.with_certificate(anonymous, ["anna"], access.certificates, 2.0, 1.0)

    async def call() -> str:
        with guard.watched(who, method, is_stream=False):
            await guard.reconfigure(Access(), [])
            await asyncio.sleep(0.01)
            return "answered"

    found = (await asyncio.gather(asyncio.create_task(call()), return_exceptions=True))[0]
    assert found == "answered" if is_answered else isinstance(found, Forbidden)


def test_lost_role_of_the_certificate_ends_calls_that_also_showed_a_token(tmp_path: Path) -> None:
    access = Access(certificates={"anna": ("infer",)})
    file, (token, _) = TokenFile(tokens_path(access, tmp_path)), make("yard", parse_roles(["read"]))
    file.add(token)
    guard = Guard(access, Tls(), tmp_path)
    anna = policy.with_certificate(
        policy.anonymous(guard.listener("localhost:8001")), ["anna"], access.certificates, 2.0, 1.0
    )
    who = policy.with_token(anna, token, 1.0)
    assert guard.lost(who) is None
    asyncio.run(guard.reconfigure(Access(), []))
    assert isinstance(guard.lost(who), Forbidden)


def test_lost_role_of_an_edited_token_ends_its_calls(tmp_path: Path) -> None:
    file = TokenFile(tokens_path(Access(), tmp_path))
    token, secret = make("yard", parse_roles(["infer", "read"]))
    file.add(token)
    guard = Guard(Access(), Tls(), tmp_path)
    who = guard.caller(guard.listener("localhost:8001"), f"Bearer {secret}")
    file.path.write_text(file.path.read_text().replace('"infer"', '"operate"'))
    guard.look()
    assert "token yard has lost a role" in str(guard.lost(who))


DETECT, WATCH = "/edged.v1.Cameras/Detect", "/grpc.health.v1.Health/Watch"


def test_lost_role_of_an_address_ends_the_streams_that_need_it(tmp_path: Path) -> None:
    guard = Guard(Access(), Tls(), tmp_path)
    who = guard.caller(guard.listener("localhost:8001"), None)
    asyncio.run(guard.reconfigure(Access(loopback=("infer",)), []))
    assert guard.lost(who, DETECT) is None
    asyncio.run(guard.reconfigure(Access(loopback=("read",)), []))
    assert isinstance(guard.lost(who, DETECT), Forbidden)
    assert guard.lost(who, WATCH) is None  # health needs no role
    assert guard.lost(who) is None  # a short call
    asyncio.run(guard.reconfigure(Access(grants={"localhost:8001": ("operate",)}), ["localhost:8001"]))
    assert guard.lost(who, DETECT) is None


def test_lost_role_of_an_address_is_no_loss_for_a_token_or_certificate_that_grants_it(tmp_path: Path) -> None:
    access = Access(certificates={"anna": ("infer",)})
    file, (token, secret) = TokenFile(tokens_path(access, tmp_path)), make("yard", parse_roles(["read"]))
    file.add(token)
    guard = Guard(access, Tls(), tmp_path)
    listener = guard.listener("localhost:8001")
    both = policy.with_token(
        policy.with_certificate(policy.anonymous(listener), ["anna"], access.certificates, 2.0, 1.0), token, 1.0
    )
    without = guard.caller(listener, f"Bearer {secret}")
    asyncio.run(guard.reconfigure(Access(loopback=(), certificates=access.certificates), []))
    assert guard.lost(both, DETECT) is None
    assert guard.lost(without, "/edged.v1.Operations/WatchEvents") is None
    assert isinstance(guard.lost(without, DETECT), Forbidden)


def test_lost_role_of_an_address_without_tls_follows_its_own_grant(tmp_path: Path) -> None:
    address, tls = "0.0.0.0:8003", Tls()
    guard = Guard(Access(unencrypted=(address,)), tls, tmp_path)
    who = guard.caller(guard.listener(address, has_tls=False), None, "ipv4:10.0.0.1:5")
    guard.tls = Tls(certificate="box.pem", key="box.key")  # other addresses have TLS
    asyncio.run(guard.reconfigure(Access(unencrypted=(address,), audit_mb=9), [], [address]))
    assert guard.lost(who, DETECT) is None
    asyncio.run(guard.reconfigure(Access(unencrypted=(address,), grants={address: ("read",)}), [], [address]))
    assert isinstance(guard.lost(who, DETECT), Forbidden)
