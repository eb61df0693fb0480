"""Addresses of listeners: parses them, checks whether they can be used, and sets who may open a socket file."""

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

_REMEDIES = {
    errno.EADDRINUSE: "the port is taken; choose another port",
    errno.EACCES: "permission denied; choose a port from 1024 on",
}


def unix_path(address: str) -> Path:
    """Return the path of `unix:PATH`. Raises ConfigError if the path is too long for a socket."""
    path = Path(address.removeprefix("unix:").removeprefix("//"))
    if len(os.fsencode(path)) > 107:
        raise ConfigError(f"socket path {path} is longer than the 107 bytes that Linux allows; choose a shorter one")
    return path


def tcp_address(address: str, allow_remote: bool = False) -> tuple[str, int]:
    """Return host (IPv6 without brackets) and port of `HOST:PORT`. Raises ConfigError if the address is invalid, or if
    `allow_remote` is False and the address is not loopback."""
    host, colon, port = address.rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal()):
        raise ConfigError(f"listen address {address!r} is neither unix:PATH nor HOST:PORT")
    if len(port) > 5 or int(port) > 65535:
        raise ConfigError(f"listen address {address!r} has no usable port; give one from 0 to 65535")
    if host.startswith("[") and host.endswith("]") and ":" in host:
        host = host[1:-1]
    host = host or "localhost"
    if not allow_remote and not _is_loopback(host):
        raise ConfigError(
            f"listen address {address!r} could be reachable from other machines without TLS; use localhost:{port}"
        )
    return host, int(port)


def is_loopback(address: str) -> bool:
    """Whether `HOST:PORT` can be reached only from this machine. Raises ConfigError for an invalid address."""
    return _is_loopback(tcp_address(address, allow_remote=True)[0])


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a host name, which may resolve to any machine
        return False


def make_way(path: Path) -> None:
    """Remove the socket file that a killed daemon left. Raises ConfigError if the path is not a socket, or if a process
    listens on it."""
    require_socket(path)
    if _is_answered(path):
        raise ConfigError(f"another process listens on {path}; stop that process, or listen elsewhere")
    path.unlink(missing_ok=True)


def require_socket(path: Path) -> None:
    """Raise ConfigError if the path exists and is not a socket."""
    if path.exists() and not stat.S_ISSOCK(path.stat().st_mode):
        raise ConfigError(f"{path} exists and is not a socket; remove the file, or listen elsewhere")


def _is_answered(path: Path) -> bool:
    """Whether a process listens on the socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def listening_unix(path: Path, backlog: int, group: str = "", setting: str = "") -> socket.socket:
    """Return a socket that listens on a new socket file; `settle` sets who may open the file. Raises ConfigError. If
    the operating system refuses, the message begins with `setting`."""
    with contextlib.ExitStack() as undo:
        found = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        found.setblocking(False)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
            make_way(path)
            found.bind(str(path))
            settle(path, group)
            found.listen(backlog)
        except OSError as error:
            why = error.strerror or error
            raise ConfigError(f"{setting} cannot listen on {path}: {why}; choose another path".strip()) from error
        undo.pop_all()
    return found


def listening_sockets(host: str, port: int, backlog: int, setting: str = "") -> list[socket.socket]:
    """Listen on each address of a host, all with the same port; port 0 means any free port.

    Addresses that this box lacks, such as IPv6 addresses, are skipped. If another process listens on one of the
    addresses, this is an error: clients that connect to the host could reach that process and send it their tokens.
    Raises ConfigError, whose message begins with `setting`.
    """
    cannot = f"{setting} cannot listen on {host}:{port}".strip()
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        why = error.strerror if isinstance(error, socket.gaierror) else error
        raise ConfigError(f"{cannot}: this box cannot resolve {host}: {why}") from error
    with contextlib.ExitStack() as undo:
        sockets, failure = list[socket.socket](), ""
        for family, _, _, _, address in found:
            at = (address[0], port or (sockets[0].getsockname()[1] if sockets else 0), *address[2:])
            try:
                sockets.append(undo.enter_context(_listening(family, at, backlog)))
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    why = _REMEDIES.get(error.errno or 0, error.strerror or str(error))
                    raise ConfigError(f"{cannot}: {why}") from error
                failure = error.strerror or str(error)
        if not sockets:
            raise ConfigError(f"{cannot}: {failure}")
        undo.pop_all()
    return sockets


def _listening(family: int, address: tuple[Any, ...], backlog: int) -> socket.socket:
    with contextlib.ExitStack() as undo:
        found = undo.enter_context(socket.socket(family, socket.SOCK_STREAM))
        found.setblocking(False)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address[0] != "::")
        found.bind(address)
        found.listen(backlog)
        undo.pop_all()
    return found


_GROUP, _OWNER = 0o660, 0o600


def settle(path: Path, group: str = "") -> None:
    """Let the owner and a group open a socket: the group `group`, or the daemon's own group if `group` is empty.

    If the group does not exist, or the daemon is not in it, only the owner may open the socket. Raises OSError.
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
