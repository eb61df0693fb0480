"""The daemon of a demonstration: a real one, as a child process, with everything it writes below one scratch folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from edged.errors import EdgedError

_LONGEST_TMP = 50  # characters; sockets lie below the scratch folder, and Linux allows their paths 107 bytes
_START_S, _STOP_S = 300.0, 60.0  # seconds for a busy box
_POLL_S = 0.02


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder for one demonstration, removed afterwards."""
    place = tempfile.gettempdir()
    if len(os.fsencode(place)) > _LONGEST_TMP:
        place = "/tmp"  # noqa: S108
    with tempfile.TemporaryDirectory(prefix="edged-demo-", dir=place, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


class DaemonProcess:
    """A running daemon. `launched` is when it was started, in monotonic seconds."""

    def __init__(self, folder: Path, name: str, model: Path) -> None:
        """Start it with the model under a name. Models and engines that are in `folder` are found again."""
        self.address = f"unix:{folder / 'edged.sock'}"
        self._out, self._err = folder / "stdout", folder / "stderr"
        temporary = folder / "tmp"
        temporary.mkdir(exist_ok=True)
        self.launched = time.monotonic()
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._child = subprocess.Popen(
                [
                    *(sys.executable, "-m", "edged.demo.run_with_parent", "serve"),
                    *("--model", f"{name}={model}", "--listen", self.address),
                    *("--state", str(folder / "state"), "--cache", str(folder / "cache")),
                ],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                # Leftovers of a killed daemon are removed with the scratch folder. The user's configuration is for
                # another daemon.
                env={**os.environ, "TMPDIR": str(temporary), "XDG_CONFIG_HOME": str(folder)},
                # Ctrl-C goes to all processes of a terminal, but streams have to end before their daemon.
                start_new_session=True,
            )

    async def wait_until_listening(self) -> None:
        """EdgedError if it ends, or does not answer within five minutes."""
        while b"listening on" not in self._out.read_bytes():
            self.check()
            if time.monotonic() - self.launched > _START_S:
                raise EdgedError(f"the daemon did not answer within {_START_S:g} s{self._last_line()}")
            await asyncio.sleep(_POLL_S)

    def check(self) -> None:
        """EdgedError, with its last line, if it has ended by itself."""
        code = self._child.poll()
        if code is not None:
            raise EdgedError(f"the daemon ended by itself with status {code}{self._last_line()}")

    async def stop(self) -> None:
        """Ask it to stop and wait; kill it with all its children after a minute. EdgedError if it failed."""
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
        """Kill the rest of its session, itself included."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()

    def _last_line(self) -> str:
        lines = [line.strip() for line in self._err.read_text(errors="replace").splitlines() if line.strip()]
        return f": {lines[-1][:300]}" if lines else ""


@contextlib.asynccontextmanager
async def running(folder: Path, name: str, model: Path) -> AsyncIterator[DaemonProcess]:
    """A daemon that answers; it is stopped at the end."""
    daemon = DaemonProcess(folder, name, model)
    try:
        await daemon.wait_until_listening()
        yield daemon
    except BaseException:
        with contextlib.suppress(EdgedError):  # the first error is the one to raise
            await daemon.stop()
        raise
    await daemon.stop()
