"""A plugin of pytest: the environment is the same during all tests.

pytest names the running test in a variable. The job server starts again if the environment has changed, which would
slow down every test that runs a child.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

_NAME = "PYTEST_CURRENT_TEST"


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    environment = os.environ  # a test may replace it
    current = environment.pop(_NAME)
    try:
        return (yield)
    finally:
        environment[_NAME] = current
