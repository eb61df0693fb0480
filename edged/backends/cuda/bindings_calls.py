"""How a function of cuda-bindings is called: its error becomes one of edged's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cuda.bindings import driver

from edged.backends.contract import one_line
from edged.errors import EngineUnusable


def call(function: Callable[..., Any], *arguments: object) -> Any:  # the package has no types
    """Calls a function of the driver; what it returns beside the error: nothing, one value, or a tuple.

    EngineUnusable where there is an error, or where the driver lacks the function or is itself not there.
    """
    try:
        error, *values = function(*arguments)
    except RuntimeError as missing:
        raise EngineUnusable(f"{function.__name__} is not to be had: {one_line(missing, 200)}") from missing
    if error != driver.CUresult.CUDA_SUCCESS:
        raise EngineUnusable(f"{function.__name__} failed: {getattr(error, 'name', error)}")
    return values[0] if len(values) == 1 else tuple(values)
