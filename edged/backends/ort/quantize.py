"""Folds constants and runs graphs with Q/DQ pairs in ONNX Runtime, for the conversion to int8. Runs in a child."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnxruntime as ort

from edged.backends.contract import one_line
from edged.backends.ort import runtime
from edged.errors import EngineUnusable
from edged.tensors import Array


def fold(model: Path, out: Path) -> None:
    """Write the model to `out` with constants folded. Only optimisations of level `basic` are used, because their
    results suit every runtime. Raises EngineUnusable if ONNX Runtime refuses the model."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(out)
    options.log_severity_level = 4
    if model.with_name(f"{model.name}.data").exists():
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", f"{out.name}.data")
    try:
        ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"], enable_fallback=0)
    except Exception as error:  # the runtime's errors have no common base of their own
        raise EngineUnusable(f"ONNX Runtime refuses the model: {one_line(error)}") from error


class Runner:
    """Runs a graph on the CPU. Here ONNX Runtime computes Q/DQ pairs as the graph has them, and does not replace them
    by int8 kernels, whose rounding depends on the processor. So the answers show the effect of quantising on any
    runtime."""

    def __init__(self, model: Path) -> None:
        """Raises EngineUnusable if the runtime refuses the model."""
        options = runtime.session_options("all", 0)
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        self._session = runtime.create(str(model), options)
        self.outputs = [output.name for output in self._session.get_outputs()]

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        """Run the graph. Return a mapping from the names in `outputs` (all outputs if None) to the arrays. Raises
        EngineUnusable with the runtime's reason."""
        names = list(self.outputs if outputs is None else outputs)
        try:
            return dict(zip(names, self._session.run(names, dict(inputs)), strict=True))
        except Exception as error:  # the runtime's errors have no common base of their own
            raise EngineUnusable(one_line(error)) from error
