"""Measures and stores the answers and the speed of each runtime for a language model. The answers verify a new version
of a runtime. The speed decides which runtime serves. The answers and the speeds are stored under the digest of the
model's content."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from pathlib import Path

import msgspec

from edged.backends.language.contract import Generation
from edged.errors import EngineUnusable, InvalidInput
from edged.language.host import LanguageHost
from edged.store import sealed

FOLDER = "language"  # in the cache
_QUESTIONS = (
    "Name three colours.",
    "What is the capital of France?",
    "Count from one to ten.",
    "Describe a red door in one sentence.",
    "Complete: the camera sees a",
    "Is a person at the gate? Answer yes or no.",
)
_TOKENS = 16
# This many characters of an answer are compared. In a longer text, two tokens may be nearly equally probable, so that
# greedy answers of two correct runtimes differ.
_SHORT = 24
_LEAST_EQUAL = 0.5  # the least share of the questions whose answers must be equal
_TIMED_TOKENS, _TIMED_WORDS = 32, 48


class Figures(msgspec.Struct, frozen=True):
    """How fast a runtime is: seconds until the first token of a short prompt, and tokens per second after it."""

    first_s: float
    tokens_per_s: float

    def seconds(self) -> float:
        """Return the seconds that an answer of 64 tokens takes. Runtimes are compared by this time."""
        return self.first_s + 64 / self.tokens_per_s


class Proof(msgspec.Struct, frozen=True):
    """The stored answers and speeds of a model. Each field maps names of runtimes to values. `versions` has the version
    that generated the `answers`. `measured` has the version and the number of threads for which the `figures` were
    measured."""

    versions: dict[str, str] = {}
    answers: dict[str, tuple[str, ...]] = {}
    figures: dict[str, Figures] = {}
    measured: dict[str, str] = {}


class Proofs:
    """Stores the proof of each model in a file below the cache directory."""

    def __init__(self, cache: Path, later: sealed.Later) -> None:
        self._folder, self._later = cache / FOLDER, later

    def read(self, digest: str) -> Proof:
        """Return the proof of a model, empty if none is stored. Reads the disk."""
        return sealed.read(self._folder / f"{digest}.json", Proof, "proofs of language models") or Proof()

    def write(self, digest: str, proof: Proof) -> None:
        self._later(lambda: sealed.keep(self._folder / f"{digest}.json", proof))


async def answers(host: LanguageHost) -> tuple[str, ...]:
    """Ask all questions; return the beginning of each answer, empty if the question is too long for the context."""
    found = []
    for question in _QUESTIONS:
        try:
            found.append((await ask(host, question, _TOKENS))[0][:_SHORT])
        except InvalidInput:
            found.append("")
    return tuple(found)


def require_equal(before: Sequence[str], now: Sequence[str], old: str, new: str) -> None:
    """Raise EngineUnusable if fewer than half of the answers are the same as before. `old` and `new` are the runtime's
    versions. Do nothing if the number of questions has changed."""
    if len(before) != len(now):
        return
    equal = sum(one == other for one, other in zip(before, now, strict=True)) / len(now)
    if equal < _LEAST_EQUAL:
        different = next((pair for pair in zip(before, now, strict=True) if pair[0] != pair[1]), ("", ""))
        raise EngineUnusable(
            f"version {new} of the runtime answers differently from version {old}: only {equal:.0%} of the test answers"
            f" begin alike, and one answer is {different[1]!r} instead of {different[0]!r}; to accept the new answers,"
            " set the model's setting 'language.verify' to false"
        )


async def measure(host: LanguageHost) -> Figures:
    """Measure the speed of an idle host with a prompt of about 48 words and an answer of at most 32 tokens."""
    words = " ".join(f"camera {number}" for number in range(_TIMED_WORDS // 2))
    try:
        await ask(host, words, 2)  # the first request is slow: the runtime allocates memory
    except InvalidInput:  # too long for a small context
        words = "x"
    # This prompt begins differently, because a runtime may reuse the beginning of an earlier prompt.
    _, first, seconds, tokens = await ask(host, f"Again: {words}", _TIMED_TOKENS)
    return Figures(first, (tokens - 1) / seconds if tokens > 1 and seconds > 0 else 1 / max(first, 1e-6))


async def ask(host: LanguageHost, question: str, tokens: int) -> tuple[str, float, float, int]:
    """Generate a greedy answer. Return the text, the seconds until the first token, the seconds from there to the end,
    and the number of tokens."""
    began = time.monotonic()
    messages = json.dumps([{"role": "user", "content": question}]) if host.opened.has_template else ""
    wanted = Generation(messages, prompt="" if messages else question, most_tokens=tokens)
    text, first, count = "", 0.0, 0
    async with aclosing(host.generate(wanted)) as texts:
        async for each in texts:
            first = first or time.monotonic() - began
            text, count = text + each.text, count + each.tokens
    return text, first, time.monotonic() - began - first, count


def faster(figures: Mapping[str, Figures]) -> str:
    """Return the runtime with the lowest `Figures.seconds`."""
    return min(figures, key=lambda name: figures[name].seconds())
