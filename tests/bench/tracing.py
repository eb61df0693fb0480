"""The cost of tracing for a request: of the call that asks whether it is traced, against an empty call, and in a
daemon, as a share of the requests that it answers without. Prints figures measured in one run.

python tests/bench/tracing.py [SECONDS]
"""

from __future__ import annotations

import time
import timeit
from pathlib import Path

import numpy as np

from edged.serving.trace import Tracing
from tests.integration import onnx_files
from tests.integration.daemon import Daemon
from tests.integration.inference_calls import Calls, request
from tests.measuring import argument

_CALLS = 500_000
_TURNS = 4


def main(seconds: float) -> None:
    tracing = Tracing(Path("unused"))
    nothing = _nanoseconds(lambda model, version, request: None)
    off = _nanoseconds(tracing.begin)
    tracing.change({"trace_level": ["TIMESTAMPS"]})
    print(f"asked while off: {off / nothing:.2f} empty calls; while one in 1000 is traced: ", end="")
    print(f"{_nanoseconds(tracing.begin) / nothing:.2f}")
    with Daemon() as daemon:
        onnx_files.identity(daemon.models / "m.onnx", "FP32")
        daemon.settled("m")
        with Calls(daemon.unix) as calls:
            _compare(calls, seconds)


def _nanoseconds(call: object) -> float:
    return timeit.timeit("call('model', '1', '7')", globals={"call": call}, number=_CALLS) / _CALLS * 1e9


def _compare(calls: Calls, seconds: float) -> None:
    """In turns, so that the load of the moment meets all."""
    ways = {"off": ([], []), "one in 1000": (["TIMESTAMPS"], ["1000"]), "each": (["TIMESTAMPS"], ["1"])}
    answered = dict.fromkeys(ways, 0)
    for _ in range(_TURNS):
        for way, (level, rate) in ways.items():
            calls.trace(trace_level=level, trace_rate=rate, trace_file=["bench.json"])
            answered[way] += _ask(calls, seconds / _TURNS)
    for way, count in answered.items():
        print(f"{way}: {count / answered['off']:.2f} of the requests that are answered without")


def _ask(calls: Calls, seconds: float) -> int:
    message, count, ends = request("m", np.ones((2, 4), np.float32)), 0, time.perf_counter() + seconds
    while time.perf_counter() < ends:
        calls.infer(message)
        count += 1
    return count


if __name__ == "__main__":
    main(argument(6.0))
