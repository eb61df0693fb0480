"""Preflight: problems of the configuration on this box, found before the daemon starts."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edged.config import Config
from edged.daemon.preflight import preflight
from tests.certificates import Authority


@pytest.fixture(autouse=True)
def sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path / "run"))


def found(config: dict[str, Any]) -> dict[str, str]:
    return {".".join(path): why for path, why in preflight(msgspec.convert(config, Config))}


def test_preflight_accepts_the_defaults() -> None:
    assert found({}) == {}


def test_preflight_accepts_a_valid_configuration(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").touch()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{tmp_path}/there")
        assert (
            found(
                {
                    "listen": [
                        f"unix:{tmp_path}/new/s",
                        f"unix:{tmp_path}/there",
                        "localhost:1",
                        "localhost:0",
                        "[::1]:0",
                    ],
                    "state": str(tmp_path / "a" / "b"),
                    "cache": str(tmp_path),
                    "models": {"m": str(tmp_path / "m.onnx")},
                    "model_control": "explicit",
                    "startup_models": ["*", "m", "m:2"],
                    "http": {"listen": "localhost:2"},
                    "metrics": {"listen": "localhost:0"},
                    "frigate": {"endpoint": "tcp://172.17.0.1:1", "allow_remote": True},
                    "zmq": {"frames": f"ipc://{tmp_path}/f", "publish": "tcp://127.0.0.1:3"},
                }
            )
            == {}
        )


@pytest.mark.parametrize(
    ("config", "key", "words"),
    [
        ({"listen": ["nonsense"]}, "listen[0]", "neither unix:PATH nor HOST:PORT"),
        ({"listen": ["localhost:1", "localhost:70000"]}, "listen[1]", "no usable port"),
        ({"listen": ["0.0.0.0:1"]}, "listen[0]", "could be reachable from other machines without TLS; set [tls]"),
        ({"listen": [f"unix:/{'x' * 120}"]}, "listen[0]", "longer than the 107 bytes"),
        ({"listen": ["unix:/dev/null"]}, "listen[0]", "/dev/null exists and is not a socket"),
        ({"listen": ["unix:/dev/null/x"]}, "listen[0]", "/dev/null is not a directory"),
        ({"listen": ["unix:/proc/none/x"]}, "listen[0]", "cannot be created: /proc"),
        (
            {"listen": ["unix:/tmp/edged-preflight", "unix:///tmp/edged-preflight"]},
            "listen[1]",
            "is also the address of listen[0]",
        ),
        (
            {"listen": ["127.0.0.1:5"], "http": {"listen": "localhost:5"}},
            "http.listen",
            "localhost:5 is also the address of listen[0]",
        ),
        ({"http": {"listen": "0.0.0.0:5"}}, "http.listen", "reachable from other machines"),
        ({"page": {"listen": "x"}}, "page.listen", "neither unix:PATH nor HOST:PORT"),
        ({"page": {"listen": "unix:/tmp/edged-page"}}, "page.listen", "is a unix socket"),
        (
            {"page": {"listen": "0.0.0.0:5"}, "access": {"unencrypted": ["0.0.0.0:5"]}},
            "page.listen",
            "reachable from other machines without TLS; set [tls]",
        ),
        (
            {"http": {"listen": "localhost:5"}, "page": {"listen": "localhost:5"}},
            "page.listen",
            "localhost:5 is also the address of http.listen",
        ),
        ({"metrics": {"listen": "x"}}, "metrics.listen", "neither unix:PATH nor HOST:PORT"),
        (
            {"zmq": {"frames": "ipc:///tmp/edged-frames", "publish": "ipc:///tmp/edged-frames"}},
            "zmq.publish",
            "ipc:///tmp/edged-frames is also the address of zmq.frames",
        ),
        ({"zmq": {"frames": "/tmp/edged-frames"}}, "zmq.frames", "neither ipc:///PATH nor tcp://HOST:PORT"),
        ({"frigate": {"endpoint": "tcp://1.2.3.4:5"}}, "frigate.endpoint", "set allow_remote = true"),
        ({"state": "/dev/null"}, "state", "/dev/null is not a directory"),
        ({"state": "/proc/none/here"}, "state", "/proc/none/here does not exist and cannot be created"),
        ({"cache": "/proc/none"}, "cache", "cannot be created"),
        ({"state": "/tmp", "cache": "/tmp"}, "cache", "/tmp is also the directory for models"),
        ({"models": {"m": "/nowhere"}}, "models.m", "/nowhere cannot be read: No such file"),
        ({"models": {"m": "/dev/null"}}, "models.m", "/dev/null is not a file or folder"),
        ({"models": {"a/b": "/etc/hostname"}}, "models.a/b", "invalid model name"),
        ({"model_control": "explicit", "startup_models": ["m", "a/b"]}, "startup_models[1]", "invalid model name"),
        ({"access": {"grants": {"localhost:1": ["infer"]}}}, "access.grants", "localhost:1"),
        ({"tls": {"certificate": "/nowhere", "key": "/nowhere"}}, "tls.certificate", "cannot be read: No such file"),
        ({"access": {"tokens_file": "/dev/null"}}, "access.tokens_file", "cannot be read"),
    ],
)
def test_preflight_rejects_an_unusable_configuration(config: dict[str, Any], key: str, words: str) -> None:
    problems = found(config)
    assert set(problems) == {key}
    assert words in problems[key]


def test_preflight_accepts_remote_addresses_with_valid_certificates(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).sign("box", "DNS:box")
    config: dict[str, Any] = {
        "listen": ["0.0.0.0:1"],
        "page": {"listen": "0.0.0.0:2"},
        "tls": {"certificate": str(certificate), "key": str(key)},
    }
    assert found(config) == {}
    other = Authority(tmp_path, "other").sign("another")[1]
    config["tls"]["key"] = str(other)
    assert "does not match tls.certificate" in found(config)["tls.key"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_preflight_runs_as_the_calling_user(tmp_path: Path) -> None:
    """Runs in another process, as a user without access to the folder and the model."""
    (tmp_path / "m.onnx").touch(mode=0o600)
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o755)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.setgid(65534)
        os.setuid(65534)
        problems = found({"state": str(tmp_path / "state"), "models": {"m": str(tmp_path / "m.onnx")}})
        os.write(writer, msgspec.json.encode(problems))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        problems = msgspec.json.decode(answer.read(), type=dict[str, str])
    os.waitpid(child, 0)
    assert "cannot be written by user 65534" in problems["state"]
    assert "cannot be read by user 65534" in problems["models.m"]
