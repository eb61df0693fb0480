"""From inference.ModelConfig to `TritonConfig`: what edged acts on, checked, and lines about the rest. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from edged.errors import ConfigError
from edged.models.triton_config import (
    Control,
    ControlKind,
    DynamicBatching,
    QueuePolicy,
    SequenceBatching,
    State,
    TensorConfig,
    TritonConfig,
    VersionPolicy,
    Warmup,
    WarmupInput,
    require_plain_name,
)
from edged.proto import model_config_pb2 as pb

_PLATFORMS = ("", "onnxruntime_onnx", "onnx")
_BACKENDS = ("", "onnxruntime")
_LONGEST_WAIT = 365 * 86400 * 10**6  # microseconds; some write the largest number there is for "without end"
_MOST_ROWS = 1 << 20
_MOST_COUNT = 10000  # requests of one warm-up
_CONTROLS: dict[int, ControlKind] = {
    pb.ModelSequenceBatching.Control.CONTROL_SEQUENCE_START: "start",
    pb.ModelSequenceBatching.Control.CONTROL_SEQUENCE_READY: "ready",
    pb.ModelSequenceBatching.Control.CONTROL_SEQUENCE_END: "end",
    pb.ModelSequenceBatching.Control.CONTROL_SEQUENCE_CORRID: "corrid",
}


def config_of(message: pb.ModelConfig, name: str, unused: Sequence[str]) -> TritonConfig:
    """Convert the configuration of model `name`; ConfigError if it is invalid or not for ONNX models.

    `unused` has a line for each field that has no effect.
    """
    _require_servable(message, name)
    if message.default_model_filename:
        require_plain_name("default_model_filename", message.default_model_filename)
    rows = message.max_batch_size
    return TritonConfig(
        max_batch_size=rows,
        inputs=_inputs(message),
        outputs=_outputs(message),
        versions=_versions(message.version_policy),
        dynamic=_dynamic(message.dynamic_batching, rows) if message.HasField("dynamic_batching") else None,
        sequence=_sequence(message.sequence_batching) if message.HasField("sequence_batching") else None,
        decoupled=message.model_transaction_policy.decoupled,
        model_file=message.default_model_filename,
        warmups=tuple(_warmup(each, rows) for each in message.model_warmup),
        parameters={key: value.string_value for key, value in message.parameters.items()},
        unused=tuple(unused),
    )


def _require_servable(message: pb.ModelConfig, name: str) -> None:
    if message.name and message.name != name:
        raise ConfigError(f"it is of model {message.name[:80]!r}, not {name!r}; make the names equal, or leave it out")
    for field, value, known in (
        ("platform", message.platform, _PLATFORMS),
        ("backend", message.backend, _BACKENDS),
    ):
        if value not in known:
            raise ConfigError(f"{field} {value[:40]!r} is not for ONNX models; use {' or '.join(known[1:])}")
    if message.HasField("ensemble_scheduling"):
        raise ConfigError("it is an ensemble; edged serves single models, so let the client call them in turn")
    if message.batch_input or message.batch_output:
        raise ConfigError("batch_input and batch_output are tensors that a server makes up; edged does not")
    if not 0 <= message.max_batch_size <= _MOST_ROWS:
        raise ConfigError(f"max_batch_size {message.max_batch_size} is not from 0 to {_MOST_ROWS}")


def _inputs(message: pb.ModelConfig) -> tuple[TensorConfig, ...]:
    return tuple(
        TensorConfig(
            _name("input", each.name),
            datatype(each.data_type),
            _dims(f"input {each.name!r}", each.dims),
            _dims(f"input {each.name!r}", each.reshape.shape) if each.HasField("reshape") else None,
        )
        for each in message.input
    )


def _outputs(message: pb.ModelConfig) -> tuple[TensorConfig, ...]:
    outputs = []
    for each in message.output:
        if each.label_filename:
            require_plain_name("label_filename", each.label_filename)
        outputs.append(
            TensorConfig(
                _name("output", each.name),
                datatype(each.data_type),
                _dims(f"output {each.name!r}", each.dims),
                _dims(f"output {each.name!r}", each.reshape.shape) if each.HasField("reshape") else None,
                each.label_filename,
            )
        )
    return tuple(outputs)


def datatype(number: int) -> str:
    """The protocol's name of a datatype; empty for TYPE_INVALID, which stands where nothing is said."""
    if number not in pb.DataType.values():
        raise ConfigError(f"there is no data_type {number}")
    name = pb.DataType.Name(pb.DataType.ValueType(number)).removeprefix("TYPE_")
    return {"INVALID": "", "STRING": "BYTES"}.get(name, name)


def _name(kind: str, name: str) -> str:
    if not name:
        raise ConfigError(f"an {kind} has no name; give every {kind} the name that it has in the model")
    return name


def _dims(what: str, dims: Iterable[int], *, is_open: bool = True) -> tuple[int, ...]:
    found = tuple(dims)
    least = -1 if is_open else 1
    if len(found) > 32 or any(dim < least or dim == 0 or dim > 1 << 40 for dim in found):
        raise ConfigError(f"{what} has impossible dims {list(found)[:16]}")
    return found


def _versions(message: pb.ModelVersionPolicy) -> VersionPolicy | None:
    choice = message.WhichOneof("policy_choice")
    if choice == "all":
        return VersionPolicy(latest=0)
    if choice == "latest":
        return VersionPolicy(latest=max(1, message.latest.num_versions))
    if choice == "specific":
        named = tuple(sorted(set(message.specific.versions)))
        if not named or named[0] < 0:
            raise ConfigError(f"version_policy names {list(named)[:8]}; name versions that are there")
        return VersionPolicy(named=named)
    return None


