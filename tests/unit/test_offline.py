"""Building ahead for a device that this box does not have."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.device.fingerprint import Fingerprint, probe
from edged.engines import offline
from edged.engines.desired import candidates, desired
from edged.engines.offline import Target, recorded_target, target
from edged.errors import InvalidInput
from edged.store.key import may_be_for
from tests.unit.control_room import model

OWN = Fingerprint(
    {
        "cpu.arch": "x86_64",
        "cpu.model": "a workstation's",
        "runtime.tensorrt_rtx": "1.7.1.116",
        "runtime.onnxruntime": "1.31.1",
        "os.name": "debian",
    }
)
CARD = {
    "cpu.arch": "x86_64",
    "gpu.0.compute_capability": "8.6",
    "gpu.0.memory_mb": "6138",
    "gpu.0.name": "NVIDIA RTX A2000",
    "nvidia.driver": "580.65.06",
    "runtime.tensorrt_rtx": "1.7.1.116",
}
ALL = "fp16,tf32,fp32"  # the model's family is unknown, so only named precisions are tried
BOXES = Path(__file__).parents[1] / "fixtures" / "devices"


@pytest.mark.parametrize(
    ("text", "name", "capability"),
    [("sm_86", "sm_86", "8.6"), ("8.6", "sm_86", "8.6"), ("SM120", "sm_120", "12.0"), ("75", "sm_75", "7.5")],
)
def test_target_compute_capability_may_have_several_forms(text: str, name: str, capability: str) -> None:
    found = target(text, OWN)
    assert (found.name, found.capability) == (name, capability)
    assert found.fingerprint.facts == {
        "cpu.arch": "x86_64",
        "gpu.0.compute_capability": capability,
        "runtime.tensorrt_rtx": "1.7.1.116",
    }


@pytest.mark.parametrize("text", ["", "sm_", "sm_8", "orin", "8.6.1", "sm_1234", "-8.6", "8.6\n"])
def test_target_invalid_compute_capability_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="neither a compute capability"):
        target(text, OWN)


@given(st.text(max_size=12))
def test_target_any_text_is_a_capability_or_refused(text: str) -> None:
    try:
        found = target(text, OWN)
    except InvalidInput:
        return
    assert found.capability.count(".") == 1


def keys(on: Target, **settings: str) -> list[dict[str, str]]:
    return [e.key.parts for e in offline.engines(model(**settings), on, ())]


def test_recorded_target_engines_have_the_keys_of_the_box() -> None:
    on = recorded_target(CARD, OWN, "a2000.json")
    assert (on.name, on.capability) == ("NVIDIA RTX A2000", "8.6")
    there = {e.key.digest for e in desired(Fingerprint(CARD), model(precisions=ALL))}
    built = offline.engines(model(precisions=ALL), on, ())
    assert [e.recipe.precision for e in built] == ["fp16", "tf32", "fp32"]
    assert {e.key.digest for e in built} <= there


def test_engine_built_ahead_is_for_its_compute_capability_only() -> None:
    built = {parts["recipe.precision"]: parts for parts in keys(target("sm_86", OWN), precisions=ALL)}
    wanted = desired(Fingerprint(CARD), model(backends="tensorrt_rtx", precisions=ALL))[1:]
    assert len(wanted) == 3
    for engine in wanted:
        assert may_be_for(built[engine.recipe.precision], engine.key.parts)
    for other in ({"gpu.0.compute_capability": "8.9"}, {"runtime.tensorrt_rtx": "1.6.1.120"}, {"cpu.arch": "aarch64"}):
        for engine in desired(Fingerprint(CARD | other), model(backends="tensorrt_rtx", precisions=ALL))[1:]:
            assert not may_be_for(built[engine.recipe.precision], engine.key.parts)


def test_engines_with_named_precisions_have_those_only() -> None:
    (engine,) = offline.engines(model(), target("8.6", OWN), ("fp16",))
    assert (engine.recipe.precision, engine.recipe.device) == ("fp16", "cuda:0")
    with pytest.raises(InvalidInput, match="no engine for sm_86 in bf16"):
        offline.engines(model(), target("8.6", OWN), ("bf16",))


def test_recorded_target_that_cannot_run_engines_of_this_box_is_refused() -> None:
    orin = probe(BOXES / "jetson-orin-nano").facts
    with pytest.raises(InvalidInput, match="box with aarch64, but engines built here are for x86_64"):
        recorded_target(orin, OWN, "orin.json")
    with pytest.raises(InvalidInput, match=r"TensorRT-RTX 1\.6\.1\.120, but this box has 1\.7\.1\.116"):
        recorded_target(CARD | {"runtime.tensorrt_rtx": "1.6.1.120"}, OWN, "card.json")
    with pytest.raises(InvalidInput, match="no NVIDIA GPU"):
        recorded_target(probe(BOXES / "intel-nuc-11").facts, OWN, "nuc.json")
    bare = {name: value for name, value in CARD.items() if not name.startswith("runtime.")}
    with pytest.raises(InvalidInput, match="a box without TensorRT-RTX"):
        recorded_target(bare, OWN, "bare.json")


def test_recorded_target_with_other_runtimes_gets_engines_of_tensorrt_rtx() -> None:
    on = recorded_target(CARD | {"tensorrt.version": "10.3.0.30", "runtime.tensorrt": "10.3.0"}, OWN, "card.json")
    assert {e.recipe.backend for e in offline.engines(model(), on, ())} == {"tensorrt_rtx"}


def test_engines_keys_have_no_facts_of_this_box_except_runtimes() -> None:
    on = target("8.6", OWN)
    other = msgspec.structs.replace(OWN, facts=OWN.facts | {"cpu.model": "another", "nvidia.driver": "1"})
    assert keys(on) == keys(target("8.6", other))
    assert candidates({}, on.fingerprint.facts)  # the target's facts are enough to find candidates
