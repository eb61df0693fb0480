"""ModelInfer, in all that it has in common with ModelStreamInfer: from a request to its responses."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec

from edged.api.auth import identity
from edged.api.grpc.wire import Request
from edged.api.inference import requests, sequences
from edged.api.inference.models import find, loaded
from edged.api.inference.requests import Bounds, Options, RequestedOutput, options
from edged.api.inference.responses import Collector, Form, Write, Written
from edged.api.inference.sequences import Sequences
from edged.api.inference.shared_memory import Region, SharedMemoryAccess
from edged.backends.contract import Signature
from edged.engines.controller import Controller
from edged.engines.plan import PlannedModel
from edged.errors import InvalidInput, InvalidTensor, Unsupported
from edged.models.model import Model
from edged.models.sequencing import Sequencing
from edged.serving.trace import Tracing
from edged.serving.work import InputTensor, TensorWork


class Caller(msgspec.Struct, frozen=True):
    """Who asks. `peer` as gRPC names it; `expires` is of time.monotonic(). `patient` waits while too many requests do.
    `streamed`: gets any number of responses."""

    peer: str
    expires: float = math.inf
    patient: bool = False
    streamed: bool = False


class _Served(msgspec.Struct, frozen=True):
    """What follows from a model for all of its requests."""

    model: Model
    signature: Signature
    sequencing: Sequencing | None
    is_decoupled: bool
    is_batched: bool
    hidden: frozenset[str]
    labels: Mapping[str, tuple[str, ...]]
    bounds: Bounds

    @classmethod
    def of(cls, model: Model) -> _Served:
        plan, signature = model.sequencing, model.declared
        # Nothing but their own lengths keeps strings of several requests apart, and clients write those.
        has_strings = any(spec.datatype == "BYTES" for spec in (*signature.inputs, *signature.outputs))
        is_batched = model.max_batch_size > 0 and plan is None and not model.is_decoupled and not has_strings
        shown = {output.name for output in model.triton.outputs}
        hidden = plan.outputs - shown if plan is not None else frozenset[str]()
        return cls(model, signature, plan, model.is_decoupled, is_batched, hidden, model.entry.labels, Bounds.of(model))


class Inference:
    """Answers requests from the controller's plans and slots. One for the daemon: sequences and regions are its own."""

    def __init__(self, controller: Controller, tracing: Tracing, access: SharedMemoryAccess) -> None:
        self._controller, self._tracing, self._access = controller, tracing, access
        self._sequences = Sequences()
        self._served: dict[str, _Served] = {}

    def close(self) -> None:
        self._sequences.close()

    async def answer(self, request: Request, caller: Caller, write: Write[Written]) -> list[Written]:
        """The responses as `write` writes them, before their contents are gone: exactly one, unless it is streamed and
        the model answers with several. Raises what kept the request from being answered."""
        said = options(request.message.parameters)
        planned = find(self._controller, request.message.model_name, request.message.model_version)
        served = self._of(await loaded(planned))
        if served.is_decoupled and not caller.streamed:
            raise Unsupported(
                f"model {served.model.name!r} answers a request with any number of responses; use ModelStreamInfer"
            )
        expires = _expires(planned, said, caller)
        wanted = requests.outputs_of(request, served.signature)
        regions = self._regions(wanted, served, caller)
        kept = self._kept(request, served, said)
        filled = kept.inputs if kept is not None else frozenset[str]()
        read = partial(
            requests.inputs_of,
            request,
            served.signature,
            served.bounds,
            self._access.locate(caller.peer),
            filled,
            served.model.inspection.optional,
        )
        inputs = await asyncio.to_thread(read) if requests.has_many_values(request) else read()
        form = _form(request, served, wanted, regions, said, caller, kept)
        required = tuple(tensor for tensor in inputs if tensor.name not in served.model.defaults)
        rows, alone = _rows(served, required), not served.is_batched or len(required) < len(inputs)
        if kept is None:
            work = TensorWork(inputs, _names(form), expires, said.priority, rows, alone=alone)
            return (await self._infer(planned, work, form, served.bounds, caller, write)).responses()
        model = served.model
        key = (identity.namespace(caller.peer), model.name, model.digest)
        async with self._sequences.turn(key, said, kept.idle, expires) as turn:
            folder = Path(model.entry.folder)
            fill = partial(sequences.filled, kept, served.signature, folder, said, inputs, turn.state)
            more = await asyncio.to_thread(fill) if sequences.reads_disk(kept, turn.state) else fill()
            work = TensorWork((*inputs, *more), _names(form), expires, said.priority, rows, alone=alone)
            collector = await self._infer(planned, work, form, served.bounds, caller, write)
            responses = collector.responses()
            turn.commit(collector.state)
        return responses

    async def _infer(
        self,
        planned: PlannedModel,
        work: TensorWork,
        form: Form,
        bounds: Bounds,
        caller: Caller,
        write: Write[Written],
    ) -> Collector[Written]:
        trace = self._tracing.begin(form.name, form.version, form.id)
        shapes = bounds.combination(work.inputs)
        work.sink = collector = Collector(form, write, copies=trace is not None)
        answer = None
        try:
            if caller.patient:
                await planned.slot.push_when_room(work)
            else:
                planned.slot.push(work)
            answer = await work.future
            if shapes and planned.model is not None and planned.model.digest == answer.engine.model:
                planned.traffic.note(shapes)
        finally:
            work.future.cancel()  # a client that has gone is not worth an inference
            if trace is not None:
                told = None if answer is None else msgspec.structs.replace(answer, outputs=collector.outputs)
                trace.end(work, told)
            work.inputs = ()  # one that nobody waits for may be in line for long: without its bytes
        if form.rows:
            rows, times = len(collector.responses()) - form.empty_final, answer.times
            planned.slot.statistics.responded(rows, times.infer_ms, times.postprocess_ms, empty_final=form.empty_final)
        return collector

    def _of(self, model: Model) -> _Served:
        served = self._served.get(model.name)
        if served is None or served.model is not model:
            self._served = {name: each for name, each in self._served.items() if name in self._controller.models}
            served = self._served[model.name] = _Served.of(model)
        return served

    def _regions(self, wanted: tuple[RequestedOutput, ...], served: _Served, caller: Caller) -> dict[str, Region]:
        found = {}
        for each in wanted:
            if each.place is not None:
                if served.is_decoupled:
                    raise InvalidInput(
                        f"output {each.name!r} comes in any number of responses, for which one place in shared memory"
                        " is too few; ask for it without"
                    )
                found[each.name] = self._access.target(caller.peer, each.place, f"output {each.name!r}")
        return found

    @staticmethod
    def _kept(request: Request, served: _Served, said: Options) -> Sequencing | None:
        """What edged keeps and fills in for this request; None where it has nothing to do with others."""
        plan = served.sequencing
        if plan is None:
            return None
        given = {tensor.name for tensor in request.message.inputs}
        if plan.declared:
            if not said.sequence:
                raise InvalidInput(
                    f"model {served.model.name!r} answers the requests of sequences: set sequence_id,"
                    " and sequence_start on the first of them"
                )
            return plan
        missing = [state.input for state in plan.states if state.input not in given]
        if not missing:
            return None  # the client keeps it itself
        if not said.sequence:
            raise InvalidTensor(f"input {missing[0]!r} is missing; send it, or set sequence_id to have edged keep it")
        return plan


