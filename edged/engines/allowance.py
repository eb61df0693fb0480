"""How long a child that builds or verifies may work without saying that it gets on. Pure.

OpenVINO and ONNX Runtime say nothing while they compile. That takes seconds, unless the compiler never ends. TensorRT
may take the better part of an hour and says how far it is, from version 10 on.
"""

from __future__ import annotations

from edged.config.limits import Limits
from edged.engines.child import Patience
from edged.models.model import Model

_LEAST_SECONDS = 120.0
_PER_MB, _PER_NODE = 1.0, 0.1  # seconds
_TRIALS = 100.0  # times what opening and asking it took when it was admitted, which knows how fast the box is
_LONG = ("tensorrt", "tensorrt_rtx")
_TIMES_LIMIT = 4.0  # as long as its limit a builder may take that says how far it is


def patience(model: Model, backend: str, trial_seconds: float, limits: Limits) -> Patience:
    """For building one engine, asking the reference or verifying. `trial_seconds` is 0 if it is not known."""
    if backend in _LONG:
        longer = (_TIMES_LIMIT - 1) * limits.seconds
        return Patience(quiet_seconds=limits.seconds, step_seconds=limits.stall_seconds, told_seconds=longer)
    quiet = min(limits.seconds, quiet_seconds(model, trial_seconds))
    return Patience(quiet_seconds=quiet, step_seconds=quiet)


def quiet_seconds(model: Model, trial_seconds: float) -> float:
    """Seconds of processor time, or of waiting for anything but a processor, between two words of a child."""
    inspection = model.inspection
    size_mb = (inspection.size + sum(file.size for file in inspection.external)) / (1 << 20)
    nodes = sum(inspection.operators.values())
    return _LEAST_SECONDS + _PER_MB * size_mb + _PER_NODE * nodes + _TRIALS * trial_seconds
