"""Probes an open engine with one request like the requests of verification. The request bypasses the slot's queue.

The daemon makes the probes itself and needs no runtime for them. Probes with different shapes are sent until an engine
answers one of them. From then on only this probe is sent.

The warm-up requests in a model's config.pbtxt are sent before an engine of the model serves.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import msgspec
import numpy as np

from edged.backends.contract import Signature
from edged.backends.profile import Profile
from edged.errors import (
    ConfigError,
    DeadlineExceeded,
    EdgedError,
    EngineUnusable,
    HostLost,
    InvalidInput,
    NotReady,
    OutOfMemory,
    Overloaded,
    Superseded,
    WarmupFailed,
    WrongAnswers,
)
from edged.files import read_inside
from edged.ipc import messages as m
from edged.ipc.arena import Arena
from edged.models.model import Model
from edged.models.triton_check import made_up_inputs
from edged.models.triton_config import WARMUP_FOLDER, Warmup, WarmupInput
from edged.serving.batch import copy_in
from edged.serving.link import HostLink
from edged.serving.work import InputTensor, TensorWork, Work
from edged.store.record import Verdict
from edged.tensors import Array, TensorSpec, byte_size, numpy_dtype, to_array, to_bytes
from edged.verification import user_samples
from edged.verification.golden import Sample, deciding
from edged.verification.probes import PICTURE, SOUND, WIDE, Probe, one_by_one
from edged.verification.shape_range import ShapeRange
from edged.verification.standard import Tolerance, coarser, tolerance_of
from edged.verification.verify import Pair, judge, matcher_for


@contextlib.asynccontextmanager
async def probe_session(inputs: tuple[InputTensor, ...], link: HostLink, session: int) -> AsyncIterator[m.Answer]:
    """Send one request to a session and yield the answer. The outputs stay in the host's arena until the block ends.

    Raises Overloaded if the arena has no room, and the errors of the session.
    """
    refused: list[EdgedError] = []

    def refuse(_: Work, error: EdgedError) -> None:
        refused.append(error)

    batch = copy_in([TensorWork(inputs, None)], link, refuse)
    if batch is None:
        raise refused[0]
    try:
        reply = await batch.send(session, 0)
        assert isinstance(reply, m.Answer)  # the host answers tensors with `Answer`
        yield reply
    finally:
        batch.release()


_COMPARED = 3  # the most golden inputs that are compared; one right answer suffices
_MOST_BYTES = 64 << 20  # of one probe, because probes take arena space from requests


class OutputForm(msgspec.Struct, frozen=True):
    """Datatype, shape and finiteness of one output."""

    datatype: str
    shape: tuple[int, ...]
    is_finite: bool

    @classmethod
    def of(cls, datatype: str, array: Array) -> OutputForm:
        return cls(datatype, array.shape, _is_finite(datatype, array))


OutputForms = Mapping[str, OutputForm]


class NoUsableProbe(EngineUnusable):
    """The engine and the reference refuse every probe, so edged cannot make a valid request for this model."""


@dataclass
class KnownAnswers:
    """The results of a model's probes: which probe the model answers, and the form of the reference's outputs once the
    reference was probed. `is_of` says whether the results are valid for a model."""

    model: Model
    place: int | None = None  # index of the probe that was answered
    reference: OutputForms = field(default_factory=dict)

    def is_of(self, model: Model) -> bool:
        same = self.model.digest == model.digest and self.model.recognition == model.recognition
        # Another range of shapes, and other samples, give other probes.
        same = same and ShapeRange.of(self.model) == ShapeRange.of(model)
        has_samples = bool(self.model.samples or model.samples)
        return same and (not has_samples or self.model.entry.stamp == model.entry.stamp)


class SessionProbe:
    """Probes sessions. `recorded` reads a model's golden inputs with the reference's answers from disk."""

    def __init__(self, recorded: Callable[[Model], Sequence[Sample]]) -> None:
        self._recorded = recorded

    async def ask(self, known: KnownAnswers, link: HostLink, session: int, *, is_reference: bool) -> None:
        """Probe a session. If a probe of the model was answered before, only this probe is sent. Raises:

        - WrongAnswers if the form of the answer is neither the declared form nor that of the reference's answer
        - EngineUnusable if the session refuses all probes, although the reference answers some of them
        - OutOfMemory if the host has no memory for a probe that was answered before
        - NoUsableProbe if the reference refuses all probes too, or if a probe would be too large
        - NotReady if the arena has no room now, or if a probe that was answered before cannot be read
        - HostLost if the host is lost
        """
        first: EdgedError | None = None
        for place, question in await asyncio.to_thread(_questions, known):
            try:
                probe = await asyncio.to_thread(question)
            except (InvalidInput, Superseded) as error:
                if known.place is not None:
                    raise NotReady(f"a sample of the model cannot be read: {error}") from error
                first = first or error
                continue
            try:
                forms = await _infer(known.model, probe, link, session)
            except (EngineUnusable, InvalidInput) as error:
                if isinstance(error, OutOfMemory) and known.place is not None:
                    raise
                first = first or error
                continue
            except Overloaded as error:
                raise NotReady(f"the probe (a test inference) could not be sent to the engine: {error}") from error
            if is_reference:
                known.reference = forms
            elif (fault := await self._fault(known, question, forms)) != "":
                raise WrongAnswers(fault)
            known.place = place
            return
        why = first or "a probe would be too large"
        if first is not None and not is_reference and await self._is_answered(known):
            raise EngineUnusable(f"the engine refuses probes that the reference answers: {first}")
        raise NoUsableProbe(f"the engine answers none of edged's probes (test inferences): {why}")

    async def compare(self, model: Model, precision: str, link: HostLink, session: int) -> str:
        """Run an engine on up to three golden inputs, and compare its answers with the reference's recorded answers.
        Return an empty text if one answer agrees within the tolerance of the precision, or if there is nothing to
        compare. If no answer agrees, the engine does not belong to this model. In this case, return how the first
        answer differs. Raises NotReady if the arena has no room now."""
        recorded = await asyncio.to_thread(self._recorded, model)
        signature = model.inspection.signature
        held = tolerance_of(model, precision)
        samples = [each for each in deciding(recorded, coarser(precision, model.inspection.arithmetic)) if _fits(each)]
        first = ""
        for sample in samples[:_COMPARED]:
            try:
                async with probe_session(tuple(_inputs(signature, sample)), link, session) as reply:
                    verdict = await asyncio.to_thread(_verdict, sample, reply, link.arena, model, held)
            except (EngineUnusable, InvalidInput):  # `ask` has tested whether the engine answers
                continue
            except Overloaded as error:
                raise NotReady(f"the probe (a test inference) could not be sent to the engine: {error}") from error
            if verdict.accepted:
                return ""
            first = first or verdict.reason
        return first

    async def _fault(self, known: KnownAnswers, question: Callable[[], Probe], forms: OutputForms) -> str:
        """Describe the fault of an answer; empty if the answer has no fault. Reads the reference's answer from disk
        only if needed."""
        signature = known.model.inspection.signature
        found = fault(signature, forms, known.reference)
        if not found or known.reference:
            return found
        asked, samples = await asyncio.to_thread(lambda: (question(), self._recorded(known.model)))
        answers = next((sample.outputs for sample in samples if _is_same(sample, asked)), {})
        datatypes = {spec.name: spec.datatype for spec in signature.outputs}
        recorded = {name: OutputForm.of(datatypes[name], array) for name, array in answers.items()}
        return fault(signature, forms, recorded)

    async def _is_answered(self, known: KnownAnswers) -> bool:
        """Whether the reference answers any of the probes."""
        if known.reference:
            return True
        samples = await asyncio.to_thread(self._recorded, known.model)
        return any(sample.kind not in (PICTURE, SOUND, WIDE) for sample in samples)


def fault(signature: Signature, forms: OutputForms, reference: OutputForms) -> str:
    """Describe the first output whose form is neither the declared form nor the form of the reference's output; empty
    if all outputs are right.

    Declared shapes are often wrong, and NaN may be right, so the reference's answer is the standard.
    """
    for spec in signature.outputs:
        form, right = forms.get(spec.name), reference.get(spec.name)
        if form is None:
            return f"the answer has no output {spec.name!r}"
        if form.datatype != spec.datatype:
            return f"output {spec.name!r} is {form.datatype}, but the model declares {spec.datatype}"
        if not spec.admits(form.shape) and not (right is not None and right.shape == form.shape):
            return f"output {spec.name!r} is {list(form.shape)}, but the model declares {list(spec.dims)}"
        if not form.is_finite and (right is None or right.is_finite):
            return f"output {spec.name!r} holds NaN or infinity"
    return ""


def _questions(known: KnownAnswers) -> list[tuple[int, Callable[[], Probe]]]:
    """Return the index of each probe to try, with a function that makes the probe. If a probe was answered before,
    return only this probe; otherwise return all."""
    model = known.model
    signature = model.inspection.signature
    made_up = one_by_one(signature, model.recognition, ShapeRange.of(model), _MOST_BYTES)
    every = enumerate([*user_samples.tensor_probes(signature, model.samples), *made_up])
    return [each for each in every if known.place in (None, each[0])]


async def _infer(model: Model, question: Probe, link: HostLink, session: int) -> OutputForms:
    async with probe_session(tuple(_inputs(model.inspection.signature, question)), link, session) as reply:
        return await asyncio.to_thread(_forms, reply, link.arena)


def _is_same(sample: Sample, question: Probe) -> bool:
    shapes = {name: array.shape for name, array in question.inputs.items()}
    named = (sample.kind, sample.name) == (question.kind, question.name)
    return named and shapes == {name: array.shape for name, array in sample.inputs.items()}


def _inputs(signature: Signature, question: Probe | Sample) -> Iterator[InputTensor]:
    for spec in signature.inputs:
        array = question.inputs[spec.name]
        yield InputTensor(spec.name, spec.datatype, array.shape, memoryview(to_bytes(array)))


def _fits(sample: Sample) -> bool:
    return sum(array.nbytes for array in sample.inputs.values()) <= _MOST_BYTES


def _verdict(sample: Sample, reply: m.Answer, arena: Arena, model: Model, held: Tolerance) -> Verdict:
    answer = {}
    for ref in reply.outputs:
        data = ref.data if ref.span is None else arena.read(ref.span)
        answer[ref.name] = to_array(ref.name, ref.datatype, ref.shape, data)
    return judge([Pair.of(sample, answer)], held, matcher_for(model.recognition, held.box_score))


def _forms(reply: m.Answer, arena: Arena) -> OutputForms:
    forms = {}
    for ref in reply.outputs:
        data = ref.data if ref.span is None else arena.read(ref.span)
        forms[ref.name] = OutputForm.of(ref.datatype, to_array(ref.name, ref.datatype, ref.shape, data))
    return forms


def _is_finite(datatype: str, array: Array) -> bool:
    if datatype == "BF16":  # NaN and infinity have an exponent of all ones
        return not bool(np.any((array.view(np.uint16) & 0x7F80) == 0x7F80)) if array.size else True
    return bool(np.isfinite(array).all()) if array.dtype.kind == "f" else True


_ANY = Profile()
_PASSING = (OutOfMemory, Overloaded, NotReady, DeadlineExceeded)  # caused by the box and its load, not by the request


async def warm_up(model: Model, link: HostLink, session: int, profile: Profile = _ANY) -> None:
    """Send a session the warm-up requests that are within its range of shapes, before the session serves.

    Raises WarmupFailed with the name of the request if the request would fail again. For temporary errors, raises an
    error of the same class as the original.
    """
    for warmup in model.triton.warmups:
        try:
            inputs = await asyncio.to_thread(inputs_of, warmup, model)
            if not profile.takes({tensor.name: tensor.shape for tensor in inputs}):
                continue
            for _ in range(warmup.count):
                async with probe_session(inputs, link, session):
                    pass
        except HostLost:
            raise
        except EdgedError as error:
            kind = next((kind for kind in _PASSING if isinstance(error, kind)), WarmupFailed)
            raise kind(f"the model_warmup request {warmup.name!r} failed: {error}") from error


def require_data(model: Model) -> None:
    """Raise ConfigError if a warm-up request cannot be made: a file is missing or has the wrong size."""
    for warmup in model.triton.warmups:
        inputs_of(warmup, model)


def inputs_of(warmup: Warmup, model: Model) -> tuple[InputTensor, ...]:
    """Return the tensors of a warm-up request. Raises ConfigError if a file is missing or has the wrong size."""
    given = {each.name: each for each in warmup.inputs}
    made_up, batch = made_up_inputs(model.triton), warmup.batch_size
    tensors = []
    for spec in model.inspection.signature.inputs:
        each = given.get(spec.name)
        if each is not None:
            shape = (batch, *each.dims) if batch else each.dims
            tensors.append(InputTensor(spec.name, spec.datatype, shape, _data(warmup, each, spec, shape, model)))
        elif spec.name in made_up:
            shape = tuple(dim if isinstance(dim, int) else 1 for dim in spec.shape)
            shape = (batch, *shape[1:]) if batch else shape
            tensors.append(InputTensor(spec.name, spec.datatype, shape, _zeros(spec.datatype, shape)))
    return tuple(tensors)


def _data(warmup: Warmup, each: WarmupInput, spec: TensorSpec, shape: tuple[int, ...], model: Model) -> bytes:
    if each.data == "file":
        path = PurePosixPath(WARMUP_FOLDER, each.file)
        return _file(f"model_warmup {warmup.name!r}", Path(model.entry.folder), path, spec, shape)
    return _random(spec.datatype, shape) if each.data == "random" else _zeros(spec.datatype, shape)


def _file(what: str, folder: Path, path: PurePosixPath, spec: TensorSpec, shape: tuple[int, ...]) -> bytes:
    try:
        data = read_inside(folder, path)
    except OSError as error:
        raise ConfigError(f"{what}: {path.name} cannot be read: {error.strerror or error}") from error
    if spec.datatype != "BYTES" and len(data) != byte_size(spec.datatype, shape):
        wanted = byte_size(spec.datatype, shape)
        raise ConfigError(f"{what}: {path.name} has {len(data)} bytes, but {spec.datatype}{list(shape)} takes {wanted}")
    return data


def _zeros(datatype: str, shape: tuple[int, ...]) -> bytes:
    elements = int(np.prod(shape, dtype=np.int64))
    return bytes(elements * 4 if datatype == "BYTES" else byte_size(datatype, shape))  # a text of length 0


def _random(datatype: str, shape: tuple[int, ...]) -> bytes:
    """Return reproducible random data. Integers are 0 or 1, because they may be indices; UINT8 is 0 to 255."""
    if datatype == "BYTES":
        return _zeros(datatype, shape)
    random, dtype = np.random.default_rng(0), numpy_dtype(datatype)
    if datatype == "BF16":
        return (random.random(shape, np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    if dtype.kind == "f":
        return random.random(shape).astype(dtype).tobytes()
    return random.integers(0, 256 if datatype == "UINT8" else 2, shape).astype(dtype).tobytes()
