"""Messages between the daemon and a host of a language model, on two pipes (`edged.ipc.pipe_messages`)."""

from __future__ import annotations

import msgspec

from edged.backends.language.contract import Generation, Opening, Reason

LARGEST = 256 << 20
"""The largest message to a host, in bytes. It may contain pictures. The daemon limits requests to much less."""
LARGEST_ANSWER = 4 << 20
"""The largest message from a host, in bytes: the text of some tokens."""


class Open(msgspec.Struct, frozen=True, tag=True):
    """The first message: the name of the runtime, and how it must open the model."""

    runtime: str
    how: Opening


class Begin(msgspec.Struct, frozen=True, tag=True):
    """A request. The generated text ends before the first of the texts in `stop`."""

    number: int
    wanted: Generation
    stop: tuple[str, ...] = ()


class Cancel(msgspec.Struct, frozen=True, tag=True):
    number: int


class Ping(msgspec.Struct, frozen=True, tag=True):
    pass


ToHost = Open | Begin | Cancel | Ping


class Opened(msgspec.Struct, frozen=True, tag=True):
    """The model is open. `seconds`: how long opening took. The other fields are those of `LanguageModel`."""

    context: int
    has_template: bool
    has_tools: bool
    seconds: float
    fallback: str = ""


class Unfit(msgspec.Struct, frozen=True, tag=True):
    """The model cannot be opened, or can no longer be used. The host ends."""

    error: str
    message: str


class Text(msgspec.Struct, frozen=True, tag=True):
    """A further part of the answer to a request, and its number of tokens. `reason`: why the request has ended; empty
    if it continues. `prompt_tokens`: the number of tokens of the prompt. `cached_tokens`: how many of the prompt's
    tokens were already computed for an earlier request."""

    number: int
    text: str
    tokens: int
    reason: Reason = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A request ended with an error. `error` is the name of a class of `edged.errors`."""

    number: int
    error: str
    message: str


class Pong(msgspec.Struct, frozen=True, tag=True):
    pass


FromHost = Opened | Unfit | Text | Failed | Pong
