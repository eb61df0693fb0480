"""Learning of shape ranges from requests, step by step with a test clock."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.backends.contract import Signature
from edged.backends.profile import Profile
from edged.engines import learning as learning_module
from edged.engines.desired import desired
from edged.engines.engine import EngineState, PlannedEngine
from edged.engines.learning import Demand, Learning, down, recent, up, widened
from edged.engines.shape_book import ShapeBook, largest_bytes
from edged.models.model import Model
from edged.serving.extents import Kind, Seen
from edged.tasks import TaskGroup
from edged.tensors import ANY_SHAPE, Dim, TensorSpec
from tests.unit.control_room import Clock, box, entry, inspection, planned_model

S = EngineState
QUIET = 30.0


class School:
    """One model that learns. Only the null backend's engine has a range. Create it inside an event loop."""

    def __init__(self, root: Path, clock: Clock, **settings: str) -> None:
        output = {
            "shapes.policy": "learn",
            "backends": "null",
            **{k.replace("__", "."): v for k, v in settings.items()},
        }
        read = inspection(shape=("n", "w"))
        self.clock, self.root = clock, root
        self.planned = planned_model()
        self.planned.entry = msgspec.structs.replace(entry(), settings=output)
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
        self.planned.plan(model, desired(box(), model))

    def ask(self, *shapes: tuple[int, int]) -> None:
        for shape in shapes:
            self.planned.traffic.note((("x", shape),))

    async def look(self, seconds: float = 0.0) -> str:
        """Advance the clock and look. Return the range of the desired engine."""
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
        """Wait until everything is stored."""
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


async def test_learning_waits_until_no_wider_shapes_come(tmp_path: Path, clock: Clock) -> None:
    school = School(tmp_path, clock)
    assert await school.look() == ""
    school.ask((1, 17))
    assert await school.look() == ""
    assert "built once the shapes stop changing" in school.learning.state("m")
    school.ask((1, 33))
    assert await school.look(QUIET - 1) == ""
    assert await school.look(QUIET - 1) == ""
    assert await school.look(1) == "x=1x16:1x17:1x40"
    assert "are being built" in school.learning.state("m")


async def test_learning_with_ever_wider_shapes_begins_after_a_limit(tmp_path: Path, clock: Clock) -> None:
    school = School(tmp_path, clock)
    await school.look()
    for n in range(1, 14):
        school.ask((1, 16 << n))
        if await school.look(QUIET - 1):
            assert n > 10
            return
    raise AssertionError("it waited through ten quiet times")


async def test_learning_keeps_proved_ranges_only(tmp_path: Path, clock: Clock) -> None:
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


