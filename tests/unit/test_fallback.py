"""What is opened beside an engine with a range of shapes, for how long, and what becomes of requests where nothing can
be. Hosts do what a test says, and time passes when it says so."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edged.backends.profile import Profile
from edged.engines import fallback as fallback_module
from edged.engines.desired import desired
from edged.engines.engine import EngineState, PlannedEngine
from edged.engines.fallback import FallbackSlots
from edged.engines.plan import PlannedModel
from edged.errors import EdgedError, EngineUnusable, HostLost, NotReady, OutOfMemory, Superseded
from edged.models.model import Model
from edged.serving.session import ServingSession
from edged.serving.work import EngineRef, InputTensor, TensorWork
from edged.tasks import TaskGroup
from edged.tensors import TensorSpec
from tests.fake_link import FakeLink
from tests.unit.control_room import Clock, box, inspection, model, planned_model, record_of, settle

ANY, RANGE = Profile(), Profile.parse("x=1x4:1x4:4x4")


class Opener:
    """Opens engines in links without a host. `outcomes` are errors, or None for success; while `gate` is clear opening
    takes its time."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self.outcomes: deque[EdgedError | None] = deque()
        self.opened: list[str] = []
        self.links: list[FakeLink] = []
        self.retired: list[ServingSession] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def open_session(self, planned: PlannedModel, of: Model, engine: PlannedEngine) -> ServingSession:
        self.opened.append(engine.digest)
        await self.gate.wait()
        outcome = self.outcomes.popleft() if self.outcomes else None
        if outcome is not None:
            raise outcome
        self.links.append(FakeLink())
        return session(self.links[-1], of, engine)

    def retire(self, session: ServingSession | None) -> None:
        if session is not None:
            self.retired.append(session)
            self._tasks.start(session.retire())


def session(link: Any, of: Model, engine: PlannedEngine, profile: Profile = ANY) -> ServingSession:
    ref = EngineRef(engine.digest, "fake", of.digest, of.recognition, limits=of.limits, profile=profile)
    return ServingSession(link, 1, ref)


