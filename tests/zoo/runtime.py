"""ONNX Runtime itself, in separate processes: the versions that it supports, and whether it runs a model."""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

_REACH = """
import onnxruntime
from tests.zoo.parts import relu
onnxruntime.set_default_logger_severity(4)
def takes(**versions):
    try:
        onnxruntime.InferenceSession(relu(**versions).SerializeToString(), providers=["CPUExecutionProvider"])
    except Exception:
        return False
    return True
def last(name, first):
    while takes(**{name: first + 1}):
        first += 1
    return first
print(last("opset", 17), last("ir", 9))
"""
_ROOT = Path(__file__).resolve().parents[2]
_MOST_BYTES = 8 << 30  # of address space, for the trial process


@dataclass(frozen=True)
class Reach:
    """The newest opset and IR version that the installed runtime accepts."""

    opset: int
    ir: int


@functools.cache
def reach() -> Reach:
    """Determine the versions by trials, not from a table of releases."""
    asked = subprocess.run(
        [sys.executable, "-c", _REACH], cwd=_ROOT, check=True, capture_output=True, text=True, timeout=60
    )
    opset, ir = map(int, asked.stdout.split())
    return Reach(opset, ir)


def tried(path: Path, seconds: float = 15.0) -> str:
    """Load a model as it is written and run it once; return `runs`, or one line that says how it fails.

    Runs in a fork with limits of address space and time, so that a crash affects only the fork.
    """
    reader, writer = os.pipe()
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os.close(reader)
            resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            os.write(writer, _loaded_and_run(path).encode()[:4000])
        os._exit(0)
    os.close(writer)
    try:
        status = _ended(pid, began + seconds)
        with os.fdopen(reader, "rb") as pipe:
            output = pipe.read().decode(errors="replace")
    except TimeoutError:
        return f"takes longer than {seconds:g} s"
    if os.WIFSIGNALED(status):
        return f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return output or "exits without output"


def _ended(pid: int, until: float) -> int:
    """Return the exit status. A process that does not exit in time is killed, with TimeoutError."""
    while time.monotonic() < until:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise TimeoutError


def _loaded_and_run(path: Path) -> str:
    import numpy as np
    import onnxruntime

    types = {"float": "float32", "double": "float64", "string": "object"}
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime's exceptions have no common base
        return f"not loaded: {_line(error)}"
    feeds = {}
    for entry in session.get_inputs():
        kind = entry.type.removeprefix("tensor(").removesuffix(")")
        if kind == "bfloat16":
            return "loaded, not run: no numpy type"
        shape = [size if isinstance(size, int) and size >= 0 else 4 for size in entry.shape or ()]
        try:
            feeds[entry.name] = np.ones(shape, "float32").astype(types.get(kind, kind))
        except (TypeError, ValueError, MemoryError) as error:
            return f"loaded, not run: {_line(error)}"
    try:
        outputs = session.run(None, feeds)
    except Exception as error:
        return f"not run: {_line(error)}"
    finite = all(np.isfinite(each).all() for each in outputs if getattr(each, "dtype", np.dtype(object)).kind == "f")
    return "runs" if finite else "runs, not finite"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
