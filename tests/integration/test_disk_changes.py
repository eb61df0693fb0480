"""Files that change, appear and vanish while the daemon runs: it never mistakes one content for another."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edged.shapes import MODEL_PATH
from tests.integration import onnx_files
from tests.integration.daemon import Daemon, wait_for
from tests.integration.test_engine_life import Cameras
from tests.integration.test_models import edged_command, scaled
from tests.waiting import is_running


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with Daemon() as daemon:
        yield daemon


def with_weights(folder: Path, value: float) -> Path:
    """Write y = x * w, with w = `value` in `w.bin` next to the model. The graph file is the same for every value."""
    folder.mkdir(parents=True, exist_ok=True)
    graph = "(float[1,4] x) => (float[1,4] y) { y = Mul(x, w) }"
    outside = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
    weights = {"w": np.full((1, 4), value, np.float32)}
    return onnx_files.write(folder / "weighted.onnx", graph, weights, **outside)


@pytest.mark.long
def test_weights_replaced_during_builds_never_answer_wrongly(daemon: Daemon) -> None:
    first = with_weights(daemon.home / "first", 100)
    second = with_weights(daemon.home / "second", 500)
    for path in (first.parent / "w.bin", first):
        shutil.copy(path, daemon.models / path.name)
    wait_for("the model is read", lambda: "model weighted: read" in daemon.log.read_text())
    shutil.copy(second.parent / "w.bin", daemon.home / "next.bin")
    (daemon.home / "next.bin").rename(daemon.models / "w.bin")  # at once: golden answers and engines do not exist yet
    wait_for("the new weights answer", lambda: scaled(daemon, "weighted") == 500)
    daemon.settled("weighted")
    assert scaled(daemon, "weighted") == 500
    shutil.copy(first.parent / "w.bin", daemon.home / "next.bin")
    (daemon.home / "next.bin").rename(daemon.models / "w.bin")
    wait_for("the old weights answer again", lambda: scaled(daemon, "weighted") == 100)
    engines = daemon.settled("weighted")
    assert scaled(daemon, "weighted") == 100
    assert not [e for e in engines if e.state == "rejected"], "golden answers of one content judged the other"


@pytest.mark.long
def test_model_replaced_after_reading_is_not_compared_with_old_answers(daemon: Daemon) -> None:
    place = daemon.models / "racing.onnx"
    for factor in (21.0, 22.0, 21.0, 22.0):
        onnx_files.scale(daemon.home / "next.onnx", factor).rename(place)
        time.sleep(0.4)
    engines = daemon.settled("racing")
    wait_for("the last one answers", lambda: scaled(daemon, "racing") == 22)
    assert not [e for e in engines if e.state == "rejected"]


def resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


@pytest.mark.long
def test_models_removed_while_opening_are_not_kept_in_memory(daemon: Daemon) -> None:
    onnx_files.scale(daemon.models / "warm.onnx", 3)
    daemon.ready("warm")
    random = np.random.default_rng(1)
    sizes = []
    for turn in range(4):
        weights = {"w": random.standard_normal((4, 8 << 20)).astype(np.float32)}  # 128 MB
        graph = f"(float[1,4] x) => (float[1,{8 << 20}] y) {{ y = MatMul(x, w) }}"
        onnx_files.write(daemon.home / "next.onnx", graph, weights)
        name = f"churn{turn}"
        (daemon.home / "next.onnx").rename(daemon.models / f"{name}.onnx")
        wait_for("the model is read", lambda n=name: f"model {n}: read" in daemon.log.read_text())
        (daemon.models / f"{name}.onnx").unlink()
        wait_for("the model is removed", lambda n=name: f"model {n}: removed" in daemon.log.read_text())
        time.sleep(1.5)
        sizes.append(max(resident_mb(pid) for pid in daemon.hosts()))
    assert sizes[-1] < sizes[0] + 200, sizes


@pytest.mark.long
def test_models_of_equal_content_share_their_engines(daemon: Daemon) -> None:
    for name in ("twin1", "twin2", "twin3"):
        onnx_files.scale(daemon.models / f"{name}.onnx", 33)
    made = {}
    for name in ("twin1", "twin2", "twin3"):
        made[name] = {(e.key, e.created_unix_s) for e in daemon.settled(name) if e.created_unix_s}
    assert made["twin1"] == made["twin2"] == made["twin3"]
    for key, _ in made["twin1"]:
        assert daemon.log.read_text().count(f"engine {key[:12]} (onnxruntime/all) is ready") <= 1


def test_file_name_that_is_not_utf8_is_reported_and_ignored(daemon: Daemon) -> None:
    odd = os.fsencode(daemon.models) + b"/bad\xff.onnx"
    shutil.copy(MODEL_PATH, odd)
    with daemon.client() as client:
        wait_for("it is listed", lambda: [m for m in client.models() if "bad" in m.name and m.state == "refused"])
    os.unlink(odd)


def test_file_and_folder_of_one_name_are_listed_and_removed_together(daemon: Daemon) -> None:
    onnx_files.scale(daemon.models / "both.onnx", 2)
    (daemon.models / "both" / "1").mkdir(parents=True)
    onnx_files.scale(daemon.models / "both" / "1" / "model.onnx", 3)
    with daemon.client() as client:
        wait_for(
            "both are listed", lambda: [m for m in client.models() if m.name == "both" and "both.onnx" in m.reason]
        )
        client.remove_model("both")
        wait_for("the model is removed", lambda: all(m.name != "both" for m in client.models()))
    assert not (daemon.models / "both.onnx").exists()
    assert not (daemon.models / "both").exists()


def test_model_name_in_any_script_serves_and_can_be_removed(daemon: Daemon) -> None:
    onnx_files.scale(daemon.models / "модель 7.onnx", 7)
    daemon.ready("модель 7")
    assert scaled(daemon, "модель 7") == 7
    with daemon.client() as client:
        client.remove_model("модель 7")


def test_models_add_prints_the_digest(daemon: Daemon, tmp_path: Path) -> None:
    file = onnx_files.scale(tmp_path / "fresh.onnx", 44)
    added = edged_command("models", "add", "fresh", str(file), "--json", "--target", daemon.unix)
    digest = subprocess.run(["sha256sum", str(file)], capture_output=True, text=True, check=True).stdout.split()[0]
    assert digest in added.stdout


def test_modules_in_the_callers_folder_are_not_imported(tmp_path: Path) -> None:
    (tmp_path / "onnx.py").write_text("raise SystemExit('imported from the working directory')\n")
    (tmp_path / "statistics.py").write_text("raise SystemExit('imported from the working directory')\n")
    edged = Path(sys.executable).with_name("edged")
    command = [str(edged), "inspect", str(MODEL_PATH), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("delay", [0.1])
def test_daemon_killed_while_a_host_starts_leaves_no_host(delay: float) -> None:
    with Daemon("--model", f"shapes={MODEL_PATH}", builds=False) as daemon:
        hosts = wait_for("a host appears", daemon.hosts)
        time.sleep(delay)
        daemon.kill()
        wait_for("the host has exited", lambda: not any(is_running(pid) for pid in hosts), 20)
        killed = daemon.killed
        daemon.start()
        daemon.ready("shapes")
        assert not list(Path(tempfile.gettempdir()).glob(f"edged-{killed}-*"))


def test_stopping_with_open_streams_ends_them_at_once(tmp_path: Path) -> None:
    config = tmp_path / "edged.toml"
    config.write_text("stop_seconds = 600.0\n")  # far more than two streams need to close
    with Daemon("--model", f"shapes={MODEL_PATH}", "--config", str(config), builds=False) as daemon:
        daemon.ready("shapes")
        with Cameras(daemon, 2):
            time.sleep(0.5)
            began = time.monotonic()
            assert daemon.stop(400) == 0
            took = time.monotonic() - began
        assert took < 300, "the daemon waited for the cameras to stop"
        assert not list(daemon.home.glob("*.sock"))


@pytest.mark.long
def test_hosts_start_with_a_long_temporary_directory(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    with Daemon("--model", f"shapes={MODEL_PATH}", environment={**os.environ, "TMPDIR": str(long)}) as daemon:
        daemon.ready("shapes")
