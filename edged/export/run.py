"""The steps of an export, in order: load, export, check the exported file, compare the answers, write the file."""

from __future__ import annotations

import asyncio
import io
import shutil
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from edged.backends.contract import REFERENCE, Order
from edged.backends.profile import PREFIX
from edged.config.child_limits import Limits as ChildLimits
from edged.confinement import confine
from edged.engines.child import run
from edged.engines.repairer import repair
from edged.errors import BuildFailed, EdgedError, ModelRefused, Unsuitable, Unsupported
from edged.export.child import Answer, FrameworkProcess, Limits, ModuleMissing, running
from edged.export.proof import Answers, Proof, first_difference, prove
from edged.export.source import KNOWN, PACKAGES, Source
from edged.export.targets import Limits as TargetLimits
from edged.export.targets import unlike, versions_beyond
from edged.files import read_regular
from edged.ipc import job_messages as jobs
from edged.models import huggingface
from edged.models.entries import plain_entry
from edged.models.inspection import Inspection
from edged.models.model import Model
from edged.models.repair import RepairOptions, Step
from edged.tensors import Array, TensorSpec
from edged.verification import golden, noise
from edged.verification.boxes import Matcher
from edged.verification.shape_range import ShapeRange
from edged.verification.verify import matcher_for
from edged.vision.settings import METADATA_PREFIX

_STRIDE = 32  # pixels: networks for pictures take sizes that are multiples of this
_READ = ChildLimits(seconds=300.0, memory_mb=8192)
_PROBE = ChildLimits(seconds=900.0, memory_mb=8192)


class Wish(NamedTuple):
    """The user's request; see `frameworks.contract.Request`. If `opset` is 0, the exporter chooses the opset. If a box
    does not support this opset, the newest opset that all boxes support is used."""

    weights: Path | None = None
    imgsz: tuple[int, int] | None = None
    opset: int = 0
    dynamic: tuple[str, ...] = ()
    half: bool = False
    trust: bool = False
    python: str = sys.executable
    samples: tuple[Path, ...] = ()
    limits: Limits = Limits(1800.0, 8192)


class Exported(msgspec.Struct, frozen=True):
    """An export: the written file, its contents, the proof, and remarks.

    `way` names the way in which the framework exported, such as "dynamo"; empty if the framework has only one way.
    `seconds` is the time of loading, exporting and comparing. `memory_mb` is the framework's largest use of memory.
    """

    file: str
    framework: str
    way: str
    opsets: dict[str, int]
    ir_version: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    settings: dict[str, str]
    proof: Proof
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    memory_mb: int = 0


def export(
    source: Source, out: Path, wish: Wish, limits: TargetLimits, scratch: Path, notify: Callable[[str], None]
) -> Exported:
    """Export a source to the file `out`, which is replaced at the end, and only if all checks succeed.

    Raises Unsupported if a package is missing, and Unsuitable or ModelRefused if the source cannot be exported as
    asked. Raises BuildFailed if the framework fails, or if the file does not answer as the framework does.
    """
    began = time.monotonic()
    reads = (*source.reads, *((str(wish.weights.absolute()),) if wish.weights else ()))
    # The framework may write to `theirs`, and only read `own`.
    theirs, own = scratch / "framework", scratch / "own"
    theirs.mkdir()
    own.mkdir()
    here = str(Path.cwd()) if source.kind == "torch_module" else str(theirs)
    reads = (*reads, here, str(own))
    with running(wish.python, theirs, reads, here, wish.limits) as framework:
        work = _Export(source, wish, limits, theirs, own, framework, notify)
        if lacking := confine.lacking():
            work.notes.append(f"the framework was confined only in part: this kernel lacks {', '.join(lacking)}")
        try:
            loaded = work.load()
            file, way, inspection = work.write(loaded)
            proof = work.prove(file, inspection, loaded)
        except ModuleMissing as error:
            raise Unsupported(_missing(source, str(error), wish.python)) from None
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.name}.partial")
    try:
        shutil.copyfile(file, temporary)
        temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)
    return Exported(
        file=str(out),
        framework=loaded.framework,
        way=way,
        opsets=inspection.opsets,
        ir_version=inspection.ir_version,
        inputs=tuple(map(_tensor, inspection.signature.inputs)),
        outputs=tuple(map(_tensor, inspection.signature.outputs)),
        settings=work.settings,
        proof=proof,
        notes=tuple(work.notes),
        seconds=round(time.monotonic() - began, 1),
        memory_mb=framework.memory_mb,
    )


