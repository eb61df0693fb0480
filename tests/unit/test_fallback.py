"""The fallback slot, for requests with shapes that the serving engine does not accept: decisions and their effects."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from edged.backends.contract import UNOPTIMISED, Recipe
from edged.backends.profile import Profile
from edged.engines import opener as opener_module
from edged.engines.controller import carry_out
from edged.engines.desired import desired
from edged.engines.engine import EngineState
from edged.engines.opener import Opener
from edged.engines.reconcile import (
    Action,
    CloseFallback,
    EngineView,
    FallbackView,
    ModelView,
    OpenFallback,
    RefuseFallback,
    reconcile,
)
from edged.engines.views import actual
from edged.errors import EdgedError, EngineUnusable, HostLost, NotReady, OutOfMemory, Superseded
from edged.events import EventLog
from edged.models.model import Model
from edged.serving.session import ServingSession
from edged.serving.work import EngineRef, InputTensor, TensorWork
from edged.tasks import TaskGroup
from tests.fake_link import FakeLink
from tests.unit.control_room import Clock, box, inspection, model, planned_model, record_of, settle, stop_time
from tests.unit.little_world import MemoryLog, MemoryStore
from tests.waiting import until

FALLBACK = (OpenFallback, CloseFallback, RefuseFallback)
NOW = 1000.0
RANGE = "x=1x4:1x4:4x4"
REFERENCE = EngineView("ref", Recipe("onnxruntime", optimization=UNOPTIMISED), EngineState.ABSENT)
RANGED = EngineView("ranged", Recipe("tensorrt", profile=RANGE), EngineState.READY, usable=True, cost=0.2)
SLOW, FAST = (
    EngineView(key, Recipe(key), EngineState.READY, usable=True, cost=cost)
    for key, cost in (("openvino", 0.5), ("onnxruntime", 0.4))
)
NEVER = msgspec.structs.replace(REFERENCE, open_at=math.inf)
LATER = msgspec.structs.replace(REFERENCE, open_at=NOW + 1)
WIDER = msgspec.structs.replace(RANGED, key="wider", state=EngineState.BUILDING)
WAITS, OPEN = FallbackView(waits=True, outside="outside"), FallbackView(is_open=True, answered_at=NOW - 200)
BUILT = "; an engine for a wider range is being built; try again later"


def but(view: FallbackView, **fields: Any) -> FallbackView:
    return msgspec.structs.replace(view, **fields)


DECISIONS: dict[str, tuple[FallbackView, tuple[EngineView, ...], Action | None]] = {
    "nothing waits": (FallbackView(), (REFERENCE, RANGED), None),
    "a request waits": (WAITS, (REFERENCE, RANGED), OpenFallback("m", "ref")),
    "it is being opened": (but(WAITS, opening=True), (REFERENCE,), None),
    "several take any shape": (WAITS, (REFERENCE, SLOW, FAST, RANGED), OpenFallback("m", "onnxruntime")),
    "inputs have defaults": (but(WAITS, has_defaults=True), (REFERENCE, FAST), OpenFallback("m", "ref")),
    "the fastest is doubted": (
        WAITS,
        (REFERENCE, SLOW, msgspec.structs.replace(FAST, is_doubted=True)),
        OpenFallback("m", "openvino"),
    ),
    "no engine can be opened": (WAITS, (NEVER, RANGED), RefuseFallback("m", "outside")),
    "a wider range is being built": (WAITS, (NEVER, WIDER), RefuseFallback("m", f"outside{BUILT}")),
    "the reference is tried again later": (WAITS, (LATER, RANGED), None),
    "opening just failed": (but(WAITS, open_at=NOW + 1), (REFERENCE,), None),
    "opening was just refused": (but(WAITS, open_at=NOW + 1, why="no"), (REFERENCE,), RefuseFallback("m", "no")),
    "opening was refused before": (but(WAITS, open_at=NOW, why="no"), (REFERENCE,), OpenFallback("m", "ref")),
    "another model is about to serve": (but(WAITS, is_settled=False), (REFERENCE,), None),
    "the model on disk is broken": (
        but(WAITS, is_settled=False, problem="truncated"),
        (),
        RefuseFallback("m", "the model on disk cannot be opened: truncated"),
    ),
    "it is idle": (OPEN, (REFERENCE,), CloseFallback("m")),
    "it answered lately": (but(OPEN, answered_at=NOW - 100), (REFERENCE,), None),
    "a request takes long": (but(OPEN, waits=True), (REFERENCE,), None),
    "it is of another model": (but(OPEN, waits=True, is_stale=True), (REFERENCE,), CloseFallback("m")),
}


@pytest.mark.parametrize("case", DECISIONS)
@pytest.mark.parametrize("holds", [False, True], ids=["", "being read"])
def test_reconcile_fallback_slot_is_opened_closed_or_refused(case: str, holds: bool) -> None:
    view, engines, expected = DECISIONS[case]
    seen = ModelView("m", engines, serving="ranged", opening=True, reading=holds, holds=holds, fallback=view)
    actions = [action for action in reconcile([seen], NOW, {"cpu"}) if isinstance(action, FALLBACK)]
    assert actions == ([] if expected is None else [expected])


# -- effects --------------------------------------------------------------------------------------------------------


class Host(FakeLink):
    """A host that opens every engine."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: dict[int, object] = {}

    async def open(self, *_: object) -> int:
        return 1


