"""What a certificate says: its names, as gRPC tells them, and how long it is good, as X.509 writes it. Pure.

The standard library reads a certificate's dates only for peers of its own sockets, and a library that parses
certificates would be a dependency for two dates; RFC 5280 and X.690 say where they are.
"""

from __future__ import annotations

import functools
import ssl
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone

import msgspec

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18


class Validity(msgspec.Struct, frozen=True):
    """Seconds since the epoch."""

    begins: float
    ends: float


def names_of(context: Mapping[str, Iterable[bytes]]) -> list[str]:
    """The names of a client's certificate in a call's authentication context, alternative ones before the common one;
    none where it showed none."""
    found = [*context.get("x509_subject_alternative_name", ()), *context.get("x509_common_name", ())]
    return [name.decode("utf-8", "replace") for name in found]


def ends_of(context: Mapping[str, Iterable[bytes]]) -> float:
    """When the certificate in a call's authentication context ends, in seconds since the epoch; 0 where it cannot be
    read, which is in the past."""
    shown = next(iter(context.get("x509_pem_cert", ())), b"")
    return _ends(shown)


@functools.lru_cache(maxsize=256)
def _ends(pem: bytes) -> float:
    try:
        return validity(pem.decode()).ends
    except ValueError:
        return 0.0


def validity(pem: str) -> Validity:
    """How long the first certificate of a PEM text is good. ValueError for what is none."""
    begin, end = pem.find(_BEGIN), pem.find(_END)
    if begin < 0 or end < begin:
        raise ValueError("there is no certificate in it")
    der = ssl.PEM_cert_to_DER_cert(pem[begin : end + len(_END)])
    try:
        certificate, _ = _inside(der, _SEQUENCE)
        signed, _ = _inside(certificate, _SEQUENCE)
        if signed[0] == _VERSION:
            signed = _item(signed)[2]
        for _ in range(3):  # serial number, algorithm, issuer
            signed = _item(signed)[2]
        dates, _ = _inside(signed, _SEQUENCE)
        kind, begins, rest = _item(dates)
        kind_of_end, ends, _ = _item(rest)
        return Validity(_time(kind, begins), _time(kind_of_end, ends))
    except IndexError as error:
        raise ValueError("its certificate is cut off") from error


def _inside(data: bytes, kind: int) -> tuple[bytes, bytes]:
    found, content, rest = _item(data)
    if found != kind:
        raise ValueError("it is no X.509 certificate")
    return content, rest


def _item(data: bytes) -> tuple[int, bytes, bytes]:
    """The first item: its tag, its content, and what follows it."""
    tag, length, start = data[0], data[1], 2
    if length & 0x80:
        count = length & 0x7F
        if not 1 <= count <= 4:
            raise ValueError("it is no X.509 certificate")
        length, start = int.from_bytes(data[2 : 2 + count], "big"), 2 + count
    if start + length > len(data):
        raise ValueError("its certificate is cut off")
    return tag, data[start : start + length], data[start + length :]


def _time(kind: int, data: bytes) -> float:
    """RFC 5280, 4.1.2.5: two digits of a year before 2050, four after."""
    text = data.decode("ascii", "replace")
    if kind == _UTC_TIME and len(text) == 13:
        text = ("20" if int(text[:2]) < 50 else "19") + text
    elif kind != _GENERALIZED_TIME or len(text) != 15:
        raise ValueError("its dates are not as X.509 has them")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=timezone.utc).timestamp()
