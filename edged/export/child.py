"""Starts a child process that runs the user's Python, and sends requests to it. In this process, a framework loads and
exports a model.

The child may read the files of the user's Python and of the source. It may write only to a scratch folder, which
contains its home folder. The child has no network, and its time and memory are limited. `frameworks/main.py` describes
the messages.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from edged import process
from edged.confinement import rules
from edged.decoding import ready
from edged.errors import BuildFailed, InvalidInput, Unsuitable, Unsupported

_MAIN = Path(__file__).parent / "frameworks" / "main.py"
_NOISE = 1 << 16  # bytes at the end of standard error that `noise` returns
_DISK_MB = 16 << 10
_LONGEST = 16 << 20  # bytes of the longest accepted answer
# Environment variables that name a cache of downloaded weights, with the default folders below ~/.cache.
_CACHES = {"TORCH_HOME": "torch", "HF_HOME": "huggingface"}
_OFFLINE = {
    **dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "YOLO_OFFLINE", "ULTRALYTICS_SAFE_LOAD"), "1"),
    **dict.fromkeys(("HF_HUB_DISABLE_TELEMETRY", "DO_NOT_TRACK", "PYTHONDONTWRITEBYTECODE"), "1"),
    "YOLO_AUTOINSTALL": "false",
    "CUDA_VISIBLE_DEVICES": "",
    "PYTHONUNBUFFERED": "1",
}
_ASK = "import json, sys; print(json.dumps([sys.version_info[:2], sys.prefix, sys.base_prefix, *sys.path]))"
_OLDEST = [3, 9]


class Answer(msgspec.Struct, frozen=True):
    """An answer of the user's Python. `frameworks/contract.py` describes the fields that answer a request `load`."""

    error: str = ""  # refused, missing, memory or failed
    message: str = ""
    module: str = ""  # name of the missing Python module
    framework: str = ""
    inputs: dict[str, tuple[str, tuple[int, ...], dict[int, str]]] = {}
    settings: dict[str, str] = {}
    ways: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    has_layers: bool = False
    memory_mb: int = 0  # the most that the process used so far
    names: tuple[str, ...] = ()  # names of the arrays in the .npz file of answers


class ModuleMissing(Unsupported):
    """The user's Python lacks a module. The message is the module's name, if known."""


class Limits(NamedTuple):
    """Limits of the child process: wall-clock seconds for all steps together, and MiB of memory."""

    seconds: float
    memory_mb: int


