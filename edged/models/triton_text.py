"""Reads a model's Triton configuration: config.pbtxt, or the JSON that a client sends with a request to load a model.

Both texts are untrusted. Error messages have one line. Names that protos/model_config.proto does not have, and fields
without effect, are not errors: `TritonConfig.unused` lists them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

from google.protobuf import json_format, text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from msgspec.structs import replace

from edged.errors import ConfigError
from edged.models.triton_config import (
    Control,
    ControlKind,
    DynamicBatching,
    QueuePolicy,
    SequenceBatching,
    State,
    Step,
    TensorConfig,
    TritonConfig,
    VersionPolicy,
    Warmup,
    WarmupInput,
    require_plain_name,
)
from edged.proto import model_config_pb2 as pb

MOST_BYTES = 256 << 10  # real files have a few KiB
_MOST_LINES = 50  # about fields without effect
_MOST_TEXT = 240  # characters of a message
_LONGEST_WAIT = 365 * 86400 * 10**6  # microseconds; some configurations have the largest number for "no limit"
_MOST_ROWS = 1 << 20
_MOST_COUNT = 10000  # requests of one warm-up
_MOST_DIMS = 32
_LARGEST_DIM = 1 << 40
_MOST_LEVELS = 1 << 16  # priority levels
_ENSEMBLE = "ensemble"
_ROOT = cast(Descriptor, pb.ModelConfig.DESCRIPTOR)  # the stub has two classes of this name


def read_text(data: bytes, name: str) -> TritonConfig:
    """Read the configuration of model `name`. Raises ConfigError if the configuration is invalid, or if the model is
    not an ONNX model and not an ensemble."""
    _require_size(len(data))
    message = pb.ModelConfig()
    try:
        text = data.decode("utf-8-sig")
        text_format.Parse(text, message, allow_unknown_field=True)
        unknown = list(_unknown_names(text))
    except UnicodeDecodeError as error:
        raise ConfigError(f"not UTF-8 text (byte {error.start}); save the file as UTF-8") from None
    except (text_format.ParseError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot be parsed: {_reason(error)}") from None
    return _checked_config(message, name, unknown)


def read_json(text: str, name: str) -> TritonConfig:
    """Read the configuration of model `name` from JSON; otherwise like `read_text`."""
    _require_size(len(text))
    message = pb.ModelConfig()
    try:
        tree: object = json.loads(text)
        if not isinstance(tree, dict):
            raise ConfigError("the configuration must be a JSON object")
        json.dumps(tree, ensure_ascii=False).encode()  # raises ValueError for half of a surrogate pair
        json_format.ParseDict(tree, message, ignore_unknown_fields=True)
        unknown = list(_unknown_keys(tree, _ROOT, ""))
    except (json_format.ParseError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"cannot be parsed as JSON: {_reason(error)}") from None
    return _checked_config(message, name, unknown)


def _require_size(size: int) -> None:
    if size > MOST_BYTES:
        raise ConfigError(f"larger than {MOST_BYTES >> 10} KiB, the limit")


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return _shortened(" ".join(str(error).replace("inference.", "").split()))


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."


def _checked_config(message: pb.ModelConfig, name: str, unknown: list[str]) -> TritonConfig:
    lines = [*(f"{each}: unknown to edged" for each in unknown), *unused(message)]
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], f"and {len(lines) - _MOST_LINES} more"]
    try:
        return _config(message, name, tuple(lines))
    except ConfigError as error:  # the message may contain names of any length
        raise ConfigError(_shortened(str(error))) from None


# -- names that the format does not have ----------------------------------------------------------------------------


class _Open(NamedTuple):
    """A message or list whose end was not read yet; `message` is None below an unknown name."""

    message: Descriptor | None
    path: str
    is_list: bool = False


def _unknown_names(text: str) -> Iterator[str]:
    """Yield the unknown names in a text that protobuf has parsed. Leave out names inside an unknown message."""
    line = 0

    def lines() -> Iterator[str]:
        """Yield and count the lines, because edged's messages give the line of an unknown name."""
        nonlocal line
        for each in text.split("\n"):
            line += 1
            yield each

    tokens = text_format.Tokenizer(lines())
    levels, field = [_Open(_ROOT, "")], _Open(None, "")
    is_value = False
    while not tokens.AtEnd():
        word, at, level = tokens.token, line, levels[-1]
        tokens.NextToken()
        if word in ("{", "<"):
            levels.append(level._replace(is_list=False) if level.is_list else field)
        elif word == "[":
            levels.append(field._replace(is_list=True))
        elif word in ("}", ">", "]"):
            levels.pop()
        elif not (is_value or level.is_list or word in (":", ",", ";") or word[0] in "'\""):
            known = level.message.fields_by_name.get(word) if level.message is not None else None
            if known is None and level.message is not None:
                yield f"line {at}: {level.path}{shown(word)}"
            field = _Open(known.message_type if known is not None else None, f"{level.path}{word}.")
        is_value = word == ":"


