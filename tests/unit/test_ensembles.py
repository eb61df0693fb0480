"""Ensembles in the catalogue: the models of their steps decide whether they are ready."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from edged.config import Health
from edged.engines import alarms, report
from edged.engines.alarms import AlarmKind
from edged.engines.ensembles import BoundEnsemble, PlannedEnsemble, ensemble_readiness
from edged.engines.readiness import ReadyState
from edged.errors import EngineUnusable, InvalidInput, ModelNotFound, NotReady
from edged.events import ModelRemoved
from edged.models.entries import ModelEntry
from edged.models.triton_config import SequenceBatching, Step, TensorConfig, TritonConfig
from edged.tensors import TensorSpec
from tests.unit.control_room import emitted, entry, inspection, serve, settle
from tests.unit.test_catalogue import House

HEALTH = Health(probe_failures=1)
STEPS = (Step("a", "", {"x": "X"}, {"y": "t"}), Step("b", "", {"x": "t"}, {"y": "Y"}))


def ensemble_entry(
    name: str = "e", steps: tuple[Step, ...] = STEPS, version: str = "1", problem: str = ""
) -> ModelEntry:
    """Return the entry of an ensemble from X to Y, FP32 [1, 4]."""
    tensors = {side: (TensorConfig(side, "FP32", (1, 4)),) for side in "XY"}
    triton = TritonConfig(inputs=tensors["X"], outputs=tensors["Y"], steps=steps)
    return ModelEntry(name, version, "/nowhere/config.pbtxt", {}, "1", problem, triton=triton)


@pytest.fixture
def house(tmp_path: Path) -> House:
    found = House(tmp_path)
    found.shelf.models["e"] = ensemble_entry()
    return found


def state(house: House, name: str = "e") -> tuple[ReadyState, str]:
    found = ensemble_readiness(house.catalogue.ensembles[name], HEALTH)
    return found.state, found.reason


async def served(house: House, *names: str) -> None:
    """Add models, and serve them."""
    for name in names:
        planned = await house.add(name)
        serve(planned, next(iter(planned.engines)))


async def test_readiness_follows_the_models(house: House) -> None:
    await house.look()
    assert state(house) == (ReadyState.REFUSED, "no model 'a'; available: e")
    await served(house, "a")
    assert state(house) == (ReadyState.REFUSED, "no model 'b'; available: a, e")
    planned = await house.add("b")
    assert state(house)[0] is ReadyState.LOADING
    serve(planned, next(iter(planned.engines)))
    assert state(house) == (ReadyState.READY, "")
    assert planned.slot.current is not None
    planned.slot.current.health.missed(EngineUnusable("inference failed"))
    found, reason = state(house)
    assert found is ReadyState.FAILING
    assert "model 'b' is not ready: its engine no longer answers" in reason
    planned.slot.current.health.answered(0.0)
    assert state(house)[0] is ReadyState.READY
    del house.shelf.models["a"]
    await house.look()
    assert state(house) == (ReadyState.REFUSED, "no model 'a'; available: b, e")


async def test_readiness_is_loading_while_a_model_is_read(house: House) -> None:
    house.readers.gate.clear()
    for name in "ab":
        house.shelf.models[name] = entry(name)
    house.catalogue.look()
    await settle()
    assert state(house) == (ReadyState.LOADING, "model 'a' is not ready: the model is being read")
    house.readers.gate.set()
    await house.look()


async def test_bound_refused_model_is_the_reason(house: House) -> None:
    house.readers.files["b"] = EngineUnusable("it is broken")
    await served(house, "a")
    await house.add("b")
    found, reason = state(house)
    assert found is ReadyState.REFUSED
    assert "it is broken" in reason
    with pytest.raises(NotReady, match="ensemble 'e' cannot be served: model 'b': it is broken"):
        house.catalogue.ensembles["e"].require_bound()


async def test_bound_model_that_is_replaced_must_fit_again(house: House) -> None:
    await served(house, "a", "b")
    planned = house.catalogue.ensembles["e"]
    first = planned.require_bound()
    assert planned.require_bound() is first, "it is bound once for the same models"
    house.readers.files["b"] = inspection("other", shape=(1, 5))
    again = await house.add("b", stamp="2")
    serve(again, next(iter(again.engines)))
    again.served = again.model
    found, reason = state(house)
    assert found is ReadyState.REFUSED
    assert "tensor 'Y' is [1, 4] for the ensemble and [1, 5] for step 1" in reason or "'t' is [1, 4]" in reason
    house.readers.files["b"] = inspection("third")
    again = await house.add("b", stamp="3")
    again.served = again.model
    assert isinstance(planned.bound(), BoundEnsemble)


async def test_bound_has_whole_shapes_and_optional_inputs(house: House) -> None:
    await served(house, "a", "b")
    bound = house.catalogue.ensembles["e"].require_bound()
    assert bound.signature.inputs == (TensorSpec("X", "FP32", (1, 4)),)
    assert bound.signature.outputs == (TensorSpec("Y", "FP32", (1, 4)),)
    assert (bound.optional, bound.max_batch_size) == ((), 0)


@pytest.mark.parametrize(
    ("triton", "settings", "words"),
    [
        (TritonConfig(decoupled=True), {}, "any number of responses"),
        (TritonConfig(sequence=SequenceBatching()), {}, "needs sequences"),
    ],
)
async def test_bound_model_that_ensembles_cannot_have_is_refused_in_one_line(
    house: House, triton: TritonConfig, settings: dict[str, str], words: str
) -> None:
    await served(house, "b")
    house.shelf.models["a"] = msgspec.structs.replace(entry("a"), triton=triton)
    await house.look()
    bound = house.catalogue.ensembles["e"].bound()
    assert isinstance(bound, str)
    assert words in bound
    assert "step 0 (model 'a')" in bound


async def test_bound_ensemble_in_an_ensemble_is_refused(house: House) -> None:
    house.shelf.models["outer"] = ensemble_entry("outer", (Step("e", "", {"X": "X"}, {"Y": "Y"}),))
    house.shelf.models["self"] = ensemble_entry("self", (Step("self", "", {"X": "X"}, {"Y": "Y"}),))
    await served(house, "a", "b")
    for name in ("outer", "self"):
        found, reason = state(house, name)
        assert found is ReadyState.REFUSED
        assert "is an ensemble" in reason


async def test_bound_step_may_name_a_version(house: House) -> None:
    house.shelf.models["e"] = ensemble_entry(steps=(Step("a", "2", {"x": "X"}, {"y": "Y"}),))
    await served(house, "a")
    assert "model 'a' has no version 2" in state(house)[1]
    house.shelf.models["a"] = msgspec.structs.replace(entry("a"), version="3")
    house.shelf.models["a:2"] = msgspec.structs.replace(entry("a:2"), version="2")
    await house.look()
    assert house.catalogue.ensembles["e"].require_bound().steps[0].planned is house.catalogue.models["a:2"]
    assert house.catalogue.ensembles["e"].part_names == ("a:2",)


async def test_find_ensemble_has_no_engine(house: House) -> None:
    await served(house, "a", "b")
    with pytest.raises(InvalidInput, match=r"is an ensemble; .*; its models are a, b"):
        house.catalogue.find("e")
    assert isinstance(house.catalogue.find_any("e"), PlannedEnsemble)
    assert house.catalogue.find_any("a") is house.catalogue.find("a")
    with pytest.raises(ModelNotFound, match="available: a, b, e"):
        house.catalogue.find_any("zz")


async def test_find_any_version_of_an_ensemble(house: House) -> None:
    house.shelf.models["e"] = ensemble_entry(version="2")
    house.shelf.models["e:1"] = ensemble_entry("e:1")
    await house.look()
    assert house.catalogue.find_any("e").entry.version == "2"
    assert house.catalogue.find_any("e", "1") is house.catalogue.find_any("e:1") is house.catalogue.ensembles["e:1"]
    with pytest.raises(ModelNotFound, match="has no version 3; available: 2, 1"):
        house.catalogue.find_any("e", "3")
    with pytest.raises(InvalidInput):
        house.catalogue.find_any("e", "newest")


async def test_look_changed_and_removed_ensembles_take_effect_at_once(house: House) -> None:
    await served(house, "a", "b")
    before = house.catalogue.ensembles["e"]
    before.statistics.failed(1.0)
    house.catalogue.look()
    assert house.catalogue.ensembles["e"] is before
    house.shelf.models["e"] = ensemble_entry(problem="config.pbtxt: wrong")
    assert house.catalogue.look()
    assert state(house) == (ReadyState.REFUSED, "config.pbtxt: wrong")
    assert house.catalogue.ensembles["e"].statistics.fail.count == 0
    del house.shelf.models["e"]
    assert house.catalogue.look()
    assert not house.catalogue.ensembles
    assert len(emitted(house.events, ModelRemoved)) == 1


async def test_look_model_that_becomes_an_ensemble_is_replaced(house: House) -> None:
    await served(house, "a", "b", "m")
    house.shelf.models["m"] = ensemble_entry("m")
    house.catalogue.look()
    assert "m" not in house.catalogue.models
    assert state(house, "m")[0] is ReadyState.READY
    house.shelf.models["m"] = entry("m")
    await house.look()
    assert "m" in house.catalogue.models
    assert "m" not in house.catalogue.ensembles


async def test_alarm_is_raised_for_an_ensemble_that_cannot_be_served(house: House) -> None:
    await house.look()
    (alarm,) = alarms.wrong_ensembles(house.catalogue.ensembles.values(), HEALTH)
    assert (alarm.kind, alarm.model) == (AlarmKind.UNSERVED, "e")
    assert "no model 'a'" in alarm.message
    await served(house, "a", "b")
    assert not list(alarms.wrong_ensembles(house.catalogue.ensembles.values(), HEALTH))


async def test_report_names_the_models_and_settings_without_effect(house: House) -> None:
    house.shelf.models["e"] = msgspec.structs.replace(ensemble_entry(), settings={"batch.max": "4", "versions": "all"})
    await served(house, "a", "b")
    planned = house.catalogue.ensembles["e"]
    info = report.ensemble(planned, (), ensemble_readiness(planned, HEALTH))
    assert (info.name, info.state, info.parts, info.engine) == ("e", "ready", ("a", "b"), "")
    assert [tensor.shape for tensor in (*info.inputs, *info.outputs)] == [(1, 4), (1, 4)]
    assert info.notes == ("edged.toml: setting 'batch.max' has no effect on an ensemble",)
