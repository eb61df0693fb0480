"""Answers inference requests, for ModelInfer, ModelStreamInfer and HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path

import msgspec

from edged.api.auth import identity
from edged.api.grpc.wire import Request
from edged.api.inference import requests, sequences
from edged.api.inference.ensembles import EnsembleInference, PartRequest
from edged.api.inference.models import find, loaded
from edged.api.inference.requests import Bounds, Caller, DeclaredInput, Options, RequestedOutput, options
from edged.api.inference.responses import Collector, Form, Write, Written
from edged.api.inference.sequences import Sequences
from edged.api.inference.shared_memory import SharedMemoryAccess
from edged.backends.contract import Signature
from edged.engines.controller import Controller
from edged.engines.ensembles import PlannedEnsemble
from edged.engines.plan import PlannedModel
from edged.errors import InvalidInput, InvalidTensor, Unsupported
from edged.models.model import Model
from edged.models.sequencing import Sequencing
from edged.proto import open_inference_pb2 as pb
from edged.serving.trace import Trace, Tracing
from edged.serving.work import Answered, InputTensor, OutputTensor, OutputView, TensorWork


class _Served(msgspec.Struct, frozen=True):
    """Properties of a model that all of its requests share."""

    model: Model
    signature: Signature
    sequencing: Sequencing | None
    is_decoupled: bool
    is_batched: bool
    most_rows: int  # 0 if the model has no batch dimension
    configured_rows: int  # max_batch_size of the model's configuration
    defaults: frozenset[str]
    hidden: frozenset[str]
    labels: Mapping[str, tuple[str, ...]]
    bounds: Bounds

    @classmethod
    def of(cls, model: Model) -> _Served:
        plan, signature = model.sequencing, model.declared
        # Requests with strings are not batched: in a batch, only the length prefixes that clients write would separate
        # the strings of different requests.
        has_strings = any(spec.datatype == "BYTES" for spec in (*signature.inputs, *signature.outputs))
        most_rows, configured_rows = model.max_batch_size, model.triton.max_batch_size
        is_batched = most_rows > 0 and plan is None and not model.is_decoupled and not has_strings
        shown = {output.name for output in model.triton.outputs}
        hidden = plan.outputs - shown if plan is not None else frozenset[str]()
        return cls(
            model,
            signature,
            plan,
            model.is_decoupled,
            is_batched,
            most_rows,
            configured_rows,
            model.defaults,
            hidden,
            model.entry.labels,
            Bounds.of(model),
        )


class _Asked(msgspec.Struct, frozen=True):
    """What a request asks of a model, besides its id and the contents of its inputs. Checked against the model.

    `names` are the outputs that an engine must compute, None for all. `rows` and `is_alone` are as in `TensorWork`."""

    served: _Served
    options: Options
    inputs: tuple[DeclaredInput, ...]
    wanted: tuple[RequestedOutput, ...]
    plan: Sequencing | None  # what edged fills in; None for nothing
    form: Form
    names: tuple[str, ...] | None
    rows: int | None
    is_alone: bool

    @classmethod
    def of(cls, message: pb.ModelInferRequest, served: _Served, *, streamed: bool) -> _Asked:
        """Raises InvalidInput or Unsupported."""
        if served.is_decoupled and not streamed:
            raise Unsupported(
                f"model {served.model.name!r} is decoupled: a request gets any number of responses;"
                " use ModelStreamInfer (gRPC)"
            )
        asked = options(message.parameters)
        wanted = requests.outputs_of(message, served.signature)
        if served.is_decoupled:
            _require_carried(wanted)
        plan = _sequencing(message, served, asked)
        filled = plan.inputs if plan is not None else frozenset[str]()
        optional = served.model.inspection.optional
        inputs = requests.declared_inputs(message, served.signature, served.bounds, filled, optional)
        form = _form(served, wanted, asked, plan, streamed=streamed)
        return cls(served, asked, inputs, wanted, plan, form, _names(form), *_rows_and_alone(served, inputs))


_MOST_KEPT = 256  # requests with different heads that are kept


class Inference:
    """Answers inference requests for the models of a controller. A daemon has one instance, which holds the sequences
    and the shared memory regions of all clients."""

    def __init__(self, controller: Controller, tracing: Tracing, access: SharedMemoryAccess) -> None:
        self._controller, self._tracing, self._access = controller, tracing, access
        self._sequences = Sequences()
        self._ensembles = EnsembleInference(access, tracing, self._part)
        self._served: dict[str, _Served] = {}
        # By the head of the request, and whether the call is a stream. Most clients send the same head each time.
        self._asked: dict[tuple[bytes, bool], _Asked] = {}

    def close(self) -> None:
        self._sequences.close()

    async def answer(self, request: Request, caller: Caller, write: Write[Written]) -> list[Written]:
        """Answer a request. Call `write` for each response, and return the results of these calls. The contents of a
        response are valid only during the call of `write`.

        A streamed call of a decoupled model has any number of responses, every other call exactly one. Raises
        EdgedError if the request fails.
        """
        message = request.message
        planned = find(self._controller, message.model_name, message.model_version)
        if isinstance(planned, PlannedEnsemble):
            return [await self._ensembles.answer(planned, request, options(message.parameters), caller, write)]
        asked = self._read(request, self._of(planned.answering or await loaded(planned)), streamed=caller.streamed)
        served, plan, form = asked.served, asked.plan, asked.form
        expires = _expires(planned, asked.options, caller.expires)
        if regions := self._access.targets(caller.peer, asked.wanted):
            form = msgspec.structs.replace(form, regions=regions)
        read = partial(requests.inputs_of, request, asked.inputs, self._access.locate(caller.peer))
        if plan is None:
            inputs = await asyncio.to_thread(read) if requests.has_many_values(request) else read()
            work = TensorWork(inputs, asked.names, expires, asked.options.priority, asked.rows, alone=asked.is_alone)
            return (await self._infer(planned, work, form, request.id, served.bounds, caller, write)).responses()
        model = served.model
        key = (identity.namespace(caller.peer), model.name, model.digest)
        # The turn begins before the inputs are read: while a thread reads large ones, later requests must not overtake.
        async with self._sequences.turn(key, asked.options, plan.idle, expires) as turn:
            inputs = await asyncio.to_thread(read) if requests.has_many_values(request) else read()
            folder = Path(model.entry.folder)
            fill = partial(sequences.filled, plan, served.signature, folder, asked.options, inputs, turn.state)
            more = await asyncio.to_thread(fill) if sequences.reads_disk(plan, turn.state) else fill()
            inputs = (*inputs, *more)
            work = TensorWork(inputs, asked.names, expires, asked.options.priority, asked.rows, alone=asked.is_alone)
            collector = await self._infer(planned, work, form, request.id, served.bounds, caller, write)
            responses = collector.responses()
            turn.commit(collector.state)
        return responses

    def _read(self, request: Request, served: _Served, *, streamed: bool) -> _Asked:
        """Return what a request asks. Raises InvalidInput or Unsupported."""
        key = (request.head, streamed)
        found = self._asked.get(key)
        if found is None or found.served is not served:
            found = _Asked.of(request.message, served, streamed=streamed)
            if request.head:
                if len(self._asked) >= _MOST_KEPT:
                    del self._asked[next(iter(self._asked))]
                self._asked[key] = found
        return found

    async def _infer(
        self,
        planned: PlannedModel,
        work: TensorWork,
        form: Form,
        identifier: str,
        bounds: Bounds,
        caller: Caller,
        write: Write[Written],
    ) -> Collector[Written]:
        trace = self._tracing.begin(form.name, form.version, identifier)
        work.sink = collector = Collector(form, identifier, write, copies=trace is not None)
        answer = await self._run(planned, work, bounds, trace, lambda: collector.outputs, patient=caller.patient)
        if form.rows:
            rows, times = len(collector.responses()) - form.empty_final, answer.times
            planned.slot.statistics.responded(rows, times.infer_ms, times.postprocess_ms, empty_final=form.empty_final)
        return collector

    async def _run(
        self,
        planned: PlannedModel,
        work: TensorWork,
        bounds: Bounds,
        trace: Trace | None,
        outputs: Callable[[], tuple[OutputTensor, ...]],
        *,
        patient: bool,
    ) -> Answered:
        """Queue work for the model, and return its answer. `outputs` returns the outputs for the trace."""
        shapes = bounds.combination(work.inputs)
        answer = None
        try:
            if patient:
                await planned.slot.push_when_room(work)
            else:
                planned.slot.push(work)
            answer = await work.future
            if shapes and planned.model is not None and planned.model.digest == answer.engine.model:
                planned.traffic.note(shapes)
            return answer
        finally:
            work.future.cancel()  # a disconnected client needs no inference
            if trace is not None:
                traced = None if answer is None else msgspec.structs.replace(answer, outputs=outputs())
                trace.end(work, traced)
            work.inputs = ()  # abandoned work may stay in the queue for long, so free its bytes

    async def _part(self, planned: PlannedModel, part: PartRequest, trace: Trace | None) -> Answered:
        """Answer one step of an ensemble, after the checks that a client's request for the same model gets."""
        served = self._of(await loaded(planned))
        requests.require_fitting(part.inputs, served.signature, served.bounds, served.model.inspection.optional)
        names = _part_outputs(served, part.outputs)
        rows, alone = _rows_and_alone(served, part.inputs)
        kept = list[OutputTensor]()

        def sink(outputs: tuple[OutputView, ...]) -> None:
            if trace is not None:
                kept.extend(output.kept() for output in outputs)
            part.sink(outputs, (rows or 1) if served.most_rows else 0)

        expires = _expires(planned, part.options, part.expires)
        work = TensorWork(part.inputs, names, expires, part.options.priority, rows, sink, alone)
        return await self._run(planned, work, served.bounds, trace, lambda: tuple(kept), patient=part.patient)

    def _of(self, model: Model) -> _Served:
        served = self._served.get(model.name)
        if served is None or served.model is not model:
            self._served = {name: each for name, each in self._served.items() if name in self._controller.models}
            self._asked.clear()
            served = self._served[model.name] = _Served.of(model)
        return served


