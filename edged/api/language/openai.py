"""OpenAI's protocol over HTTP: the list of models, and answers, whole or as events.

Format: https://platform.openai.com/docs/api-reference/chat. As in other servers of this protocol, each model also has
`max_model_len`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import msgspec

from edged.api.http.exchange import HttpRequest, HttpResponse, json_response
from edged.api.http.streamed import Streamed
from edged.api.language import tools as tool_calls
from edged.api.language.openai_requests import Kind, Wanted, read
from edged.api.language.service import LanguageService
from edged.api.language.tools import HeldText, ToolCall
from edged.errors import ModelNotFound
from edged.ipc.language_messages import Text

_EVENTS = (("content-type", "text/event-stream"), ("cache-control", "no-cache"))


def models(service: LanguageService, model: str = "") -> HttpResponse:
    """Return all language models, sorted by name, without refused models. If `model` is given, return only this model.
    Raises ModelNotFound."""
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


async def answer(service: LanguageService, http: HttpRequest, kind: Kind) -> HttpResponse:
    """Answer a request as a whole. Raises InvalidInput, and the errors of the model."""
    wanted = read(http, kind)
    planned = service.find(wanted.model)
    text, tokens, last = "", 0, Text(0, "", 0)
    async with aclosing(service.answer(planned, wanted.request, http.peer)) as texts:
        async for each in texts:
            text, tokens, last = text + each.text, tokens + each.tokens, each
    return json_response(_Answer(wanted, planned.entry.name).whole(text, last.reason, _usage(last, tokens)))


def begin(service: LanguageService, http: HttpRequest, kind: Kind) -> _Work:
    """Return the work of a streamed request: a function that calls its argument with each event. Raises
    InvalidInput."""
    wanted = read(http, kind)
    planned = service.find(wanted.model)

    async def work(send: Callable[[bytes], Awaitable[None]]) -> None:
        texts = service.answer(planned, wanted.request, http.peer)
        async with aclosing(_Answer(wanted, planned.entry.name).events(texts)) as events:
            async for event in events:
                await send(event)

    return work


_Work = Callable[[Callable[[bytes], Awaitable[None]]], Awaitable[None]]


async def stream(work: _Work) -> HttpResponse:
    """Return the response of a streamed request, once the first event exists. Raises the error of the model if the
    model fails before the first event."""
    streamed = Streamed(work, _failed)
    await streamed.begin()
    return HttpResponse(headers=_EVENTS, stream=streamed)


class _Answer:
    """The answer to a request, in OpenAI's form."""

    def __init__(self, wanted: Wanted, model: str) -> None:
        self._wanted, self._is_chat = wanted, wanted.kind == "chat"
        identifier = f"{'chatcmpl' if self._is_chat else 'cmpl'}-{uuid.uuid4().hex}"
        self._head = {"id": identifier, "created": int(time.time()), "model": model}

    def whole(self, text: str, reason: str, usage: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request that is not streamed."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": reason, "logprobs": None}
        if not self._is_chat:
            return {**self._head, "object": "text_completion", "choices": [{**choice, "text": text}], "usage": usage}
        calls = tool_calls.find_calls(text, self._wanted.names) if self._wanted.names else []
        choice["message"] = {"role": "assistant", "content": None if calls else text}
        if calls:
            choice["message"]["tool_calls"] = [_tool_call(call) for call in calls]
            choice["finish_reason"] = "tool_calls"
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": usage}

    async def events(self, texts: AsyncGenerator[Text, None]) -> AsyncGenerator[bytes, None]:
        """Yield the events of a streamed answer."""
        held = HeldText() if self._wanted.names else None
        is_first, tokens, last = True, 0, Text(0, "", 0)
        async with aclosing(texts):
            async for last in texts:
                if is_first and self._is_chat:  # not before the first text, so that a status can report an early error
                    yield self._chunk({"role": "assistant", "content": ""})
                is_first = False
                tokens += last.tokens
                text = last.text if held is None else held.take(last.text)
                if text:
                    yield self._chunk({"content": text})
        reason: str = last.reason
        if held is not None and (rest := held.rest()):
            calls = tool_calls.find_calls(rest, self._wanted.names)
            delta: dict[str, Any] = {"content": rest}
            if calls:
                reason = "tool_calls"
                delta = {"tool_calls": [{"index": i, **_tool_call(call)} for i, call in enumerate(calls)]}
            yield self._chunk(delta)
        yield self._chunk({}, reason)
        if self._wanted.has_usage:
            yield self._event([], usage=_usage(last, tokens))
        yield b"data: [DONE]\n\n"

    def _chunk(self, delta: dict[str, Any], reason: str = "") -> bytes:
        choice: dict[str, Any] = {"index": 0, "finish_reason": reason or None, "logprobs": None}
        choice |= {"delta": delta} if self._is_chat else {"text": delta.get("content", "")}
        return self._event([choice])

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        return _event({**self._head, "object": kind, "choices": choices, **more})


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
    """Return the event that reports an error after the first event was sent."""
    return _event(failure(message, code, "server_error"))
