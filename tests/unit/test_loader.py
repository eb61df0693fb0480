"""Models loaded by command, of a catalogue whose reader a test decides for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from edged.config import Health
from edged.engines import loader as loading
from edged.engines.admission import Admission
from edged.engines.loader import Listed, Loader, ModelSelection
from edged.engines.plan import PlannedModel
from edged.engines.readiness import Readiness, readiness
from edged.errors import EngineUnusable, InvalidInput, NotReady, OutOfMemory
from tests.unit.control_room import entry, inspection, planned_model, serve, settle
from tests.unit.test_catalogue import House
from tests.waiting import until


class Repository:
    """A folder with one model."""

    root = Path("/nowhere")

    def __init__(self) -> None:
        self.models = {"m": entry("m")}

    def entries(self) -> Any:
        return dict(self.models)


class Overrides:
    def __init__(self, repository: Repository) -> None:
        self._repository = repository

    def entries(self, name: str, config: str | None, files: object) -> Any:
        return {name: self._repository.models[name]}

    def discard(self, entries: object) -> None:
        pass


def ready(planned: PlannedModel) -> Readiness:
    return readiness(planned, Health(probe_failures=1))


def listing(house: House) -> Loader:
    """A loader that is only asked what there is."""
    nothing: Any = None
    selection: Any = SimpleNamespace(mode="poll")
    return Loader(selection, house.catalogue, nothing, nothing, lambda: (), lambda: None, ready)  # type: ignore[arg-type]


async def test_a_model_is_listed_as_ready_only_while_it_answers(tmp_path: Path) -> None:
    house = House(tmp_path)
    planned = await house.add("m")
    loader = listing(house)
    assert (await loader.listed()) == [Listed("m", "1", "LOADING")]
    serve(planned, next(iter(planned.engines)))
    assert (await loader.listed()) == [Listed("m", "1", "READY")]
    current = planned.slot.current
    assert current is not None
    current.health.unproven = "nothing that edged can make up is answered"
    assert (await loader.listed()) == [Listed("m", "1", "UNAVAILABLE", current.health.unproven)]
    current.health.answered(0.0)
    current.health.missed(EngineUnusable("inference failed"))
    (row,) = await loader.listed()
    assert row.state == "UNAVAILABLE"
    assert "no longer answers: inference failed" in row.reason
    current.health.answered(0.0)
    assert (await loader.listed()) == [Listed("m", "1", "READY")]


async def test_listed_quarantined_model_has_the_reason(tmp_path: Path) -> None:
    house = House(tmp_path)
    planned = await house.add("m")
    for engine in planned.engines.values():
        engine.quarantined = "it killed its host three times"
    (row,) = await listing(house).listed()
    assert (row.state, row.reason) == ("UNAVAILABLE", "it is quarantined: it killed its host three times")


async def test_load_model_whose_engine_cannot_be_opened_names_the_reason(tmp_path: Path) -> None:
    house = House(tmp_path)
    planned = await house.add("m")
    reference = planned.reference
    assert reference is not None
    reference.refusals, reference.reason = 1, "it cannot be opened now: bad_alloc"
    assert (await listing(house).listed()) == [Listed("m", "1", "LOADING", "it cannot be opened now: bad_alloc")]


async def test_a_version_that_does_not_answer_any_more_is_listed_once(tmp_path: Path) -> None:
    """Its successor is being read in its place, and it has another place of its own by now."""

    house = House(tmp_path)
    planned = await house.add("m")
    serve(planned, next(iter(planned.engines)))
    assert planned.slot.current is not None
    planned.slot.current.health.missed(EngineUnusable("inference failed"))
    planned.entry = msgspec.structs.replace(planned.entry, version="2")
    again = planned_model("m")
    house.catalogue.versions = lambda name: [planned, again]  # type: ignore[method-assign, assignment]
    rows = await listing(house).listed()
    assert [(row.version, row.state) for row in rows] == [("1", "UNAVAILABLE"), ("2", "LOADING")]


async def test_load_refused_model_is_tried_again_by_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def admit(*_: object) -> Admission:
        return Admission(inspection("m"), None, {})

    monkeypatch.setattr(loading, "admit", admit)

    repository = Repository()
    house = House(tmp_path)
    house.selection = ModelSelection(repository, "explicit", ["m"])  # type: ignore[assignment, arg-type]
    house.catalogue._selection = house.selection
    house.readers.files["m"] = OutOfMemory("the box was full")
    await house.look()
    planned = house.catalogue.models["m"]
    assert planned.problem is not None
    made = Overrides(repository)
    nothing: Any = None
    loader = Loader(house.selection, house.catalogue, made, nothing, lambda: (), lambda: None, ready)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        await loader.load("../m")

    del house.readers.files["m"]
    task = asyncio.ensure_future(loader.load("m"))
    await until(lambda: planned.problem is None or task.done(), "the model is read again")
    await settle()
    assert not task.done(), task
    serve(planned, next(iter(planned.engines)))
    await task
    assert [row.state for row in (await loader.listed())] == ["READY"]


async def test_a_command_to_load_does_not_wait_for_room_that_may_never_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def admit(*_: object) -> Admission:
        return Admission(inspection("m"), None, {})

    monkeypatch.setattr(loading, "admit", admit)

    repository, nothing = Repository(), None
    house = House(tmp_path)
    house.selection = ModelSelection(repository, "explicit", [])  # type: ignore[assignment, arg-type]
    house.catalogue._selection = house.selection
    house.readers.files["m"] = inspection("m")
    made = Overrides(repository)
    loader = Loader(house.selection, house.catalogue, made, nothing, lambda: (), lambda: None, ready)  # type: ignore[arg-type]
    task = asyncio.ensure_future(loader.load("m"))
    await until(lambda: "m" in house.catalogue.models and bool(house.catalogue.models["m"].engines), "it is read")
    reference = house.catalogue.models["m"].reference
    assert reference is not None
    reference.reason = "it cannot be opened now: bad_alloc"
    for reference.refusals in (1, 2):
        await asyncio.sleep(0.1)
        assert not task.done()
    reference.refusals = 3
    with pytest.raises(NotReady, match="'m'"):
        await task
    assert (await loader.listed()) == [
        Listed("m", "", "UNAVAILABLE", "model 'm' cannot be served: " + reference.reason)
    ]
