"""`edged tls new`: its certificates let a client in, and keep other clients out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edged.cli import tls
from edged.errors import AlreadyExists, EdgedError, InvalidInput, NotFound
from tests.integration.daemon import Daemon
from tests.programs import edged


def test_certificates_of_box_and_client_connect_them(tmp_path: Path) -> None:
    for words in (("localhost", "127.0.0.1", "::1"), ("anna", "--client"), ("otto", "--client")):
        done = edged("tls", "new", *words, folder=tmp_path)
        assert done.returncode == 0, done.stderr
    folder = tmp_path / "edged-tls"
    assert {key.stat().st_mode & 0o777 for key in folder.glob("*.key")} == {0o600}
    assert not list(folder.glob(".new-*"))
    other = tmp_path / "other"
    assert edged("tls", "new", "anna", "--client", "--folder", str(other)).returncode == 0
    config = tmp_path / "edged.toml"
    keys = {"certificate": "localhost.pem", "key": "localhost.key", "client_ca": "ca.pem"}
    lines = ["[tls]", *(f'{key} = "{folder}/{file}"' for key, file in keys.items())]
    config.write_text("\n".join([*lines, "[access.certificates]", '"anna" = ["read"]', ""]))
    with Daemon("--config", str(config), builds=False) as daemon:
        target = daemon.tcp

        def status(ca: Path, client: Path | None) -> int:
            shown = {"EDGED_CA": str(ca)}
            if client is not None:
                shown |= {"EDGED_CERTIFICATE": str(client), "EDGED_KEY": str(client.with_suffix(".key"))}
            return edged("status", "--target", target, environment=os.environ | shown).returncode

        assert status(folder / "ca.pem", folder / "anna.pem") == 0
        for ca, client in (
            (folder / "ca.pem", None),  # no client certificate
            (folder / "ca.pem", other / "anna.pem"),  # a client certificate of another CA
            (other / "ca.pem", folder / "anna.pem"),  # a CA that does not cover the box
        ):
            assert status(ca, client) == 1


def test_new_certificates_replace_others_only_with_force(tmp_path: Path) -> None:
    first = tls.make(tmp_path / "t", "box", ("10.0.0.1",), client=False, days=10, force=False)
    before = first.certificate.read_bytes(), first.ca.read_bytes()
    with pytest.raises(AlreadyExists, match="--force"):
        tls.make(tmp_path / "t", "box", (), client=False, days=10, force=False)
    again = tls.make(tmp_path / "t", "box", (), client=False, days=10, force=True)
    assert (first.has_new_ca, again.has_new_ca) == (True, False)
    assert again.certificate.read_bytes() != before[0]
    assert again.ca.read_bytes() == before[1]


def test_new_certificate_that_is_interrupted_leaves_none_with_another_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tls.make(tmp_path, "box", (), client=False, days=10, force=False)
    key, replace = made.certificate.with_suffix(".key"), Path.replace

    def interrupted(path: Path, target: Path) -> Path:
        if target == made.certificate:
            raise KeyboardInterrupt
        return replace(path, target)

    before = key.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tls.make(tmp_path, "box", (), client=False, days=10, force=True)
    assert key.read_bytes() != before
    assert not made.certificate.exists()
    tls.make(tmp_path, "box", (), client=False, days=10, force=False)
    assert made.certificate.exists()
    assert (key.stat().st_mode & 0o777, made.certificate.stat().st_mode & 0o777) == (0o600, 0o644)


@pytest.mark.parametrize("name", ["a/b", "../x", "", "-x", "a b", "x\nkeyUsage = keyCertSign", "ca", "ä"])
def test_tls_new_invalid_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput):
        tls.make(tmp_path / "t", name, (), client=False, days=10, force=False)
    assert not (tmp_path / "t").exists()


def test_failures_are_one_line_and_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="cannot be written"):
        tls.make(tmp_path / "file" / "t", "box", (), client=False, days=10, force=False)
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "ca.pem").write_text("no certificate")
    with pytest.raises(NotFound, match=r"ca\.key is missing"):
        tls.make(tmp_path / "t", "box", (), client=False, days=10, force=False)
    (tmp_path / "t" / "ca.key").write_text("no key")
    with pytest.raises(EdgedError, match="openssl x509 failed"):
        tls.make(tmp_path / "t", "box", (), client=False, days=10, force=False)
    assert {each.name for each in (tmp_path / "t").iterdir()} == {"ca.pem", "ca.key"}
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotFound, match="openssl"):
        tls.make(tmp_path / "new", "box", (), client=False, days=10, force=False)