def _form(
    request: Request,
    served: _Served,
    wanted: tuple[RequestedOutput, ...],
    regions: Mapping[str, Region],
    said: Options,
    caller: Caller,
    kept: Sequencing | None,
) -> Form:
    model = served.model
    return Form(
        name=model.entry.model,
        version=model.entry.version,
        id=request.message.id,
        wanted=wanted,
        hidden=served.hidden if kept is not None else frozenset(),
        kept={state.output: state.input for state in kept.states} if kept is not None else {},
        regions=regions,
        labels=served.labels,
        default_labels=model.recognition.names,
        by_row=model.max_batch_size > 0,
        rows=served.is_decoupled,
        empty_final=said.empty_final,
        streamed=caller.streamed,
    )


def _expires(planned: PlannedModel, said: Options, caller: Caller) -> float:
    """When a request is no longer worth beginning: as its caller says, and as its parameter if the policy lets it."""
    batching = planned.slot.batching_policy
    policy = batching.of(batching.level(said.priority))
    if not said.timeout_s or not policy.allow_override:
        return caller.expires
    return min(caller.expires, time.monotonic() + said.timeout_s)


def _names(form: Form) -> tuple[str, ...] | None:
    """The outputs that an engine is asked for, with those that are kept; None for all."""
    names = [each.name for each in form.wanted]
    return tuple(dict.fromkeys((*names, *form.kept))) if names else None


def _rows(served: _Served, inputs: tuple[InputTensor, ...]) -> int | None:
    """How many rows a request has; None where its model has no batches. InvalidInput where it has too many, or inputs
    have unequal numbers of them."""
    most, said = served.model.max_batch_size, served.model.triton.max_batch_size
    counts = {tensor.shape[0] for tensor in inputs if tensor.shape}
    if not most or not counts or (len(counts) != 1 and not said):
        return None
    if len(counts) != 1:
        shapes = ", ".join(f"{tensor.name} {list(tensor.shape)}" for tensor in inputs)
        raise InvalidTensor(f"the inputs of one request have unequal numbers of rows: {shapes}")
    rows = counts.pop()
    if rows > most and said:
        raise InvalidTensor(f"the request has {rows} rows; model {served.model.name!r} takes {most} at a time")
    return rows or None
