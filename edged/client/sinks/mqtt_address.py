"""Where the broker is, and how to be let in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from edged.client.sources.redaction import redact
from edged.decoding import explain, ready
from edged.errors import InvalidInput, NotFound

PASSWORD, PASSWORD_FILE = "EDGED_MQTT_PASSWORD", "EDGED_MQTT_PASSWORD_FILE"
_PORTS = {"mqtt": 1883, "mqtts": 8883}


class _Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`rate` is messages of results a second; `discovery` the prefix that Home Assistant listens to, empty for none;
    `ca` a file of certificates."""

    rate: float = 2.0
    discovery: str = "homeassistant"
    ca: str = ""


class Broker(msgspec.Struct, frozen=True):
    """`tls` is with the system's certificates unless `ca` names a file."""

    host: str
    port: int
    tls: bool
    user: str | None
    password: str | None
    prefix: str
    rate: float
    discovery: str
    ca: str


def broker(url: str, environment: Mapping[str, str] = os.environ) -> Broker:
    """From `mqtt://user@host:1883/prefix?rate=2&discovery=homeassistant`, or `mqtts://` for TLS. The password comes
    from the environment, or a file that it names, since addresses are seen by everybody on the machine. InvalidInput
    for what is no such address, NotFound for a file that is not there."""
    try:
        parts = urlsplit(url)
        port = parts.port
        query = msgspec.convert(dict(parse_qsl(parts.query, keep_blank_values=True)), ready(_Query), strict=False)
    except (ValueError, msgspec.ValidationError) as error:
        why = explain(error, _Query.__struct_fields__)
        raise InvalidInput(
            f"{redact(url)!r} is not a broker's address ({why}); write mqtt://user@host:1883/prefix"
        ) from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise InvalidInput(
            f"{redact(url)!r} is not a broker's address; write mqtt://user@host:1883/prefix, or mqtts:// for TLS"
        )
    if parts.password is not None:
        raise InvalidInput(f"a password in an address is seen by everybody; put it into {PASSWORD} or {PASSWORD_FILE}")
    if query.rate <= 0:
        raise InvalidInput(f"rate={query.rate:g} is no rate; give messages a second")
    prefix = unquote(parts.path.strip("/")) or "edged"
    if "#" in url or any(sign in prefix + query.discovery for sign in "+#\0"):
        raise InvalidInput(f"{redact(url)!r} has no beginning of a topic; leave out + and #")
    return Broker(
        host=parts.hostname,
        port=port or _PORTS[parts.scheme],
        tls=parts.scheme == "mqtts",
        user=unquote(parts.username) if parts.username else None,
        password=_password(environment),
        prefix=prefix,
        rate=query.rate,
        discovery=query.discovery.strip("/"),
        ca=query.ca,
    )


def _password(environment: Mapping[str, str]) -> str | None:
    path = environment.get(PASSWORD_FILE)
    if not path:
        return environment.get(PASSWORD)
    try:
        return Path(path).read_text().rstrip("\r\n")
    except OSError as error:
        raise NotFound(f"the password file {path!r} of {PASSWORD_FILE} cannot be read: {error.strerror}") from None
