"""Start a daemon with a model of fixed shapes and one that takes batches, and load both with perf_analyzer.

exit status: 0 success, 1 a failure, 77 not possible here; the reason is printed
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import numpy as np
from onnx import helper, numpy_helper

from tests import models
from tests.integration.daemon import Daemon
from tests.onnx_backend.served import REFERENCE_ONLY
from tests.system.perf_analyzer import Unavailable
from tests.system.perf_analyzer.fetched import Program, fetch
from tests.system.perf_analyzer.runs import MODES, Run, run

_NOT_RUN = 77  # means "not run here" to test harnesses
_CONCURRENCY = "1:16:5"
_CONFIGURATION = "max_batch_size: 16\ndynamic_batching { max_queue_delay_microseconds: 500 }\n"
# By model name: perf_analyzer's options for each load.
_LOADS: dict[str, tuple[tuple[str, ...], ...]] = {"fixed": ((),), "batched": ((), ("-b", "4"))}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.system.perf_analyzer", description=__doc__)
    parser.add_argument("--mode", action="append", choices=MODES, help="default: all")
    parser.add_argument("--concurrency", default=_CONCURRENCY, metavar="FIRST:LAST:STEP")
    arguments = parser.parse_args()
    try:
        program = fetch(cache_folder())
    except Unavailable as error:
        print(f"not run: {error}", file=sys.stderr)
        return _NOT_RUN
    with Daemon() as daemon:
        write_models(daemon.models)
        for name in _LOADS:
            daemon.ready(name)
        problems = load(program, daemon, arguments.mode or list(MODES), arguments.concurrency)
    for problem in problems:
        print(f"failed: {problem}", file=sys.stderr)
    return int(bool(problems))


def load(program: Program, daemon: Daemon, modes: list[str], concurrency: str) -> list[str]:
    """Load every model in every mode. Print throughput relative to one synchronous request; return failures."""
    problems = []
    for name, loads in _LOADS.items():
        single = 0.0
        for options in loads:
            what = " ".join((name, *options))
            for mode in modes:
                # Shared memory needs a client on the same machine, which a unix socket proves.
                address = daemon.unix if mode == "shared memory" else daemon.tcp
                done = run(program, address, name, mode, options, concurrency)
                single = single or next(iter(done.throughput.values()), 0.0)
                print(_line(what, mode, done, single), flush=True)
                problems += [f"{what}, {mode}: {done.problem}"] if done.problem else []
    return problems


def _line(what: str, mode: str, done: Run, single: float) -> str:
    if done.problem:
        return f"{what:14} {mode:14} FAILED"
    ratios = "  ".join(f"{count}: {rate / single:5.2f}x" for count, rate in done.throughput.items())
    return f"{what:14} {mode:14} {ratios}"


def write_models(folder: Path) -> None:
    """Write a model with two layers of 256, once for one row and once for batches, configured as for Triton."""
    weights = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32) / 16
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    for name, rows in (("fixed", 1), ("batched", "N")):
        inputs = [models.value("x", "FP32", [rows, 256])]
        outputs = [models.value("y", "FP32", [rows, 256])]
        proto = models.model(nodes, inputs, outputs, [numpy_helper.from_array(weights, "w")])
        models.save(proto, folder / name / "1" / "model.onnx")
        (folder / name / "edged.toml").write_text(REFERENCE_ONLY)  # so that no build uses the processor
    (folder / "batched" / "config.pbtxt").write_text(_CONFIGURATION)


def cache_folder() -> Path:
    """Return the folder for downloads."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("PERF_ANALYZER_CACHE") or Path(base) / "edged-perf-analyzer").absolute()


if __name__ == "__main__":
    sys.exit(main())
