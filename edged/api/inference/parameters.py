"""What a request says beside its tensors: its parameters, and those of its inputs and requested outputs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from edged.errors import InvalidInput
from edged.proto import open_inference_pb2 as pb

SequenceId: TypeAlias = "int | str"
Value: TypeAlias = "bool | int | float | str | None"

# The one of the reserved names that a client may send.
EMPTY_FINAL = "triton_enable_empty_final_response"
FINAL = "triton_final_response"
REGION, BYTE_SIZE, OFFSET = "shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"
CLASSIFICATION = "classification"
_RESERVED = "triton_"
_MICROSECONDS = 1e-6
_LONGEST_ID = 256
_MOST_CLASSES = 1 << 20


class Options(msgspec.Struct, frozen=True):
    """A request's parameters. `sequence` is 0 or empty where it belongs to none; `timeout_s` 0 means no limit.

    `priority`: 1 goes first, 0 is the model's default. `empty_final`: the end of a decoupled model's responses is told
    by one without outputs.
    """

    sequence: SequenceId = 0
    starts: bool = False
    ends: bool = False
    priority: int = 0
    timeout_s: float = 0.0
    empty_final: bool = False


class Place(msgspec.Struct, frozen=True):
    """Where in a registered region of shared memory a tensor lies, in bytes."""

    region: str
    offset: int
    size: int


class Wanted(msgspec.Struct, frozen=True):
    """A requested output: as it is, its `classes` best classes, or written into shared memory."""

    name: str
    classes: int = 0
    place: Place | None = None


_Parameters: TypeAlias = "Mapping[str, pb.InferParameter]"


def options(parameters: _Parameters) -> Options:
    """InvalidInput for a known parameter of the wrong kind, and for unknown ones in the server's name space. Whatever
    else clients send is their own and means nothing here."""
    for key in parameters:
        if key.startswith(_RESERVED) and key != EMPTY_FINAL:
            raise InvalidInput(f"parameter {key[:60]!r} is reserved: no name may begin with {_RESERVED}; leave it out")
    return Options(
        sequence=_sequence(parameters),
        starts=_flag(parameters, "sequence_start"),
        ends=_flag(parameters, "sequence_end"),
        priority=_number(parameters, "priority", "the request"),
        timeout_s=_number(parameters, "timeout", "the request") * _MICROSECONDS,
        empty_final=_flag(parameters, EMPTY_FINAL),
    )


def wanted(outputs: Iterable[pb.ModelInferRequest.InferRequestedOutputTensor]) -> tuple[Wanted, ...]:
    """The requested outputs in their order; none means all of them. One that is requested several times comes once,
    as it was asked for last. InvalidInput, naming the output."""
    found = {each.name: each for each in map(_wanted, outputs)}
    return tuple(found.values())


def place(parameters: _Parameters, tensor: str) -> Place | None:
    """Where in shared memory a tensor lies; None where it does not. InvalidInput, naming the tensor."""
    if REGION not in parameters:
        stray = next((key for key in (BYTE_SIZE, OFFSET) if key in parameters), None)
        if stray is not None:
            raise InvalidInput(f"{tensor} has {stray} and no {REGION}; name the region")
        return None
    region = _value(parameters[REGION])
    if not isinstance(region, str) or not region:
        raise InvalidInput(f"{tensor}: {REGION} is not the name of a region")
    if BYTE_SIZE not in parameters:
        raise InvalidInput(f"{tensor} lies in shared memory {region[:60]!r} and has no {BYTE_SIZE}")
    return Place(region, _number(parameters, OFFSET, tensor), _number(parameters, BYTE_SIZE, tensor))


def _wanted(output: pb.ModelInferRequest.InferRequestedOutputTensor) -> Wanted:
    name = f"output {output.name[:60]!r}"
    classes = _number(output.parameters, CLASSIFICATION, name)
    if classes > _MOST_CLASSES:
        raise InvalidInput(f"{name}: {CLASSIFICATION} is {classes}; ask for at most {_MOST_CLASSES} classes")
    where = place(output.parameters, name)
    if classes and where is not None:
        raise InvalidInput(f"{name} cannot be classified into shared memory; ask for one of the two")
    return Wanted(output.name, classes, where)


def _sequence(parameters: _Parameters) -> SequenceId:
    value = _value(parameters["sequence_id"]) if "sequence_id" in parameters else 0
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InvalidInput("parameter 'sequence_id' is neither a whole number nor text")
    if isinstance(value, str) and len(value) > _LONGEST_ID:
        raise InvalidInput(f"parameter 'sequence_id' is longer than {_LONGEST_ID} characters")
    return value


def _flag(parameters: _Parameters, key: str) -> bool:
    value = _value(parameters[key]) if key in parameters else False
    if not isinstance(value, bool):
        raise InvalidInput(f"parameter {key!r} is not true or false")
    return value


def _number(parameters: _Parameters, key: str, whose: str) -> int:
    value = _value(parameters[key]) if key in parameters else 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidInput(f"parameter {key!r} of {whose} is not a whole number from 0 on")
    return value


def _value(parameter: pb.InferParameter) -> Value:
    kind = parameter.WhichOneof("parameter_choice")
    return None if kind is None else getattr(parameter, kind)
