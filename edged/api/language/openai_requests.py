"""Parses requests of OpenAI's protocol, which are the bodies of /v1/chat/completions and /v1/completions.

Format: https://platform.openai.com/docs/api-reference/chat. Options that none of edged's runtimes supports, such
as `n` above 1, are refused and not ignored. Two extensions of other servers are accepted: `structured_outputs` of vLLM,
and `response_format` of type `regex`.
"""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any, Final, Literal, TypeAlias

import msgspec

from edged.api.http.exchange import HttpRequest, parse_json
from edged.api.language import tools as tool_calls
from edged.api.language.requests import ChatMessage, ChatRequest
from edged.backends.language.contract import Guidance
from edged.errors import InvalidInput

Kind: TypeAlias = Literal["chat", "completion"]

_DATA_URLS: Final = ("data:image/jpeg;base64,", "data:image/jpg;base64,", "data:image/png;base64,")
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
    """A field that vLLM adds to OpenAI's protocol: the form that the answer must have."""

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
    """The fields that both kinds of request have. Unknown fields are ignored, as by other servers."""

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


class Wanted(msgspec.Struct, frozen=True):
    """A parsed request. `has_usage`: the stream ends with the counts of tokens. `names` are the names of the tools in
    the request."""

    model: str
    kind: Kind
    request: ChatRequest
    has_usage: bool = False
    names: tuple[str, ...] = ()


def is_streamed(http: HttpRequest) -> bool:
    """Whether a request asks for events."""
    return parse_json(http.body, _Asked, "the request").stream


class _Asked(msgspec.Struct):
    stream: bool = False


def read(http: HttpRequest, kind: Kind) -> Wanted:
    """Parse a request. Raises InvalidInput for an invalid body, and for options that are not supported."""
    if kind == "completion":
        completion = parse_json(http.body, CompletionBody, "the request")
        for name in ("best_of", "logprobs", "suffix"):
            if getattr(completion, name) not in (None, 1 if name == "best_of" else None):
                raise InvalidInput(f"{name!r} is not supported; leave it out")
        if isinstance(completion.prompt, list) and len(completion.prompt) != 1:
            raise InvalidInput("'prompt' must have exactly one string; send a request for each string")
        if completion.echo:
            raise InvalidInput("'echo' is not supported; leave it out")
        prompt = completion.prompt if isinstance(completion.prompt, str) else completion.prompt[0]
        request = msgspec.structs.replace(_common(completion, completion.max_tokens), prompt=prompt)
        return Wanted(completion.model, kind, request, _has_usage(completion))
    body = parse_json(http.body, ChatBody, "the request")
    if body.logprobs:
        raise InvalidInput("'logprobs' is not supported; leave it out")
    tools = _tools(body)
    most = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    request = _common(body, most)
    messages = tuple(map(_message, body.messages))
    request = msgspec.structs.replace(request, messages=messages, tools=tuple(tools))
    forced = _forced(body, tools)
    if forced is not None:
        if request.guidance:
            raise InvalidInput("'response_format' cannot be used with a required tool; leave one of them out")
        request = msgspec.structs.replace(request, guidance="json_schema", grammar=json.dumps(forced))
    names = tuple(tool["function"]["name"] for tool in tools)
    return Wanted(body.model, kind, request, _has_usage(body), names)


def _has_usage(body: _Body) -> bool:
    return body.stream_options is not None and body.stream_options.include_usage


def _common(body: _Body, most: int | None) -> ChatRequest:
    if body.n not in (None, 1):
        raise InvalidInput(f"'n' is {body.n}, but a request gets only one answer; send several requests")
    for name in ("frequency_penalty", "presence_penalty"):
        if getattr(body, name):
            raise InvalidInput(f"{name!r} is not supported; leave it out")
    if most is not None and most < 1:
        raise InvalidInput(f"the limit of tokens is {most}; send at least 1")
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
    """Return the kind of grammar that the answer must follow, and the grammar. Both are empty if the answer may have
    any form."""
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
        f"'response_format' {wanted.type[:40]!r} is not complete or not known; send text, json_object, json_schema with"
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
            raise InvalidInput(f"a part of a message has the unknown type {part.type[:40]!r}; send text or image_url")
    return ChatMessage(message.role, "\n".join(texts), tuple(pictures), more)


def _arguments(call: _Call) -> Any:
    """Return the arguments of a call as an object, as the templates of models expect; as text if not JSON."""
    try:
        return json.loads(call.function.arguments)
    except (ValueError, RecursionError):
        return call.function.arguments


def _picture(url: str) -> bytes:
    head = next((each for each in _DATA_URLS if url[: len(each)].lower() == each), None)
    if head is None:
        raise InvalidInput(
            "edged does not fetch pictures; send an 'image_url' like data:image/jpeg;base64,... (or image/png)"
        )
    try:
        return b64decode(url[len(head) :], validate=True)
    except ValueError:
        raise InvalidInput("an 'image_url' is not valid base64") from None


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
            raise InvalidInput("a tool lacks the type 'function', or its function has no name; send both")
        if not isinstance(function.get("parameters", {}), dict):
            raise InvalidInput(f"the parameters of tool {function['name'][:60]!r} are not a JSON schema")
    return body.tools


def _forced(body: ChatBody, tools: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the JSON schema of the tool call that the request demands; None if the model may choose."""
    choice = body.tool_choice
    if choice in (None, "none", "auto") or not tools:
        return None
    if choice == "required":
        return tool_calls.schema_of(tools)
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not any(tool["function"]["name"] == name for tool in tools):
        raise InvalidInput("'tool_choice' names no tool of the request; use none, auto, required, or a tool's name")
    return tool_calls.schema_of(tools, str(name))
