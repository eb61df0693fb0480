"""The precision that serves, and the reason."""

from __future__ import annotations

import math
import time
from pathlib import Path

import msgspec
import pytest

from edged.backends.contract import INT8_ASYMMETRIC, REFERENCE, Parallelism, Recipe
from edged.engines import views
from edged.engines.engine import EngineState, PlannedEngine
from edged.engines.plan import PlannedModel
from edged.engines.reconcile import Open, reconcile
from edged.engines.views import actual
from edged.serving.slot import Slot
from edged.store.record import Speed
from edged.store.store import Store
from tests.unit.control_room import entry, key_of, model, record_of, serve

EXACT, HALF = Recipe("openvino"), Recipe("openvino", precision="bf16")
OTHER = Recipe("onnxruntime")
INT8 = Recipe("openvino", precision="int8")
DEEP = msgspec.structs.replace(INT8, options=INT8_ASYMMETRIC)


def world(costs: dict[Recipe, float | None], serving: Recipe = REFERENCE, **settings: str) -> PlannedModel:
    """Return a model with engines that take this share of the reference's time; None means rejected."""
    planned = PlannedModel(entry(**settings), Slot("m"))
    planned.model = model(**settings)
    for recipe, cost in {REFERENCE: 1.0, **costs}.items():
        key = key_of(planned.model, recipe)
        engine = PlannedEngine(key, recipe)
        engine.record = record_of(key, recipe, accepted=cost is not None, cost=cost)
        engine.state = EngineState.REJECTED if cost is None else EngineState.READY
        planned.engines[key.digest] = engine
    planned.served = planned.model
    running = planned.engines[key_of(planned.model, serving).digest]
    serve(planned, running.digest, edition=running.edition)
    return planned


def chosen(planned: PlannedModel, folder: Path) -> Recipe | None:
    """Return the recipe of the engine that replaces the serving one, if any."""
    opened = [a for a in reconcile(actual(Store(folder), [planned]), 1e9, {"cpu"}) if isinstance(a, Open)]
    return planned.engines[opened[0].key].recipe if opened else None


@pytest.mark.parametrize(("gain", "expected"), [(1.0, EXACT), (1.29, EXACT), (1.4, HALF), (3.0, HALF)])
def test_reconcile_default_precision_serves_from_the_least_gain_on(
    tmp_path: Path, gain: float, expected: Recipe
) -> None:
    planned = world({EXACT: 0.5, HALF: 0.5 / gain})
    assert chosen(planned, tmp_path) == expected
    before = world({EXACT: 0.5, HALF: 0.5 / gain}, serving=EXACT)
    assert chosen(before, tmp_path) == (None if expected == EXACT else HALF)


def test_reconcile_gain_is_over_the_fastest_exact_engine_of_any_backend(tmp_path: Path) -> None:
    assert chosen(world({EXACT: 0.8, OTHER: 0.5, HALF: 0.45}), tmp_path) == OTHER


def test_reconcile_configured_precision_serves_with_any_gain(tmp_path: Path) -> None:
    assert chosen(world({EXACT: 0.5, HALF: 0.45}, precisions="fp32,bf16"), tmp_path) == HALF


@pytest.mark.parametrize("settings", [{}, {"precisions": "fp32,bf16"}, {"precisions": "bf16"}])
@pytest.mark.parametrize(("exact", "half"), [(0.5, 0.5), (0.5, 0.501), (0.5, 0.9), (1.2, 1.0)])
def test_reconcile_lower_precision_that_is_not_faster_never_serves(
    tmp_path: Path, exact: float, half: float, settings: dict[str, str]
) -> None:
    best = EXACT if exact < 0.95 else None
    assert chosen(world({EXACT: exact, HALF: half}, **settings), tmp_path) == best
    # It served before the exact engine was made, and is replaced at once, however small the difference.
    assert chosen(world({EXACT: exact, HALF: half}, serving=HALF, **settings), tmp_path) == (best or REFERENCE)


def test_reconcile_lower_precision_is_compared_with_exact_engines_that_can_be_opened(tmp_path: Path) -> None:
    planned = world({EXACT: 0.3, HALF: 0.5}, serving=HALF, precisions="bf16")
    exact = next(engine for engine in planned.engines.values() if engine.recipe == EXACT)
    exact.open_at = math.inf  # the runtime refused it
    assert chosen(planned, tmp_path) is None


