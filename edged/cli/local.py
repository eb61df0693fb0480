"""Works on this box's models and engines on disk, for commands without a daemon."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from edged import paths
from edged.api_types import EngineInfo, Explanation, ModelInfo
from edged.backends import registry
from edged.cli import common
from edged.config import Engines, Health
from edged.config.child_limits import AdmissionLimits, Limits, admission_limits
from edged.device.fingerprint import probe
from edged.engines import offline, report
from edged.engines.admission import Admission, FamilyComparison, admit, examine, try_families
from edged.engines.builder import Builder, OnProgress, Task, no_limit
from edged.engines.desired import DesiredEngine
from edged.engines.ensembles import PlannedEnsemble
from edged.engines.offline import Target
from edged.engines.plan import PlannedModel, Planner
from edged.engines.readiness import Readiness, ReadyState
from edged.engines.repairer import Repaired, repair
from edged.errors import AlreadyExists, EdgedError, ModelNotFound
from edged.models import collected, language
from edged.models import samples as model_samples
from edged.models.entries import ModelEntry, check_name, plain_entry
from edged.models.model import Model
from edged.models.repair import Record, RepairOptions
from edged.models.repository import Repository
from edged.models.settings import merge, parse_assignments, validate
from edged.store.record import EngineRecord
from edged.store.store import Store

_LIMITS = Limits(seconds=600)


class LocalBox:
    """Reads and changes this box's folders for models and engines, as a daemon with the same settings does."""

    def __init__(
        self,
        state: Path | None = None,
        cache: Path | None = None,
        admission: AdmissionLimits | None = None,
        families: Iterable[str] = (),
    ) -> None:
        """`admission` limits the examination of models; by default the limits come from the environment. `families` are
        the families of other packages that models may use."""
        self._admission, self.families = admission or admission_limits(), tuple(families)
        self.repository = Repository((state or paths.default_state_dir()) / "models")
        self._cache = cache or paths.default_cache_dir()
        self.fingerprint = probe()

    def add(
        self,
        name: str,
        file: Path,
        settings: Mapping[str, str],
        samples: Sequence[Path] = (),
        options: RepairOptions | None = None,
        *,
        replace: bool = False,
    ) -> tuple[str, Record | None]:
        """Examine a model, repair it if requested, and add it with its external data. Return its digest, and the
        repairs if any were requested.

        `samples` are files with samples, or folders of them. With `replace`, a model of the same name is replaced, and
        its settings that are not given here are kept. Raises ModelRefused if the model cannot be served, InvalidInput
        for an unusable sample; the repository is then unchanged.
        """
        pictures = model_samples.find(samples)
        there = self.repository.entries().get(name) if replace else None
        if there is not None:
            there.require_file()
            settings = merge(there.settings, settings)
        if (main := language.main_file(file)) is not None:
            return self._add_language(name, main, settings, replace), None
        if options is not None and options.is_any:
            return self._add_repaired(name, file, settings, pictures, options, replace)
        with self._examiner() as builder:
            admission = asyncio.run(admit(builder, file, settings, self.installed(), tuple(pictures.values())))
        files = {file.name: file, **{e.path: file.parent / e.path for e in admission.inspection.external}}
        with _using(self.repository.root.parent):
            # The file is copied after the examination; the digest proves that the copied file is the examined one.
            digest = admission.inspection.digest
            self.repository.add(name, files, settings, samples=pictures, digest=digest, replace=replace)
        return digest, None

    def _add_language(self, name: str, main: Path, settings: Mapping[str, str], replace: bool) -> str:
        """Examine a language model, and add a copy of its files. Return its digest."""
        language.check(main, settings)
        others = [each for each in language.files(main) if each != main]
        files = {str(each.relative_to(main.parent)): each for each in (main, *others)}
        digest = language.digest(main)
        with _using(self.repository.root.parent):
            self.repository.add(name, files, settings, digest=digest, replace=replace)
        return digest

    def change(self, name: str, changes: Mapping[str, str]) -> dict[str, str]:
        """Examine a model with changed settings, store the settings, and return all settings of the model. Raises
        ModelNotFound, or ModelRefused if the model cannot be served with these settings."""
        there = self.repository.entries().get(name)
        if there is None:
            raise ModelNotFound(f"no model {name!r} in {self.repository.root}")
        there.require_file()
        settings = merge(there.settings, changes)
        validate(settings)
        if there.is_language:
            language.check(Path(there.path), settings)
            with _using(self.repository.root.parent):
                self.repository.change(name, settings)
            return settings
        with self._examiner() as builder:
            samples = tuple(map(Path, there.samples))
            asyncio.run(admit(builder, Path(there.path), settings, self.installed(), samples))
        with _using(self.repository.root.parent):
            self.repository.change(name, settings)
        return settings

    def _add_repaired(
        self,
        name: str,
        file: Path,
        settings: Mapping[str, str],
        pictures: Mapping[str, Path],
        options: RepairOptions,
        replace: bool,
    ) -> tuple[str, Record]:
        check_name(name)
        root = self.repository.root
        with _using(root.parent):
            root.mkdir(parents=True, exist_ok=True, mode=0o750)
            # On the disk of the models, so that `add` can move the files. The next start of a daemon removes leftovers.
            with tempfile.TemporaryDirectory(prefix=".adding-", dir=root) as folder, self._examiner() as builder:
                unique = "" if replace else name
                repaired = self._repaired(file, Path(folder), settings, options, tuple(pictures.values()), unique)
                record = repaired.record
                examined = admit(builder, repaired.path, settings, self.installed(), tuple(pictures.values()))
                admission = asyncio.run(examined)
                worthy = record if record.is_worth_keeping else None
                self.repository.add(
                    name, repaired.files, settings, samples=pictures, move=True, record=worthy, replace=replace
                )
        return admission.inspection.digest, record

    def _repaired(
        self,
        file: Path,
        folder: Path,
        settings: Mapping[str, str],
        options: RepairOptions,
        samples: tuple[Path, ...] = (),
        name: str = "",
    ) -> Repaired:
        """Copy the model into `folder` and repair the copy. Raises AlreadyExists if there is a model named `name`."""
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
        return asyncio.run(repair(place, options, settings, self.installed(), source=source, samples=samples))

    def examine(self, file: Path, settings: Mapping[str, str], samples: Sequence[Path] = ()) -> Admission:
        """Examine a model file on all backends. `samples` are as in `add`."""
        given = tuple(model_samples.find(samples).values())
        with self._examiner() as builder:
            return asyncio.run(examine(builder, file, settings, self.installed(), given))

    def try_families(
        self, file: Path, settings: Mapping[str, str], admission: Admission, picture: Path
    ) -> FamilyComparison:
        """Run an examined model on a picture with each family that accepts it. Raises the errors of
        `edged.engines.admission.try_families`."""
        with self._examiner() as builder:
            return asyncio.run(try_families(builder, admission, file, settings, picture))

    def examine_repaired(
        self, file: Path, settings: Mapping[str, str], options: RepairOptions, samples: Sequence[Path] = ()
    ) -> tuple[Admission, Record]:
        """Repair and examine a temporary copy of a model file."""
        with tempfile.TemporaryDirectory(prefix="edged-") as folder:
            given = tuple(model_samples.find(samples).values())
            repaired = self._repaired(file, Path(folder), settings, options, given)
            return self.examine(repaired.path, settings, samples), repaired.record

    def remove(self, name: str, *, delete: bool) -> str:
        """Remove a model from the repository. Return the folder to which its files were moved; an empty text with
        `delete`."""
        with _using(self.repository.root.parent):
            return str(self.repository.remove(name, delete=delete) or "")

    def restore(self, name: str) -> str:
        """Put back a model that was removed or replaced. Return an empty digest, since the model is not read."""
        with _using(self.repository.root.parent):
            self.repository.restore(name)
        return ""

    def plans(self) -> dict[str, PlannedModel]:
        """Return the planned engines of every model of the repository."""
        return asyncio.run(offline.plans(self.repository, self._builder, self._planner))

    def models(self) -> list[ModelInfo]:
        """Return the models for `edged models list`."""
        plans = self.plans()
        found = [_model_info(planned) for planned in plans.values()]
        entries = self.repository.entries().values()
        found += [ensemble_info(each) for each in offline.ensembles(entries, plans)]
        found += [language_info(each) for each in entries if each.is_language]
        return sorted(found, key=lambda info: info.name)

    def ensemble(self, folder: Path) -> ModelInfo | None:
        """Return a description of the ensemble in `folder`, whose models are in the folders next to it. Return None if
        the folder holds no ensemble."""
        repository = Repository(folder.absolute().parent)
        entries = repository.entries()
        entry = entries.get(folder.absolute().name)
        if entry is None or not entry.is_ensemble:
            return None
        needed = {step.model for step in entry.steps}
        with self._examiner() as builder:
            plans = asyncio.run(offline.read((each for each in entries.values() if each.model in needed), builder))
        (planned,) = offline.ensembles([entry], plans)
        return ensemble_info(planned)

    def engines(self, model: str) -> list[EngineInfo]:
        """Return the engines for `edged engines list`."""
        return report.engines(self.plans(), self._store, model)

    def explain(self, model: str) -> list[Explanation]:
        """Explain, for each engine that the model should have, why the engine exists or does not exist."""
        if (entry := self.repository.entries().get(model)) is not None:
            entry.require_file()
        planned = self.plans().get(model)
        if planned is None:
            raise ModelNotFound(f"no model {model!r} in {self.repository.root}")
        if planned.problem is not None:
            raise planned.problem
        return report.explain(planned, self._store)

    def model(self, named: str, assignments: Sequence[str] = ()) -> Model:
        """Return the repository's model with the name `named`. If the repository has no such model, return the model in
        the ONNX file `named`. `assignments` are additional settings `KEY=VALUE`.

        Raises ModelNotFound if neither exists, ModelRefused or ConfigError if the model cannot be served.
        """
        entry = self.repository.entries().get(named)
        if entry is None and not Path(named).is_file():
            raise ModelNotFound(f"no model {named!r} in {self.repository.root}, and no file {named!r}")
        entry = entry or plain_entry(Path(named).stem, Path(named).absolute(), {})
        entry.require_file()
        given = parse_assignments(assignments)
        validate(given)
        entry = msgspec.structs.replace(entry, settings={**entry.settings, **given})
        with self._examiner() as builder:
            return asyncio.run(_read(builder, entry))

    async def build_ahead(
        self, model: Model, engine: DesiredEngine, on: Target, on_progress: OnProgress
    ) -> EngineRecord:
        """Build an engine for another box's device and put it into this box's store."""
        task = Task(model, engine.recipe, engine.key)
        with _using(self._cache):
            builder = Builder(self._store, self._cache, Limits())  # the limits that a daemon has by default
            return await builder.make_ahead(task, on.name, on.capability, on_progress, no_limit)

    @functools.cached_property
    def _store(self) -> Store:
        with _using(self._cache):
            self._cache.mkdir(
                parents=True, exist_ok=True, mode=0o750
            )  # Store ignores a folder that cannot be made; here that is an error
            return Store(self._cache)

    @functools.cached_property
    def _planner(self) -> Planner:
        find = functools.partial(collected.find, self.repository.root.parent)
        return Planner(self._store, self.fingerprint, Engines(), collected=find)

    @functools.cached_property
    def _builder(self) -> Builder:
        with _using(self._cache):
            return Builder(self._store, self._cache, _LIMITS, self._admission, families=self.families)

    @contextlib.contextmanager
    def _examiner(self) -> Iterator[Builder]:
        """Yield a Builder that examines model files. It works in a temporary folder if the cache cannot be used."""
        try:
            builder = self._builder
        except EdgedError:
            with tempfile.TemporaryDirectory(prefix="edged-") as folder:
                yield Builder(Store(Path(folder)), Path(folder), _LIMITS, self._admission, families=self.families)
        else:
            yield builder

    def installed(self) -> tuple[str, ...]:
        """Return the backends that have a runtime and a device on this box."""
        return registry.usable(self.fingerprint.facts)

    def present(self) -> tuple[str, ...]:
        """Return the backends that have a runtime on this box."""
        return registry.installed(self.fingerprint.facts)


