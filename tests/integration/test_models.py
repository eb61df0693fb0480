"""Adding and removing models: by command, by upload, by copying a file. The daemon serves the present state."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import edged
from edged.errors import AlreadyExists, EdgedError, InvalidInput, NotFound
from edged.events import EngineMoved
from edged.shapes import MODEL_PATH, Scene
from edged.store.store import Store
from tests.integration import onnx_files
from tests.integration.daemon import Daemon, wait_for
from tests.integration.inference_calls import Calls, request


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with Daemon(builds=False) as daemon:
        yield daemon


@pytest.fixture
def building() -> Iterator[Daemon]:
    with Daemon() as daemon:
        yield daemon


def edged_command(*words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **(environment or {})}
    return subprocess.run([sys.executable, "-m", "edged", *words], capture_output=True, text=True, timeout=90, env=env)


def scaled(daemon: Daemon, model: str) -> float:
    """Return the answer of a `scale` model to one."""
    with Calls(daemon.unix) as calls:
        answer = calls.infer(request(model, np.ones((1, 4), np.float32)))
    return float(np.frombuffer(answer.raw_output_contents[0], np.float32)[0])


def test_add_list_infer_remove_by_command(daemon: Daemon, tmp_path: Path) -> None:
    target = {"EDGED_TARGET": daemon.unix}
    added = edged_command("models", "add", "mine", str(MODEL_PATH), "--set", "thresholds.score=0.4", environment=target)
    assert added.returncode == 0, added.stderr
    daemon.ready("mine")
    listed = json.loads(edged_command("models", "list", "--json", environment=target).stdout)
    mine = next(m for m in listed["models"] if m["name"] == "mine")
    assert mine["family"] == "ultralytics"
    assert mine["settings"] == {"thresholds.score": "0.4"}
    picture = tmp_path / "scene.png"
    import cv2

    cv2.imwrite(str(picture), Scene(5).frame(0)[0])
    found = edged_command("infer", "mine", str(picture), "--json", "--target", daemon.unix)
    assert found.returncode == 0, found.stderr
    assert len(json.loads(found.stdout)["predictions"]) >= 1
    assert edged_command("models", "remove", "mine", environment=target).returncode == 0
    with daemon.client() as client:
        wait_for("the model is removed", lambda: all(m.name != "mine" for m in client.models()))
    gone = edged_command("infer", "mine", str(picture), "--target", daemon.unix)
    assert gone.returncode == 1
    assert gone.stderr.count("\n") == 1
    assert "'mine'" in gone.stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"This is not a model.\n", "not an ONNX model"), (MODEL_PATH.read_bytes()[:5000], "it is truncated")],
    ids=["text", "truncated"],
)
def test_add_refused_upload_leaves_nothing(daemon: Daemon, tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "bad.onnx"
    file.write_bytes(content)
    before = set(daemon.models.rglob("*"))
    with daemon.client() as client, pytest.raises(EdgedError, match=words):
        client.add_model("bad", file)
    assert set(daemon.models.rglob("*")) == before


def test_add_model_that_no_runtime_opens_is_refused(daemon: Daemon, tmp_path: Path) -> None:
    file = onnx_files.identity(tmp_path / "odd.onnx", "FP32", "Frobnicate", "com.example")
    with daemon.client() as client, pytest.raises(InvalidInput, match="Frobnicate"):
        client.add_model("odd", file)


def test_add_taken_or_invalid_name_is_refused(daemon: Daemon, tmp_path: Path) -> None:
    file = onnx_files.scale(tmp_path / "two.onnx", 2)
    with daemon.client() as client:
        client.add_model("two", file)
        with pytest.raises(AlreadyExists):
            client.add_model("two", file)
        for name in ("../two", "", ".two", "a/b", "x" * 200):
            with pytest.raises(EdgedError):
                client.add_model(name, file)
        with pytest.raises(NotFound):
            client.remove_model("missing")


def test_add_model_with_external_data_uploads_it(daemon: Daemon, tmp_path: Path) -> None:
    file = onnx_files.convolutions(tmp_path / "big.onnx", external=True)
    assert (tmp_path / "weights.bin").exists()
    with daemon.client() as client:
        client.add_model("external", file)
    daemon.ready("external")
    assert (daemon.models / "external" / "1" / "weights.bin").read_bytes() == (tmp_path / "weights.bin").read_bytes()


def test_file_copied_into_the_repository_is_served_and_its_replacement_takes_over(daemon: Daemon) -> None:
    place = daemon.models / "dropped.onnx"
    onnx_files.scale(daemon.home / "next.onnx", 2).rename(place)
    daemon.ready("dropped")
    assert scaled(daemon, "dropped") == 2
    onnx_files.scale(daemon.home / "next.onnx", 3).rename(place)
    wait_for("the new file answers", lambda: scaled(daemon, "dropped") == 3)
    place.unlink()
    with daemon.client() as client:
        wait_for("the model is removed", lambda: all(m.name != "dropped" for m in client.models()))


def test_commands_without_a_daemon_read_the_folders(tmp_path: Path) -> None:
    state, cache = str(tmp_path / "state"), str(tmp_path / "cache")
    added = edged_command("models", "add", "local", str(MODEL_PATH), "--state", state)
    assert added.returncode == 0, added.stderr
    listed = edged_command("models", "list", "--state", state, "--json")
    assert [m["name"] for m in json.loads(listed.stdout)["models"]] == ["local"]
    engines = edged_command("engines", "list", "--state", state, "--cache", cache, "--json")
    assert {e["state"] for e in json.loads(engines.stdout)["engines"]} == {"absent"}
    again = edged_command("models", "add", "local", str(MODEL_PATH), "--state", state)
    assert again.returncode == 1
    assert "already exists" in again.stderr
    replaced = edged_command("models", "add", "local", str(MODEL_PATH), "--replace", "--state", state)
    changed = edged_command("models", "set", "local", "threads=1", "--state", state, "--json")
    assert (replaced.returncode, json.loads(changed.stdout)) == (0, {"name": "local", "settings": {"threads": "1"}})
    (shown,) = json.loads(edged_command("models", "list", "--state", state, "--json").stdout)["models"]
    assert (shown["version"], shown["settings"]) == ("2", {"threads": "1"})


@pytest.mark.long
def test_in_process_use_shares_the_store(tmp_path: Path) -> None:
    picture, truth = Scene(5).frame(3)
    with edged.load(MODEL_PATH, cache=tmp_path) as model:
        result = model.infer(picture)
    assert len(result.detections) >= len(truth) - 1
    assert result.json()["image"] == {"width": 640, "height": 480}
    built = {path.name for path in (tmp_path / "engines").iterdir()}
    record = Store(tmp_path).records()[model.engine]
    assert record.cost is not None
    assert model.speed == pytest.approx(1 / record.cost)
    with edged.load(MODEL_PATH, cache=tmp_path) as again:
        assert (again.engine, again.speed) == (model.engine, model.speed)
    assert {path.name for path in (tmp_path / "engines").iterdir()} == built


def test_broken_replacement_leaves_the_model_serving(daemon: Daemon) -> None:
    place = daemon.models / "steady.onnx"
    onnx_files.scale(daemon.home / "next.onnx", 5).rename(place)
    daemon.ready("steady")
    (daemon.home / "next.onnx").write_bytes(b"\x08\x09 broken")
    (daemon.home / "next.onnx").rename(place)
    wait_for(
        "the refused change is logged",
        lambda: "model steady changed on disk; its previous version serves" in daemon.log.read_text(),
    )
    assert scaled(daemon, "steady") == 5
    onnx_files.scale(daemon.home / "next.onnx", 7).rename(place)
    wait_for("the repaired file answers", lambda: scaled(daemon, "steady") == 7)


def test_second_daemon_with_the_same_state_is_refused(daemon: Daemon) -> None:
    second = edged_command("serve", "--state", str(daemon.state), "--listen", "localhost:0")
    assert second.returncode == 2
    assert "another daemon uses the state directory" in second.stderr


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("0.0.0.0:0", "reachable from other machines"),
        ("nonsense", "neither unix:PATH nor HOST:PORT"),
        ("unix:/" + "x" * 120, "longer than the 107 bytes"),
        ("unix:/etc/hostname", "not a socket"),
    ],
)
def test_serve_unusable_address_exits_with_one_line(tmp_path: Path, address: str, words: str) -> None:
    folders = ("--state", str(tmp_path / "s"), "--cache", str(tmp_path / "c"))
    refused = edged_command("serve", "--listen", address, *folders)
    assert refused.returncode == 2
    assert words in refused.stderr
    assert refused.stderr.strip().count("\n") == 0


def test_model_is_replaced_and_set_while_it_answers(daemon: Daemon, tmp_path: Path) -> None:
    answers: list[float | Exception] = []
    stop = threading.Event()

    def keep_asking() -> None:
        while not stop.is_set():
            try:
                answers.append(scaled(daemon, "swapped"))
            except Exception as error:
                answers.append(error)

    with daemon.client() as client:
        client.add_model("swapped", onnx_files.scale(tmp_path / "two.onnx", 2), {"threads": "1"})
        daemon.ready("swapped")
        asking = threading.Thread(target=keep_asking)
        asking.start()
        try:
            wait_for("the old one answers", lambda: 2.0 in answers)
            words = ("models", "add", "swapped", str(onnx_files.scale(tmp_path / "three.onnx", 3)), "--replace")
            done = edged_command(*words, "--target", daemon.unix)
            assert done.returncode == 0, done.stderr
            wait_for("the new one answers", lambda: 3.0 in answers)
            done = edged_command("models", "set", "swapped", "precisions=fp32", "threads=", "--target", daemon.unix)
            assert (done.returncode, done.stdout) == (0, "model swapped: precisions = fp32\n"), done.stderr
            (model,) = (each for each in client.models() if each.name == "swapped")
            assert (model.version, model.settings) == ("2", {"precisions": "fp32"})
            for broken, words in (({"threads": "many"}, "threads"), ({"family": "yolox"}, "yolox")):
                with pytest.raises(EdgedError, match=words):
                    client.set_model("swapped", broken)
            with pytest.raises(NotFound):
                client.set_model("missing", {"threads": "1"})
        finally:
            stop.set()
            asking.join()
    assert [answer for answer in answers if isinstance(answer, Exception)] == []
    assert answers == sorted(answers), "the old model does not answer after the new one"
    assert (daemon.models / "swapped" / "edged.toml").read_text() == '"precisions" = "fp32"\n'


def test_changed_settings_apply_without_a_restart(daemon: Daemon) -> None:
    picture = Scene(5, shapes=5).frame(0)[0]
    with daemon.client() as client:
        client.add_model("tuned", MODEL_PATH)
        daemon.ready("tuned")
        assert len(client.infer("tuned", picture).detections) > 1
        (daemon.models / "tuned" / "edged.toml").write_text("thresholds.max_detections = 1\n")
        wait_for("the setting applies", lambda: len(client.infer("tuned", picture).detections) == 1)
        (daemon.models / "tuned" / "edged.toml").write_text("thresholds.scores = 1\n")
        wait_for("the log names the key", lambda: "thresholds.score" in daemon.log.read_text())
        assert len(client.infer("tuned", picture).detections) == 1


@pytest.mark.long
def test_events_report_a_models_life_and_resume(building: Daemon) -> None:
    with building.client() as client:
        client.add_model("told", onnx_files.scale(building.home / "told.onnx", 1234))
        building.settled("told")
        mine = [e for e in client.events() if e.model == "told"]
        states = [e.what.state for e in mine if isinstance(e.what, EngineMoved)]
        assert mine[0].kind == "model_read"
        assert states[:4] == ["queued", "building", "verifying", "ready"]
        assert any(e.kind == "engine_serves" for e in mine)
        numbers = [e.sequence for e in client.events()]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert next(e.sequence for e in client.events(after=numbers[-2])) == numbers[-1]
        following = client.events(after=numbers[-1], follow=True)
        client.remove_model("told")
        assert next(e for e in following if e.model == "told").kind == "model_removed"
        following.close()
    listed = edged_command("events", "--json", "--target", building.unix)
    assert [json.loads(line)["sequence"] for line in listed.stdout.splitlines()][:1] == [numbers[0]]


def test_in_process_use_names_the_unusable_folder() -> None:
    from edged.errors import ConfigError

    with pytest.raises(ConfigError, match="/proc/nowhere"):
        edged.load(MODEL_PATH, cache="/proc/nowhere")
