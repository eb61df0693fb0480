"""The catalogue: planned models follow the repository on disk. A scripted builder reads the models."""

from __future__ import annotations

import asyncio
import errno
import logging
import math
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edged.config import Engines
from edged.engines import catalogue
from edged.engines.catalogue import Catalogue, Prove
from edged.engines.engine import EngineState
from edged.engines.loader import ModelSelection as LoadedSelection
from edged.engines.plan import PlannedModel, Planner
from edged.engines.reconcile import Read, Refuse, Replan, reconcile
from edged.engines.views import actual
from edged.errors import (
    BuildFailed,
    EdgedError,
    EngineUnusable,
    InvalidInput,
    ModelNotFound,
    NotFound,
    NotReady,
    OutOfSpace,
    Superseded,
)
from edged.errors import ModelRefused as Refusal
from edged.events import EngineMoved, EventLog, ModelRead, ModelRefused, ModelRemoved
from edged.family_packages import Package
from edged.models.entries import ModelEntry
from edged.models.finding import Category, Finding, Stage
from edged.models.inspection import Inspection
from edged.models.model import Model
from edged.models.repository import Repository
from edged.serving.session import ServingSession
from edged.serving.work import FrameWork, TensorWork
from edged.store.store import Store
from edged.tasks import TaskGroup
from tests.unit.control_room import Clock, Unexpected, box, emitted, entry, inspection, serve, settle, stop_time
from tests.waiting import until


