"""Writes the API reference as HTML, from the docstrings of the modules that programs import.

A docstring that cannot be rendered, or a type that cannot be resolved, is an error.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pdoc

from edged.client import calls
from edged.version import __version__

MODULES = ("edged", "edged.client", "edged.client.credentials", "edged.api_types", "edged.errors")


def main(target: Path) -> None:
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", category=DeprecationWarning)  # of libraries
    for name in MODULES:
        module = importlib.import_module(name)
        for export in getattr(module, "__all__", ()):
            value = getattr(module, export)
            setattr(module, export, value)  # pdoc does not call the module's __getattr__
            if isinstance(value, type) and issubclass(value, calls.DaemonCalls):
                _add_calls(value)
    pdoc.render.configure(docformat="markdown", show_source=False, footer_text=f"edged {__version__}")
    pdoc.pdoc(*MODULES, output_directory=target)


def _add_calls(client: type) -> None:
    """Add the methods of `DaemonCalls` to a client class, with the types that they have in this class."""
    if "__orig_bases__" in vars(client):
        del client.__orig_bases__  # type: ignore[attr-defined]  # pdoc would take the bases' methods first
    for name, method in vars(calls.DaemonCalls).items():
        if not name.startswith("_") and name not in vars(client):
            setattr(client, name, _stub(method, is_async=client.__name__ == "AsyncClient"))


def _stub(method: Any, is_async: bool) -> Callable[..., Any]:
    def call() -> None: ...
    async def async_call() -> None: ...

    stub: Any = functools.update_wrapper(async_call if is_async else call, method)
    del stub.__wrapped__
    signature = inspect.signature(method)
    answer = str(signature.return_annotation).removeprefix("Call[").removesuffix("]")
    if method.__code__ in calls.command.__code__.co_consts:
        answer = f"{'AsyncUpdates' if is_async else 'Updates'}[{answer}]"
    stub.__signature__ = signature.replace(return_annotation=answer)
    return stub  # type: ignore[no-any-return]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