def _unknown_keys(tree: dict[str, Any], message: Descriptor, path: str) -> Iterator[str]:
    """Yield the unknown keys in JSON that protobuf has parsed. Leave out keys inside an unknown object. Raises
    ValueError for a value of the wrong type that the parser ignored."""
    for key, value in tree.items():
        field = message.fields_by_name.get(key) or message.fields_by_camelcase_name.get(key)
        if field is None:
            yield f"{path}{shown(key)}"
            continue
        values: Iterable[object] = value if isinstance(value, list) else [value]
        inner = field.message_type
        if inner is None:
            _require_known_words(field, values)
            continue
        if inner.GetOptions().map_entry:
            entry = inner.fields_by_name["value"].message_type
            values = value.values() if entry is not None and isinstance(value, dict) else ()
            inner = entry or inner
        for each in values:
            if isinstance(each, dict):
                yield from _unknown_keys(each, inner, f"{path}{key}.")
            elif each is not None:  # the parser takes a string for an object without known fields
                raise ValueError(f"{path}{key} must be an object with fields, not {shown(str(each))}")


def _require_known_words(field: FieldDescriptor, values: Iterable[object]) -> None:
    for each in values:
        if field.enum_type is not None and isinstance(each, str) and each not in field.enum_type.values_by_name:
            raise ValueError(f"{field.name} {each[:80]!r} is not one of {', '.join(field.enum_type.values_by_name)}")


def shown(name: str) -> str:
    """Return a name from the file for use in a message: shortened and printable."""
    return name[:80] if name[:80].isprintable() else ascii(name[:80])


# -- fields without effect ------------------------------------------------------------------------------------------

# Fields with effect, by message. A "*" stands for everything inside the message or field.
_USED: dict[str, tuple[str, ...]] = {
    "": ("name", "platform", "backend", "max_batch_size", "default_model_filename", "version_policy*"),
    "input": ("name", "data_type", "dims"),
    "output": ("name", "data_type", "dims", "label_filename"),
    "dynamic_batching": (
        *("preferred_batch_size", "max_queue_delay_microseconds", "priority_levels", "default_priority_level"),
        *("default_queue_policy*", "priority_queue_policy*"),
    ),
    "sequence_batching": ("max_sequence_idle_microseconds", "control_input*"),
    "sequence_batching.state": ("input_name", "output_name", "data_type", "dims", "initial_state*"),
    "model_warmup*": (),
    "model_transaction_policy*": (),
    "ensemble_scheduling.step": ("model_name", "model_version", "input_map*", "output_map*"),
    "instance_group": ("name", "kind", "count", "gpus"),  # reported by `_instances`
}
_PATHS = frozenset(
    path
    for message, fields in _USED.items()
    for path in (message, *(f"{message}.{each}".strip(".") for each in fields))
)
_WHY = {
    "optimization": "edged builds engines for all devices of the box, measures them, and serves the fastest",
    "input.reshape": "requests have the model's own shape",
    "output.reshape": "answers have the model's own shape",
    "input.format": "edged detects the layout of pictures, unless preprocess.* sets it",
    "input.optional": "an input is optional if the model has a default for it",
    "dynamic_batching.preserve_ordering": "answers of one stream are in order; others are sent when they are ready",
    "sequence_batching.direct": "requests of sequences are run one at a time",
    "sequence_batching.oldest": "requests of sequences are run one at a time",
    "sequence_batching.state": "edged stores the states itself",
    "response_cache": "edged does not cache answers",
    "parameters": "they are for Triton's backends; edged has model settings",
    "instance_group.rate_limiter": "engines take turns on a device",
    "metric_tags": "the labels of edged's metrics are fixed: docs/metrics.md",
    "model_metrics": "edged has the same metrics for every model: docs/metrics.md",
    "cc_model_filenames": "an ONNX model has one file",
    "ensemble_scheduling.max_inflight_requests": "edged limits the memory between the steps: docs/ensembles.md",
    "ensemble_scheduling.step.model_namespace": "the repository has no namespaces",
}


