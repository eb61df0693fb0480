"""Loading of models by command, and the list of models, with a scripted reader."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from edged.config import Health, ModelControl
from edged.engines import loader as loading
from edged.engines.admission import Admission
from edged.engines.ensembles import PlannedEnsemble, ensemble_readiness
from edged.engines.loader import Listed, Loader, ModelSelection
from edged.engines.plan import PlannedModel
from edged.engines.readiness import Readiness, readiness
from edged.errors import EngineUnusable, InvalidInput, NotReady, OutOfMemory
from edged.models.entries import ModelEntry
from edged.models.triton_config import Step
from tests.tiny_language import write_gguf
from tests.unit.control_room import entry, inspection, planned_model, serve, settle
from tests.unit.test_catalogue import House
from tests.unit.test_ensembles import ensemble_entry
from tests.waiting import until


class Repository:
    """A repository with one model, or those in `models`. It also stands for the models that clients send."""

    root = Path("/nowhere")
    is_whole = True

    def __init__(self) -> None:
        self.models: dict[str, ModelEntry] = {"m": entry("m")}

    def entries(self, name: str = "", *_: object) -> Any:
        return {key: each for key, each in self.models.items() if name in ("", key)}

    def discard(self, entries: object) -> None:
        pass


def ready(planned: PlannedModel | PlannedEnsemble) -> Readiness:
    if isinstance(planned, PlannedEnsemble):
        return ensemble_readiness(planned, Health(probe_failures=1))
    return readiness(planned, Health(probe_failures=1))


def loader_of(
    house: House, mode: ModelControl = "poll", *startup: str, models: dict[str, ModelEntry] | None = None
) -> Loader:
    """Return a loader for the house's catalogue. In modes other than poll, the repository has one model, or
    `models`."""
    repository: Any = Repository()
    repository.models = models or repository.models
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
    planned.reference.refusals, planned.reference.reason = 1, "the engine cannot be opened now: bad_alloc"
    assert (await loader.listed()) == [Listed("m", "1", "LOADING", "the engine cannot be opened now: bad_alloc")]
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


class Chats:
    """A language model whose newest content is judged when a test says so."""

    def __init__(self, entry: ModelEntry) -> None:
        self.entry, self.problem = entry, EngineUnusable("it is broken")
        self.is_refused, self.is_up_to_date = True, False

    def look(self) -> None:
        self.is_refused = False


async def test_load_language_model_is_read_again_and_loaded_once_its_newest_content_serves(
    house: House, tmp_path: Path
) -> None:
    there = entry("chat", path=str(write_gguf(tmp_path / "chat.gguf")))
    loader, chats = loader_of(house, "explicit", models={"chat": there}), Chats(there)
    house.catalogue.language = {"chat": chats}  # type: ignore[dict-item]
    for is_good in (True, False):
        task = asyncio.ensure_future(loader.load("chat"))
        await until(lambda: not chats.is_refused, "the model is read again")
        await asyncio.sleep(0.1)
        assert not task.done()
        chats.is_up_to_date, chats.is_refused = is_good, not is_good
        if is_good:
            await task
            chats.is_up_to_date, chats.is_refused = False, True
    with pytest.raises(NotReady, match="broken"):
        await task


async def test_load_model_that_repeatedly_has_no_memory_is_not_ready(house: House) -> None:
    house.readers.files["m"] = inspection("m")
    loader = loader_of(house, "explicit")
    task = asyncio.ensure_future(loader.load("m"))
    await until(lambda: "m" in house.catalogue.models and bool(house.catalogue.models["m"].engines), "it is read")
    reference = house.catalogue.models["m"].reference
    assert reference is not None
    reference.reason = "the engine cannot be opened now: bad_alloc"
    for reference.refusals in (1, 2):
        await asyncio.sleep(0.1)
        assert not task.done()
    reference.refusals = 3
    with pytest.raises(NotReady, match="'m'"):
        await task
    problem = "model 'm' cannot be served: " + reference.reason
    assert (await loader.listed()) == [Listed("m", "", "UNAVAILABLE", problem)]


# -- ensembles --------------------------------------------------------------------------------------------------------


def disk(*names: str) -> dict[str, ModelEntry]:
    """Return a repository with the ensemble `e` of `a` and `b`, the ensemble `f` of the same, and other models."""
    return {"e": ensemble_entry(), "f": ensemble_entry("f")} | {name: entry(name) for name in names}


async def serving(house: House, task: asyncio.Task[None]) -> None:
    """Serve each model that is read, until the command has ended."""
    while not task.done():
        await asyncio.sleep(0.005)
        for planned in house.catalogue.models.values():
            if planned.slot.current is None and planned.engines:
                serve(planned, next(iter(planned.engines)))
                planned.served = planned.model


async def finish(house: House, command: Any) -> None:
    task = asyncio.ensure_future(command)
    await serving(house, task)
    await task


def states(rows: list[Listed]) -> dict[str, str]:
    return {row.name: row.state for row in rows}


async def test_load_ensemble_loads_its_models(house: House) -> None:
    loader = loader_of(house, "explicit", models=disk("a", "b", "m"))
    await finish(house, loader.load("e"))
    rows = await loader.listed()
    assert states(rows) == {"a": "READY", "b": "READY", "e": "READY", "f": "UNAVAILABLE", "m": "UNAVAILABLE"}
    assert all(row.version == "1" for row in rows if row.state == "READY")


async def test_load_ensemble_whose_model_cannot_be_served_loads_nothing(house: House) -> None:
    house.readers.files["b"] = EngineUnusable("it is broken")
    loader = loader_of(house, "explicit", models=disk("a", "b"))
    with pytest.raises(NotReady, match="ensemble 'e' cannot be served: model 'b' cannot be served: it is broken"):
        await finish(house, loader.load("e"))
    assert set(states(await loader.listed()).values()) == {"UNAVAILABLE"}
    assert not house.catalogue.models
    (row,) = [row for row in await loader.listed() if row.name == "e"]
    assert "it is broken" in row.reason


async def test_load_ensemble_that_is_its_own_step_is_not_ready(house: House) -> None:
    class Sent(Repository):
        """It has a model `a`. A client sends an ensemble of that name."""

        def entries(self, name: str = "", *_: object) -> Any:
            return {"a": ensemble_entry("a") if name else entry("a")}

    repository, builder = Sent(), house.readers
    selection: Any = ModelSelection(repository, "explicit")  # type: ignore[arg-type]
    house.catalogue._selection = selection
    loader = Loader(selection, house.catalogue, repository, builder, lambda: (), lambda: None, ready)  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(NotReady, match="own steps"):
            await asyncio.wait_for(loader.load("a"), 10)


def loader_of_sent_ensembles(house: House, after: Mapping[str, str]) -> Loader:
    """Return a loader of plain models. If a client sends a configuration, the model becomes an ensemble whose step is
    the model that `after` names."""

    class Sent(Repository):
        def entries(self, name: str = "", *sent: object) -> Any:
            if sent[:1] in ((), (None,)):
                return {each: entry(each) for each in after if name in ("", each)}
            return {name: ensemble_entry(name, (Step(after[name], "", {"x": "X"}, {"y": "Y"}),))}

    repository, builder = Sent(), house.readers
    selection: Any = ModelSelection(repository, "explicit")  # type: ignore[arg-type]
    house.catalogue._selection = selection
    return Loader(selection, house.catalogue, repository, builder, lambda: (), lambda: None, ready)  # type: ignore[arg-type]


@pytest.mark.parametrize("names", ["ab", "ba", "abc"])
async def test_load_ensembles_that_need_each_other_refuses_one_and_names_the_cycle(house: House, names: str) -> None:
    """The repository has plain models. Clients load an ensemble of each name at the same time: each needs the next."""
    after = dict(zip(names, names[1:] + names[0], strict=True))

    loader = loader_of_sent_ensembles(house, after)
    loads = [asyncio.create_task(loader.load(name, "{}")) for name in names]
    ended = asyncio.create_task(asyncio.wait(loads, timeout=10))
    await serving(house, cast(Any, ended))
    assert all(task.done() for task in loads)
    cycles = [" -> ".join((*names[at:], *names[: at + 1])) for at in range(len(names))]
    refusals = [str(task.exception()) for task in loads]
    assert any(cycle in refusal for cycle in cycles for refusal in refusals), refusals
    for name in names:
        await finish(house, loader.load(name))
    assert states(await loader.listed()) == dict.fromkeys(names, "READY")


async def test_unload_ensemble_while_its_model_becomes_an_ensemble_that_needs_it(house: House) -> None:
    """The unload of `a` wants to unload `b`, and the load of `b` wants to load `a`."""
    after = {"a": "b", "b": "a"}

    loader = loader_of_sent_ensembles(house, after)
    await finish(house, loader.load("a", "{}"))
    calls = [asyncio.create_task(loader.unload("a", with_parts=True)), asyncio.create_task(loader.load("b", "{}"))]
    ended = asyncio.create_task(asyncio.wait(calls, timeout=10))
    await serving(house, cast(Any, ended))
    assert all(task.done() for task in calls)
    await asyncio.gather(*calls, return_exceptions=True)


async def test_load_ensemble_with_a_missing_model_is_not_ready(house: House) -> None:
    loader = loader_of(house, "explicit", models=disk("a"))
    with pytest.raises(NotReady, match="no model 'b' in the models folder"):
        await finish(house, loader.load("e"))


async def test_load_invalid_ensemble_is_not_ready(house: House) -> None:
    models = disk("a", "b") | {"e": ensemble_entry(problem="config.pbtxt: wrong")}
    loader = loader_of(house, "explicit", models=models)
    with pytest.raises(NotReady, match=r"config\.pbtxt: wrong"):
        await finish(house, loader.load("e"))


async def test_unload_ensemble_keeps_its_models_unless_dependents_are_unloaded(house: House) -> None:
    loader = loader_of(house, "explicit", models=disk("a", "b", "m"))
    await finish(house, loader.load("e"))
    await loader.unload("e")
    assert states(await loader.listed()) == {
        "a": "READY",
        "b": "READY",
        "e": "UNAVAILABLE",
        "f": "UNAVAILABLE",
        "m": "UNAVAILABLE",
    }
    await finish(house, loader.load("e"))
    await loader.unload("e", with_parts=True)
    assert set(states(await loader.listed()).values()) == {"UNAVAILABLE"}


async def test_unload_with_dependents_keeps_models_that_are_needed_or_were_loaded_by_command(house: House) -> None:
    loader = loader_of(house, "explicit", models=disk("a", "b"))
    await finish(house, loader.load("a"))
    await finish(house, loader.load("e"))
    await finish(house, loader.load("f"))
    await loader.unload("e", with_parts=True)
    assert states(await loader.listed()) == {"a": "READY", "b": "READY", "e": "UNAVAILABLE", "f": "READY"}
    await loader.unload("f", with_parts=True)
    assert states(await loader.listed()) == {"a": "READY", "b": "UNAVAILABLE", "e": "UNAVAILABLE", "f": "UNAVAILABLE"}


async def test_unload_model_of_an_ensemble_makes_the_ensemble_unready(house: House) -> None:
    loader = loader_of(house, "explicit", models=disk("a", "b"))
    await finish(house, loader.load("e"))
    await loader.unload("b")
    (row,) = [row for row in await loader.listed() if row.name == "e"]
    assert (row.state, row.version) == ("UNAVAILABLE", "1")
    assert "no model 'b'" in row.reason


async def test_startup_ensemble_is_served_with_its_models(house: House) -> None:
    loader = loader_of(house, "explicit", "e", models=disk("a", "b", "m"))
    await house.look()
    assert set(house.catalogue.models) == {"a", "b"}
    assert set(house.catalogue.ensembles) == {"e"}
    await loader.unload("e", with_parts=True)
    await house.look()
    assert not house.catalogue.models
