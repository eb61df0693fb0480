"""`edged tls`: makes certificates for boxes and their clients with the `openssl` program."""

from __future__ import annotations

import ipaddress
import re
import secrets
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from edged.cli import common
from edged.errors import AlreadyExists, EdgedError, InvalidInput, NotFound
from edged.store import atomic

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_CA_DAYS = 3650
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")  # no passphrase: daemons cannot enter it
# The system's openssl.cnf is not used: it may be missing or have other extensions.
_CONFIG = """
[req]
distinguished_name = dn
[dn]
[ca]
basicConstraints = critical, CA:TRUE, pathlen:0
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[leaf]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = {usage}
subjectAltName = {names}
authorityKeyIdentifier = keyid
subjectKeyIdentifier = hash
"""


class Made(msgspec.Struct, frozen=True):
    """The files that a box or client needs. `names` are the certificate's names; `expires` is in seconds since the
    epoch."""

    ca: Path
    certificate: Path
    key: Path
    names: tuple[str, ...]
    expires: float
    has_new_ca: bool


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The box's host name, or the client's name.")],
    address: Annotated[
        list[str] | None, typer.Argument(metavar="[ADDRESS...]", help="Other host names and IP addresses of the box.")
    ] = None,
    client: Annotated[bool, typer.Option("--client", help="Make the certificate for a client, not for a box.")] = False,
    folder: Annotated[Path, typer.Option("--folder", help="Folder of the CA and certificates.")] = Path("edged-tls"),
    days: Annotated[int, typer.Option("--days", min=1, max=_CA_DAYS, help="Days until the certificate expires.")] = 825,
    force: Annotated[bool, typer.Option("--force", help="Replace a certificate of this name.")] = False,
    json: common.Json = False,
) -> None:
    """Make a certificate for a box or a client, and a CA if none exists.

    Run it on one machine that you trust: anyone who has ca.key can make certificates for all your boxes. To a box or
    client, copy only the files that the command names for it.

    edged tls new dock-1 192.168.1.20

    edged tls new anna --client
    """
    if client and address:
        raise InvalidInput("a client's certificate cannot have addresses; leave out either ADDRESS or --client")
    made = make(folder, name, tuple(address or ()), client, days, force)
    if json:
        common.print_json(msgspec.json.encode(made, enc_hook=str))
        return
    if made.has_new_ca:
        common.show(f"{made.ca}: a new CA; keep {made.ca.with_suffix('.key')} safe, on this machine only")
    until = time.strftime("%Y-%m-%d", time.localtime(made.expires))
    common.show(f"{made.certificate} and {made.key.name}: for {', '.join(made.names)}, until {until}\n")
    common.show(_for_client(name, made) if client else _for_box(name, made))


def make(folder: Path, name: str, addresses: Sequence[str], client: bool, days: int, force: bool) -> Made:
    """Make a certificate. Raises InvalidInput for an invalid name or folder, AlreadyExists if the certificate exists
    and `force` is not set, NotFound if the CA has no key or openssl is not installed, EdgedError if openssl fails."""
    names = tuple(dict.fromkeys((name, *addresses)))
    alternatives = ", ".join(map(_alternative, names))
    ca, certificate = folder / "ca.pem", folder / f"{name}.pem"
    if name == "ca":
        raise InvalidInput("the name 'ca' is reserved for the CA; choose another name")
    if certificate.exists() and not force:
        raise AlreadyExists(f"{certificate} already exists; use --force to replace it")
    if ca.exists() and not ca.with_suffix(".key").exists():
        raise NotFound(
            f"{ca.with_suffix('.key')} is missing, and without this key the CA cannot sign certificates; restore the"
            f" file, or remove {ca.name} for a new CA, and then make and copy all certificates again"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".new-") as place:
            scratch, has_new_ca = Path(place), not ca.exists()
            config = scratch / "config"
            config.write_text(_CONFIG.format(usage="clientAuth" if client else "serverAuth", names=alternatives))
            if has_new_ca:
                _issue(scratch, config, "edged CA", _CA_DAYS, "ca", None)
                _publish(scratch, ca)
            _issue(scratch, config, name, days, "leaf", ca)
            _publish(scratch, certificate)
    except OSError as error:
        raise InvalidInput(
            f"folder {folder} cannot be written: {error.strerror or error}; give another --folder"
        ) from error
    return Made(ca, certificate, certificate.with_suffix(".key"), names, time.time() + days * 86400, has_new_ca)


