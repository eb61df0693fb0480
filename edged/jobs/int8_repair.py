"""Repairs an int8 model whose answers are too wrong: it switches the most harmed layers back to float32.

The harm to a layer is the change of its output when only this layer is quantised. One pass over a few pictures measures
the harm to all layers. A bisection finds how many of the most harmed layers must return to float32. Further trials look
for layers among these that can stay in int8.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from edged.backends.ort.quantize import Runner
from edged.jobs.int8_layers import Floats, Layer, Scales, add_shadows
from edged.jobs.int8_pictures import EIGHT_BITS
from edged.jobs.onnx_graph import Model
from edged.tensors import Array

MOST_TRIALS = 12


class Search(NamedTuple):
    """The outcome of `give_back`. `given_back`: the layers that return to float32, as positions in the ranking by harm;
    None if the model was right in no trial. `is_cut_off`: whether the bisection ended early."""

    given_back: frozenset[int] | None
    trials: int
    is_cut_off: bool


def give_back(
    count: int, is_right: Callable[[frozenset[int]], bool], may_go_on: Callable[[], bool] = lambda: True
) -> Search:
    """Find a small set of layers such that the int8 model is right if these layers return to float32. The layers are
    numbers below `count`, the most harmed layer first.

    `is_right` tries the model with a set of layers in float32. It is called at most MOST_TRIALS times, and only while
    `may_go_on` returns true. At least one layer stays in int8, otherwise the model would not be int8.
    """
    best: frozenset[int] | None = None
    trials = 0

    def attempt(layers: frozenset[int]) -> bool:
        nonlocal best, trials
        trials += 1
        if not is_right(layers):
            return False
        best = layers
        return True

    def has_more() -> bool:
        return trials < MOST_TRIALS and may_go_on()

    wrong, right = 0, count  # the first `wrong` layers are too few; the first `right` layers are enough
    while right - wrong > 1 and has_more():
        middle = (wrong + right) // 2
        if attempt(frozenset(range(middle))):
            right = middle
        else:
            wrong = middle
    if best is None:
        return Search(None, trials, right - wrong > 1)
    # After a complete bisection, the last layer in `best` is needed: without it the model was wrong. Try to keep the
    # others in int8: first all of them, then halves.
    open_parts = [tuple(sorted(best - {max(best)}))] if right - wrong <= 1 else []
    while open_parts and has_more():
        part = open_parts.pop(0)
        if part and not attempt(best - frozenset(part)) and len(part) > 1:
            half = len(part) // 2
            # Try the less harmful half first, because it is more likely that these layers can stay in int8.
            open_parts += [part[half:], part[:half]]
    return Search(best, trials, right - wrong > 1)


class Harm(NamedTuple):
    """The effect of quantising only one layer. `share` is the relative L2 change of the layer's output, the largest of
    all pictures. `mean` is the correction of the bias: the mean difference in each channel; None if the layer can have
    no bias."""

    share: float
    mean: Floats | None


def harm(
    prepared: Path,
    layers: Sequence[Layer],
    scales: Scales,
    pictures: Sequence[Mapping[str, Array]],
    work: Path,
    levels: float = EIGHT_BITS,
) -> dict[str, Harm]:
    """Return a mapping from layer names to the effect of int8 on the layer, the most harmed layer first. Writes into
    the folder `work`."""
    model = Model.read(prepared)
    names = add_shadows(model, layers, scales, levels)
    model.write(work / "shadows.onnx")
    runner, shares, means = Runner(work / "shadows.onnx"), dict.fromkeys(names, 0.0), dict[str, Floats]()
    for inputs in pictures:
        answer = runner.run(inputs, [name for shadow in names.values() for name in filter(None, shadow)])
        for layer, shadow in names.items():
            size, lost = float(answer[shadow.size]), float(answer[shadow.lost])
            shares[layer] = max(shares[layer], math.sqrt(lost / size) if size > 0 else 0.0)
            if shadow.mean:
                mean = np.asarray(answer[shadow.mean] / np.float32(len(pictures)), np.float32)
                means[layer] = np.asarray(means[layer] + mean, np.float32) if layer in means else mean
    order = sorted(names, key=lambda layer: -shares[layer])
    return {layer: Harm(shares[layer], means.get(layer)) for layer in order}
