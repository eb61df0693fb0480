"""Engines that are not opened any more: quarantined, told, remembered, and tried again when somebody says so."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from edged.backends.contract import Recipe
from edged.engines.plan import PlannedEngine, PlannedModel
from edged.engines.quarantine import Quarantine
from edged.errors import NotReady, Quarantined
from edged.serving.crash_attribution import DEATHS, EngineId
from edged.serving.host_process import End
from edged.serving.link import Loss
from edged.serving.work import InputTensor, TensorWork
from tests.unit.control_room import key_of, model, planned_model, record_of, serve
from tests.waiting import run

REFERENCE, OTHER = Recipe("onnxruntime", optimization="none"), Recipe("openvino")


def planned_with(*recipes: Recipe) -> tuple[PlannedModel, list[PlannedEngine]]:
    planned = planned_model()
    planned.model = model()
    engines = [PlannedEngine(key_of(planned.model, recipe), recipe) for recipe in recipes]
    for engine, recipe in zip(engines, recipes, strict=True):
        engine.adopt(record_of(engine.key, recipe, cost=1.0))
    planned.engines = {engine.digest: engine for engine in engines}
    return planned, engines


def kill(warden: Quarantine, planned: PlannedModel, engine: PlannedEngine, times: int = DEATHS) -> None:
    for _ in range(times):
        warden.lost(Loss("died (exit status -11)", ((EngineId(planned.entry.name, engine.digest), False),)))


def request() -> TensorWork:
    return TensorWork((InputTensor("x", "UINT8", (1,), b"x"),), None)


def test_a_killer_is_barred_and_another_engine_of_the_model_may_serve(tmp_path: Path) -> None:
    warden, (planned, (reference, other)) = Quarantine(tmp_path), planned_with(REFERENCE, OTHER)
    kill(warden, planned, other, DEATHS - 1)
    warden.look([planned])
    assert not other.quarantined
    assert (other.apart, reference.apart) == ("1", "")
    kill(warden, planned, other, 1)
    warden.look([planned])
    assert other.open_at == math.inf
    assert "3 times" in other.quarantined
    assert "exit status -11" in other.quarantined
    assert (reference.quarantined, reference.open_at, planned.quarantine) == ("", 0.0, "")


def test_a_model_all_of_whose_engines_are_barred_is_refused_until_it_is_forgiven(tmp_path: Path) -> None:
    async def work() -> None:
        warden, (planned, engines) = Quarantine(tmp_path), planned_with(REFERENCE, OTHER)
        waiting = request()
        planned.slot.push(waiting)
        for engine in engines:
            kill(warden, planned, engine)
        warden.look([planned])
        with pytest.raises(Quarantined, match=r"model 'm' is quarantined: .*edged engines rebuild m"):
            await waiting.future
        with pytest.raises(Quarantined):
            planned.slot.push(request())
        assert not planned.is_hopeless()  # its engines stay, so that they can be tried again
        warden.forgive("m", engines[0].digest)
        warden.look([planned])
        assert engines[0].open_at == 0.0
        assert engines[1].open_at == math.inf
        assert planned.quarantine == ""
        planned.slot.push(request())

    run(work())


def test_a_model_that_is_served_is_not_refused(tmp_path: Path) -> None:
    async def work() -> None:
        warden, (planned, engines) = Quarantine(tmp_path), planned_with(REFERENCE)
        kill(warden, planned, engines[0])
        serve(planned, engines[0].digest)
        warden.look([planned])
        assert engines[0].quarantined
        assert planned.quarantine == ""
        assert planned.slot.current is not None

    run(work())


def test_it_is_remembered_over_a_restart_by_model_and_engine(tmp_path: Path) -> None:
    planned, engines = planned_with(REFERENCE, OTHER)
    warden = Quarantine(tmp_path)
    kill(warden, planned, engines[0])
    again = Quarantine(tmp_path)
    again.look([planned])
    assert [bool(engine.quarantined) for engine in engines] == [True, False]
    again.forgive("another")
    Quarantine(tmp_path).look([planned])
    assert engines[0].quarantined
    again.forgive("m")
    Quarantine(tmp_path).look([planned])
    assert not engines[0].quarantined


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"[" * 100_000, b'[{"suspect": {}}]', b"\xff\xfe"])
def test_a_file_that_cannot_be_read_holds_nothing_against_anybody(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "blame.json").write_bytes(content)
    planned, engines = planned_with(REFERENCE)
    warden = Quarantine(tmp_path)
    warden.look([planned])
    assert not engines[0].quarantined
    kill(warden, planned, engines[0])
    Quarantine(tmp_path).look([planned])
    assert engines[0].quarantined


def test_a_disk_that_cannot_be_written_only_makes_it_forget(tmp_path: Path) -> None:
    planned, engines = planned_with(REFERENCE)
    warden = Quarantine(tmp_path / "nowhere")
    kill(warden, planned, engines[0])
    warden.look([planned])
    assert engines[0].quarantined


def test_a_host_that_dies_with_nothing_to_do_is_nobodys_fault(tmp_path: Path) -> None:
    Quarantine(tmp_path).lost(Loss("died (exit status -9)"))
    assert not (tmp_path / "blame.json").exists()


def test_host_killed_from_outside_leaves_engines_where_they_are(tmp_path: Path) -> None:
    planned, engines = planned_with(REFERENCE, OTHER)
    warden = Quarantine(tmp_path)
    suspects = tuple((EngineId("m", engine.digest), True) for engine in engines)
    for end in (End.OUTSIDE, End.MEMORY, End.OUTSIDE, End.MEMORY):
        warden.lost(Loss("died (exit status -9)", suspects, end))
    warden.look([planned])
    assert [engine.apart for engine in engines] == ["", ""]


@pytest.mark.parametrize("then", ["touched", "broken"])
def test_quarantined_model_whose_file_changes_keeps_refusing(tmp_path: Path, then: str) -> None:
    async def work() -> None:
        warden, (planned, engines) = Quarantine(tmp_path), planned_with(REFERENCE)
        kill(warden, planned, engines[0])
        warden.look([planned])
        if then == "touched":
            assert planned.model is not None
            planned.plan(planned.model, ())
            planned.engines = {engines[0].digest: engines[0]}
        else:
            planned.problem, planned.engines = NotReady("no ONNX file"), {}
        planned.hold()
        warden.look([planned])
        with pytest.raises(Quarantined if then == "touched" else NotReady):
            planned.slot.push(request())
        planned.problem = None
        warden.forgive("m")
        warden.look([planned])
        planned.slot.push(request())

    run(work())
