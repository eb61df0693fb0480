"""Rollouts over several real daemons on loopback."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import onnx
import pytest

from edged.api_types import ModelInfo
from edged.shapes import MODEL_PATH
from tests.integration.daemon import Daemon, wait_for

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]


class Fleet:
    """Daemons, and the command line of an operator."""

    def __init__(self, home: Path, daemons: list[Daemon]) -> None:
        self.home, self.daemons = home, daemons
        self.inventory = home / "boxes.toml"
        self.inventory.write_text(
            "".join(f'[boxes.box{n}]\ntarget = "{each.unix}"\n' for n, each in enumerate(daemons, 1))
        )
        self.environment = {**os.environ, "XDG_DATA_HOME": str(home / "data")}

    def command(self, *words: str) -> list[str]:
        where = [] if words[0] in ("resume", "show", "list") else ["--inventory", str(self.inventory), "--watch", "1"]
        return [sys.executable, "-m", "edged", "fleet", "rollout", *words, *where]

    def rollout(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words), capture_output=True, text=True, timeout=300, env=self.environment, cwd=self.home
        )

    def model(self, daemon: Daemon, name: str = "doors") -> ModelInfo | None:
        with daemon.client() as client:
            return next((each for each in client.models() if each.name == name), None)

    def digests(self) -> list[str]:
        return [found.digest[:6] if (found := self.model(each)) is not None else "" for each in self.daemons]

    def record(self) -> dict[str, Any]:
        (place,) = (self.home / "data" / "edged" / "rollouts").glob("*.json")
        found: dict[str, Any] = json.loads(place.read_text())
        return found


@pytest.fixture
def fleet(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    count: int = getattr(request, "param", 3)
    with ExitStack() as stack:
        made = [stack.enter_context(Daemon(builds=False, listen=("unix:HOME/edged.sock",))) for _ in range(count)]
        yield Fleet(tmp_path, made)


def variant(folder: Path, number: int) -> Path:
    """Return a copy of the embedded detector with another digest."""
    proto = onnx.load(MODEL_PATH)
    proto.doc_string = f"variant {number}"
    place = folder / f"variant{number}.onnx"
    onnx.save(proto, place)
    return place


def test_model_goes_to_all_boxes_in_waves(fleet: Fleet, tmp_path: Path) -> None:
    done = fleet.rollout("models", "doors", str(variant(tmp_path, 1)), "--then", "2", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "wave 2: box2, box3" in done.stdout
    assert fleet.digests() == ["", "", ""]
    done = fleet.rollout("models", "doors", str(variant(tmp_path, 1)), "--then", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all 3 boxes are changed" in done.stdout
    assert len(set(fleet.digests())) == 1
    found = fleet.record()
    assert found["state"] == "done"
    assert {box["state"] for box in found["boxes"].values()} == {"done"}
    shown = fleet.rollout("show", found["id"])
    assert "begun by" in shown.stdout


@pytest.mark.parametrize("fleet", [pytest.param(8, marks=pytest.mark.long)], indirect=True)
def test_bad_canary_stops_at_wave_one_and_is_rolled_back(fleet: Fleet, tmp_path: Path) -> None:
    first = variant(tmp_path, 1)
    for daemon in fleet.daemons:
        with daemon.client() as client:
            client.add_model("doors", first)
    for daemon in fleet.daemons:
        daemon.ready("doors")
    before = fleet.digests()
    # The second box refuses the new model, because its configuration names one.
    bad = fleet.daemons[1]
    bad.stop()
    bad.config.write_text(f'models.doors = "{first}"\n')
    bad._arguments = (*bad._arguments, "--config", str(bad.config))
    bad.start()
    bad.ready("doors")
    done = fleet.rollout("models", "doors", str(variant(tmp_path, 2)), "--canary", "2")
    assert done.returncode == 1
    assert "aborted: wave 1: box2" in done.stdout
    assert "box1: the previous model serves again" in done.stdout
    assert "wave 2 of" not in done.stdout
    assert fleet.digests() == before
    assert fleet.record()["why"].startswith("wave 1: box2")
    assert {name: box["state"] for name, box in fleet.record()["boxes"].items()} == {
        "box1": "rolled back",
        "box2": "rolled back",
        **{f"box{n}": "waiting" for n in range(3, 9)},
    }


@pytest.mark.long
def test_new_model_that_a_box_refuses_is_removed_from_the_others(fleet: Fleet, tmp_path: Path) -> None:
    bad = fleet.daemons[2]
    bad.stop()
    done = fleet.rollout("models", "doors", str(variant(tmp_path, 1)), "--dry-run")
    assert done.returncode == 1
    assert "nothing was changed, since some boxes do not answer: box3: " in done.stderr
    bad.config.write_text(f'models.doors = "{MODEL_PATH}"\n')
    bad._arguments = (*bad._arguments, "--config", str(bad.config))
    bad.start()
    done = fleet.rollout("models", "doors", str(variant(tmp_path, 1)), "--then", "1")
    assert done.returncode == 1
    assert "aborted: wave 3: box3" in done.stdout
    assert "3 of 3 changed boxes are rolled back" in done.stdout
    assert [fleet.model(each) for each in fleet.daemons[:2]] == [None, None]


@pytest.mark.long
def test_settings_are_taken_back(fleet: Fleet, tmp_path: Path) -> None:
    for daemon in fleet.daemons[:2]:
        with daemon.client() as client:
            client.add_model("doors", MODEL_PATH, settings={"thresholds.score": "0.3"})
        daemon.ready("doors")
    done = fleet.rollout("settings", "doors", "thresholds.score=0.6", "--then", "1")  # box3 has no such model
    assert done.returncode == 1
    assert "no model 'doors'" in done.stdout
    for daemon in fleet.daemons[:2]:
        found = fleet.model(daemon)
        assert found is not None
        assert found.settings["thresholds.score"] == "0.3"


@pytest.mark.long
def test_interrupted_rollout_is_resumed(fleet: Fleet, tmp_path: Path) -> None:
    file = variant(tmp_path, 1)
    process = subprocess.Popen(
        [*fleet.command("models", "doors", str(file), "--then", "1"), "--watch", "60"],
        env=fleet.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    wait_for("the first box is changed", lambda: bool(fleet.digests()[0]), 120)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    found = fleet.record()
    assert found["state"] == "running"
    place = next((tmp_path / "data" / "edged" / "rollouts").glob("*.json"))
    place.write_text(place.read_text().replace('"watch_s": 60.0', '"watch_s": 1.0'))
    shutil.copy(file, tmp_path / "kept.onnx")
    shutil.copy(variant(tmp_path, 2), file)
    assert "has changed since the rollout began" in fleet.rollout("resume", found["id"]).stderr
    shutil.copy(tmp_path / "kept.onnx", file)
    done = fleet.rollout("resume", found["id"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(set(fleet.digests())) == 1
    first = fleet.model(fleet.daemons[0])
    assert first is not None
    assert first.version == "1", "it was not added twice"
    assert "is done and cannot be resumed; begin a new rollout" in fleet.rollout("resume", found["id"]).stderr


def test_rollout_without_several_boxes_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "edged", "fleet", "rollout", "models", "doors", str(MODEL_PATH)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "give --inventory FILE" in done.stderr
