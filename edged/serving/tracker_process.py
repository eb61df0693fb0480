"""The daemon's end of one tracker process: what it was asked, what it says, how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from asyncio.subprocess import Process
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from edged import process
from edged.confinement import settings
from edged.decoding import ready
from edged.ipc import track_messages as m
from edged.logs.child_output import ChildLogForwarder, Pipe

Ids = tuple[int, ...]


@dataclass(slots=True)
class Camera:
    """number: what the tracker knows it by. last: the highest id it has had. asked: when, in monotonic seconds."""

    number: int
    last: int = 0
    asked: float = 0.0


@dataclass(slots=True)
class Question:
    """A frame whose detections want ids."""

    number: int
    camera: Camera
    captured: float
    found: bytes
    asked: float
    answer: asyncio.Future[Ids]

    def settle(self, ids: Ids = ()) -> None:
        if not self.answer.done():  # nobody waits for one that was cancelled
            self.answer.set_result(ids)


class Garbled(Exception):
    """What came from the tracker is no answer; what it is instead."""


class TrackerProcess:
    """`ready`: it can be asked. `silence`: seconds for which something was expected of it and nothing came."""

    def __init__(self, started: Process, printed: Pipe) -> None:
        self.pid = started.pid
        self.started = time.monotonic()
        self.ready = False
        self.in_flight: deque[Question] = deque()
        self.silence = 0.0
        self.unfit = ""  # why it cannot work, in its own words
        self.ended = ""  # why it was ended, where somebody did
        assert started.stdin is not None
        assert started.stdout is not None
        self._process, self._questions, self._answers = started, started.stdin, started.stdout
        self._printed = printed

    @classmethod
    async def start(cls) -> TrackerProcess:
        """OSError when the box has no process or descriptor left for it."""
        printed = Pipe(ChildLogForwarder("tracker"))
        try:
            started = await asyncio.create_subprocess_exec(
                *_command(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=printed.child,
                **process.ISOLATED,
            )
        except OSError:
            printed.close()
            raise
        printed.started()
        return cls(started, printed)

    def ask(self, question: Question) -> None:
        camera = question.camera
        self.in_flight.append(question)
        self._send(m.Follow(question.number, camera.number, camera.last, question.captured, question.found))

    def forget(self, camera: Camera) -> None:
        self._send(m.Forget(camera.number))

    async def listen(self, take: Callable[[Question, m.Followed | m.NotFollowed], None]) -> None:
        """Until the process closes its end. Garbled for bytes that are no answer to what was asked."""
        decoder = msgspec.msgpack.Decoder(ready(m.FromTracker))
        while True:
            try:
                (size,) = m.HEADER.unpack(await self._answers.readexactly(m.HEADER.size))
                if size > m.LARGEST:
                    raise Garbled(f"a message of {size} bytes, where {m.LARGEST} are the most")
                message = decoder.decode(await self._answers.readexactly(size))
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            except m.UNREADABLE as error:
                raise Garbled(f"a message that cannot be read: {error}") from None
            self.silence = 0.0
            if isinstance(message, m.Unfit | m.Ready):
                if self.ready or self.unfit:
                    raise Garbled("its first word twice")
                self.ready = isinstance(message, m.Ready)
                self.unfit = message.message if isinstance(message, m.Unfit) else ""
            elif not self.in_flight or self.in_flight[0].number != message.number:
                raise Garbled("an answer to what was not asked")
            else:
                take(self.in_flight.popleft(), message)

    def elapse(self, seconds: float) -> None:
        """Time has passed; it counts where something is expected of the process."""
        self.silence = self.silence + seconds if self.in_flight or not self.ready else 0.0

    def end(self, why: str = "") -> None:
        self.ended = self.ended or why
        # Not by the process object, which would reap one that has just died, and whoever waits for it is told nonsense.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    async def gone(self) -> int:
        """The exit status, once it is gone and nothing of it is left, such as pipes that nobody read to their end."""
        self._questions.close()
        await self._process.communicate()
        status = await self._process.wait()
        self._printed.close()
        return status

    def _send(self, message: m.ToTracker) -> None:
        self._questions.write(m.pack(message))


def _command() -> list[str]:
    return [sys.executable, "-m", "edged.tracker.main", str(os.getpid()), settings.reach().argument()]
