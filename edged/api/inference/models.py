"""Models as the Open Inference Protocol describes them: readiness, metadata and configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import cast

from msgspec.structs import replace

from edged.api.grpc.rpc import Context
from edged.api.language import generate
from edged.engines.controller import Controller
from edged.engines.ensembles import BoundEnsemble, PlannedEnsemble
from edged.engines.plan import PlannedModel
from edged.errors import InvalidInput, NotFound, NotReady
from edged.language.model import LanguageState
from edged.models import triton_config
from edged.models.entries import ModelEntry
from edged.models.model import Model
from edged.models.triton_config import Control, QueuePolicy, SequenceBatching, VersionPolicy
from edged.proto import model_config_pb2 as config_pb
from edged.proto import open_inference_pb2 as pb
from edged.serving.schedule import TensorBatching
from edged.tensors import TensorSpec
from edged.version import __version__


def find(controller: Controller, name: str, version: str = "") -> PlannedModel | PlannedEnsemble:
    """Return the plan of a model or ensemble, or of one version. Raises InvalidInput or NotFound, or NotReady if the
    version is not loaded."""
    if not name:
        raise InvalidInput("the request names no model; set the model's name")
    return controller.find_any(name, version)


async def loaded(planned: PlannedModel) -> Model:
    """Return the model that answers requests. If the model is being read for the first time, wait for that. Raises
    NotReady if the model cannot be served."""
    await _read(planned)
    answering = planned.answering
    if answering is None:
        reason = planned.problem or "it was removed"
        raise NotReady(f"model {planned.entry.name!r} cannot be served: {reason}")
    return answering


async def loaded_ensemble(planned: PlannedEnsemble) -> BoundEnsemble:
    """Return the ensemble that answers requests. If one of its models is being read for the first time, wait for that.
    Raises NotReady if the ensemble cannot be served."""
    parts = planned.parts()
    for part in () if isinstance(parts, str) else parts:
        await _read(part)
    return planned.require_bound()


async def _read(planned: PlannedModel) -> None:
    while planned.answering is None and planned.reading is not None and not planned.reading.done():
        await asyncio.wait([planned.reading])


EXTENSIONS = (
    "model_configuration",
    "model_repository",
    "model_repository(unload_dependents)",
    "binary_tensor_data",
    "classification",
    "parameters",
    "schedule_policy",
    "sequence",
    "system_shared_memory",
    "statistics",
    "trace",
    "logging",
)


class ConfigurationHandlers:
    """Answers calls about readiness, metadata and configuration of a controller's models."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def model_ready(self, request: pb.ModelReadyRequest, context: Context) -> pb.ModelReadyResponse:
        """Return whether the model is ready: false while requests would have to wait. An unknown model is not ready, as
        in Triton. Raises NotReady for a model that exists but cannot be served, since some clients look only at the
        status."""
        try:
            language = self._controller.language.find(request.name, request.version)
            if language is not None:
                return pb.ModelReadyResponse(ready=language.state is LanguageState.READY)
            planned = find(self._controller, request.name, request.version)
        except NotFound:
            return pb.ModelReadyResponse(ready=False)
        found = self._controller.readiness(planned)
        if not found.can_serve:
            raise NotReady(f"model {request.name!r} is not ready: {found.reason}")
        return pb.ModelReadyResponse(ready=found.is_ready)

    async def server_metadata(self, request: pb.ServerMetadataRequest, context: Context) -> pb.ServerMetadataResponse:
        return pb.ServerMetadataResponse(name="edged", version=__version__, extensions=EXTENSIONS)

    async def model_metadata(self, request: pb.ModelMetadataRequest, context: Context) -> pb.ModelMetadataResponse:
        if (language := self._controller.language.find(request.name, request.version)) is not None:
            return pb.ModelMetadataResponse(
                name=language.entry.model,
                versions=self._controller.language.versions(language.entry.model),
                platform=generate.PLATFORM,
                inputs=_tensors(generate.INPUTS),
                outputs=_tensors(generate.OUTPUTS),
            )
        planned = find(self._controller, request.name, request.version)
        if isinstance(planned, PlannedEnsemble):
            bound = await loaded_ensemble(planned)
            same = self._controller.catalogue.ensembles_of(planned.entry.model)
            return pb.ModelMetadataResponse(
                name=planned.entry.model,
                versions=sorted((each.version for each in same), key=int),
                platform=ENSEMBLE,
                inputs=_tensors((*bound.signature.inputs, *bound.optional)),
                outputs=_tensors(bound.signature.outputs),
            )
        model = await loaded(planned)
        versions = self._controller.catalogue.versions(model.entry.model)
        return pb.ModelMetadataResponse(
            name=model.entry.model,
            versions=sorted({each.version for each in versions}, key=int),
            platform=PLATFORM,
            inputs=_tensors((*clients_inputs(model), *model.inspection.optional)),
            outputs=_tensors(clients_outputs(model)),
        )

    async def model_config(self, request: pb.ModelConfigRequest, context: Context) -> pb.ModelConfigResponse:
        if (language := self._controller.language.find(request.name, request.version)) is not None:
            return pb.ModelConfigResponse(config=_language_config(language.entry.model))
        planned = find(self._controller, request.name, request.version)
        if isinstance(planned, PlannedEnsemble):
            await loaded_ensemble(planned)
            return pb.ModelConfigResponse(config=ensemble_config_of(planned))
        model = await loaded(planned)
        return pb.ModelConfigResponse(config=config_of(model, planned.slot.batching_policy))


