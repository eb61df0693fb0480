"""From the body of an inference over HTTP to the protocol's messages, and from those to the body of the answer. Pure.

A body is JSON; with the header `Inference-Header-Content-Length` it is that many bytes of JSON, and behind them the raw
contents of the tensors that have the parameter `binary_data_size`, in their order.
Format: https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeAlias

import msgspec

from edged.api.http import values
from edged.api.http.exchange import JSON, HttpResponse, Part
from edged.api.http.values import Piece, set_aside
from edged.decoding import explain
from edged.errors import InvalidInput, InvalidTensor
from edged.files import NOT_JSON
from edged.proto import model_config_pb2
from edged.proto import open_inference_pb2 as pb
from edged.tensors import DATATYPES

HEADER_LENGTH = "inference-header-content-length"
OCTETS = "application/octet-stream"
_REGION = "shared_memory_region"
_SIZE, _WANTED, _ALL_WANTED = "binary_data_size", "binary_data", "binary_data_output"
_LARGEST = (1 << 64) - 1
_LARGE = 1 << 18  # bytes of JSON above which long lists are not decoded with the rest
_TWICE = f"input {{!r}} is sent in two ways; give one of data, {_SIZE} and {_REGION}"

Parameter: TypeAlias = "bool | int | float | str"
Parameters: TypeAlias = dict[str, bool | int | float | str]


_NONE = msgspec.Raw(b"")


class _Input(msgspec.Struct, frozen=True):
    name: str
    shape: Annotated[list[int], msgspec.Meta(max_length=64)]
    datatype: str
    parameters: Parameters = {}
    data: msgspec.Raw = _NONE

    @property
    def text(self) -> bytes:
        """The values as JSON; empty where there are none."""
        text = bytes(self.data)
        return b"" if text == b"null" else text


class _Output(msgspec.Struct, frozen=True):
    name: str
    parameters: Parameters = {}


class _Inference(msgspec.Struct, frozen=True):
    inputs: Annotated[list[_Input], msgspec.Meta(max_length=1024)]
    id: str = ""
    parameters: Parameters = {}
    outputs: Annotated[list[_Output], msgspec.Meta(max_length=1024)] = []


class OutputFormat(msgspec.Struct, frozen=True):
    """How the outputs are to be sent: as raw contents where `binary` says so by name, else as `default` says."""

    default: bool = False
    binary: Mapping[str, bool] = {}

    def is_binary(self, output: str) -> bool:
        return self.binary.get(output, self.default)


class InferRequest(msgspec.Struct, frozen=True):
    """A request: its message without contents, those of its inputs that are not in shared memory, and what is wished
    of the answer."""

    message: pb.ModelInferRequest
    raw: tuple[Part, ...]
    format: OutputFormat


_decoder = msgspec.json.Decoder(_Inference)
_encoder = msgspec.json.Encoder()


def read(model: str, version: str, body: bytes, header_length: int | None) -> InferRequest:
    """The request in a body. InvalidInput, naming the tensor, for what cannot be one; shapes are not compared with the
    model's."""
    if header_length is not None and header_length > len(body):
        raise InvalidInput(f"the JSON is said to have {header_length} bytes, the body has {len(body)}")
    said, lists = _decode(body if header_length is None else body[:header_length])
    behind = memoryview(body)[len(body) if header_length is None else header_length :]
    message = pb.ModelInferRequest(model_name=model, model_version=version, id=said.id)
    _set(message.parameters, {k: v for k, v in said.parameters.items() if k != _ALL_WANTED}, "the request")
    raw: list[Part] = []
    position = 0
    for each in said.inputs:
        _add(message, each)
        size = each.parameters.get(_SIZE)
        if size is not None:
            contents = _binary(each, size, behind[position:])
            position += len(contents)
            raw.append(contents)
        elif _REGION not in each.parameters or each.text:
            raw.append(_typed(each, lists))
    if position != len(behind):
        raise InvalidTensor(f"{len(behind)} bytes lie behind the JSON, its inputs account for {position}")
    binary: dict[str, bool] = {}
    for output in said.outputs:
        asked = message.outputs.add(name=output.name)
        if _WANTED in output.parameters:
            binary[output.name] = _flag(output.parameters[_WANTED], _WANTED)
        _set(asked.parameters, {k: v for k, v in output.parameters.items() if k != _WANTED}, f"output {output.name!r}")
    everything = _flag(said.parameters.get(_ALL_WANTED, False), _ALL_WANTED)
    return InferRequest(message, tuple(raw), OutputFormat(everything, binary))


def without_optional(
    metadata: pb.ModelMetadataResponse, config: model_config_pb2.ModelConfig
) -> pb.ModelMetadataResponse:
    """The metadata without the inputs that a request may leave out, which only the configuration tells."""
    optional = {each.name for each in config.input if each.optional}
    return pb.ModelMetadataResponse(inputs=[each for each in metadata.inputs if each.name not in optional])


def raw_request(model: str, version: str, metadata: pb.ModelMetadataResponse, body: bytes) -> InferRequest:
    """The request whose whole body is the one input of a model, for a header length of 0. InvalidInput where the
    model's metadata leaves open what it is."""
    if len(metadata.inputs) != 1:
        raise InvalidInput(f"model {model!r} has {len(metadata.inputs)} inputs; only one can be sent without JSON")
    spec = metadata.inputs[0]
    shape = list(spec.shape)
    contents: Part = body
    if spec.datatype == "BYTES":
        shape = [1 if dim < 0 else dim for dim in shape]
        contents = len(body).to_bytes(4, "little") + body
    else:
        shape = _completed(shape, values.item_size(spec.datatype), len(body), spec.name)
    message = pb.ModelInferRequest(model_name=model, model_version=version)
    message.inputs.add(name=spec.name, datatype=spec.datatype, shape=shape)
    return InferRequest(message, (contents,), OutputFormat(default=True))


