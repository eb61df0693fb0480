"""The TensorRT session on a stand-in driver, by every CUDA package that is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from edged.backends.cuda import LIBRARIES
from tests.fake_cuda import runner


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runner.compile_driver(tmp_path_factory.mktemp("driver"))


@pytest.mark.parametrize("implementation", LIBRARIES)
def test_a_session_answers_in_order_and_leaves_nothing_behind(driver: Path, implementation: str) -> None:
    runner.run("session_checks.py", driver, implementation)
