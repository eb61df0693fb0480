"""The setting `prompts`: the texts that a zero-shot detector looks for, each with its token ids.

    prompts = "a cat [49406 320 2368 49407], a photo of a dog [49406 320 1125 539 320 1929 49407]"

Users write only the texts. `edged models add`, `edged models set` and `edged inspect` add the ids with the tokenizer
next to the model (`edged.engines.prompts`). So a served model needs no tokenizer, and the setting always shows each
text with its ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from edged.errors import ConfigError
from edged.vision.settings import words

PROMPTS = "prompts"
MOST_PROMPTS, MOST_CHARACTERS, MOST_TOKENS = 256, 200, 256
_LARGEST = (1 << 31) - 1  # a token id
_EXAMPLE = "write a text, or a text and its token ids: a cat [49406 320 2368 49407]"


class Prompt(msgspec.Struct, frozen=True):
    """A text and its token ids, including those of the start and end tokens. `tokens` is empty if the ids are not known
    yet."""

    text: str
    tokens: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.text} [{' '.join(map(str, self.tokens))}]" if self.tokens else self.text


def read(settings: Mapping[str, str]) -> tuple[Prompt, ...]:
    """Read the prompts; empty if the setting is missing. Raises ConfigError if the setting is malformed."""
    entries = words(settings, PROMPTS) or ()
    if len(entries) > MOST_PROMPTS:
        raise ConfigError(f"setting {PROMPTS!r} lists {len(entries)} texts; give at most {MOST_PROMPTS}")
    found = tuple(map(_read, entries))
    texts = [prompt.text for prompt in found]
    twice = next((text for number, text in enumerate(texts) if text in texts[:number]), None)
    if twice is not None:
        raise ConfigError(f"setting {PROMPTS!r} lists {twice!r} twice; remove one of the two")
    return found


def write(prompts: Iterable[Prompt]) -> str:
    """Return prompts as the text of the setting `prompts`."""
    return ", ".join(map(str, prompts))


def _read(entry: str) -> Prompt:
    text, opened, rest = entry.partition("[")
    inside, closed, tail = rest.partition("]")
    text, ids = " ".join(text.split()), inside.split()
    if not text or "]" in text or tail or (opened and not closed) or not all(map(_is_number, ids)):
        raise ConfigError(f"setting {PROMPTS!r}: {entry[:60]!r} is invalid; {_EXAMPLE}")
    if len(text) > MOST_CHARACTERS or not text.isprintable():
        problem = f"has over {MOST_CHARACTERS} characters, or characters that cannot be printed"
        raise ConfigError(f"setting {PROMPTS!r}: text {text[:60]!r} {problem}; change the text")
    tokens = tuple(map(int, ids))
    if len(tokens) > MOST_TOKENS or max(tokens, default=0) > _LARGEST:
        problem = f"has over {MOST_TOKENS} token ids, or an id over {_LARGEST}"
        raise ConfigError(f"setting {PROMPTS!r}: text {text[:60]!r} {problem}")
    return Prompt(text, tokens)


def _is_number(text: str) -> bool:
    # int() raises for a very long run of digits, and isdecimal() alone accepts digits of other scripts.
    return text.isascii() and text.isdecimal() and len(text) <= 10