def _dynamic(message: pb.ModelDynamicBatching, rows: int) -> DynamicBatching:
    _require_preferred("dynamic_batching", message.preferred_batch_size, rows)
    levels, default = message.priority_levels, message.default_priority_level
    if levels > 1 << 16 or (levels and not 1 <= default <= levels) or (default and not levels):
        raise ConfigError(f"dynamic_batching: default_priority_level {default} is not one of {levels} priority levels")
    strange = [level for level in message.priority_queue_policy if not 1 <= level <= levels]
    if strange:
        raise ConfigError(f"dynamic_batching: there is no priority level {strange[0]} to have a queue policy")
    return DynamicBatching(
        tuple(message.preferred_batch_size),
        _seconds(message.max_queue_delay_microseconds),
        message.preserve_ordering,
        levels,
        default,
        _policy(message.default_queue_policy),
        {level: _policy(each) for level, each in message.priority_queue_policy.items()},
    )


def _policy(message: pb.ModelQueuePolicy) -> QueuePolicy:
    return QueuePolicy(
        message.max_queue_size,
        _seconds(message.default_timeout_microseconds),
        message.allow_timeout_override,
        message.timeout_action == pb.ModelQueuePolicy.DELAY,
    )


def _seconds(microseconds: int) -> float:
    return min(microseconds, _LONGEST_WAIT) * 1e-6


def _require_preferred(what: str, sizes: Iterable[int], rows: int) -> None:
    for size in sizes:
        if not 1 <= size <= max(rows, 1):
            raise ConfigError(f"{what}: preferred_batch_size {size} is not from 1 to max_batch_size, {rows}")


def _sequence(message: pb.ModelSequenceBatching) -> SequenceBatching:
    controls = tuple(_control(each.name, control) for each in message.control_input for control in each.control)
    oldest = message.oldest
    return SequenceBatching(
        "oldest" if message.WhichOneof("strategy_choice") == "oldest" else "direct",
        _seconds(message.max_sequence_idle_microseconds) or 1.0,
        controls,
        tuple(map(_state, message.state)),
        oldest.max_candidate_sequences,
        _seconds(max(oldest.max_queue_delay_microseconds, message.direct.max_queue_delay_microseconds)),
        tuple(oldest.preferred_batch_size),
    )


def _control(name: str, message: pb.ModelSequenceBatching.Control) -> Control:
    what = f"control input {name!r}"
    kind = _CONTROLS.get(message.kind)
    if kind is None or not name:
        raise ConfigError(f"{what} is of no known kind or has no name")
    if kind == "corrid":
        found = datatype(message.data_type)
        if found not in ("UINT64", "INT64", "UINT32", "INT32", "BYTES"):
            raise ConfigError(
                f"{what} takes the sequence's id and has data_type {found or 'none'}; give it TYPE_UINT64"
            )
        return Control(name, kind, found)
    for found, values in (
        ("INT32", message.int32_false_true),
        ("FP32", message.fp32_false_true),
        ("BOOL", message.bool_false_true),
    ):
        if values:
            if len(values) != 2:
                raise ConfigError(f"{what} has {len(values)} values; give two, for false and true")
            return Control(name, kind, found, (float(values[0]), float(values[1])))
    raise ConfigError(f"{what} has no values; give int32_false_true, fp32_false_true or bool_false_true")


def _state(message: pb.ModelSequenceBatching.State) -> State:
    what = f"state {message.input_name!r}"
    if not message.input_name or not message.output_name:
        raise ConfigError("a state of sequence_batching has no input_name or no output_name; it takes both")
    initial = list(message.initial_state)
    if len(initial) > 1:
        raise ConfigError(f"{what} has {len(initial)} initial states; give one")
    file = initial[0].data_file if initial else ""
    if file:
        require_plain_name(f"{what}: data_file", file)
    if initial and datatype(initial[0].data_type) not in ("", datatype(message.data_type)):
        raise ConfigError(f"{what} and its initial state are of different data_types")
    return State(
        message.input_name,
        message.output_name,
        datatype(message.data_type),
        _dims(what, message.dims),
        file,
        _dims(what, initial[0].dims, is_open=False) if initial else (),
    )


def _warmup(message: pb.ModelWarmup, rows: int) -> Warmup:
    what = f"model_warmup {message.name!r}"
    if message.batch_size > max(rows, 1):
        raise ConfigError(f"{what} has batch_size {message.batch_size}, more than max_batch_size, {rows}")
    if message.count > _MOST_COUNT:
        raise ConfigError(f"{what} has count {message.count}; give at most {_MOST_COUNT}")
    inputs = tuple(_warmup_input(what, name, each) for name, each in sorted(message.inputs.items()))
    return Warmup(message.name, max(1, message.batch_size) if rows else 0, max(1, message.count), inputs)


def _warmup_input(what: str, name: str, message: pb.ModelWarmup.Input) -> WarmupInput:
    dims = _dims(f"{what}: input {name!r}", message.dims, is_open=False)
    kind = datatype(message.data_type)
    choice = message.WhichOneof("input_data_type")
    if choice == "input_data_file":
        require_plain_name(f"{what}: input_data_file", message.input_data_file)
        return WarmupInput(name, kind, dims, "file", message.input_data_file)
    if choice is None:
        raise ConfigError(f"{what}: input {name!r} has no data; say zero_data, random_data or input_data_file")
    return WarmupInput(name, kind, dims, "random" if choice == "random_data" else "zero")
