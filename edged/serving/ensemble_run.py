"""Runs the steps of an ensemble for one request, and limits the memory of the tensors between steps.

A step starts when its inputs are available, so steps that do not depend on each other run at the same time. The outputs
of a step are copied out of the arena once, and freed when the last step that uses them has ended. The outputs of the
last step are not copied: the request's `Sink` reads them in the arena.

Between two steps, a request holds nothing in an arena. A request gets its share of the memory before its first step and
never waits for memory after that, so requests cannot block each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Collection, Mapping, Sequence
from typing import Protocol

import msgspec

from edged.errors import Overloaded
from edged.ipc.messages import Times
from edged.models import ensemble
from edged.models.ensemble import Port
from edged.models.triton_config import Step
from edged.serving.work import Answered, Blob, InputTensor, OutputView, Sink
from edged.tasks import retrieve_exception

_CAPACITY = 128 << 20
_DECAY = 0.9  # factor of the expected size after each request, so that one large request has no lasting effect
_WAITING = 64  # requests that wait for memory; more are refused
_RUNNING = 64  # each request gets at least 1/64 of the memory, so at most 64 run
_UNKNOWN = 8  # each request gets 1/8 of the memory until the first one has been answered


class Value(msgspec.Struct, frozen=True):
    """A tensor of an ensemble. `rows` is the number of rows of the request that made the tensor; 0 if this request had
    no batch dimension. An input of the ensemble is made by the client's request, any other tensor by the request of a
    step."""

    datatype: str
    shape: tuple[int, ...]
    data: Blob
    rows: int = 0

    @property
    def size(self) -> int:
        return len(self.data) if isinstance(self.data, bytes | memoryview) else self.data.size


class Infer(Protocol):
    """Runs one step. `tensors` are the inputs of the step's model, `outputs` the names of its wanted outputs. `sink`
    receives the outputs and the number of rows of the request, 0 without a batch dimension."""

    def __call__(
        self, step: int, tensors: tuple[InputTensor, ...], outputs: Collection[str], sink: RowsSink
    ) -> Awaitable[Answered]: ...


class RowsSink(Protocol):
    """Receives the outputs of a step and the number of rows of its request. It must read the outputs before it returns,
    because their memory is then reused."""

    def __call__(self, outputs: tuple[OutputView, ...], rows: int) -> None: ...


class Reservation:
    """A request's share of a budget. `held` is the number of bytes that the request uses, `most` the largest value of
    `held` so far."""

    def __init__(self, budget: Budget, size: int) -> None:
        self._budget, self.size = budget, size
        self.held = self.most = 0

    def hold(self, size: int) -> None:
        """Count `size` more bytes as used. Raises Overloaded if the budget has no room for these bytes."""
        self.held += size
        self.most = max(self.most, self.held)
        if self.held > self.size:
            self._budget.extend(self, self.held)

    def free(self, size: int) -> None:
        self.held -= size


class Budget:
    """The memory that the requests of one ensemble share, in bytes. Requests enter in order of arrival. A request
    reserves, for each of its rows, as much as the latest requests used for a row. A request that runs alone may exceed
    the capacity."""

    def __init__(self, capacity: int = _CAPACITY) -> None:
        self.capacity = capacity
        self.reserved = self.running = 0
        self.expected: float | None = None  # bytes for each row; None until a request has been answered
        self._waiting: dict[asyncio.Future[None], int] = {}  # the sizes, in order of arrival

    @property
    def requests(self) -> int:
        """The number of requests that run or wait."""
        return self.running + len(self._waiting)

    @contextlib.asynccontextmanager
    async def reserve(self, rows: int = 1, *, patient: bool = False) -> AsyncIterator[Reservation]:
        """Wait until the budget has room for a request with `rows` rows, and yield its reservation. Raises Overloaded
        if too many requests wait, unless `patient` is set."""
        least = self.capacity // _RUNNING
        size = self.capacity // _UNKNOWN if self.expected is None else max(math.ceil(self.expected * rows), least)
        await self._enter(size, patient)
        reservation = Reservation(self, size)
        try:
            yield reservation
            self.expected = max(reservation.most / rows, (self.expected or 0.0) * _DECAY)
        finally:
            self._leave(reservation.size)

    def extend(self, reservation: Reservation, size: int) -> None:
        """Enlarge a reservation to `size` bytes. Raises Overloaded if other requests hold the memory."""
        more = size - reservation.size
        if self.running > 1 and self.reserved + more > self.capacity:
            raise Overloaded(
                f"the tensors between the steps take more than {self.capacity >> 20} MiB; send fewer or smaller"
                " requests at a time"
            )
        reservation.size = size
        self.reserved += more

    def _fits(self, size: int) -> bool:
        return not self.running or self.reserved + size <= self.capacity

    async def _enter(self, size: int, patient: bool) -> None:
        if not self._waiting and self._fits(size):
            self._admit(size)
            return
        if len(self._waiting) >= _WAITING and not patient:
            raise Overloaded(f"{_WAITING} requests of the ensemble already wait for memory; send fewer at a time")
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[place] = size
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():  # the requests behind it no longer wait for its memory
                self._waiting.pop(place, None)
                self._admit_waiting()
            else:  # cancelled at the moment when it was admitted
                self._leave(size)
            raise

    def _admit(self, size: int) -> None:
        self.running += 1
        self.reserved += size

    def _leave(self, size: int) -> None:
        self.running -= 1
        self.reserved -= size
        self._admit_waiting()

    def _admit_waiting(self) -> None:
        while self._waiting:
            place, size = next(iter(self._waiting.items()))
            if not place.done() and not self._fits(size):
                return
            del self._waiting[place]
            if not place.done():
                self._admit(size)
                place.set_result(None)


class EnsembleRun:
    """One request of an ensemble while its steps run. `times` are the sums over all steps that have ended."""

    def __init__(
        self,
        steps: Sequence[Step],
        inputs: Sequence[Mapping[str, Port]],
        wanted: Sequence[Port],
        given: Mapping[str, Value | None],
        infer: Infer,
        collect: Sink,
        memory: Reservation,
    ) -> None:
        """`inputs` has the inputs of each step's model. `wanted` are the outputs of the ensemble that the request
        needs. `given` has the inputs of the request, None for an optional input that it leaves out. `collect` receives
        the outputs of the ensemble."""
        self.times = Times()
        self._steps, self._inputs, self._infer, self._collect = steps, inputs, infer, collect
        self._wanted = {port.name: port for port in wanted}
        self._tensors: dict[str, Value | None] = dict(given)
        self._given = frozenset(given)  # their memory belongs to the request
        self._waiting = set(ensemble.needed(steps, self._wanted))
        self._left = set(self._waiting)  # steps whose outputs have not come
        self._uses = dict(ensemble.consumers(steps, self._waiting))
        self._memory = memory

    async def run(self) -> None:
        """Run the steps that the request needs. Return when `collect` has received the outputs. If a step fails, cancel
        the other steps and raise the error."""
        running: dict[asyncio.Task[Answered], int] = {}
        try:
            while self._waiting or running:
                for index in list(ensemble.ready(self._steps, self._waiting, self._tensors)):
                    self._waiting.discard(index)
                    running[asyncio.ensure_future(self._start(index))] = index
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    index = running.pop(task)
                    self._end(index, task.result())
        finally:
            for task in running:
                task.cancel()
                task.add_done_callback(retrieve_exception)

    def _start(self, index: int) -> Awaitable[Answered]:
        step, ports = self._steps[index], self._inputs[index]
        tensors = []
        for name, tensor in step.inputs.items():
            value = self._tensors[tensor]
            if value is not None:
                shape = ensemble.shape_for(ports[name], value.shape, value.rows)
                tensors.append(InputTensor(name, value.datatype, shape, value.data))
        outputs = [name for name, tensor in step.outputs.items() if tensor in self._uses or tensor in self._wanted]

        def take(outputs: tuple[OutputView, ...], rows: int) -> None:
            self._take(index, outputs, rows)

        return self._infer(index, tuple(tensors), outputs, take)

    def _take(self, index: int, outputs: tuple[OutputView, ...], rows: int) -> None:
        """Keep a step's outputs for later steps. After the last step, pass all outputs of the ensemble to `collect`."""
        names = self._steps[index].outputs
        found = {names[output.name]: output for output in outputs if output.name in names}
        self._left.discard(index)
        if self._left:
            self._tensors |= {
                tensor: Value(view.datatype, view.shape, bytes(view.data), rows) for tensor, view in found.items()
            }
            return
        self._collect(tuple(self._output(port, found.get(name), rows) for name, port in self._wanted.items()))

    def _output(self, port: Port, view: OutputView | None, rows: int) -> OutputView:
        if view is None:
            value = self._tensors[port.name]
            assert value is not None
            assert isinstance(value.data, bytes)
            view, rows = OutputView(port.name, value.datatype, value.shape, memoryview(value.data)), value.rows
        return OutputView(port.name, view.datatype, ensemble.shape_for(port, view.shape, rows), view.data)

    def _end(self, index: int, answer: Answered) -> None:
        """Count the memory of a step's outputs, and free the inputs that no other step uses."""
        self.times = _sum(self.times, answer.times)
        step = self._steps[index]
        kept = (self._tensors.get(tensor) for tensor in step.outputs.values())
        self._memory.hold(sum(value.size for value in kept if value is not None))
        for tensor in set(step.inputs.values()):
            self._uses[tensor] -= 1
            if not self._uses[tensor] and tensor not in self._wanted:
                self._free(tensor)

    def _free(self, tensor: str) -> None:
        value = self._tensors.pop(tensor)
        if value is not None and tensor not in self._given:
            self._memory.free(value.size)


def _sum(one: Times, other: Times) -> Times:
    return Times(*(getattr(one, name) + getattr(other, name) for name in Times.__struct_fields__))
