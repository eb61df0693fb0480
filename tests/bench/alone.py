"""Runtimes without a server: inference in this process, which bounds what any server of the same runtime can reach."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import onnxruntime
import openvino

from tests.bench.loads import side_by_side
from tests.bench.nets import Net
from tests.bench.table import Figures

Infer = Callable[[np.ndarray], object]

# Instances, and threads of each; 0 threads: one per core.
FORMS = ((1, 0), (2, 1))


def sessions(path: Path, net: Net) -> dict[str, list[Infer]]:
    """Return by runtime and form one function per instance, which infers [1, 3, size, size] FP32."""
    found: dict[str, list[Infer]] = {}
    for instances, threads in FORMS:
        form = f"{instances} x {threads or 'all'} threads"
        found[f"ONNX Runtime alone, {form}"] = [_onnxruntime(path, threads) for _ in range(instances)]
        found[f"OpenVINO alone, {form}"] = _openvino(path, net, instances, threads)
    return found


def rate(instances: Sequence[Infer], net: Net, count: int, seconds: float) -> Figures:
    """Infer in `count` loops. Each takes the next free instance."""
    images, taken, free = np.zeros((1, 3, net.size, net.size), np.float32), list[float](), SimpleQueue[Infer]()
    for infer in instances:
        free.put(infer)
    until = time.perf_counter() + seconds

    def work(_: int) -> None:
        while (began := time.perf_counter()) < until:
            infer = free.get()
            infer(images)
            free.put(infer)
            taken.append(time.perf_counter() - began)

    elapsed = side_by_side(work, range(count))
    return {"inferences/s": len(taken) / elapsed, "p99 ms": float(np.quantile(taken, 0.99)) * 1e3}


def _onnxruntime(path: Path, threads: int) -> Infer:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda images: session.run(["out"], {"images": images})


def _openvino(path: Path, net: Net, instances: int, threads: int) -> list[Infer]:
    core = openvino.Core()
    model = core.read_model(str(path))
    model.reshape([1, 3, net.size, net.size])
    wanted = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    if instances > 1:
        wanted |= {"NUM_STREAMS": str(instances), "INFERENCE_NUM_THREADS": str(instances * threads)}
    compiled = core.compile_model(model, "CPU", wanted)
    return [_asked(compiled.create_infer_request()) for _ in range(instances)]


def _asked(request: openvino.InferRequest) -> Infer:
    return lambda images: request.infer([images], share_inputs=True)
