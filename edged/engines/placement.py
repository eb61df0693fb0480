"""Where an engine's nodes run, as it was opened, against where they ran when it was verified. Pure.

A provider that vanished since then need not keep an engine from being opened: its nodes come up somewhere else, and
what answers is not what was compared with the reference, nor as fast.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from edged.backends.contract import Nodes, Recipe

# The provider that a backend's nodes are meant for, by the kind of the recipe's device. Other backends have one only.
_HOMES: dict[tuple[str, str], str] = {
    ("onnxruntime", "cpu"): "CPUExecutionProvider",
    ("onnxruntime", "cuda"): "CUDAExecutionProvider",
    ("openvino", "cpu"): "CPU",
    ("openvino", "intel-gpu"): "GPU",
    ("openvino", "intel-npu"): "NPU",
}
_MOST_NAMED = 5  # operators


def astray(recipe: Recipe, verified: Nodes, opened: Nodes) -> tuple[str, ...]:
    """What of an opened engine does not run where it did when it was verified, a line each.

    A reference is never recorded: its nodes are all for the CPU. Where a runtime does not tell, nothing is known.
    """
    home = _HOMES.get((recipe.backend, recipe.device.partition(":")[0]))
    if home is None or not opened:
        return ()
    if not any(_is(provider, home) for provider in opened):
        return (f"nothing runs on {home}: its nodes are on {', '.join(sorted(opened))}",)
    is_recorded = bool(verified) and not recipe.is_reference
    lines = []
    for provider in sorted(opened):
        known = Counter(verified.get(provider, {})) if is_recorded else Counter[str]()
        moved = Counter(opened[provider]) - known
        if _is(provider, home):
            continue
        if moved:
            lines.append(f"{_words(moved)} run on {provider} instead of {home}")
        elif provider not in verified:
            lines.append(f"some nodes run on {provider} instead of {home}")
    if not lines and is_recorded and home != "CPUExecutionProvider" and recipe.backend == "onnxruntime":
        lines += _missing(home, verified.get(home, {}), opened.get(home, {}))
    return tuple(lines)


def _missing(home: str, before: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    """Fewer nodes on the device, although none turned up elsewhere. Without operators only the provider is told."""
    gone = Counter(before) - Counter(now) if before and now else Counter[str]()
    return (
        [f"{gone.total()} of {sum(before.values())} nodes are not on {home} any more: {_words(gone)}"] if gone else []
    )


def _is(provider: str, home: str) -> bool:
    """Of several devices of a kind OpenVINO names one as `GPU.1`."""
    return provider.partition(".")[0] == home


def _words(operators: Counter[str]) -> str:
    ordered = sorted(operators.items(), key=lambda item: (-item[1], item[0]))
    named = ", ".join(f"{count} {operator or 'nodes'}" for operator, count in ordered[:_MOST_NAMED])
    return f"{named}, …" if len(ordered) > _MOST_NAMED else named
