"""Compares the answers of a repaired model with the answers of the original. Runs in the child."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from edged.backends import registry
from edged.backends.contract import Session, Signature, one_line
from edged.errors import EdgedError, EngineUnusable, InvalidInput, Unsuitable
from edged.ipc.job_messages import Prove, Proven
from edged.models.inspection import arithmetic
from edged.store.record import Verdict
from edged.tensors import Array, numpy_dtype
from edged.verification import golden, user_samples
from edged.verification.golden import Sample
from edged.verification.probes import Pictures, Probe, tensors
from edged.verification.standard import TOLERANCES, Tolerance
from edged.verification.verify import Pair, judge, matcher_for

_PICTURES = 2  # drawn pictures for the reference implementation, which takes seconds for each
NAME = f"onnx.reference {onnx.__version__}"


def prove(job: Prove) -> Proven:
    """Compare the answers of the original and the repaired model. Raises Unsuitable or another EngineUnusable if the
    original cannot be run or the repaired model cannot be opened."""
    asked, by = _evaluated(job) if job.evaluate else _inferred(job)
    backend = registry.load(job.repaired.recipe.backend)
    repaired = backend.open(job.repaired)
    tolerance = tolerance_for(Path(job.original.model))
    compared = matcher_for(job.recognition, tolerance.box_score)
    try:
        verdict = judge(_pairs(asked, repaired), tolerance, compared)
    except (EngineUnusable, InvalidInput) as error:
        verdict = Verdict(False, f"the repaired model refuses probes that the original answers: {error}", {})
    return Proven(verdict, by, len(asked))


def tolerance_for(path: Path) -> Tolerance:
    """Return the allowed difference of the answers of two runs, which depends on the precision of the model."""
    graph = onnx.load(str(path), load_external_data=False).graph
    halves = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
    elements = {tensor.data_type for tensor in graph.initializer}
    elements |= {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)}
    return TOLERANCES[arithmetic((node.op_type for node in graph.node), not elements.isdisjoint(halves))]


def _pairs(asked: Iterable[Sample], repaired: Session) -> Iterator[Pair]:
    for sample in asked:
        yield Pair.of(sample, repaired.infer(sample.inputs))


def _inferred(job: Prove) -> tuple[list[Sample], str]:
    backend = registry.load(job.original.recipe.backend)
    session = backend.open(job.original)
    made = golden.make(session, job.original.signature, job.recognition, job.samples, job.shape_range)
    return made.samples, f"{backend.name} {backend.version()}"


def _evaluated(job: Prove) -> tuple[list[Sample], str]:
    """Run ONNX's reference implementation on as many probes as the time allows, but at least until one is answered. A
    model that is too slow for this exceeds the child's time limit."""
    session = Evaluator(Path(job.original.model), job.original.signature)
    end, asked, why = time.monotonic() + job.seconds, list[Sample](), ""
    for probe in _probes(job, asked):
        if asked and time.monotonic() > end:
            break
        try:
            outputs = session.infer(probe.inputs)
        except EdgedError as error:
            why = why or str(error)
            continue
        asked.append(Sample(probe.inputs, outputs, probe.kind, probe.name, probe.placement))
    if not asked:
        raise Unsuitable(
            why or "edged cannot generate test inputs with the model's declared shapes; give .npz files with --samples"
        )
    return golden.with_least_noise(asked), NAME


def _probes(job: Prove, asked: list[Sample]) -> Iterator[Probe]:
    signature = job.original.signature
    for probes in tensors(signature, job.recognition, job.shape_range):
        yield from probes
        if asked:  # one set of values for the dynamic dimensions is enough
            break
    for make in user_samples.tensor_probes(signature, job.samples):
        with contextlib.suppress(InvalidInput):  # reported when the sample was added
            yield make()
    if job.recognition.preprocess is not None:
        for _, probe in zip(range(_PICTURES), Pictures(signature, job.recognition).drawn(), strict=False):
            yield probe


class Evaluator:
    """A session of the onnx package's reference implementation."""

    def __init__(self, path: Path, signature: Signature) -> None:
        """Raises Unsuitable if the reference implementation cannot read the model."""
        if any(spec.datatype == "BF16" for spec in (*signature.inputs, *signature.outputs)):
            raise Unsuitable("the evaluator in the onnx package (onnx.reference) does not support bfloat16")
        self._signature = signature
        try:
            self._model = ReferenceEvaluator(onnx.load(str(path)))
        except Exception as error:  # errors of the package, or of a package that it imports
            raise Unsuitable(
                f"the evaluator in the onnx package (onnx.reference) cannot run the model: {one_line(error)}"
            ) from error

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        names = [spec.name for spec in self._signature.outputs] if outputs is None else list(outputs)
        feeds = {name: _texts(array) if array.dtype == np.object_ else array for name, array in inputs.items()}
        try:
            values = self._model.run(names, feeds)
        except Exception as error:  # whatever an operator raises
            raise EngineUnusable(
                f"the evaluator in the onnx package (onnx.reference) failed on an input: {one_line(error)}"
            ) from error
        types = {spec.name: spec.datatype for spec in self._signature.outputs}
        return {name: _plain(value, types[name]) for name, value in zip(names, values, strict=True)}

    def close(self) -> None:
        del self._model


def _plain(value: object, datatype: str) -> Array:
    """Return an output as an array of its datatype. The reference implementation may return scalars and str."""
    array = np.asarray(value)
    if datatype == "BYTES":
        texts = [text if isinstance(text, bytes) else str(text).encode() for text in array.ravel().tolist()]
        return np.array(texts, np.object_).reshape(array.shape)
    return array.astype(numpy_dtype(datatype), copy=False)


def _texts(array: Array) -> Array:
    return np.array([bytes(text).decode() for text in array.ravel().tolist()], np.object_).reshape(array.shape)
