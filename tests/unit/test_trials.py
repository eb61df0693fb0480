"""Outcomes of trials: refusals, warnings, and which outcomes are cached."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from edged.backends.contract import REFERENCE, Order, Signature
from edged.config.child_limits import AdmissionLimits, admission_limits
from edged.engines import trials
from edged.engines.child import ChildLost, How
from edged.engines.trials import Outcomes, Unread
from edged.errors import ConfigError, EdgedError, ModelRefused, NotFound, Superseded
from edged.ipc.job_messages import Check, Checked, RuntimeSupport
from edged.models.finding import Category, Finding, Stage
from edged.models.identity import file_digest
from edged.models.inspection import Footprint
from tests.waiting import ends_despite_fifo

REACH = RuntimeSupport("1.0", 6, 26, 13)
LIMITS = AdmissionLimits()
SUSPICION = Finding(Stage.GRAPH, Category.SHAPE_MISMATCH, "3 against 4", "export it again", "mm")
TB = 1 << 40


def found(stage: Stage, category: Category) -> Finding:
    return Finding(stage, category, category.value)


def test_outcome_reports_the_earliest_stage() -> None:
    late, early = found(Stage.MEMORY, Category.TOO_MUCH_MEMORY), found(Stage.OPSET, Category.OPSET_TOO_NEW)
    assert trials.first(None, late, early) is early
    assert trials.first(None, None) is None


def test_outcome_suspicion_explains_a_refusal_and_is_a_warning_otherwise() -> None:
    refused = Checked(REACH, found(Stage.SESSION, Category.REFUSED))
    assert trials.decided(refused, SUSPICION) == (SUSPICION, ())
    assert trials.decided(Checked(REACH), SUSPICION) == (None, (SUSPICION,))


@pytest.mark.parametrize("category", [Category.UNKNOWN_OPERATOR, Category.TIMED_OUT, Category.CRASHED])
def test_outcome_certain_finding_of_a_runtime_precedes_a_suspicion(category: Category) -> None:
    answer = Checked(REACH, found(Stage.SESSION, category))
    finding, _ = trials.decided(answer, SUSPICION)
    assert finding is not None
    assert finding.category is category


def test_memory_tensor_too_large_for_any_box_is_named() -> None:
    finding = trials.memory(Footprint(100, 4 * TB, "h"), LIMITS, 0.0, 16 << 10)
    assert finding is not None
    assert (finding.stage, finding.category, finding.node) == (Stage.MEMORY, Category.TOO_MUCH_MEMORY, "h")
    assert "4 TiB" in finding.message
    assert "16 GiB" in finding.message


def test_memory_above_the_limit_names_the_setting() -> None:
    finding = trials.memory(Footprint(0, 3 << 30, "h"), LIMITS, 0.0, 1 << 20)
    assert finding is not None
    assert "admission.memory_mb" in finding.remedy
    assert trials.memory(Footprint(0, 3 << 30, "h"), AdmissionLimits(memory_mb=4096), 0.0, 1 << 20) is None


def test_memory_limit_grows_with_the_model() -> None:
    assert trials.memory(Footprint(3 << 30, 1, "h"), LIMITS, 3072.0, 1 << 20) is None
    assert LIMITS.of_runtime(1000.0).seconds == pytest.approx(10 * LIMITS.of_runtime(1.0).seconds)


@pytest.mark.parametrize(
    ("how", "category", "words"),
    [
        ("late", Category.TIMED_OUT, "raise admission.seconds"),
        ("too large", Category.TOO_MUCH_MEMORY, "raise admission.memory_mb"),
        ("crashed", Category.CRASHED, "newer version of the runtime"),
    ],
)
def test_outcome_of_a_dead_child_is_a_finding_of_its_stage(how: How, category: Category, words: str) -> None:
    finding = trials.lost(ChildLost("it went", how), Stage.INFERENCE, LIMITS, 10.0, "ONNX Runtime")
    assert (finding.stage, finding.category) == (Stage.INFERENCE, category)
    assert finding.message.startswith("running the model with ONNX Runtime")
    assert words in finding.remedy


def test_outcome_of_a_child_that_ran_another_packages_family_names_it() -> None:
    family = "family tiles of package tiles-package 1.0"
    for how in ("late", "crashed"):
        finding = trials.lost(ChildLost("it went", how), Stage.INFERENCE, LIMITS, 10.0, "ONNX Runtime", family)  # type: ignore[arg-type]
        assert family in finding.message
    assert "family=raw" in finding.remedy
    opening = trials.lost(ChildLost("it went", "late"), Stage.SESSION, LIMITS, 10.0, "ONNX Runtime", family)
    assert family not in opening.message


def test_outcome_the_box_may_have_caused_is_not_cached() -> None:
    assert trials.is_lasting(None)
    assert trials.is_lasting(found(Stage.SESSION, Category.CRASHED))
    assert not trials.is_lasting(found(Stage.INFERENCE, Category.TIMED_OUT))
    assert not trials.is_lasting(found(Stage.INFERENCE, Category.TOO_MUCH_MEMORY))


def test_limits_of_options_override_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGED_ADMISSION_SECONDS", "60")
    monkeypatch.setenv("EDGED_ADMISSION_MEMORY_MB", "512")
    assert admission_limits() == AdmissionLimits(seconds=60.0, memory_mb=512)
    assert admission_limits(5.0) == AdmissionLimits(seconds=5.0, memory_mb=512)
    monkeypatch.setenv("EDGED_ADMISSION_SECONDS", "long")
    with pytest.raises(ConfigError, match="EDGED_ADMISSION_SECONDS"):
        admission_limits()


@pytest.mark.parametrize("category", Category)
def test_finding_of_every_category_has_a_remedy(category: Category) -> None:
    bare = found(Stage.SESSION, category)
    assert bare.remedy
    assert "\n" not in bare.line()
    assert bare.line() == f"{bare.message}; {bare.remedy}"
    assert not bare.has_own_remedy
    own = Finding(Stage.SESSION, category, "no", "do this")
    assert own.has_own_remedy
    assert own.line() == "no; do this"


def test_outcome_names_the_limits_that_were_exceeded() -> None:
    grown = found(Stage.INFERENCE, Category.TOO_MUCH_MEMORY)
    reported = trials.completed(grown, LIMITS)
    assert reported is not None
    assert "admission.memory_mb" in reported.remedy
    assert trials.completed(reported, AdmissionLimits(memory_mb=64)) is reported
    other = found(Stage.SESSION, Category.REFUSED)
    assert trials.completed(other, LIMITS) is other


def test_attempt_crash_on_an_overwritten_file_is_no_finding_about_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(b"model")
    order = Order(str(model), Signature((), ()), REFERENCE, digest=file_digest(model))

    async def crash(*_: object, **__: object) -> None:
        raise ChildLost("the child crashed (SIGBUS)", "crashed")

    monkeypatch.setattr(trials, "run", crash)
    job = Check(order, {}, 10, {}, None)
    crashed = asyncio.run(trials.attempt(job, LIMITS, 1.0)).finding
    assert crashed is not None
    assert crashed.category is Category.CRASHED
    model.write_bytes(b"mod")
    with pytest.raises(Superseded, match="replaced"):
        asyncio.run(trials.attempt(job, LIMITS, 1.0))


def test_finding_is_part_of_its_error() -> None:
    error = SUSPICION.refusal("m.onnx: ")
    assert str(error) == "m.onnx: 3 against 4; export it again"
    assert Finding.of(error) == SUSPICION
    plain: EdgedError = ModelRefused("no")
    assert Finding.of(plain) is None
    assert Finding.of(NotFound("no")) is None
    settings = Finding.of(ConfigError("threads='x'"))
    assert settings is not None
    assert (settings.stage, settings.category) == (Stage.FILE, Category.SETTINGS)


def test_keep_replaces_a_fifo(tmp_path: Path) -> None:
    """A comparison with the file's content would block for ever, and the model would never be served."""
    outcomes, limits = Outcomes(tmp_path), AdmissionLimits()
    unread = Unread(Finding(Stage.PARSE, Category.TIMED_OUT, "it takes too long"), 1)
    outcomes.keep_unread("graph", limits, unread)
    (place,) = tmp_path.rglob("graph-*.json")
    place.unlink()
    os.mkfifo(place)
    assert ends_despite_fifo(lambda: outcomes.keep_unread("graph", limits, unread), place)
    assert outcomes.unread("graph", limits) == unread


@pytest.mark.parametrize("size", [1000, 1023, 1010 << 10, 1023 << 20, 1000 << 30])
def test_memory_finding_has_plain_numbers(size: int) -> None:
    finding = trials.memory(Footprint(largest=TB, weights=size, tensor="t"), LIMITS, 1.0, 1)
    assert finding is not None
    assert "e+" not in finding.message
    finding = trials.memory(Footprint(largest=TB + size, tensor="t"), LIMITS, 1.0, 1000)
    assert finding is not None
    assert "e+" not in finding.message