def _tensor(spec: TensorSpec) -> str:
    return f"{spec.name} {spec.datatype}[{','.join(map(str, spec.shape))}]"


def _missing(source: Source, module: str, python: str) -> str:
    if source.kind == "torch_module" and f"{source.name.partition(':')[0]}.".startswith(f"{module}."):
        return f"the current folder has no module {module!r}; run the command in the folder of your package"
    package = PACKAGES[source.kind] if module.partition(".")[0] in KNOWN else module.partition(".")[0]
    return f"{python} has no module {module!r}; install the module: {python} -m pip install {package}"


class _Export:
    def __init__(
        self,
        source: Source,
        wish: Wish,
        limits: TargetLimits,
        theirs: Path,
        own: Path,
        framework: FrameworkProcess,
        notify: Callable[[str], None],
    ) -> None:
        self._source, self._wish, self._limits, self._theirs, self._own = source, wish, limits, theirs, own
        self._framework, self._notify = framework, notify
        self.notes: list[str] = []
        self.settings: dict[str, str] = {}

    def load(self) -> Answer:
        self._notify(f"loading {self._source.title}")
        wish, request = self._wish, {"source": self._source.name, "scratch": str(self._theirs)}
        options = {"imgsz": wish.imgsz, "dynamic": wish.dynamic, "half": wish.half, "trust": wish.trust}
        weights = str(wish.weights.absolute()) if wish.weights else ""
        loaded = self._framework.ask("load", kind=self._source.kind, request={**request, **options, "weights": weights})
        self.notes += loaded.notes
        self.settings = dict(loaded.settings)
        if self._source.kind == "huggingface":
            self.settings |= huggingface.read_settings(Path(self._source.name) / "model.onnx")
        return loaded

    # -- writing -----------------------------------------------------------------------------------------------------

    def write(self, loaded: Answer) -> tuple[Path, str, Inspection]:
        """Export in each of the framework's ways (`Answer.ways`), one after the other, until a file is as requested. If
        no file is, convert the first file whose only fault is that its ONNX versions are too new. Raises ModelRefused
        if no file has only this fault, or if the file cannot be converted."""
        problem, best = "", None
        # First ask for the exporter's own opset (0): the boxes may take a newer opset than the exporter can write.
        asked = [self._wish.opset] if self._wish.opset or not self._limits.opset else [0, self._limits.opset]
        for opset, way in ((opset, way) for opset in asked for way in loaded.ways):
            named = way or "the exporter"
            self._notify(f"exporting{f' ({way})' if way else ''}")
            place = self._theirs / f"{way or 'model'}-{opset}.onnx"
            try:
                self._framework.ask("export", out=str(place), opset=opset or None, way=way)
                inspection = asyncio.run(run(jobs.Inspect(str(place)), Inspection, _READ))
            except (BuildFailed, Unsuitable) as error:
                problem = str(error) if isinstance(error, Unsuitable) or not problem else problem
                self.notes.append(f"{named} failed: {str(error).partition('. ')[0][:200]}")
                continue
            if inspection.finding is not None:
                problem = problem or str(inspection.finding.refusal())
                continue
            if other := unlike(inspection, loaded.inputs):
                problem = problem or other
                self.notes.append(f"{named} wrote a file that does not fit the model: {other}")
                continue
            beyond = versions_beyond(inspection, self._wish.opset, self._limits)
            if not beyond:
                return self._finished(place, way)
            self.notes.append(f"{named} wrote {beyond}")
            best = best or (place, way, inspection)
        if best is None:
            raise ModelRefused(f"{self._source.title} cannot be exported: {problem}")
        return self._lowered(*best)

    def _lowered(self, place: Path, way: str, inspection: Inspection) -> tuple[Path, str, Inspection]:
        """Convert the exporter's file to the requested versions. Raises ModelRefused if an operator cannot be
        converted. The message gives the line of the user's code, if the exporter wrote this line into the file."""
        sources = asyncio.run(self._finish(place, self._own / "traced.onnx")).sources
        opset, ir = self._wish.opset or self._limits.opset, self._limits.ir_version
        steps, versions = list[Step](), {}
        if opset and inspection.opsets.get("ai.onnx", 0) > opset:
            steps, versions = [*steps, Step.OPSET], {"opset": opset}
        if ir and inspection.ir_version > ir:
            steps, versions = [*steps, Step.IR], {**versions, "ir": ir}
        self._notify(f"converting to opset {opset}")
        options = RepairOptions(False, tuple(steps), **versions)
        try:
            done = asyncio.run(repair(place, options, {}, (REFERENCE.backend,), source=self._source.title))
        except ModelRefused as error:
            named = [
                f"operator {operator} comes from {line}" for operator, line in sources.items() if operator in str(error)
            ]
            raise ModelRefused("; ".join([str(error), *named])) from None
        self.notes.append(f"edged converted the file: {'; '.join(each.line() for each in done.record.steps)}")
        return self._finished(done.path, way)

    def _finished(self, place: Path, way: str) -> tuple[Path, str, Inspection]:
        out = self._own / "finished.onnx"
        asyncio.run(self._finish(place, out))
        if out.with_name(f"{out.name}.data").exists():
            raise ModelRefused(
                f"{self._source.title} has more than 1.9 GB of weights, but edged exports only into one file of at most"
                " 2 GB; give --half, or export the model with the framework's own tools and external data"
            )
        self._raw = place
        return out, way, asyncio.run(run(jobs.Inspect(str(out)), Inspection, _READ))

    async def _finish(self, place: Path, out: Path) -> jobs.FinishedExport:
        metadata = {f"{METADATA_PREFIX}{key}": value for key, value in self.settings.items()}
        return await run(jobs.FinishExport(str(place), str(out), metadata), jobs.FinishedExport, _READ)

    # -- proof -------------------------------------------------------------------------------------------------------

    def prove(self, file: Path, inspection: Inspection, loaded: Answer) -> Proof:
        """Compare the file with the framework. Raises BuildFailed if their answers differ."""
        samples_given = tuple(str(each.absolute()) for each in self._wish.samples)
        entry = msgspec.structs.replace(plain_entry("export", file, _ranges(loaded)), samples=samples_given)
        model = Model.of(entry, inspection)
        self._notify("comparing with the framework")
        samples = asyncio.run(self._golden(model))
        if not samples:
            raise BuildFailed(
                "ONNX Runtime cannot run the exported model with any test input; give valid inputs with --samples"
            )
        if lost := _lost(loaded, samples):
            raise BuildFailed(
                f"the exported file takes only one size of {lost}, but this dimension must stay open; if you gave"
                " --dynamic, leave it out; otherwise, correct the model's code"
            )
        matcher = matcher_for(model.recognition, 0.05)
        answers = [self._answered(sample, list(sample.outputs)) for sample in samples]
        proof = prove(answers, matcher if isinstance(matcher, Matcher) else None, self._wish.half)
        if proof.problem:
            worst = next((each for each in answers if each.picture == proof.worst.picture), answers[0])
            first = self._first(worst.sample, loaded)
            raise BuildFailed(
                f"the exported file is not proven to give the answers of {loaded.framework}: {proof.problem}{first}"
            )
        return proof

    async def _golden(self, model: Model) -> list[golden.Sample]:
        out = self._own / "golden"
        order: Order = model.order(REFERENCE)
        job = jobs.MakeGolden(order, str(out), model.recognition, model.samples, ShapeRange.of(model))
        made = await run(job, jobs.MadeGolden, _PROBE)
        self.notes += made.skipped
        return [each for each in golden.load(out).samples if each.kind != "wide"]

    def _answered(self, sample: golden.Sample, outputs: Sequence[str]) -> Answers:
        given, moved = (self._ask("answer", inputs, outputs) for inputs in (sample.inputs, _moved(sample)))
        return Answers(sample, given, moved)

    def _ask(self, what: str, inputs: Mapping[str, Array], outputs: Sequence[str] = ()) -> dict[str, Array]:
        """Send arrays to the framework and return its arrays by name: the names in `outputs`, or the framework's own
        names if `outputs` is empty."""
        asked, found = self._own / "asked.npz", self._theirs / "answered.npz"
        _save(asked, inputs)
        answer = self._framework.ask(what, inputs=str(asked), outputs=str(found))
        arrays = list(_arrays(found))
        if outputs and len(arrays) != len(outputs):
            raise BuildFailed(f"the framework returns {len(arrays)} outputs, but the file has {len(outputs)}")
        return dict(zip(outputs or answer.names, arrays, strict=True))

    def _first(self, sample: golden.Sample, loaded: Answer) -> str:
        """Return the first module at which file and framework differ, as the end of a message; empty if unknown."""
        if not loaded.has_layers:
            return ""
        try:
            framework = self._ask("layers", sample.inputs)
            moved = self._ask("layers", _moved(sample))
            asked, found = self._own / "asked.npz", self._own / "layers.npz"
            _save(asked, sample.inputs)
            asyncio.run(run(jobs.ExportLayers(str(self._raw), str(asked), str(found)), jobs.Done, _PROBE))
            names = found.with_suffix(".names").read_text().split("\n")
            first = first_difference(framework, moved, dict(zip(names, _arrays(found), strict=True)))
        except (EdgedError, ValueError):
            return ""
        return f"; the first module that differs is {first}" if first else ""


