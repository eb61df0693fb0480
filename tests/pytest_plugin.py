"""A plugin of pytest that saves time in all tests.

The environment is the same during all tests: pytest names the running test in a variable, and the job server starts
again if the environment has changed.

Collections of garbage leave out what collecting the tests made: half a million objects, which live until the end. Many
tests collect garbage before they count descriptors.

Linear algebra in the tests' own process has one thread, as in hosts and children: several workers share the processors,
and threads that wait for each other use them up.
"""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Generator

import pytest

_NAME = "PYTEST_CURRENT_TEST"
_THREADS = "OPENBLAS_NUM_THREADS"


def _load_with_one_thread() -> None:
    """Import numpy, whose library reads the variable once. Processes that tests start do not have the variable."""
    if _THREADS not in os.environ:
        os.environ[_THREADS] = "1"
        importlib.import_module("numpy")
        del os.environ[_THREADS]


_load_with_one_thread()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    environment = os.environ  # a test may replace it
    current = environment.pop(_NAME)
    try:
        return (yield)
    finally:
        environment[_NAME] = current
