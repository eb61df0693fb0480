"""The row of starts: the time until every model has answered, at a first start and with engines from before."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import numpy as np

from edged.proto import open_inference_pb2 as pb
from tests.bench.loads import BARE, program
from tests.bench.nets import NETS, save
from tests.bench.table import Figures, Line, compare, in_rounds
from tests.integration.daemon import Daemon
from tests.integration.inference_calls import Calls, request

if TYPE_CHECKING:
    from tests.bench.rows import Bench

_COUNTS = (1, 40)
_SECONDS = 120.0
_NET = NETS[0]


def starts(bench: Bench) -> list[Line]:
    """Seconds per model until all have answered / a bare program with ONNX Runtime, started for one model."""
    lines: list[Line] = []
    for count in _COUNTS:
        names = [f"m{number:02}" for number in range(count)]
        with bench.daemons(partial(_prepare, names)) as found:
            model = next(iter(found.values())).models / f"{names[0]}.onnx"
            ways: dict[str, Callable[[], Figures]] = {}
            for name, daemon in found.items():
                ways[name] = partial(_start, daemon, names)
            measured = in_rounds({**ways, "bare program": partial(_bare, model)}, min(bench.rounds, 3), warm_up=False)
        for name in found:
            for figure in ("first start, s", "next start, s"):
                row = f"start, {count} model{'s' if count > 1 else ''}"
                lines.append(compare(row, measured, name, ["bare program"], figure, None, more=False))
    return lines


def _prepare(names: list[str], daemon: Daemon) -> None:
    for number, name in enumerate(names):
        save(_NET, daemon.models / f"{name}.onnx", seed=number)


def _start(daemon: Daemon, names: list[str]) -> Figures:
    """Start a daemon without engines, then again with the engines that it built."""
    if daemon.is_started:
        daemon.stop(60)
    daemon.forget()
    found = {}
    for figure in ("first start, s", "next start, s"):
        began = time.monotonic()
        daemon.start()
        with Calls(daemon.unix) as calls:
            for name in names:
                _until_answered(calls, request(name, np.zeros((1, 3, _NET.size, _NET.size), np.float32), "images"))
        found[figure] = (time.monotonic() - began) / len(names)
        daemon.stop(60)
    return found


def _until_answered(calls: Calls, message: pb.ModelInferRequest) -> None:
    end = time.monotonic() + _SECONDS
    while True:
        try:
            calls.infer(message)
            return
        except grpc.RpcError:  # it is not ready yet
            if time.monotonic() > end:
                raise
        time.sleep(0.01)


def _bare(model: Path) -> Figures:
    began = time.monotonic()
    with program([sys.executable, "-c", BARE, str(model)]):
        taken = time.monotonic() - began
    return {"first start, s": taken, "next start, s": taken}
