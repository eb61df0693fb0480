"""Builds with fake TensorRT modules on a fake device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edged.backends.contract import Composition, Order, Recipe, Signature
from edged.backends.trt import load
from edged.backends.trt.backend import TensorRt
from edged.jobs.tasks import load_graphs
from edged.tensors import TensorSpec
from tests.fake_trt import Script, Trace, make

KINDS = {"rtx": "TensorRT-RTX"}
X = TensorSpec("x", "FP32", (1, 4))
Y = TensorSpec("y", "FP32", (1, 4))


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A fake device of compute capability 8.6 that can only be made current and closed."""
    device = SimpleNamespace(properties=SimpleNamespace(compute_capability="8.6"), closed=0)

    def close() -> None:
        device.closed += 1

    @contextlib.contextmanager
    def current() -> Iterator[None]:
        yield

    device.close, device.current = close, current
    monkeypatch.setattr(load, "open_device", lambda name: device)
    return device


def order(folder: Path, signature: Signature | None = None, capability: str = "", **recipe: Any) -> Order:
    chosen = Recipe("tensorrt", "cuda:0", **{"optimization": "3", "options": "workspace_mb=64", **recipe})
    return Order(str(folder / "m.onnx"), signature or Signature((X,), (Y,)), chosen, capability=capability)


def build(
    generation: str,
    folder: Path,
    script: Script | None = None,
    wanted: Order | None = None,
    reported: list[float] | None = None,
) -> tuple[Composition, Trace]:
    trt, trace = make(generation, script)
    backend = TensorRt("tensorrt", KINDS.get(generation, "TensorRT"), "libnone.so", trt)
    out = folder / "out"
    out.mkdir(exist_ok=True)
    made = backend.build(wanted or order(folder), out, (reported if reported is not None else []).append, load_graphs)
    return made, trace
