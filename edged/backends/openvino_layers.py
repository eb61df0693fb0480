"""What OpenVINO made of a model, as its runtime model tells: operators by kind and by the precision they compute in."""

from __future__ import annotations

from collections import Counter
from typing import Any

from edged.backends.contract import Composition, Nodes, Recipe

# They hold, hand over or relabel values, but compute nothing.
_STILL = frozenset({"Input", "Output", "Const", "Constant", "Parameter", "Result", "Reorder", "Reshape", "MemoryInput"})
_FEW = 5  # a precision that fewer than one layer in so many compute in is not what was asked for
# OpenVINO's names of precisions, as edged has them.
_NAMES = {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "i8": "int8", "u8": "int8"}


def kinds(compiled: Any) -> frozenset[str] | None:
    """The kinds of a compiled model's operators; None where the plugin does not tell.

    In an imported model every operator is an ExecutionNode that keeps its kind in its runtime information.
    """
    layers = _layers(compiled)
    return None if layers is None else frozenset(kind for kind, _ in layers)


def nodes(compiled: Any) -> Nodes:
    """Its operators by kind, under the device that runs them; nothing where OpenVINO does not say which that is.

    A compiled model is on one device: plugins that share one out, AUTO and HETERO, are never asked for.
    """
    devices = _devices(compiled)
    layers = _layers(compiled) or ()
    counts = Counter(kind for kind, _ in layers if kind not in _STILL) if len(devices) == 1 else Counter[str]()
    return {device: dict(sorted(counts.items())) for device in devices}


def composition(compiled: Any, recipe: Recipe, device: str) -> Composition:
    """How many layers compute in which precision; with a note where it is another than was asked for."""
    layers = _layers(compiled)
    if layers is None:
        untold = f"OpenVINO's {device} device does not tell what it made of the model"
        return Composition(nodes=nodes(compiled), notes=(untold,))
    counts = Counter(_NAMES.get(precision, precision) for kind, precision in layers if kind not in _STILL)
    told = list[str]()
    if counts[recipe.precision] * _FEW < counts.total():  # such as the layers that only convert to it and back
        mostly = max(counts, key=lambda name: counts[name])
        told.append(f"asked for {recipe.precision}, OpenVINO computes in {mostly} on this {device}")
    return Composition(layers=dict(sorted(counts.items())), nodes=nodes(compiled), notes=tuple(told))


def _devices(compiled: Any) -> tuple[str, ...]:
    try:
        return tuple(str(name) for name in compiled.get_property("EXECUTION_DEVICES"))
    except Exception:  # the runtime's errors have no common base
        return ()


def _layers(compiled: Any) -> list[tuple[str, str]] | None:
    """Kind and precision of each operator that tells both."""
    try:
        notes = [node.get_rt_info() for node in compiled.get_runtime_model().get_ops()]
        return [
            (str(note["layerType"].value), str(note["runtimePrecision"].value) if "runtimePrecision" in note else "")
            for note in notes
            if "layerType" in note
        ]
    except Exception:  # the runtime's errors have no common base
        return None
