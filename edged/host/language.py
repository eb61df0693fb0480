"""The host of a language model: a process that opens one model and generates text for several requests at once.

A separate thread reads the daemon's messages, so that a cancelled request gets no further token. Texts of tokens that
are generated within a few milliseconds are sent together; the texts of slower tokens are sent one by one.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Sequence
from typing import BinaryIO

import msgspec

from edged import process
from edged.backends.language import registry
from edged.backends.language.contract import LanguageModel, Prompt, Reason, Step
from edged.confinement import confine
from edged.confinement.rules import Reach
from edged.decoding import ready
from edged.errors import EdgedError
from edged.ipc import language_messages as m
from edged.ipc import pipe_messages

_GATHER_SECONDS = 0.002  # after a request, the time to wait for further requests, which then join its batch
_TOGETHER_SECONDS = 0.004  # texts of tokens that are generated within this time are sent together


class StopFinder:
    """Finds stop texts in the answer to one request. The answer arrives in pieces. If the end of a piece may be the
    beginning of a stop text, it is held back until the next piece arrives."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(filter(None, stops))
        self._held = ""

    def take(self, text: str) -> tuple[str, bool]:
        """Append new text; return the text that can be sent, and whether a stop text was found. The returned text ends
        before the stop text."""
        if not self._stops:
            return text, False
        text = self._held + text
        found = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:
            self._held = ""
            return text[: min(found)], True
        longest = max(_begun(text, stop) for stop in self._stops)
        self._held = text[len(text) - longest :]
        return text[: len(text) - longest], False

    def rest(self) -> str:
        """Return the text that is held back. Call this if the answer has ended without a stop text."""
        held, self._held = self._held, ""
        return held


def _begun(text: str, stop: str) -> int:
    """Return how many characters at the end of `text` are the beginning of the stop text `stop`."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0


class _Answer:
    """The answer to one request, with the text and the number of tokens that are not sent yet."""

    def __init__(self, stops: tuple[str, ...], prompt: int) -> None:
        self.finder = StopFinder(stops)
        self.prompt = Prompt(prompt)
        self.text, self.tokens, self.is_first = "", 0, True
        self.reason: Reason = ""


class Generator:
    """Generates text for the requests of one model until the daemon closes the pipe."""

    def __init__(self, model: LanguageModel, answers: BinaryIO) -> None:
        self._model, self._output = model, answers
        self._messages: queue.SimpleQueue[m.ToHost | None] = queue.SimpleQueue()
        self._answers: dict[int, _Answer] = {}
        self._sent = 0.0

    def read(self, requests: BinaryIO) -> None:
        """Read messages until the pipe is closed. This runs in a separate thread."""
        decoder = msgspec.msgpack.Decoder(ready(m.ToHost))
        try:
            while (payload := pipe_messages.read(requests, m.LARGEST)) is not None:
                self._messages.put(decoder.decode(payload))
        finally:
            self._messages.put(None)

    def run(self) -> None:
        """Generate until the pipe is closed. Raises EngineUnusable if the model cannot be used any more."""
        while True:
            while not self._model.is_busy or not self._messages.empty():
                if not self._take_all():
                    return
            steps = self._model.step()
            for step in steps:
                self._add(step)
            now = time.monotonic()
            if steps and now - self._sent >= _TOGETHER_SECONDS:
                self._send_all()
                self._sent = now

    def _take_all(self) -> bool:
        """Wait for a message and process it. After a request, also process the messages that follow within
        `_GATHER_SECONDS`: requests that arrive together then form one batch. Return whether the pipe is still open."""
        message = self._messages.get()
        while message is not None:
            self._take(message)
            if not isinstance(message, m.Begin):
                return True
            try:
                message = self._messages.get(timeout=_GATHER_SECONDS)
            except queue.Empty:
                return True
        return False

    def _take(self, message: m.ToHost) -> None:
        if isinstance(message, m.Begin):
            try:
                prompt = self._model.begin(message.number, message.wanted)
            except EdgedError as error:
                self._send(m.Failed(message.number, type(error).__name__, str(error)))
            except Exception as error:  # an error of one request must not end the others
                text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
                self._send(m.Failed(message.number, "EngineUnusable", f"the runtime failed: {text}"))
            else:
                self._answers[message.number] = _Answer(message.stop, prompt)
        elif isinstance(message, m.Cancel):
            self._model.cancel(message.number)
            self._answers.pop(message.number, None)
        elif isinstance(message, m.Ping):
            self._send(m.Pong())

    def _add(self, step: Step) -> None:
        answer = self._answers.get(step.number)
        if answer is None:
            return
        if step.error:
            del self._answers[step.number]
            self._send(m.Failed(step.number, "EngineUnusable", step.error))
            return
        text, is_stopped = answer.finder.take(step.text)
        answer.text += text
        answer.tokens += step.tokens
        answer.prompt = step.prompt or answer.prompt
        if is_stopped:
            self._model.cancel(step.number)
            answer.reason = "stop"
        elif step.reason:
            answer.text += answer.finder.rest()
            answer.reason = step.reason
        if answer.reason or answer.is_first:
            self._send_one(step.number, answer)

    def _send_all(self) -> None:
        for number, answer in list(self._answers.items()):
            if answer.tokens:
                self._send_one(number, answer)

    def _send_one(self, number: int, answer: _Answer) -> None:
        prompt = answer.prompt
        self._send(m.Text(number, answer.text, answer.tokens, answer.reason, prompt.tokens, prompt.cached))
        answer.text, answer.tokens, answer.is_first = "", 0, False
        if answer.reason:
            del self._answers[number]

    def _send(self, message: m.FromHost) -> None:
        self._output.write(pipe_messages.pack(message))
        self._output.flush()


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Open the model that the first message names, and serve until the daemon closes the pipe."""
    payload = pipe_messages.read(requests, m.LARGEST)
    if payload is None:
        return
    order = msgspec.msgpack.decode(payload, type=ready(m.Open))
    began = time.monotonic()
    try:
        model = registry.load(order.runtime).open(order.how)
        seconds = time.monotonic() - began
        opened = m.Opened(model.context, model.has_template, model.has_tools, seconds, model.fallback)
        answers.write(pipe_messages.pack(opened))
        answers.flush()
        generator = Generator(model, answers)
        threading.Thread(target=generator.read, args=(requests,), name="requests", daemon=True).start()
        generator.run()
    except EdgedError as error:
        answers.write(pipe_messages.pack(m.Unfit(type(error).__name__, str(error))))
        answers.flush()


def main() -> None:
    """Run the host: `python -m edged.host.language PARENT_PID MEMORY_MB REACH`."""
    parent, memory_mb, text = sys.argv[1:]
    answers = process.become_child(int(parent))
    process.restrain(int(memory_mb), niceness=process.BUILD)  # cameras come first
    confine.everything(Reach.parsed(text))
    serve(sys.stdin.buffer, answers)
    os._exit(0)  # the reading thread may be blocked, and runtimes may take long to end


if __name__ == "__main__":
    main()