async def _read(builder: Builder, entry: ModelEntry) -> Model:
    return await builder.model(entry, await builder.inspect(Path(entry.path)))


@contextlib.contextmanager
def _using(folder: Path) -> Iterator[None]:
    """Convert an OSError to an EdgedError whose message names `folder`, not the file in the folder."""
    try:
        yield
    except OSError as error:
        raise EdgedError(common.refused_by_system(error, folder)) from error


def ensemble_info(planned: PlannedEnsemble) -> ModelInfo:
    """Describe an ensemble on disk that no daemon serves."""
    bound = planned.bound()
    why = bound if isinstance(bound, str) else ""
    info = report.ensemble(planned, (), Readiness(ReadyState.REFUSED, why))
    return msgspec.structs.replace(info, state="refused" if why else "stored")


def language_info(entry: ModelEntry) -> ModelInfo:
    """Describe a language model on disk that no daemon serves."""
    problem, family, digest = entry.problem, report.LANGUAGE, ""
    try:
        family = f"{report.LANGUAGE} ({language.examine(Path(entry.path)).kind})"
        digest = language.digest(Path(entry.path))
    except EdgedError as error:
        problem = problem or str(error)
    state = "refused" if problem else "stored"
    return ModelInfo(entry.name, entry.version, digest, state, problem, family, "", "", (), (), entry.settings, 0)


def _model_info(planned: PlannedModel) -> ModelInfo:
    """Describe a model on disk that no daemon serves."""
    info = report.model(planned, (), Health(), report.shape_report(planned))
    state = "refused" if planned.problem else "stored"
    return msgspec.structs.replace(info, state=state, reason=str(planned.problem or ""))