def _tensors(specs: Iterable[TensorSpec]) -> list[pb.ModelMetadataResponse.TensorMetadata]:
    return [pb.ModelMetadataResponse.TensorMetadata(name=s.name, datatype=s.datatype, shape=s.dims) for s in specs]


PLATFORM, ENSEMBLE = "onnxruntime_onnx", "ensemble"
_BACKEND = "onnxruntime"
_MICROSECONDS = 1e6
_KINDS = {
    "start": config_pb.ModelSequenceBatching.Control.CONTROL_SEQUENCE_START,
    "ready": config_pb.ModelSequenceBatching.Control.CONTROL_SEQUENCE_READY,
    "end": config_pb.ModelSequenceBatching.Control.CONTROL_SEQUENCE_END,
    "corrid": config_pb.ModelSequenceBatching.Control.CONTROL_SEQUENCE_CORRID,
}


def clients_inputs(model: Model) -> tuple[TensorSpec, ...]:
    """Return the inputs that a client sends, without inputs that edged fills in from a sequence."""
    plan = model.sequencing
    filled = plan.inputs if plan is not None and plan.declared else frozenset[str]()
    return tuple(spec for spec in model.declared.inputs if spec.name not in filled)


def clients_outputs(model: Model) -> tuple[TensorSpec, ...]:
    """Return the outputs that a client gets by default, without the states of a sequence."""
    plan, shown = model.sequencing, {output.name for output in model.triton.outputs}
    states = plan.outputs - shown if plan is not None and plan.declared else frozenset[str]()
    return tuple(spec for spec in model.declared.outputs if spec.name not in states)


def config_of(model: Model, batching: TensorBatching) -> config_pb.ModelConfig:
    """Return the complete configuration of a model; `batching` is the batching in force."""
    rows, triton, labels = model.max_batch_size, model.triton, {o.name: o.label_file for o in model.triton.outputs}
    config = config_pb.ModelConfig(
        name=model.entry.model,
        platform=PLATFORM,
        backend=_BACKEND,
        max_batch_size=rows,
        default_model_filename=triton.model_file or "model.onnx",
        instance_group=[
            config_pb.ModelInstanceGroup(name=model.entry.model, count=1, kind=config_pb.ModelInstanceGroup.KIND_AUTO)
        ],
        parameters={key: config_pb.ModelParameter(string_value=value) for key, value in triton.parameters.items()},
        version_policy=_versions(model.entry),
    )
    for spec in clients_inputs(model):
        config.input.add(name=spec.name, data_type=_data_type(spec.datatype), dims=_dims(spec, rows))
    for spec in model.inspection.optional:  # without a batch dimension
        config.input.add(name=spec.name, data_type=_data_type(spec.datatype), dims=spec.dims, optional=True)
    for spec in clients_outputs(model):
        label = labels.get(spec.name, "")
        config.output.add(
            name=spec.name, data_type=_data_type(spec.datatype), dims=_dims(spec, rows), label_filename=label
        )
    if model.is_decoupled:
        config.model_transaction_policy.decoupled = True
    plan = model.sequencing
    if plan is not None and plan.declared:
        given = triton.sequence or SequenceBatching()
        sequence = replace(given, idle=plan.idle, controls=plan.controls, states=plan.states)
        config.sequence_batching.CopyFrom(_sequence(sequence))
    elif triton.dynamic is not None or batching.batching.limit > 1:
        config.dynamic_batching.CopyFrom(_dynamic(model, batching))
    return config


def _dims(spec: TensorSpec, rows: int) -> tuple[int, ...]:
    return spec.dims[1:] if rows else spec.dims


def _language_config(name: str) -> config_pb.ModelConfig:
    config = config_pb.ModelConfig(name=name, platform=generate.PLATFORM, backend=generate.PLATFORM)
    config.model_transaction_policy.decoupled = True
    for spec in generate.INPUTS:
        is_optional = spec.name != generate.TEXT
        config.input.add(name=spec.name, data_type=_data_type(spec.datatype), dims=spec.dims, optional=is_optional)
    for spec in generate.OUTPUTS:
        config.output.add(name=spec.name, data_type=_data_type(spec.datatype), dims=spec.dims)
    return config


