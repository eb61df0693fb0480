"""edged's protocol files declare exactly what Triton's client was generated from."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Any

import pytest

from tests.integration.descriptors import declared

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tritonclient") is None, reason="tritonclient, the reference, is not installed"
)


@pytest.fixture(scope="module")
def theirs() -> dict[str, Any]:
    return declared("tritonclient.grpc.service_pb2", "tritonclient.grpc.model_config_pb2")


@pytest.fixture(scope="module")
def ours() -> dict[str, Any]:
    return declared("edged.proto.open_inference_pb2", "edged.proto.model_config_pb2")


@pytest.mark.parametrize("first", ["tritonclient.grpc", "edged.proto.open_inference_pb2"])
def test_import_messages_with_tritonclient_in_one_process_succeeds(first: str) -> None:
    program = f"import {first}, edged.proto.open_inference_pb2, edged.proto.operations_pb2, tritonclient.grpc"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", ["message", "enum", "rpc"])
def test_edged_and_triton_descriptors_have_equal_names(kind: str, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    mine = {name for name in ours if name.startswith(kind)}
    assert mine == {name for name in theirs if name.startswith(kind)}
    assert mine


def test_edged_and_triton_descriptors_are_equal(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert {name: what for name, what in ours.items() if what != theirs.get(name)} == {}


def test_inference_service_has_twenty_methods(ours: dict[str, Any]) -> None:
    assert sum(name.startswith("rpc inference.GRPCInferenceService.") for name in ours) == 20