def _require_carried(wanted: tuple[RequestedOutput, ...]) -> None:
    """Raise InvalidInput if the client of a decoupled model requests an output in shared memory."""
    for each in wanted:
        if each.place is not None:
            raise InvalidInput(
                f"output {each.name!r}: a decoupled model cannot write its responses to shared memory;"
                " request the output without shared memory"
            )


def _part_outputs(served: _Served, wanted: Collection[str]) -> tuple[str, ...] | None:
    """Return the outputs that a step of an ensemble wants; None if the step wants all outputs, as in clients' requests
    for all outputs: only requests with the same value can share a batch. Raises InvalidTensor if the model was replaced
    by one without these outputs."""
    names = [spec.name for spec in served.model.inspection.signature.outputs]
    if missing := next((name for name in wanted if name not in names), None):
        raise InvalidTensor(f"the model was replaced, and no longer has output {missing[:60]!r}")
    return None if len(wanted) == len(names) else tuple(name for name in names if name in wanted)


def _sequencing(message: pb.ModelInferRequest, served: _Served, asked: Options) -> Sequencing | None:
    """Return the states and inputs that edged fills in for this request; None if edged fills in none."""
    plan = served.sequencing
    if plan is None:
        return None
    if plan.declared:
        if not asked.sequence:
            raise InvalidInput(
                f"model {served.model.name!r} answers only requests of sequences: set 'sequence_id',"
                " and 'sequence_start' in the first request of a sequence"
            )
        return plan
    given = {tensor.name for tensor in message.inputs}
    missing = [state.input for state in plan.states if state.input not in given]
    if missing and not asked.sequence:
        raise InvalidTensor(
            f"input {missing[0]!r} is missing: it is a state of the model; send it, or set 'sequence_id' to let edged"
            " keep it"
        )
    return plan if missing else None  # None: a client that sends all states itself needs no sequence


