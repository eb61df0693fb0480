"""A child process that exchanges messages with the daemon on its standard input and output: the daemon's end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator
from typing import Any, Generic, TypeVar

import msgspec

from edged import process
from edged.ipc.pipe_messages import HEADER, UNREADABLE, pack
from edged.logs.child_output import ChildLogForwarder, Pipe

Message = TypeVar("Message")


class ProtocolError(Exception):
    """The process violated the protocol; `str` describes the message that it sent."""


class PipedProcess(Generic[Message]):
    """A running child. `started` is its start time in monotonic seconds. `ended` is the reason why the daemon ended the
    child; empty if the child ended without the daemon."""

    def __init__(
        self, started: Process, printed: Pipe, decoder: msgspec.msgpack.Decoder[Message], largest: int
    ) -> None:
        """Call `start` instead."""
        self.pid = started.pid
        self.started = time.monotonic()
        self.ended = ""
        assert started.stdin is not None
        assert started.stdout is not None
        self._process, self._input, self._output = started, started.stdin, started.stdout
        self._printed, self._decoder, self._largest = printed, decoder, largest

    @classmethod
    async def start(
        cls, command: list[str], name: str, decoder: msgspec.msgpack.Decoder[Message], largest: int, **about: str
    ) -> PipedProcess[Message]:
        """Run a command whose messages have at most `largest` bytes. Its standard error goes to the log, labelled with
        `name` and `about`. Raises OSError if the box has no free process or file descriptor."""
        printed = Pipe(ChildLogForwarder(name, logging.ERROR, **about))
        try:
            options: dict[str, Any] = process.ISOLATED
            started = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=printed.child,
                env=process.environment(),
                **options,
            )
        except BaseException:
            printed.close()
            raise
        printed.started()
        return cls(started, printed, decoder, largest)

    def send(self, message: msgspec.Struct) -> None:
        """Send a message; it is lost if the process has ended."""
        self._input.write(pack(message))

    async def messages(self) -> AsyncGenerator[Message, None]:
        """Yield the child's messages until it closes its end. Raises ProtocolError if a message is invalid."""
        while True:
            try:
                (size,) = HEADER.unpack(await self._output.readexactly(HEADER.size))
                if size > self._largest:
                    raise ProtocolError(f"a message of {size} bytes; at most {self._largest} are allowed")
                message = self._decoder.decode(await self._output.readexactly(size))
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            except UNREADABLE as error:
                raise ProtocolError(f"an invalid message: {error}") from None
            yield message

    def end(self, why: str = "") -> None:
        """Kill the process if it runs. `ended` becomes the first `why` of all calls."""
        self.ended = self.ended or why
        self._signal(signal.SIGKILL)

    def ask_to_stop(self) -> None:
        """Close the standard input of the process, so that it finishes its work and exits."""
        self._input.close()

    async def gone(self) -> int:
        """Wait for the end of the process and of its output; return the exit status."""
        self._input.close()
        await self._process.communicate()
        status = await self._process.wait()
        self._printed.close()
        return status

    def _signal(self, number: signal.Signals) -> None:
        # Not with the process object, which would reap a process that has just died, and lose its exit status.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
