"""Ensembles: models that pass tensors through other models. They have no engine; the models of their steps have
engines.

An ensemble has no state. Each request and each report looks at the models of the steps to find out whether the ensemble
can be served. The result is cached while the same models answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from edged.backends.contract import Signature
from edged.config import Health
from edged.engines.plan import PlannedModel
from edged.engines.readiness import Readiness, ReadyState, readiness
from edged.errors import ConfigError, InvalidInput, NotFound, NotReady
from edged.models import ensemble
from edged.models.ensemble import Part, Port
from edged.models.entries import SETTINGS_FILE, ModelEntry, versioned_name
from edged.models.model import Model
from edged.models.triton_config import FILE, VERSIONS, Step, TritonConfig
from edged.serving.ensemble_run import Budget
from edged.serving.statistics import Statistics
from edged.tensors import ANY_SHAPE, TensorSpec

# Finds the model of a step by its name and version. Raises NotFound, NotReady, or InvalidInput for an ensemble.
FindPart: TypeAlias = "Callable[[str, str], PlannedModel]"


class BoundStep(msgspec.Struct, frozen=True):
    """A step with the model that answers it now, and a mapping from the names of that model's inputs to their ports."""

    step: Step
    planned: PlannedModel
    inputs: dict[str, Port]


class BoundEnsemble(msgspec.Struct, frozen=True):
    """An ensemble whose models fit together. `signature` has the required inputs and the outputs, `optional` the inputs
    that requests may leave out; all shapes include the batch dimension. `inputs` are the names of all inputs, `outputs`
    maps the name of an output to its port. `labels` maps a tensor (between steps, or an output) to its class names."""

    entry: ModelEntry
    signature: Signature
    optional: tuple[TensorSpec, ...]
    inputs: frozenset[str]
    outputs: dict[str, Port]
    max_batch_size: int
    steps: tuple[BoundStep, ...]
    labels: dict[str, tuple[str, ...]]


class PlannedEnsemble:
    """One version of an ensemble. `memory` limits the memory of its requests."""

    def __init__(self, entry: ModelEntry, find: FindPart) -> None:
        self.entry = entry
        self.statistics, self.memory = Statistics(), Budget()
        self._find = find
        self._bound: tuple[list[Model], BoundEnsemble | str] | None = None

    @property
    def version(self) -> str:
        return self.entry.version

    @property
    def config(self) -> TritonConfig:
        return self.entry.triton or TritonConfig()

    @property
    def part_names(self) -> tuple[str, ...]:
        """The models of its steps, each once: NAME, or NAME:VERSION if a step names the version."""
        names = (versioned_name(s.model, s.version) if s.version else s.model for s in self.entry.steps)
        return tuple(dict.fromkeys(names))

    @property
    def notes(self) -> tuple[str, ...]:
        """A line for each field of config.pbtxt that has no effect, and for each setting that has no effect."""
        settings = (name for name in self.entry.settings if name != VERSIONS)
        return (
            *(f"{FILE}: {line}" for line in self.config.unused),
            *self.entry.unread,
            *(f"{SETTINGS_FILE}: setting {name!r} has no effect on an ensemble" for name in settings),
        )

    def parts(self) -> list[PlannedModel] | str:
        """Return the model of each step, or why the ensemble cannot be served. The ensemble cannot be served if its
        configuration is invalid, or if a model does not exist or cannot be in an ensemble."""
        if self.entry.problem:
            return self.entry.problem
        try:
            return [self._find(step.model, step.version) for step in self.entry.steps]
        except (NotFound, InvalidInput, NotReady) as error:
            return str(error)

    def bound(self) -> BoundEnsemble | str:
        """Return the ensemble with the models that answer now, or why it cannot be served."""
        found = self.parts()
        if isinstance(found, str):
            return found
        models = list[Model]()
        for planned in found:
            if (model := planned.answering) is None:
                return f"model {planned.entry.name!r}: {planned.problem or 'it is being read'}"
            models.append(model)
        known = self._bound
        if known is None or not all(a is b for a, b in zip(known[0], models, strict=True)):
            known = self._bound = models, self._bind(found, models)
        return known[1]

    def require_bound(self) -> BoundEnsemble:
        """Return the ensemble with the models that answer now. Raises NotReady if it cannot be served."""
        found = self.bound()
        if isinstance(found, str):
            raise NotReady(f"ensemble {self.entry.name!r} cannot be served: {found}")
        return found

    def _bind(self, found: list[PlannedModel], models: list[Model]) -> BoundEnsemble | str:
        config, parts = self.config, [part_of(model) for model in models]
        try:
            ensemble.check_parts(config, parts)
        except ConfigError as error:
            return f"{FILE}: {error}"
        steps = tuple(
            BoundStep(step, planned, {port.name: port for port in part.inputs})
            for step, planned, part in zip(self.entry.steps, found, parts, strict=True)
        )
        inputs = ensemble.ports(config.inputs, config.max_batch_size)
        outputs = ensemble.ports(config.outputs, config.max_batch_size)
        required = [port for port in inputs if not port.is_optional]
        return BoundEnsemble(
            self.entry,
            Signature(ensemble.specs(required), ensemble.specs(outputs)),
            ensemble.specs(port for port in inputs if port.is_optional),
            frozenset(port.name for port in inputs),
            {port.name: port for port in outputs},
            config.max_batch_size,
            steps,
            self._labels(models),
        )

    def _labels(self, models: list[Model]) -> dict[str, tuple[str, ...]]:
        """Return a mapping from each tensor to its class names. If the ensemble has no names for a tensor, use the
        names of the model that produces the tensor."""
        found = dict(self.entry.labels)
        for step, model in zip(self.entry.steps, models, strict=True):
            for name, tensor in step.outputs.items():
                found.setdefault(tensor, model.entry.labels.get(name, tuple(model.recognition.names)))
        return found


