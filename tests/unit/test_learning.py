"""Learning ranges from requests, step by step on a made-up clock: when one is aimed at, proved, or given up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from edged.backends.profile import Profile
from edged.engines import learning as learning_module
from edged.engines.desired import desired
from edged.engines.engine import EngineState, PlannedEngine
from edged.engines.learning import Learning
from edged.engines.shape_book import ShapeBook
from edged.models.model import Model
from edged.tasks import TaskGroup
from tests.unit.control_room import Clock, box, entry, inspection, planned_model

S = EngineState
QUIET = 30.0


class School:
    """One model that learns, on a box whose only engine with a range is the null backend's. Made within a loop."""

    def __init__(self, root: Path, clock: Clock, **settings: str) -> None:
        said = {"shapes.policy": "learn", "backends": "null", **{k.replace("__", "."): v for k, v in settings.items()}}
        read = inspection(shape=("n", "w"))
        self.clock, self.root = clock, root
        self.planned = planned_model()
        self.planned.entry = msgspec.structs.replace(entry(), settings=said)
        self.bare = Model.of(self.planned.entry, read)
        self.plans = 0
        self.start()

    def start(self) -> None:
        self.book = ShapeBook(self.root)
        self.learning = Learning(self.book, TaskGroup(lambda: None))
        self.plan()

    def plan(self) -> None:
        self.plans += 1
        model = self.book.applied(self.planned.model or self.bare)
        self.planned.plan(model, desired(box(), {"m": model})["m"])

    def ask(self, *shapes: tuple[int, int]) -> None:
        for shape in shapes:
            self.planned.traffic.note((("x", shape),))

    async def look(self, seconds: float = 0.0) -> str:
        """A look later on; the range of the engine that should be there."""
        self.clock.now += seconds
        self.turn()
        await asyncio.sleep(0)
        return self.engine.recipe.profile

    def turn(self) -> None:
        for _ in self.learning.look([self.planned], self.clock.now):
            self.plan()

    @property
    def engine(self) -> PlannedEngine:
        return next(engine for engine in self.planned.engines.values() if engine.recipe.backend == "null")

    async def settle(self) -> None:
        """Until what is written is written."""
        await self.learning.stop()
        await asyncio.sleep(0.2)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(learning_module, "time", made)
    return made


def end(engine: PlannedEngine, state: EngineState, reason: str = "") -> None:
    for step in (S.QUEUED, S.BUILDING, S.VERIFYING, state):
        engine.move(step, reason)


async def test_it_waits_until_no_wider_shapes_come(tmp_path: Path, clock: Clock) -> None:
    school = School(tmp_path, clock)
    assert await school.look() == ""
    school.ask((1, 17))
    assert await school.look() == ""
    assert "built once shapes stop changing" in school.learning.state("m")
    school.ask((1, 33))
    assert await school.look(QUIET - 1) == ""
    assert await school.look(QUIET - 1) == ""
    assert await school.look(1) == "x=1x16:1x17:1x40"
    assert "are being built" in school.learning.state("m")


async def test_it_does_not_wait_for_ever(tmp_path: Path, clock: Clock) -> None:
    school = School(tmp_path, clock)
    await school.look()
    for n in range(1, 14):
        school.ask((1, 16 << n))
        if await school.look(QUIET - 1):
            assert n > 10
            return
    raise AssertionError("it waited through ten quiet times")


async def test_what_is_proved_is_kept_and_what_is_only_aimed_at_is_not(tmp_path: Path, clock: Clock) -> None:
    school = School(tmp_path, clock)
    school.ask((1, 16))
    await school.look()
    school.ask((1, 16))
    await school.look()
    assert await school.look(QUIET) == "x=1x16:1x16:1x16"
    assert ShapeBook(tmp_path).applied(school.bare).learnt == Profile()
    end(school.engine, S.READY)
    await school.look()
    await school.settle()
    assert school.learning.state("m") == ""
    assert str(ShapeBook(tmp_path).applied(school.bare).learnt) == "x=1x16:1x16:1x16"


async def test_nothing_wider_is_begun_while_an_engine_is_on_its_way(tmp_path: Path, clock: Clock) -> None:
    school = School(tmp_path, clock)
    await school.look()
    school.ask((1, 16))
    await school.look()
    first = await school.look(QUIET)
    school.engine.move(S.QUEUED)
    school.ask((9, 99))
    assert await school.look(QUIET) == await school.look(QUIET) == first
    for step in (S.BUILDING, S.VERIFYING, S.READY):
        school.engine.move(step)
    await school.look()
    await school.look()
    assert await school.look(QUIET) == "x=1x16:1x16:16x112"


@pytest.mark.parametrize("state", [S.REJECTED, S.FAILED, S.UNSUITABLE])
async def test_a_range_that_no_engine_can_be_made_of_is_given_up_and_tried_again_later(
    tmp_path: Path, clock: Clock, state: EngineState
) -> None:
    school = School(tmp_path, clock, profile__x="1x4 1x8 2x8")
    before = school.engine
    await school.look()
    school.ask((2, 16))
    await school.look()
    assert await school.look(QUIET) == "x=1x4:2x16:2x16"
    end(school.engine, state, "it is too wide")
    assert await school.look() == before.recipe.profile
    assert school.engine.digest == before.digest
    assert "can be made: it is too wide" in school.learning.state("m")
    assert await school.look(QUIET) == before.recipe.profile
    await school.look(3600)
    assert await school.look(QUIET) == "x=1x4:2x16:2x16"


async def test_only_so_many_are_begun_in_an_hour_also_across_restarts(tmp_path: Path, clock: Clock) -> None:
    school = School(tmp_path, clock, shapes__per_hour="2", shapes__quiet_s="0")
    await school.look()
    for n in (16, 32):
        school.ask((1, n))
        assert await school.look(1) == f"x=1x16:1x16:1x{n}"
        end(school.engine, S.READY)
        await school.look()
    school.ask((1, 64))
    assert await school.look(1) == "x=1x16:1x16:1x32"
    assert "2 begun in this hour" in school.learning.state("m")
    await school.settle()
    school.start()
    assert await school.look() == await school.look(60) == "x=1x16:1x16:1x32"
    assert await school.look(3600) == "x=1x16:1x16:1x64"


@pytest.mark.parametrize("policy", ["any", "refuse"])
async def test_other_policies_note_what_came_and_build_nothing(tmp_path: Path, clock: Clock, policy: str) -> None:
    school = School(tmp_path, clock, shapes__policy=policy, profile__x="1x4 1x8 2x8")
    await school.look()
    school.ask((5, 5))
    await school.look()
    assert await school.look(1000) == "x=1x4:1x8:2x8"
    await school.settle()
    assert ShapeBook(tmp_path).page(school.bare).seen.requests == 1


async def test_where_no_engine_has_a_range_nothing_is_aimed_at(tmp_path: Path, clock: Clock) -> None:
    school = School(tmp_path, clock, backends="onnxruntime")
    school.turn()
    school.ask((5, 5))
    for _ in range(3):
        clock.now += 100
        school.turn()
    assert school.plans == 1
    assert "nothing to learn" in school.learning.state("m")