async def test_learning_during_a_build_begins_no_wider_range(tmp_path: Path, clock: Clock) -> None:
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
async def test_learning_range_without_a_usable_engine_is_retried_later(
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


async def test_learning_begins_a_limited_number_per_hour_across_restarts(tmp_path: Path, clock: Clock) -> None:
    school = School(tmp_path, clock, shapes__per_hour="2", shapes__quiet_s="0")
    await school.look()
    for n in (16, 32):
        school.ask((1, n))
        assert await school.look(1) == f"x=1x16:1x16:1x{n}"
        end(school.engine, S.READY)
        await school.look()
    school.ask((1, 64))
    assert await school.look(1) == "x=1x16:1x16:1x32"
    assert "2 ranges began in the last hour" in school.learning.state("m")
    await school.settle()
    school.start()
    assert await school.look() == await school.look(60) == "x=1x16:1x16:1x32"
    assert await school.look(3600) == "x=1x16:1x16:1x64"


@pytest.mark.parametrize("policy", ["any", "refuse"])
async def test_learning_with_other_policies_records_shapes_only(tmp_path: Path, clock: Clock, policy: str) -> None:
    school = School(tmp_path, clock, shapes__policy=policy, profile__x="1x4 1x8 2x8")
    await school.look()
    school.ask((5, 5))
    await school.look()
    assert await school.look(1000) == "x=1x4:1x8:2x8"
    await school.settle()
    assert ShapeBook(tmp_path).page(school.bare).seen.requests == 1


async def test_learning_without_ranged_engines_has_no_target(tmp_path: Path, clock: Clock) -> None:
    school = School(tmp_path, clock, backends="onnxruntime")
    school.turn()
    school.ask((5, 5))
    for _ in range(3):
        clock.now += 100
        school.turn()
    assert school.plans == 1
    assert "learning has no effect" in school.learning.state("m")


MB = 1 << 20


def signature(**shapes: tuple[Dim, ...]) -> Signature:
    return Signature(tuple(TensorSpec(name, "FP32", shape) for name, shape in shapes.items()), ())


IDS = signature(ids=("batch", "seq"))


def seen(*kinds: tuple[dict[str, tuple[int, ...]], int]) -> Seen:
    return Seen(sum(count for _, count in kinds), tuple(Kind(shapes, count) for shapes, count in kinds))


def ids(*shapes: tuple[int, ...]) -> Seen:
    return seen(*(({"ids": shape}, 1) for shape in shapes))


SEEN = seen(({"ids": (2, 200)}, 9), ({"ids": (1, 64)}, 3))
GREEDY = seen(({"ids": (1, 1 << 28)}, 99), ({"ids": (1, 200)}, 1), ({"ids": (1 << 20, 1)}, 1))
USUAL, EXACT, HUGE = "ids=1x1:1x64:4x128", "ids=1x3:1x64:5x100", "ids=1x1:1x64:1024x1024"
TOGETHER, TWO = signature(a=("n", 3), b=("n", "m"), c=(7,)), seen(({"a": (9, 3), "b": (9, 17)}, 1))
# (range so far, shapes seen, inputs, expected range), with a limit of MB bytes.
WIDENED: dict[str, tuple[str, Seen, Signature, str]] = {
    "shapes inside the range": (USUAL, ids((4, 128), (1, 1), (2, 77)), IDS, USUAL),
    "nothing came": (USUAL, Seen(), IDS, USUAL),
    "one dimension grows, bounds that are set stay exact": (EXACT, ids((1, 130)), IDS, "ids=1x3:1x130:5x160"),
    "both ends grow": (EXACT, ids((6, 2)), IDS, "ids=1x2:6x2:8x100"),
    "no range yet": ("", ids((1, 17), (1, 5), (3, 33)), IDS, "ids=1x4:1x17:4x40"),
    "the most frequent is the usual one": (USUAL, SEEN, IDS, "ids=1x1:2x200:4x224"),
    "too much memory, and a part that fits": (USUAL, GREEDY, IDS, "ids=1x1:1x200:4x224"),
    "a setting beyond the limit": (HUGE, ids((1025, 1)), IDS, HUGE),
    "dimensions of one name": ("", TWO, TOGETHER, "a=8x3:9x3:16x3;b=8x16:9x17:16x20"),
    "any rank": ("", seen(({"x": (1, 2)}, 1)), signature(x=ANY_SHAPE), ""),
    "too many dimensions": ("", seen(({"x": (1,) * 9}, 1)), signature(x=("n",) * 9), ""),
    "fixed": ("", seen(({"x": (1, 2)}, 1)), signature(x=(1, 2)), ""),
}


@pytest.mark.parametrize("case", WIDENED)
def test_widened_range_includes_the_shapes_seen_within_the_limit(case: str) -> None:
    now, came, given, expected = WIDENED[case]
    found = widened(Profile.parse(now), given, came, MB, usual=True)
    assert str(found) == expected
    assert expected == HUGE or not expected or largest_bytes(found, given) <= MB


def test_widened_range_of_pictures_keeps_their_usual_shape() -> None:
    assert str(widened(Profile.parse(USUAL), IDS, SEEN, MB, usual=False)) == "ids=1x1:1x64:4x224"


@given(st.integers(1, 1 << 31), st.integers(0, 10))
def test_rounding_is_outward_by_a_quarter_at_most(n: int, power: int) -> None:
    n <<= power
    high, low = up(n), down(n)
    assert low <= n <= high
    assert high <= (n * 1.25 if n >= 16 else 2 * n)
    assert low >= (n * 0.75 if n >= 16 else n / 2)
    assert (up(high), down(low)) == (high, low)
    assert high % (1 << power) == low % (1 << power) == 0 or n < 16


def test_rounding_leaves_few_different_sizes() -> None:
    assert sorted({up(n) for n in range(1, 129)}) == [1, 2, 4, 8, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128]
    assert [down(n) for n in (1, 3, 15, 16, 33, 100)] == [1, 2, 8, 16, 32, 96]


@pytest.mark.parametrize("now", ["", USUAL])
@pytest.mark.parametrize(
    "came",
    [
        ids((0, 5)),  # a tensor without elements
        seen(({"other": (1, 2)}, 1)),
        ids((1,)),
        ids((1 << 40, 1 << 40)),
    ],
)
def test_widened_by_unusable_shapes_is_unchanged(now: str, came: Seen) -> None:
    assert str(widened(Profile.parse(now), IDS, came, 1 << 62, usual=True)) == now


shapes = st.tuples(st.integers(0, 5000), st.integers(0, 5000))


@given(st.lists(st.tuples(shapes, st.integers(1, 50)), max_size=20), st.lists(shapes, max_size=5))
def test_widened_by_any_shapes_never_shrinks_or_exceeds_the_limit(
    kinds: list[tuple[tuple[int, int], int]], later: list[tuple[int, int]]
) -> None:
    came = seen(*(({"ids": shape}, count) for shape, count in kinds))
    first = widened(Profile(), IDS, came, MB, usual=True)
    assert widened(first, IDS, came, MB, usual=True) == first
    assert not first.problem()
    assert not first.ranges or largest_bytes(first, IDS) <= MB
    second = widened(first, IDS, ids(*later), MB, usual=True)
    for each in first.ranges:
        assert second.contains("ids", each.minimum)
        assert second.contains("ids", each.maximum)


def test_demand_is_due_after_a_quiet_time_or_ten_without_one() -> None:
    one, other = Profile.parse("x=1:1:2"), Profile.parse("x=1:1:4")
    demand = Demand(one, 100.0, 100.0)
    assert demand.updated(one, 105.0) is demand
    assert not demand.is_due(129.0, 30.0)
    assert demand.is_due(130.0, 30.0)
    grown = demand.updated(other, 129.0)
    assert (grown.profile, grown.since, grown.settled) == (other, 100.0, 129.0)
    assert not grown.is_due(158.0, 30.0)
    assert grown.updated(one, 399.0).is_due(400.0, 30.0)  # ten quiet times have passed


def test_recent_has_only_times_of_the_last_hour() -> None:
    assert recent((0.0, 1000.0, 4000.0, 9000.0), 5000.0) == (4000.0,)
