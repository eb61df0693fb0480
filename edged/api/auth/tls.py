"""Checks the daemon's certificate at start and reloads the certificate when its files change; reads dates and names of
certificates.

At start, wrong files are an error. Later, the previous certificate stays in use, and `problem` says what is wrong with
the new files. A box without a clock may start in 1970, so a certificate that is not valid yet is reported and used.

Python's ssl module reads the dates only of a connected peer's certificate. So this module itself parses the dates of
the daemon's certificate (RFC 5280, X.690), without another library.
"""

from __future__ import annotations

import os
import ssl
import threading
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from edged.config.schema import Tls
from edged.errors import ConfigError
from edged.files import read_regular
from edged.formatting import many

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18


class Validity(msgspec.Struct, frozen=True):
    """The period in which a certificate is valid, in seconds since the epoch."""

    begins: float
    ends: float


# A client's certificate as the ssl module reports it: https://docs.python.org/3/library/ssl.html (getpeercert)
PeerCertificate: TypeAlias = "Mapping[str, Any]"


def names_of(certificate: PeerCertificate) -> list[str]:
    """Return the names of a client's certificate: first the alternative names, then the common name."""
    found = [str(value) for _, value in certificate.get("subjectAltName", ())]
    subject = [pair for group in certificate.get("subject", ()) for pair in group]
    return found + [str(value) for key, value in subject if key == "commonName"]


def ends_of(certificate: PeerCertificate) -> float:
    """Return when a client's certificate expires, in seconds since the epoch; 0 without a valid date."""
    try:
        return float(ssl.cert_time_to_seconds(str(certificate.get("notAfter", ""))))
    except ValueError:
        return 0.0


def validity(pem: str) -> Validity:
    """Return the validity of the first certificate in a PEM text. Raises ValueError for an invalid certificate."""
    begin, end = pem.find(_BEGIN), pem.find(_END)
    if begin < 0 or end < begin:
        raise ValueError("the file contains no certificate")
    der = ssl.PEM_cert_to_DER_cert(pem[begin : end + len(_END)])
    try:
        signed = _inside(_inside(der))
        if signed[0] == _VERSION:
            signed = _item(signed)[2]
        for _ in range(3):  # serial number, algorithm, issuer
            signed = _item(signed)[2]
        kind, begins, rest = _item(_inside(signed))
        kind_of_end, ends, _ = _item(rest)
        return Validity(_time(kind, begins), _time(kind_of_end, ends))
    except IndexError as error:
        raise ValueError("the certificate is truncated") from error


def _inside(data: bytes) -> bytes:
    """Return the content of the first DER item, a sequence."""
    kind, content, _ = _item(data)
    if kind != _SEQUENCE:
        raise ValueError("the content is not an X.509 certificate")
    return content


def _item(data: bytes) -> tuple[int, bytes, bytes]:
    """Return the first DER item: tag, content, and the bytes after the item."""
    tag, length, start = data[0], data[1], 2
    if length & 0x80:
        count = length & 0x7F
        if not 1 <= count <= 4:
            raise ValueError("the content is not an X.509 certificate")
        length, start = int.from_bytes(data[2 : 2 + count], "big"), 2 + count
    if start + length > len(data):
        raise ValueError("the certificate is truncated")
    return tag, data[start : start + length], data[start + length :]


def _time(kind: int, data: bytes) -> float:
    """Parse a date (RFC 5280, 4.1.2.5): the year has two digits before 2050, four from then on."""
    text = data.decode("ascii", "replace")
    if kind == _UTC_TIME and len(text) == 13:
        text = ("20" if int(text[:2]) < 50 else "19") + text
    elif kind != _GENERALIZED_TIME or len(text) != 15:
        raise ValueError("the certificate's dates are not in the format of X.509")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=timezone.utc).timestamp()


_WARN_DAYS = 14
_DAY = 86400.0


class Material(msgspec.Struct, frozen=True):
    """The contents of the PEM files for a handshake; `client_ca` is empty if clients show no certificate."""

    certificate: bytes
    key: bytes
    client_ca: bytes
    validity: Validity


def read(tls: Tls, now: float) -> Material:
    """Read and check the configured files. `now` is in seconds since the epoch. Raises ConfigError if a file is
    unusable or the certificate has expired."""
    certificate, key = _read("tls.certificate", tls.certificate), _read("tls.key", tls.key)
    client_ca = _read("tls.client_ca", tls.client_ca) if tls.client_ca else b""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Without a passphrase function, OpenSSL would ask for the passphrase at the terminal.
        context.load_cert_chain(tls.certificate, tls.key, lambda: "")
    except ssl.SSLError as error:
        raise ConfigError(_unusable(tls, key, error)) from error
    except OSError as error:
        raise ConfigError(f"tls.certificate {tls.certificate} cannot be read: {error.strerror or error}") from error
    if client_ca:
        try:
            context.load_verify_locations(cadata=client_ca.decode("ascii", "replace"))
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(
                f"tls.client_ca {tls.client_ca} cannot be used ({_why(error)}); give a PEM file"
            ) from error
    try:
        lasts = validity(certificate.decode("ascii", "replace"))
    except ValueError as error:
        raise ConfigError(f"tls.certificate {tls.certificate} cannot be used: {error}") from error
    if now >= lasts.ends:
        raise ConfigError(f"tls.certificate {tls.certificate} expired on {_date(lasts.ends)}; renew it")
    return Material(certificate, key, client_ca, lasts)


