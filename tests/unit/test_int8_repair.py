"""Layers given back to float32: the search, the ranking, and models that can and cannot be repaired."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edged.backends.contract import REFERENCE, Order
from edged.jobs.int8_layers import choose, symmetric
from edged.jobs.int8_pictures import Comparison, Way
from edged.jobs.int8_ranges import measure
from edged.jobs.int8_repair import MOST_TRIALS, give_back, harm
from edged.jobs.onnx_graph import Model
from edged.jobs.onnx_int8 import prepare
from edged.jobs.precision import Converted, convert
from edged.verification.probes import PICTURE, Probe
from edged.verification.standard import TOLERANCES, Tolerance
from edged.vision.family import Recognition, Thresholds
from tests import models
from tests.models import OPSET
from tests.unit import precision_models as nets
from tests.unit.precision_models import CHANNELS, conv, network, store

TENSORS = Recognition(None, "", None, "", (), Thresholds())


# -- the search -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 10, 57, 200, 4000])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_give_back_one_bad_layer_is_found_alone(count: int, share: float) -> None:
    bad, tried = int(share * (count - 1)), list[frozenset[int]]()

    def is_right(layers: frozenset[int]) -> bool:
        tried.append(layers)
        return bad in layers

    found = give_back(count, is_right)
    assert found.trials == len(tried) <= MOST_TRIALS
    if bad == count - 1:  # only all layers together would be right
        assert found.given_back is None
    elif count <= 200:
        assert found.given_back == frozenset({bad})
    else:
        assert found.given_back is not None
        assert bad in found.given_back


def test_give_back_finds_few_layers_for_losses_that_add_up() -> None:
    """Each layer adds to the loss; those of the largest loss come first."""
    for count, allowed in itertools.product((8, 40, 120), (0.1, 0.5, 0.9)):
        losses = np.sort(np.random.default_rng(count).pareto(1.2, count))[::-1]
        bound = allowed * losses.sum()

        def is_right(layers: frozenset[int], losses: np.ndarray = losses, bound: float = bound) -> bool:
            return bool(sum(loss for place, loss in enumerate(losses) if place not in layers) <= bound)

        found = give_back(count, is_right)
        assert found.given_back is not None
        assert is_right(found.given_back)
        assert found.trials <= MOST_TRIALS
        fewest = next(number for number in range(count + 1) if is_right(frozenset(range(number))))
        assert len(found.given_back) <= fewest


def test_give_back_hopeless_model_has_no_set() -> None:
    found = give_back(100, lambda layers: False)
    assert found.given_back is None
    assert found.trials <= MOST_TRIALS
    assert not found.is_cut_off


@pytest.mark.parametrize(("seconds", "expected"), [(0, None), (1, frozenset(range(50))), (2, frozenset(range(25)))])
def test_give_back_returns_the_best_so_far_when_the_time_ends(seconds: int, expected: frozenset[int] | None) -> None:
    clock = itertools.count()
    found = give_back(100, lambda layers: 3 in layers, lambda: next(clock) < seconds)
    assert found == (expected, seconds, True)


# -- real models ----------------------------------------------------------------------------------------------------


def spread(layers: int = 3, opset: int = OPSET) -> onnx.ModelProto:
    """A chain of convolutions. The input of the second has channels of very different size, and its weights make up for
    that, so one scale for its input loses the small ones."""
    sizes = np.geomspace(1, 30_000, CHANNELS).astype(np.float32)
    constants = [nets.constant("spread", sizes.reshape(1, CHANNELS, 1, 1))]
    weights = numpy_helper.to_array(nets.random("bad", CHANNELS, CHANNELS, 3, 3))
    constants.append(nets.constant("bad", weights / sizes.reshape(1, CHANNELS, 1, 1)))
    between: list[str | onnx.NodeProto] = ["m = Mul(a, spread)", conv("m", "c0", "bad")]
    for number in range(1, layers):
        constants.append(nets.random(f"w{number}x", CHANNELS, CHANNELS, 3, 3))
        between.append(conv(f"c{number - 1}", f"c{number}", f"w{number}x"))
    return network([*between, f"b = Identity(c{layers - 1})"], constants, opset=opset)


@pytest.mark.parametrize("opset", [13, 20])
def test_harm_is_greatest_for_the_layer_whose_own_output_moves_most(tmp_path: Path, opset: int) -> None:
    prepared, _ = prepare(Model.read(store(spread(4, opset=opset), tmp_path)), tmp_path)
    layers, _ = choose(Model.read(prepared), depthwise=False)
    pictures = [nets.picture(seed) for seed in range(4)]
    found = measure(prepared, {layer.value for layer in layers}, pictures, tmp_path, lambda: None)
    scales = {value: symmetric(each.largest) for value, each in found.items()}
    each = harm(prepared, layers, scales, pictures[:2], tmp_path)
    shares = {layer: found.share for layer, found in each.items()}
    worst, second, *others = shares
    assert (worst, len(shares)) == ("conv c0", len(layers))
    assert shares[worst] > 5 * shares[second]
    assert all(0 < shares[other] <= shares[second] for other in others)
    means = each[second].mean
    assert means is not None
    assert means.shape == (CHANNELS,)
    assert means.any()


def quantised(
    proto: onnx.ModelProto, folder: Path, tolerance: Tolerance = TOLERANCES["int8"], repair_s: float = 60.0
) -> tuple[Converted, onnx.GraphProto, list[str]]:
    source, phases = store(proto, folder), list[str]()
    order = Order(str(source), models.signature(proto), REFERENCE)

    def aside() -> Iterator[Probe]:
        yield from (Probe(nets.picture(seed), PICTURE, f"picture {seed}") for seed in (10, 11))

    way = Way(False, Comparison(aside, order, TENSORS, tolerance), repair_s, phases.append)
    made = convert(source, "int8", folder / "int8.onnx", [nets.picture(seed) for seed in range(4)], way)
    return made, onnx.load(made.path).graph, phases


def in_int8(graph: onnx.GraphProto) -> set[str]:
    made = {name: node.op_type for node in graph.node for name in node.output}
    return {
        node.name for node in graph.node if node.op_type == "Conv" and made.get(node.input[0]) == "DequantizeLinear"
    }


def held_to(relative_l2: float) -> Tolerance:
    return msgspec.structs.replace(TOLERANCES["int8"], relative_l2=relative_l2, outliers=1.0, cosine=0.0)


def test_convert_bad_layer_is_found_and_given_back(tmp_path: Path) -> None:
    made, graph, phases = quantised(spread(4), tmp_path, held_to(0.1))
    assert in_int8(graph) == {"conv a", "conv c1", "conv c2", "conv c3"}
    assert "Conv: int8 made the answers too wrong" in made.kept_fp32
    (note,) = (note for note in made.notes if note.startswith("repaired"))
    assert "conv c0 (" in note
    assert "relative_l2" in note
    assert set(phases) == {"calibrating", "comparing"}


def test_convert_right_model_is_not_repaired_and_names_its_ranges(tmp_path: Path) -> None:
    made, graph, _ = quantised(nets.chain(4), tmp_path)
    assert len(in_int8(graph)) == 3
    assert made.notes[0].startswith("ranges: ")
    assert "2 pictures set aside" in made.notes[0]
    assert not any("wrong" in note or "repaired" in note for note in made.notes)


def test_convert_hopeless_model_is_built_and_says_so(tmp_path: Path) -> None:
    made, graph, _ = quantised(nets.chain(4), tmp_path, held_to(1e-6))
    assert len(in_int8(graph)) == 3, "the engine's verdict will reject it"
    (note,) = (note for note in made.notes if note.startswith("int8 is too wrong"))
    assert "not repaired in 2 trials" in note


def test_convert_repairs_can_be_turned_off_and_end_in_time(tmp_path: Path) -> None:
    off, _, _ = quantised(spread(), tmp_path, held_to(0.1), repair_s=0.0)
    assert any("repairs are off" in note for note in off.notes)
    (tmp_path / "more").mkdir()
    late, _, _ = quantised(spread(), tmp_path / "more", held_to(0.1), repair_s=1e-9)
    assert any("for repairs ended after 0 trials" in note for note in late.notes)


def test_convert_outliers_make_another_range_than_the_largest_value_best(tmp_path: Path) -> None:
    """A few pixels are a thousand times as large as the others: the largest value leaves few levels for the rest."""
    proto, folder = nets.chain(4), tmp_path
    source = store(proto, folder)

    def picture(seed: int, has_outlier: bool) -> dict[str, np.ndarray]:
        made = nets.picture(seed)
        if has_outlier:
            made["x"][0, 0, 0, 0] = 1000.0
        return made

    aside = [Probe(picture(seed, False), PICTURE, f"picture {seed}") for seed in (10, 11)]
    comparison = Comparison(
        lambda: iter(aside), Order(str(source), models.signature(proto), REFERENCE), TENSORS, TOLERANCES["int8"]
    )
    calibration = [picture(seed, seed == 0) for seed in range(8)]
    made = convert(source, "int8", folder / "int8.onnx", calibration, Way(comparison=comparison))
    assert not made.notes[0].startswith("ranges: largest value")
    assert "largest value" in made.notes[0]


def test_convert_biases_are_corrected_if_that_brings_the_answers_nearer(tmp_path: Path) -> None:
    made, graph, _ = quantised(nets.chain(6), tmp_path)
    (note,) = (note for note in made.notes if note.startswith("biases are corrected"))
    before, after = (float(re.findall(r"by ([0-9.e-]+)", text)[0].rstrip(".")) for text in (made.notes[0], note))
    assert after < before
    assert len([tensor for tensor in graph.initializer if tensor.name.endswith(".bias")]) == 5


def test_convert_repairs_end_before_the_time_of_the_build(tmp_path: Path) -> None:
    """Ranges took so long that no time of the build is left."""
    proto = spread()
    source = store(proto, tmp_path)
    order = Order(str(source), models.signature(proto), REFERENCE)
    aside = [Probe(nets.picture(seed), PICTURE, f"picture {seed}") for seed in (10, 11)]
    comparison = Comparison(lambda: iter(aside), order, TENSORS, held_to(0.1))
    way = Way(False, comparison, repair_s=60.0, until=time.monotonic())
    made = convert(source, "int8", tmp_path / "int8.onnx", [nets.picture(seed) for seed in range(4)], way)
    assert any("the 0 s for repairs ended after 0 trials" in note for note in made.notes)
