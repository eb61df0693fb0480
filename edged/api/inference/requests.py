"""Parses and checks a request: its caller, input tensors, requested outputs and options. Pure."""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec
import numpy as np

from edged.api.grpc.wire import Request
from edged.backends.contract import Signature
from edged.backends.profile import PREFIX, Profile, Shape
from edged.errors import InvalidInput, InvalidTensor
from edged.models import shapes as model_shapes
from edged.models.model import Model
from edged.models.shapes import POLICY, Tie
from edged.proto import open_inference_pb2 as pb
from edged.serving.extents import Combination
from edged.serving.work import Blob, InputTensor, Source
from edged.tensors import DATATYPES, TensorSpec, byte_size, numpy_dtype

SequenceId: TypeAlias = "int | str"
Value: TypeAlias = "bool | int | float | str | None"

# The only reserved name that a client may send.
EMPTY_FINAL = "triton_enable_empty_final_response"
FINAL = "triton_final_response"
REGION, BYTE_SIZE, OFFSET = "shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"
CLASSIFICATION = "classification"
_RESERVED = "triton_"
_MICROSECONDS = 1e-6
_LONGEST_ID = 256
_MOST_CLASSES = 1 << 20


class Caller(msgspec.Struct, frozen=True):
    """The caller of a request. `peer` is the client as gRPC names it; `expires` is in seconds of time.monotonic().
    `patient`: if the queue is full, the request waits and is not refused. `streamed`: the caller accepts any number of
    responses."""

    peer: str
    expires: float = math.inf
    patient: bool = False
    streamed: bool = False


class Options(msgspec.Struct, frozen=True):
    """A request's parameters. `sequence` is 0 or empty for a request outside sequences; `timeout_s` 0 means no limit.

    `priority`: 1 goes first, 0 is the model's default. `empty_final`: a response without outputs follows the responses
    of a decoupled model.
    """

    sequence: SequenceId = 0
    starts: bool = False
    ends: bool = False
    priority: int = 0
    timeout_s: float = 0.0
    empty_final: bool = False


class Place(msgspec.Struct, frozen=True):
    """The place of a tensor in a registered region of shared memory; `offset` and `size` are in bytes."""

    region: str
    offset: int
    size: int


class RequestedOutput(msgspec.Struct, frozen=True):
    """A requested output. If `classes` is not 0, the response has that number of best classes in place of the output's
    values. If `place` is not None, the output is written to that place in shared memory."""

    name: str
    classes: int = 0
    place: Place | None = None


_Parameters: TypeAlias = "Mapping[str, pb.InferParameter]"


def options(parameters: _Parameters) -> Options:
    """Return the options in a request's parameters. Raises InvalidInput for a known parameter of the wrong type, or an
    unknown parameter with a reserved name. Other parameters are the client's own, and are ignored."""
    for key in parameters:
        if key.startswith(_RESERVED) and key != EMPTY_FINAL:
            raise InvalidInput(f"parameter {key[:60]!r} is reserved: names must not begin with {_RESERVED}; remove it")
    return Options(
        sequence=_sequence(parameters),
        starts=_flag(parameters, "sequence_start"),
        ends=_flag(parameters, "sequence_end"),
        priority=_number(parameters, "priority", "the request"),
        timeout_s=_number(parameters, "timeout", "the request") * _MICROSECONDS,
        empty_final=_flag(parameters, EMPTY_FINAL),
    )


def requested_outputs(
    outputs: Iterable[pb.ModelInferRequest.InferRequestedOutputTensor],
) -> tuple[RequestedOutput, ...]:
    """Return the requested outputs in their order; empty means all outputs. If an output is requested several times,
    the last request for it counts. Raises InvalidInput, naming the output."""
    found = {each.name: each for each in map(_requested, outputs)}
    return tuple(found.values())


def place(parameters: _Parameters, tensor: str) -> Place | None:
    """Return the place of a tensor in shared memory; None if the tensor is not there. Raises InvalidInput, naming the
    tensor."""
    if REGION not in parameters:
        stray = next((key for key in (BYTE_SIZE, OFFSET) if key in parameters), None)
        if stray is not None:
            raise InvalidInput(f"{tensor} has {stray!r} but no {REGION!r}; name the region")
        return None
    region = _value(parameters[REGION])
    if not isinstance(region, str) or not region:
        raise InvalidInput(f"{tensor}: {REGION!r} is not the name of a region")
    if BYTE_SIZE not in parameters:
        raise InvalidInput(f"{tensor} is in shared memory {region[:60]!r} but has no {BYTE_SIZE!r}; set it")
    return Place(region, _number(parameters, OFFSET, tensor), _number(parameters, BYTE_SIZE, tensor))


