"""Helpers for TensorRT for RTX: edged's builder, and programs in child processes that use the runtime."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import util
from pathlib import Path

import numpy as np
import onnx
import pytest

from edged.backends.trt import load
from edged.config.child_limits import Limits
from edged.device import runtimes
from edged.device.fingerprint import Fingerprint
from edged.device.root import Root
from edged.engines import offline
from edged.engines.builder import Builder
from edged.ipc.job_messages import Progress
from edged.jobs.inspect import inspect
from edged.models.entries import plain_entry
from edged.models.model import Model
from edged.store.record import EngineRecord
from edged.store.store import Store
from tests import models
from tests.waiting import run

INSTALLED = pytest.mark.skipif(
    util.find_spec("tensorrt_rtx_bindings") is None or util.find_spec("tensorrt_rtx_libs") is None,
    reason="TensorRT for RTX is not installed; it has wheels for x86-64 only, which `make` installs",
)
RANDOM = np.random.default_rng(3)
# Bits of byte 32 of the header, as observed. They show that an engine is for the requested device only.
TARGETS = {"7.5": 0x01, "8.0": 0x02, "8.6": 0x04, "8.9": 0x08, "12.0": 0x10, "12.1": 0x20}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


@pytest.fixture
def builder(store: Store, tmp_path: Path) -> Builder:
    return Builder(store, tmp_path / "cache", Limits(seconds=110, memory_mb=6144))


def here() -> Fingerprint:
    return Fingerprint({"cpu.arch": "x86_64"} | {k: v for k, v in runtimes.probe(Root()).items() if v})


def read(path: Path, **settings: str) -> Model:
    return Model.of(plain_entry("m", path, {k.replace("__", "."): v for k, v in settings.items()}), inspect(path))


async def plenty(need: int) -> int:
    return 0


def make(
    builder: Builder, model: Model, capability: str = "8.6", precision: str = "fp32"
) -> tuple[EngineRecord, str, list[Progress]]:
    """Build as `edged engines build --for` does; return the record, the key's digest and the reported progress."""
    from edged.engines.builder import Task

    reported: list[Progress] = []
    on = offline.target(capability, here())
    (engine,) = offline.engines(model, on, (precision,))
    assert not getattr(engine, "problem", ""), engine
    task = Task(model, engine.recipe, engine.key)
    record = run(builder.make_ahead(task, on.name, on.capability, reported.append, plenty), 110)
    return record, engine.key.digest, reported


def conv(folder: Path, **more: int) -> Path:
    return models.save(models.conv(**{"channels": 16, "size": 32, **more}), folder / "model.onnx")


def layered(folder: Path) -> Path:
    """Save a model of three convolutions on a picture, so that a precision changes something."""
    nodes, weights, before = [], [], "images"
    for number, (reads, makes) in enumerate([(3, 16), (16, 16), (16, 8)]):
        array = (RANDOM.standard_normal((makes, reads, 3, 3)) / 8).astype(np.float32)
        weights.append(onnx.numpy_helper.from_array(array, f"w{number}"))
        after = f"c{number}"
        nodes.append(onnx.helper.make_node("Conv", [before, f"w{number}"], [after], f"conv{number}", pads=[1, 1, 1, 1]))
        nodes.append(onnx.helper.make_node("Relu", [after], [f"r{number}"], f"relu{number}"))
        before = f"r{number}"
    proto = models.model(
        nodes, [models.value("images", "FP32", [1, 3, 64, 64])], [models.value(before, "FP32", [1, 8, 64, 64])], weights
    )
    return models.save(proto, folder / "layered.onnx")


def header(store: Store, key: str) -> tuple[load.Header, bytes]:
    data = store.artefact(key).load("engine.plan")
    return load.read_header(data), data


PROGRAM = """
import json, sys
from pathlib import Path
from edged.backends import registry
from edged.backends.artefact import Artefact
from edged.backends.contract import Order, Recipe
from edged.errors import EdgedError, EngineUnusable
from edged.jobs.inspect import inspect
from edged.jobs.tasks import load_graphs
import msgspec
BACKEND = registry.load("tensorrt_rtx")
trt = BACKEND._trt
def order(path, **more):
    recipe = Recipe("tensorrt_rtx", "cuda:0", optimization="3", options="workspace_mb=64")
    return Order(path, inspect(Path(path)).signature, recipe, **more)
def attempt(path, out, capability="8.6"):
    Path(out).mkdir(exist_ok=True)
    try:
        BACKEND.build(order(path, capability=capability), Path(out), lambda share: None, load_graphs)
    except EdgedError as error:
        return f"{type(error).__name__}: {error}"
    return ""
def opened(path, out):
    try:
        BACKEND.open(order(path, artefact=Artefact.seal(Path(out)))).close()
    except EdgedError as error:
        return f"{type(error).__name__}: {error}"
    return ""
"""


def ask(program: str, *folders: str) -> dict[str, object]:
    """Run a program in a child process, as a host is; return its variable `answer`. Folders precede packages."""
    path = os.pathsep.join([*folders, os.getcwd()])
    ended = subprocess.run(
        [sys.executable, "-c", f"{PROGRAM}\n{program}\nprint(json.dumps(answer))"],
        env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    answer: dict[str, object] = json.loads(ended.stdout.splitlines()[-1])
    return answer
