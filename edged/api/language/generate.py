"""Serves language models by Triton's ModelStreamInfer, with the tensor names of Triton's backend for vLLM.

Inputs: `text_input`; optional are `stream`, `sampling_parameters` (a JSON text), `exclude_input_in_output`, `image`
(base64 texts), and `return_finish_reason`, `return_num_input_tokens`, `return_num_output_tokens`. Outputs:
`text_output`, and one for each `return_...` that is true.
Format: https://github.com/triton-inference-server/vllm_backend
"""

from __future__ import annotations

import struct
from base64 import b64decode
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final

import msgspec

from edged.api.grpc import wire
from edged.api.grpc.wire import Contents
from edged.api.inference.requests import EMPTY_FINAL, FINAL
from edged.api.language.requests import ChatMessage, ChatRequest
from edged.api.language.service import LanguageService
from edged.decoding import explain, ready
from edged.errors import InvalidInput
from edged.files import NOT_JSON
from edged.ipc.language_messages import Text
from edged.language.model import PlannedLanguageModel
from edged.proto import open_inference_pb2 as pb
from edged.tensors import TensorSpec

PLATFORM: Final = "vllm"
TEXT: Final = "text_input"
_FLAGS = ("return_finish_reason", "return_num_input_tokens", "return_num_output_tokens")
_TYPES = {
    TEXT: "BYTES",
    "stream": "BOOL",
    "sampling_parameters": "BYTES",
    "exclude_input_in_output": "BOOL",
    "image": "BYTES",
    **dict.fromkeys(_FLAGS, "BOOL"),
}
INPUTS: Final = tuple(TensorSpec(name, kind, (-1,) if name == "image" else (1,)) for name, kind in _TYPES.items())
OUTPUTS: Final = (
    TensorSpec("text_output", "BYTES", (-1,)),
    TensorSpec("finish_reason", "BYTES", (-1,)),
    TensorSpec("num_input_tokens", "UINT32", (1,)),
    TensorSpec("num_output_tokens", "UINT32", (-1,)),
)
_write = partial(wire.write, streamed=True)


