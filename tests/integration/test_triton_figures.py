"""Statistics, trace and log settings as NVIDIA's own client sees them, in its own process."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration import onnx_files
from tests.integration.daemon import Daemon, wait_for

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tritonclient") is None, reason="tritonclient, NVIDIA's client, is missing"
)


@pytest.fixture(scope="module")
def served() -> Iterator[Daemon]:
    daemon = Daemon(builds=False)
    for name in ("one", "two"):
        onnx_files.identity(daemon.models / f"{name}.onnx", "FP32")
    with daemon:
        daemon.ready("one")
        yield daemon


@pytest.fixture(scope="module")
def seen(served: Daemon) -> Any:
    program = Path(__file__).with_name("triton_figures.py")
    command = [sys.executable, str(program), served.tcp, "one"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_reads_statistics(seen: Any) -> None:
    assert (seen["grown"], seen["version"], seen["all"]) == (6, "1", ["one", "two"])


def test_trace_settings_of_a_model_are_set_and_cleared(seen: Any, served: Daemon) -> None:
    wanted = {"trace_level": ["TIMESTAMPS"], "trace_rate": ["2"], "trace_file": ["client.json"], "trace_count": ["3"]}
    assert {name: seen["trace set"][name] for name in wanted} == wanted
    assert seen["trace after"]["trace_count"] == ["0"]
    assert seen["trace cleared"] == seen["trace of all"]
    assert seen["trace of all"]["trace_level"] == ["OFF"]
    path = served.state / "traces" / "client.json"
    wait_for("the traces are written", path.exists, 20)

    def asked() -> list[str]:
        return [entry["request_id"] for entry in json.loads(path.read_text()) if "request_id" in entry]

    wait_for("three are traced", lambda: len(asked()) == 3, 20)
    assert asked() == ["1", "3", "5"]


def test_log_settings_are_set(seen: Any) -> None:
    assert seen["log set"]["settings"]["log_verbose_level"] == {"uint32_param": 1}
    assert seen["log set"]["settings"]["log_info"] == {"bool_param": False}
    assert seen["log reset"] == seen["log"]
    assert seen["log"]["settings"]["log_format"] == {"string_param": "default"}