def _requested(output: pb.ModelInferRequest.InferRequestedOutputTensor) -> RequestedOutput:
    name = f"output {output.name[:60]!r}"
    classes = _number(output.parameters, CLASSIFICATION, name)
    if classes > _MOST_CLASSES:
        raise InvalidInput(f"{name}: {CLASSIFICATION!r} is {classes}; request at most {_MOST_CLASSES} classes")
    found = place(output.parameters, name)
    if classes and found is not None:
        raise InvalidInput(f"{name}: classification and shared memory cannot be combined; remove one of the two")
    return RequestedOutput(output.name, classes, found)


def _sequence(parameters: _Parameters) -> SequenceId:
    value = _value(parameters["sequence_id"]) if "sequence_id" in parameters else 0
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InvalidInput("parameter 'sequence_id' must be a whole number or a string")
    if isinstance(value, str) and len(value) > _LONGEST_ID:
        raise InvalidInput(f"parameter 'sequence_id' is longer than {_LONGEST_ID} characters")
    return value


def _flag(parameters: _Parameters, key: str) -> bool:
    value = _value(parameters[key]) if key in parameters else False
    if not isinstance(value, bool):
        raise InvalidInput(f"parameter {key!r} must be true or false")
    return value


def _number(parameters: _Parameters, key: str, whose: str) -> int:
    value = _value(parameters[key]) if key in parameters else 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidInput(f"parameter {key!r} of {whose} is not a whole number, 0 or more")
    return value


def _value(parameter: pb.InferParameter) -> Value:
    kind = parameter.WhichOneof("parameter_choice")
    return None if kind is None else getattr(parameter, kind)


class Bounds(msgspec.Struct, frozen=True):
    """The shapes that a model accepts: `profile` is the range of the shapes, empty for no limit; `ties` are the
    dimensions that inputs have in common; `open` are the inputs with a dynamic dimension, in the order of the model."""

    profile: Profile = Profile()
    ties: tuple[Tie, ...] = ()
    open: tuple[str, ...] = ()

    @classmethod
    def of(cls, model: Model) -> Bounds:
        # The signature of the model file. config.pbtxt may fix a dimension in one input and leave the dimension of the
        # same name dynamic in another input.
        signature = model.inspection.signature
        return cls(
            model.bounds,
            model_shapes.ties(signature),
            tuple(spec.name for spec in signature.inputs if not spec.is_static),
        )

    def check(self, shapes: Mapping[str, Shape]) -> None:
        """Refuse shapes that some engine may refuse: a swap of engines must not change the accepted shapes.

        Raises InvalidTensor, naming the tensor, its shape and the accepted shapes.
        """
        for allowed in self.profile.ranges:
            shape = shapes.get(allowed.name)
            if shape is not None and not allowed.contains(shape):
                least, most = list(allowed.minimum), list(allowed.maximum)
                raise InvalidTensor(
                    f"input {allowed.name!r} has the shape {list(shape)[:16]}, but it must be from {least} to {most};"
                    f" to change that, set the model's {PREFIX}{allowed.name}, or {POLICY}=any for no limit"
                )
        if unequal := model_shapes.unequal(self.ties, shapes):
            raise InvalidTensor(unequal)

    def combination(self, inputs: tuple[InputTensor, ...]) -> Combination:
        """Return the shapes of those inputs of a request that have a dynamic dimension. The daemon counts these shapes,
        and can build engines for frequent ones."""
        if not self.open:
            return ()
        shapes = {tensor.name: tensor.shape for tensor in inputs}
        return tuple((name, shapes[name]) for name in self.open if name in shapes)


# The typed field that carries a datatype; FP16 and BF16 have no such field.
_TYPED = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
_MAX_ELEMENTS = 1 << 40
_MAX_RANK = 32
_MANY = 64 << 10  # bytes of a message; converting the values of a larger message takes too long for the event loop
_BLOCK = 4096  # values that are converted at a time
_MOST_NAMED = 16  # limit of tensors that an error message names, since the message must fit into a status
_ANY = Bounds()

# Finds a tensor in shared memory; the text is the tensor's name in error messages.
Locate: TypeAlias = Callable[[Place, str], Source]


