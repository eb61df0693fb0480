"""A daemon with certificates and tokens, and clients that present good or bad ones."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc

from tests.certificates import Authority
from tests.integration.daemon import Daemon

LOCAL = ("DNS:localhost", "IP:127.0.0.1")  # names of a certificate


_CONFIG = """
[tls]
certificate = "HOME/tls/server.pem"
key = "HOME/tls/server.key"
client_ca = "HOME/tls/authority.pem"
without_client_certificate = ["127.0.0.1:0"]
[access.certificates]
"""


class Guarded(Daemon):
    """Listens on the two default sockets, on one port with TLS, and on one that also requires client certificates.
    `certificates` maps names in certificates to roles. `more` are further lines of the configuration.
    """

    def __init__(self, *more: str, certificates: Mapping[str, Sequence[str]] | None = None, endpoints: int = 0) -> None:
        roles = [f'"{name}" = {json.dumps(roles)}' for name, roles in (certificates or {}).items()]
        super().__init__(
            environment={**os.environ, "EDGED_ACCESS_LOOPBACK": "", "PYTHONUNBUFFERED": "1"},
            config=_CONFIG + "\n".join((*roles, *more)),
            listen=("unix:HOME/edged.sock", "unix:HOME/operate.sock", "127.0.0.1:0", "localhost:0"),
            endpoints=endpoints,
        )
        self._environment["RUNTIME_DIRECTORY"] = str(self.home)  # the folder of the default sockets
        self.authority = Authority(self.home / "tls")
        self.server = self.authority.sign("server", *LOCAL)[0]

    @property
    def infer_socket(self) -> str:
        return self.addresses[0]

    @property
    def operate_socket(self) -> str:
        return self.addresses[1]

    @property
    def tls(self) -> str:
        return self.addresses[2].removeprefix("tls:")

    @property
    def mtls(self) -> str:
        return self.addresses[3].removeprefix("tls:")

    def audited(self) -> list[dict[str, Any]]:
        """Return the audit entries so far."""
        place = self.state / "audit" / "audit.jsonl"
        return [json.loads(line) for line in place.read_text().splitlines()] if place.exists() else []

    def channel(self, address: str, certificate: Path | None = None) -> grpc.Channel:
        """Return a channel to one of the addresses, optionally with a client certificate."""
        if address.startswith("unix:"):
            return grpc.insecure_channel(address)
        ca = self.authority.ca.read_bytes()
        shown = (
            (certificate.with_suffix(".key").read_bytes(), certificate.read_bytes()) if certificate else (None, None)
        )
        # A separate connection: gRPC shares connections between equal channels, also after a certificate has changed.
        return grpc.secure_channel(
            address, grpc.ssl_channel_credentials(ca, *shown), [("grpc.use_local_subchannel_pool", 1)]
        )


def bearer(secret: str | None) -> tuple[tuple[str, str], ...]:
    """Return the metadata that presents a token."""
    return () if secret is None else (("authorization", f"Bearer {secret}"),)


def outcome(
    channel: grpc.Channel, method: str, secret: str | None = None, request: bytes = b""
) -> grpc.RpcError | None:
    """Return the error of a unary call, or None if it succeeds."""
    try:
        channel.unary_unary(method)(request, metadata=bearer(secret), timeout=10)
    except grpc.RpcError as error:
        return error
    return None


def code(channel: grpc.Channel, method: str, secret: str | None = None, request: bytes = b"") -> str:
    """Return the name of a unary call's status."""
    error = outcome(channel, method, secret, request)
    return "OK" if error is None else str(error.code().name)
