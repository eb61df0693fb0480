"""The pipelines of the configuration: the slots that their steps use now, and whether they are ready.

Models come and go, so the models of a pipeline are looked up by name for each frame. A pipeline whose model does not
exist yet is not ready, and becomes ready with the model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial

from edged.api_types import PipelineInfo
from edged.config import Health, Pipeline
from edged.engines.plan import PlannedModel
from edged.engines.readiness import Readiness, ReadyState, readiness
from edged.errors import EdgedError, InvalidInput, NotFound, NotReady
from edged.serving.pipeline_slot import PipelineCounts, PipelineRule, PipelineSlot, Steps
from edged.vision.crops import CropRule

_READY = Readiness(ReadyState.READY)


class Pipelines:
    """Finds the slot of a pipeline by the name of the pipeline."""

    def __init__(
        self, models: Collection[str], find: Callable[[str], PlannedModel], ensembles: Collection[str] = ()
    ) -> None:
        """`models` and `ensembles` always contain the current names of all models and ensembles. `find` returns the
        plan of the model NAME or NAME:VERSION. It raises NotFound, NotReady, or InvalidInput (for example for an
        ensemble)."""
        self._models, self._ensembles, self._find = models, ensembles, find
        self._wanted: Mapping[str, Pipeline] = {}
        self._slots: dict[str, PipelineSlot] = {}
        self._counts: dict[str, PipelineCounts] = {}

    def reconfigure(self, wanted: Mapping[str, Pipeline]) -> None:
        """Replace the pipelines. A frame that is already in a pipeline finishes with the old pipeline. The counts of a
        pipeline continue."""
        changed = {name for name in self._slots if wanted.get(name) != self._wanted.get(name)}
        self._slots = {name: slot for name, slot in self._slots.items() if name not in changed}
        self._counts = {name: self._counts.get(name) or PipelineCounts() for name in wanted}
        for name, pipeline in wanted.items():
            if name not in self._slots:
                rule = rule_of(pipeline)
                self._slots[name] = PipelineSlot(name, rule, partial(self._steps, name, rule), self._counts[name])
        self._wanted = dict(wanted)

    @property
    def counts(self) -> Mapping[str, PipelineCounts]:
        """A mapping from each pipeline to its counts of frames and crops."""
        return self._counts

    def find(self, name: str) -> PipelineSlot | None:
        """Return the slot of a pipeline; None if no pipeline has this name, or if a model has the same name."""
        return None if self._is_taken(name) else self._slots.get(name)

    def detector(self, name: str) -> str:
        """Return the first model of a pipeline; `name` itself if no pipeline has this name."""
        slot = self.find(name)
        return name if slot is None else slot.rule.detect

    def readiness(self, health: Health) -> dict[str, Readiness]:
        """Return the readiness of each pipeline: ready, or the state of its first step that is not ready."""
        return {name: self._readiness(name, health) for name in self._wanted}

    def _is_taken(self, name: str) -> bool:
        return name in self._models or name in self._ensembles

    def _readiness(self, name: str, health: Health) -> Readiness:
        if self._is_taken(name):
            return Readiness(ReadyState.REFUSED, "a model has the same name; rename the pipeline")
        try:
            models = self._able(self._slots[name].rule)
        except EdgedError as error:
            state = ReadyState.REFUSED if isinstance(error, InvalidInput) else ReadyState.LOADING
            return Readiness(state, str(error))
        for model in models:
            found = readiness(model, health)
            if not found.is_ready:
                return Readiness(found.state, f"model {model.entry.name!r}: {found.reason}")
        return _READY

    def report(self, health: Health) -> list[PipelineInfo]:
        """Report all pipelines, sorted by name."""
        return [self._info(name, pipeline, health) for name, pipeline in sorted(self._wanted.items())]

    def _info(self, name: str, pipeline: Pipeline, health: Health) -> PipelineInfo:
        counts, ready = self._counts[name], self._readiness(name, health)
        return PipelineInfo(
            name=name,
            detect=pipeline.detect,
            then=pipeline.then,
            crop=pipeline.crop,
            margin=pipeline.margin,
            classes=pipeline.classes,
            most=pipeline.most,
            state=ready.state.value,
            reason=ready.reason,
            answered=counts.answered,
            failed=counts.failed,
            crops_answered=counts.crops_answered,
            crops_failed=counts.crops_failed,
            crops_left_out=counts.crops_left_out,
        )

    def _steps(self, name: str, rule: PipelineRule) -> Steps:
        """Return the slots of a pipeline's two models. Raises NotReady or InvalidInput if the pipeline cannot answer
        frames."""
        try:
            detect, then = self._able(rule)
        except EdgedError as error:
            raise type(error)(f"pipeline {name!r} is not ready: {error}") from None
        return Steps(detect.slot, then.slot)

    def _able(self, rule: PipelineRule) -> tuple[PlannedModel, PlannedModel]:
        """Return the two models of a pipeline. Raises NotReady if a model does not exist, and InvalidInput if a model
        cannot do its step."""
        detect, then = self._model(rule.detect), self._model(rule.then)
        if problem := detect_problem(detect) or then_problem(then):
            raise InvalidInput(problem)
        return detect, then

    def _model(self, name: str) -> PlannedModel:
        try:
            return self._find(name)
        except NotFound:
            raise NotReady(f"no model {name!r}; add it: edged models add {name} FILE") from None


def rule_of(pipeline: Pipeline) -> PipelineRule:
    """Convert a configured pipeline to the rule that the slot of the pipeline applies."""
    crops = CropRule(frozenset(pipeline.classes), pipeline.most, pipeline.margin, pipeline.crop == "corners")
    return PipelineRule(pipeline.detect, pipeline.then, crops)


def detect_problem(planned: PlannedModel) -> str:
    """Return why a model cannot be the first step; empty if it can, or if edged has not read the model yet."""
    model, name = planned.answering, planned.entry.name
    if model is None:
        return ""
    recognition = model.recognition
    if recognition.preprocess is None:
        return f"model {name!r} takes no pictures ({recognition.picture}); set 'detect' to a detector"
    if recognition.family is None:
        return f"the family of model {name!r} is unknown ({recognition.reason}); set its 'family', or change 'detect'"
    if not recognition.gives_boxes:
        return f"model {name!r} ({recognition.family}) gives no boxes; set 'detect' to a detector"
    return ""


def then_problem(planned: PlannedModel) -> str:
    """Return why a model cannot be the second step; empty if it can, or if edged has not read the model yet."""
    model, name = planned.answering, planned.entry.name
    if model is None:
        return ""
    recognition = model.recognition
    if recognition.preprocess is None:
        return f"model {name!r} takes no pictures ({recognition.picture}); set 'then' to a model that takes pictures"
    if recognition.family is None:
        return f"the family of model {name!r} is unknown ({recognition.reason}); set its 'family', or change 'then'"
    return ""
