"""Controls the host of a language model from the daemon: starts the host, passes on its texts, and ends a host that
hangs or uses too much memory."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

import msgspec

from edged import tasks
from edged.backends.language.contract import Generation, Opening
from edged.backends.language.registry import TITLES
from edged.confinement import rules
from edged.decoding import ready
from edged.errors import EdgedError, HostLost, rebuild
from edged.ipc import language_messages as m
from edged.ipc.piped_process import PipedProcess, ProtocolError
from edged.models.language import Form, is_gguf
from edged.serving import memory
from edged.serving.host_process import Progress, read

_OPEN_SECONDS = 600.0  # a large model on a slow disk
_LOOK_SECONDS = 0.5
_STOP_SECONDS = 3.0


class LanguageHost:
    """A running host with an opened model. `lost` says why the host no longer answers; empty while the host answers."""

    def __init__(self, form: Form, version: str) -> None:
        """Call `start` instead. `version` is the version of the runtime on disk."""
        self.form, self.version = form, version
        self.opened = m.Opened(0, False, False, 0.0)
        self.lost = ""
        self.ended = asyncio.Event()
        self._process: PipedProcess[m.FromHost] | None = None
        self._requests: dict[int, asyncio.Queue[m.Text | EdgedError]] = {}
        self._numbers = itertools.count(1)
        self._is_open: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._progress = Progress()
        self._memory_mb = 0
        self._life: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls, form: Form, version: str, how: Opening, reads: Iterable[str], memory_mb: int, model: str
    ) -> LanguageHost:
        """Start a host and open the model. `reads` are the files that the host may open; `memory_mb` limits its memory
        in MiB, 0 for no limit. Raises EngineUnusable if the runtime refuses the model. Raises HostLost if the host
        cannot be started, ends, or does not open the model in time."""
        host = cls(form, version)
        host._memory_mb = memory_mb
        # OpenVINO opens GGUF files for writing, although it does not write.
        writes = (form.path,) if is_gguf(form.path) else ()
        reach = rules.reach(reads=reads, writes=writes)
        command = [sys.executable, "-m", "edged.host.language", str(os.getpid()), str(memory_mb), reach.argument()]
        decoder = msgspec.msgpack.Decoder(ready(m.FromHost))
        try:
            host._process = await PipedProcess.start(
                command, f"language host {model}", decoder, m.LARGEST_ANSWER, model=model
            )
        except OSError as error:
            raise HostLost(
                f"the host of language model {model} could not be started: {error.strerror or error}"
            ) from error
        host._process.send(m.Open(form.runtime, how))
        host._life = tasks.keep(f"language host {model}", host._live)
        try:
            await tasks.at_most(_OPEN_SECONDS, asyncio.shield(host._is_open))
        except asyncio.TimeoutError:
            raise HostLost(f"{TITLES[form.runtime]} did not open the model within {_OPEN_SECONDS:g} s") from None
        finally:
            if not host._is_open.done() or host._is_open.cancelled() or host._is_open.exception() is not None:
                await host.stop()
        return host

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def requests(self) -> int:
        """How many requests the host works on."""
        return len(self._requests)

    async def generate(self, wanted: Generation, stop: tuple[str, ...] = ()) -> AsyncGenerator[m.Text, None]:
        """Yield the parts of an answer; the last part has a `reason`. If a text in `stop` occurs in the answer, the
        answer ends before this text. Closing the generator ends the request. Raises the host's error, or HostLost if
        the host ends."""
        if self.lost or self._process is None:
            raise HostLost(f"the language host {self.lost}")
        number: int = next(self._numbers)
        queue = self._requests[number] = asyncio.Queue()
        self._process.send(m.Begin(number, wanted, stop))
        is_over = False
        try:
            while not is_over:
                text = await queue.get()
                is_over = isinstance(text, EdgedError) or bool(text.reason)
                if isinstance(text, EdgedError):
                    raise text
                yield text
        finally:
            del self._requests[number]
            if not is_over and not self.lost:
                self._process.send(m.Cancel(number))

    async def drain(self) -> None:
        """Wait until all requests have ended, then stop the host."""
        while self._requests and not self.lost:  # noqa: ASYNC110 # rare
            await asyncio.sleep(_LOOK_SECONDS)
        await self.stop()

    async def stop(self) -> None:
        """End the process. Its requests fail with HostLost."""
        self.lost = self.lost or "was stopped"
        if self._process is not None:
            self._process.end("was stopped")
        if self._life is not None:
            await asyncio.wait({self._life}, timeout=_STOP_SECONDS)

    async def _live(self) -> None:
        """Read messages until the process ends, then report its end to all requests."""
        process = self._process
        assert process is not None
        watching = asyncio.ensure_future(self._watch(process))
        try:
            async with aclosing(process.messages()) as messages:
                async for message in messages:
                    self._progress.received()
                    self._take(message)
        except ProtocolError as error:
            process.end(f"sent {error}")
        finally:
            watching.cancel()
            process.end()
            status = await process.gone()
            self.lost = self.lost or process.ended or f"died (exit status {status})"
            self.ended.set()
            loss = HostLost(f"the language host {self.lost}")
            for queue in self._requests.values():
                queue.put_nowait(loss)
            if not self._is_open.done():
                self._is_open.set_exception(loss)
                self._is_open.exception()  # prevents a warning of asyncio if the caller of `start` has gone

    def _take(self, message: m.FromHost) -> None:
        if isinstance(message, m.Text):
            if (queue := self._requests.get(message.number)) is not None:
                queue.put_nowait(message)
        elif isinstance(message, m.Failed):
            if (queue := self._requests.get(message.number)) is not None:
                queue.put_nowait(rebuild(message.error, message.message))
        elif isinstance(message, m.Opened):
            self.opened = message
            if not self._is_open.done():
                self._is_open.set_result(None)
        elif isinstance(message, m.Unfit):
            self.lost = message.message
            if not self._is_open.done():
                self._is_open.set_exception(rebuild(message.error, message.message))
                self._is_open.exception()

    async def _watch(self, process: PipedProcess[m.FromHost]) -> None:
        """End a process that makes no progress or uses too much memory."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            sign = read(process.pid, threads=self._progress.should_ping)
            is_busy = bool(self._requests) or not self._is_open.done()
            self._progress.look(time.monotonic(), sign, is_busy=is_busy)
            if self._progress.is_stopped or self._progress.is_stuck:
                process.end("hung: it neither worked nor answered")
            elif self._progress.should_ping:
                process.send(m.Ping())
            used = memory.used_mb(process.pid)
            if self._memory_mb and used > self._memory_mb:
                process.end(f"used {used:.0f} MiB of memory; its limit is {self._memory_mb} MiB (language.memory_mb)")
