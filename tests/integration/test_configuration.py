"""A real daemon with a configuration from options, environment variables and a file at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edged.errors import InvalidInput
from tests.integration.daemon import Daemon

CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("EDGED_")}


def test_configuration_options_override_variables_override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "edged.toml"
    file.write_text('state = "/nowhere"\n[engines]\nbudget_mb = 5\nkeep_free_mb = 1\n')
    # The daemon could use neither address nor folder; the options of the test's daemon override them.
    environment = CLEAN | {
        "EDGED_STATE": "/proc/nowhere",
        "EDGED_LISTEN": "nonsense",
        "EDGED_ADMISSION_SECONDS": "20",
        "EDGED_ENGINES_BUDGET_MB": "7",
        "EDGED_LISTN": "x",
    }
    with Daemon("--config", str(file), environment=environment) as daemon, daemon.client() as client:
        assert client.status().budget_bytes == 7 << 20
        file.write_text("[engines]\nbudget_mb = 6\nkeep_free_mb = 2\n")
        assert [key.change for key in client.reload()] == ["engines.keep_free_mb: 1 → 2"]
        assert client.status().budget_bytes == 7 << 20
        file.write_text("[engines]\nbudget_mb = 6\nkeep_free = 2\n[health]\nprobe_seconds = 'x'")
        with pytest.raises(InvalidInput) as raised:
            client.reload()
        assert f"{file}:3: engines.keep_free: unknown key; did you mean `keep_free_mb`?" in str(raised.value)
        assert f"(and 1 more; see: edged config check {file})" in str(raised.value)
        log = daemon.log.read_text()
        assert "EDGED_LISTN in the environment is unknown to edged; did you mean EDGED_LISTEN?" in log
        assert (
            f"configuration: {file}; environment: EDGED_ACCESS_LOOPBACK, EDGED_ADMISSION_SECONDS,"
            " EDGED_ENGINES_BUDGET_MB, EDGED_LISTEN, EDGED_STATE; command line: --cache, --listen, --state" in log
        )


def test_configuration_invalid_variable_prevents_the_start(tmp_path: Path) -> None:
    environment = CLEAN | {"EDGED_STATE": str(tmp_path), "EDGED_HOSTS_ARENA_MB": "lots"}
    command = [sys.executable, "-m", "edged", "serve"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    wrong = 'EDGED_HOSTS_ARENA_MB: hosts.arena_mb: expected a whole number from 1 to 1048576, got "lots"'
    assert ended.stderr.splitlines() == [f"edged: configuration {wrong}"]
