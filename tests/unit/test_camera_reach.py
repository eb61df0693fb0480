"""The paths that a camera's process may read, from its configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from edged.cameras.camera_run import capture_reach
from edged.config.cameras import Camera, Sinks
from edged.confinement import landlock, rules
from edged.ipc.capture_messages import Begin


def reads(**sinks: str) -> set[str]:
    camera = Camera(source="rtsp://box/main", model="doors", sinks=Sinks(**sinks))
    return set(capture_reach(Begin("hall", camera, "unix:/run/edged/edged.sock", "/data/hall")).reads)


@pytest.mark.parametrize(
    ("sinks", "file"),
    [
        ({"mqtt": "mqtts://box?rate=5&ca=/etc/edged/ca.pem"}, "/etc/edged/ca.pem"),
        ({"mqtt": "mqtts://box?ca=/etc/my%20home/ca.pem"}, "/etc/my home/ca.pem"),
        ({"mqtt": "mqtt://box", "mqtt_password_file": "/etc/edged/password"}, "/etc/edged/password"),
    ],
)
def test_reads_includes_the_files_of_the_broker(sinks: dict[str, str], file: str) -> None:
    assert reads(**sinks) == {"/run/edged", file}


def test_reads_invalid_broker_address_adds_no_file() -> None:
    assert reads(mqtt="mqtt://[box?ca=/etc/passwd") == {"/run/edged"}


@pytest.mark.parametrize(
    ("version", "mode", "are_limited"), [(1, "on", True), (1, "enforce", True), (1, "off", False), (0, "on", False)]
)
def test_inodes_of_a_process_whose_files_are_not_limited_are_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, mode: rules.Mode, are_limited: bool
) -> None:
    monkeypatch.setattr(landlock, "version", lambda: version)
    assert bool(rules.inodes(rules.Reach(mode, writes=(str(tmp_path),)))) is are_limited
