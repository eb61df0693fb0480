"""What is said about models that edged does not recognise, for the signatures of many exporters."""

from __future__ import annotations

import re
import time
from pathlib import Path
from random import Random

import pytest

from edged.errors import ConfigError
from edged.tensors import TensorSpec
from edged.vision.comparison import Tensors, best, compare
from edged.vision.family import FAMILIES, recognise
from edged.vision.kinds import KINDS
from tests.vision_exports import EXPORTS, see
from tests.vision_signatures import TABLE, Row, tensors

IMAGE = (TensorSpec("images", "FP32", (1, 3, 640, 640)),)


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE)
def test_recognise_export_of_table_has_its_outcome(row: Row) -> None:
    found = row.recognition
    assert (found.family, found.kind, found.between) == (row.family, row.kind, row.between), found.reason
    assert all(word in found.reason for word in row.near), found.reason


def advised(reason: str) -> list[str]:
    """Return the families that a reason advises to set."""
    return [name for name in re.findall(r"family=([\w-]+)", reason) if name != "raw"]


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE)
def test_recognise_reason_names_only_families_that_accept_the_tensors(row: Row) -> None:
    found = row.recognition
    assert found.family is not None or advised(found.reason) == list(found.between)
    for family in found.between:
        _assert_accepts(family, tensors(row.inputs), tensors(row.outputs))


@pytest.mark.parametrize("name", EXPORTS)
def test_recognise_export_with_fewer_facts_names_only_families_that_accept_it(name: str) -> None:
    """Without metadata, settings, usual names or an output a file tells less."""
    export = EXPORTS[name]
    anonymous = tuple(TensorSpec(f"t{i}", s.datatype, s.shape) for i, s in enumerate(export.outputs))
    more = (*export.outputs, TensorSpec("more", "FP32", (1, 7)))
    for outputs in (export.outputs, anonymous, export.outputs[1:], more):
        found = see(export, {}, outputs=outputs, metadata={}) if outputs else None
        for family in advised(found.reason) if found is not None else ():
            _assert_accepts(family, export.inputs, outputs)


_SIZES = (1, 2, 3, 4, 5, 6, 7, 10, 17, 20, 32, 56, 80, 84, 85, 160, 255, 300, 400, 640, 6400, 8400, 25200, 0, "n")
_SOME = (
    "output",
    "boxes",
    "scores",
    "labels",
    "dets",
    "logits",
    "pred_boxes",
    "num_dets",
    "kps_8",
    "simcc_x",
    "a",
    "b",
)


@pytest.mark.parametrize("seed", range(300))
def test_recognise_random_tensors_names_only_families_that_accept_them(seed: int) -> None:
    random = Random(seed)
    outputs = tuple(
        TensorSpec(random.choice(_SOME), random.choice(("FP32", "FP32", "INT64", "BF16")), (1, *shape))
        for shape in (random.choices(_SIZES, k=random.randint(0, 3)) for _ in range(random.randint(1, 5)))
    )
    found = recognise(IMAGE, outputs, {}, {}, {"Conv"})
    for family in advised(found.reason):
        _assert_accepts(family, IMAGE, outputs)


