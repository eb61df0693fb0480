"""Certificates for tests: an authority and the certificates that it signs.

openssl's command line makes them, which every machine that builds Python has. A library would be a dependency for the
tests alone.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Authority:
    """A certificate authority in a folder; `ca` is its certificate, for clients and servers that trust it."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        if shutil.which("openssl") is None:
            pytest.skip("needs openssl's command line")
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.ca, self._key = folder / f"{name}.pem", folder / f"{name}.key"
        openssl("req", "-x509", *CURVE, "-keyout", self._key, "-out", self.ca, "-days", "30", "-subj", f"/CN={name}")

    def sign(self, name: str, *names: str, days: int = 30) -> tuple[Path, Path]:
        """Return certificate and key for the subject `name`; `names` are alternative names, such as DNS:box or
        IP:127.0.0.1. With `days` = -1 the certificate expired yesterday."""
        made = self.folder / f"{name}.pem"
        key, request, more = made.with_suffix(".key"), made.with_suffix(".csr"), made.with_suffix(".ext")
        more.write_text(f"subjectAltName={','.join(names)}\n" if names else "basicConstraints=CA:FALSE\n")
        openssl("req", *CURVE, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        signed = ("-CA", self.ca, "-CAkey", self._key, "-CAcreateserial", "-extfile", more, "-days", str(days))
        openssl("x509", "-req", "-in", request, "-out", made, *signed)
        return made, key


def openssl(*arguments: object) -> None:
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