def write(message: pb.ModelInferResponse, raw: Sequence[Part], format: OutputFormat) -> HttpResponse:
    """The body of the answer. `raw` has one entry for each output, empty for those in shared memory."""
    outputs: list[dict[str, Any]] = []
    behind: list[Part] = []
    for output, contents in zip(message.outputs, raw, strict=True):
        told: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": list(output.shape)}
        parameters = _get(output.parameters)
        if _REGION not in parameters and format.is_binary(output.name):
            parameters[_SIZE] = len(contents)
            behind.append(contents)
        elif _REGION not in parameters:
            told["data"] = msgspec.Raw(values.write(output.name, output.datatype, tuple(output.shape), contents))
        outputs.append({**told, "parameters": parameters} if parameters else told)
    head: dict[str, Any] = {"id": message.id} if message.id else {}
    head |= {"model_name": message.model_name, "model_version": message.model_version}
    if message.parameters:
        head["parameters"] = _get(message.parameters)
    text = _encoder.encode({**head, "outputs": outputs})
    if not behind:
        return HttpResponse(parts=(text,), headers=(("content-type", JSON),))
    length = (HEADER_LENGTH, str(len(text)))
    return HttpResponse(parts=(text, *behind), headers=(("content-type", OCTETS), length))


def _decode(text: bytes) -> tuple[_Inference, dict[bytes, Piece]]:
    """The request, and the long lists that its inputs name in place of their data. InvalidInput."""
    try:
        if len(text) > _LARGE:
            short, lists = set_aside(text)
            with contextlib.suppress(*NOT_JSON):
                said = _decode_all(short)
                if sorted(lists) == sorted(each.text for each in said.inputs if each.text in lists):
                    return said, lists
        return _decode_all(text), {}
    except NOT_JSON as error:
        raise InvalidInput(f"the request's JSON cannot be used: {explain(error)}") from None


def _decode_all(text: bytes) -> _Inference:
    try:
        return _decoder.decode(text)
    except msgspec.DecodeError:
        if not values.has_bare_words(text):
            raise
        return _decoder.decode(values.with_bare_words(text))


def _add(message: pb.ModelInferRequest, said: _Input) -> None:
    if said.datatype not in DATATYPES:
        raise InvalidTensor(f"input {said.name!r} has datatype {said.datatype[:40]!r}, unknown to the protocol")
    if not all(-(1 << 63) <= dim < 1 << 63 for dim in said.shape):
        raise InvalidTensor(f"input {said.name!r} has an impossible shape")
    tensor = message.inputs.add(name=said.name, datatype=said.datatype, shape=said.shape)
    _set(tensor.parameters, {k: v for k, v in said.parameters.items() if k != _SIZE}, f"input {said.name!r}")


def _binary(said: _Input, size: Parameter, behind: memoryview) -> memoryview:
    if said.text or _REGION in said.parameters:
        raise InvalidInput(_TWICE.format(said.name))
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise InvalidTensor(f"input {said.name!r}: {_SIZE} is not a whole number from 0 on")
    if size > len(behind):
        raise InvalidTensor(f"input {said.name!r} is said to have {size} bytes, {len(behind)} are left behind the JSON")
    return behind[:size]


def _typed(said: _Input, lists: Mapping[bytes, Piece]) -> Part:
    if _REGION in said.parameters:
        raise InvalidInput(_TWICE.format(said.name))
    if not said.text:
        raise InvalidTensor(f"input {said.name!r} has no values; give data, {_SIZE} or {_REGION}")
    return values.read(said.name, said.datatype, said.shape, lists.get(said.text, said.text))


def _completed(shape: list[int], item: int, size: int, name: str) -> list[int]:
    """A shape whose dynamic dimensions are found by the bytes there are: one, or a batch of 1 and one."""
    free = [index for index, dim in enumerate(shape) if dim < 0]
    if len(free) == 2 and free[0] == 0:
        shape = [1, *shape[1:]]
        free = free[1:]
    fixed = item * math.prod(dim for dim in shape if dim >= 0)
    if len(free) > 1:
        raise InvalidTensor(f"input {name!r} is {shape}, which the bytes alone do not tell; send JSON before them")
    if free and fixed:
        shape = [size // fixed if dim < 0 else dim for dim in shape]
    return shape


def _flag(value: Parameter, key: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"parameter {key!r} is not true or false")
    return value


def _set(parameters: Any, said: Parameters, whose: str) -> None:
    """`parameters` is a message's map of InferParameter."""
    for key, value in said.items():
        if isinstance(value, bool):
            parameters[key].bool_param = value
        elif isinstance(value, str):
            parameters[key].string_param = value
        elif isinstance(value, float):
            parameters[key].double_param = value
        elif -(1 << 63) <= value < 1 << 63:
            parameters[key].int64_param = value
        elif 0 <= value <= _LARGEST:
            parameters[key].uint64_param = value
        else:
            raise InvalidInput(f"parameter {key!r} of {whose} does not fit 64 bits")


def _get(parameters: Mapping[str, pb.InferParameter]) -> Parameters:
    found: Parameters = {}
    for key, parameter in parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        if kind is not None:
            found[key] = getattr(parameter, kind)
    return found
