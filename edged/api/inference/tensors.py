"""From a request to checked input tensors and the outputs that it wants. Pure."""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

import numpy as np

from edged.api.grpc.wire import Request
from edged.api.inference.bounds import Bounds
from edged.api.inference.parameters import Place, Wanted, place, wanted
from edged.backends.contract import Signature
from edged.errors import InvalidTensor
from edged.proto import open_inference_pb2 as pb
from edged.serving.work import Blob, InputTensor, Source
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
_MANY = 64 << 10  # bytes of values in a message
_BLOCK = 4096  # values that are converted at a time
_MOST_NAMED = 16  # tensors of a model in one message, which has to fit into a status
_ANY = Bounds()

# Finds a tensor, named as in messages, in shared memory.
Locate: TypeAlias = Callable[[Place, str], Source]


def inputs_of(
    request: Request,
    signature: Signature,
    bounds: Bounds = _ANY,
    locate: Locate | None = None,
    filled: Collection[str] = (),
    optional: Sequence[TensorSpec] = (),
) -> tuple[InputTensor, ...]:
    """The request's inputs in the signature's terms; InvalidInput, naming the tensor, for everything that is wrong.

    `bounds` are the shapes that the model takes. `locate` finds what lies in shared memory, and raises what keeps it
    from that. `filled` are inputs that edged gives, `optional` those that have a default.
    """
    message = request.message
    specs = {spec.name: spec for spec in (*signature.inputs, *optional)}
    _require_names([tensor.name for tensor in message.inputs], signature, filled, specs.keys())
    places = [place(tensor.parameters, f"input {tensor.name[:60]!r}") for tensor in message.inputs]
    carried, raw = places.count(None), iter(request.raw)
    if request.raw and len(request.raw) != carried:
        where = " that are not in shared memory" if carried < len(places) else ""
        raise InvalidTensor(
            f"{carried} inputs{where} but {len(request.raw)} raw contents; send one raw entry for each of them"
        )
    shapes = {tensor.name: _shape(tensor, specs[tensor.name]) for tensor in message.inputs}
    bounds.check(shapes)
    tensors = []
    for tensor, found in zip(message.inputs, places, strict=True):
        spec, shape = specs[tensor.name], shapes[tensor.name]
        if (request.raw or found) and tensor.HasField("contents"):
            what = "raw and typed contents" if found is None else "contents and a place in shared memory"
            raise InvalidTensor(f"input {spec.name!r} has {what}; send one of them")
        if found is not None:
            data: Blob = _located(found, spec, shape, locate)
        elif request.raw:
            data = next(raw)
            _require_size(spec, shape, len(data))
        else:
            data = _typed(tensor, spec, shape)
        tensors.append(InputTensor(spec.name, spec.datatype, shape, data))
    return tuple(tensors)


def has_many_values(request: Request) -> bool:
    """Whether to convert the values in a message takes longer than others can wait."""
    return not request.raw and request.message.ByteSize() > _MANY


def outputs_of(request: Request, signature: Signature) -> tuple[Wanted, ...]:
    """The requested outputs, none for all; InvalidInput for an unknown one."""
    found = wanted(request.message.outputs)
    known = {spec.name for spec in signature.outputs}
    for each in found:
        if each.name not in known:
            raise InvalidTensor(f"there is no output {each.name[:60]!r}; the model gives {_list(signature.outputs)}")
    return found


def _require_names(names: list[str], signature: Signature, filled: Collection[str], admitted: Collection[str]) -> None:
    if len(set(names)) != len(names):
        raise InvalidTensor(f"input {Counter(names).most_common(1)[0][0][:60]!r} is given more than once")
    known = [spec.name for spec in signature.inputs]
    missing = next((name for name in known if name not in names and name not in filled), None)
    if missing is not None:
        raise InvalidTensor(f"input {missing!r} is missing; the model takes {_list(signature.inputs)}")
    for name in names:
        if name not in admitted:
            raise InvalidTensor(f"there is no input {name[:60]!r}; the model takes {_list(signature.inputs)}")
        if name in filled:
            raise InvalidTensor(f"input {name!r} is filled in by edged in each request of a sequence; leave it out")


def _located(where: Place, spec: TensorSpec, shape: tuple[int, ...], locate: Locate | None) -> Source:
    if locate is None:
        raise InvalidTensor(f"input {spec.name!r} is in shared memory, which is not read here; send its contents")
    source = locate(where, f"input {spec.name!r}")
    _require_size(spec, shape, where.size)
    return source


def _shape(tensor: pb.ModelInferRequest.InferInputTensor, spec: TensorSpec) -> tuple[int, ...]:
    if tensor.datatype != spec.datatype:
        given = tensor.datatype if tensor.datatype in DATATYPES else repr(tensor.datatype[:40])
        raise InvalidTensor(f"input {spec.name!r} is {spec.datatype}, the request says {given}")
    shape = tuple(tensor.shape)
    sane = len(shape) <= _MAX_RANK and all(0 <= dim <= _MAX_ELEMENTS for dim in shape)
    if not sane or math.prod(shape) > _MAX_ELEMENTS:
        raise InvalidTensor(f"input {spec.name!r} has the impossible shape {list(shape)[:16]}")
    if not spec.admits(shape):
        raise InvalidTensor(f"input {spec.name!r} is {list(spec.dims)}, the request says {list(shape)[:16]}")
    return shape


def _require_size(spec: TensorSpec, shape: tuple[int, ...], size: int) -> None:
    if spec.datatype != "BYTES" and size != byte_size(spec.datatype, shape):
        takes = f"{spec.datatype}{list(shape)[:16]} takes {byte_size(spec.datatype, shape)}"
        raise InvalidTensor(f"input {spec.name!r} holds {size} bytes, {takes}")


def _typed(tensor: pb.ModelInferRequest.InferInputTensor, spec: TensorSpec, shape: tuple[int, ...]) -> bytes:
    field = _TYPED.get(spec.datatype)
    if field is None:
        raise InvalidTensor(f"input {spec.name!r} is {spec.datatype}, which only raw contents can carry")
    values: Sequence[object] = getattr(tensor.contents, field)
    if len(values) != math.prod(shape):
        raise InvalidTensor(
            f"input {spec.name!r} has {len(values)} values in {field}, shape {list(shape)} takes {math.prod(shape)}"
        )
    if spec.datatype == "BYTES":
        return b"".join(struct.pack("<I", len(v)) + v for v in values if isinstance(v, bytes))
    dtype = numpy_dtype(spec.datatype)
    wide = np.empty(len(values), np.int64 if dtype.kind == "i" else dtype if dtype.kind != "u" else np.uint64)
    for start in range(0, len(values), _BLOCK):  # in one go nothing else would run meanwhile, of any thread
        wide[start : start + _BLOCK] = values[start : start + _BLOCK]
    narrow = wide.astype(dtype)
    if dtype.kind in "iu" and not np.array_equal(narrow, wide):
        raise InvalidTensor(f"input {spec.name!r} has values that do not fit {spec.datatype}")
    return narrow.tobytes()


def _list(specs: Sequence[TensorSpec]) -> str:
    named = [f"{s.name[:60]} {s.datatype}{list(s.dims)}" for s in specs[:_MOST_NAMED]]
    more = [f"{len(specs) - _MOST_NAMED} more"] if len(specs) > _MOST_NAMED else []
    return ", ".join(named + more) or "none"
