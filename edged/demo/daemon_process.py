"""A daemon in a child process, for programs that need a daemon while they run.

`python -m edged.demo.daemon_process serve ...` runs `python -m edged serve ...`, and is killed when its parent ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from edged.errors import EdgedError
from edged.process import die_with_parent

_START_S, _STOP_S = 300.0, 60.0  # time limits, long enough for a busy box
_POLL_S = 0.02
_PORTS = range(8080, 8100)


class DaemonProcess:
    """A daemon in a child process, which is killed if this process dies. `launched` is its start in monotonic seconds,
    `address` is the address at which it listens, and `log` is the file with its messages."""

    def __init__(
        self, address: str, arguments: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start `edged serve` with additional arguments. Its output goes to files in `folder`."""
        self.address = address
        self._out, self.log = folder / "stdout", folder / "stderr"
        self.launched = time.monotonic()
        with self._out.open("wb") as out, self.log.open("wb") as err:
            self._child = subprocess.Popen(
                [sys.executable, "-m", __name__, "serve", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment,
                # Ctrl-C would reach all processes of the terminal, but streams must end before their daemon.
                start_new_session=True,
            )

    async def wait_until_listening(self) -> None:
        """Wait until the daemon listens. Raises EdgedError if it ends or does not listen within five minutes."""
        while b"listening on" not in self._out.read_bytes():
            self.check()
            if time.monotonic() - self.launched > _START_S:
                raise EdgedError(f"the daemon did not answer within {_START_S:g} s{self._last_line()}")
            await asyncio.sleep(_POLL_S)

    def check(self) -> None:
        """Raise EdgedError with the last line of the daemon's log if the daemon has ended."""
        code = self._child.poll()
        if code is not None:
            raise EdgedError(f"the daemon ended unexpectedly with status {code}{self._last_line()}")

    async def stop(self) -> None:
        """Stop the daemon, wait up to a minute, and kill what remains of its process group. Raises EdgedError if the
        daemon did not stop in time or failed."""
        code = self._child.poll()
        if code is None:
            self._child.terminate()
            code = await asyncio.to_thread(self._wait, _STOP_S)
        self._sweep()
        if code is None:
            raise EdgedError(f"the daemon did not stop within {_STOP_S:g} s and was killed{self._last_line()}")
        if code != 0:
            raise EdgedError(f"the daemon ended with status {code}{self._last_line()}")

    def _wait(self, limit_s: float) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._child.wait(limit_s)
        return None

    def _sweep(self) -> None:
        """Kill the daemon's process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()

    def _last_line(self) -> str:
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return f": {lines[-1][:300]}" if lines else ""


@contextlib.asynccontextmanager
async def running(daemon: DaemonProcess) -> AsyncIterator[DaemonProcess]:
    """Wait until the daemon listens, and yield it. Stop the daemon when the context ends."""
    try:
        await daemon.wait_until_listening()
        yield daemon
    except BaseException:
        with contextlib.suppress(EdgedError):  # the first error is the one to raise
            await daemon.stop()
        raise
    await daemon.stop()


def free_port() -> int:
    """Return an unused port on loopback from 8080 to 8099; 0 if all are in use."""
    for port in _PORTS:
        with contextlib.suppress(OSError):
            for family, kind, _, _, address in socket.getaddrinfo("localhost", port, type=socket.SOCK_STREAM):
                with socket.socket(family, kind) as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(address)
            return port
    return 0


if __name__ == "__main__":
    die_with_parent(os.getppid())
    runpy.run_module("edged", run_name="__main__", alter_sys=True)