def unused(message: pb.ModelConfig) -> list[str]:
    """Return a line for every field that is set but has no effect, in the order of the fields in the message."""
    used = {"input.optional"} if _is_ensemble(message) else set[str]()
    lines = [
        f"{path}: not used; {why}" if (why := _why(path)) else f"{path}: not used"
        for path in _unused(message, "")
        if path not in used
    ]
    return list(dict.fromkeys([*lines, *_instances(message)]))


def _unused(message: Message, prefix: str) -> Iterator[str]:
    for field, value in message.ListFields():
        path = f"{prefix}{field.name}"
        if f"{path}*" in _PATHS or (field.message_type is None and path in _PATHS):
            continue
        if field.message_type is None:
            yield path
        elif field.message_type.GetOptions().map_entry:
            yield from (f"{path}[{shown(str(key))}]" for key in value)
        else:
            for each in [value] if isinstance(value, Message) else value:
                yield from _unused(each, f"{path}.")


def _why(path: str) -> str:
    plain = path.partition("[")[0]
    return next((why for start, why in _WHY.items() if plain == start or plain.startswith(f"{start}.")), "")


def _instances(message: pb.ModelConfig) -> Iterator[str]:
    """Yield a line for each kind and each count of instances that is set. These fields have no effect, because edged
    measures which instances are the fastest."""
    for group in message.instance_group:
        if group.count > 1:
            yield f"instance_group.count: {group.count} is not used; edged measures how many instances are the fastest"
        if group.kind in (pb.ModelInstanceGroup.KIND_CPU, pb.ModelInstanceGroup.KIND_GPU) or group.gpus:
            limit = "the setting `backends` limits the choice"
            yield f"instance_group.kind: not used; edged measures which device is the fastest; {limit}"


# -- fields with effect ---------------------------------------------------------------------------------------------


def _config(message: pb.ModelConfig, name: str, unused: tuple[str, ...]) -> TritonConfig:
    if message.name and message.name != name:
        raise ConfigError(f"the field 'name' is {message.name[:80]!r}, not {name!r}; correct the field or leave it out")
    if _is_ensemble(message):
        _require_for_ensemble(message)
    elif message.HasField("ensemble_scheduling"):
        raise ConfigError(f'ensemble_scheduling can only be used for ensembles; set platform: "{_ENSEMBLE}"')
    elif message.platform not in ("", "onnxruntime_onnx", "onnx"):
        raise ConfigError(f"platform {message.platform[:40]!r} is not for ONNX models; use onnxruntime_onnx or onnx")
    elif message.backend not in ("", "onnxruntime"):
        raise ConfigError(f"backend {message.backend[:40]!r} is not for ONNX models; use onnxruntime")
    if message.batch_input or message.batch_output:
        raise ConfigError("batch_input and batch_output are not supported; remove them")
    rows = message.max_batch_size
    if not 0 <= rows <= _MOST_ROWS:
        raise ConfigError(f"max_batch_size {rows} is not allowed; set a number from 0 to {_MOST_ROWS}")
    return TritonConfig(
        max_batch_size=rows,
        inputs=tuple(_tensor("input", each) for each in message.input),
        outputs=tuple(
            _tensor("output", each, _plain_name("label_filename", each.label_filename)) for each in message.output
        ),
        versions=_versions(message.version_policy),
        dynamic=_dynamic(message.dynamic_batching, rows) if message.HasField("dynamic_batching") else None,
        sequence=_sequence(message.sequence_batching) if message.HasField("sequence_batching") else None,
        decoupled=message.model_transaction_policy.decoupled,
        model_file=_plain_name("default_model_filename", message.default_model_filename),
        warmups=tuple(_warmup(each, rows) for each in message.model_warmup),
        parameters={key: value.string_value for key, value in message.parameters.items()},
        steps=tuple(map(_step, message.ensemble_scheduling.step)) if _is_ensemble(message) else None,
        unused=unused,
    )


def _is_ensemble(message: pb.ModelConfig) -> bool:
    return _ENSEMBLE in (message.platform, message.backend)


# Fields that an ensemble cannot have, only its models. Triton refuses the same fields.
_OF_PARTS = ("instance_group", "optimization", "model_warmup")


