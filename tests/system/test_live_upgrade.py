"""Another version of a runtime is installed under a daemon that serves: no request fails, the new one takes over."""

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
from tests.integration.test_engine_life import Cameras

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
_ROOT = Path(__file__).parents[2]
_OLDER = {"openvino": "2026.3.1", "onnxruntime": "1.23.2"}


def pip(python: Path, *words: str) -> None:
    command = [str(python), "-m", "pip", *words, "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        pytest.skip(f"no package index: {done.stderr.strip().splitlines()[-1][:200]}")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of its own, so that packages can be exchanged in it."""
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


def states(daemon: Daemon, fact: str, version: str) -> list[str]:
    """The states of all engines that were built with a version of a runtime."""
    with daemon.client() as client:
        return [e.state for e in client.engines("shapes") if e.parts.get(fact) == version]


@pytest.mark.parametrize("package", ["openvino", "onnxruntime"])
def test_another_version_takes_over_under_load_and_back(daemon: Daemon, python: Path, package: str) -> None:
    daemon.settled("shapes")
    first, fact = installed(python, package), f"runtime.{package}"
    for before, version in ((first, _OLDER[package]), (_OLDER[package], first)):
        noticed = f"{fact}: {before} -> {version}"
        with Cameras(daemon, 2) as cameras:
            pip(python, "install", f"{package}=={version}")
            wait_for("the change is noticed", lambda words=noticed: words in daemon.log.read_text(), 60)
            daemon.settled("shapes")
            with daemon.client() as client:
                reasons = [item for item in client.explain("shapes") if item.backend == package]
            time.sleep(1)
        assert cameras.errors == []
        assert cameras.sent == [a + s for a, s in zip(cameras.answered, cameras.skipped, strict=True)]
        assert set(states(daemon, fact, version)) <= {"ready", "serving"}
        assert set(states(daemon, fact, before)) == {"stale"}
        assert reasons


def test_a_runtime_that_is_removed_while_it_serves_is_replaced(daemon: Daemon, python: Path) -> None:
    daemon.settled("shapes")
    first = installed(python, "openvino")
    with Cameras(daemon, 2) as cameras:
        pip(python, "uninstall", "--yes", "openvino")
        wait_for("the removal is noticed", lambda: f"runtime.openvino: {first} -> absent" in daemon.log.read_text(), 90)
        engines = daemon.settled("shapes")
        time.sleep(1)
    assert cameras.errors == []
    assert cameras.sent == [a + s for a, s in zip(cameras.answered, cameras.skipped, strict=True)]
    serving = next(e for e in engines if e.state == "serving")
    assert serving.backend == "onnxruntime"
    pip(python, "install", f"openvino=={first}")


def test_the_reason_is_told_by_name(daemon: Daemon, python: Path) -> None:
    daemon.settled("shapes")
    first = installed(python, "openvino")
    daemon.stop()
    pip(python, "install", f"openvino=={_OLDER['openvino']}")
    command = [str(python), "-m", "edged", "engines", "why", "shapes", "--json"]
    daemon.start()
    daemon.ready("shapes")
    done = subprocess.run([*command, "--target", daemon.unix], capture_output=True, text=True, check=True, timeout=60)
    told = [item for item in json.loads(done.stdout)["explanations"] if item["backend"] == "openvino"]
    pip(python, "install", f"openvino=={first}")
    assert told[0]["state"] in ("absent", "queued", "building", "verifying", "ready", "serving")
    if told[0]["changes"]:  # it was asked before the new engine was there
        assert f"openvino {first} → {_OLDER['openvino']}" in told[0]["summary"]
