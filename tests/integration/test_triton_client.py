"""NVIDIA's own client, in its own process, against a running daemon."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration import onnx_files
from tests.integration.daemon import Daemon

# The client has no numpy dtype for BF16.
DATATYPES = [name for name in onnx_files.DTYPES if name != "BF16"]


@pytest.fixture(scope="module")
def seen(daemon: Daemon) -> Any:
    for datatype in DATATYPES:
        daemon.ready(f"id_{datatype}")
    # A process of its own: two definitions of the protocol's messages cannot live in one.
    peer = Path(__file__).with_name("triton_peer.py")
    done = subprocess.run(
        [sys.executable, str(peer), daemon.tcp, *DATATYPES], capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_reads_server_metadata(seen: Any) -> None:
    assert seen["live"] is True
    assert seen["server"]["name"] == "edged"


def test_reads_model_metadata(seen: Any) -> None:
    assert seen["ready"] is True
    assert seen["metadata"]["inputs"] == [{"name": "images", "datatype": "FP32", "shape": ["1", "3", "320", "320"]}]
    assert seen["metadata"]["outputs"] == [{"name": "output0", "datatype": "FP32", "shape": ["1", "9", "2100"]}]
    assert seen["metadata"]["versions"] == ["1"]


@pytest.mark.parametrize("datatype", DATATYPES)
def test_unary_inference_is_bit_equal(seen: Any, datatype: str) -> None:
    assert seen["unary"][datatype]


@pytest.mark.parametrize("datatype", DATATYPES)
def test_streamed_inference_is_bit_equal_and_in_order(seen: Any, datatype: str) -> None:
    assert seen["stream"][datatype]