def _require_for_ensemble(message: pb.ModelConfig) -> None:
    """Raise ConfigError for a field that an ensemble cannot have."""
    for name in (message.platform, message.backend):
        if name not in ("", _ENSEMBLE):
            raise ConfigError(f"platform and backend differ: {_ENSEMBLE!r} and {name[:40]!r}; set only one of them")
    given = {field.name for field, _ in message.ListFields()}
    if field := next((field for field in _OF_PARTS if field in given), None):
        raise ConfigError(f"{field} cannot be used for an ensemble; set it for the models of the steps")
    if message.model_transaction_policy.decoupled:
        raise ConfigError("an ensemble has one response for each request; remove model_transaction_policy")
    if any(each.HasField("reshape") for each in (*message.input, *message.output)):
        raise ConfigError("reshape is not supported for an ensemble; give the shapes of the models in dims")


def _step(message: pb.ModelEnsembling.Step) -> Step:
    version = "" if message.model_version == -1 else str(message.model_version)
    return Step(message.model_name, version, dict(message.input_map), dict(message.output_map))


def _plain_name(what: str, name: str) -> str:
    if name:
        require_plain_name(what, name)
    return name


def _tensor(kind: str, message: pb.ModelInput | pb.ModelOutput, label_file: str = "") -> TensorConfig:
    what = f"{kind} {message.name!r}"
    if not message.name:
        raise ConfigError(f"an {kind} has no name; give every {kind} the name that it has in the model")
    reshape = _dims(what, message.reshape.shape) if message.HasField("reshape") else None
    optional = isinstance(message, pb.ModelInput) and message.optional
    datatype, dims = _datatype(what, message.data_type), _dims(what, message.dims)
    return TensorConfig(message.name, datatype, dims, reshape, label_file, optional)


def _datatype(what: str, number: int) -> str:
    """Return the protocol's name of a datatype; empty for TYPE_INVALID, the default."""
    if number not in pb.DataType.values():
        raise ConfigError(f"{what} has the unknown data_type {number}; use a name such as TYPE_FP32")
    name = pb.DataType.Name(pb.DataType.ValueType(number)).removeprefix("TYPE_")
    return {"INVALID": "", "STRING": "BYTES"}.get(name, name)


def _dims(what: str, dims: Iterable[int], *, is_open: bool = True) -> tuple[int, ...]:
    found = tuple(dims)
    least = -1 if is_open else 1
    if len(found) > _MOST_DIMS:
        raise ConfigError(f"{what} has {len(found)} dims; give at most {_MOST_DIMS}")
    if any(dim < least or dim == 0 or dim > _LARGEST_DIM for dim in found):
        sizes = f"sizes must be from 1 to {_LARGEST_DIM}{', or -1' * is_open}"
        raise ConfigError(f"{what} has invalid dims {list(found)[:16]}; {sizes}")
    return found


def _versions(message: pb.ModelVersionPolicy) -> VersionPolicy | None:
    match message.WhichOneof("policy_choice"):
        case "all":
            return VersionPolicy(latest=0)
        case "latest":
            return VersionPolicy(latest=max(1, message.latest.num_versions))
        case "specific":
            named = tuple(sorted(set(message.specific.versions)))
            if not named or named[0] < 0:
                raise ConfigError(f"version_policy names the versions {list(named)[:8]}; name versions that exist")
            return VersionPolicy(named=named)
    return None


def _dynamic(message: pb.ModelDynamicBatching, rows: int) -> DynamicBatching:
    for size in message.preferred_batch_size:
        if not 1 <= size <= max(rows, 1):
            raise ConfigError(f"dynamic_batching: preferred_batch_size {size} is not from 1 to max_batch_size ({rows})")
    levels, default = message.priority_levels, message.default_priority_level
    if levels > _MOST_LEVELS:
        raise ConfigError(f"dynamic_batching: priority_levels is {levels}; give at most {_MOST_LEVELS}")
    if (levels and not 1 <= default <= levels) or (default and not levels):
        raise ConfigError(f"dynamic_batching: default_priority_level {default} is not one of {levels} priority levels")
    strange = [level for level in message.priority_queue_policy if not 1 <= level <= levels]
    if strange:
        raise ConfigError(
            f"dynamic_batching: priority_queue_policy has level {strange[0]}, but priority_levels is {levels}"
        )
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


