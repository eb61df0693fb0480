"""Fixtures for integration tests: one daemon for all tests that do not change it, and a store of built engines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from edged.shapes import MODEL_PATH
from tests.integration import onnx_files
from tests.integration.daemon import Daemon, learn_all
from tests.integration.detector_cache import DetectorCache
from tests.waiting import play


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    return play(pyfuncitem, 300.0)


@pytest.fixture(scope="package", autouse=True)
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DetectorCache]:
    """Caches for daemons with the embedded detector, shared by all workers of a run. The environment variable
    DETECTOR_CACHE names a folder that several runs of the same code share."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    Daemon.known = DetectorCache(Path(os.environ.get("DETECTOR_CACHE") or shared / "detector"))
    yield Daemon.known
    Daemon.known = None


@pytest.fixture
def stored(known: DetectorCache) -> Daemon:
    """A daemon, not yet started, that has every engine of the embedded detector in its store."""
    daemon = Daemon("--model", f"shapes={MODEL_PATH}")
    known.copy("built", learn_all, daemon.cache)
    return daemon


@pytest.fixture(scope="package")
def daemon(known: DetectorCache) -> Iterator[Daemon]:
    """A daemon with the embedded detector as `shapes`, an identity model per dtype, and some broken models."""
    daemon = Daemon("--model", f"shapes={MODEL_PATH}", builds=False)
    for datatype in onnx_files.DTYPES:
        onnx_files.identity(daemon.models / f"id_{datatype}.onnx", datatype)
    whole = MODEL_PATH.read_bytes()
    (daemon.models / "truncated.onnx").write_bytes(whole[: len(whole) // 2])
    (daemon.models / "text.onnx").write_text("This is not a model.\n")
    onnx_files.identity(daemon.models / "unknown_operator.onnx", "FP32", "Frobnicate", "com.example")
    folder = daemon.models / "lost_weights" / "1"
    folder.mkdir(parents=True)
    onnx_files.convolutions(folder / "model.onnx", external=True)
    (folder / "weights.bin").unlink()
    with daemon:
        daemon.ready("shapes")
        yield daemon


@pytest.fixture(scope="module")
def channel(daemon: Daemon) -> Iterator[grpc.Channel]:
    """A channel to the daemon of the test module."""
    with grpc.insecure_channel(daemon.unix) as channel:
        yield channel
