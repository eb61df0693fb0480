"""The interface of a runtime that opens language models and generates text for several requests in steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol, TypeAlias

import msgspec

Guidance: TypeAlias = Literal["", "json_schema", "regex"]
Reason: TypeAlias = Literal["", "stop", "length"]


class Sampling(msgspec.Struct, frozen=True):
    """How tokens are chosen. With `temperature` 0 the most probable token is chosen. A `seed` makes an answer
    repeatable; with None the seed is random. `grammar` is a JSON schema or a regular expression that the text must
    match, and `guidance` says which of the two. Both are empty for free text."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    guidance: Guidance = ""
    grammar: str = ""


class Generation(msgspec.Struct, frozen=True):
    """A request to generate text. `messages` is JSON: a list of messages as in OpenAI's protocol, in which a picture is
    the part {"type": "image"}. `tools` is JSON or empty. If `messages` is empty, the model gets `prompt` without a chat
    template. `pictures` are JPEG or PNG files in the order of their parts. At most `most_tokens` are generated."""

    messages: str = ""
    tools: str = ""
    prompt: str = ""
    pictures: tuple[bytes, ...] = ()
    sampling: Sampling = Sampling()
    most_tokens: int = 256


class Prompt(NamedTuple):
    """The number of tokens in a request's prompt. `cached` is how many of these were already computed for an earlier
    request."""

    tokens: int
    cached: int = 0


class Step(NamedTuple):
    """The result of a step for request `number`: text, the number of new tokens, and the reason why the answer ended
    ("" if it continues). Only the step of the first token has a `prompt`. A step with an `error` also ends the
    request."""

    number: int
    text: str = ""
    tokens: int = 0
    reason: Reason = ""
    error: str = ""
    prompt: Prompt | None = None


class Opening(msgspec.Struct, frozen=True):
    """How to open a model. `file` is the path of the file that the runtime opens; `edged.models.language` lists the
    possible files. `threads` is the number of CPU threads. `context` is the largest number of tokens of a prompt and
    its answer together. `most` is the largest number of requests at once."""

    file: str
    threads: int = 1
    context: int = 2048
    most: int = 4


class LanguageModel(Protocol):
    """An opened model. Only one thread may use it."""

    context: int
    """The largest number of tokens of a prompt and its answer together."""
    has_template: bool
    """Whether the model can format chat messages."""
    has_tools: bool
    """Whether the model's chat template takes tools."""
    fallback: str
    """The reason why the model does not run on the devices that its configuration names; empty if it does."""

    def begin(self, number: int, wanted: Generation) -> int:
        """Add a request and return the number of tokens in its prompt. Raises InvalidInput if no answer is possible."""

    def cancel(self, number: int) -> None:
        """Remove a request. Do nothing if the request has ended."""

    @property
    def is_busy(self) -> bool:
        """Whether `step` has something to do."""

    def step(self) -> Sequence[Step]:
        """Do the next piece of work: process a part of a prompt, or generate a token for each running request. Raises
        EngineUnusable if the model cannot be used any more."""


class LanguageRuntime(Protocol):
    """A runtime of language models; its module exports it as `RUNTIME`."""

    def open(self, how: Opening) -> LanguageModel:
        """Open a model. Raises EngineUnusable if the runtime refuses it."""
