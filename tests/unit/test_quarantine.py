"""Engines that kill their hosts: quarantine, its record over restarts, and forgiveness by command."""

from __future__ import annotations

from pathlib import Path

import pytest

from edged.backends.contract import Recipe
from edged.engines.engine import PlannedEngine
from edged.engines.plan import PlannedModel
from edged.engines.quarantine import Quarantine
from edged.errors import NotReady, Quarantined
from edged.serving.crash_attribution import DEATHS, EngineId
from edged.serving.host_process import End
from edged.serving.link import Loss
from edged.serving.work import InputTensor, TensorWork
from tests.unit.control_room import key_of, model, planned_model, record_of, serve

REFERENCE, OTHER = Recipe("onnxruntime", optimization="none"), Recipe("openvino")


def planned_with(*recipes: Recipe) -> tuple[PlannedModel, list[PlannedEngine]]:
    planned = planned_model()
    planned.model = model()
    engines = [PlannedEngine(key_of(planned.model, recipe), recipe) for recipe in recipes]
    for engine, recipe in zip(engines, recipes, strict=True):
        engine.adopt(record_of(engine.key, recipe, cost=1.0))
    planned.engines = {engine.digest: engine for engine in engines}
    return planned, engines


def kill(quarantine: Quarantine, planned: PlannedModel, engine: PlannedEngine, times: int = DEATHS) -> None:
    for _ in range(times):
        quarantine.lost(Loss("died (exit status -11)", ((EngineId(planned.entry.name, engine.digest), False),)))


def look(quarantine: Quarantine, planned: PlannedModel) -> None:
    """Run the quarantine's part of one round of the control loop."""
    quarantine.mark([planned])
    planned.refuse_or_accept()


def request() -> TensorWork:
    return TensorWork((InputTensor("x", "UINT8", (1,), b"x"),), None)


def test_quarantine_engine_that_kills_hosts_leaves_others_open(tmp_path: Path) -> None:
    quarantine, (planned, (reference, other)) = Quarantine(tmp_path), planned_with(REFERENCE, OTHER)
    kill(quarantine, planned, other, DEATHS - 1)
    look(quarantine, planned)
    assert not other.quarantined
    assert (other.apart, reference.apart) == ("1", "")
    kill(quarantine, planned, other, 1)
    look(quarantine, planned)
    assert not other.may_open
    assert "3 times" in other.quarantined
    assert "exit status -11" in other.quarantined
    assert (reference.quarantined, reference.may_open, planned.quarantine) == ("", True, "")


async def test_quarantine_of_all_engines_refuses_requests_until_forgiven(tmp_path: Path) -> None:
    quarantine, (planned, engines) = Quarantine(tmp_path), planned_with(REFERENCE, OTHER)
    waiting = request()
    planned.slot.push(waiting)
    for engine in engines:
        kill(quarantine, planned, engine)
    look(quarantine, planned)
    with pytest.raises(Quarantined, match="'m'"):
        await waiting.future
    with pytest.raises(Quarantined):
        planned.slot.push(request())
    assert not planned.is_hopeless()  # its engines stay, so that they can be tried again
    quarantine.forgive("m", engines[0].digest)
    look(quarantine, planned)
    assert [engine.may_open for engine in engines] == [True, False]
    assert planned.quarantine == ""
    planned.slot.push(request())


async def test_quarantine_of_serving_engine_refuses_no_request(tmp_path: Path) -> None:
    quarantine, (planned, engines) = Quarantine(tmp_path), planned_with(REFERENCE)
    kill(quarantine, planned, engines[0])
    serve(planned, engines[0].digest)
    look(quarantine, planned)
    assert engines[0].quarantined
    assert planned.quarantine == ""
    assert planned.slot.current is not None


def test_quarantine_survives_restart_by_model_and_engine(tmp_path: Path) -> None:
    planned, engines = planned_with(REFERENCE, OTHER)
    quarantine = Quarantine(tmp_path)
    kill(quarantine, planned, engines[0])
    again = Quarantine(tmp_path)
    look(again, planned)
    assert [bool(engine.quarantined) for engine in engines] == [True, False]
    again.forgive("another")
    look(Quarantine(tmp_path), planned)
    assert engines[0].quarantined
    again.forgive("m")
    look(Quarantine(tmp_path), planned)
    assert not engines[0].quarantined


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"[" * 100_000, b'[{"suspect": {}}]', b"\xff\xfe"])
def test_quarantine_damaged_file_is_empty(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "blame.json").write_bytes(content)
    planned, engines = planned_with(REFERENCE)
    quarantine = Quarantine(tmp_path)
    look(quarantine, planned)
    assert not engines[0].quarantined
    kill(quarantine, planned, engines[0])
    look(Quarantine(tmp_path), planned)
    assert engines[0].quarantined


def test_quarantine_unwritable_disk_works_in_memory(tmp_path: Path) -> None:
    planned, engines = planned_with(REFERENCE)
    quarantine = Quarantine(tmp_path / "nowhere")
    kill(quarantine, planned, engines[0])
    look(quarantine, planned)
    assert engines[0].quarantined


def test_quarantine_idle_host_that_dies_leaves_no_record(tmp_path: Path) -> None:
    Quarantine(tmp_path).lost(Loss("died (exit status -9)"))
    assert not (tmp_path / "blame.json").exists()


def test_quarantine_host_killed_from_outside_moves_no_engine(tmp_path: Path) -> None:
    planned, engines = planned_with(REFERENCE, OTHER)
    quarantine = Quarantine(tmp_path)
    suspects = tuple((EngineId("m", engine.digest), True) for engine in engines)
    for end in (End.OUTSIDE, End.MEMORY, End.OUTSIDE, End.MEMORY):
        quarantine.lost(Loss("died (exit status -9)", suspects, end))
    look(quarantine, planned)
    assert [engine.apart for engine in engines] == ["", ""]


@pytest.mark.parametrize("then", ["touched", "broken"])
async def test_quarantine_keeps_refusing_after_a_change_of_the_file(tmp_path: Path, then: str) -> None:
    quarantine, (planned, engines) = Quarantine(tmp_path), planned_with(REFERENCE)
    kill(quarantine, planned, engines[0])
    look(quarantine, planned)
    if then == "touched":
        assert planned.model is not None
        planned.plan(planned.model, ())
        planned.engines = {engines[0].digest: engines[0]}
    else:
        planned.problem, planned.engines = NotReady("no ONNX file"), {}
    look(quarantine, planned)
    with pytest.raises(Quarantined if then == "touched" else NotReady):
        planned.slot.push(request())
    planned.problem = None
    quarantine.forgive("m")
    look(quarantine, planned)
    planned.slot.push(request())
