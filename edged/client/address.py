"""Converts a daemon's address, as users write it, to a gRPC target
(https://github.com/grpc/grpc/blob/master/doc/naming.md)."""

from __future__ import annotations

import ipaddress
import os

from edged.errors import InvalidInput
from edged.paths import client_socket

DEFAULT_PORT = 8001  # Triton's gRPC port, which clients of the Open Inference Protocol expect
_LONGEST_SOCKET = 107  # bytes of sockaddr_un.sun_path without the final zero, unix(7)
UNIX, TLS = "unix:", "tls:"
_GRPCS = "grpcs://"  # the prefix that other tools use for `tls:`


def resolve(target: str | os.PathLike[str] | None = None) -> str:
    """Return the gRPC target for `unix:/path`, `/path`, `host:port`, `host` or `:port`. The prefixes `tls:` and
    `grpcs://` mean TLS; the result then begins with `tls:`.

    If `target` is None or empty, use EDGED_TARGET, or the daemon's default socket if this variable is unset. Of the two
    default sockets, use the operators' socket if this user may open it. Raises InvalidInput if the address has none of
    these forms.
    """
    text = os.fspath(target) if target is not None else ""
    text = text.strip() or os.environ.get("EDGED_TARGET", "").strip() or str(client_socket())
    if text.startswith(UNIX):
        return _socket(text.removeprefix(UNIX))
    if text.startswith(_GRPCS):
        text = TLS + text.removeprefix(_GRPCS).removesuffix("/")
    if "://" in text:
        raise InvalidInput(f"{text!r} is a URL, not an address for gRPC; give HOST:PORT, tls:HOST:PORT or unix:/PATH")
    if text.startswith(TLS):
        return TLS + _tcp(_machine(text))
    if "/" in text:
        return _socket(text)
    return _tcp(text)


def host_of(target: str) -> str:
    """Return the host of a resolved TCP target; an IPv6 address has no brackets."""
    return target.removeprefix(TLS).rpartition(":")[0].strip("[]")


def is_here(target: str) -> bool:
    """Whether a resolved target is on this machine: a unix socket, `localhost` or a loopback address."""
    return target.startswith(UNIX) or is_loopback(host_of(target))


def is_loopback(host: str) -> bool:
    """Whether a host is `localhost` or a loopback address. Names are not resolved."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _machine(text: str) -> str:
    """Return the address after `tls:`. Raises InvalidInput if the address has no host. A port alone does not mean
    localhost here, since localhost needs no TLS."""
    rest = text.removeprefix(TLS)
    if not rest or rest.startswith(":") or rest.isdecimal() or "/" in rest:
        raise InvalidInput(f"the address {text!r} has no host; give tls:HOST:PORT")
    return rest


def _socket(text: str) -> str:
    # unix:///path is the same as unix:/path. Relative paths become absolute, so that gRPC does not resolve them later.
    path = os.path.abspath("/" + text.lstrip("/") if text.startswith("//") else os.path.expanduser(text))
    if not text:
        raise InvalidInput("the target 'unix:' has no path; give unix:/PATH")
    if len(os.fsencode(path)) > _LONGEST_SOCKET:
        raise InvalidInput(f"the socket path {path!r} is longer than the {_LONGEST_SOCKET} bytes that Linux allows")
    return UNIX + path


def _tcp(text: str) -> str:
    host, separator, port = text.rpartition(":")
    if not separator or text.endswith("]"):  # a name, or an IPv6 address in brackets, without a port
        host, port = text, str(DEFAULT_PORT)
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise InvalidInput(f"the address {text!r} is ambiguous; write an IPv6 address as [ADDRESS]:PORT")
    if not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise InvalidInput(f"the address {text!r} has an invalid port; give HOST:PORT with a port from 1 to 65535")
    return f"{host or 'localhost'}:{port}"