def _sequence(message: pb.ModelSequenceBatching) -> SequenceBatching:
    oldest = message.oldest
    return SequenceBatching(
        "oldest" if message.WhichOneof("strategy_choice") == "oldest" else "direct",
        _seconds(message.max_sequence_idle_microseconds) or 1.0,
        tuple(_control(each.name, control) for each in message.control_input for control in each.control),
        tuple(map(_state, message.state)),
        oldest.max_candidate_sequences,
        _seconds(max(oldest.max_queue_delay_microseconds, message.direct.max_queue_delay_microseconds)),
        tuple(oldest.preferred_batch_size),
    )


_CONTROLS: dict[int, ControlKind] = {
    pb.ModelSequenceBatching.Control.CONTROL_SEQUENCE_START: "start",
    pb.ModelSequenceBatching.Control.CONTROL_SEQUENCE_READY: "ready",
    pb.ModelSequenceBatching.Control.CONTROL_SEQUENCE_END: "end",
    pb.ModelSequenceBatching.Control.CONTROL_SEQUENCE_CORRID: "corrid",
}
_IDS = ("UINT64", "INT64", "UINT32", "INT32", "BYTES")


def _control(name: str, message: pb.ModelSequenceBatching.Control) -> Control:
    what = f"control input {name!r}"
    kind = _CONTROLS.get(message.kind)
    if not name:
        raise ConfigError("a control_input has no name; give the name of an input of the model")
    if kind is None:
        raise ConfigError(f"{what} has the unknown kind {message.kind}; use a name such as CONTROL_SEQUENCE_START")
    if kind == "corrid":
        found = _datatype(what, message.data_type)
        if found not in _IDS:
            raise ConfigError(f"{what} cannot hold a sequence id with data_type {found or 'none'}; set TYPE_UINT64")
        return Control(name, kind, found)
    given: dict[str, Sequence[float]] = {
        "INT32": message.int32_false_true,
        "FP32": message.fp32_false_true,
        "BOOL": message.bool_false_true,
    }
    for found, values in given.items():
        if len(values) == 2:
            return Control(name, kind, found, (float(values[0]), float(values[1])))
        if values:
            raise ConfigError(f"{what} has {len(values)} values; give two, for false and true")
    raise ConfigError(f"{what} has no values; give int32_false_true, fp32_false_true or bool_false_true")


def _state(message: pb.ModelSequenceBatching.State) -> State:
    what = f"state {message.input_name!r}"
    datatype = _datatype(what, message.data_type)
    if not message.input_name or not message.output_name:
        raise ConfigError("a state of sequence_batching has no input_name or no output_name; give both")
    if len(message.initial_state) > 1:
        raise ConfigError(f"{what} has {len(message.initial_state)} initial states; give one")
    state = State(message.input_name, message.output_name, datatype, _dims(what, message.dims))
    if not message.initial_state:
        return state
    initial = message.initial_state[0]
    if _datatype(f"the initial state of {what}", initial.data_type) not in ("", datatype):
        raise ConfigError(f"{what} and its initial state have different data_types; correct one")
    file = _plain_name(f"{what}: data_file", initial.data_file)
    return replace(state, initial_file=file, initial_dims=_dims(what, initial.dims, is_open=False))


def _warmup(message: pb.ModelWarmup, rows: int) -> Warmup:
    what = f"model_warmup {message.name!r}"
    if message.batch_size > max(rows, 1):
        raise ConfigError(f"{what} has batch_size {message.batch_size}, more than max_batch_size ({rows})")
    if message.count > _MOST_COUNT:
        raise ConfigError(f"{what} has count {message.count}; give at most {_MOST_COUNT}")
    inputs = tuple(
        _warmup_input(f"{what}: input {name!r}", name, each) for name, each in sorted(message.inputs.items())
    )
    return Warmup(message.name, max(1, message.batch_size) if rows else 0, max(1, message.count), inputs)


def _warmup_input(what: str, name: str, message: pb.ModelWarmup.Input) -> WarmupInput:
    dims, datatype = _dims(what, message.dims, is_open=False), _datatype(what, message.data_type)
    match message.WhichOneof("input_data_type"):
        case "input_data_file":
            require_plain_name(f"{what}: input_data_file", message.input_data_file)
            return WarmupInput(name, datatype, dims, "file", message.input_data_file)
        case "random_data":
            return WarmupInput(name, datatype, dims, "random")
        case "zero_data":
            return WarmupInput(name, datatype, dims)
    raise ConfigError(f"{what} has no data; set zero_data, random_data or input_data_file")
