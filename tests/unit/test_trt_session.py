"""The TensorRT session on a stand-in driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fake_cuda import runner


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runner.compile_driver(tmp_path_factory.mktemp("driver"))


def test_a_session_answers_in_order_and_leaves_nothing_behind(driver: Path) -> None:
    runner.run("session_checks.py", driver)
