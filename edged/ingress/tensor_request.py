"""From a ModelInferRequest to checked input tensors, and from an answer to a ModelInferResponse. Pure."""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Sequence

import numpy as np

from edged.backend.contract import Signature
from edged.backend.profile import Profile, Range
from edged.errors import InvalidInput
from edged.proto import open_inference_pb2 as pb
from edged.serving.work import Answered, InputTensor
from edged.tensors import DATATYPES, TensorSpec, byte_size, numpy_dtype

# Which typed field carries a datatype; FP16 and BF16 have none.
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
_ANY = Profile()


def inputs_of(request: pb.ModelInferRequest, signature: Signature, profile: Profile = _ANY) -> tuple[InputTensor, ...]:
    """The request's inputs in the signature's terms; InvalidInput, naming the tensor, for everything that is wrong.

    `profile` is the range of shapes that every engine of the model must be able to take.
    """
    specs = {spec.name: spec for spec in signature.inputs}
    names = [tensor.name for tensor in request.inputs]
    if len(set(names)) != len(names):
        raise InvalidInput(f"input {_most_common(names)!r} is given more than once")
    missing = [name for name in specs if name not in names]
    if missing:
        raise InvalidInput(f"input {missing[0]!r} is missing; the model takes {_list(signature.inputs)}")
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise InvalidInput(f"{len(request.inputs)} inputs but {len(raw)} raw contents; send one raw entry per input")
    tensors = []
    for index, tensor in enumerate(request.inputs):
        spec = specs.get(tensor.name)
        if spec is None:
            raise InvalidInput(f"there is no input {tensor.name!r}; the model takes {_list(signature.inputs)}")
        shape = _shape(tensor, spec)
        _require_within(profile.range(spec.name), shape)
        if raw and tensor.HasField("contents"):
            raise InvalidInput(f"input {tensor.name!r} has raw and typed contents; send one of them")
        data = _check_raw(tensor.name, spec, shape, raw[index]) if raw else _typed(tensor, spec, shape)
        tensors.append(InputTensor(spec.name, spec.datatype, shape, data))
    return tuple(tensors)


def outputs_of(request: pb.ModelInferRequest, signature: Signature) -> tuple[str, ...] | None:
    """The requested output names, None for all; InvalidInput for an unknown one."""
    names = [output.name for output in request.outputs]
    known = {spec.name for spec in signature.outputs}
    for name in names:
        if name not in known:
            raise InvalidInput(f"there is no output {name!r}; the model gives {_list(signature.outputs)}")
    if len(set(names)) != len(names):
        raise InvalidInput(f"output {_most_common(names)!r} is requested more than once")
    return tuple(names) or None


def response(request: pb.ModelInferRequest, name: str, version: str, answer: Answered) -> pb.ModelInferResponse:
    """The answer on the wire: one raw entry per output, always, and the id echoed."""
    message = pb.ModelInferResponse(model_name=name, model_version=version, id=request.id)
    for tensor in answer.outputs:
        shape = [int(dim) for dim in tensor.shape]
        message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=shape)
        message.raw_output_contents.append(tensor.data)
    return message


def _shape(tensor: pb.ModelInferRequest.InferInputTensor, spec: TensorSpec) -> tuple[int, ...]:
    if tensor.datatype != spec.datatype:
        given = tensor.datatype if tensor.datatype in DATATYPES else repr(tensor.datatype[:40])
        raise InvalidInput(f"input {spec.name!r} is {spec.datatype}, the request says {given}")
    shape = tuple(tensor.shape)
    sane = len(shape) <= _MAX_RANK and all(0 <= dim <= _MAX_ELEMENTS for dim in shape)
    if not sane or math.prod(shape) > _MAX_ELEMENTS:
        raise InvalidInput(f"input {spec.name!r} has the impossible shape {list(shape)[:16]}")
    if not spec.admits(shape):
        raise InvalidInput(f"input {spec.name!r} is {list(spec.dims)}, the request says {list(shape)[:16]}")
    return shape


def _require_within(allowed: Range | None, shape: tuple[int, ...]) -> None:
    """Whatever engine serves at the moment: a client must not be refused from the next swap on."""
    if allowed is not None and not allowed.contains(shape):
        least, most = list(allowed.minimum), list(allowed.maximum)
        raise InvalidInput(
            f"input {allowed.name!r} is {list(shape)}, engines of this model are made for {least} to {most}; "
            f"set the model's profile.{allowed.name} to have them take more"
        )


def _check_raw(name: str, spec: TensorSpec, shape: tuple[int, ...], data: bytes) -> bytes:
    if spec.datatype != "BYTES" and len(data) != byte_size(spec.datatype, shape):
        wanted = byte_size(spec.datatype, shape)
        raise InvalidInput(f"input {name!r} holds {len(data)} bytes, {spec.datatype}{list(shape)} takes {wanted}")
    return data


def _typed(tensor: pb.ModelInferRequest.InferInputTensor, spec: TensorSpec, shape: tuple[int, ...]) -> bytes:
    field = _TYPED.get(spec.datatype)
    if field is None:
        raise InvalidInput(f"input {spec.name!r} is {spec.datatype}, which only raw contents can carry")
    values: Sequence[object] = getattr(tensor.contents, field)
    if len(values) != math.prod(shape):
        raise InvalidInput(
            f"input {spec.name!r} has {len(values)} values in {field}, shape {list(shape)} takes {math.prod(shape)}"
        )
    if spec.datatype == "BYTES":
        return b"".join(struct.pack("<I", len(v)) + v for v in values if isinstance(v, bytes))
    dtype = numpy_dtype(spec.datatype)
    wide = np.asarray(
        values, dtype=np.dtype(np.int64) if dtype.kind == "i" else dtype if dtype.kind != "u" else np.uint64
    )
    narrow = wide.astype(dtype)
    if dtype.kind in "iu" and not np.array_equal(narrow, wide):
        raise InvalidInput(f"input {spec.name!r} has values that do not fit {spec.datatype}")
    return narrow.tobytes()


def _most_common(names: Sequence[str]) -> str:
    return Counter(names).most_common(1)[0][0]


def _list(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{s.name} {s.datatype}{list(s.dims)}" for s in specs) or "none"
