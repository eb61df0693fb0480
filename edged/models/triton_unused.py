"""What a Triton configuration says that edged does not act on, a line each. Pure.

It goes over everything that is set, so that a field which nobody thought of is told of rather than passed over.
"""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.message import Message

from edged.proto import model_config_pb2 as pb

# Fields that edged acts on, by path; one that ends with ".*" with all that is in it.
_USED = frozenset(
    {
        "name",
        "platform",
        "backend",
        "max_batch_size",
        "default_model_filename",
        "version_policy.*",
        "input.name",
        "input.data_type",
        "input.dims",
        "output.name",
        "output.data_type",
        "output.dims",
        "output.label_filename",
        "dynamic_batching.preferred_batch_size",
        "dynamic_batching.max_queue_delay_microseconds",
        "dynamic_batching.priority_levels",
        "dynamic_batching.default_priority_level",
        "dynamic_batching.default_queue_policy.*",
        "dynamic_batching.priority_queue_policy.*",
        "sequence_batching.max_sequence_idle_microseconds",
        "sequence_batching.control_input.*",
        "sequence_batching.state.input_name",
        "sequence_batching.state.output_name",
        "sequence_batching.state.data_type",
        "sequence_batching.state.dims",
        "sequence_batching.state.initial_state.*",
        "model_warmup.*",
        "model_transaction_policy.*",
        "instance_group.name",  # told of by `_instances`
        "instance_group.kind",
        "instance_group.count",
        "instance_group.gpus",
    }
)
_WHY = {
    "optimization": "edged makes engines for everything this box has, measures them, and serves the fastest",
    "input.reshape": "requests bring the model's own shape",
    "output.reshape": "answers have the model's own shape",
    "input.format": "the layout of pictures is read off the model, or set by preprocess.*",
    "input.optional": "an input is optional if the model has a default for it",
    "dynamic_batching.preserve_ordering": "the answers of one stream are in order, others come as they are ready",
    "sequence_batching.direct": "requests of sequences go one by one",
    "sequence_batching.oldest": "requests of sequences go one by one",
    "sequence_batching.state": "where a state is kept is edged's own affair",
    "response_cache": "every request is inferred",
    "parameters": "they are for Triton's backends; those of edged are model settings",
    "instance_group.rate_limiter": "engines share a device in turns",
    "metric_tags": "the labels of edged's metrics are fixed: docs/metrics.md",
    "model_metrics": "edged has the same metrics for every model: docs/metrics.md",
    "cc_model_filenames": "an ONNX model has one file",
}


def unused(message: pb.ModelConfig) -> list[str]:
    """One line for every field that is set to no effect, in the order of the message."""
    lines = [f"{path}: not used; {why}" if (why := _why(path)) else f"{path}: not used" for path in _paths(message, "")]
    return list(dict.fromkeys([*lines, *_instances(message)]))


def shown(name: str) -> str:
    """A name from the file within a line: not too long, and without what would end the line."""
    return name[:80] if name[:80].isprintable() else ascii(name[:80])


def _paths(message: Message, prefix: str) -> Iterator[str]:
    for field, value in message.ListFields():
        path = f"{prefix}{field.name}"
        if path in _USED or f"{path}.*" in _USED:
            continue
        if field.message_type is None:
            yield path
        elif field.message_type.GetOptions().map_entry:
            yield from (f"{path}[{shown(str(key))}]" for key in value)
        elif isinstance(value, Message):
            yield from _paths(value, f"{path}.")
        else:
            for each in value:
                yield from _paths(each, f"{path}.")


def _why(path: str) -> str:
    plain = path.partition("[")[0]
    return next((why for start, why in _WHY.items() if plain == start or plain.startswith(f"{start}.")), "")


def _instances(message: pb.ModelConfig) -> Iterator[str]:
    """A box has few devices, and which one is the fastest is measured: kinds and counts are wishes of a server's."""
    for group in message.instance_group:
        if group.count > 1:
            yield f"instance_group.count: {group.count} is not used; one engine answers, of which there is always one"
        if group.kind in (pb.ModelInstanceGroup.KIND_CPU, pb.ModelInstanceGroup.KIND_GPU) or group.gpus:
            yield (
                "instance_group.kind: not used; edged measures which device is the fastest, and the setting `backends` "
                "says which may be tried"
            )
