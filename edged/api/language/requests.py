"""A request to a language model, the same for all protocols, and its conversion for the model's host. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from edged.api.language import grammar
from edged.api.language.schema_regex import regex_of
from edged.backends.language.contract import Generation, Guidance, Sampling
from edged.errors import InvalidInput
from edged.language.model import PlannedLanguageModel

_ROLES = ("system", "developer", "user", "assistant", "tool")
_MOST_MESSAGES, _MOST_STOPS, _LONGEST_STOP, _MOST_PICTURES = 512, 4, 256, 16
_TOKEN_BYTES = 32  # a token is rarely longer; a prompt is too long above this size times the tokens of the context
_LARGEST_PICTURE, _LARGEST_PICTURES = 32 << 20, 64 << 20


class ChatMessage(msgspec.Struct, frozen=True):
    """A message; its `pictures` come before its text. `more` has further fields for tool calls and their results, such
    as `tool_call_id`."""

    role: str
    content: str
    pictures: tuple[bytes, ...] = ()
    more: dict[str, Any] = {}


class ChatRequest(msgspec.Struct, frozen=True):
    """A request with messages, or with a prompt that is used without a template. 0 in `most_tokens`, and None in other
    fields, stand for the model's own value."""

    messages: tuple[ChatMessage, ...] = ()
    prompt: str = ""
    most_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    guidance: Guidance = ""
    grammar: str = ""
    tools: tuple[dict[str, Any], ...] = ()


def generation(request: ChatRequest, planned: PlannedLanguageModel) -> Generation:
    """Convert a request to the message for the model's host. Raises InvalidInput for a request that the model cannot
    answer."""
    settings = planned.settings
    if request.messages and request.prompt:
        raise InvalidInput("the request has messages and a prompt; send only one of the two")
    if not request.messages and not request.prompt:
        raise InvalidInput("the request has no messages; send messages, or a prompt")
    if len(request.messages) > _MOST_MESSAGES:
        raise InvalidInput(f"the request has {len(request.messages)} messages; send at most {_MOST_MESSAGES}")
    _check_stops(request.stop)
    _check_sampling(request)
    if request.most_tokens < 0:
        raise InvalidInput(f"'max_tokens' is {request.most_tokens}; send at least 1")
    most = min(settings.output_tokens, request.most_tokens or settings.output_tokens)
    guidance, followed = _followed(request)
    messages, pictures = _messages(request, settings.system)
    size = len(messages or request.prompt)
    if planned.context and size > planned.context * _TOKEN_BYTES:
        raise InvalidInput(
            f"the prompt has {size} characters, too many for a context of {planned.context} tokens; shorten it"
        )
    _check_abilities(request, planned, pictures)
    files = planned.files
    usual = (files.temperature, files.top_p) if files is not None else (0.0, 1.0)
    temperature = usual[0] if request.temperature is None else request.temperature
    top_p = usual[1] if request.top_p is None else request.top_p
    if top_p == 0:  # always the most likely token; the runtimes do not take 0
        temperature, top_p = 0.0, 1.0
    sampling = Sampling(temperature, top_p, request.seed, guidance, followed)
    tools = json.dumps(list(request.tools)) if request.tools else ""
    return Generation(messages, tools, request.prompt, pictures, sampling, most)


def _followed(request: ChatRequest) -> tuple[Guidance, str]:
    """Return the kind of grammar that the runtime must follow, and the grammar. Both are empty if the answer may have
    any form. A JSON schema becomes a regular expression if such an expression can describe the schema. Raises
    InvalidInput."""
    if request.guidance == "json_schema":
        found = regex_of(grammar.check_schema(request.grammar))
        return ("json_schema", request.grammar) if found is None else ("regex", found)
    if request.guidance == "regex":
        grammar.check_regex(request.grammar)
    return request.guidance, request.grammar


def _messages(request: ChatRequest, system: str) -> tuple[str, tuple[bytes, ...]]:
    """Return the messages as JSON, and their pictures."""
    found, pictures = list[dict[str, Any]](), list[bytes]()
    if request.messages and system and request.messages[0].role not in ("system", "developer"):
        found.append({"role": "system", "content": system})
    for message in request.messages:
        if message.role not in _ROLES:
            raise InvalidInput(f"a message has the unknown role {message.role[:20]!r}; use one of {', '.join(_ROLES)}")
        content: Any = message.content
        if message.pictures:
            content = [*({"type": "image"} for _ in message.pictures), {"type": "text", "text": message.content}]
            pictures += message.pictures
        role = "system" if message.role == "developer" else message.role
        found.append({"role": role, "content": content, **message.more})
    if len(pictures) > _MOST_PICTURES:
        raise InvalidInput(f"the request has {len(pictures)} pictures; send at most {_MOST_PICTURES}")
    if sum(map(len, pictures)) > _LARGEST_PICTURES:
        raise InvalidInput(f"the pictures have more than {_LARGEST_PICTURES >> 20} MiB together; send smaller ones")
    for number, picture in enumerate(pictures, 1):
        if not picture.startswith((b"\xff\xd8", b"\x89PNG")) or len(picture) > _LARGEST_PICTURE:
            raise InvalidInput(
                f"picture {number} is not a JPEG or PNG, or has more than {_LARGEST_PICTURE >> 20} MiB; convert or"
                " shrink it"
            )
    return json.dumps(found) if found else "", tuple(pictures)


def _check_abilities(request: ChatRequest, planned: PlannedLanguageModel, pictures: Sequence[bytes]) -> None:
    name, files = planned.entry.name, planned.files
    if pictures and files is not None and not files.takes_pictures:
        raise InvalidInput(f"model {name!r} takes no pictures; use a vision-language model")
    opened = planned.host.opened if planned.host is not None and not planned.host.lost else None
    if opened is None:
        return
    if request.messages and not opened.has_template:
        raise InvalidInput(f"model {name!r} has no chat template; send a prompt (/v1/completions)")
    if request.tools and not opened.has_tools:
        raise InvalidInput(f"the chat template of model {name!r} takes no tools; leave them out, or use another model")


def _check_stops(stops: Sequence[str]) -> None:
    if len(stops) > _MOST_STOPS or any(not 0 < len(each) <= _LONGEST_STOP for each in stops):
        raise InvalidInput(
            f"'stop' has {len(stops)} strings; send at most {_MOST_STOPS}, each of 1 to {_LONGEST_STOP} characters"
        )


def _check_sampling(request: ChatRequest) -> None:
    if request.temperature is not None and not 0 <= request.temperature <= 100:
        raise InvalidInput(f"'temperature' is {request.temperature:g}; send a number from 0 to 100")
    if request.top_p is not None and not 0 <= request.top_p <= 1:
        raise InvalidInput(f"'top_p' is {request.top_p:g}; send a number from 0 to 1")
    if request.seed is not None and not 0 <= request.seed < 1 << 31:
        raise InvalidInput(f"'seed' is {request.seed}; send a number from 0 to {(1 << 31) - 1}")