def worry(path: str, lasts: Validity, now: float) -> str:
    """Return a warning if a certificate has expired, expires soon or is not valid yet; otherwise empty."""
    if now >= lasts.ends:
        return f"the certificate {path} expired on {_date(lasts.ends)}; renew it"
    if now < lasts.begins:
        return f"the certificate {path} is not valid before {_date(lasts.begins)}; check the clock"
    days = (lasts.ends - now) / _DAY
    return (
        f"the certificate {path} expires in {many(round(days), 'day')}, on {_date(lasts.ends)}; renew it"
        if days < _WARN_DAYS
        else ""
    )


class Certificate:
    """The certificate in use. The event loop and a thread that reads files can use it at the same time."""

    def __init__(self, tls: Tls, look_seconds: float = 1.0) -> None:
        """Read the files of `tls`. `look` checks them at most every `look_seconds`. Raises ConfigError."""
        self._look_seconds = look_seconds
        self._tls = tls
        self._sign = _signed(tls)
        self._material = read(tls, time.time())
        self._refused = ""
        self._looked = time.monotonic()
        self._lock = threading.Lock()
        self._contexts: dict[bool, ssl.SSLContext] = {}

    def context(self, asks_certificates: bool) -> ssl.SSLContext:
        """Return the context for the next handshake. `asks_certificates`: clients must show a certificate."""
        with self._lock:
            found = self._contexts.get(asks_certificates)
            if found is None:
                found = self._contexts[asks_certificates] = _context(self._material, asks_certificates)
            return found

    def _use(self, material: Material) -> None:
        """Use new files; the caller holds the lock."""
        self._material = material
        self._contexts = {}

    def reconfigure(self, tls: Tls) -> None:
        """Use other files from the next handshake on. On ConfigError nothing changes."""
        sign = _signed(tls)  # before the files are read, so that `look` notices later changes
        found = read(tls, time.time())
        with self._lock:
            self._tls, self._refused, self._sign = tls, "", sign
            self._use(found)

    def look(self) -> bool:
        """Read the files again if they changed; return whether the certificate changed."""
        now = time.monotonic()
        if now - self._looked < self._look_seconds:
            return False
        self._looked = now
        tls = self._tls
        sign = _signed(tls)
        if sign == self._sign:
            return False
        with self._lock:
            if tls is not self._tls:
                return False
            self._sign = sign
        try:
            found = read(tls, time.time())
        except ConfigError as error:
            self._refused = f"{error}; the previous certificate stays in use"
            return False
        with self._lock:
            if tls is not self._tls:  # a reload changed the files meanwhile
                return False
            self._refused = ""
            self._use(found)
        return True

    @property
    def problem(self) -> str:
        """The present or coming problem of the certificate or of its new files; empty if there is no problem."""
        return self._refused or worry(self._tls.certificate, self._material.validity, time.time())


def _signed(tls: Tls) -> tuple[tuple[int, ...], ...]:
    """Return inode, size and modification time (ns) of each file, to detect changes; empty for a file without a status.
    Certificate and key are often replaced one after the other: if they do not match yet, `look` reads them again after
    the next change."""
    found: list[tuple[int, ...]] = []
    for path in (tls.certificate, tls.key, tls.client_ca):
        try:
            status = Path(path).stat()
        except OSError:
            found.append(())
        else:
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)


def _context(material: Material, asks_certificates: bool) -> ssl.SSLContext:
    """Return an SSL context with the files that `read` checked. Certificate and key go through a memfd, because the ssl
    module reads them only from files."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    descriptor = os.memfd_create("certificate")
    with os.fdopen(descriptor, "wb") as file:
        file.write(material.certificate + b"\n" + material.key)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password=lambda: "")
    if material.client_ca:
        context.load_verify_locations(cadata=material.client_ca.decode("ascii", "replace"))
    context.verify_mode = ssl.CERT_REQUIRED if asks_certificates else ssl.CERT_NONE
    return context


def _unusable(tls: Tls, key: bytes, error: ssl.SSLError) -> str:
    if b"ENCRYPTED" in key:  # a service has no terminal to ask at
        return f"tls.key {tls.key} has a passphrase; remove the passphrase"
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"tls.key {tls.key} does not match tls.certificate {tls.certificate}"
    return f"tls.certificate {tls.certificate} and tls.key {tls.key} cannot be used ({_why(error)}); give PEM files"


def _read(key: str, path: str) -> bytes:
    try:
        return read_regular(Path(path))
    except OSError as error:
        raise ConfigError(f"{key} {path} cannot be read: {error.strerror or error}") from error


def _why(error: Exception) -> str:
    reason = error.reason if isinstance(error, ssl.SSLError) else ""
    return (reason or str(error)).lower().replace("_", " ")


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
