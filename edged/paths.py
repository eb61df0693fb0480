"""The folders of edged's sockets, state, cache and configuration: under systemd, as root, or as an ordinary user.

systemd's RUNTIME_DIRECTORY, STATE_DIRECTORY, CACHE_DIRECTORY and CONFIGURATION_DIRECTORY have priority
(systemd.exec(5)), then edged's own variables. Otherwise root uses the system's folders, other users the XDG base
directories. Nothing is created here.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

SOCKET = "edged.sock"
OPERATE = "operate.sock"
CONFIG = "edged.toml"
SERVICE_CONFIG = Path("/etc/edged") / CONFIG  # the same as systemd's ConfigurationDirectory
_RUN = Path("/run/edged")


def default_socket() -> Path:
    """Return the default socket for frames: the service's if it exists, otherwise this user's."""
    managed = _systemd("RUNTIME_DIRECTORY")
    if managed is not None:
        return managed / SOCKET
    if _is_root() or (_RUN / SOCKET).exists():
        return _RUN / SOCKET
    runtime = _absolute("XDG_RUNTIME_DIR")
    return (runtime / "edged" if runtime else Path(f"/tmp/edged-{os.getuid()}")) / SOCKET  # noqa: S108


def operate_socket() -> Path:
    """Return the default socket for operators, in the folder of `default_socket`."""
    return default_socket().with_name(OPERATE)


def client_socket() -> Path:
    """Return the operators' socket if this user can connect to it, otherwise the socket for frames."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(operate_socket()))
        except OSError:
            return default_socket()
    return operate_socket()


def default_state_dir() -> Path:
    """Return the default folder for models and settings, which must be kept. Outside systemd, EDGED_STATE sets it."""
    return _place("STATE_DIRECTORY", "EDGED_STATE", Path("/var/lib/edged"), "XDG_DATA_HOME", ".local/share")


def default_cache_dir() -> Path:
    """Return the default folder for engines, which can be built again. Outside systemd, EDGED_CACHE sets it."""
    return _place("CACHE_DIRECTORY", "EDGED_CACHE", Path("/var/cache/edged"), "XDG_CACHE_HOME", ".cache")


def user_data_dir() -> Path:
    """Return the folder for the data that commands keep for their user. For root, it is not the service's folder."""
    return (_absolute("XDG_DATA_HOME") or Path.home() / ".local/share") / "edged"


def default_config() -> Path | None:
    """Return the default configuration file, which may not exist. For the service it is in CONFIGURATION_DIRECTORY, for
    an ordinary user below XDG_CONFIG_HOME. Return None for root outside the service."""
    managed = _systemd("CONFIGURATION_DIRECTORY")
    if managed is not None:
        return managed / CONFIG
    return None if _is_root() else (_absolute("XDG_CONFIG_HOME") or Path.home() / ".config") / "edged" / CONFIG


def _place(managed: str, own: str, system: Path, xdg: str, home: str) -> Path:
    given = _systemd(managed)
    if given is not None:
        return given
    chosen = os.environ.get(own)
    if chosen:
        return Path(chosen).expanduser().absolute()
    if _is_root():
        return system
    return (_absolute(xdg) or Path.home() / home) / "edged"


def _systemd(variable: str) -> Path | None:
    """Return the directory that systemd passes in a variable, or None. A unit may name several directories, separated
    by colons; the first one is edged's."""
    first = os.environ.get(variable, "").partition(":")[0]
    return Path(first) if first else None


def _absolute(variable: str) -> Path | None:
    """Return a variable's absolute path, or None. The XDG specification forbids relative paths, so these are
    ignored."""
    text = os.environ.get(variable, "")
    return Path(text) if text.startswith("/") else None


def _is_root() -> bool:
    return os.geteuid() == 0