class Place:
    """A model whose engine of a range serves; its reference takes any shape. Made within a loop."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.wakes = clock, 0
        tasks = TaskGroup(lambda: None)
        self.opener = Opener(tasks)
        made: Any = self.opener
        self.fallbacks = FallbackSlots(made, tasks, self._wake)
        self.models: list[PlannedModel] = []
        self.planned = self.add()
        self.reference, self.ranged = self.planned.engines.values()
        self.main = FakeLink()
        self.serve()

    def _wake(self) -> None:
        self.wakes += 1

    def add(self) -> PlannedModel:
        planned, of = planned_model(), shapes()
        planned.plan(of, desired(box(), {"m": of})["m"])
        _, engine = planned.engines.values()
        engine.recipe = msgspec.structs.replace(engine.recipe, profile="x=1x4:1x4:4x4")
        engine.adopt(record_of(engine.key, engine.recipe, standard=engine.standard))
        self.models.append(planned)
        return planned

    def serve(self) -> None:
        """What has the range serves the model as it is on disk."""
        assert self.planned.model is not None
        self.planned.serve(self.planned.model)
        self.planned.slot.install(session(self.main, self.planned.model, self.ranged, RANGE))

    async def look(self, later: float = 0.0) -> None:
        self.clock.now += later
        self.fallbacks.look(self.models, self.clock.now)
        await settle()

    @property
    def current(self) -> ServingSession | None:
        return self.planned.fallback.current

    def ask(self, rows: int = 9) -> TensorWork:
        """A request, outside the range if nothing else is said."""
        request = TensorWork((InputTensor("x", "FP32", (rows, 4), bytes(rows * 16)),), None)
        self.planned.slot.push(request)
        return request


def shapes(content: str = "content", **settings: str) -> Model:
    """A model with any number of rows and an engine besides its reference."""
    of = model(content=content, backends="openvino", threads="1", **settings)
    return Model.of(of.entry, inspection(content, shape=("n", 4)))


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(fallback_module, "time", clock)
    return clock


@pytest.fixture
def place(clock: Clock) -> Place:
    return Place(clock)


def refusal(request: TensorWork) -> str:
    """What a request was told instead of an answer."""
    error = request.future.exception()
    assert isinstance(error, NotReady)
    return str(error)


# -- opening --------------------------------------------------------------------------------------------------------


async def test_nothing_is_opened_before_somebody_asks(place: Place) -> None:
    place.ask(rows=4)
    await place.look()
    assert (place.opener.opened, place.wakes) == ([], 0)


async def test_a_request_outside_the_range_has_the_reference_opened_and_is_answered_by_it(place: Place) -> None:
    await place.look()
    request = place.ask()
    assert place.wakes == 1
    await place.look()
    place.opener.links[0].answer()
    await settle()
    assert request.future.result().engine.key == place.reference.digest
    assert place.main.jobs == {}


async def test_it_is_opened_once_however_many_wait(place: Place) -> None:
    place.opener.gate.clear()
    for _ in range(3):
        place.ask()
        await place.look()
    place.opener.gate.set()
    await place.look()
    assert place.opener.opened == [place.reference.digest]
    assert place.planned.fallback.waiting == 1, "two are with the engine"


async def test_the_fastest_of_those_that_take_any_shape_is_taken(place: Place) -> None:
    place.ranged.recipe = msgspec.structs.replace(place.ranged.recipe, profile="")
    place.ask()
    await place.look()
    assert place.opener.opened == [place.ranged.digest]


async def test_only_the_reference_is_opened_for_a_model_whose_inputs_have_defaults(place: Place) -> None:
    place.ranged.recipe = msgspec.structs.replace(place.ranged.recipe, profile="")
    assert place.planned.model is not None
    known = place.planned.model.inspection
    with_default = msgspec.structs.replace(known, optional=(TensorSpec("w", "FP32", (1,)),))
    place.planned.model = msgspec.structs.replace(place.planned.model, inspection=with_default)
    place.planned.served = place.planned.model
    place.ask()
    await place.look()
    assert place.opener.opened == [place.reference.digest]


# -- what cannot be opened ------------------------------------------------------------------------------------------


async def test_where_no_other_engine_can_be_opened_requests_are_told_what_is_taken(place: Place) -> None:
    place.reference.open_at = math.inf
    request = place.ask()
    await place.look()
    assert "takes x [1, 4] to [4, 4], and no fallback engine" in refusal(request)
    later = place.ask()
    assert not later.future.done(), "what comes later is looked at anew"
    place.reference.open_at = 0.0
    await place.look()
    place.opener.links[0].answer()
    await settle()
    assert later.future.result()


async def test_while_an_engine_of_a_wider_range_is_built_that_is_told(place: Place) -> None:
    place.reference.open_at = math.inf
    place.ranged.move(EngineState.QUEUED)
    request = place.ask()
    await place.look()
    assert refusal(request).endswith("an engine of a wider range is being built, try again later")


async def test_a_reference_that_waits_for_its_next_try_is_waited_for(place: Place, clock: Clock) -> None:
    place.reference.open_at = clock.now + 5
    request = place.ask()
    await place.look()
    assert not request.future.done()
    await place.look(later=6)
    assert place.opener.opened == [place.reference.digest]


@pytest.mark.parametrize("error", [HostLost("it died"), NotReady("it keeps dying"), Superseded("it was replaced")])
async def test_a_host_that_is_lost_over_opening_is_tried_again_soon_and_nobody_is_told(
    place: Place, error: EdgedError
) -> None:
    place.opener.outcomes.append(error)
    request = place.ask()
    await place.look()
    await place.look(later=0.1)
    assert (len(place.opener.opened), request.future.done()) == (1, False)
    await place.look(later=1)
    place.opener.links[0].answer()
    await settle()
    assert request.future.result()


@pytest.mark.parametrize("error", [EngineUnusable("no such operator"), OutOfMemory("bad_alloc")])
async def test_what_the_runtime_refuses_is_told_at_once_until_it_is_tried_again(
    place: Place, error: EdgedError
) -> None:
    place.opener.outcomes.append(error)
    first = place.ask()
    await place.look()
    await place.look()
    assert f"the engine for other shapes cannot be opened: {error}" in refusal(first)
    second = place.ask()
    await place.look(later=1)
    assert str(error) in refusal(second)
    assert len(place.opener.opened) == 1
    third = place.ask()
    await place.look(later=30)
    place.opener.links[0].answer()
    await settle()
    assert third.future.result()


# -- how long -------------------------------------------------------------------------------------------------------


async def opened(place: Place) -> FakeLink:
    """Has an engine opened beside, and one request answered."""
    place.ask()
    await place.look()
    link = place.opener.links[-1]
    link.answer()
    await settle()
    await place.look()
    return link


async def test_it_is_closed_when_nobody_has_asked_for_a_while_and_opened_again_for_the_next(place: Place) -> None:
    link = await opened(place)
    await place.look(later=100)
    assert place.current is not None
    await place.look(later=100)
    assert (place.current, link.closed) == (None, [1])
    await opened(place)
    assert len(place.opener.opened) == 2


async def test_every_request_keeps_it_open(place: Place) -> None:
    link = await opened(place)
    for _ in range(4):
        await place.look(later=100)
        place.ask()
        link.answer()
        await settle()
        await place.look()
    await place.look(later=100)
    assert (len(place.opener.opened), link.closed) == (1, [])


async def test_it_is_not_closed_under_a_request_that_takes_long(place: Place) -> None:
    link = await opened(place)
    request = place.ask()
    for _ in range(3):
        await place.look(later=100)
    assert link.closed == []
    link.answer()
    await settle()
    assert request.future.result()


async def test_what_its_host_held_when_it_was_lost_is_tried_once_more_on_a_new_one(place: Place) -> None:
    link = await opened(place)
    request = place.ask()
    link.lose()
    place.fallbacks.host_lost(link)  # type: ignore[arg-type]
    await settle()
    await place.look()
    assert len(place.opener.opened) == 2
    place.opener.links[1].answer()
    await settle()
    assert request.future.result()
    assert place.planned.slot.current is not None, "another host is none of the range's business"


# -- other models ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [{"content": "another"}, {"limits.seconds": "7"}])
async def test_it_is_closed_once_another_model_or_the_same_with_other_settings_serves(
    place: Place, change: dict[str, str]
) -> None:
    link = await opened(place)
    of = shapes(**change)
    place.planned.plan(of, desired(box(), {"m": of})["m"])
    request = place.ask()  # until then the one before answers
    await place.look()
    link.answer()
    await place.look()
    assert request.future.result().engine.model == shapes().digest
    assert link.closed == []
    place.serve()
    await place.look()
    assert link.closed == [1]
    await opened(place)
    assert place.current is not None
    assert (place.current.engine.model, place.current.engine.limits) == (of.digest, of.limits)


async def test_one_that_was_opened_for_the_model_before_does_not_serve(place: Place) -> None:
    place.opener.gate.clear()
    request = place.ask()
    await place.look()
    of = shapes("another")
    place.planned.plan(of, desired(box(), {"m": of})["m"])
    place.opener.gate.set()
    await settle()
    assert (place.current, place.opener.links[0].closed) == (None, [1])
    assert not request.future.done()
    place.serve()
    await place.look()
    place.opener.links[1].answer()
    await settle()
    assert request.future.result().engine.model == of.digest


async def test_while_the_file_is_one_that_cannot_be_served_requests_are_told_so(place: Place) -> None:
    place.planned.model, place.planned.problem = None, NotReady("it is truncated")
    request = place.ask()
    await place.look()
    assert "the model on disk cannot be opened: it is truncated" in refusal(request)


async def test_a_model_that_is_gone_answers_nobody_and_leaves_nothing_open(place: Place) -> None:
    link = await opened(place)
    place.models.clear()
    await place.look()
    assert (place.current, link.closed) == (None, [1])
    with pytest.raises(NotReady, match="'m'"):
        place.ask()


async def test_one_that_is_open_only_after_its_model_has_gone_is_closed(place: Place) -> None:
    place.opener.gate.clear()
    request = place.ask()
    await place.look()
    place.models.clear()
    await place.look()
    assert "removed" in refusal(request)
    place.opener.gate.set()
    await settle()
    assert [link.closed for link in place.opener.links] == [[1]], "a host keeps what nobody closes"


async def test_each_model_has_its_own(place: Place, tmp_path: Path) -> None:
    place.add()
    await opened(place)
    assert [planned.fallback.current is not None for planned in place.models] == [True, False]
