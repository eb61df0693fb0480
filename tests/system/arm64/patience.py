"""Lengthen the waits of tests for an emulated processor, and lower the frame rates of their cameras. What they expect
stays the same."""

from __future__ import annotations

import functools
import http.client
import importlib
import inspect
import os
import queue
import re
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest

from edged.config.child_limits import Limits
from edged.engines import child

# Modules with wait functions of the tests; each such function has a parameter `seconds`.
_MODULES = ("tests.waiting", "tests.integration.daemon", "tests.integration.shape_world", "tests.unit.http_world")
_GRPC_CALLS = tuple(f"_{kind}MultiCallable" for kind in ("UnaryUnary", "UnaryStream", "StreamUnary", "StreamStream"))
_ADMISSION_SECONDS = 18.0  # the daemon's default limit of the examination of a model
_MAX_FPS = re.compile(r"^(max_fps *= *)([\d.]+)$", re.MULTILINE)
_BOUND = 10.0  # seconds; a shorter timeout of a call or child is itself under test


def lengthen_waits(factor: float) -> None:
    """Lengthen all waits by a factor. Must be called before a test imports these functions."""
    for name in _MODULES:
        module = importlib.import_module(name)
        for function in _waiting(module):
            setattr(module, function.__name__, _longer(function, "seconds", factor))
    _admit_longer(factor)
    daemon = importlib.import_module("tests.integration.daemon")
    _ask_less_often(daemon, factor)
    _send_less_often(daemon.Daemon, factor)
    for name in ("communicate", "wait"):
        setattr(subprocess.Popen, name, _longer(getattr(subprocess.Popen, name), "timeout", factor))
    waits: tuple[tuple[Any, str], ...] = ((threading.Thread, "join"), (threading.Event, "wait"), (queue.Queue, "get"))
    for kind, name in waits:
        setattr(kind, name, _longer(getattr(kind, name), "timeout", factor, least=_BOUND))
    for call in _GRPC_CALLS:
        kind = getattr(importlib.import_module("grpc._channel"), call)
        kind.__call__ = _longer(kind.__call__, "timeout", factor, least=_BOUND)
    opening: Any = http.client.HTTPConnection
    opening.__init__ = _longer(opening.__init__, "timeout", factor, least=_BOUND)
    starting: Any = child.OneShotChild
    starting.__init__ = _longer(child.OneShotChild.__init__, "limits", factor, least=_BOUND)


def _admit_longer(factor: float) -> None:
    """Give every program that a test starts more time to examine a model, unless the test itself sets that time."""
    starting: Any = subprocess.Popen
    original = starting.__init__

    @functools.wraps(original)
    def start(*args: Any, env: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        seconds = {"EDGED_ADMISSION_SECONDS": f"{_ADMISSION_SECONDS * factor:g}"}
        original(*args, env={**seconds, **(os.environ if env is None else env)}, **kwargs)

    starting.__init__ = start


def _ask_less_often(module: Any, factor: float) -> None:
    """Poll a daemon less often: each call costs it milliseconds here, which would be a fifth of its time."""
    module.time = SimpleNamespace(**{**vars(time), "sleep": lambda seconds: time.sleep(seconds * factor)})


def _send_less_often(daemon: Any, factor: float) -> None:
    """Give configured cameras fewer frames. An answer takes a second here, so their frames would use all the time."""
    original = daemon.__init__

    @functools.wraps(original)
    def configure(self: Any, *args: Any, config: str = "", **kwargs: Any) -> None:
        original(
            self, *args, config=_MAX_FPS.sub(lambda found: f"{found[1]}{float(found[2]) / factor:g}", config), **kwargs
        )

    daemon.__init__ = configure


def lengthen_limit(item: pytest.Item, factor: float) -> None:
    """Lengthen a test's own time limit, or the general one."""
    limit = item.get_closest_marker("timeout")
    seconds = float(limit.args[0] if limit else item.config.getini("timeout"))
    item.add_marker(pytest.mark.timeout(seconds * factor), append=False)


def _waiting(module: ModuleType) -> list[Callable[..., Any]]:
    own = [f for f in vars(module).values() if inspect.isfunction(f) and f.__module__ == module.__name__]
    return [function for function in own if "seconds" in inspect.signature(function).parameters]


def _longer(function: Callable[..., Any], parameter: str, factor: float, least: float = 0.0) -> Callable[..., Any]:
    """Wrap a function so that a timeout is multiplied by `factor`. A timeout below `least` is under test and stays."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def longer(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        given = call.arguments[parameter]
        if isinstance(given, Limits):
            seconds = given.seconds * (factor if given.seconds >= least else 1)
            call.arguments[parameter] = msgspec.structs.replace(given, seconds=min(seconds, 1e6))
        elif isinstance(given, int | float) and given >= least:
            call.arguments[parameter] = given * factor
        return function(*call.args, **call.kwargs)

    return longer
