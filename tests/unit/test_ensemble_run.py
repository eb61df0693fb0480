"""Steps of an ensemble in a request: their order, the tensors between them, and the memory of these tensors."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.errors import EdgedError, InvalidTensor, NotReady, Overloaded
from edged.ipc.messages import Times
from edged.models import ensemble
from edged.models.ensemble import Port
from edged.models.triton_config import Step
from edged.serving.ensemble_run import Budget, EnsembleRun, RowsSink, Value
from edged.serving.work import Answered, InputTensor, OutputView
from tests.fake_link import engine_ref, turn
from tests.unit.test_ensemble import CHAIN, DIAMOND, step

ANSWER = Answered(engine_ref("engine"), None, (), 0, 0, 0.0, Times(1.0, 2.0, 3.0, 4.0))


class Job:
    """A step that runs: a test gives its outputs, or an error."""

    def __init__(self, index: int, tensors: tuple[InputTensor, ...], outputs: Collection[str], sink: RowsSink) -> None:
        self.index, self.tensors, self.outputs, self.sink = index, tensors, list(outputs), sink
        self.future: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()

    @property
    def given(self) -> dict[str, bytes]:
        return {tensor.name: bytes(memoryview(tensor.data)) for tensor in self.tensors}  # type: ignore[arg-type]

    async def answer(self, rows: int = 0, shape: tuple[int, ...] = (2,), **outputs: bytes) -> None:
        views = tuple(OutputView(name, "UINT8", shape, memoryview(bytearray(data))) for name, data in outputs.items())
        self.sink(views, rows)
        for view in views:  # as when the arena reuses the memory
            view.data[:] = bytes(len(view.data))
        self.future.set_result(ANSWER)
        await turn()


class World:
    """A pipeline with scripted models: `jobs` run, `collected` are its outputs."""

    def __init__(
        self,
        steps: tuple[Step, ...],
        wanted: str = "Y",
        inputs: Mapping[str, Value | None] | None = None,
        rows: int = 0,
        budget: Budget | None = None,
    ) -> None:
        self.jobs: dict[int, Job] = {}
        self.cancelled: list[int] = []
        self.collected: dict[str, tuple[tuple[int, ...], bytes]] = {}
        self.budget = budget or Budget(1 << 20)
        self.pipeline: EnsembleRun | None = None
        self.memory: Any = None
        ports = [{name: Port(name, "UINT8", (2,), rows > 0) for name in each.inputs} for each in steps]
        outputs = [Port(name, "UINT8", (2,), rows > 0) for name in wanted.split()]
        known = inputs if inputs is not None else {"X": Value("UINT8", (2,), b"in")}
        self.arguments: Any = (steps, ports, outputs, known, self.infer, self.collect)
        self.task = asyncio.create_task(self.run())

    async def run(self) -> None:
        async with self.budget.reserve() as self.memory:
            self.pipeline = EnsembleRun(*self.arguments, self.memory)
            await self.pipeline.run()

    async def infer(
        self, step: int, tensors: tuple[InputTensor, ...], outputs: Collection[str], sink: RowsSink
    ) -> Answered:
        job = self.jobs[step] = Job(step, tensors, outputs, sink)
        try:
            return await job.future
        except asyncio.CancelledError:
            self.cancelled.append(step)
            raise
        finally:
            del self.jobs[step]

    def collect(self, outputs: tuple[OutputView, ...]) -> None:
        self.collected = {output.name: (output.shape, bytes(output.data)) for output in outputs}


@pytest.fixture
def chain() -> tuple[Step, ...]:
    return CHAIN.steps or ()


@pytest.fixture
def diamond() -> tuple[Step, ...]:
    return DIAMOND.steps or ()


async def test_run_chain_passes_outputs_on_under_their_names(chain: tuple[Step, ...]) -> None:
    world = World(chain)
    await turn()
    assert list(world.jobs) == [0]
    assert (world.jobs[0].given, world.jobs[0].outputs) == ({"x": b"in"}, ["y"])
    await world.jobs[0].answer(y=b"ab")
    assert world.jobs[1].given == {"x": b"ab"}
    await world.jobs[1].answer(y=b"cd")
    await world.task
    assert world.collected == {"Y": ((2,), b"cd")}
    assert world.pipeline is not None
    assert world.pipeline.times == Times(2.0, 4.0, 6.0, 8.0)


async def test_run_independent_steps_run_at_the_same_time(diamond: tuple[Step, ...]) -> None:
    world = World(diamond)
    await turn()
    await world.jobs[3].answer(y=b"ab")
    assert set(world.jobs) == {1, 2}
    await world.jobs[2].answer(y=b"22")
    assert set(world.jobs) == {1}, "the last step waits for both"
    await world.jobs[1].answer(y=b"11")
    assert world.jobs[0].given == {"l": b"11", "r": b"22"}
    await world.jobs[0].answer(y=b"ok")
    await world.task
    assert world.collected == {"Y": ((2,), b"ok")}


async def test_run_outputs_of_several_steps_are_collected_together() -> None:
    steps = (step("a", "x=X", "y=Y"), step("b", "x=Y", "y=Z"), step("c", "x=X", "y=W"))
    world = World(steps, wanted="W Y Z")
    await turn()
    await world.jobs[2].answer(y=b"ww")
    await world.jobs[0].answer(y=b"yy")
    await world.jobs[1].answer(y=b"zz")
    await world.task
    assert list(world.collected) == ["W", "Y", "Z"]
    assert [data for _, data in world.collected.values()] == [b"ww", b"yy", b"zz"]


async def test_run_steps_of_outputs_that_are_not_wanted_are_left_out() -> None:
    steps = (step("a", "x=X", "y=Y z=Z"), step("b", "x=Z", "y=W"))
    world = World(steps, wanted="Y")
    await turn()
    assert world.jobs[0].outputs == ["y"]
    await world.jobs[0].answer(y=b"yy")
    await world.task


async def test_run_optional_input_that_is_missing_is_left_out() -> None:
    world = World((step("a", "x=X z=Z", "y=Y"),), inputs={"X": Value("UINT8", (2,), b"in"), "Z": None})
    await turn()
    assert world.jobs[0].given == {"x": b"in"}
    await world.jobs[0].answer(y=b"yy")
    await world.task


async def test_run_shapes_get_and_lose_the_batch_dimension(chain: tuple[Step, ...]) -> None:
    world = World(chain, rows=1, inputs={"X": Value("UINT8", (1, 2), b"in", rows=1)})
    await turn()
    assert world.jobs[0].tensors[0].shape == (1, 2)
    await world.jobs[0].answer(y=b"ab")  # of a model without a batch dimension
    assert world.jobs[1].tensors[0].shape == (1, 2)
    await world.jobs[1].answer(y=b"cd")
    await world.task
    assert world.collected == {"Y": ((1, 2), b"cd")}


async def test_run_failed_step_cancels_the_others_and_starts_no_more(diamond: tuple[Step, ...]) -> None:
    world = World(diamond)
    await turn()
    await world.jobs[3].answer(y=b"ab")
    world.jobs[1].future.set_exception(InvalidTensor("wrong shape"))
    with pytest.raises(InvalidTensor):
        await world.task
    await turn()
    assert world.cancelled == [2]
    assert not world.jobs
    assert world.budget.reserved == world.budget.running == 0


async def test_run_two_steps_that_fail_at_once_raise_one_error(diamond: tuple[Step, ...]) -> None:
    world = World(diamond)
    await turn()
    await world.jobs[3].answer(y=b"ab")
    for index in (1, 2):
        world.jobs[index].future.set_exception(NotReady("gone"))
    with pytest.raises(NotReady):
        await world.task
    await turn()


async def test_run_cancelled_request_cancels_its_steps(diamond: tuple[Step, ...]) -> None:
    world = World(diamond)
    await turn()
    await world.jobs[3].answer(y=b"ab")
    world.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await world.task
    await turn()
    assert sorted(world.cancelled) == [1, 2]
    assert world.budget.reserved == world.budget.running == 0


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Step, ...]:
    """Return the steps of an ensemble from X: each uses earlier tensors, and makes one or two."""
    steps, known = list[Step](), ["X"]
    for index in range(draw(st.integers(1, 7))):
        used = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3))
        made = [f"{index}{letter}" for letter in "ab"[: draw(st.integers(1, 2))]]
        steps.append(
            Step(f"m{index}", "", {f"x{at}": name for at, name in enumerate(used)}, {name: name for name in made})
        )
        known += made
    return tuple(draw(st.permutations(steps)))


@settings(deadline=None)
@given(graphs(), st.data())
def test_run_any_graph_answers_and_frees_its_memory(steps: tuple[Step, ...], data: st.DataObject) -> None:
    """Each tensor is the names of the tensors that it was made of, so that a wrong connection shows."""
    made = [tensor for each in steps for tensor in each.outputs.values()]
    wanted = data.draw(st.lists(st.sampled_from(made), min_size=1, unique=True))
    producer = {tensor: each for each in steps for tensor in each.outputs.values()}

    def expected(tensor: str) -> str:
        return "X" if tensor == "X" else f"{tensor}({','.join(map(expected, producer[tensor].inputs.values()))})"

    async def play() -> None:
        steps_ran = list[int]()
        held = list[int]()

        async def infer(
            index: int, tensors: tuple[InputTensor, ...], outputs: Collection[str], sink: RowsSink
        ) -> Answered:
            steps_ran.append(index)
            for _ in range(data.draw(st.integers(0, 3))):
                await asyncio.sleep(0)
            given = ",".join(bytes(memoryview(each.data)).decode() for each in tensors)  # type: ignore[arg-type]
            texts = {name: f"{name}({given})".encode() for name in outputs}
            sink(tuple(OutputView(n, "UINT8", (len(t),), memoryview(bytearray(t))) for n, t in texts.items()), 0)
            return ANSWER

        collected = dict[str, str]()

        def collect(outputs: tuple[OutputView, ...]) -> None:
            collected.update({output.name: bytes(output.data).decode() for output in outputs})

        budget = Budget(1 << 30)
        async with budget.reserve() as memory:
            ports = [{name: Port(name, "UINT8", None) for name in each.inputs} for each in steps]
            outputs = [Port(name, "UINT8", None) for name in wanted]
            given = {"X": Value("UINT8", (1,), b"X")}
            await EnsembleRun(steps, ports, outputs, given, infer, collect, memory).run()
            held.append(memory.held)
        assert collected == {name: expected(name) for name in wanted}
        assert sorted(steps_ran) == sorted(ensemble.needed(steps, wanted))
        kept = [name for name in wanted if f"{name}(" in "".join(collected.values())]
        assert held[0] <= sum(len(collected[name]) for name in kept), "only outputs of the ensemble are still held"

    asyncio.run(play())


# -- memory -----------------------------------------------------------------------------------------------------------


async def test_run_memory_is_held_only_while_a_step_needs_it(diamond: tuple[Step, ...]) -> None:
    world = World(diamond)
    await turn()
    assert world.memory.held == 0, "the inputs belong to the request"
    await world.jobs[3].answer(y=b"ab")
    assert world.memory.held == 2
    await world.jobs[1].answer(y=b"11")
    assert world.memory.held == 4
    await world.jobs[2].answer(y=b"22")
    assert world.memory.held == 4, "the tensor that both used is free"
    await world.jobs[0].answer(y=b"ok")
    await world.task
    assert (world.memory.held, world.memory.most) == (0, 6)


async def test_run_beyond_the_memory_fails_while_others_run_and_not_alone(chain: tuple[Step, ...]) -> None:
    budget = Budget(128)
    budget.expected = 2.0
    other, world = World(chain, budget=budget), World(chain, budget=budget)
    await turn()
    await world.jobs[0].answer(y=b"a" * 127, shape=(127,))
    with pytest.raises(Overloaded):
        await world.task
    await other.jobs[0].answer(y=b"a" * 1000, shape=(1000,))
    await other.jobs[1].answer(y=b"ok")
    await other.task
    assert budget.reserved == budget.running == 0


async def test_reserve_waits_in_order_of_arrival() -> None:
    budget, order = Budget(100), list[str]()

    async def hold(name: str, until: asyncio.Event) -> None:
        async with budget.reserve():
            order.append(name)
            await until.wait()

    events = {name: asyncio.Event() for name in "abcd"}
    tasks = dict[str, asyncio.Task[None]]()
    for name, budget.expected in (("a", 60), ("b", 60), ("c", 10), ("d", 500)):
        tasks[name] = asyncio.create_task(hold(name, events[name]))
        await turn()
    assert order == ["a"], "c would fit, but b was first"
    events["a"].set()
    await turn()
    assert order == ["a", "b", "c"]
    events["b"].set()
    events["c"].set()
    await turn()
    assert order == ["a", "b", "c", "d"], "a request beyond the capacity runs alone"
    events["d"].set()
    await asyncio.gather(*tasks.values())
    assert budget.reserved == budget.running == 0


async def test_reserve_cancelled_waiter_does_not_keep_the_others_waiting() -> None:
    budget, until = Budget(100), asyncio.Event()

    async def hold() -> None:
        async with budget.reserve():
            await until.wait()

    budget.expected = 60
    first, second, third = (asyncio.create_task(hold()) for _ in range(3))
    await turn()
    assert budget.requests == 3
    second.cancel()
    await turn()
    until.set()
    await asyncio.gather(first, third)
    assert budget.reserved == budget.running == 0


async def test_reserve_cancelled_waiter_admits_the_request_behind_it_that_fits() -> None:
    budget, until = Budget(100), asyncio.Event()

    async def hold() -> None:
        async with budget.reserve():
            await until.wait()

    tasks = list[asyncio.Task[None]]()
    for budget.expected in (60, 60, 10):
        tasks.append(asyncio.create_task(hold()))
        await turn()
    tasks[1].cancel()
    await turn()
    assert (budget.running, budget.requests) == (2, 2)
    until.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert budget.reserved == budget.running == 0


async def test_reserve_cancelled_waiters_leave_their_places_to_others() -> None:
    budget, until = Budget(64), asyncio.Event()

    async def hold() -> None:
        async with budget.reserve():
            await until.wait()

    budget.expected = 64
    first, *gone = (asyncio.create_task(hold()) for _ in range(65))
    await turn()
    for task in gone:
        task.cancel()
    await turn()
    other = asyncio.create_task(hold())
    await turn()
    assert budget.requests == 2
    until.set()
    await asyncio.gather(first, other)


async def test_reserve_request_that_is_cancelled_when_admitted_frees_its_memory() -> None:
    budget, until = Budget(100), asyncio.Event()

    async def hold() -> None:
        async with budget.reserve():
            await until.wait()

    budget.expected = 60
    first, second = asyncio.create_task(hold()), asyncio.create_task(hold())
    await turn()
    until.set()
    await asyncio.sleep(0)  # the first leaves, and admits the second
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    assert budget.reserved == budget.running == 0


async def test_reserve_too_many_waiting_are_refused_unless_patient() -> None:
    budget, until = Budget(64), asyncio.Event()

    async def hold(patient: bool = False) -> None:
        async with budget.reserve(patient=patient):
            await until.wait()

    budget.expected = 64
    tasks = [asyncio.create_task(hold()) for _ in range(65)]
    await turn()
    with pytest.raises(Overloaded):
        await hold()
    tasks.append(asyncio.create_task(hold(patient=True)))
    await turn()
    until.set()
    await asyncio.gather(*tasks)
    assert budget.reserved == budget.running == 0


async def test_reserve_expects_what_the_latest_requests_took() -> None:
    budget = Budget(1000)

    async def hold(size: int, rows: int = 1, error: EdgedError | None = None) -> int:
        async with budget.reserve(rows) as memory:
            reserved = memory.size
            memory.hold(size)
            if error is not None:
                raise error
            return reserved

    assert await hold(500, 2) == 125, "nothing is known yet"
    assert await hold(10) == 250
    assert await hold(10, 4) == 900
    assert budget.expected == 202.5
    with pytest.raises(InvalidTensor):
        await hold(900, error=InvalidTensor("a failed request shows nothing"))
    assert budget.expected == 202.5


async def test_reserve_many_requests_of_many_sizes_all_end() -> None:
    """Requests never wait for memory while they hold some, so that they cannot block each other."""
    budget = Budget(1000)
    chain: tuple[Step, ...] = CHAIN.steps or ()

    def sizes() -> Iterator[int]:
        yield from (1 + 37 * number % 400 for number in range(60))

    ended = list[str]()

    async def request(size: int) -> None:
        async def infer(
            index: int, tensors: tuple[InputTensor, ...], outputs: Collection[str], sink: RowsSink
        ) -> Answered:
            await asyncio.sleep(0)
            sink((OutputView("y", "UINT8", (size,), memoryview(bytes(size))),), 0)
            return ANSWER

        try:
            async with budget.reserve() as memory:
                ports = [{"x": Port("x", "UINT8", None)}] * 2
                value = {"X": Value("UINT8", (2,), b"in")}
                await EnsembleRun(chain, ports, [Port("Y", "UINT8", None)], value, infer, lambda _: None, memory).run()
            ended.append("answered")
        except EdgedError as error:
            ended.append(type(error).__name__)

    await asyncio.wait_for(asyncio.gather(*map(request, sizes())), 20)
    assert len(ended) == 60
    assert ended.count("answered") > 10
    assert budget.reserved == budget.running == 0