class _Parameters(msgspec.Struct):
    """The `sampling_parameters` of vLLM that edged uses; others are ignored."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None


class _Asked(msgspec.Struct):
    request: ChatRequest
    prompt: str
    is_streamed: bool
    has_prompt: bool
    flags: dict[str, bool]


async def responses(
    service: LanguageService, planned: PlannedLanguageModel, request: wire.Request, peer: str
) -> AsyncGenerator[bytes, None]:
    """Yield the responses of a request. Raises InvalidInput, and the errors of the model."""
    asked = _read(request)
    answer = _Answer(planned, request, asked)
    whole = ""
    async with aclosing(service.answer(planned, asked.request, peer)) as texts:
        async for text in texts:
            whole += text.text
            answer.tokens += text.tokens
            if asked.is_streamed:
                yield answer.response(text.text, text)
            elif text.reason:
                yield answer.response((asked.prompt if asked.has_prompt else "") + whole, text)
    if answer.has_final:
        yield answer.final()


class _Answer:
    def __init__(self, planned: PlannedLanguageModel, request: wire.Request, asked: _Asked) -> None:
        self._planned, self._id, self._asked = planned, request.id, asked
        parameters = request.message.parameters
        self.has_final = EMPTY_FINAL in parameters and parameters[EMPTY_FINAL].bool_param  # an empty response follows
        self.tokens = self._reported = 0

    def response(self, text: str, last: Text) -> bytes:
        asked, outputs = self._asked, list[tuple[str, str, bytes]]()
        outputs.append(("text_output", "BYTES", _packed(text)))
        if asked.flags["return_finish_reason"]:
            outputs.append(("finish_reason", "BYTES", _packed(last.reason or "None")))
        if asked.flags["return_num_input_tokens"]:
            outputs.append(("num_input_tokens", "UINT32", struct.pack("<I", last.prompt_tokens)))
        if asked.flags["return_num_output_tokens"]:
            outputs.append(("num_output_tokens", "UINT32", struct.pack("<I", self.tokens - self._reported)))
            self._reported = self.tokens
        return self._written(outputs, is_final=bool(last.reason) and not self.has_final)

    def final(self) -> bytes:
        return self._written([], is_final=True)

    def _written(self, outputs: Sequence[tuple[str, str, bytes]], *, is_final: bool) -> bytes:
        entry = self._planned.entry
        message = pb.ModelInferResponse(model_name=entry.model, model_version=entry.version, id=self._id)
        message.parameters[FINAL].bool_param = is_final
        for name, datatype, _ in outputs:
            message.outputs.add(name=name, datatype=datatype, shape=(1,))
        return _write(message, [data for _, _, data in outputs])


def _read(request: wire.Request) -> _Asked:
    found: dict[str, list[bytes]] = {}
    raw = list(request.raw)
    for tensor in request.message.inputs:
        kind = _TYPES.get(tensor.name)
        if kind is None:
            raise InvalidInput(f"unknown input {tensor.name[:60]!r}; the inputs are {', '.join(_TYPES)}")
        if tensor.datatype != kind:
            raise InvalidInput(f"input {tensor.name!r} has the datatype {tensor.datatype[:20]!r}; send {kind}")
        if tensor.contents.ByteSize() or not raw:
            contents = tensor.contents
            found[tensor.name] = list(contents.bytes_contents) or [bytes([each]) for each in contents.bool_contents]
        else:
            found[tensor.name] = _values(tensor.name, kind, raw.pop(0))
    if raw:
        raise InvalidInput("the request has too many raw contents; send one for each input without typed contents")
    text = _text(found, TEXT)
    if text is None:
        raise InvalidInput(f"the request has no input {TEXT!r}; send the prompt in it")
    parameters = _parameters(_text(found, "sampling_parameters") or "{}")
    if parameters.max_tokens is not None and parameters.max_tokens < 1:
        raise InvalidInput(f"'max_tokens' is {parameters.max_tokens}; send at least 1")
    pictures = tuple(map(_picture, found.get("image", ())))
    is_streamed = _flag(found, "stream")
    stop = (parameters.stop,) if isinstance(parameters.stop, str) else tuple(parameters.stop or ())
    chat = ChatRequest(
        (ChatMessage("user", text, pictures),) if pictures else (),
        "" if pictures else text,
        parameters.max_tokens or 0,
        parameters.temperature,
        parameters.top_p,
        parameters.seed,
        stop,
    )
    excludes = _flag(found, "exclude_input_in_output") or is_streamed
    return _Asked(chat, text, is_streamed, not excludes, {name: _flag(found, name) for name in _FLAGS})


def _values(name: str, kind: str, data: Contents) -> list[bytes]:
    if kind == "BOOL":
        return [bytes([each]) for each in bytes(data)]
    found, place = list[bytes](), 0
    while place < len(data):
        if place + 4 > len(data):
            raise InvalidInput(f"input {name!r} is truncated: it ends inside an element")
        (length,) = struct.unpack_from("<I", data, place)
        if place + 4 + length > len(data):
            raise InvalidInput(f"input {name!r} is truncated: it ends inside an element")
        found.append(bytes(data[place + 4 : place + 4 + length]))
        place += 4 + length
    return found


def _text(found: dict[str, list[bytes]], name: str) -> str | None:
    values = found.get(name)
    if not values:
        return None
    try:
        return values[0].decode()
    except UnicodeDecodeError:
        raise InvalidInput(f"input {name!r} is not UTF-8") from None


def _flag(found: dict[str, list[bytes]], name: str) -> bool:
    return bool(found.get(name)) and found[name][0] != b"\0"


def _picture(data: bytes) -> bytes:
    try:
        return b64decode(data, validate=True)
    except ValueError:
        raise InvalidInput("input 'image' is not base64") from None


def _parameters(text: str) -> _Parameters:
    try:
        # Clients of Triton's backend for vLLM may send numbers as texts.
        return msgspec.json.decode(text, type=ready(_Parameters), strict=False)
    except NOT_JSON as error:
        raise InvalidInput(f"cannot parse input 'sampling_parameters': {explain(error)}") from None


def _packed(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<I", len(data)) + data