def _alternative(name: str) -> str:
    try:
        return f"IP:{ipaddress.ip_address(name)}"
    except ValueError:
        if not _NAME.fullmatch(name):
            raise InvalidInput(
                f"{name[:80]!r} is neither a host name nor an IP address; use letters, digits and . _ -, with a letter"
                " or digit first"
            ) from None
        return f"DNS:{name}"


def _issue(scratch: Path, config: Path, name: str, days: int, section: str, ca: Path | None) -> None:
    """Make a key and a certificate in `scratch`. Without a CA the certificate is self-signed."""
    request, key, made = scratch / "request", scratch / "key", scratch / "certificate"
    _openssl("req", "-new", *_KEY, "-config", config, "-subj", f"/CN={name}", "-keyout", key, "-out", request)
    signer: tuple[object, ...] = ("-CA", ca, "-CAkey", ca.with_suffix(".key")) if ca else ("-signkey", key)
    serial = f"0x{secrets.token_hex(16)}"
    extensions = ("-extfile", config, "-extensions", section, "-set_serial", serial, "-sha256", "-days", days)
    _openssl("x509", "-req", "-in", request, *signer, *extensions, "-out", made)


def _publish(scratch: Path, certificate: Path) -> None:
    """Put the key and then the certificate into their folder. An interruption in between leaves no certificate.
    Therefore a certificate never lies next to the wrong key, and the next run makes both again."""
    (scratch / "key").chmod(0o600)
    (scratch / "certificate").chmod(0o644)
    atomic.sync_tree(scratch)
    certificate.unlink(missing_ok=True)
    (scratch / "key").replace(certificate.with_suffix(".key"))
    (scratch / "certificate").replace(certificate)
    atomic.sync_directory(certificate.parent)


def _openssl(*arguments: object) -> None:
    words = ["openssl", *map(str, arguments)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, umask=0o077)
    except FileNotFoundError:
        raise NotFound("the openssl program is not installed; try: sudo apt install openssl") from None
    except OSError as error:
        raise EdgedError(f"the openssl program cannot be run: {error.strerror or error}") from None
    except subprocess.TimeoutExpired:
        raise EdgedError("the openssl program did not end within 60 s; try again") from None
    if done.returncode:
        raise EdgedError(
            f"openssl {words[1]} failed: {(done.stderr.strip().splitlines() or ['it gives no reason'])[-1][:300]}"
        )


def _for_box(name: str, made: Made) -> str:
    return f"""\
Copy {made.certificate.name}, {made.key.name} and {made.ca.name} to /etc/edged/tls/ on {name} (group edged, mode 640),
and add to /etc/edged/edged.toml:

    listen = ["unix:/run/edged/edged.sock", "0.0.0.0:8001"]

    [tls]
    certificate = "/etc/edged/tls/{made.certificate.name}"
    key = "/etc/edged/tls/{made.key.name}"
    client_ca = "/etc/edged/tls/{made.ca.name}"

    [access.certificates]
    "CLIENT" = ["infer", "read", "operate"]

Then, for each client: edged tls new CLIENT --client"""


def _for_client(name: str, made: Made) -> str:
    return f"""\
On each box, add to /etc/edged/edged.toml, and run sudo edged reload:

    [access.certificates]
    "{name}" = ["infer", "read"]

Copy {made.certificate.name}, {made.key.name} and {made.ca.name} to the client, and set there:

    export EDGED_CA={made.ca.name} EDGED_CERTIFICATE={made.certificate.name} EDGED_KEY={made.key.name}
    edged status --target tls:BOX:8001"""
