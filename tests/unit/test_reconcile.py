"""What to do next, alone and in a little world where everything that can go wrong does, until it goes quiet."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.backend.contract import UNOPTIMISED, Recipe
from edged.control.reconcile import Action, EngineView, Make, ModelView, Open, reconcile
from edged.control.states import EngineState

REFERENCE = Recipe("onnxruntime", optimization=UNOPTIMISED)
NOISE = 0.95  # an engine is replaced only by one that takes less than this part of its time


def view(key: str, state: EngineState = EngineState.ABSENT, latency: float | None = None, **more: float) -> EngineView:
    recipe = REFERENCE if key == "ref" else Recipe("openvino")
    return EngineView(key, recipe, state, latency, **more)


def decide(
    *engines: EngineView, serving: str | None = None, opening: bool = False, making: bool = True
) -> list[Action]:
    return reconcile([ModelView("m", engines, serving, opening)], 100.0, making)


READY, FAILED, REJECTED = EngineState.READY, EngineState.FAILED, EngineState.REJECTED


def test_the_reference_answers_before_anything_is_built() -> None:
    assert decide(view("ref"), view("a")) == [Open("m", "ref")]


def test_the_first_thing_made_is_the_reference() -> None:
    assert decide(view("ref"), view("a"), serving="ref", making=False) == [Make("m", "ref")]


def test_the_fastest_of_those_that_are_ready_is_opened() -> None:
    engines = (view("ref", READY, 9), view("a", READY, 5), view("b", READY, 3), view("c", REJECTED))
    assert decide(*engines) == [Open("m", "b")]


def test_an_engine_of_known_speed_comes_before_one_of_unknown() -> None:
    assert decide(view("ref"), view("a", READY, 50)) == [Open("m", "a")]


def test_a_faster_engine_replaces_the_one_that_serves_but_not_for_noise() -> None:
    assert decide(view("ref", READY, 10), view("a", READY, 5), serving="ref") == [Open("m", "a")]
    assert decide(view("ref", READY, 10), view("a", READY, 9.8), serving="ref") == []
    assert decide(view("ref"), view("a", READY, 50), serving="ref") == [Open("m", "a")]


def test_an_engine_that_is_clearly_faster_is_opened_whatever_else_there_is() -> None:
    engines = (view("ref", READY, 9.8), view("a", READY, 10), view("b", READY, 9.4))
    assert decide(*engines[1:], serving="a") == [Open("m", "b")]
    assert decide(*engines, serving="a") == [Open("m", "b")]


def test_an_engine_that_is_slower_than_the_one_that_serves_is_left_alone() -> None:
    assert decide(view("ref", READY, 10), view("a", READY, 50), serving="ref") == []


def test_what_serves_but_is_not_wanted_any_more_is_replaced() -> None:
    assert decide(view("ref"), serving="of an older model") == [Open("m", "ref")]


def test_an_engine_of_the_device_as_it_was_serves_until_all_others_are_decided() -> None:
    def after(*engines: EngineView) -> list[Action]:
        return reconcile([ModelView("m", engines, serving="old", outdated=True)], 100.0, making=True)

    reference = view("ref", READY, 9)
    for undecided in (EngineState.ABSENT, EngineState.QUEUED, EngineState.BUILDING, EngineState.VERIFYING):
        assert after(reference, view("new", undecided)) == []
    assert after(reference, view("new", READY, 3)) == [Open("m", "new")]
    assert after(reference, view("new", EngineState.FAILED)) == [Open("m", "ref")]
    assert after(reference, view("new", EngineState.REJECTED)) == [Open("m", "ref")]


def test_one_opening_at_a_time() -> None:
    assert decide(view("ref"), opening=True) == []


def test_an_engine_whose_opening_failed_is_tried_again_only_when_it_is_time() -> None:
    assert decide(view("ref", open_at=101)) == []
    assert decide(view("ref", open_at=100)) == [Open("m", "ref")]
    assert decide(view("ref", open_at=math.inf), view("a", READY, 5, open_at=101)) == []
    assert decide(view("ref", READY, 9), view("a", READY, 5, open_at=101)) == [Open("m", "ref")]


@pytest.mark.parametrize("state", [s for s in EngineState if s not in (EngineState.ABSENT, EngineState.FAILED)])
def test_only_what_is_absent_or_failed_is_made(state: EngineState) -> None:
    assert not any(isinstance(a, Make) for a in decide(view("a", state, 1.0), making=False))


def test_a_failed_build_is_tried_again_only_when_it_is_time() -> None:
    assert decide(view("a", FAILED, retry_at=101), making=False) == []
    assert decide(view("a", FAILED, retry_at=100), making=False) == [Make("m", "a")]


def test_the_model_that_nothing_serves_is_built_for_first_then_the_one_with_the_fewest_engines() -> None:
    rich = ModelView("rich", (view("r1", READY, 1), view("r2")), "r1")
    poor = ModelView("poor", (view("p1"),), "p0")
    dark = ModelView("dark", (view("d1", REJECTED), view("d2", REJECTED), view("d3")))
    makes = [a for a in reconcile([rich, poor, dark], 0, False) if isinstance(a, Make)]
    assert makes == [Make("dark", "d3")]
    makes = [a for a in reconcile([rich, poor], 0, False) if isinstance(a, Make)]
    assert makes == [Make("poor", "p1")]


def test_a_model_that_must_wait_does_not_hold_up_the_others() -> None:
    dark = ModelView("dark", (view("d", FAILED, retry_at=1000),))
    calm = ModelView("calm", (view("c"),), "x")
    assert reconcile([dark, calm], 0, False) == [Make("calm", "c")]


# -- a little world -------------------------------------------------------------------------------------------------


@dataclass
class Engine:
    key: str
    recipe: Recipe
    latency: float
    accepted: bool
    build_failures: int
    open_failures: int
    state: EngineState = EngineState.ABSENT
    retry_at: float = 0.0
    open_at: float = 0.0
    times_rejected: int = 0

    @property
    def known_latency(self) -> float | None:
        return self.latency if self.state is EngineState.READY else None

    def view(self) -> EngineView:
        return EngineView(self.key, self.recipe, self.state, self.known_latency, self.retry_at, self.open_at)


@dataclass
class Served:
    name: str
    engines: list[Engine]
    serving: str | None = None
    opening: Engine | None = None

    def view(self) -> ModelView:
        return ModelView(self.name, tuple(e.view() for e in self.engines), self.serving, self.opening is not None)


@dataclass
class World:
    """What the controller and the box would do, one step of time after another."""

    models: dict[str, Served] = field(default_factory=dict)
    making: Engine | None = None
    now: float = 0.0

    def step(self, *, lost: bool, ignore: bool) -> bool:
        """Decides and acts; whether anything was to be done. `ignore` is an event that got lost."""
        self.now += 1
        self._finish(lost=lost)
        views = [model.view() for model in self.models.values()]
        frozen = msgspec.json.encode(views)
        actions = reconcile(views, self.now, self.making is not None)
        assert actions == reconcile(iter(views), self.now, self.making is not None)
        assert msgspec.json.encode(views) == frozen
        self._check(actions)
        if not ignore:
            for action in actions:
                self._start(action)
        return bool(actions) or self.making is not None or any(m.opening for m in self.models.values())

    def _finish(self, *, lost: bool) -> None:
        engine = self.making
        if engine is not None:
            self.making = None
            if engine.build_failures:
                engine.build_failures -= 1
                engine.state, engine.retry_at = EngineState.FAILED, self.now + 5
            else:
                engine.state = EngineState.READY if engine.accepted else EngineState.REJECTED
                engine.times_rejected += not engine.accepted
        for model in self.models.values():
            opened, model.opening = model.opening, None
            if opened is not None and opened.open_failures:
                opened.open_failures -= 1
                opened.open_at = self.now + 2
            elif opened is not None:
                model.serving = opened.key
            if lost:
                model.serving = None

    def _start(self, action: Action) -> None:
        model = self.models[action.model]
        engine = next(e for e in model.engines if e.key == action.key)
        if isinstance(action, Open):
            model.opening = engine
        else:
            self.making, engine.state = engine, EngineState.BUILDING

    def _check(self, actions: list[Action]) -> None:
        makes = [a for a in actions if isinstance(a, Make)]
        assert len(makes) <= (self.making is None)
        for make in makes:
            engine = next(e for e in self.models[make.model].engines if e.key == make.key)
            assert engine.state in (EngineState.ABSENT, EngineState.FAILED)
            assert engine.retry_at <= self.now
        opens = {a.model: a.key for a in actions if isinstance(a, Open)}
        assert len(opens) + len(makes) == len(actions)
        for model in self.models.values():
            able = [
                e
                for e in model.engines
                if (e.state is EngineState.READY or e.recipe.is_reference) and e.open_at <= self.now
            ]
            if model.opening is not None:
                assert model.name not in opens
            elif model.serving is None and able:
                assert model.name in opens
            if model.name in opens:
                assert opens[model.name] in [e.key for e in able]
                assert opens[model.name] != model.serving


@st.composite
def engines(draw: st.DrawFn, recipe: Recipe, key: str) -> Engine:
    return Engine(
        key,
        recipe,
        latency=draw(st.floats(0.1, 100)),
        accepted=draw(st.booleans()),
        build_failures=draw(st.integers(0, 3)),
        open_failures=draw(st.integers(0, 3)),
    )


@st.composite
def served(draw: st.DrawFn, name: str) -> Served:
    reference = draw(engines(REFERENCE, f"{name}/ref"))
    others = [draw(engines(Recipe("openvino"), f"{name}/{i}")) for i in range(draw(st.integers(0, 3)))]
    return Served(name, [reference, *others])


@settings(max_examples=150)
@given(st.data())
def test_any_history_ends_with_the_fastest_accepted_engine_serving(data: st.DataObject) -> None:
    world = World()
    waiting = [data.draw(served(f"m{number}")) for number in range(data.draw(st.integers(1, 3)))]
    for _ in range(data.draw(st.integers(0, 25))):
        if waiting and data.draw(st.booleans()):
            model = waiting.pop()
            world.models[model.name] = model
        world.step(lost=data.draw(st.integers(0, 5)) == 0, ignore=data.draw(st.integers(0, 4)) == 0)
    world.models |= {model.name: model for model in waiting}
    quiet = 0
    for _ in range(400):
        quiet = 0 if world.step(lost=False, ignore=False) else quiet + 1
        if quiet > 10:
            break
    assert quiet > 10, "it never came to rest"
    for model in world.models.values():
        assert model.serving is not None
        serving = next(e for e in model.engines if e.key == model.serving)
        accepted = [e for e in model.engines if e.accepted]
        assert serving.accepted or (serving.recipe.is_reference and not accepted)
        assert all(e.latency >= serving.latency * NOISE**2 for e in accepted)  # two comparisons, each with its noise
        assert all(e.state is (EngineState.READY if e.accepted else EngineState.REJECTED) for e in model.engines)
        assert all(e.times_rejected <= 1 for e in model.engines)