def _assert_accepts(family: str, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> None:
    """Assert that the setting selects the family, or that the answer names a further setting."""
    try:
        found = recognise(inputs, outputs, {}, {"family": family}, {"Conv"})
        chosen, problem = found.family, found.reason
    except ConfigError as error:
        chosen, problem = None, str(error)
    further = r"set (decode\.\w+|names|prompts|thresholds\.score|preprocess\.width)"
    assert chosen == family or re.search(further, problem), (family, chosen, problem)


# -- signatures -----------------------------------------------------------------------------------------------------

SIZE = (640, 480)  # width, height
NUMBERS = {"K": 20, "M": 20, "P": 17640, "Q": 300, "R": 300, "A": 100, "rows": 2000, "T": 50, "values": 51}


INPUTS = {
    "orig_target_sizes": TensorSpec("orig_target_sizes", "INT64", (1, 2)),
    "input_ids": TensorSpec("input_ids", "INT64", (1, 16)),
    "attention_mask": TensorSpec("attention_mask", "INT64", (1, 16)),
}


def example(signature_text: str, family: str) -> tuple[TensorSpec, ...]:
    """Return outputs as a signature writes them, for an input of `SIZE`."""
    known = next(each for each in FAMILIES[family].signatures if each.text == signature_text)
    numbers = {**dict.fromkeys(re.findall(r"[A-Za-z]+", signature_text), 7), **NUMBERS, "N": 1, "split": 2}
    if family == "ultraface":
        numbers["P"] = sum(-(-SIZE[0] // s) * -(-SIZE[1] // s) * n for s, n in {8: 3, 16: 2, 32: 2, 64: 3}.items())
    numbers |= {"W": SIZE[0], "H": SIZE[1]}
    made = []
    for number, tensor in enumerate(known.outputs):
        shape = tuple(dim.value(numbers) for dim in tensor.dims or ())
        name = tensor.names[0] if tensor.names else f"t{number}"
        made.append(TensorSpec(name, "FP32", tuple(size for size in shape if size is not None)))
    return tuple(made)


FORMS = [(name, known.text) for name, family in FAMILIES.items() for known in family.signatures]


@pytest.mark.parametrize(("family", "form"), FORMS, ids=[f"{name} {text[:40]}" for name, text in FORMS])
def test_signature_of_family_is_accepted_by_its_claim(family: str, form: str) -> None:
    inputs = [TensorSpec("images", "FP32", (1, 3, SIZE[1], SIZE[0]))]
    inputs += (spec for name, spec in INPUTS.items() if name in form)
    _assert_accepts(family, tuple(inputs), example(form, family))


@pytest.mark.parametrize("name", EXPORTS)
def test_signature_of_export_does_not_differ(name: str) -> None:
    export = EXPORTS[name]
    width, height = export.inputs[0].shape[3], export.inputs[0].shape[2]
    if export.inputs[0].shape[3] == 3:
        width, height = export.inputs[0].shape[2], export.inputs[0].shape[1]
    assert isinstance(width, int)
    assert isinstance(height, int)
    found = best(FAMILIES[export.family].signatures, Tensors.of(export.inputs, export.outputs, (width, height)))
    assert (found.cost, found.differences) == (0, ()), name


def test_kinds_have_a_row_in_the_table() -> None:
    assert {kind.name for kind in KINDS} == {row.kind for row in TABLE.values()} - {""}


def test_kinds_are_those_of_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "families.md").read_text()
    section = page.split("## Models that return raw tensors")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| `([\w-]+)` \| (.*) \|$", section, re.MULTILINE))
    assert rows == {"kind": "the model looks like"} | {kind.name: kind.text for kind in KINDS}


# -- hostile models -------------------------------------------------------------------------------------------------

HUGE = "n" * 1_000_000


@pytest.mark.parametrize(
    "outputs",
    [
        tuple(TensorSpec(f"o{i}", "FP32", (1, i + 2, 80, 80)) for i in range(5000)),
        tuple(TensorSpec(f"cls_8{HUGE}{i}", "FP32", ("d" * 1_000_000, 7, 9, 11, 2)) for i in range(20)),
        (TensorSpec(HUGE, "FP32", (1, 8400, 84)),),
        (TensorSpec("a", "FP32", tuple(range(1, 100_000))),),
        (TensorSpec("\n\x1b[2J", "FP32", (1, 8400, 84)),),
        (TensorSpec("a", "FP32", (0, 0, 0)), TensorSpec("b", "FP32", (1, 0, 1 << 62))),
        (),
        tuple(TensorSpec("same", "FP32", (1, 6400, 10)) for _ in range(40)),
    ],
    ids=["many", "long names", "one long name", "many dimensions", "control characters", "zeros", "none", "same names"],
)
def test_recognise_hostile_outputs_have_a_short_reason(outputs: tuple[TensorSpec, ...]) -> None:
    found = recognise(IMAGE, outputs, {}, {})
    assert found.family is None
    assert len(found.reason) <= 1000


def test_compare_cost_does_not_grow_with_the_number_of_tensors() -> None:
    def seconds(count: int) -> float:
        outputs = tuple(TensorSpec(f"o{i}", "FP32", (1, i + 2, 80, 80)) for i in range(count))
        many = Tensors.of(IMAGE, outputs, (640, 640))
        started = time.process_time()
        for kind in KINDS:
            for known in kind.signatures:
                compare(known, many)
        return time.process_time() - started

    few = min(seconds(32) for _ in range(3))
    assert min(seconds(30_000) for _ in range(3)) < 20 * few


def test_compare_more_tensors_than_compared_are_counted() -> None:
    outputs = tuple(TensorSpec(f"o{i}", "FP32", (1, 3)) for i in range(500))
    known = FAMILIES["yunet"].signatures[0]
    found = compare(known, Tensors.of(IMAGE, outputs, (640, 640)))
    assert any("500 more outputs" in text for text in found.differences), found.differences
