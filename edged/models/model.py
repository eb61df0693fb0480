"""A model that can be served: its files, its inspection, and its recognition."""

from __future__ import annotations

import msgspec

from edged.backends.artefact import Artefact
from edged.backends.contract import ONE_INSTANCE, Effort, Order, Parallelism, Recipe, Signature
from edged.backends.profile import Profile
from edged.errors import ConfigError, ModelRefused, Unsuitable
from edged.models import language, limits, sequencing, shapes, triton_check, triton_config
from edged.models.collected import Collected
from edged.models.entries import ModelEntry
from edged.models.inspection import Inspection
from edged.models.repair import Record
from edged.models.samples import content, is_tensors
from edged.models.triton_config import TritonConfig
from edged.vision.family import RAW, Recognition, recognise


class Model(msgspec.Struct, frozen=True):
    """An inspected model with its settings applied.

    `recognition` says how pictures are prepared and outputs decoded. `learnt` is the range of shapes learnt from
    requests, which is wider than `configured_profile`; empty if none was learnt. `contents` maps the path of each
    sample of the model to the sample's digest, so that edged can choose engines without reading the disk. If `contents`
    is None, samples are read when needed. `batch_gain` is the speed per row in a batch, divided by the speed of single
    rows; 0 if rows are not independent, or if this was not measured. `collected` has the frames that were collected
    from live cameras for the model (see `Collected.of`), or is None.
    """

    entry: ModelEntry
    inspection: Inspection
    recognition: Recognition
    learnt: Profile = Profile()
    contents: dict[str, str] | None = None
    batch_gain: float = 0.0
    collected: Collected | None = None

    @classmethod
    def of(cls, entry: ModelEntry, inspection: Inspection, recognition: Recognition | None = None) -> Model:
        """Combine entry and inspection. `recognition` is the result of a family (a decoder of outputs) from another
        package; None if only edged's own families may decode the model.

        Raises ConfigError if settings or config.pbtxt do not match the model, ModelRefused if no engine can serve it.
        """
        if entry.problem:
            raise ConfigError(entry.problem)
        if wrong := next((key for key in entry.settings if key.startswith(language.PREFIX)), ""):
            raise ConfigError(f"setting {wrong} is only for language models; remove it")
        if inspection.finding is not None:
            raise inspection.finding.refusal()
        signature = inspection.signature
        if not signature.outputs:
            raise ModelRefused(f"model {entry.name} has no outputs; export it again")
        if entry.triton is not None:
            triton_check.check(entry.triton, signature, inspection.optional)
        recognition = recognition or recognise(
            signature.inputs,
            signature.outputs,
            inspection.metadata,
            entry.settings,
            inspection.operators,
            inspection.heads,
        )
        model = cls(entry, inspection, recognition)
        _ = model.sequencing  # raises if the tensors do not match
        try:
            _ = model.configured_profile
        except Unsuitable as error:  # only some engines need a range of shapes, and these report the error
            if model.shape_policy.kind == "refuse":
                raise ConfigError(f"setting {shapes.POLICY}=refuse needs a range of shapes: {error}") from error
        return model

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def digest(self) -> str:
        return self.inspection.digest

    @property
    def triton(self) -> TritonConfig:
        """The content of the model's config.pbtxt; the default values if the file is missing."""
        return self.entry.triton or TritonConfig()

    @property
    def declared(self) -> Signature:
        """Inputs and outputs as clients see them: config.pbtxt may fix dimensions that the ONNX file leaves open."""
        return triton_check.declared(self.triton, self.inspection.signature)

    @property
    def defaults(self) -> frozenset[str]:
        """Names of the inputs that a request may leave out."""
        return frozenset(spec.name for spec in self.inspection.optional)

    @property
    def max_batch_size(self) -> int:
        """The largest number of rows in a tensor request; 0 without a batch dimension."""
        about = self.inspection.signature, self.entry.settings, self.triton
        return triton_check.max_batch_size(*about, is_independent=self.is_batch_completed)

    @property
    def may_complete_batch(self) -> bool:
        """Whether the model can have a batch dimension although neither settings nor config.pbtxt mention one."""
        if self.sequencing is not None or self.is_decoupled or self.inspection.optional:
            return False
        if self.recognition.reading.constants:  # these inputs have a row for each prompt, not for each picture
            return False
        return triton_check.may_be_completed(self.inspection.signature, self.entry.settings, self.triton)

    @property
    def is_batch_completed(self) -> bool:
        """Whether a measurement found a batch dimension that neither settings nor config.pbtxt mention."""
        return self.batch_gain > 0 and self.may_complete_batch

    @property
    def sequencing(self) -> sequencing.Sequencing | None:
        """The model's states and controls in sequences of requests; None if the model is stateless."""
        return sequencing.sequencing(self.declared, self.entry.settings, self.triton.sequence)

    @property
    def is_decoupled(self) -> bool:
        """Whether each row of a request's outputs is sent as a separate response."""
        return sequencing.is_decoupled(self.entry.settings, self.triton.decoupled)

    @property
    def repair(self) -> Record | None:
        """The record of the model's repair; None if the model was not repaired, or if its file was replaced since."""
        record = self.entry.repair
        return record if record is not None and record.digest == self.digest else None

    @property
    def notes(self) -> tuple[str, ...]:
        """A line for each field of config.pbtxt without effect, for each TOML file that is not read, for a setting
        `family` that is ignored because raw tensors are served, and for a `batch.max` without effect."""
        is_asked = self.entry.settings.get("family", RAW) != RAW and self.recognition.family is None
        refused = (
            (f"setting 'family' is not used; raw tensors are served: {self.recognition.reason}",) if is_asked else ()
        )
        batch = triton_check.unused_batch(self.inspection.signature, self.entry.settings, self.triton)
        unused = (f"{triton_config.FILE}: {line}" for line in self.triton.unused)
        return (*unused, *self.entry.unread, *refused, *filter(None, (batch,)))

    @property
    def picture(self) -> tuple[int, int] | None:
        """Width and height of the model's pictures, in pixels; None if it takes no pictures."""
        preprocess = self.recognition.preprocess
        return (preprocess.width, preprocess.height) if preprocess else None

    @property
    def shape_policy(self) -> shapes.ShapePolicy:
        """The policy for requests outside the range that engines are built for."""
        return shapes.policy(self.entry.settings)

    @property
    def configured_profile(self) -> Profile:
        """The range of shapes from settings and picture size. Raises Unsuitable if these do not determine a range."""
        exact = self.recognition.reading.exact
        return Profile.of(self.inspection.signature, self.entry.settings, self.picture, exact)

    @property
    def profile(self) -> Profile:
        """The range of shapes that engines are built for. Raises Unsuitable if no range is known."""
        return self.learnt if self.learnt.ranges else self.configured_profile

    @property
    def bounds(self) -> Profile:
        """The range of shapes outside which requests are refused; empty unless the shape policy is `refuse`."""
        return self.profile if self.shape_policy.kind == "refuse" else Profile()

    @property
    def limits(self) -> limits.Bounds:
        """The limits of time and output size for one request."""
        return limits.bounds(self.name, self.entry.settings)

    @property
    def is_static(self) -> bool:
        """Whether all inputs have fixed shapes."""
        return all(spec.is_static for spec in self.inspection.signature.inputs)

    @property
    def samples(self) -> tuple[str, ...]:
        """Paths of the user's samples for verification: tensors, and pictures if the model takes pictures."""
        given = self.entry.samples
        return given if self.recognition.preprocess else tuple(path for path in given if is_tensors(path))

    def content(self, sample: str) -> str:
        """Return the digest of a sample's content. Reads the disk if `contents` does not have the sample."""
        return (self.contents or {}).get(sample) or content(sample)

    def with_contents(self) -> Model:
        """Return this model with the current contents of its samples. Reads the disk."""
        return msgspec.structs.replace(self, contents={path: content(path) for path in self.samples})

    def order(
        self,
        recipe: Recipe,
        artefact: Artefact | None = None,
        effort: Effort = "full",
        parallelism: Parallelism = ONE_INSTANCE,
    ) -> Order:
        """Return the `Order` with which one of the model's engines is built or opened. `artefact` is None if the engine
        is not built yet."""
        external = tuple(file.path for file in self.inspection.external)
        return Order(
            self.entry.path,
            self.inspection.signature,
            recipe,
            artefact,
            external,
            self.digest,
            effort,
            parallelism=parallelism,
        )
