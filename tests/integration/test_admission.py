"""Admission as a user sees it: the command, and a daemon with models that would hang its hosts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edged import events
from edged.errors import InvalidInput
from tests import models
from tests.integration.daemon import Daemon, wait_for
from tests.unit.test_admission import ENDLESS
from tests.waiting import wait, workers

pytestmark = pytest.mark.timeout(300)


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Return an environment with its own home."""
    homes = {name: str(folder / "home") for name in ("HOME", "EDGED_CACHE", "EDGED_STATE", "XDG_RUNTIME_DIR")}
    return {**os.environ, **homes, **more}


def edged(folder: Path, *line: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    (folder / "home").mkdir(exist_ok=True)
    command = [sys.executable, "-m", "edged", *map(str, line)]
    return subprocess.run(
        command, env=environment(folder, **more), capture_output=True, text=True, check=False, timeout=250
    )


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.long
def test_inspect_reports_problems_as_text_and_json(tmp_path: Path) -> None:
    good = models.save(models.conv(), tmp_path / "good.onnx")
    bad = models.save(models.identity(opset=500), tmp_path / "bad.onnx")
    served = edged(tmp_path, "inspect", good, "--json")
    assert (served.returncode, served.stderr) == (0, "")
    reported = json.loads(served.stdout)
    assert (reported["ok"], reported["stage"], reported["category"], reported["warnings"]) == (
        True,
        "inference",
        None,
        [],
    )
    assert all(backend == {"ok": True, "message": ""} for backend in reported["backends"].values())
    refused = edged(tmp_path, "inspect", bad, "--json")
    assert refused.returncode == 2
    reported = json.loads(refused.stdout)
    assert (reported["ok"], reported["stage"], reported["category"]) == (False, "opset", "opset_too_new")
    assert reported["message"]
    assert reported["remedy"]
    assert reported["inputs"], "the facts are reported nevertheless"
    table = edged(tmp_path, "inspect", bad)
    assert table.returncode == 2
    assert "opset: opset too new" in table.stdout
    assert "remedy" in table.stdout
    missing = json.loads(edged(tmp_path, "inspect", tmp_path / "gone.onnx", "--json").stdout)
    assert (missing["stage"], missing["category"]) == ("file", "missing")
    assert set(reported) == set(missing)


def test_inspect_works_if_python_is_found_through_a_relative_folder(tmp_path: Path) -> None:
    path = models.save(models.conv(), tmp_path / "good.onnx")
    (tmp_path / "home").mkdir()
    python = Path(sys.executable)
    asked = subprocess.run(
        [python.name, "-m", "edged", "inspect", str(path)],
        env=environment(tmp_path, PATH=python.parent.name),
        cwd=python.parent.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert (asked.returncode, asked.stderr) == (0, "")


def test_inspect_failure_is_one_line(tmp_path: Path) -> None:
    path = models.save(models.conv(), tmp_path / "good.onnx")
    (tmp_path / "home").mkdir()
    command = [sys.executable, "-m", "edged", "inspect", str(path), "--json"]
    with subprocess.Popen(
        command, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as asked:
        wait(lambda: bool(workers(asked.pid)), "the child", seconds=60)
        for child in workers(asked.pid):
            os.kill(child, signal.SIGKILL)
        out, reported = asked.communicate(timeout=120)
    assert (asked.returncode, json.loads(out)["code"]) == (1, "BUILD_FAILED")
    assert "SIGKILL" in reported
    assert reported.count("\n") == 1


def test_models_add_refused_model_leaves_no_files(tmp_path: Path) -> None:
    state = tmp_path / "state"
    path = models.save(ENDLESS, tmp_path / "model.onnx")
    refused = edged(tmp_path, "models", "add", "m", path, "--state", state, EDGED_ADMISSION_SECONDS="3")
    assert refused.returncode == 2
    assert "did not end within" in refused.stderr
    assert "admission.seconds" in refused.stderr
    assert [name for name in tree(state) if name.startswith("models/")] == []


@pytest.mark.long
def test_daemon_refuses_endless_model_and_serves_the_others(tmp_path: Path) -> None:
    config = tmp_path / "edged.toml"
    config.write_text("[admission]\nseconds = 4.0\n")
    models.save(models.matmul(), tmp_path / "good.onnx")
    with Daemon("--config", str(config), builds=False) as daemon, daemon.client() as client:
        models.save(ENDLESS, daemon.models / "bad" / "1" / "model.onnx")
        client.add_model("good", tmp_path / "good.onnx")

        def refused() -> str:
            return next((m.reason for m in client.models() if m.name == "bad" and m.state == "refused"), "")

        reason = wait_for("the model is refused", refused, seconds=200)
        assert "did not end within" in reason
        assert "admission.seconds" in reason
        (bad,) = (m for m in client.models() if m.name == "bad")
        assert (bad.stage, bad.category) == ("inference", "timed_out")
        (event,) = (event for event in client.events() if isinstance(event.what, events.ModelRefused))
        assert (event.model, event.json()["stage"], event.json()["category"]) == ("bad", "inference", "timed_out")
        daemon.ready("good")
        before = tree(daemon.models)
        with pytest.raises(InvalidInput, match="did not end within"):
            client.add_model("worse", models.save(ENDLESS, tmp_path / "worse.onnx"))
        assert tree(daemon.models) == before