def _ranges(loaded: Answer) -> dict[str, str]:
    """Return settings with ranges of shapes, so that each open dimension is also tried with another size."""
    found = {}
    for name, (_, shape, opened) in loaded.inputs.items():
        if opened:
            other = [size + (1 if axis == 0 else _STRIDE) * (axis in opened) for axis, size in enumerate(shape)]
            found[f"{PREFIX}{name}"] = " ".join("x".join(map(str, each)) for each in (shape, shape, other))
    return found


def _lost(loaded: Answer, samples: Sequence[golden.Sample]) -> str:
    """Return the first open dimension that the export fixed to one size; empty if the export fixed no dimension. Each
    open dimension was tried with two sizes (`_ranges`). `samples` has only the inputs that the file accepted."""
    for name, (_, shape, opened) in loaded.inputs.items():
        for axis, word in opened.items():
            if all(sample.inputs[name].shape[axis] == shape[axis] for sample in samples):
                return f"dimension {axis} ({word}) of input {name!r}"
    return ""


def _moved(sample: golden.Sample) -> dict[str, Array]:
    return noise.nudged(sample.inputs)


def _save(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays by name to an .npz file. Each name gets the prefix "x", because an input may have the name of a
    parameter of `np.savez`, such as `file`."""
    np.savez(path, **{f"x{name}": value for name, value in arrays.items()})  # type: ignore[arg-type]


def _arrays(path: Path) -> Iterator[Array]:
    try:
        with np.load(io.BytesIO(read_regular(path)), allow_pickle=False) as found:
            for number in range(len(found.files)):
                yield found[str(number)]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        message = f"the framework's answers cannot be read: {error}"
        raise BuildFailed(f"{message}; check that all outputs of the model are arrays") from error