class Readers:
    """A builder that only inspects: `files` has each file's inspection, `most` the most concurrent reads."""

    def __init__(self) -> None:
        self.files: dict[str, Inspection | Exception] = {}
        self.now = self.most = self.reads = 0
        self.asked: list[str] = []
        self.forgotten: list[str] = []
        self.tidied: list[set[str]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def inspect(self, path: Path, tries: int = 1) -> Inspection:
        self.reads += 1
        self.asked.append(path.stem)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self.gate.wait()
        finally:
            self.now -= 1
        found = self.files.get(path.stem, inspection(path.stem))
        if isinstance(found, Exception):
            raise found
        return found

    async def model(self, entry: ModelEntry, inspection: Inspection) -> Model:
        return Model.of(entry, inspection)

    def forget(self, digest: str) -> None:
        self.forgotten.append(digest)

    def forget_others(self, needed: Set[str]) -> None:
        self.tidied.append(set(needed))


class ModelSelection:
    """A repository whose entries a test sets."""

    def __init__(self) -> None:
        self.models: dict[str, ModelEntry] = {}

    def entries(self) -> dict[str, ModelEntry]:
        return dict(self.models)


class House:
    """A catalogue with its repository. Create it inside an event loop."""

    def __init__(self, root: Path, named: dict[str, Path] | None = None, prove: Prove | None = None) -> None:
        self.shelf, self.readers, self.events = ModelSelection(), Readers(), EventLog()
        self.retired: list[ServingSession | None] = []
        self.store = Store(root)
        self.planner = Planner(self.store, box(), Engines())
        self.catalogue = Catalogue(
            self.shelf,  # type: ignore[arg-type]
            named or {},
            self.readers,  # type: ignore[arg-type]
            self.planner,
            self.events,
            TaskGroup(lambda: None),
            self.retired.append,
            prove,
        )

    def refuse_hopeless(self) -> None:
        """Carry out the Refuse actions of the reconciler."""
        for action in reconcile(actual(self.store, self.catalogue.models.values()), 0.0, set()):
            if isinstance(action, Refuse):
                self.catalogue.refuse(self.catalogue.models[action.model])

    async def look(self, times: int = 1) -> None:
        """Look, and wait until all models are read unless the readers' gate is closed."""
        for _ in range(times):
            self.catalogue.look()
            await settle()
            if self.readers.gate.is_set():
                readings = [planned.reading for planned in self.catalogue.models.values()]
                await asyncio.gather(*filter(None, readings), return_exceptions=True)

    async def add(self, name: str, stamp: str = "1", **settings: str) -> PlannedModel:
        self.shelf.models[name] = entry(name, stamp, **settings)
        await self.look()
        return self.catalogue.models[name]

    async def remove(self, name: str) -> None:
        del self.shelf.models[name]
        await self.look()

    async def holds(self, name: str, found: Inspection | Exception, stamp: str) -> PlannedModel:
        """Replace a model's file by one with this inspection."""
        self.readers.files[name] = found
        return await self.add(name, stamp)


@pytest.fixture(autouse=True)
def clock() -> Iterator[Clock]:
    with pytest.MonkeyPatch.context() as patch:
        yield stop_time(patch)


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


async def answer(planned: PlannedModel) -> EdgedError | None:
    """Return the error of a new frame; None if the frame waits for an engine."""
    frame = FrameWork(b"")
    try:
        planned.slot.offer(object(), frame)
    except EdgedError as error:
        return error
    return frame.future.exception() if frame.future.done() else None  # type: ignore[return-value]


# -- models on disk -------------------------------------------------------------------------------------------------


async def test_look_new_model_is_read_and_planned(house: House) -> None:
    planned = await house.add("m")
    assert planned.model is not None
    assert (planned.model.digest, planned.problem, planned.is_being_read) == (inspection("m").digest, None, False)
    assert len(planned.engines) == 3
    assert emitted(house.events, ModelRead) == [ModelRead(planned.model.digest)]
    assert await answer(planned) is None, "it waits for an engine"


async def test_look_reports_whether_models_changed(house: House) -> None:
    await house.add("m")
    assert not house.catalogue.look()
    for stamp in ("2", "3"):
        house.shelf.models["m"] = entry("m", stamp)
        assert house.catalogue.look()
    house.shelf.models["n"] = entry("n", "1")
    assert house.catalogue.look()
    del house.shelf.models["m"]
    assert house.catalogue.look()
    await settle()
    assert not house.catalogue.look()


async def test_look_unchanged_model_is_read_once(house: House) -> None:
    before = dict((await house.add("m")).engines)
    await house.look(3)
    assert house.readers.reads == 1
    assert house.catalogue.models["m"].engines == before


async def test_look_changed_model_is_read_again_in_its_slot(house: House) -> None:
    planned = await house.add("m")
    slot = planned.slot
    assert await house.holds("m", inspection("other"), "2") is planned
    assert planned.model is not None
    assert (planned.model.digest, planned.slot) == (inspection("other").digest, slot)


async def test_look_changed_settings_replan_the_model(house: House) -> None:
    planned = await house.add("m")
    reference = planned.reference
    await house.add("m", backends="openvino")
    assert [e.recipe.backend for e in planned.engines.values()] == ["onnxruntime", "openvino"]
    assert planned.reference is reference, "engines that are still wanted keep their state"


async def test_look_changed_external_data_reads_the_model_again(house: House, tmp_path: Path) -> None:
    house.readers.files["model"] = inspection(external=["weights.bin"])
    house.shelf.models["m"] = entry("m", path=str(tmp_path / "model.onnx"))
    for reads in (1, 2):
        (tmp_path / "weights.bin").write_bytes(bytes(reads))
        await house.look(3)
        assert house.readers.reads == reads


@pytest.mark.parametrize("name", ["a\0b", "/dev/null", "../weights.bin", ""])
async def test_look_external_data_outside_its_folder_leaves_other_models_alone(
    house: House, tmp_path: Path, name: str
) -> None:
    cut = Finding(Stage.EXTERNAL_DATA, Category.EXTERNAL_OUTSIDE, "it lies outside the model's folder")
    house.readers.files["model"] = msgspec.structs.replace(inspection(external=[name]), finding=cut)
    house.shelf.models["m"] = entry("m", path=str(tmp_path / "model.onnx"))
    await house.look(2)
    assert house.catalogue.models["m"].weights == ()
    await house.remove("m")
    assert not house.catalogue.models


async def test_look_external_data_that_arrives_later_makes_the_model_ready(house: House, tmp_path: Path) -> None:
    whole = inspection(external=["weights.bin"])
    cut = Finding(
        Stage.EXTERNAL_DATA, Category.EXTERNAL_MISSING, "weights.bin is missing", "put it into the model's folder"
    )
    house.readers.files["model"] = msgspec.structs.replace(whole, finding=cut)
    house.shelf.models["m"] = entry("m", path=str(tmp_path / "model.onnx"))
    await house.look(3)
    planned = house.catalogue.models["m"]
    assert (planned.problem is not None, house.readers.reads) == (True, 1)
    house.readers.files["model"] = whole
    (tmp_path / "weights.bin").write_bytes(b"1")
    await house.look(3)
    assert (planned.problem, len(planned.engines), house.readers.reads) == (None, 3, 2)


async def test_look_removed_model_fails_waiting_requests(house: House) -> None:
    planned = await house.add("m")
    frame = FrameWork(b"")
    planned.slot.offer("camera", frame)
    await house.remove("m")
    assert house.catalogue.models == {}
    assert planned.engines == {}, "builds for a removed model stop"
    assert isinstance(frame.future.exception(), NotFound)
    assert isinstance(await answer(planned), NotFound)
    assert len(emitted(house.events, ModelRemoved)) == 1


async def test_look_aside_while_the_disk_cannot_be_read_keeps_the_models(house: House, tmp_path: Path) -> None:
    root = tmp_path / "models"
    root.mkdir()
    (root / "m.onnx").write_bytes(b"x")
    house.catalogue._selection = LoadedSelection(Repository(root))
    await house.look()
    planned = house.catalogue.models["m"]
    serve(planned, next(iter(planned.engines)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "iterdir", broken)
        with pytest.raises(OSError, match="output error"):
            await house.catalogue.look_aside()
    assert house.catalogue.models == {"m": planned}
    assert planned.serving
    assert (house.retired, house.readers.forgotten, emitted(house.events, ModelRemoved)) == ([], [], [])
    (root / "m.onnx").unlink()
    await house.look()
    assert house.catalogue.models == {}


def broken(_: Path) -> Iterator[Path]:
    raise OSError(errno.EIO, "Input/output error")


async def test_look_removed_model_retires_its_session(house: House) -> None:
    planned = await house.add("m")
    serve(planned, "key")
    current = planned.slot.current
    await house.remove("m")
    assert house.retired == [current, None], "the sessions of the slot and of the fallback slot"
    with pytest.raises(NotFound):
        planned.fallback.push(TensorWork((), None))


async def test_forget_cache_of_a_digest_with_its_last_model(house: House) -> None:
    for name in "mn":
        await house.holds(name, inspection("twins"), "1")
    for name, forgotten in (("m", []), ("n", [inspection("twins").digest])):
        await house.remove(name)
        assert house.readers.forgotten == forgotten


async def test_forget_cache_of_a_replaced_digest(house: House) -> None:
    planned = await house.add("m")
    serve(planned, "key")
    await house.holds("m", inspection("other"), "2")
    assert house.readers.forgotten == [], "the previous version still answers"
    assert planned.model is not None
    planned.serve(planned.model)
    await house.look()
    assert house.readers.forgotten == [inspection("m").digest]


async def test_forget_caches_of_earlier_models_after_the_first_reading(house: House) -> None:
    house.readers.gate.clear()
    house.shelf.models["m"] = entry("m", "1")
    await house.look(2)
    assert house.readers.tidied == [], "not all models have been read yet"
    house.readers.gate.set()
    await house.look(3)
    assert house.readers.tidied == [{inspection("m").digest}]


async def test_forget_keeps_findings_of_a_refused_model_until_removed(tmp_path: Path) -> None:
    async def refuse(_: Model, tries: int) -> tuple[()]:
        raise EngineUnusable("no runtime takes it")

    house = House(tmp_path, prove=refuse)
    planned = await house.add("m")
    assert planned.problem is not None
    await house.look()
    assert house.readers.forgotten == []
    await house.remove("m")
    assert house.readers.forgotten == [inspection("m").digest]


async def test_look_model_removed_while_read_is_not_planned(house: House) -> None:
    house.readers.gate.clear()
    planned = await house.add("m")
    await house.remove("m")
    house.readers.gate.set()
    await settle()
    assert (planned.model, planned.engines, house.readers.now) == (None, {}, 0)


async def test_look_model_changed_while_read_is_planned_as_last_seen(house: House) -> None:
    house.readers.gate.clear()
    await house.add("m")
    planned = await house.holds("m", inspection("other"), "2")
    assert planned.is_being_read
    house.readers.gate.set()
    await settle()
    assert planned.model is not None
    assert planned.model.digest == inspection("other").digest
    assert len(emitted(house.events, ModelRead)) == 1


@pytest.mark.parametrize("is_being_read", [False, True])
async def test_reconcile_superseded_model_is_read_once_and_not_opened(house: House, is_being_read: bool) -> None:
    planned = await house.add("m")
    house.readers.gate.clear()
    if is_being_read:
        house.catalogue.read_again(planned)
    planned.is_superseded = True
    actions = reconcile(actual(house.store, [planned]), 0.0, set())
    assert [action for action in actions if not isinstance(action, Replan)] == [Read("m")]
    for _ in range(2):
        house.catalogue.read_again(planned)
        await settle()
    house.readers.gate.set()
    await settle()
    assert (house.readers.reads, planned.is_superseded) == (2, False)


async def test_look_reads_a_bounded_number_of_models_at_once(house: House) -> None:
    house.readers.gate.clear()
    for name in "abcdef":
        await house.add(name)
    assert 0 < house.readers.most < 6
    house.readers.gate.set()
    await settle()
    assert all(planned.model for planned in house.catalogue.models.values())


# -- names ----------------------------------------------------------------------------------------------------------


async def test_look_configured_model_is_served_from_its_path(tmp_path: Path) -> None:
    house = House(tmp_path, {"named": Path("/elsewhere/file.onnx")})
    await house.add("named")
    await house.add("m")
    assert house.catalogue.models["named"].entry.path == "/elsewhere/file.onnx"
    assert house.catalogue.is_configured("named")
    assert not house.catalogue.is_configured("m")


async def test_find_unknown_name_does_not_scan_the_disk(house: House) -> None:
    house.shelf.models["m"] = entry("m")
    with pytest.raises(ModelNotFound):
        house.catalogue.find("m")
    await asyncio.gather(house.catalogue.look_aside(), house.catalogue.look_aside())
    assert house.catalogue.find("m").entry.name == "m"
    await settle()


async def test_find_unknown_name_lists_the_models(house: House) -> None:
    with pytest.raises(ModelNotFound, match="no model 'x'; available: none"):
        house.catalogue.find("x")
    await house.add("n")
    await house.add("m")
    with pytest.raises(ModelNotFound, match="no model 'x'; available: m, n"):
        house.catalogue.find("x")
    with pytest.raises(ModelNotFound):
        house.catalogue.find("")


# -- models that cannot be served -----------------------------------------------------------------------------------


async def test_look_refused_model_logs_only_later_reasons_because_its_alarm_logs_the_first(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "edged.engines"):
        await house.holds("m", NotReady("it is no model"), "1")
        assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []
        await house.holds("m", NotReady("it is truncated"), "2")
    assert [r.getMessage() for r in caplog.records] == ["model m cannot be served: it is truncated"]


CUT = Finding(Stage.EXTERNAL_DATA, Category.EXTERNAL_TRUNCATED, "w.bin is truncated", "copy it again")


@pytest.mark.parametrize(
    ("found", "problem", "event"),
    [
        (Refusal("it is no model"), "", ModelRefused("it is no model")),
        (
            msgspec.structs.replace(inspection(), finding=CUT),
            "",
            ModelRefused("w.bin is truncated; copy it again", "external_truncated", "external_data"),
        ),
        (inspection(), "edged.toml: unknown setting", ModelRefused("edged.toml: unknown setting", "settings", "file")),
    ],
    ids=["unreadable", "with a finding", "with a problem of its settings"],
)
async def test_look_refused_model_fails_requests_until_it_is_repaired(
    house: House, found: Inspection | Exception, problem: str, event: ModelRefused
) -> None:
    house.readers.files["m"] = found
    house.shelf.models["m"] = msgspec.structs.replace(entry("m"), problem=problem)
    await house.look()
    planned = house.catalogue.models["m"]
    assert (planned.model, planned.engines, str(planned.problem)) == (None, {}, event.reason)
    assert f"model 'm' cannot be served: {event.reason}" in str(await answer(planned))
    assert emitted(house.events, ModelRefused) == [event]
    await house.holds("m", inspection(), "2")
    assert (planned.problem, len(planned.engines)) == (None, 3)
    assert await answer(planned) is None


@pytest.mark.parametrize(
    "error", [BuildFailed("killed"), Superseded("m.onnx was replaced")], ids=["killed", "replaced"]
)
async def test_look_failure_that_is_not_the_models_is_followed_by_another_attempt(
    house: House, monkeypatch: pytest.MonkeyPatch, error: EdgedError
) -> None:
    monkeypatch.setattr(catalogue, "_BACK_SECONDS", 0.0)
    monkeypatch.setattr(catalogue, "_AGAIN_SECONDS", (0.01,))
    planned = await house.holds("m", error, "1")
    assert planned.problem is error
    house.readers.files["m"] = inspection()
    await until(lambda: planned.problem is None, "the model to be read again")
    assert await answer(planned) is None


def delays(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let no time pass between two attempts to read a model; return the list of the delays."""
    slept: list[float] = []

    class Instant:
        @staticmethod
        async def sleep(seconds: float) -> None:
            slept.append(seconds)

        def __getattr__(self, name: str) -> Any:
            return getattr(asyncio, name)

    monkeypatch.setattr(catalogue, "asyncio", Instant())
    return slept


@pytest.mark.parametrize(
    "error",
    [
        OutOfSpace("the disk is full"),
        BuildFailed("no process is left"),
        Finding(Stage.FILE, Category.UNREADABLE, "it cannot be read", "check the disk").refusal(),
        Unexpected("a failing box"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_look_failure_of_the_box_has_no_last_attempt(
    house: House, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    slept, failing = delays(monkeypatch), 5
    read = house.readers.inspect

    async def inspect(path: Path, tries: int = 1) -> Inspection:
        if house.readers.reads == failing:
            house.readers.files["m"] = inspection()
        return await read(path, tries)

    monkeypatch.setattr(house.readers, "inspect", inspect)
    house.readers.files["m"], house.shelf.models["m"] = error, entry("m")
    house.catalogue.look()
    planned = house.catalogue.models["m"]
    await until(lambda: planned.model is not None and planned.problem is None, "the model to be read")
    last = 3600.0
    assert slept == ([last] * failing if isinstance(error, Unexpected) else [60.0, 600.0, last, last, last])
    slept.clear()
    house.readers.files["m"] = OutOfSpace("full again")
    failing = house.readers.reads + 1
    house.catalogue.read_again(planned)
    await until(lambda: bool(slept) and planned.problem is None, "the model to be read again")
    assert slept == [60.0], "a success forgets earlier failures"


@pytest.mark.parametrize("category", [Category.TIMED_OUT, Category.TOO_MUCH_MEMORY])
async def test_look_failure_that_costs_time_has_a_last_attempt(
    house: House, monkeypatch: pytest.MonkeyPatch, category: Category
) -> None:
    slept = delays(monkeypatch)
    planned = await house.holds("m", Finding(Stage.SESSION, category, "it is too slow").refusal(), "1")
    for _ in range(10):
        await settle()
    assert slept == [60.0, 600.0, 3600.0]
    assert (house.readers.reads, planned.problem is None) == (4, False)


async def test_look_model_replaced_during_its_trial_is_read_again_before_it_is_refused(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "_BACK_SECONDS", 0.05)
    house.readers.files["m"], house.shelf.models["m"] = Superseded("m.onnx was replaced"), entry("m")
    house.catalogue.look()
    planned = house.catalogue.models["m"]
    await until(lambda: house.readers.reads == 1)
    assert await answer(planned) is None, "requests wait"
    house.readers.files["m"] = inspection()
    assert planned.reading is not None
    await planned.reading
    assert planned.model is not None
    assert emitted(house.events, ModelRefused) == []


async def test_look_model_replaced_by_a_broken_one_serves_until_its_host_is_lost(house: House) -> None:
    planned = await house.add("m")
    host = serve(planned, next(iter(planned.engines)))
    await house.holds("m", Refusal("it is no model"), "2")
    house.refuse_hopeless()
    assert planned.serving
    assert str(planned.problem) == "it is no model"
    planned.slot.vacate(host)  # type: ignore[arg-type]
    house.refuse_hopeless()
    assert isinstance(await answer(planned), NotReady)
    before = len(emitted(house.events, ModelRefused))
    house.refuse_hopeless()
    assert len(emitted(house.events, ModelRefused)) == before, "a refusal is reported once"


async def test_look_unexpected_error_is_logged_and_refuses_the_model(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "edged.engines"):
        planned = await house.holds("m", Unexpected("a bug"), "1")
    assert "Unexpected" in str(await answer(planned))
    assert any(record.exc_info for record in caplog.records)


async def test_refuse_model_without_a_usable_reference_lasts_until_the_device_changes(house: House) -> None:
    """A newer runtime may have the missing operator."""
    planned = await house.add("m")
    house.refuse_hopeless()
    assert planned.problem is None
    assert planned.reference is not None
    planned.reference.open_at, planned.reference.reason = math.inf, "no such operator"
    house.refuse_hopeless()
    assert "no such operator" in str(await answer(planned))
    assert (str(planned.problem), planned.engines) == ("no such operator", {})
    house.planner.fingerprint = box(runtime__onnxruntime="2")
    house.catalogue.plan_all()
    await settle()
    assert (planned.problem, len(planned.engines)) == (None, 3)
    assert await answer(planned) is None


# -- the device -----------------------------------------------------------------------------------------------------


async def test_plan_all_plans_every_model_again(house: House) -> None:
    models = [await house.add(name) for name in "mn"]
    before = [set(planned.engines) for planned in models]
    house.planner.fingerprint = box(runtime__openvino="3")
    house.catalogue.plan_all()
    assert [len(set(planned.engines) - old) for planned, old in zip(models, before, strict=True)] == [1, 1]
    assert house.readers.reads == 2, "models are not read again"


async def test_recognise_again_reads_models_that_another_package_may_decode(house: House) -> None:
    known, by_package = await house.add("known"), await house.add("by_package")
    await house.add("raw")
    refused = await house.holds("refused", Refusal("no"), "1")
    for planned, package in ((known, None), (by_package, Package("p", "1", "digest"))):
        assert planned.model is not None
        recognition = msgspec.structs.replace(planned.model.recognition, family="tiles", package=package)
        planned.model = msgspec.structs.replace(planned.model, recognition=recognition)
    assert refused.problem is not None
    house.readers.asked.clear()
    house.catalogue.recognise_again()
    await house.look()
    assert sorted(house.readers.asked) == ["by_package", "raw", "refused"]


async def test_engine_move_is_an_event_with_its_model(house: House) -> None:
    planned = await house.add("m")
    assert planned.reference is not None
    planned.reference.move(EngineState.QUEUED, "because")
    assert emitted(house.events, EngineMoved) == [EngineMoved("queued", "onnxruntime", "because")]
    events = [event async for event in house.events.follow(live=False) if isinstance(event.what, EngineMoved)]
    assert [(event.model, event.engine) for event in events] == [("m", planned.reference.digest)]


# -- versions -------------------------------------------------------------------------------------------------------


def version(of: str, number: str, name: str = "") -> ModelEntry:
    return msgspec.structs.replace(entry(of), name=name or of, version=number, stamp=number)


async def test_find_version_by_number_or_name(house: House) -> None:
    house.shelf.models = {"m": version("m", "10"), "m:9": version("m", "9", "m:9")}
    await house.look()
    newest, beside = house.catalogue.models["m"], house.catalogue.models["m:9"]
    find = house.catalogue.find
    assert find("m") is find("m", "10") is find("m", "010") is find("m:10") is newest
    assert find("m", "9") is find("m:9") is beside
    assert house.catalogue.versions("m") == [newest, beside]
    with pytest.raises(ModelNotFound, match="has no version 8; available: 10, 9"):
        find("m", "8")
    with pytest.raises(ModelNotFound, match="no version 8"):
        find("m:8")
    for wrong in ("x", "-1", "²", "9" * 30):
        with pytest.raises(InvalidInput, match="whole numbers"):
            find("m", wrong)


async def test_find_version_being_loaded_is_not_ready(house: House) -> None:
    house.shelf.models = {"m": version("m", "1")}
    await house.look()
    planned = house.catalogue.models["m"]
    serve(planned, next(iter(planned.engines)))
    before = planned.model
    house.readers.files["m"] = inspection("other")
    house.shelf.models = {"m": version("m", "2")}
    await house.look()
    assert planned.model is not before, "it has been read"
    assert (planned.answering, planned.version, planned.is_up_to_date) == (before, "1", False)
    assert house.catalogue.find("m", "1") is planned
    with pytest.raises(NotReady, match="'m'"):
        house.catalogue.find("m", "2")
    assert planned.model is not None
    planned.serve(planned.model)
    assert (planned.version, planned.is_up_to_date) == ("2", True)


async def test_find_next_default_version_answers_by_its_number(house: House) -> None:
    house.readers.files["m"] = inspection("both")
    house.shelf.models = {"m": version("m", "2"), "m:1": version("m", "1", "m:1")}
    await house.look()
    newest, beside = house.catalogue.models["m"], house.catalogue.models["m:1"]
    for planned in (newest, beside):
        serve(planned, next(iter(planned.engines)))
    house.readers.files["m"] = inspection("other")  # other content, so that its engine must be opened first
    house.shelf.models = {"m": version("m", "1")}
    await house.look()
    assert newest.version == "2"
    assert house.catalogue.find("m", "1") is beside
    assert house.catalogue.find("m") is newest
    await house.look()
    assert house.catalogue.find("m", "1") is beside
    assert newest.model is not None
    newest.serve(newest.model)
    await house.look()
    assert set(house.catalogue.models) == {"m"}
    assert house.catalogue.find("m", "1") is newest


async def test_look_new_version_resets_statistics(house: House) -> None:
    planned = await house.add("m")
    counted = planned.slot.statistics
    await house.add("m", "1")
    assert planned.slot.statistics is counted
    await house.add("m", "2")
    assert planned.slot.statistics is not counted
