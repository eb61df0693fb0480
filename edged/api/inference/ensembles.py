"""Answers inference requests of ensembles: reads the request, runs the steps, and makes the response.

Each step is a request to its model, with the deadline, priority and parameters of the ensemble's request. A failed step
fails the request; its error names the step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import TypeAlias

import msgspec

from edged.api.grpc.wire import Request
from edged.api.inference import requests
from edged.api.inference.models import loaded_pipeline
from edged.api.inference.requests import Caller, Options
from edged.api.inference.responses import Collector, Form, Write, Written
from edged.api.inference.shared_memory import SharedMemoryAccess
from edged.engines.ensembles import Pipeline, PlannedEnsemble
from edged.engines.plan import PlannedModel
from edged.errors import EdgedError, NotFound, NotReady
from edged.serving import pipeline
from edged.serving.pipeline import Budget, RowsSink, Value
from edged.serving.trace import Trace, Tracing
from edged.serving.work import Answered, InputTensor

_BETWEEN_BYTES = 256 << 20  # of the tensors between steps, for all ensembles together
_DECAY = 0.9  # of the expected size, for each request: one large request does not count for ever


class PartRequest(msgspec.Struct, frozen=True):
    """A request to the model of a step. `outputs` are the wanted outputs, for `sink`. `expires` is in seconds of
    time.monotonic(). `patient`: it waits if the queue is full, and is not refused."""

    inputs: tuple[InputTensor, ...]
    outputs: Collection[str]
    options: Options
    expires: float
    patient: bool
    sink: RowsSink


AnswerPart: TypeAlias = "Callable[[PlannedModel, PartRequest, Trace | None], Awaitable[Answered]]"


class EnsembleInference:
    """Answers requests of all ensembles. `answer_part` answers a step."""

    def __init__(self, access: SharedMemoryAccess, tracing: Tracing, answer_part: AnswerPart) -> None:
        self._access, self._tracing, self._answer_part = access, tracing, answer_part
        self._budget = Budget(_BETWEEN_BYTES)

    async def answer(
        self, planned: PlannedEnsemble, request: Request, asked: Options, caller: Caller, write: Write[Written]
    ) -> Written:
        """Answer a request as `Inference.answer` does, with exactly one response."""
        bound = await loaded_pipeline(planned)
        wanted = requests.outputs_of(request, bound.signature)
        entry = bound.entry
        form = Form(
            name=entry.model,
            version=entry.version,
            id=request.message.id,
            wanted=wanted,
            regions=self._access.targets(caller.peer, wanted),
            labels=bound.labels,
            by_row=bound.max_batch_size > 0,
            streamed=caller.streamed,
        )
        planned.running += 1
        try:
            return await self._run(planned, bound, request, form, asked, caller, write)
        finally:
            planned.running -= 1

    async def _run(
        self,
        planned: PlannedEnsemble,
        bound: Pipeline,
        request: Request,
        form: Form,
        asked: Options,
        caller: Caller,
        write: Write[Written],
    ) -> Written:
        received, entry = time.monotonic(), bound.entry
        locate = self._access.locate(caller.peer)
        read = partial(requests.inputs_of, request, bound.signature, locate=locate, optional=bound.optional)
        inputs = await asyncio.to_thread(read) if requests.has_many_values(request) else read()
        rows = requests.rows(entry.name, bound.max_batch_size, bound.max_batch_size, inputs)
        async with self._budget.reserve(planned.between_bytes, patient=caller.patient) as memory:
            queued_ms = (time.monotonic() - received) * 1e3
            trace = self._tracing.begin(form.name, form.version, form.id)
            collector = Collector(form, write, copies=trace is not None)
            run = pipeline.Pipeline(
                [step.step for step in bound.steps],
                [step.inputs for step in bound.steps],
                [bound.outputs[name] for name in ([each.name for each in form.wanted] or bound.outputs)],
                _given(bound, inputs, rows),
                partial(self._step, bound, asked, caller, trace),
                collector,
                memory,
            )
            try:
                await run.run()
                (response,) = collector.responses()
            except EdgedError as error:
                planned.statistics.failed((time.monotonic() - received) * 1e3, type(error).__name__)
                raise
            finally:
                if trace is not None:
                    trace.end_ensemble(received, inputs, collector.outputs)
            planned.between_bytes = max(memory.most, round(planned.between_bytes * _DECAY))
        planned.statistics.executed(rows or 1, [run.times])
        planned.statistics.succeeded(rows or 1, (time.monotonic() - received) * 1e3, queued_ms, run.times)
        return response

    async def _step(
        self,
        bound: Pipeline,
        asked: Options,
        caller: Caller,
        trace: Trace | None,
        index: int,
        tensors: tuple[InputTensor, ...],
        outputs: Collection[str],
        sink: RowsSink,
    ) -> Answered:
        """Answer a step. Only the first steps are refused if the queue of their model is full: a request that has
        passed them would have done its work in vain."""
        step = bound.steps[index]
        is_first = all(tensor in bound.inputs for tensor in step.step.inputs.values())
        patient = caller.patient or not is_first
        part = PartRequest(tensors, outputs, asked, caller.expires, patient, sink)
        entry = step.planned.entry
        child = None if trace is None else trace.child(entry.model, step.planned.version)
        try:
            return await self._answer_part(step.planned, part, child)
        except EdgedError as error:
            what = f"ensemble {bound.entry.name!r}, step {index} (model {entry.name!r}): {error}"
            kind = NotReady if isinstance(error, NotFound) else type(error)  # the ensemble itself exists
            raise kind(what) from None


def _given(bound: Pipeline, inputs: tuple[InputTensor, ...], rows: int | None) -> dict[str, Value | None]:
    found: dict[str, Value | None] = dict.fromkeys(bound.inputs)
    count = (rows or 1) if bound.max_batch_size else 0
    return found | {each.name: Value(each.datatype, each.shape, each.data, count) for each in inputs}
