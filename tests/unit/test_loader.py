"""Loading of models by command, and the list of models, with a scripted reader."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edged.config import Health, ModelControl
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
    """A repository with one model. It also stands for the models that clients send."""

    root = Path("/nowhere")

    def entries(self, *_: object) -> Any:
        return {"m": entry("m")}

    def discard(self, entries: object) -> None:
        pass


def ready(planned: PlannedModel) -> Readiness:
    return readiness(planned, Health(probe_failures=1))


def loader_of(house: House, mode: ModelControl = "poll", *startup: str) -> Loader:
    """Return a loader for the house's catalogue. In modes other than poll, the repository has one model."""
    repository: Any = Repository()
    selection = ModelSelection(repository, mode, startup)
    if mode != "poll":
        house.catalogue._selection = selection
    builder: Any = house.readers
    return Loader(selection, house.catalogue, repository, builder, lambda: (), lambda: None, ready)


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    async def admit(*_: object) -> Admission:
        return Admission(inspection("m"), None, {})

    monkeypatch.setattr(loading, "admit", admit)
    return House(tmp_path)


async def test_listed_model_is_ready_only_while_it_answers(house: House) -> None:
    planned, loader = await house.add("m"), loader_of(house)
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


async def test_listed_model_that_does_not_serve_has_the_reason(house: House) -> None:
    planned, loader = await house.add("m"), loader_of(house)
    assert planned.reference is not None
    planned.reference.refusals, planned.reference.reason = 1, "it cannot be opened now: bad_alloc"
    assert (await loader.listed()) == [Listed("m", "1", "LOADING", "it cannot be opened now: bad_alloc")]
    for engine in planned.engines.values():
        engine.quarantined = "it killed its host"
    assert (await loader.listed()) == [Listed("m", "1", "UNAVAILABLE", "it is quarantined: it killed its host")]


async def test_listed_version_that_no_longer_answers_appears_once(house: House) -> None:
    """Version 2 is being read in the slot of version 1, and version 1 already has a separate entry."""
    planned, again = await house.add("m"), planned_model("m")
    serve(planned, next(iter(planned.engines)))
    assert planned.slot.current is not None
    planned.slot.current.health.missed(EngineUnusable("inference failed"))
    planned.entry = msgspec.structs.replace(planned.entry, version="2")
    house.catalogue.versions = lambda name: [planned, again]  # type: ignore[method-assign, assignment]
    rows = await loader_of(house).listed()
    assert [(row.version, row.state) for row in rows] == [("1", "UNAVAILABLE"), ("2", "LOADING")]


async def test_load_refused_model_is_read_again(house: House) -> None:
    house.readers.files["m"] = OutOfMemory("the box was full")
    loader = loader_of(house, "explicit", "m")
    await house.look()
    planned = house.catalogue.models["m"]
    assert planned.problem is not None
    with pytest.raises(InvalidInput):
        await loader.load("../m")
    del house.readers.files["m"]
    task = asyncio.ensure_future(loader.load("m"))
    await until(lambda: planned.problem is None or task.done(), "the model has been read again")
    await settle()
    assert not task.done(), task
    serve(planned, next(iter(planned.engines)))
    await task
    assert [row.state for row in (await loader.listed())] == ["READY"]


async def test_load_model_that_repeatedly_has_no_memory_is_not_ready(house: House) -> None:
    house.readers.files["m"] = inspection("m")
    loader = loader_of(house, "explicit")
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
    problem = "model 'm' cannot be served: " + reference.reason
    assert (await loader.listed()) == [Listed("m", "", "UNAVAILABLE", problem)]
