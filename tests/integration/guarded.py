"""A daemon with certificates and tokens, and clients that show them or something else.

Certificates are made by openssl's command line, which every machine that builds Python has; a library for it would be a
dependency for the tests alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc

from edged.api.auth.policy import parse_roles
from edged.api.auth.tokens import TokenFile, make
from tests.integration.daemon import Daemon, wait_for

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr


class Authority:
    """Makes certificates in a folder of its own."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self.folder, self.name = folder, name
        folder.mkdir(parents=True, exist_ok=True)
        self.ca = folder / f"{name}.pem"
        openssl(
            "req", "-x509", *_KEY, "-keyout", self._key, "-out", str(self.ca), "-days", "30", "-subj", f"/CN={name}"
        )

    @property
    def _key(self) -> str:
        return str(self.folder / f"{self.name}.key")

    def issue(self, name: str, names: Sequence[str] = ("DNS:localhost", "IP:127.0.0.1"), days: int = 60) -> Path:
        """A certificate whose common name is `name`, with `names` besides; its key lies beside it. With 0 days, one
        that ended a day ago."""
        place, request = self.folder / f"{name}.pem", self.folder / f"{name}.csr"
        key, extra = place.with_suffix(".key"), self.folder / f"{name}.ext"
        openssl("req", "-new", *_KEY, "-keyout", str(key), "-out", str(request), "-subj", f"/CN={name}")
        extra.write_text(f"subjectAltName={','.join(names)}\n")
        lasts = ["-days", str(days)] if days else ["-days", "-1"]
        signer = ["-CA", str(self.ca), "-CAkey", self._key, "-CAcreateserial"]
        openssl("x509", "-req", "-in", str(request), *signer, "-out", str(place), *lasts, "-extfile", str(extra))
        return place


class Guarded(Daemon):
    """Listens at the two default sockets, at one port with TLS and one that asks for certificates as well.

    `certificates` says which roles which names have; tokens are made by `token`. `more` are tables of the
    configuration.
    """

    def __init__(self, *more: str, certificates: dict[str, list[str]] | None = None) -> None:
        super().__init__()
        self.authority = Authority(self.home / "tls")
        self.server = self.authority.issue("server")
        self.config = self.home / "edged.toml"
        self._certificates = certificates or {}
        self.write(*more)

    def write(self, *more: str) -> None:
        """The configuration."""
        folder = self.home / "tls"
        listen = [f"unix:{self.home}/edged.sock", f"unix:{self.home}/operate.sock", "127.0.0.1:0", "localhost:0"]
        lines = [
            f"listen = {json.dumps(listen)}",
            "[tls]",
            f'certificate = "{folder}/server.pem"',
            f'key = "{folder}/server.key"',
            f'client_ca = "{self.authority.ca}"',
            'without_client_certificate = ["127.0.0.1:0"]',
            "[access.certificates]",
            *[f'"{name}" = {json.dumps(roles)}' for name, roles in self._certificates.items()],
            *more,
        ]
        self.config.write_text("\n".join(lines))

    def start(self) -> Guarded:
        command = [sys.executable, "-m", "edged", "serve", "--config", str(self.config)]
        command += ["--state", str(self.state), "--cache", str(self.cache)]
        environment = {**os.environ, "RUNTIME_DIRECTORY": str(self.home), "PYTHONUNBUFFERED": "1"}
        with self.log.open("a") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        assert self._process.stdout is not None
        self.addresses = []
        while len(self.addresses) < self._awaited:
            line = self._process.stdout.readline()
            if not line.startswith("listening on "):
                self.kill()
                raise AssertionError(self.log.read_text())
            self.addresses.append(line.split()[-1])
        return self

    _awaited = 4

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

    @property
    def tokens(self) -> TokenFile:
        return TokenFile(self.state / "access" / "tokens.json")

    def token(self, name: str, *roles: str, days: float = 0.0) -> str:
        """Makes a token; its secret. A daemon that runs knows it by then."""
        token, secret = make(name, parse_roles(roles), days)
        seen = self._looks()
        self.tokens.add(token)
        if self.is_started:
            wait_for("the daemon knows the token", lambda: self._looks() > seen)
        return secret

    def _looks(self) -> int:
        return self.log.read_text().count("tokens changed") if self.log.exists() else 0

    def audited(self) -> list[dict[str, Any]]:
        """What was written down so far."""
        place = self.state / "audit" / "audit.jsonl"
        return [json.loads(line) for line in place.read_text().splitlines()] if place.exists() else []

    def channel(self, address: str, certificate: Path | None = None) -> grpc.Channel:
        """To one of the addresses, showing a certificate."""
        if address.startswith("unix:"):
            return grpc.insecure_channel(address)
        ca = self.authority.ca.read_bytes()
        shown = (
            (certificate.with_suffix(".key").read_bytes(), certificate.read_bytes()) if certificate else (None, None)
        )
        # Of its own: gRPC shares connections of channels that look the same, also across a change of certificates.
        return grpc.secure_channel(
            address, grpc.ssl_channel_credentials(ca, *shown), [("grpc.use_local_subchannel_pool", 1)]
        )


def bearer(secret: str | None) -> tuple[tuple[str, str], ...]:
    """The header that shows a token."""
    return () if secret is None else (("authorization", f"Bearer {secret}"),)


def outcome(
    channel: grpc.Channel, method: str, secret: str | None = None, request: bytes = b""
) -> grpc.RpcError | None:
    """What a unary call ends with; None where it is answered."""
    try:
        channel.unary_unary(method)(request, metadata=bearer(secret), timeout=10)
    except grpc.RpcError as error:
        return error
    return None


def code(channel: grpc.Channel, method: str, secret: str | None = None, request: bytes = b"") -> str:
    """The name of the status that a unary call ends with."""
    error = outcome(channel, method, secret, request)
    return "OK" if error is None else str(error.code().name)
