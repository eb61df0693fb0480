"""Certificates: validity, unusable files, warnings before expiry, and changes of the files."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from edged.api.auth import tls
from edged.api.auth.tls import Certificate, Validity, validity, worry
from edged.config import Tls
from edged.errors import ConfigError
from tests.certificates import Authority, openssl

_DAY = 86400.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> Path:
    return authority.sign("box", days=60)[0]


def _tls(certificate: Path, key: Path | None = None, ca: Path | None = None) -> Tls:
    return Tls(
        certificate=str(certificate), key=str(key or certificate.with_suffix(".key")), client_ca=str(ca) if ca else ""
    )


def test_validity_reads_both_forms_of_dates(authority: Authority, certificate: Path) -> None:
    found = validity(certificate.read_text())
    assert found.ends - found.begins == pytest.approx(60 * _DAY, abs=1)
    assert abs(found.begins - time.time()) < 3600
    far = authority.folder / "far.pem"  # from 2050 on, X.509 writes dates in another form
    key = str(certificate.with_suffix(".key"))
    openssl("req", "-x509", "-key", key, "-out", str(far), "-days", "20000", "-subj", "/CN=far")
    assert validity(far.read_text()).ends == pytest.approx(time.time() + 20000 * _DAY, abs=3600)


def test_check_certificate_invalid_file_is_refused() -> None:
    begin, end = "-----BEGIN CERTIFICATE-----\n", "\n-----END CERTIFICATE-----\n"
    for text in (
        "",
        begin,
        begin + end,
        f"{begin}AAAA{end}",
        f"{begin}MIIB{end}",
        f"{begin}MAA={end}",
        f"{begin}%%{end}",
    ):
        with pytest.raises(ValueError, match=r"certificate|padding|Short|base64|Excess|Invalid|dates"):
            validity(text)


def test_read_unusable_credentials_are_refused(authority: Authority, certificate: Path, tmp_path: Path) -> None:
    other = authority.sign("other")[0]
    locked = tmp_path / "locked.key"
    key = str(certificate.with_suffix(".key"))
    openssl("ec", "-in", key, "-out", str(locked), "-aes256", "-passout", "pass:x")
    none = tmp_path / "none.pem"
    none.write_text("no certificate\n")
    expired = authority.sign("old", days=-1)[0]
    cases = [
        (_tls(tmp_path / "missing.pem"), "tls.certificate .*missing.pem cannot be read: No such file"),
        (_tls(certificate, tmp_path / "missing.key"), "tls.key .*missing.key cannot be read"),
        (_tls(certificate, other.with_suffix(".key")), "does not match tls.certificate"),
        (_tls(certificate, locked), "has a passphrase"),
        (_tls(none, certificate.with_suffix(".key")), "cannot be used .*give PEM files"),
        (_tls(certificate, certificate), "cannot be used .*give PEM files"),
        (_tls(expired), r"old.pem expired on \d{4}-"),
        (_tls(certificate, ca=none), "tls.client_ca .*none.pem cannot be used"),
    ]
    for settings, words in cases:
        with pytest.raises(ConfigError, match=words) as raised:
            tls.read(settings, time.time())
        assert "\n" not in str(raised.value)
    assert tls.read(_tls(certificate, ca=authority.ca), time.time()).client_ca == authority.ca.read_bytes()


@pytest.mark.parametrize(
    ("now", "words"),
    [(0.0, "check the clock"), (10 * _DAY, ""), (20 * _DAY, "expires in 10 days"), (30 * _DAY, "expired")],
)
def test_worry_certificate_outside_or_near_the_end_of_its_validity_warns(now: float, words: str) -> None:
    found = worry("box.pem", Validity(_DAY, 30 * _DAY), now)
    assert words in found
    assert bool(found) is bool(words)


def test_reload_unusable_change_keeps_the_old_credentials(
    authority: Authority, certificate: Path, tmp_path: Path
) -> None:
    place, key = tmp_path / "box.pem", tmp_path / "box.key"
    shutil.copy(certificate, place)
    shutil.copy(certificate.with_suffix(".key"), key)
    held = Certificate(_tls(place), look_seconds=0.0)
    assert (held.problem, held.look()) == ("", False)
    second = authority.sign("second")[0]
    shutil.copy(second, place)
    assert not held.look()
    assert "does not match" in held.problem
    assert "stays in use" in held.problem
    shutil.copy(second.with_suffix(".key"), key)
    assert held.look()
    assert held.problem == ""
    place.unlink()
    assert not held.look()
    assert "cannot be read" in held.problem
    with pytest.raises(ConfigError):
        held.reconfigure(_tls(tmp_path / "missing.pem"))


def test_look_file_replaced_while_it_was_read_is_reloaded(
    authority: Authority, certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, second = tmp_path / "box.pem", authority.sign("meanwhile")[0]
    shutil.copy(certificate, place)
    shutil.copy(certificate.with_suffix(".key"), place.with_suffix(".key"))
    held = Certificate(_tls(place), look_seconds=0.0)
    read = tls.read

    def read_and_replace(files: Tls, now: float) -> tls.Material:
        found = read(files, now)
        shutil.copy(second, place)
        shutil.copy(second.with_suffix(".key"), place.with_suffix(".key"))
        return found

    with monkeypatch.context() as patched:
        patched.setattr(tls, "read", read_and_replace)
        held.reconfigure(_tls(place))
    assert held.look()
