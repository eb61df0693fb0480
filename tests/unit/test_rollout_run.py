"""A rollout over boxes that stand in for daemons: what is done again and taken back after each interruption."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from edged.cli import remote
from edged.cli.inventory import Box
from edged.cli.rollout import changes, commands, record, run
from edged.cli.rollout.plan import Figures
from edged.cli.rollout.record import BoxRecord, Order, Record
from edged.errors import DaemonUnavailable, EdgedError, InvalidInput, NotFound, Refused

NAMES = ("b1", "b2", "b3", "b4")


class Boxes:
    """Boxes whose model is "old" or "new". `fails`: on which the change fails; `stays`: on which it cannot be taken
    back; `dies`: during what the command is killed; `alarm`: boxes with a new alarm."""

    def __init__(self) -> None:
        self.model = dict.fromkeys(NAMES, "old")
        self.fails: set[str] = set()
        self.stays: set[str] = set()
        self.dies = ""
        self.alarm: set[str] = set()
        self.did: list[str] = []

    def of(self, target: str) -> str:
        return target.removeprefix("unix:/").partition(".")[0]

    def plan(self) -> str:
        return "change it"

    def had(self, client: Any) -> dict[str, str]:
        return {"model": self.model[self.of(client.target)]}

    def apply(self, client: Any, had: Any) -> None:
        self._do("apply", client)
        self.model[self.of(client.target)] = "new"
        if self.of(client.target) in self.fails:
            raise Refused("no engine serves")

    def undo(self, client: Any, had: Any) -> str:
        self._do("undo", client)
        if self.of(client.target) in self.stays:
            raise DaemonUnavailable("the link is down")
        self.model[self.of(client.target)] = had["model"]
        return "back"

    def measure(self, client: Any, model: str) -> Figures:
        self._do("measure", client)
        is_new = self.model[self.of(client.target)] == "new"
        return Figures(alarms={"slow": "slow"} if is_new and self.of(client.target) in self.alarm else {})

    def _do(self, what: str, client: Any) -> None:
        word = f"{what} {self.of(client.target)}"
        if self.dies == word or (
            self.dies == f"watch {self.of(client.target)}" and what == "measure" and self._changed(client)
        ):
            raise KeyboardInterrupt
        self.did.append(word)

    def _changed(self, client: Any) -> bool:
        return self.model[self.of(client.target)] == "new"


class _Client:
    def __init__(self, target: str) -> None:
        self.target = target


@pytest.fixture
def boxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Boxes:
    made = Boxes()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(changes, "measure", made.measure)

    def call_all(chosen: Any, work: Any, at_once: int = 8) -> Iterator[Any]:
        for box in chosen:
            try:
                yield remote.BoxOutcome(box.name, work(_Client(box.target), lambda update: None))
            except EdgedError as error:
                yield remote.BoxOutcome(box.name, error=str(error))

    monkeypatch.setattr(remote, "call_all", call_all)
    return made


def begin() -> Record:
    made = Record(
        "r", Order("models", "doors"), [["b1"], ["b2", "b3"], ["b4"]], "alarms", 0.0, "", [], [], {}, "me", 0.0
    )
    made.boxes = {name: BoxRecord() for name in NAMES}
    made.save()
    return made


def go(boxes: Boxes, of: Record | None = None) -> bool:
    change: Any = boxes
    return run.run(
        of or record.load("r"), change, [Box(name, f"unix:/{name}.sock") for name in NAMES], lambda text: None
    )


def states() -> list[str]:
    return [box.state for box in record.load("r").boxes.values()]


def test_all_boxes_are_changed_and_watched_once(boxes: Boxes) -> None:
    assert go(boxes, begin())
    assert set(boxes.model.values()) == {"new"}
    assert (record.load("r").state, record.load("r").watched) == ("done", 3)
    assert [word for word in boxes.did if word.startswith("apply")] == [f"apply {name}" for name in NAMES]


@pytest.mark.parametrize("dies", ["apply b1", "apply b3", "watch b2", "measure b4"])
def test_interrupted_rollout_is_completed(boxes: Boxes, dies: str) -> None:
    boxes.dies = dies
    with pytest.raises(KeyboardInterrupt):
        go(boxes, begin())
    boxes.dies = ""
    assert go(boxes)
    assert set(boxes.model.values()) == {"new"}
    assert [word for word in boxes.did if word.startswith("apply")] == [f"apply {name}" for name in NAMES]


def test_wave_that_was_not_watched_to_its_end_is_watched(boxes: Boxes) -> None:
    boxes.dies, boxes.alarm = "watch b1", {"b1"}
    with pytest.raises(KeyboardInterrupt):
        go(boxes, begin())
    boxes.dies = ""
    assert not go(boxes)
    assert "a new alarm" in record.load("r").why
    assert set(boxes.model.values()) == {"old"}
    assert "apply b2" not in boxes.did


@pytest.mark.parametrize("dies", ["undo b1", "undo b2", "undo b3"])
def test_interrupted_abort_is_finished_and_never_goes_forward(boxes: Boxes, dies: str) -> None:
    boxes.fails, boxes.dies = {"b2"}, dies
    with pytest.raises(KeyboardInterrupt):
        go(boxes, begin())
    assert record.load("r").state == "aborting"
    boxes.dies = ""
    assert not go(boxes)
    assert set(boxes.model.values()) == {"old"}
    assert states() == ["rolled back", "rolled back", "rolled back", "waiting"]
    assert record.load("r").state == "aborted"
    assert boxes.did.count("undo b1") == 1
    assert "b2: no engine serves" in record.load("r").why


def test_box_that_could_not_be_rolled_back_is_rolled_back_by_resume(
    boxes: Boxes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inventory, made = tmp_path / "fleet.toml", begin()
    inventory.write_text("".join(f'[boxes.{name}]\ntarget = "unix:/{name}.sock"\n' for name in NAMES))
    made.inventory = str(inventory)
    boxes.fails, boxes.stays = {"b2"}, {"b1"}
    assert not go(boxes, made)
    assert states() == ["not rolled back", "rolled back", "rolled back", "waiting"]
    boxes.stays = set()
    monkeypatch.setattr(changes, "of", lambda order, only_undo: boxes)
    with pytest.raises(typer.Exit):
        commands.resume("r")
    assert set(boxes.model.values()) == {"old"}
    assert [boxes.did.count(f"undo {name}") for name in NAMES] == [2, 1, 1, 0]
    with pytest.raises(InvalidInput, match="begin"):
        commands.resume("r")


def test_undo_needs_no_model_file(tmp_path: Path) -> None:
    order = Order("models", "doors", str(tmp_path / "gone.onnx"), "digest")
    with pytest.raises(EdgedError):
        changes.of(order)
    client: Any = SimpleNamespace(models=list)
    assert changes.of(order, only_undo=True).undo(client, {}) == "nothing had changed"


def test_setting_that_is_too_long_to_be_set_again_is_refused(boxes: Boxes) -> None:
    """A daemon cuts long values in its reports: written back, they would be lost."""
    cut = SimpleNamespace(name="doors", settings={"names": "a,b... (9000 characters)", "thresholds.score": "0.5"})
    client: Any = SimpleNamespace(models=lambda: [cut])
    change = changes.SetModel(Order("settings", "doors", settings={"names": "x"}))
    with pytest.raises(Refused, match="setting 'names', because its present value is too long"):
        change.had(client)
    change = changes.SetModel(Order("settings", "doors", settings={"thresholds.score": "0.6", "batch.max": "4"}))
    assert change.had(client) == {"thresholds.score": "0.5", "batch.max": ""}


def test_only_one_command_carries_a_rollout_out(boxes: Boxes) -> None:
    with record.alone("r"), pytest.raises(Refused, match="another command"), record.alone("r"):
        pass
    with record.alone("r"):
        pass


def test_older_state_of_a_record_does_not_replace_a_newer_one(boxes: Boxes, monkeypatch: pytest.MonkeyPatch) -> None:
    made, write, is_writing = begin(), record.atomic.write_file, threading.Event()

    def write_slowly(path: Path, data: bytes, mode: int) -> None:
        if not is_writing.is_set():
            is_writing.set()
            time.sleep(0.2)
        write(path, data, mode)

    monkeypatch.setattr(record.atomic, "write_file", write_slowly)
    older = threading.Thread(target=made.save)
    older.start()
    is_writing.wait()
    made.state = "done"
    made.save()
    older.join()
    assert record.load("r").state == "done"


def test_records_have_different_names_and_damaged_ones_are_told(boxes: Boxes) -> None:
    order = Order("models", "doors")
    first = begin()
    first.id = record.new_id(order)
    first.save()
    assert record.new_id(order) != first.id
    with pytest.raises(NotFound):
        record.load("none")
    place = next((Path(record.paths.user_data_dir()) / "rollouts").glob("r.json"))
    place.write_text("{")
    with pytest.raises(Refused, match=r"r\.json is damaged: "):
        record.load("r")


def test_measure_without_a_model_has_the_figures_of_all_models() -> None:
    models = [SimpleNamespace(name=name, engine="e", backend="b", infer_ms=1.0, failed=2) for name in ("a", "b")]
    cameras = [SimpleNamespace(model="b", age_p99_ms=30.0)]
    load = SimpleNamespace(models=models, cameras=cameras, status=SimpleNamespace(alarms=[]))
    client: Any = SimpleNamespace(load=lambda: load)
    assert changes.measure(client, "") == Figures(p99_ms=30.0, failed=4)
    assert changes.measure(client, "a") == Figures("e", "b", 1.0, None, 2)
