"""OpenAI's protocol over HTTP: /v1/models, /v1/chat/completions and /v1/completions.

Format: https://platform.openai.com/docs/api-reference/chat. What a request asks for and no runtime here can do, such as
several choices, is refused and not ignored. Extensions of other servers that are accepted: `max_model_len` of a model,
`structured_outputs` of vLLM, and `response_format` of type `regex`.
"""

from __future__ import annotations

import json
import time
import uuid
from base64 import b64decode
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final, Literal

import msgspec

from edged.api.http.exchange import HttpRequest, HttpResponse, json_response, parse_json
from edged.api.http.streamed import Streamed
from edged.api.language import tools as tool_calls
from edged.api.language.requests import ChatMessage, ChatRequest
from edged.api.language.service import LanguageService
from edged.api.language.tools import HeldText, ToolCall
from edged.backends.language.contract import Guidance
from edged.errors import InvalidInput, ModelNotFound
from edged.ipc.language_messages import Text
from edged.language.model import PlannedLanguageModel

_DATA_URLS: Final = ("data:image/jpeg;base64,", "data:image/jpg;base64,", "data:image/png;base64,")
_EVENTS = (("content-type", "text/event-stream"), ("cache-control", "no-cache"))
_MOST_TOOLS = 128


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False


class _JsonSchema(msgspec.Struct):
    name: str = ""
    schema: dict[str, Any] | None = None


class _ResponseFormat(msgspec.Struct):
    type: str = "text"
    json_schema: _JsonSchema | None = None
    regex: str = ""


