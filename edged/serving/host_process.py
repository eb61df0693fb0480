"""The process of an engine host: how it is started and ended, what it prints, and how it came to its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys

from edged import process
from edged.logs.overheard import Overheard, Pipe
from edged.serving import memory
from edged.serving.arena import Arena
from edged.serving.sockets import Sockets

_STOP_SECONDS = 3.0


class HostProcess:
    """One that was started."""

    def __init__(self, child: asyncio.subprocess.Process, printed: Pipe, kernel_kills: int) -> None:
        self._child, self._printed, self._kernel_kills = child, printed, kernel_kills
        self.pid = child.pid
        self.ended = asyncio.ensure_future(child.wait())

    @classmethod
    async def start(cls, backend: str, sockets: Sockets, arena: Arena, memory_mb: int) -> HostProcess:
        """`memory_mb` is what it may allocate, 0 for any amount. OSError where it cannot be started."""
        kernel_kills = memory.kernel_kills()
        printed = Pipe(Overheard(f"host {backend}", backend=backend))
        try:
            child = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "edged.serving.host", str(os.getpid()), backend),
                *(sockets.orders, sockets.answers, str(arena.handle), str(memory_mb)),
                pass_fds=(arena.handle,),
                stdin=asyncio.subprocess.DEVNULL,
                stderr=printed.child,
                **process.ISOLATED,
            )
        except BaseException:
            printed.close()
            raise
        printed.started()
        return cls(child, printed, kernel_kills)

    @property
    def status(self) -> int | None:
        """How it ended: an exit status, or the negative number of a signal. None while it lives."""
        return self._child.returncode

    @property
    def was_ended_from_outside(self) -> bool:
        """Whether it was killed by a signal that anybody may send, and not by the kernel for want of memory."""
        was_signalled = self.status in (-signal.SIGKILL, -signal.SIGTERM)
        return was_signalled and memory.kernel_kills() == self._kernel_kills

    async def stop(self) -> None:
        """Asks it to end, and waits a while for that."""
        if self.status is None:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(self.ended), _STOP_SECONDS)

    def kill(self) -> None:
        """Ends it at once."""
        if self.status is None:
            self._signal(signal.SIGKILL)

    def hear_out(self) -> None:
        """Takes what it printed last; nothing of it is heard from then on."""
        self._printed.close()

    def _signal(self, number: signal.Signals) -> None:
        """Not by the process object, which would reap one that has just died, and whoever waits for it would be told a
        status that it never had."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
