"""A model's configuration as it is in effect, in Triton's terms. Pure.

Where max_batch_size is above 0, dims are without the batch dimension, which metadata have as a leading -1.
"""

from __future__ import annotations

from typing import cast

from msgspec.structs import replace

from edged.models import triton_config
from edged.models.model import Model
from edged.models.triton_config import Control, SequenceBatching, VersionPolicy
from edged.proto import model_config_pb2 as pb
from edged.serving.queueing import QueuePolicy, TensorBatching
from edged.tensors import TensorSpec

PLATFORM = "onnxruntime_onnx"
_BACKEND = "onnxruntime"
_MICROSECONDS = 1e6
_KINDS = {
    "start": pb.ModelSequenceBatching.Control.CONTROL_SEQUENCE_START,
    "ready": pb.ModelSequenceBatching.Control.CONTROL_SEQUENCE_READY,
    "end": pb.ModelSequenceBatching.Control.CONTROL_SEQUENCE_END,
    "corrid": pb.ModelSequenceBatching.Control.CONTROL_SEQUENCE_CORRID,
}


def clients_inputs(model: Model) -> tuple[TensorSpec, ...]:
    """The inputs that a client sends: none that edged fills in from a sequence."""
    plan = model.sequencing
    made_up = plan.inputs if plan is not None and plan.declared else frozenset[str]()
    return tuple(spec for spec in model.declared.inputs if spec.name not in made_up)


def clients_outputs(model: Model) -> tuple[TensorSpec, ...]:
    """The outputs that a client gets where it names none: not what the model keeps for itself."""
    plan, shown = model.sequencing, {output.name for output in model.triton.outputs}
    kept = plan.outputs - shown if plan is not None and plan.declared else frozenset[str]()
    return tuple(spec for spec in model.declared.outputs if spec.name not in kept)


def config_of(model: Model, batching: TensorBatching) -> pb.ModelConfig:
    """The whole of it; `batching` is how requests are put together now."""
    rows, triton, labels = model.max_batch_size, model.triton, {o.name: o.label_file for o in model.triton.outputs}
    config = pb.ModelConfig(
        name=model.entry.model,
        platform=PLATFORM,
        backend=_BACKEND,
        max_batch_size=rows,
        default_model_filename=triton.model_file or "model.onnx",
        instance_group=[pb.ModelInstanceGroup(name=model.entry.model, count=1, kind=pb.ModelInstanceGroup.KIND_AUTO)],
        parameters={key: pb.ModelParameter(string_value=value) for key, value in triton.parameters.items()},
        version_policy=_versions(
            triton_config.version_policy(model.entry.settings) or triton.versions or VersionPolicy()
        ),
    )
    for spec in clients_inputs(model):
        config.input.add(name=spec.name, data_type=_type(spec), dims=_dims(spec, rows))
    for spec in model.inspection.optional:  # whose first dimension is no batch's
        config.input.add(name=spec.name, data_type=_type(spec), dims=spec.dims, optional=True)
    for spec in clients_outputs(model):
        label = labels.get(spec.name, "")
        config.output.add(name=spec.name, data_type=_type(spec), dims=_dims(spec, rows), label_filename=label)
    if model.is_decoupled:
        config.model_transaction_policy.decoupled = True
    plan = model.sequencing
    if plan is not None and plan.declared:
        said = triton.sequence or SequenceBatching()
        sequence = replace(said, idle=plan.idle, controls=plan.controls, states=plan.states)
        config.sequence_batching.CopyFrom(_sequence(sequence))
    elif triton.dynamic is not None or batching.batching.limit > 1:
        config.dynamic_batching.CopyFrom(_dynamic(model, batching))
    return config


def _type(spec: TensorSpec) -> pb.DataType:
    return _data_type(spec.datatype)


def _dims(spec: TensorSpec, rows: int) -> tuple[int, ...]:
    return spec.dims[1:] if rows else spec.dims


def _versions(policy: VersionPolicy) -> pb.ModelVersionPolicy:
    if policy.named:
        return pb.ModelVersionPolicy(specific=pb.ModelVersionPolicy.Specific(versions=policy.named))
    if policy.latest:
        return pb.ModelVersionPolicy(latest=pb.ModelVersionPolicy.Latest(num_versions=policy.latest))
    return pb.ModelVersionPolicy(all=pb.ModelVersionPolicy.All())


def _dynamic(model: Model, batching: TensorBatching) -> pb.ModelDynamicBatching:
    dynamic = model.triton.dynamic
    return pb.ModelDynamicBatching(
        preferred_batch_size=batching.batching.preferred,
        max_queue_delay_microseconds=round(batching.batching.wait * _MICROSECONDS),
        preserve_ordering=dynamic is not None and dynamic.preserve_ordering,
        priority_levels=batching.levels,
        default_priority_level=batching.default_level,
        default_queue_policy=_policy(batching.policy),
        priority_queue_policy={level: _policy(policy) for level, policy in batching.policies.items()},
    )


def _policy(policy: QueuePolicy) -> pb.ModelQueuePolicy:
    return pb.ModelQueuePolicy(
        timeout_action=pb.ModelQueuePolicy.DELAY if policy.delay else pb.ModelQueuePolicy.REJECT,
        default_timeout_microseconds=round(policy.timeout * _MICROSECONDS),
        allow_timeout_override=policy.allow_override,
        max_queue_size=policy.size,
    )


def _sequence(sequence: SequenceBatching) -> pb.ModelSequenceBatching:
    message = pb.ModelSequenceBatching(max_sequence_idle_microseconds=round(sequence.idle * _MICROSECONDS))
    if sequence.strategy == "oldest":
        message.oldest.max_candidate_sequences = sequence.max_candidates
    else:
        message.direct.SetInParent()
    by_input: dict[str, list[Control]] = {}
    for control in sequence.controls:
        by_input.setdefault(control.input, []).append(control)
    for name, controls in by_input.items():
        message.control_input.add(name=name, control=[_control(control) for control in controls])
    for state in sequence.states:
        told = message.state.add(input_name=state.input, output_name=state.output, dims=state.dims)
        if state.datatype:
            told.data_type = _data_type(state.datatype)
        if state.initial_file:
            told.initial_state.add(data_type=told.data_type, dims=state.initial_dims, data_file=state.initial_file)
    return message


def _control(control: Control) -> pb.ModelSequenceBatching.Control:
    message = pb.ModelSequenceBatching.Control(kind=_KINDS[control.kind])
    if control.kind == "corrid":
        message.data_type = _data_type(control.datatype)
    elif control.datatype == "INT32":
        message.int32_false_true.extend(int(value) for value in control.false_true)
    elif control.datatype == "BOOL":
        message.bool_false_true.extend(bool(value) for value in control.false_true)
    else:
        message.fp32_false_true.extend(control.false_true)
    return message


def _data_type(datatype: str) -> pb.DataType:
    number = pb.DataType.Value("TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}")
    return cast(pb.DataType, number)