class _StructuredOutputs(msgspec.Struct):
    """An extension of vLLM."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None


class _ImageUrl(msgspec.Struct):
    url: str


class _Part(msgspec.Struct):
    type: str
    text: str = ""
    image_url: _ImageUrl | None = None


class _Function(msgspec.Struct):
    name: str
    arguments: str = "{}"


class _Call(msgspec.Struct):
    function: _Function
    id: str = ""
    type: str = "function"


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None
    name: str = ""
    tool_calls: list[_Call] | None = None
    tool_call_id: str = ""


class _Body(msgspec.Struct, kw_only=True):
    """What both requests have. Unknown fields are ignored, as by other servers."""

    model: str = ""
    stream: bool = False
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    response_format: _ResponseFormat | None = None
    structured_outputs: _StructuredOutputs | None = None


class ChatBody(_Body, kw_only=True):
    """A request for a chat completion."""

    messages: list[_Message]
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    logprobs: bool | None = None


class CompletionBody(_Body, kw_only=True):
    """A request for a completion of a prompt."""

    prompt: str | list[str]
    best_of: int | None = None
    logprobs: int | None = None
    echo: bool = False
    suffix: str | None = None


def models(service: LanguageService, model: str = "") -> HttpResponse:
    """Return the language models, those that are ready first, or one of them. Raises ModelNotFound."""
    rows = [
        {
            "id": each.name,
            "object": "model",
            "created": 0,
            "owned_by": "edged",
            "max_model_len": each.context,
            "state": each.state,
        }
        for each in service.models()
        if each.state != "refused"
    ]
    if model:
        row = next((row for row in rows if row["id"] == model), None)
        if row is None:
            raise ModelNotFound(f"no language model {model[:80]!r}; see GET /v1/models")
        return json_response(row)
    return json_response({"object": "list", "data": rows})


async def answer(service: LanguageService, http: HttpRequest, kind: Literal["chat", "completion"]) -> HttpResponse:
    """Answer a request as a whole. Raises InvalidInput, and the errors of the model."""
    wanted = read(http, kind)
    planned = service.find(wanted.model)
    text, tokens, last = "", 0, Text(0, "", 0)
    async with aclosing(service.answer(planned, wanted.request, http.peer)) as texts:
        async for each in texts:
            text, tokens, last = text + each.text, tokens + each.tokens, each
    return json_response(wanted.whole(planned, text, last.reason, _usage(last, tokens)))


def begin(service: LanguageService, http: HttpRequest, kind: Literal["chat", "completion"]) -> _Work:
    """Return the work of a streamed request: it calls its argument with each event. Raises InvalidInput."""
    wanted = read(http, kind)
    planned = service.find(wanted.model)

    async def work(send: Callable[[bytes], Awaitable[None]]) -> None:
        async with aclosing(wanted.events(planned, service.answer(planned, wanted.request, http.peer))) as events:
            async for event in events:
                await send(event)

    return work


_Work = Callable[[Callable[[bytes], Awaitable[None]]], Awaitable[None]]


async def stream(work: _Work) -> HttpResponse:
    """Return the response of a streamed request, once its first event is made. Raises the error of the model if there
    is none."""
    streamed = Streamed(work, _failed)
    await streamed.begin()
    return HttpResponse(headers=_EVENTS, stream=streamed)


def is_streamed(http: HttpRequest) -> bool:
    """Whether a request asks for events."""
    return parse_json(http.body, _Asked, "the request").stream


class _Asked(msgspec.Struct):
    stream: bool = False


class Wanted(msgspec.Struct, frozen=True):
    """A request, and how it is answered. `names` are those of its tools."""

    model: str
    kind: Literal["chat", "completion"]
    request: ChatRequest
    has_usage: bool = False
    names: tuple[str, ...] = ()
    identifier: str = ""
    created: int = 0

    def whole(self, planned: PlannedLanguageModel, text: str, reason: str, usage: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request that is not streamed."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": reason, "logprobs": None}
        if self.kind == "completion":
            choice["text"] = text
        else:
            calls = tool_calls.find_calls(text, self.names) if self.names else []
            choice["message"] = {"role": "assistant", "content": None if calls else text}
            if calls:
                choice["message"]["tool_calls"] = [_tool_call(call) for call in calls]
                choice["finish_reason"] = "tool_calls"
        return {**self._head(planned, is_chunk=False), "choices": [choice], "usage": usage}

    async def events(
        self, planned: PlannedLanguageModel, texts: AsyncGenerator[Text, None]
    ) -> AsyncGenerator[bytes, None]:
        """Yield the events of a streamed answer."""
        head, tokens, reason = self._head(planned, is_chunk=True), 0, ""
        held = HeldText() if self.names else None
        last = Text(0, "", 0)
        async with aclosing(texts):
            async for last in texts:
                if (
                    not tokens and self.kind == "chat"
                ):  # not before: until then the request can be refused by its status
                    yield _event({**head, "choices": [self._chunk({"role": "assistant", "content": ""})]})
                tokens += last.tokens
                text = last.text if held is None else held.take(last.text)
                if text:
                    yield _event({**head, "choices": [self._chunk({"content": text})]})
                reason = last.reason
        if held is not None and (rest := held.rest()):
            calls = tool_calls.find_calls(rest, self.names)
            delta: dict[str, Any] = {"content": rest}
            if calls:
                reason = "tool_calls"
                delta = {"tool_calls": [{"index": i, **_tool_call(call)} for i, call in enumerate(calls)]}
            yield _event({**head, "choices": [self._chunk(delta)]})
        yield _event({**head, "choices": [self._chunk({}, reason)]})
        if self.has_usage:
            yield _event({**head, "choices": [], "usage": _usage(last, tokens)})
        yield b"data: [DONE]\n\n"

    def _head(self, planned: PlannedLanguageModel, *, is_chunk: bool) -> dict[str, Any]:
        what = "text_completion" if self.kind == "completion" else f"chat.completion{'.chunk' if is_chunk else ''}"
        return {"id": self.identifier, "object": what, "created": self.created, "model": planned.entry.name}

    def _chunk(self, delta: dict[str, Any], reason: str = "") -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "finish_reason": reason or None, "logprobs": None}
        return {**choice, "text": delta.get("content", "")} if self.kind == "completion" else {**choice, "delta": delta}


def read(http: HttpRequest, kind: Literal["chat", "completion"]) -> Wanted:
    """Parse a request. Raises InvalidInput for what cannot be done."""
    identifier, created = f"{'chatcmpl' if kind == 'chat' else 'cmpl'}-{uuid.uuid4().hex}", int(time.time())
    if kind == "completion":
        completion = parse_json(http.body, CompletionBody, "the request")
        for name in ("best_of", "logprobs", "suffix"):
            if getattr(completion, name) not in (None, 1 if name == "best_of" else None):
                raise InvalidInput(f"{name} is not supported; leave it out")
        if isinstance(completion.prompt, list) and len(completion.prompt) != 1:
            raise InvalidInput("prompt has several texts; send a request for each")
        if completion.echo:
            raise InvalidInput("echo is not supported; leave it out")
        prompt = completion.prompt if isinstance(completion.prompt, str) else completion.prompt[0]
        request = msgspec.structs.replace(_common(completion, completion.max_tokens), prompt=prompt)
        return Wanted(completion.model, kind, request, _has_usage(completion), (), identifier, created)
    body = parse_json(http.body, ChatBody, "the request")
    if body.logprobs:
        raise InvalidInput("logprobs is not supported; leave it out")
    tools = _tools(body)
    request = _common(body, body.max_completion_tokens or body.max_tokens)
    messages = tuple(map(_message, body.messages))
    request = msgspec.structs.replace(request, messages=messages, tools=tuple(tools))
    forced = _forced(body, tools)
    if forced is not None:
        if request.guidance:
            raise InvalidInput("response_format and a required tool exclude each other; leave one out")
        request = msgspec.structs.replace(request, guidance="json_schema", grammar=json.dumps(forced))
    names = tuple(tool["function"]["name"] for tool in tools)
    return Wanted(body.model, kind, request, _has_usage(body), names, identifier, created)


def _has_usage(body: _Body) -> bool:
    return body.stream_options is not None and body.stream_options.include_usage


def _common(body: _Body, most: int | None) -> ChatRequest:
    if body.n not in (None, 1):
        raise InvalidInput(f"n is {body.n}, and one answer is made for a request; send several requests")
    for name in ("frequency_penalty", "presence_penalty"):
        if getattr(body, name):
            raise InvalidInput(f"{name} is not supported; leave it out")
    if most is not None and most < 1:
        raise InvalidInput(f"max_tokens is {most}; send at least 1")
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    guidance, grammar = _guidance(body)
    return ChatRequest(
        most_tokens=most or 0,
        temperature=body.temperature,
        top_p=body.top_p,
        seed=body.seed,
        stop=stop,
        guidance=guidance,
        grammar=grammar,
    )


def _guidance(body: _Body) -> tuple[Guidance, str]:
    """Return what the answer must follow, and the kind of that; empty if it is free."""
    structured, wanted = body.structured_outputs, body.response_format
    if structured is not None:
        if structured.json is not None:
            return "json_schema", structured.json if isinstance(structured.json, str) else json.dumps(structured.json)
        if structured.regex is not None:
            return "regex", structured.regex
        if structured.choice:
            return "regex", "|".join(map(_escaped, structured.choice))
    if wanted is None or wanted.type == "text":
        return "", ""
    if wanted.type == "json_object":
        return "json_schema", '{"type": "object"}'
    if wanted.type == "json_schema" and wanted.json_schema is not None and wanted.json_schema.schema is not None:
        return "json_schema", json.dumps(wanted.json_schema.schema)
    if wanted.type == "regex" and wanted.regex:
        return "regex", wanted.regex
    raise InvalidInput(
        f"response_format {wanted.type[:40]!r} is not complete or not known; send text, json_object, json_schema with"
        " a schema, or regex"
    )


def _escaped(text: str) -> str:
    return "".join(f"\\{char}" if char in r"\.^$|?*+()[]{}/" else char for char in text)


def _message(message: _Message) -> ChatMessage:
    more: dict[str, Any] = {}
    if message.tool_calls:
        more["tool_calls"] = [
            {"type": "function", "function": {"name": call.function.name, "arguments": _arguments(call)}, "id": call.id}
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        more["tool_call_id"] = message.tool_call_id
    if message.name:
        more["name"] = message.name
    if not isinstance(message.content, list):
        return ChatMessage(message.role, message.content or "", (), more)
    texts, pictures = list[str](), list[bytes]()
    for part in message.content:
        if part.type == "text":
            texts.append(part.text)
        elif part.type == "image_url" and part.image_url is not None:
            pictures.append(_picture(part.image_url.url))
        else:
            raise InvalidInput(f"a part of a message has the type {part.type[:40]!r}; send text or image_url")
    return ChatMessage(message.role, "\n".join(texts), tuple(pictures), more)


def _arguments(call: _Call) -> Any:
    """Return the arguments of a call as the templates of models expect them: as an object."""
    try:
        return json.loads(call.function.arguments)
    except (ValueError, RecursionError):
        return call.function.arguments


def _picture(url: str) -> bytes:
    head = next((each for each in _DATA_URLS if url[: len(each)].lower() == each), None)
    if head is None:
        raise InvalidInput("an image_url is not data:image/jpeg;base64,... or png; addresses are not fetched")
    try:
        return b64decode(url[len(head) :], validate=True)
    except ValueError:
        raise InvalidInput("an image_url is not valid base64") from None


def _tools(body: ChatBody) -> list[dict[str, Any]]:
    if not body.tools or body.tool_choice == "none":
        return []
    if len(body.tools) > _MOST_TOOLS:
        raise InvalidInput(f"the request has {len(body.tools)} tools; send at most {_MOST_TOOLS}")
    for tool in body.tools:
        function = tool.get("function")
        if (
            tool.get("type") != "function"
            or not isinstance(function, dict)
            or not isinstance(function.get("name"), str)
        ):
            raise InvalidInput("a tool is not a function with a name")
        if not isinstance(function.get("parameters", {}), dict):
            raise InvalidInput(f"the parameters of tool {function['name'][:60]!r} are not a JSON schema")
    return body.tools


def _forced(body: ChatBody, tools: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the schema of the call that the request demands; None if the model may choose."""
    choice = body.tool_choice
    if choice in (None, "none", "auto") or not tools:
        return None
    if choice == "required":
        return tool_calls.schema_of(tools)
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not any(tool["function"]["name"] == name for tool in tools):
        raise InvalidInput("tool_choice names no tool of the request; use none, auto, required, or the name of one")
    return tool_calls.schema_of(tools, str(name))


def _tool_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}


def _usage(last: Text, tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": last.prompt_tokens,
        "completion_tokens": tokens,
        "total_tokens": last.prompt_tokens + tokens,
        "prompt_tokens_details": {"cached_tokens": last.cached_tokens},
    }


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def failure(message: str, code: str, kind: str = "invalid_request_error") -> dict[str, Any]:
    """Return the body of an error."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _failed(message: str, code: str) -> bytes:
    """Return the event of an error after the first event was sent."""
    return _event(failure(message, code, "server_error"))