def _form(
    served: _Served, wanted: tuple[RequestedOutput, ...], asked: Options, plan: Sequencing | None, *, streamed: bool
) -> Form:
    model = served.model
    return Form(
        name=model.entry.model,
        version=model.entry.version,
        wanted=wanted,
        hidden=served.hidden if plan is not None else frozenset(),
        states={state.output: state.input for state in plan.states} if plan is not None else {},
        labels=served.labels,
        default_labels=model.recognition.names,
        by_row=served.most_rows > 0,
        rows=served.is_decoupled,
        empty_final=asked.empty_final,
        streamed=streamed,
    )


def _expires(planned: PlannedModel, asked: Options, latest: float) -> float:
    """Return when a request expires, in seconds of time.monotonic(). This is `latest`, the deadline of the caller, or
    the request's own timeout if the queue policy has `allow_timeout_override` and the timeout is earlier."""
    if not asked.timeout_s:
        return latest
    batching = planned.slot.batching_policy
    if not batching.of(batching.level(asked.priority)).allow_override:
        return latest
    return min(latest, time.monotonic() + asked.timeout_s)


def _names(form: Form) -> tuple[str, ...] | None:
    """Return the names of the outputs that an engine must compute, with the states; None for all outputs."""
    names = [each.name for each in form.wanted]
    return tuple(dict.fromkeys((*names, *form.states))) if names else None


def _rows_and_alone(
    served: _Served, inputs: tuple[InputTensor, ...] | tuple[DeclaredInput, ...]
) -> tuple[int | None, bool]:
    """Return the rows of a request, as `requests.rows` does, and whether the request must not share a batch."""
    required = tuple(tensor for tensor in inputs if tensor.name not in served.defaults) if served.defaults else inputs
    rows = requests.rows(served.model.name, served.most_rows, served.configured_rows, required)
    return rows, not served.is_batched or len(required) < len(inputs)
