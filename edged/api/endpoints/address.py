"""Addresses of listeners: parsing, why one cannot be used, and who may open a socket file."""

from __future__ import annotations

import contextlib
import errno
import grp
import ipaddress
import os
import socket
import stat
from pathlib import Path
from typing import Any

from edged.errors import ConfigError

_TAKEN = "the port is taken; choose another"


def unix_path(address: str) -> Path:
    """The path of `unix:PATH`. ConfigError if it is too long for a socket."""
    path = Path(address.removeprefix("unix:").removeprefix("//"))
    if len(os.fsencode(path)) > 107:
        raise ConfigError(f"socket path {path} is longer than the 107 bytes that Linux allows; choose a shorter one")
    return path


def tcp_address(address: str, allow_remote: bool = False) -> tuple[str, int]:
    """Host, an IPv6 address without brackets, and port of `HOST:PORT`. ConfigError, also for a host that is not
    loopback unless `allow_remote`."""
    host, colon, port = address.rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal()):
        raise ConfigError(f"listen address {address!r} is neither unix:PATH nor HOST:PORT")
    if len(port) > 5 or int(port) > 65535:
        raise ConfigError(f"listen address {address!r} has no usable port; give one from 0 to 65535")
    if host.startswith("[") and host.endswith("]") and ":" in host:
        host = host[1:-1]
    host = host or "localhost"
    if not allow_remote and not _is_loopback(host):
        raise ConfigError(f"listen address {address!r} may be reachable from other machines; use localhost:{port}")
    return host, int(port)


def is_loopback(address: str) -> bool:
    """Whether `HOST:PORT` can be reached only from this machine. ConfigError for an invalid address."""
    return _is_loopback(tcp_address(address, allow_remote=True)[0])


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, which may mean any machine
        return False


def make_way(path: Path) -> None:
    """Remove a socket that a killed daemon left. ConfigError if the path is something else, or a daemon listens."""
    require_socket(path)
    if _is_answered(path):
        raise ConfigError(f"another daemon listens on {path}; stop it or listen elsewhere")
    path.unlink(missing_ok=True)


def require_socket(path: Path) -> None:
    """ConfigError if the path exists and is not a socket."""
    if path.exists() and not stat.S_ISSOCK(path.stat().st_mode):
        raise ConfigError(f"{path} exists and is not a socket; remove it or listen elsewhere")


def _is_answered(path: Path) -> bool:
    """Whether a process listens on the socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def why_not_tcp(host: str, port: int) -> str:
    """Why gRPC could not listen on an address."""
    try:
        reasons = [why_not(family, place) for family, place in _places(host, port)]
    except socket.gaierror as error:
        return f"{host} has no address here: {error.strerror}"
    return next(filter(None, reasons), "gRPC refused it")


def require_untaken(host: str, port: int) -> None:
    """ConfigError if one of a name's addresses is in use: gRPC would accept the others, and clients could send their
    tokens to another process."""
    with contextlib.suppress(socket.gaierror):
        if port and any(why_not(family, place) == _TAKEN for family, place in _places(host, port)):
            raise ConfigError(f"cannot listen on {host}:{port}: {_TAKEN}")


def _places(host: str, port: int) -> list[tuple[int, tuple[Any, ...]]]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return [(family, place) for family, _, _, _, place in found]


def why_not(family: int, place: tuple[Any, ...] | str) -> str:
    """Why the system refuses to bind; empty if it does not."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return _TAKEN
        return error.strerror or str(error)
    return ""


_GROUP, _OWNER = 0o660, 0o600


def settle(path: Path, group: str = "") -> None:
    """Let the owner and a group open a socket: the named group, otherwise the daemon's own.

    If the group does not exist, or the daemon is not in it, only the owner may open the socket. OSError.
    """
    mode = _GROUP
    if group and not _give(path, group):
        mode = _OWNER
    path.chmod(mode)


def _give(path: Path, group: str) -> bool:
    try:
        os.chown(path, -1, grp.getgrnam(group).gr_gid)
    except (KeyError, PermissionError):
        return False
    return True
