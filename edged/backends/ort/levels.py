"""ONNX Runtime's levels of graph optimisation, each as a session of the model as it is on disk."""

from __future__ import annotations

from edged.backends.contract import UNOPTIMISED, Order, Session
from edged.backends.ort import runtime
from edged.backends.ort.session import OrtSession

# In the order in which each does all that the one before does, and more; without the one that does nothing.
NAMES = tuple(name for name in runtime.LEVELS if name != UNOPTIMISED)


def open_at(order: Order, level: str) -> Session:
    """A session of the order's model on the CPU at a level; EngineUnusable when the runtime refuses it."""
    options = runtime.session_options(level, order.recipe.threads)
    return OrtSession(runtime.create(order.model, options), order.signature)
