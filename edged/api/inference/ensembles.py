"""Answers inference requests to ensembles: reads the request, runs the steps, and makes the response.

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
from edged.api.inference.models import loaded_ensemble
from edged.api.inference.requests import Caller, Options
from edged.api.inference.responses import Collector, Form, Write, Written
from edged.api.inference.shared_memory import SharedMemoryAccess
from edged.engines.ensembles import BoundEnsemble, PlannedEnsemble
from edged.engines.plan import PlannedModel
from edged.errors import EdgedError, NotFound, NotReady
from edged.serving.ensemble_run import EnsembleRun, RowsSink, Value
from edged.serving.trace import Trace, Tracing
from edged.serving.work import Answered, InputTensor


class PartRequest(msgspec.Struct, frozen=True):
    """A request to the model of a step. `outputs` names the requested outputs, and `sink` receives their values.
    `expires` is in seconds of time.monotonic(). `patient`: if the queue is full, the request waits and is not
    refused."""

    inputs: tuple[InputTensor, ...]
    outputs: Collection[str]
    options: Options
    expires: float
    patient: bool
    sink: RowsSink


AnswerPart: TypeAlias = "Callable[[PlannedModel, PartRequest, Trace | None], Awaitable[Answered]]"


class EnsembleInference:
    """Answers requests to all ensembles. `answer_part` answers one step."""

    def __init__(self, access: SharedMemoryAccess, tracing: Tracing, answer_part: AnswerPart) -> None:
        self._access, self._tracing, self._answer_part = access, tracing, answer_part

    async def answer(
        self, planned: PlannedEnsemble, request: Request, asked: Options, caller: Caller, write: Write[Written]
    ) -> Written:
        """Answer a request as `Inference.answer` does, with exactly one response."""
        bound, received = await loaded_ensemble(planned), time.monotonic()
        wanted, entry = requests.outputs_of(request.message, bound.signature), bound.entry
        form = Form(
            name=entry.model,
            version=entry.version,
            wanted=wanted,
            regions=self._access.targets(caller.peer, wanted),
            labels=bound.labels,
            by_row=bound.max_batch_size > 0,
            streamed=caller.streamed,
        )
        declared = requests.declared_inputs(request.message, bound.signature, optional=bound.optional)
        read = partial(requests.inputs_of, request, declared, self._access.locate(caller.peer))
        inputs = await asyncio.to_thread(read) if requests.has_many_values(request) else read()
        rows = requests.rows(entry.name, bound.max_batch_size, bound.max_batch_size, inputs)
        async with planned.memory.reserve(rows or 1, patient=caller.patient) as memory:
            queued_ms = (time.monotonic() - received) * 1e3
            trace = self._tracing.begin(form.name, form.version, request.id)
            collector = Collector(form, request.id, write, copies=trace is not None)
            run = EnsembleRun(
                [step.step for step in bound.steps],
                [step.inputs for step in bound.steps],
                [bound.outputs[name] for name in ([each.name for each in wanted] or bound.outputs)],
                _given(bound, inputs, rows),
                _Steps(bound, asked, caller, trace, self._answer_part),
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
        planned.statistics.executed(rows or 1, [run.times])
        planned.statistics.succeeded(rows or 1, (time.monotonic() - received) * 1e3, queued_ms, run.times)
        return response


class _Steps:
    """Runs the steps of one request. Implements `serving.ensemble_run.Infer`."""

    def __init__(
        self, bound: BoundEnsemble, asked: Options, caller: Caller, trace: Trace | None, answer_part: AnswerPart
    ) -> None:
        self._bound, self._asked, self._caller, self._trace = bound, asked, caller, trace
        self._answer_part = answer_part

    async def __call__(
        self, step: int, tensors: tuple[InputTensor, ...], outputs: Collection[str], sink: RowsSink
    ) -> Answered:
        """Answer a step. If the queue of the step's model is full, a step that needs outputs of other steps waits,
        because a refusal would waste their work. A step that needs only inputs of the request is refused, unless the
        caller is patient."""
        bound, planned = self._bound.steps[step], self._bound.steps[step].planned
        is_first = self._bound.inputs.issuperset(bound.step.inputs.values())
        patient = self._caller.patient or not is_first
        part = PartRequest(tensors, outputs, self._asked, self._caller.expires, patient, sink)
        trace = None if self._trace is None else self._trace.child(planned.entry.model, planned.version)
        try:
            return await self._answer_part(planned, part, trace)
        except EdgedError as error:
            what = f"ensemble {self._bound.entry.name!r}, step {step} (model {planned.entry.name!r}): {error}"
            kind = NotReady if isinstance(error, NotFound) else type(error)  # the ensemble itself exists
            raise kind(what) from None


def _given(bound: BoundEnsemble, inputs: tuple[InputTensor, ...], rows: int | None) -> dict[str, Value | None]:
    found: dict[str, Value | None] = dict.fromkeys(bound.inputs)
    count = (rows or 1) if bound.max_batch_size else 0
    return found | {each.name: Value(each.datatype, each.shape, each.data, count) for each in inputs}