class FrameworkProcess:
    """A running process of the user's Python. Raises InvalidInput if this Python cannot be used."""

    def __init__(self, python: str, scratch: Path, reads: tuple[str, ...], imports_from: str, limits: Limits) -> None:
        """`reads` are files and folders that the source needs; `imports_from` is the folder of the user's modules."""
        self._until, self._limits = time.monotonic() + limits.seconds, limits
        places = _places(python)
        environment, caches = _environment(scratch)
        reach = rules.reach((*reads, *places, *caches, str(_MAIN.parent)), (), str(scratch))
        launcher = [
            sys.executable,
            "-m",
            "edged.export.launcher",
            str(os.getpid()),
            str(limits.memory_mb),
            str(_DISK_MB),
        ]
        process.adopt_orphans()
        self._others = process.children()
        self._noise = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`; has no path to open
        self._process = subprocess.Popen(
            [*launcher, reach.argument(), python, str(_MAIN), imports_from],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._noise,
            env=environment,
            start_new_session=True,
            **process.ISOLATED,
        )
        self._pending = b""
        self.memory_mb = 0  # the most that the framework used so far

    def ask(self, do: str, **request: object) -> Answer:
        """Send a request and wait for the answer. Raises ModuleMissing if a module is missing, and Unsuitable if the
        source is refused. Raises BuildFailed if the framework fails or exceeds a limit."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the process has ended; `_line` reports how
            self._process.stdin.write(json.dumps({"do": do, **request}).encode() + b"\n")
            self._process.stdin.flush()
        try:
            found = msgspec.json.decode(self._line(), type=ready(Answer))
        except msgspec.MsgspecError as error:
            message = f"the framework's process sent an invalid answer: {error}"
            raise BuildFailed(f"{message}; to report this: edged report") from error
        self.memory_mb = max(self.memory_mb, found.memory_mb)
        if found.error == "missing":
            raise ModuleMissing(found.module or found.message)
        if found.error == "refused":
            raise Unsuitable(found.message)
        if found.error == "memory":
            raise BuildFailed(f"the framework needs more memory than {self._limits.memory_mb} MiB; raise --memory-mb")
        if found.error:
            raise BuildFailed(found.message)
        return found

    def close(self) -> None:
        """Kill the process and all processes that it started, including those in other sessions."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        process.kill_children(but=self._others)
        for pipe in (self._process.stdin, self._process.stdout, self._noise):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._pending:
            left = self._until - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                raise BuildFailed(f"the export took longer than {self._limits.seconds:g} s; raise --seconds")
            piece = os.read(pipe, 1 << 16)
            if not piece:
                raise BuildFailed(self._how_it_ended())
            self._pending += piece
            if len(self._pending) > _LONGEST:
                message = f"the framework's process sent an answer of more than {_LONGEST >> 20} MiB"
                raise BuildFailed(f"{message}; to report this: edged report")
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _how_it_ended(self) -> str:
        code = self._process.wait()
        said = self.noise()[-1:]
        if code == -signal.SIGKILL:
            return "the framework's process was killed, perhaps because memory ran out"
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
        return f"the framework's process ended {how}" + (f": {said[0][:300]}" if said else "")

    def noise(self) -> list[str]:
        """Return the non-empty lines in the last 64 KiB that the process printed."""
        self._noise.seek(max(0, self._noise.seek(0, os.SEEK_END) - _NOISE))
        return [line for line in self._noise.read().decode(errors="replace").splitlines() if line.strip()]


def _places(python: str) -> tuple[str, ...]:
    """Return the folders of a Python's installation and modules. Raises InvalidInput if this Python does not run or is
    too old."""
    try:
        command = [python, "-c", _ASK]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, **process.ISOLATED)
        version, *places = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise InvalidInput(
            f"{python} cannot be run as Python: {_no_python(error)}; name another one with --python PATH"
        ) from error
    if version < _OLDEST:
        raise InvalidInput(
            f"{python} is Python {version[0]}.{version[1]}, but exports need 3.9 or newer; give --python PATH"
        )
    return tuple(place for place in places if place and place != os.sep)


def _no_python(error: Exception) -> str:
    """Return why a program did not answer as Python does."""
    if isinstance(error, subprocess.CalledProcessError):
        last = (str(error.stderr or "").strip().splitlines() or [""])[-1][:200]
        return f"it ended with status {error.returncode}" + (f": {last}" if last else "")
    if isinstance(error, subprocess.TimeoutExpired):
        return f"it did not answer within {error.timeout:g} s"
    return (error.strerror or str(error)) if isinstance(error, OSError) else "it did not answer as Python does"


def _environment(scratch: Path) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the environment variables of the child, and the user's caches of weights, which the child may read. The
    variables set a home folder in the scratch folder, and keep frameworks offline."""
    home = scratch / "home"
    home.mkdir()
    kept: Mapping[str, str] = {
        name: value
        for name, value in os.environ.items()
        if name in ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "PYTHONPATH") or name.startswith("OMP_")
    }
    caches = {
        name: os.environ.get(name) or os.path.expanduser(f"~/.cache/{folder}") for name, folder in _CACHES.items()
    }
    own = {
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "TMPDIR": str(scratch),
        "YOLO_CONFIG_DIR": str(home),
    }
    # Only the folders of weights may be read, because the folders around them contain access tokens.
    return {**kept, **_OFFLINE, **own, **caches}, tuple(f"{place}/hub" for place in caches.values())


@contextlib.contextmanager
def running(
    python: str, scratch: Path, reads: tuple[str, ...], imports_from: str, limits: Limits
) -> Iterator[FrameworkProcess]:
    """A context in which the user's Python runs."""
    started = FrameworkProcess(python, scratch, reads, imports_from, limits)
    try:
        yield started
    finally:
        started.close()
