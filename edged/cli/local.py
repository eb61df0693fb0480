"""The box itself, for commands that find no daemon: its models, its store, its facts, read from disk."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from edged import paths
from edged.api_types import EngineInfo, Explanation, ModelInfo, TensorInfo
from edged.backends import registry
from edged.cli import common
from edged.config import Engines
from edged.config.limits import AdmissionLimits, Limits, admission_limits
from edged.device.fingerprint import probe
from edged.engines import offline, report
from edged.engines.admission import Admission, admit, examine
from edged.engines.builder import Builder, OnProgress, Task
from edged.engines.desired import DesiredEngine
from edged.engines.offline import Target
from edged.engines.plan import PlannedModel, Planner
from edged.engines.repairer import Repaired, repair
from edged.errors import AlreadyExists, EdgedError, ModelNotFound
from edged.models import samples as model_samples
from edged.models import settings
from edged.models.entries import check_name, plain_entry
from edged.models.finding import Reason
from edged.models.inspection import Inspection
from edged.models.model import Model
from edged.models.repair import Record, Wish
from edged.models.repository import Repository
from edged.store.record import EngineRecord
from edged.store.store import Store

_LIMITS = Limits(seconds=600)


class LocalBox:
    """The folders of this box, as a daemon with the same settings would use them."""

    def __init__(
        self, state: Path | None = None, cache: Path | None = None, admission: AdmissionLimits | None = None
    ) -> None:
        """`admission` limits the examination of models; where it is not given the environment says."""
        self._admission = admission or admission_limits()
        self.repository = Repository((state or paths.default_state_dir()) / "models")
        self._cache = cache or paths.default_cache_dir()
        self.fingerprint = probe()

    def add(
        self,
        name: str,
        file: Path,
        settings: Mapping[str, str],
        samples: Sequence[Path] = (),
        wish: Wish | None = None,
    ) -> tuple[Inspection, Record | None]:
        """Examines a model and takes it in with its external data, after the repairs that are wished for; what was
        taken in, and what was done to it. `samples` are pictures or folders of them.

        ModelRefused, or InvalidInput for a sample that cannot be used, leaves nothing behind.
        """
        pictures = model_samples.find(samples)
        if wish is not None and wish.is_any:
            return self._add_repaired(name, file, settings, pictures, wish)
        with self._examiner() as builder:
            admission = asyncio.run(admit(builder, file, settings, self.installed(), tuple(pictures.values())))
        files = {file.name: file, **{e.path: file.parent / e.path for e in admission.inspection.external}}
        with _using(self.repository.root.parent):
            # Copied after it was examined, by a path: only what was examined is taken in.
            digest = admission.inspection.digest
            self.repository.add(name, files, settings, samples=pictures, digest=digest)
        return admission.inspection, None

    def _add_repaired(
        self, name: str, file: Path, settings: Mapping[str, str], pictures: Mapping[str, Path], wish: Wish
    ) -> tuple[Inspection, Record]:
        check_name(name)
        root = self.repository.root
        with _using(root.parent):
            root.mkdir(parents=True, exist_ok=True, mode=0o750)
            # Beside the models, because that is where its bytes have to fit, and where a start removes what is left.
            with tempfile.TemporaryDirectory(prefix=".adding-", dir=root) as folder, self._examiner() as builder:
                repaired = self._repaired(file, Path(folder), settings, wish, tuple(pictures.values()), name)
                record = repaired.record
                examined = admit(builder, repaired.path, settings, self.installed(), tuple(pictures.values()))
                admission = asyncio.run(examined)
                kept = record if record.is_worth_keeping else None
                self.repository.add(name, repaired.files, settings, samples=pictures, move=True, record=kept)
        return admission.inspection, record

    def _repaired(
        self,
        file: Path,
        folder: Path,
        settings: Mapping[str, str],
        wish: Wish,
        samples: tuple[Path, ...] = (),
        name: str = "",
    ) -> Repaired:
        """A copy of the model in `folder`, repaired."""
        with self._examiner() as builder:
            inspection = asyncio.run(builder.inspect(file))
        entry = self.repository.entries().get(name)
        if entry is not None:
            raise AlreadyExists(entry.already_there(inspection.digest))
        place = folder / file.name
        for relative in ("", *(each.path for each in inspection.external if not each.problem)):
            target = folder / relative if relative else place
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file.parent / relative if relative else file, target)
        source = str(file.absolute())
        return asyncio.run(repair(place, wish, settings, self.installed(), source=source, samples=samples))

    def examine(self, file: Path, settings: Mapping[str, str], samples: Sequence[Path] = ()) -> Admission:
        """Everything about a model file, and which backends take it. `samples` as those of `add`."""
        given = tuple(model_samples.find(samples).values())
        with self._examiner() as builder:
            return asyncio.run(examine(builder, file, settings, self.installed(), given))

    def examine_repaired(
        self, file: Path, settings: Mapping[str, str], wish: Wish, samples: Sequence[Path] = ()
    ) -> tuple[Admission, Record]:
        """What the repairs would make of a model file, and which backends take that. The file stays as it is, and
        nothing is kept."""
        with tempfile.TemporaryDirectory(prefix="edged-") as folder:
            given = tuple(model_samples.find(samples).values())
            repaired = self._repaired(file, Path(folder), settings, wish, given)
            return self.examine(repaired.path, settings, samples), repaired.record

    def remove(self, name: str, *, delete: bool) -> str:
        """Takes a model out of the folder of models. Where its files lie now; empty with `delete`."""
        with _using(self.repository.root.parent):
            return str(self.repository.remove(name, delete=delete) or "")

    def plans(self) -> dict[str, PlannedModel]:
        """What every model of the repository should have on this box."""
        return asyncio.run(offline.plans(self.repository, self._store, self._builder, self._planner))

    def models(self) -> list[ModelInfo]:
        """Models as `edged models list` shows them."""
        return [model_info(name, planned) for name, planned in sorted(self.plans().items())]

    def engines(self, model: str) -> list[EngineInfo]:
        """Engines as `edged engines list` shows them."""
        return report.engines(self.plans(), self._store, model)

    def explain(self, model: str) -> list[Explanation]:
        """Why the engines of a model are there or not."""
        planned = self.plans().get(model)
        if planned is None:
            raise ModelNotFound(f"there is no model {model!r} in {self.repository.root}")
        if planned.problem is not None:
            raise planned.problem
        return report.explain(planned, self._store)

    def model(self, named: str, assignments: Sequence[str] = ()) -> Model:
        """A model of the repository by its name, or an ONNX file by its path, with settings `KEY=VALUE` on top.

        NotFound where it is neither, ModelRefused or ConfigError where it cannot be served.
        """
        entry = self.repository.entries().get(named)
        if entry is None and not Path(named).is_file():
            raise ModelNotFound(f"there is no model {named!r} in {self.repository.root}, and no such file")
        entry = entry or plain_entry(Path(named).stem, Path(named).absolute(), {})
        given = settings.parse_assignments(assignments)
        settings.validate(given)
        entry = msgspec.structs.replace(entry, settings={**entry.settings, **given})
        with self._examiner() as builder:
            return Model.of(entry, asyncio.run(builder.inspect(Path(entry.path))))

    async def build_ahead(self, model: Model, engine: DesiredEngine, on: Target, tell: OnProgress) -> EngineRecord:
        """Builds an engine for a device that this box does not have, into this box's store."""

        async def as_much_as_there_is(need: int) -> int:
            return 0

        task = Task(model, engine.recipe, engine.key)
        with _using(self._cache):
            builder = Builder(self._store, self._cache, Limits())  # as patient as a daemon
            return await builder.make_ahead(task, on.name, on.capability, tell, as_much_as_there_is)

    @functools.cached_property
    def _store(self) -> Store:
        with _using(self._cache):
            self._cache.mkdir(parents=True, exist_ok=True, mode=0o750)  # a store makes do without one: here it is named
            return Store(self._cache)

    @functools.cached_property
    def _planner(self) -> Planner:
        return Planner(self._store, self.fingerprint, Engines())

    @functools.cached_property
    def _builder(self) -> Builder:
        with _using(self._cache):
            return Builder(self._store, self._cache, _LIMITS, self._admission)

    @contextlib.contextmanager
    def _examiner(self) -> Iterator[Builder]:
        """For reading a model file, which needs no cache: where there can be none, a folder of its own will do."""
        try:
            builder = self._builder
        except EdgedError:
            with tempfile.TemporaryDirectory(prefix="edged-") as folder:
                yield Builder(Store(Path(folder)), Path(folder), _LIMITS, self._admission)
        else:
            yield builder

    def installed(self) -> tuple[str, ...]:
        """The backends whose runtimes this box has, and a device for."""
        return registry.installed(self.fingerprint.facts)

    def present(self) -> tuple[str, ...]:
        """The backends whose runtimes this box has, be it for other devices."""
        return registry.present(self.fingerprint.facts)


@contextlib.contextmanager
def _using(folder: Path) -> Iterator[None]:
    """What the system refuses inside is told of the folder that was named, not of what is kept in it."""
    try:
        yield
    except OSError as error:
        raise EdgedError(common.refused_by_system(error, folder)) from error


def model_info(name: str, planned: PlannedModel) -> ModelInfo:
    """A model as the disk has it: no daemon serves it."""
    model = planned.model
    signature = model.inspection.signature if model else None
    found = Reason.of(planned.problem)
    return ModelInfo(
        name=name,
        version=planned.entry.version,
        digest=model.digest if model else "",
        state="refused" if planned.problem else "stored",
        reason=str(planned.problem or ""),
        family=(model.recognition.family or "") if model else "",
        engine="",
        backend="",
        inputs=tuple(TensorInfo(s.name, s.datatype, s.dims) for s in signature.inputs) if signature else (),
        outputs=tuple(TensorInfo(s.name, s.datatype, s.dims) for s in signature.outputs) if signature else (),
        settings=planned.entry.settings,
        swaps=0,
        notes=model.notes if model else (),
        shapes=report.shape_report(planned),
        repair=model.repair if model else None,
        category=found.category,
        stage=found.stage,
    )
