"""Makes tests wait longer for what takes longer on an emulated processor; what they wait for stays the same."""

from __future__ import annotations

import functools
import importlib
import inspect
import subprocess
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

# Where the tests keep what waits; each such function has a parameter `seconds`.
_MODULES = ("tests.waiting", "tests.integration.daemon")


def lengthen_waits(factor: float) -> None:
    """To be called before any test imports these functions."""
    for name in _MODULES:
        module = importlib.import_module(name)
        for function in _waiting(module):
            setattr(module, function.__name__, _longer(function, "seconds", factor))
    for name in ("communicate", "wait"):
        setattr(subprocess.Popen, name, _longer(getattr(subprocess.Popen, name), "timeout", factor))


def lengthen_limit(item: pytest.Item, factor: float) -> None:
    """A test's own limit, or the one of all tests."""
    limit = item.get_closest_marker("timeout")
    seconds = float(limit.args[0] if limit else item.config.getini("timeout"))
    item.add_marker(pytest.mark.timeout(seconds * factor), append=False)


def _waiting(module: ModuleType) -> list[Callable[..., Any]]:
    own = [f for f in vars(module).values() if inspect.isfunction(f) and f.__module__ == module.__name__]
    return [function for function in own if "seconds" in inspect.signature(function).parameters]


def _longer(function: Callable[..., Any], parameter: str, factor: float) -> Callable[..., Any]:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def longer(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        if call.arguments[parameter] is not None:
            call.arguments[parameter] *= factor
        return function(*call.args, **call.kwargs)

    return longer
