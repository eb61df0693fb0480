"""The runtimes of language models: their names, modules and titles, and the version that this box has."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import NamedTuple

from edged import packages
from edged.backends.language.contract import LanguageRuntime
from edged.errors import Unsupported


class _Entry(NamedTuple):
    module: str
    fact: str
    title: str


_RUNTIMES = {
    "onnxruntime_genai": _Entry("edged.backends.language.ort", "runtime.onnxruntime_genai", "ONNX Runtime GenAI"),
    "openvino_genai": _Entry("edged.backends.language.openvino", "runtime.openvino_genai", "OpenVINO GenAI"),
}
NAMES = tuple(_RUNTIMES)
TITLES = {name: entry.title for name, entry in _RUNTIMES.items()}


def load(name: str) -> LanguageRuntime:
    """Import a runtime. Raises Unsupported if the import fails."""
    try:
        runtime: LanguageRuntime = importlib.import_module(_RUNTIMES[name].module).RUNTIME
    except ImportError as error:
        raise Unsupported(f"{TITLES[name]} cannot be loaded: {error}; {packages.install_extra('genai')}") from error
    return runtime


def version(name: str, facts: Mapping[str, str]) -> str:
    """Return the version of a runtime from the device's facts; empty if it is not installed."""
    return facts.get(_RUNTIMES[name].fact, "")