class DeclaredInput(msgspec.Struct, frozen=True):
    """An input as a request declares it, without its contents. `place` is its place in shared memory, None if the
    request carries the contents. `is_typed`: the request has typed contents for it."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    place: Place | None = None
    is_typed: bool = False

    def require_size(self, size: int) -> None:
        if self.datatype != "BYTES" and size != byte_size(self.datatype, self.shape):
            needs = f"{self.datatype}{list(self.shape)[:16]} needs {byte_size(self.datatype, self.shape)}"
            raise InvalidTensor(f"input {self.name!r} has {size} bytes, but {needs}")


def declared_inputs(
    message: pb.ModelInferRequest,
    signature: Signature,
    bounds: Bounds = _ANY,
    filled: Collection[str] = (),
    optional: Sequence[TensorSpec] = (),
) -> tuple[DeclaredInput, ...]:
    """Return the inputs that a request declares. Raises InvalidInput, naming the tensor.

    `bounds` are the shapes that the model accepts. `filled` are inputs that edged fills in, `optional` inputs with a
    default."""
    specs = {spec.name: spec for spec in (*signature.inputs, *optional)}
    _require_names([tensor.name for tensor in message.inputs], signature, filled, specs.keys())
    found = tuple(
        DeclaredInput(
            tensor.name,
            tensor.datatype,
            _shape(tensor.datatype, tuple(tensor.shape), specs[tensor.name]),
            place(tensor.parameters, f"input {tensor.name[:60]!r}"),
            tensor.HasField("contents"),
        )
        for tensor in message.inputs
    )
    bounds.check({each.name: each.shape for each in found})
    return found


def inputs_of(
    request: Request, declared: Sequence[DeclaredInput], locate: Locate | None = None
) -> tuple[InputTensor, ...]:
    """Return the request's inputs with their contents. `locate` finds tensors in shared memory. Raises InvalidInput,
    naming the tensor."""
    raw = request.raw
    if raw and len(raw) != (carried := sum(each.place is None for each in declared)):
        elsewhere = " that are not in shared memory" if carried < len(declared) else ""
        raise InvalidTensor(
            f"the request has {carried} inputs{elsewhere} but {len(raw)} raw contents; send one for each input"
        )
    tensors, rest = list[InputTensor](), iter(raw)
    for number, each in enumerate(declared):
        if each.is_typed and (raw or each.place is not None):
            what = "raw and typed contents" if each.place is None else "contents and a place in shared memory"
            raise InvalidTensor(f"input {each.name!r} has {what}; send only one of the two")
        if each.place is not None:
            data: Blob = _located(each, each.place, locate)
        elif raw:
            data = next(rest)
            each.require_size(len(data))
        else:
            data = _typed(request.message.inputs[number], each)
        tensors.append(InputTensor(each.name, each.datatype, each.shape, data))
    return tuple(tensors)


def require_fitting(
    tensors: Sequence[InputTensor], signature: Signature, bounds: Bounds, optional: Sequence[TensorSpec]
) -> None:
    """Check tensors that another model made, as `inputs_of` checks the tensors of a request. Raises InvalidTensor."""
    specs = {spec.name: spec for spec in (*signature.inputs, *optional)}
    _require_names([tensor.name for tensor in tensors], signature, (), specs.keys())
    bounds.check({tensor.name: _shape(tensor.datatype, tensor.shape, specs[tensor.name]) for tensor in tensors})


def rows(model: str, most: int, configured: int, inputs: Sequence[InputTensor | DeclaredInput]) -> int | None:
    """Return the batch size of a request, which is the first dimension of its inputs. None if the batch size is 0, if
    the inputs have no dimensions, or if the model has no batch dimension (`most` is 0). `most` is the largest batch
    size that the model accepts. `configured` is max_batch_size of the model's configuration, 0 if it has none.

    If `configured` is not 0, raises InvalidTensor for a batch size above `most`, and for inputs with different batch
    sizes. If `configured` is 0, the batch size is not checked, and inputs with different batch sizes give None.
    """
    counts = {tensor.shape[0] for tensor in inputs if tensor.shape}
    if not most or not counts or (len(counts) != 1 and not configured):
        return None
    if len(counts) != 1:
        shapes = ", ".join(f"{tensor.name} {list(tensor.shape)}" for tensor in inputs)
        raise InvalidTensor(f"the inputs of one request have different batch sizes (first dimensions): {shapes}")
    count = counts.pop()
    if count > most and configured:
        raise InvalidTensor(f"the request has batch size {count}, but model {model!r} takes at most {most}")
    return count or None


def has_many_values(request: Request) -> bool:
    """Whether converting the typed contents of a request would block the event loop for too long."""
    return not request.raw and request.message.ByteSize() > _MANY


def outputs_of(message: pb.ModelInferRequest, signature: Signature) -> tuple[RequestedOutput, ...]:
    """Return the requested outputs; empty for all. Raises InvalidTensor for an unknown output."""
    found = requested_outputs(message.outputs)
    known = {spec.name for spec in signature.outputs}
    for each in found:
        if each.name not in known:
            raise InvalidTensor(f"unknown output {each.name[:60]!r}; the model has {_list(signature.outputs)}")
    return found


def _require_names(names: list[str], signature: Signature, filled: Collection[str], admitted: Collection[str]) -> None:
    if len(set(names)) != len(names):
        raise InvalidTensor(f"input {Counter(names).most_common(1)[0][0][:60]!r} is sent more than once; send it once")
    known = [spec.name for spec in signature.inputs]
    missing = next((name for name in known if name not in names and name not in filled), None)
    if missing is not None:
        raise InvalidTensor(f"input {missing!r} is missing; the model has {_list(signature.inputs)}")
    for name in names:
        if name not in admitted:
            raise InvalidTensor(f"unknown input {name[:60]!r}; the model has {_list(signature.inputs)}")
        if name in filled:
            raise InvalidTensor(f"edged fills in input {name!r} in each request of a sequence; do not send it")


def _located(declared: DeclaredInput, found: Place, locate: Locate | None) -> Source:
    if locate is None:
        raise InvalidTensor(f"input {declared.name!r}: this call takes no shared memory; send the contents")
    source = locate(found, f"input {declared.name!r}")
    declared.require_size(found.size)
    return source


def _shape(datatype: str, shape: tuple[int, ...], spec: TensorSpec) -> tuple[int, ...]:
    if datatype != spec.datatype:
        given = datatype if datatype in DATATYPES else repr(datatype[:40])
        raise InvalidTensor(f"input {spec.name!r} of the model is {spec.datatype}, but the request says {given}")
    sane = len(shape) <= _MAX_RANK and all(0 <= dim <= _MAX_ELEMENTS for dim in shape)
    if not sane or math.prod(shape) > _MAX_ELEMENTS:
        raise InvalidTensor(
            f"input {spec.name!r} has the impossible shape {list(shape)[:16]}; give at most {_MAX_RANK} dimensions,"
            f" none below 0, and at most {_MAX_ELEMENTS} elements"
        )
    if not spec.admits(shape):
        raise InvalidTensor(
            f"input {spec.name!r} of the model is {list(spec.dims)}, but the request says {list(shape)[:16]}"
        )
    return shape


def _typed(tensor: pb.ModelInferRequest.InferInputTensor, declared: DeclaredInput) -> bytes:
    name, datatype, shape = declared.name, declared.datatype, declared.shape
    field = _TYPED.get(datatype)
    if field is None:
        raise InvalidTensor(f"input {name!r} is {datatype}, which only raw contents can carry; send raw contents")
    values: Sequence[object] = getattr(tensor.contents, field)
    if len(values) != math.prod(shape):
        raise InvalidTensor(
            f"input {name!r} has {len(values)} values in {field}, but shape {list(shape)} needs {math.prod(shape)}"
        )
    if datatype == "BYTES":
        return b"".join(struct.pack("<I", len(v)) + v for v in values if isinstance(v, bytes))
    dtype = numpy_dtype(datatype)
    wide = np.empty(len(values), np.int64 if dtype.kind == "i" else dtype if dtype.kind != "u" else np.uint64)
    for start in range(0, len(values), _BLOCK):  # one large copy would hold the GIL for too long
        wide[start : start + _BLOCK] = values[start : start + _BLOCK]
    narrow = wide.astype(dtype)
    if dtype.kind in "iu" and not np.array_equal(narrow, wide):
        raise InvalidTensor(f"input {name!r} has values that do not fit {datatype}")
    return narrow.tobytes()


def _list(specs: Sequence[TensorSpec]) -> str:
    named = [f"{s.name[:60]} {s.datatype}{list(s.dims)}" for s in specs[:_MOST_NAMED]]
    more = [f"{len(specs) - _MOST_NAMED} more"] if len(specs) > _MOST_NAMED else []
    return ", ".join(named + more) or "none"