class Hosts:
    """Starts a new host for every engine. `outcomes` are errors, or None for success. Opening waits for `gate`."""

    def __init__(self) -> None:
        self.outcomes: deque[EdgedError | None] = deque()
        self.links: list[Host] = []
        self.asked = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def get(self, kind: object, *paths: object) -> Host:
        self.asked += 1
        await self.gate.wait()
        if self.outcomes and (outcome := self.outcomes.popleft()) is not None:
            raise outcome
        self.links.append(Host())
        return self.links[-1]


class Place:
    """A model with a serving engine for a range of shapes. Its reference accepts any shape."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.wakes, self.hosts, self.main = clock, 0, Hosts(), FakeLink()
        self.store: Any = MemoryStore()
        hosts: Any = self.hosts
        self.opener = Opener(hosts, self.store, 4, MemoryLog(), EventLog(), TaskGroup(lambda: None))
        self.planned = planned_model()
        self.planned.fallback.on_waiting = self._wake
        self.plan(shapes())
        self.reference, self.ranged = self.planned.engines.values()
        self.ranged.recipe = msgspec.structs.replace(self.ranged.recipe, profile=RANGE)
        self.ranged.adopt(record_of(self.ranged.key, self.ranged.recipe, standard=self.ranged.standard))
        self.serve()

    def _wake(self) -> None:
        self.wakes += 1

    def plan(self, of: Model) -> None:
        self.planned.plan(of, desired(box(), of))

    def serve(self) -> None:
        """Install the ranged engine as serving the current model."""
        of = self.planned.model
        assert of is not None
        self.planned.serve(of)
        profile = Profile.parse(RANGE)
        ref = EngineRef(self.ranged.digest, "fake", of.digest, of.recognition, limits=of.limits, profile=profile)
        self.planned.slot.install(ServingSession(self.main, 1, ref))  # type: ignore[arg-type]

    async def turn(self, later: float = 0.0) -> None:
        self.clock.now += later
        catalogue: Any = SimpleNamespace(models={"m": self.planned})
        nothing: Any = None
        for action in reconcile(actual(self.store, [self.planned]), self.clock.now, {"cpu"}):
            if isinstance(action, FALLBACK):
                carry_out(action, self.clock.now, catalogue, self.opener, nothing)
        if self.hosts.gate.is_set():
            await until(lambda: self.planned.fallback_opening is None, "the opening has ended")
        await settle()

    def ask(self) -> TensorWork:
        """Push a request with a shape outside the range."""
        request = TensorWork((InputTensor("x", "FP32", (9, 4), bytes(9 * 16)),), None)
        self.planned.slot.push(request)
        return request

    async def answer(self, request: TensorWork) -> EngineRef:
        """Answer a request. Return the engine that answered."""
        self.hosts.links[-1].answer()
        await settle()
        return request.future.result().engine

    async def open(self) -> Host:
        """Open a fallback engine by one request, and answer it. Return its host."""
        request = self.ask()
        await self.turn()
        await self.answer(request)
        return self.hosts.links[-1]


def shapes(content: str = "content", **settings: str) -> Model:
    """Return a model for any number of rows, with one engine and its reference."""
    of = model(content=content, backends="openvino", threads="1", **settings)
    read = inspection(content, shape=("n", 4))
    echo = msgspec.structs.replace(read.signature, outputs=read.signature.inputs)  # a FakeLink echoes its inputs
    return Model.of(of.entry, msgspec.structs.replace(read, signature=echo))


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(opener_module, "require_same", lambda order: None)
    clock = stop_time(monkeypatch)
    clock.now = time.monotonic()  # sessions note the real time of their answers
    return Place(clock)


def refusal(request: TensorWork) -> str:
    error = request.future.exception()
    assert isinstance(error, NotReady)
    return str(error)


async def test_fallback_request_outside_the_range_is_answered_by_the_reference(place: Place) -> None:
    request = place.ask()
    assert place.wakes == 1
    await place.turn()
    assert (await place.answer(request)).key == place.reference.digest
    assert place.main.jobs == {}


async def test_fallback_idle_engine_is_closed_and_reopened_for_the_next_request(place: Place) -> None:
    link = await place.open()
    await place.turn(later=200)
    assert (place.planned.fallback.current, link.closed) == (None, [1])
    await place.open()
    assert place.hosts.asked == 2


async def test_fallback_without_engine_refuses_waiting_requests_only(place: Place) -> None:
    place.reference.open_at = math.inf
    request = place.ask()
    await place.turn()
    assert "accepts x [1, 4] to [4, 4]; no fallback engine" in refusal(request)
    later = place.ask()
    assert not later.future.done()
    place.reference.open_at = 0.0
    await place.turn()
    assert await place.answer(later)


@pytest.mark.parametrize("error", [HostLost("it died"), NotReady("it keeps dying"), Superseded("it was replaced")])
async def test_fallback_engine_that_cannot_be_opened_now_is_retried_soon(place: Place, error: EdgedError) -> None:
    place.hosts.outcomes.append(error)
    request = place.ask()
    await place.turn()
    await place.turn(later=0.1)
    assert (place.hosts.asked, request.future.done()) == (1, False)
    await place.turn(later=1)
    assert await place.answer(request)


@pytest.mark.parametrize("error", [EngineUnusable("no such operator"), OutOfMemory("bad_alloc")])
async def test_fallback_engine_that_its_runtime_refuses_is_retried_later(place: Place, error: EdgedError) -> None:
    place.hosts.outcomes.append(error)
    for later in (0.0, 1.0):
        request = place.ask()
        await place.turn(later)
        await place.turn()
        assert str(error) in refusal(request)
    assert place.hosts.asked == 1
    third = place.ask()
    await place.turn(later=30)
    assert await place.answer(third)


async def test_fallback_request_lost_with_its_host_is_answered_by_the_next(place: Place) -> None:
    link = await place.open()
    request = place.ask()
    link.lose()
    place.planned.fallback.vacate(link)  # type: ignore[arg-type]
    await settle()
    await place.turn()
    assert await place.answer(request)


@pytest.mark.parametrize("change", [{"content": "another"}, {"limits.seconds": "7"}])
async def test_fallback_engine_is_closed_after_another_model_or_other_settings_serve(
    place: Place, change: dict[str, str]
) -> None:
    link, of = await place.open(), shapes(**change)
    place.plan(of)
    request = place.ask()
    await place.turn()
    assert (await place.answer(request)).model == shapes().digest
    assert link.closed == []
    place.serve()
    await place.turn()
    assert link.closed == [1]
    await place.open()
    assert place.planned.fallback.current is not None
    engine = place.planned.fallback.current.engine
    assert (engine.model, engine.limits) == (of.digest, of.limits)


@pytest.mark.parametrize("is_gone", [False, True])
async def test_fallback_engine_of_a_model_changed_or_removed_while_it_opened_is_closed(
    place: Place, is_gone: bool
) -> None:
    place.hosts.gate.clear()
    request = place.ask()
    await place.turn()
    if is_gone:
        place.planned.engines = {}
    else:
        place.plan(shapes("another"))
    place.hosts.gate.set()
    await until(lambda: place.planned.fallback_opening is None, "the opening has ended")
    assert (place.planned.fallback.current, place.hosts.links[0].closed) == (None, [1])
    assert not request.future.done()
