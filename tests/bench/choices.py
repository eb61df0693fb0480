"""The row of choices: the engine that the daemon chose for a model, against each runtime alone."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import grpc
import numpy as np

from tests.bench.loads import side_by_side
from tests.bench.nets import NETS, Net, save
from tests.bench.table import Figures, Line, compare, in_rounds, steady
from tests.integration.daemon import Daemon
from tests.integration.inference_calls import request

if TYPE_CHECKING:
    from tests.bench.rows import Bench

_SETTLES = 300.0
_GOAL = 0.95
_RUNTIMES = ("onnxruntime", "openvino")
_NETS = NETS[1:]


def choices(bench: Bench) -> list[Line]:
    """Requests per second of a model with all runtimes allowed / with the better of ONNX Runtime and OpenVINO alone."""
    lines: list[Line] = []
    with bench.daemons(_prepare) as found, contextlib.ExitStack() as stack:
        for daemon in found.values():
            for net in _NETS:
                for way in ("free", *_RUNTIMES):
                    daemon.settled(f"{net.name}-{way}", _SETTLES)
        calls = {
            name: stack.enter_context(grpc.insecure_channel(daemon.unix)).unary_unary(
                "/inference.GRPCInferenceService/ModelInfer"
            )
            for name, daemon in found.items()
        }
        for net in _NETS:
            for count in (1, 4):
                ways: dict[str, Callable[[], Figures]] = {
                    f"{name}, {way}": steady(partial(_rate, call, _message(net, way), count), bench.seconds)
                    for name, call in calls.items()
                    for way in ("free", *_RUNTIMES)
                }
                measured = in_rounds(ways, min(bench.rounds, 3), warm_up=False)
                for name in found:
                    alone = [f"{name}, {runtime}" for runtime in _RUNTIMES]
                    row = f"choice, {net.name}, {count} in flight"
                    lines.append(compare(row, measured, f"{name}, free", alone, "inferences/s", _GOAL))
    return lines


def _prepare(daemon: Daemon) -> None:
    for net in _NETS:
        for way in ("free", *_RUNTIMES):
            folder = daemon.models / f"{net.name}-{way}"
            (folder / "1").mkdir(parents=True)
            save(net, folder / "1" / "model.onnx")
            if way in _RUNTIMES:
                (folder / "edged.toml").write_text(f'backends = "{way}"\n')


def _message(net: Net, way: str) -> bytes:
    values = np.zeros((1, 3, net.size, net.size), np.float32)
    return request(f"{net.name}-{way}", values, "images").SerializeToString()


def _rate(call: Callable[..., bytes], message: bytes, count: int, seconds: float) -> Figures:
    """Measure with `count` requests in flight."""
    answered, until = [0] * count, time.perf_counter() + seconds

    def work(number: int) -> None:
        while time.perf_counter() < until:
            call(message, timeout=60)
            answered[number] += 1

    elapsed = side_by_side(work, range(count))
    return {"inferences/s": sum(answered) / elapsed}
