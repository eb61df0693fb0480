"""Tries a model on one runtime, stage by stage. Runs in a child, so that a crash or a hang does not affect a host.

    opset -> operators -> session -> inference

The inputs are the user's samples. If the model answers none of them, the inputs are generated probes (`probes.py`).
Probes of kind WIDE, whose values are far outside the range that a model is made for, are not used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Set
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np

from edged.backends import registry
from edged.backends.contract import Backend, Session
from edged.errors import EngineUnusable, InvalidInput, NotTaken
from edged.ipc import job_messages as jobs
from edged.jobs import batch_check
from edged.jobs.runtimes import MOST_VERSION, find_support, newest_of
from edged.models.finding import Category, Finding, Stage
from edged.models.samples import is_tensors
from edged.tensors import Array
from edged.verification import boxes, user_samples
from edged.verification.probes import PICTURE, Pictures, Probe, one_by_one
from edged.vision.family import Recognition

Report: TypeAlias = Callable[[jobs.Progress], None]

_CONVERT = "or convert it: edged models add NAME FILE --convert"
_EXTENSIONS = "export it without the steps that onnxruntime-extensions adds: edged loads no libraries of operators"
_REMEDIES = {"ai.onnx.contrib": _EXTENSIONS, "com.microsoft.extensions": _EXTENSIONS}  # by domain
_PLUGIN = "_TRT"  # TensorRT's plugins have names that end so; ONNX Runtime knows some of them
# The remedy for models that answer only some values or sizes.
_GIVE = (
    "if it accepts only certain values, give some: --samples INPUTS.npz, from numpy.savez(INPUT=array, ...); if it"
    " accepts only certain sizes, set preprocess.* or profile.INPUT"
)
_MOST_BYTES = 256 << 20  # of the inputs of one probe
_MEMORY = ("bad_alloc", "bad allocation", "Failed to allocate memory", "Cannot allocate memory", "Available memory of")


def attempt(job: jobs.Check, backend: Backend, report: Report) -> jobs.Checked:
    """Try the model, and stop at the first stage that it does not pass."""
    known = (
        job.support if job.support is not None and job.support.version == backend.version() else find_support(backend)
    )
    title = f"{registry.TITLES.get(backend.name, backend.name)} {known.version}"
    report(jobs.Progress(Stage.OPSET.value))
    finding = opset(job, backend, known, title)
    # Most operators of old opsets have changed, but some have not: only the runtime knows whether it has all of them.
    too_old = finding if finding is not None and finding.category is Category.OPSET_TOO_OLD else None
    if too_old is not None and min(job.opsets.values()) > 0 and job.through is not Stage.OPERATORS:
        finding = None
    if finding is None:
        report(jobs.Progress(Stage.OPERATORS.value))
        finding = operators(job, backend, title)
    if finding is not None or job.through is Stage.OPERATORS:
        return jobs.Checked(known, finding)
    report(jobs.Progress(Stage.SESSION.value))
    began = time.monotonic()
    try:
        session = backend.trial(job.order)
    except MemoryError:
        return jobs.Checked(known, _no_memory(Stage.SESSION, f"{title} has too little memory to open the model"))
    except EngineUnusable as error:
        return jobs.Checked(known, too_old or refused(job, error, title))
    if session is None or job.through is Stage.SESSION or job.recognition is None:
        return jobs.Checked(known)
    report(jobs.Progress(Stage.INFERENCE.value))
    answered: list[float] = []
    finding, warnings = inference(job, job.recognition, session, lambda: answered.append(time.monotonic()))
    seconds = round(answered[0] - began, 3) if answered else 0.0
    gain = _batch_gain(job, job.recognition, session) if job.batches and finding is None else 0.0
    return jobs.Checked(known, finding, warnings, seconds=seconds, batch_gain=gain)


# -- opset ----------------------------------------------------------------------------------------------------------


def opset(job: jobs.Check, backend: Backend, known: jobs.RuntimeSupport, title: str) -> Finding | None:
    """Return a finding if the runtime does not support the IR version or an opset of the model."""
    if (known.newest_ir and job.ir_version > known.newest_ir) or job.ir_version > MOST_VERSION:
        message = (
            f"IR version {job.ir_version} is newer than {title} supports ({known.newest_ir or 'no known version'})"
        )
        remedy = f"write the model with ir_version {known.newest_ir or 10} or older, {_CONVERT}"
        return Finding(Stage.OPSET, Category.IR_TOO_NEW, message, remedy)
    for domain, version in job.opsets.items():
        own = domain == "ai.onnx"
        newest = known.newest if own else _newest_of(backend, domain, version)
        named = f"opset {version}" if own else f"opset {version} of domain {domain[:100]!r}"
        if (newest and version > newest) or version > MOST_VERSION:
            message = f"{named} is newer than {title} supports ({newest or 'no known version'})"
            if own:
                remedy = f"export it with opset {newest or 20} or older, {_CONVERT}"
            else:  # --convert lowers only the opset of ai.onnx
                remedy = f"export it with opset {newest} or older of this domain" if newest else ""
            return Finding(Stage.OPSET, Category.OPSET_TOO_NEW, message, remedy)
        if version < (known.oldest if own else 1):
            least = known.oldest if own else 1
            message = f"{named} is older than {title} supports ({least})"
            return Finding(Stage.OPSET, Category.OPSET_TOO_OLD, message, "export it with a newer opset")
    return None


def _newest_of(backend: Backend, domain: str, version: int) -> int:
    """Return the newest version of a domain that the runtime supports; 0 if it supports every version, or if
    `version` is not plausible."""
    if not 1 <= version <= MOST_VERSION:
        return 0
    return newest_of(backend, domain)


# -- operators ------------------------------------------------------------------------------------------------------


def operators(job: jobs.Check, backend: Backend, title: str) -> Finding | None:
    """Return a finding if the runtime lists its operators, and the list lacks an operator or domain of the model, or
    has the operator only in newer opsets."""
    known = backend.operators()
    if known is None:
        return None
    for operator, node in job.nodes.items():
        domain, _, name = operator.rpartition(".")
        domain = domain or "ai.onnx"
        if domain not in known:
            return _unknown_domain(domain, name, node, title)
        since = known[domain].get(name)
        if since is None:
            return _unknown_operator(operator, node, title)
        version = job.opsets.get(domain)
        if version is not None and domain == "ai.onnx" and since > version:
            message = (
                f"node {node[:100]!r} uses {name}, which ONNX has from opset {since} on; the model has opset {version}"
            )
            remedy = f"export it with opset {since} or newer"
            return Finding(Stage.OPERATORS, Category.UNKNOWN_OPERATOR, message, remedy, node)
    return None


def _called(node: str) -> str:
    """Return the node's description for messages: "the model" if the node's name is unknown."""
    return f"node {node[:100]!r}" if node else "the model"


def _unknown_domain(domain: str, name: str, node: str, title: str) -> Finding:
    message = f"{_called(node)} uses {name[:100]} of domain {domain[:100]!r}, an operator that {title} does not have"
    remedy = _REMEDIES.get(domain, "export it with standard ONNX operators")
    return Finding(Stage.OPERATORS, Category.UNKNOWN_DOMAIN, message, remedy, node)


def _unknown_operator(operator: str, node: str, title: str) -> Finding:
    message = f"{_called(node)} uses {operator[:100]}, an operator that {title} does not have"
    remedy = "export it with standard ONNX operators"
    return Finding(Stage.OPERATORS, Category.UNKNOWN_OPERATOR, message, remedy, node)


# -- session --------------------------------------------------------------------------------------------------------


def refused(job: jobs.Check, error: EngineUnusable, title: str) -> Finding:
    """Return the finding for the error with which a runtime refused to open the model."""
    if not isinstance(error, NotTaken):
        return Finding(Stage.SESSION, Category.REFUSED, str(error))
    node = error.node or job.nodes.get(error.operator, "")
    domain, _, name = error.operator.rpartition(".")
    if error.why == "unknown_domain" or (error.why == "unknown_operator" and domain):
        return _unknown_domain(domain, name, node, title)
    if error.why == "unknown_operator":
        return _unknown_operator(error.operator, node, title)
    if error.why == "not_implemented":
        where = f"{_called(node)}: " if node else ""
        message = f"{where}{title} has no {error.operator[:100]} for these types or this opset"
        remedy = "cast to FP32 around it, or export it with another opset"
        if error.operator.endswith(_PLUGIN):
            remedy = "this is a TensorRT plugin: export without it; edged does the postprocessing of detectors itself"
        return Finding(Stage.OPERATORS, Category.NOT_IMPLEMENTED, message, remedy, node)
    if error.why == "too_much_memory":
        return _no_memory(Stage.SESSION, str(error), node)
    if error.why == "shape_outside":
        remedy = "save the model again with small tensors in its file, as onnx.save does without size_threshold=0"
        return Finding(Stage.SESSION, Category.REFUSED, str(error), remedy, node)
    return Finding(Stage.SESSION, Category.REFUSED, str(error), "", node)


def _no_memory(stage: Stage, message: str, node: str = "") -> Finding:
    return Finding(stage, Category.TOO_MUCH_MEMORY, message, "", node)


# -- inference ------------------------------------------------------------------------------------------------------


def inference(
    job: jobs.Check, recognition: Recognition, session: Session, answers: Callable[[], None]
) -> tuple[Finding | None, tuple[Finding, ...]]:
    """Run the user's samples. If the model answers no sample, run generated inputs, one shape after the other. Stop
    after the first shape with an answered input. Then run pictures that edged draws, until the model answers a picture.
    More inputs could keep a valid model busy for a long time.

    `answers` is called after each answer. Returns the finding (None if an input was answered) and the warnings."""
    answered: set[str] = set()
    warnings: list[Finding] = []
    first: Exception | None = None
    has_given = False  # whether the model has answered one of the user's samples
    for name, make in _probes(job, recognition, answered):
        if has_given and not name:
            break
        try:
            probe = make()
            answer = session.infer(probe.inputs)
            answers()
        except (EngineUnusable, InvalidInput, MemoryError) as error:
            first = first or error
            if name:
                warnings.append(_not_answered(name, error))
            continue
        warnings += _not_finite(answer) if not any(each.category is Category.NOT_FINITE for each in warnings) else ()
        if probe.placement is not None and not any(each.category is Category.IMPLAUSIBLE for each in warnings):
            try:
                warnings += _implausible(recognition, answer)
            except MemoryError:  # raised by the code that decodes
                message = f"decoding the outputs with {recognition.other_family or 'the family'} needs more memory than"
                return _no_memory(Stage.INFERENCE, f"{message} allowed"), ()
        answered.add(probe.kind)
        has_given = has_given or bool(name)
    if answered:
        return None, tuple(warnings)
    if first is None:
        message = "the model's declared shapes are too large for a test input (golden input)"
        remedy = "export it with smaller fixed dimensions, or set preprocess.* or profile.INPUT"
        return Finding(Stage.INFERENCE, Category.FAILED, message, remedy), ()
    reason = " ".join(str(first).split()) or type(first).__name__
    whole = str(first.__cause__ or first)  # the runtime's complete message, of which the error has only the beginning
    if isinstance(first, MemoryError) or any(words in whole for words in _MEMORY):
        return _no_memory(Stage.INFERENCE, f"running the model needs more memory than allowed: {reason[:300]}"), ()
    message = f"the model answers none of its test inputs (golden inputs): {reason[:300]}"
    return Finding(Stage.INFERENCE, Category.FAILED, message, _GIVE), ()


def _batch_gain(job: jobs.Check, recognition: Recognition, session: Session) -> float:
    """Return the gain of batches, measured with the first probe that the model answers; 0 if it answers no probe."""
    for _, make in _probes(job, recognition, frozenset()):
        try:
            inputs = make().inputs
            session.infer(inputs)
        except (EngineUnusable, InvalidInput, MemoryError):
            continue
        return batch_check.batch_gain(session, inputs)
    return 0.0


def _probes(job: jobs.Check, recognition: Recognition, answered: Set[str]) -> Iterator[tuple[str, Callable[[], Probe]]]:
    """Yield functions that make probes, each with the name of the user's sample (empty for a generated probe).
    `answered`: the kinds of probes that were answered so far; the caller updates it."""
    signature = job.order.signature
    pictures = Pictures(signature, recognition) if recognition.preprocess is not None else None
    for content, path in sorted(job.given.items(), key=lambda item: not is_tensors(item[1])):
        if is_tensors(path):
            yield Path(path).name, partial(user_samples.read_tensors, Path(path), signature, content)
        elif pictures is not None:
            yield Path(path).name, partial(pictures.sample, Path(path), content)
    for make in one_by_one(signature, recognition, job.shape_range, _MOST_BYTES, answered):
        yield "", make
    if pictures is not None:
        for probe in pictures.drawn():
            yield "", partial(_as_it_is, probe)
            if PICTURE in answered:  # to draw another picture takes longer than all other steps
                return


def _as_it_is(probe: Probe) -> Probe:
    return probe


def _not_answered(sample: str, error: Exception) -> Finding:
    """Return the warning that a model does not answer a sample. Such a sample is not used to verify engines."""
    reason = " ".join(str(error).split())
    message = (
        reason if reason.startswith("sample ") else f"the model does not answer sample {sample[:80]}: {reason[:300]}"
    )
    return Finding(Stage.INFERENCE, Category.FAILED, message, "give another sample, or none")


def _implausible(recognition: Recognition, answer: dict[str, Array]) -> tuple[Finding, ...]:
    """Return a warning if the family in the settings does not fit the answer. A recognised family is not checked,
    because recognition uses more than shapes."""
    if not recognition.is_set:
        return ()
    try:
        why = boxes.doubt(recognition, answer)
    except EngineUnusable as error:
        why = str(error)
    if not why:
        return ()
    message = f"family={recognition.family} does not fit the model's answer to a picture: {why}"
    return (Finding(Stage.INFERENCE, Category.IMPLAUSIBLE, message, "set another family, or family=raw"),)


def _not_finite(answer: dict[str, Array]) -> tuple[Finding, ...]:
    for name, array in answer.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            count = int(array.size - np.isfinite(array).sum())
            message = f"output {name[:100]!r}: {count} of {array.size} values are not finite for ordinary inputs"
            remedy = "check whether this is intended: divisions by zero, logarithms, overflow in FP16"
            return (Finding(Stage.INFERENCE, Category.NOT_FINITE, message, remedy, name),)
    return ()