def part_of(model: Model) -> Part:
    """Return the tensors and the batch size of a model, and why the model cannot be in an ensemble (see `Part`). Inputs
    with a default have no batch dimension."""
    declared, rows = model.declared, model.max_batch_size
    unfit = ""
    if model.is_decoupled:
        unfit = "the model gives any number of responses to a request; an ensemble does not support such a model"
    elif model.sequencing is not None and model.sequencing.declared:
        unfit = "the model needs sequences of requests; an ensemble does not support them; call the model by itself"
    optional = (msgspec.structs.replace(_port(spec, 0), is_optional=True) for spec in model.inspection.optional)
    return Part(
        (*(_port(spec, rows) for spec in declared.inputs), *optional),
        tuple(_port(spec, rows) for spec in declared.outputs),
        rows,
        unfit,
    )


def _port(spec: TensorSpec, rows: int) -> Port:
    if spec.shape == ANY_SHAPE:
        return Port(spec.name, spec.datatype, None, rows > 0)
    return Port(spec.name, spec.datatype, spec.dims[1:] if rows else spec.dims, rows > 0)


# The states other than READY, the worst first. An ensemble gets the worst state of its models.
_WORST = (ReadyState.REFUSED, ReadyState.FAILING, ReadyState.LOADING, ReadyState.UNPROVEN)


def ensemble_readiness(planned: PlannedEnsemble, settings: Health) -> Readiness:
    """Return the readiness of an ensemble: it is ready if all its models are ready and fit together."""
    parts = planned.parts()
    if isinstance(parts, str):
        return Readiness(ReadyState.REFUSED, parts)
    found = {part.entry.name: readiness(part, settings) for part in parts}
    for state in _WORST:
        for name, of_part in found.items():
            if of_part.state is state:
                return Readiness(state, f"model {name!r} is not ready: {of_part.reason}")
    bound = planned.bound()
    return Readiness(ReadyState.REFUSED, bound) if isinstance(bound, str) else Readiness(ReadyState.READY)
