"""Default paths of sockets, state, cache and configuration: for root, a user, and under systemd."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from edged import paths

VARIABLES = [
    *("RUNTIME_DIRECTORY", "STATE_DIRECTORY", "CACHE_DIRECTORY", "EDGED_STATE", "EDGED_CACHE"),
    *("XDG_RUNTIME_DIR", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "CONFIGURATION_DIRECTORY"),
]


@pytest.fixture(autouse=True)
def user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An ordinary user without any of the variables, on a box without a daemon."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr(paths, "_RUN", tmp_path / "run")


def test_defaults_of_a_user_follow_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert paths.default_socket() == Path("/tmp/edged-1000/edged.sock")
    assert paths.default_state_dir() == Path("/home/me/.local/share/edged")
    assert paths.default_cache_dir() == Path("/home/me/.cache/edged")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/invalid")
    assert paths.default_socket() == Path("/run/user/1000/edged/edged.sock")
    assert paths.default_state_dir() == Path("/data/edged")
    assert paths.default_cache_dir() == Path("/home/me/.cache/edged")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "edged.sock").touch()  # the socket of the system's daemon
    assert paths.default_socket() == tmp_path / "run" / "edged.sock"


def test_defaults_of_root_are_system_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert paths.default_socket() == tmp_path / "run" / "edged.sock"
    assert paths.default_state_dir() == Path("/var/lib/edged")
    assert paths.default_cache_dir() == Path("/var/cache/edged")
    assert paths.default_config() is None


def test_client_socket_prefers_the_operators_socket_if_it_listens(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    assert paths.client_socket() == tmp_path / "edged.sock"
    operate = paths.operate_socket()
    assert operate == tmp_path / "operate.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(operate))
        assert paths.client_socket() == tmp_path / "edged.sock"  # nothing listens: a crash left the socket
        listening.listen()
        assert paths.client_socket() == operate


def test_defaults_systemds_variables_override_edgeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGED_STATE", "~/state")
    monkeypatch.setenv("EDGED_CACHE", "/big/disk")
    assert paths.default_state_dir() == Path("/home/me/state")
    assert paths.default_cache_dir() == Path("/big/disk")
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/edged:/var/lib/more")
    monkeypatch.setenv("CACHE_DIRECTORY", "/var/cache/edged")
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/edged")
    assert paths.default_state_dir() == Path("/var/lib/edged")
    assert paths.default_cache_dir() == Path("/var/cache/edged")
    assert paths.default_socket() == Path("/run/edged/edged.sock")


def test_default_config_of_the_service_precedes_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    assert paths.default_config() == Path("/home/me/.config/edged/edged.toml")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/config")
    assert paths.default_config() == Path("/config/edged/edged.toml")
    monkeypatch.setenv("CONFIGURATION_DIRECTORY", "/etc/edged")
    assert paths.default_config() == Path("/etc/edged/edged.toml")