def ensemble_config_of(planned: PlannedEnsemble) -> config_pb.ModelConfig:
    """Return the complete configuration of an ensemble."""
    entry, triton = planned.entry, planned.config
    config = config_pb.ModelConfig(
        name=entry.model,
        platform=ENSEMBLE,
        max_batch_size=triton.max_batch_size,
        parameters={key: config_pb.ModelParameter(string_value=value) for key, value in triton.parameters.items()},
        version_policy=_versions(entry),
    )
    for each in triton.inputs:
        data_type = _data_type(each.datatype)
        config.input.add(name=each.name, data_type=data_type, dims=each.dims, optional=each.optional)
    for each in triton.outputs:
        data_type = _data_type(each.datatype)
        config.output.add(name=each.name, data_type=data_type, dims=each.dims, label_filename=each.label_file)
    for step in entry.steps:
        config.ensemble_scheduling.step.add(
            model_name=step.model,
            model_version=int(step.version or -1),
            input_map=step.inputs,
            output_map=step.outputs,
        )
    return config


def _versions(entry: ModelEntry) -> config_pb.ModelVersionPolicy:
    given = entry.triton.versions if entry.triton is not None else None
    policy = triton_config.version_policy(entry.settings) or given or VersionPolicy()
    if policy.named:
        return config_pb.ModelVersionPolicy(specific=config_pb.ModelVersionPolicy.Specific(versions=policy.named))
    if policy.latest:
        return config_pb.ModelVersionPolicy(latest=config_pb.ModelVersionPolicy.Latest(num_versions=policy.latest))
    return config_pb.ModelVersionPolicy(all=config_pb.ModelVersionPolicy.All())


def _dynamic(model: Model, batching: TensorBatching) -> config_pb.ModelDynamicBatching:
    dynamic = model.triton.dynamic
    return config_pb.ModelDynamicBatching(
        preferred_batch_size=batching.batching.preferred,
        max_queue_delay_microseconds=round(batching.batching.wait * _MICROSECONDS),
        preserve_ordering=dynamic is not None and dynamic.preserve_ordering,
        priority_levels=batching.levels,
        default_priority_level=batching.default_level,
        default_queue_policy=_policy(batching.policy),
        priority_queue_policy={level: _policy(policy) for level, policy in batching.policies.items()},
    )


def _policy(policy: QueuePolicy) -> config_pb.ModelQueuePolicy:
    return config_pb.ModelQueuePolicy(
        timeout_action=config_pb.ModelQueuePolicy.DELAY if policy.delay else config_pb.ModelQueuePolicy.REJECT,
        default_timeout_microseconds=round(policy.timeout * _MICROSECONDS),
        allow_timeout_override=policy.allow_override,
        max_queue_size=policy.size,
    )


def _sequence(sequence: SequenceBatching) -> config_pb.ModelSequenceBatching:
    message = config_pb.ModelSequenceBatching(max_sequence_idle_microseconds=round(sequence.idle * _MICROSECONDS))
    delay = round(sequence.max_delay * _MICROSECONDS)
    if sequence.strategy == "oldest":
        message.oldest.max_candidate_sequences = sequence.max_candidates
        message.oldest.preferred_batch_size.extend(sequence.preferred)
        message.oldest.max_queue_delay_microseconds = delay
    else:
        message.direct.SetInParent()
        message.direct.max_queue_delay_microseconds = delay
    by_input: dict[str, list[Control]] = {}
    for control in sequence.controls:
        by_input.setdefault(control.input, []).append(control)
    for name, controls in by_input.items():
        message.control_input.add(name=name, control=[_control(control) for control in controls])
    for state in sequence.states:
        added = message.state.add(input_name=state.input, output_name=state.output, dims=state.dims)
        if state.datatype:
            added.data_type = _data_type(state.datatype)
        if state.initial_file:
            added.initial_state.add(data_type=added.data_type, dims=state.initial_dims, data_file=state.initial_file)
    return message


def _control(control: Control) -> config_pb.ModelSequenceBatching.Control:
    message = config_pb.ModelSequenceBatching.Control(kind=_KINDS[control.kind])
    if control.kind == "corrid":
        message.data_type = _data_type(control.datatype)
    elif control.datatype == "INT32":
        message.int32_false_true.extend(int(value) for value in control.false_true)
    elif control.datatype == "BOOL":
        message.bool_false_true.extend(bool(value) for value in control.false_true)
    else:
        message.fp32_false_true.extend(control.false_true)
    return message


def _data_type(datatype: str) -> config_pb.DataType:
    number = config_pb.DataType.Value("TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}")
    return cast(config_pb.DataType, number)
