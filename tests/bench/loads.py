"""Loads for a daemon, and the same work done in this process without a daemon."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

import edged
from edged.jobs.inspect import inspect
from edged.vision.families.contract import Family
from edged.vision.family import open_family, recognise
from edged.vision.image import decode_reduced
from edged.vision.prepare import Preparer
from tests.bench.table import Figures
from tests.integration.daemon import Daemon, job_server

Picture = bytes | np.ndarray
_PATIENCE = 60.0  # seconds without a result after which a camera gives up
# A program without edged that opens a model, runs it once and waits.
BARE = """
import sys, numpy, cv2, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
value = session.get_inputs()[0]
shape = [side if isinstance(side, int) else 1 for side in value.shape]
session.run(None, {value.name: numpy.zeros(shape, numpy.float32)})
print("ready", flush=True)
sys.stdin.read()
"""


def processor_seconds(pids: Sequence[int]) -> float:
    """Return the processor time that the processes have used so far."""
    used = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        used += int(fields[11]) + int(fields[12])
    return used / 100


def seconds_with_children(daemon: Daemon) -> float:
    """Return the processor time that a daemon and its children have used so far, also those that have ended."""
    used = 0
    server = job_server(daemon.pid)
    for pid in (daemon.pid, *daemon.children(), *([] if server is None else [server])):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ends just now
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            used += sum(map(int, fields[11:15]))
    return used / 100


def pss_mb(pid: int) -> float:
    """Return a process's proportional set size in MiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("Pss:"))) / 1024


def cameras(
    client: edged.Client, model: str, pictures: Sequence[Picture], count: int, shared: bool, seconds: float
) -> Figures:
    """Return the frames per second and p99 in ms of `count` cameras, each with one frame in flight."""
    taken: list[float] = []
    problems: list[str] = []
    until = time.perf_counter() + seconds

    def camera(number: int) -> None:
        gate, sent = threading.Semaphore(1), [0.0]

        def frames() -> Iterator[Picture]:
            for picture in itertools.cycle(pictures):
                if not gate.acquire(timeout=_PATIENCE) or time.perf_counter() > until:
                    return
                sent[0] = time.perf_counter()
                yield picture

        try:
            for result in client.stream(
                model, frames(), camera=f"c{number}", every_frame=True, lossless=True, shared=shared
            ):
                if result.error is not None:
                    raise RuntimeError(str(result.error))
                taken.append(time.perf_counter() - sent[0])
                gate.release()
        except Exception as error:
            problems.append(str(error))

    elapsed = side_by_side(camera, range(count))
    if problems or not taken:
        raise RuntimeError(f"cameras got no answers: {problems[:1]}")
    return _rate(taken, elapsed)


class ByHand:
    """ONNX Runtime in this process: decode, fit, infer and read boxes, in `workers` threads with a session of `threads`
    threads each. It uses the daemon's functions for pictures and boxes, so that only the transport differs."""

    def __init__(self, path: Path, workers: int, threads: int) -> None:
        read = inspect(path)
        self._recognition = recognise(
            read.signature.inputs, read.signature.outputs, read.metadata, {}, read.operators, read.heads
        )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._names = [output.name for output in read.signature.outputs]
        self._sessions = [
            onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]) for _ in range(workers)
        ]

    def rate(self, pictures: Sequence[Picture], seconds: float) -> Figures:
        """Return frames per second and the 99th percentile in ms."""
        until, taken = time.perf_counter() + seconds, list[float]()
        return _rate(taken, side_by_side(lambda s: self._work(s, pictures, until, taken), self._sessions))

    def _work(
        self, session: onnxruntime.InferenceSession, pictures: Sequence[Picture], until: float, taken: list[float]
    ) -> None:
        preprocess = self._recognition.preprocess
        assert preprocess is not None
        preparer, family = Preparer(preprocess), open_family(self._recognition)
        assert isinstance(family, Family)
        tensor = np.empty((1, *preprocess.shape), np.float32)
        for picture in itertools.cycle(pictures):
            started = time.perf_counter()
            if started > until:
                return
            pixels = decode_reduced(picture, preparer.reduction) if isinstance(picture, bytes) else picture
            placement = preparer.prepare(pixels, tensor[0])
            outputs = dict(zip(self._names, session.run(None, {self._recognition.input: tensor}), strict=True))
            family.decode(outputs, 0, placement, self._recognition.thresholds)
            taken.append(time.perf_counter() - started)


def side_by_side(work: Callable[[Any], object], items: Iterable[object]) -> float:
    """Do the work on each item in its own thread; return the seconds until all have ended."""
    threads = [threading.Thread(target=work, args=(item,)) for item in items]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def _rate(taken: Sequence[float], elapsed: float) -> Figures:
    """Return frames per second and the 99th percentile in ms; `taken` has the seconds of each frame."""
    return {"frames/s": len(taken) / elapsed, "p99 ms": float(np.quantile(taken, 0.99)) * 1e3}


@contextlib.contextmanager
def program(command: list[str], folder: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run a program in `folder` (default: the current one); yield once it prints a line. It is killed afterwards."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder) as process:
        assert process.stdout is not None
        try:
            if not process.stdout.readline():
                raise RuntimeError(f"{command[1:4]} exited while starting")
            yield process
        finally:
            process.kill()
