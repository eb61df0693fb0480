"""A sample of the onnx package's test models, through the daemon. All of them: `make test-onnx-backend`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.daemon import Daemon
from tests.onnx_backend.cases import Case, cases
from tests.onnx_backend.outcome import judge
from tests.onnx_backend.served import Server, placed

pytestmark = pytest.mark.long
# One case for everything that is easily transported wrongly.
_CASES = (
    "test_add_bcast",
    "test_add_uint8",
    "test_and2d",  # BOOL
    "test_castlike_BFLOAT16_to_FLOAT",
    "test_constant",  # no input
    "test_dropout_default_mask",  # two outputs, of two types
    "test_equal_string",
    "test_loop11",
    "test_max_float16",
    "test_max_float64",
    "test_max_uint64",
    "test_nonzero_example",  # the output shape depends on the values
    "test_reduce_sum_empty_set",  # an input without elements
    "test_string_split_basic",  # BYTES in and out, and INT64
    "test_top_k",
)


@pytest.fixture(scope="module")
def sample() -> dict[str, Case]:
    return {case.name: case for case in cases(("node", "simple")) if case.name in _CASES}


@pytest.fixture(scope="module")
def server(sample: dict[str, Case]) -> Iterator[Server]:
    with Daemon(builds=False) as daemon, placed(list(sample.values()), daemon):
        server = Server(daemon.unix)
        yield server
        server.close()


@pytest.mark.parametrize("name", _CASES)
def test_onnx_backend_case_has_the_expected_outputs(name: str, sample: dict[str, Case], server: Server) -> None:
    outcome = judge(sample[name], server)
    assert not outcome.untransportable
    if outcome.runtime:
        pytest.skip(f"ONNX Runtime itself fails: {outcome.runtime}")
    assert not outcome.served
