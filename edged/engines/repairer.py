"""Repairs a model step by step. Each step runs in a child. Before the next step starts, the new graph must be proven to
give the same answers.

The model and its external data lie in a folder that the caller owns. Each step writes a new graph there. The last graph
replaces the model file. After an error the caller removes the folder.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from edged.backends.contract import REFERENCE, Order
from edged.config.child_limits import Limits
from edged.engines.child import run
from edged.errors import BuildFailed, ConfigError, EdgedError, EngineUnusable, ModelRefused, Unsuitable, Unsupported
from edged.ipc import job_messages as jobs
from edged.ipc.job_messages import Freed, FreeDims, Lower, Lowered, Prove, Proven, Simplified, Simplify
from edged.models.inspection import Inspection
from edged.models.repair import Done, Proof, Record, RepairOptions, Step
from edged.verification.shape_range import ShapeRange
from edged.version import __version__
from edged.vision.family import Recognition, recognise

_READ = Limits(seconds=120.0, memory_mb=4096)
_WORK = Limits(seconds=300.0, memory_mb=8192)
_EVALUATE_SECONDS = 45.0  # for further answers of ONNX's reference implementation after its first
_DEFINITIONS = "definitions"
_SIZE = ("preprocess.width", "preprocess.height")

Answer = TypeVar("Answer", bound=msgspec.Struct)


class Repaired(msgspec.Struct, frozen=True):
    """A repaired model: its file, the relative paths of its external data, and the record of the steps. A record
    without steps means that the model is unchanged because it needed no repair."""

    path: Path
    external: tuple[str, ...]
    record: Record

    @property
    def files(self) -> dict[str, Path]:
        """A mapping from the relative path to the path of each file, the model first."""
        return {self.path.name: self.path, **{name: self.path.parent / name for name in self.external}}


async def repair(
    path: Path,
    options: RepairOptions,
    settings: Mapping[str, str],
    installed: Iterable[str],
    *,
    source: str,
    samples: Sequence[Path] = (),
) -> Repaired:
    """Repair the model file `path` in place. `source` is the name of the model file in messages and in the record.

    Raises ModelRefused if a step fails, or if the repaired model cannot be proven to give the same answers.
    """
    inspection = await _inspect(path)
    if inspection.finding is not None:
        raise inspection.finding.refusal()
    work = _Work(path, inspection, options, settings, tuple(installed), tuple(map(str, samples)))
    try:
        await work.versions()
        await work.dims()
        await work.simplify()
    except ModelRefused:
        raise
    except EdgedError as error:
        raise ModelRefused(f"{Path(source).name} cannot be repaired: {error}") from error
    record = Record(
        digest=work.inspection.digest,
        original=inspection.digest,
        source=source,
        made=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        steps=tuple(work.done),
        left_out=tuple(work.left_out),
        edged=__version__,
    )
    return Repaired(work.settle(), tuple(file.path for file in work.inspection.external), record)


class _Work:
    """The model between steps: `path` is the newest graph, `inspection` its content."""

    def __init__(
        self,
        path: Path,
        inspection: Inspection,
        options: RepairOptions,
        settings: Mapping[str, str],
        installed: tuple[str, ...],
        samples: tuple[str, ...],
    ) -> None:
        self.path, self.inspection = path, inspection
        self.done: list[Done] = []
        self.left_out: list[str] = []
        self._given, self._options, self._settings = path, options, settings
        self._installed, self._samples = installed, samples
        self._scratch: list[Path] = []

    def settle(self) -> Path:
        """Rename the newest graph to the name of the model file, and remove the temporary files of the steps. Return
        the path of the model file."""
        if self.path != self._given:
            os.replace(self.path, self._given)
        for place in self._scratch:
            place.unlink(missing_ok=True)
        return self._given

    # -- opset and IR version ----------------------------------------------------------------------------------------

    async def versions(self) -> None:
        """Lower the opset and the IR version if ONNX Runtime does not support them, or if the user named the step.
        First try versions that all installed runtimes support, then newer versions that ONNX Runtime supports."""
        if not (self._options.wants(Step.OPSET) or self._options.wants(Step.IR)):
            return
        opset, ir = self.inspection.opsets.get("ai.onnx", 0), self.inspection.ir_version
        takes = await self._newest(REFERENCE.backend)
        if takes is None:
            missing = "ONNX Runtime is missing or broken, but it must check every repair; see: edged doctor"
            raise Unsupported(missing)
        newest, named = [takes], self._options.insists(Step.OPSET) or self._options.insists(Step.IR)
        # Otherwise ONNX Runtime serves the model, and the other runtimes do not matter.
        if named or opset > takes.opset or ir > takes.ir_version:
            others = [await self._newest(name) for name in self._installed if name != REFERENCE.backend]
            newest += [found for found in others if found is not None]
        opsets = self._targets(Step.OPSET, opset, takes.opset, [each.opset for each in newest])
        irs = self._targets(Step.IR, ir, takes.ir_version, [each.ir_version for each in newest])
        self._note_named(opsets, irs, opset, ir)
        if opsets == [0] and irs == [0]:
            return
        is_run_here = opset <= takes.opset and ir <= takes.ir_version
        attempts = list(dict.fromkeys((o, i) for i in irs for o in opsets))
        for place, (to_opset, to_ir) in enumerate(attempts):
            try:
                await self._lower(to_opset, to_ir, is_run_here)
            except (Unsuitable, EngineUnusable, BuildFailed) as error:
                if place == len(attempts) - 1:
                    raise
                self.left_out.append(f"{_versions(to_opset, to_ir)} (all installed runtimes support it): {error}")
            else:
                return

    async def _newest(self, backend: str) -> jobs.LoadedRuntime | None:
        """Return the newest ONNX versions that a runtime supports; None if the runtime does not work."""
        try:
            found = await run(jobs.LoadRuntime(backend), jobs.LoadedRuntime, _READ)
        except EdgedError:
            return None
        return found if found.opset and found.ir_version else None

    def _targets(self, step: Step, version: int, reference: int, all_newest: Sequence[int]) -> list[int]:
        """Return the versions to try, in order; [0] if the model keeps its version.

        If the user requested a version, only that version is tried. Otherwise the first version is one that every
        installed runtime supports, and the last version is one that ONNX Runtime supports. If the user named the step,
        the model's version is lowered even if ONNX Runtime supports it. Raises Unsuitable if the requested version is
        newer than the model's version.
        """
        if not self._options.wants(step):
            return [0]
        if target := self._options.version(step):
            if target > version:
                raise Unsuitable(f"{step.value}={target}: the model has {version}, and a repair can only lower it")
            return [target] if target < version else [0]
        older = sorted({newest for newest in (*all_newest, reference) if newest <= reference and newest < version})
        return older if older and (version > reference or self._options.insists(step)) else [0]

    def _note_named(self, opsets: list[int], irs: list[int], opset: int, ir: int) -> None:
        for step, targets, is_at in ((Step.OPSET, opsets, opset), (Step.IR, irs, ir)):
            if self._options.insists(step) and targets == [0]:
                taken = "" if self._options.version(step) else "; every installed runtime supports this version"
                self.left_out.append(f"{step.value}: it is already {is_at}{taken}")

    async def _lower(self, opset: int, ir: int, is_run_here: bool) -> None:
        before, out = self.inspection, self._output("lowered")
        lowered = await run(Lower(str(self.path), str(out), opset, ir), Lowered, _WORK)
        after = await _inspect(out)
        proof = await self._proof(out, after, evaluate=not is_run_here, lowered=lowered)
        if opset:
            was, became = before.opsets.get("ai.onnx", 0), after.opsets.get("ai.onnx", 0)
            details = lowered.details or ("all its operators are the same in both versions",)
            self.done.append(Done(Step.OPSET.value, str(was), str(became), proof, details))
        if ir:
            self.done.append(Done(Step.IR.value, str(before.ir_version), str(after.ir_version), proof))
        self.path, self.inspection = out, after

    async def _proof(self, out: Path, after: Inspection, *, evaluate: bool, lowered: Lowered | None = None) -> Proof:
        """Prove that the graph in `out` answers as the current graph does. If the two cannot be compared, ONNX's
        definitions may prove it (`lowered.by_definition`). Raises Unsuitable if there is no proof."""
        job = Prove(
            self._order(self.path, self.inspection),
            self._order(out, after),
            self._recognition(self.inspection),
            self._samples,
            self._extent(self.inspection),
            evaluate,
            _EVALUATE_SECONDS,
        )
        try:
            proven = await run(job, Proven, _WORK)
        except (Unsuitable, EngineUnusable, BuildFailed) as error:
            if lowered is not None and lowered.by_definition:
                detail = (
                    f"by ONNX's definitions all operators mean the same in both versions; comparing failed: {error}"
                )
                return Proof(_DEFINITIONS, detail)
            raise Unsuitable(f"cannot verify that the model answers as before: {error}") from error
        if not proven.verdict.accepted:
            raise Unsuitable(f"the repaired model's answers differ from the original's: {proven.verdict.reason}")
        asked = f"{proven.questions} probe{'s' if proven.questions != 1 else ''}"
        detail = f"gives the same answers to {asked} as the original, compared by {proven.by}"
        return Proof(proven.by, detail, proven.questions, proven.verdict.figures)

    # -- dimensions ---------------------------------------------------------------------------------------------------

    async def dims(self) -> None:
        """Declare the input shapes that the graph accepts in trials, if they differ from the declared shapes."""
        wants_dims = self._options.wants(Step.DIMS)
        wants_sizes = self._options.wants(Step.SIZES) or (self._options.needed and self._asks_for_another_size())
        if not (wants_dims or wants_sizes):
            return
        out = self._output("freed")
        job = FreeDims(
            self._order(self.path, self.inspection),
            self._recognition(self.inspection),
            str(out),
            wants_dims,
            wants_sizes,
        )
        self._scratch.append(Path(f"{out}.trial"))
        freed = await self._optional(Step.DIMS, lambda: run(job, Freed, _WORK))
        if freed is None:
            return
        if freed.refused:
            if self._options.insists(Step.SIZES):
                raise Unsuitable(freed.refused)
            self.left_out.append(freed.refused)
        elif self._options.insists(Step.DIMS) and not freed.details:
            self.left_out.append("dims: in all trials the model accepted only the declared dimensions")
        if freed.details:
            proof = Proof("onnxruntime", "; ".join(freed.details), freed.questions, freed.figures)
            step = Step.SIZES if freed.sized and len(freed.details) == 1 else Step.DIMS
            self.done.append(Done(step.value, freed.before, freed.after, proof))
            self.path, self.inspection = out, await _inspect(out)

    def _asks_for_another_size(self) -> bool:
        """Whether the settings name an image size that the file does not declare."""
        wanted = [self._settings.get(name, "") for name in _SIZE]
        sizes = {str(size) for spec in self.inspection.signature.inputs for size in spec.shape[1:]}
        return any(text and text not in sizes for text in wanted)

    # -- simplification -----------------------------------------------------------------------------------------------

    async def simplify(self) -> None:
        """Fold constants and remove unneeded nodes. A failure is only reported, because the step is optional."""
        if not self._options.wants(Step.SIMPLIFY):
            return
        out = self._output("simplified")
        weights = out.with_name(self._unused("weights.bin"))
        try:
            job = Simplify(str(self.path), str(out), str(weights))
            made = await run(job, Simplified, _WORK)
            if made.after == made.before:
                raise Unsuitable(f"{made.by} finds nothing to remove in {made.before} nodes")
            after = await _inspect(out)
            proof = await self._proof(out, after, evaluate=False)
        except EdgedError as error:
            weights.unlink(missing_ok=True)
            self.left_out.append(f"simplify: {str(error).removeprefix('simplify is skipped: ')}")
            return
        before, became = f"{made.before} nodes", f"{made.after} nodes"
        self.done.append(Done(Step.SIMPLIFY.value, before, became, proof, (f"by {made.by}",)))
        needed = {file.path for file in after.external}
        self._scratch.extend(self._given.parent / f.path for f in self.inspection.external if f.path not in needed)
        self.path, self.inspection = out, after

    # -- what the steps share -----------------------------------------------------------------------------------------

    async def _optional(self, step: Step, work: Callable[[], Awaitable[Answer]]) -> Answer | None:
        """Run an optional step. If it fails, raise its error if the user named the step; otherwise leave the step out
        and return None."""
        try:
            return await work()
        except (Unsuitable, EngineUnusable, BuildFailed) as error:
            if self._options.insists(step):
                raise
            self.left_out.append(f"{step.value}: {error}")
            return None

    def _output(self, what: str) -> Path:
        place = self._given.with_name(self._unused(f"{self._given.stem}.{what}.onnx"))
        self._scratch.append(place)
        return place

    def _unused(self, name: str) -> str:
        """Return a name that no file of the model has."""
        names = {file.path for file in self.inspection.external} | {self._given.name}
        while name in names or (self._given.parent / name).exists():
            name = f"_{name}"
        return name

    def _order(self, path: Path, inspection: Inspection) -> Order:
        external = tuple(file.path for file in inspection.external)
        return Order(str(path.absolute()), inspection.signature, REFERENCE, external=external)

    def _extent(self, inspection: Inspection) -> ShapeRange:
        return ShapeRange.read(inspection.signature, self._settings, None)

    def _recognition(self, inspection: Inspection) -> Recognition:
        """Recognise the model's family. If the settings do not fit this graph, ignore them: they may fit only the
        repaired graph."""
        signature = inspection.signature
        for settings in (self._settings, {}):
            try:
                return recognise(
                    signature.inputs,
                    signature.outputs,
                    inspection.metadata,
                    settings,
                    inspection.operators,
                    inspection.heads,
                )
            except ConfigError:
                continue
        raise Unsuitable("the settings in the model's metadata do not fit the model; override them, or set family=raw")


def _versions(opset: int, ir: int) -> str:
    return " and ".join(filter(None, (f"opset {opset}" if opset else "", f"IR version {ir}" if ir else "")))


async def _inspect(path: Path) -> Inspection:
    """Inspect a graph without the builder's cache, because an intermediate graph is inspected only once."""
    return await run(jobs.Inspect(str(path.absolute())), Inspection, _READ)
