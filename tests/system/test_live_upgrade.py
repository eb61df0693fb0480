"""A runtime is replaced by another version while the daemon serves: no request fails, and new engines take over."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edged.shapes import MODEL_PATH
from tests.integration.daemon import Daemon, wait_for
from tests.system.load import Load

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
_ROOT = Path(__file__).parents[2]
_OLDER = {"openvino": "2026.3.1", "onnxruntime": "1.23.2"}


def pip(python: Path, *words: str) -> None:
    command = [str(python), "-m", "pip", *words, "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        pytest.skip(f"no package index is reachable: {done.stderr.strip().splitlines()[-1][:200]}")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment, so that tests can change its packages."""
    home = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True, timeout=120)
    python = home / "bin" / "python"
    pip(python, "install", "--upgrade", "pip>=25")
    pip(python, "install", "--editable", f"{_ROOT}[openvino]")
    return python


@pytest.fixture
def daemon(python: Path) -> Iterator[Daemon]:
    with Daemon("--model", f"shapes={MODEL_PATH}", python=python) as daemon:
        yield daemon


def installed(python: Path, package: str) -> str:
    question = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([str(python), "-c", question], capture_output=True, text=True, check=True).stdout.strip()


def states(daemon: Daemon, fact: str, version: str) -> set[str]:
    """Return the states of all exact engines built with a version of a runtime. Less exact ones may be rejected."""
    with daemon.client() as client:
        found = [e for e in client.engines("shapes") if e.parts.get(fact) == version]
    return {e.state for e in found if e.precision == "fp32"}


@pytest.mark.parametrize("package", ["openvino", "onnxruntime"])
def test_runtime_downgrade_and_upgrade_under_load_fail_no_request(daemon: Daemon, python: Path, package: str) -> None:
    """Down to an older version and up again, under constant load from cameras and tritonclient."""
    daemon.settled("shapes")
    first, fact = installed(python, package), f"runtime.{package}"
    for before, version in ((first, _OLDER[package]), (_OLDER[package], first)):
        noticed = f"{fact}: {before} -> {version}"
        with Load(daemon) as load:
            pip(python, "install", f"{package}=={version}")
            wait_for("the change is noticed", lambda words=noticed: words in daemon.log.read_text(), 60)
            with daemon.client() as client:
                reasons = {e.wanted: e.summary for e in client.explain("shapes") if e.backend == package}
            daemon.settled("shapes", 180)
            time.sleep(1)
        assert load.failures == []
        assert load.asked > 0
        assert states(daemon, fact, version) <= {"ready", "serving"}
        assert states(daemon, fact, before) == {"stale"}
        if version != first:  # no engine of this version was in the store before
            assert any(f"{package} {before} → {version}" in reason for reason in reasons.values()), reasons


@pytest.mark.parametrize("package", ["openvino", "onnxruntime"])
def test_runtime_removed_while_serving_fails_no_request(daemon: Daemon, python: Path, package: str) -> None:
    """Without OpenVINO, ONNX Runtime serves. Without ONNX Runtime (the reference), existing engines still serve."""
    before = {e.key: e for e in daemon.settled("shapes")}
    first = installed(python, package)
    with Load(daemon) as load:
        pip(python, "uninstall", "--yes", package)
        noticed = f"runtime.{package}: {first} -> absent"
        wait_for("the removal is noticed", lambda: noticed in daemon.log.read_text(), 90)
        time.sleep(5)
        with daemon.client() as client:
            during = list(client.engines("shapes"))
    pip(python, "install", f"{package}=={first}")
    assert load.failures == []
    serving = next(e for e in during if e.state == "serving")
    assert serving.backend != package or serving.key in before
    if package == "openvino":
        assert serving.backend == "onnxruntime"
    wait_for("it is noticed", lambda: f"runtime.{package}: absent -> {first}" in daemon.log.read_text(), 90)
    after = daemon.settled("shapes")
    assert {e.key for e in after if e.state == "serving"} <= before.keys()


def test_engines_why_names_the_changed_library(daemon: Daemon, python: Path) -> None:
    daemon.settled("shapes")
    first = installed(python, "openvino")
    daemon.stop()
    pip(python, "install", f"openvino=={_OLDER['openvino']}")
    command = [str(python), "-m", "edged", "engines", "why", "shapes", "--json"]
    daemon.start()
    daemon.ready("shapes")
    done = subprocess.run([*command, "--target", daemon.unix], capture_output=True, text=True, check=True, timeout=60)
    reported = [item for item in json.loads(done.stdout)["explanations"] if item["backend"] == "openvino"]
    pip(python, "install", f"openvino=={first}")
    assert reported[0]["state"] in ("absent", "queued", "building", "verifying", "ready", "serving")
    if reported[0]["changes"]:  # it ran before the new engine existed
        assert f"openvino {first} → {_OLDER['openvino']}" in reported[0]["summary"]
