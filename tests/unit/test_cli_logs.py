"""`edged logs` with a fake journalctl. tests/system/test_systemd_service.py uses the real one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.programs import edged


def logs(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return edged("logs", *words, environment={**os.environ, "PATH": str(folder)})


def stand_in(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ((), "--priority debug --output short-iso --lines 100"),
        (("-f", "-n", "5"), "--priority debug --output short-iso --lines 5 --follow"),
        (("--level", "error", "--since", "today"), "--priority err --output short-iso --since today"),
        (("--model", "doors", "--camera", "hall"), "--lines 100 EDGED_MODEL=doors EDGED_CAMERA=hall"),
    ],
)
def test_logs_options_become_arguments_of_journalctl(tmp_path: Path, words: tuple[str, ...], asked: str) -> None:
    stand_in(tmp_path, "systemctl", "exit 0")
    stand_in(tmp_path, "journalctl", 'echo "$@"; exit 7')
    done = logs(tmp_path, *words)
    assert done.returncode == 7, done.stderr
    assert done.stdout.startswith("--unit edged.service ")
    assert done.stdout.rstrip().endswith(asked)


def test_logs_without_a_service_says_where_the_log_is(tmp_path: Path) -> None:
    for _ in range(2):
        done = logs(tmp_path)
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
        assert "logs to its terminal" in done.stderr
        stand_in(tmp_path, "journalctl", "exit 0")
        stand_in(tmp_path, "systemctl", "exit 1")
    assert logs(tmp_path, "--level", "loud").returncode == 2