@pytest.mark.parametrize("settings", [{}, {"precisions": "fp32,bf16"}])
def test_reconcile_coarse_engine_without_an_accepted_exact_one_never_serves(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    costs = {EXACT: None, HALF: 0.1}
    assert chosen(world(costs, **settings), tmp_path) is None
    assert chosen(world(costs, serving=HALF, **settings), tmp_path) == REFERENCE
    assert chosen(world({**costs, OTHER: 0.7}, **settings), tmp_path) == OTHER


def test_reconcile_coarse_engine_with_an_exact_one_of_a_lower_level_serves(tmp_path: Path) -> None:
    lower = Recipe("openvino", optimization="basic")
    assert chosen(world({EXACT: None, lower: 0.8, HALF: 0.1}), tmp_path) == HALF


@pytest.mark.parametrize(
    ("costs", "serving", "settings", "words"),
    [
        ({EXACT: 0.5}, EXACT, {}, ["exact"]),
        ({EXACT: 0.5, HALF: 0.45}, EXACT, {}, ["exact", "bf16 1.1x"]),
        ({EXACT: 0.5, HALF: 0.6}, EXACT, {"precisions": "bf16"}, ["exact", "bf16 0.8x as fast as fp32, not used"]),
        (
            {EXACT: 0.5, INT8: 0.8, DEEP: 0.625},
            EXACT,
            {"precisions": "int8"},
            ["exact; int8 0.8x as fast as fp32, not"],
        ),
        (
            {EXACT: 0.5, INT8: None, DEEP: 0.625},
            EXACT,
            {"precisions": "int8"},
            ["exact; int8 0.8x as fast as fp32, not"],
        ),
        ({EXACT: 0.5, HALF: None}, EXACT, {}, ["exact", "bf16 answers differ"]),
        ({EXACT: None, HALF: 0.1}, REFERENCE, {}, ["exact", "not trusted"]),
        ({EXACT: 0.5, HALF: 0.25}, HALF, {}, ["results agree", "2.0x"]),
        ({EXACT: 0.5, HALF: 0.25}, HALF, {"precisions": "bf16,fp32"}, ["as set"]),
    ],
)
def test_precision_reason_of_the_serving_engine_is_short(
    costs: dict[Recipe, float | None], serving: Recipe, settings: dict[str, str], words: list[str]
) -> None:
    found = views.precision_reason(world(costs, serving, **settings))
    assert all(word in found for word in words), found
    assert len(found) < 80


def test_why_not_is_in_words_for_each_engine() -> None:
    planned = world({EXACT: 0.5, INT8: 0.625, DEEP: 0.25, HALF: None}, serving=DEEP, precisions="int8,bf16")
    words = {engine.recipe: views.why_not(engine, planned) for engine in planned.engines.values()}
    assert words[INT8] == "0.8x as fast as fp32, not used"
    assert words[HALF] == "answers differ"
    assert [words[recipe] for recipe in (REFERENCE, EXACT, DEEP)] == ["", "", ""]


def test_precision_reason_without_engines_is_empty() -> None:
    planned = world({})
    planned.engines = {}
    assert views.precision_reason(planned) == ""


def test_cost_depends_on_the_demand_and_the_form(tmp_path: Path) -> None:
    planned = world({EXACT: 0.5})
    engine = planned.engines[key_of(planned.known_answers().model, EXACT).digest]
    assert engine.record is not None
    forms = (Speed(1, 0, 5.0, 5.0, 10.0), Speed(2, 1, 8.0, 4.0, 10.0))
    engine.record = msgspec.structs.replace(engine.record, speeds=forms)
    assert views.cost(planned, engine) == 0.5
    assert views.cost(planned, engine, is_busy=True) == 0.4
    assert views.cost(planned, engine, parallelism=Parallelism(2, 1)) == pytest.approx(0.88), "another form costs more"
    assert views.cost(planned, engine, parallelism=Parallelism(4, 1)) is None


@pytest.mark.parametrize(("performance", "expected"), [("latency", False), ("throughput", True), ("auto", True)])
def test_is_busy_follows_the_setting_or_waiting_work(performance: str, expected: bool) -> None:
    planned = world({}, performance=performance)
    now = time.monotonic() + 1.0
    planned.slot.demand.note(8, now)
    assert planned.is_busy(now + 5) is expected
    if performance == "auto":
        planned.slot.demand.note(0, now + 5)
        assert [planned.is_busy(now + later) for later in (10, 21)] == [True, False]
