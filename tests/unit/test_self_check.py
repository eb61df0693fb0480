"""Self-check: which engines are tried, and the check for each outcome."""

from __future__ import annotations

import msgspec
import pytest

from edged.backends.contract import REFERENCE, Recipe
from edged.device.fingerprint import Fingerprint
from edged.doctor import self_check
from edged.doctor.check import Name, Result, ok, unknown, warning
from edged.doctor.self_check import Tried
from edged.engines.child import ChildLost
from edged.engines.desired import DesiredEngine
from edged.errors import BuildFailed, EdgedError, Unsuitable
from edged.shapes import CLASSES, SAMPLE_SEED, Scene
from edged.store.judgement import Box
from edged.store.key import EngineKey
from edged.store.record import BuildFacts, EngineRecord, Speed, Verdict

BOX = Fingerprint({"cpu.model": "EPYC", "cpu.threads": "2", "runtime.openvino": "2026.4"})


def engine(*recipe: str) -> DesiredEngine:
    return DesiredEngine(EngineKey({"recipe": " ".join(recipe)}), Recipe(*recipe), "s", "cpu")


def record(*speeds: Speed, accepted: bool = True) -> EngineRecord:
    facts, verdict = BuildFacts(0.0, 0.0, 0.0, "1"), Verdict(accepted, "" if accepted else "boxes 0.5 of 0.999", {})
    return EngineRecord({}, "shapes", Recipe("openvino"), {}, facts, verdict, speeds=speeds)


def test_chosen_is_one_engine_per_runtime_and_device_preferably_fp32() -> None:
    wanted = [
        DesiredEngine(EngineKey({}), REFERENCE, "s", "cpu"),
        engine("onnxruntime", "cpu", "fp32"),
        engine("openvino", "cpu", "bf16"),
        engine("openvino", "cpu", "fp32"),
        engine("tensorrt", "cuda:0", "fp16"),
        engine("tensorrt", "cuda:0", "fp32"),
        engine("tensorrt", "cuda:1", "fp16"),
        engine("openvino", "intel-npu:0", "fp16"),
    ]
    assert [" ".join((e.recipe.backend, e.recipe.device, e.recipe.precision)) for e in self_check.chosen(wanted)] == [
        "onnxruntime cpu fp32",
        "openvino cpu fp32",
        "tensorrt cuda:0 fp32",
        "tensorrt cuda:1 fp16",
        "openvino intel-npu:0 fp16",
    ]


def drawn(*, shift: float = 0.0, score: float = 0.9) -> list[Box]:
    """Return the boxes of a detector that finds all shapes, but `shift` pixels too far to the right."""
    truths = Scene(SAMPLE_SEED).frame(0)[1]
    return [Box(t.x1 + shift, t.y1, t.x2 + shift, t.y2, score, CLASSES[t.class_id]) for t in truths]


@pytest.mark.parametrize(
    ("boxes", "expected"),
    [
        (drawn(), Result.OK),
        ([*drawn(), *drawn(shift=300.0, score=0.1)], Result.OK),  # low scores are ignored
        ([*drawn(), Box(0, 0, 9, 9, 0.9, "another")], Result.WRONG),
        (drawn()[1:], Result.WRONG),
        (drawn(shift=200.0), Result.WRONG),
        ([], Result.WRONG),
    ],
)
def test_reference_is_ok_if_it_finds_the_drawn_shapes(boxes: list[Box], expected: Result) -> None:
    check = self_check.reference("1.31.1", boxes)
    assert (check.result, bool(check.remedy)) == (expected, expected is Result.WRONG)


def test_tried_has_speed_and_throughput() -> None:
    speeds = Speed(1, 0, 5.0, 5.0, 10.0), Speed(2, 1, 8.0, 4.0, 10.0)
    found = self_check.tried(record(*speeds), "2026.4", BOX)
    assert (found.description, found.speed, found.throughput) == ("EPYC, 2 CPUs", 2.0, 2.5)
    assert (found.frames_per_s, found.reference_frames_per_s) == (250.0, 100.0)
    untimed = self_check.tried(record(), "2026.4", BOX)
    assert (untimed.speed, untimed.throughput, untimed.frames_per_s) == (None, None, None)


FOUND = Tried("openvino", "2026.4", "cpu", "EPYC", "fp32", True)


@pytest.mark.parametrize(
    ("found", "expected", "message", "remedy"),
    [
        (FOUND, Result.OK, "2026.4 gives the same answers as the reference in fp32", ""),
        (msgspec.structs.replace(FOUND, speed=2.0, throughput=3.5), Result.OK, "2 times as fast for one frame", ""),
        (msgspec.structs.replace(FOUND, accepted=False), Result.WRONG, "wrong answers in fp32: why", "reinstall"),
        (
            msgspec.structs.replace(FOUND, accepted=False, runtime="tensorrt", device="cuda:0"),
            Result.WRONG,
            "wrong answers",
            "update the driver",
        ),
    ],
)
def test_judged_depends_on_the_comparison(found: Tried, expected: Result, message: str, remedy: str) -> None:
    check = self_check.judged(found, "why")
    assert check.result is expected
    assert check.subject == f"{found.runtime} on {found.device}"
    assert message in check.message
    assert remedy in check.remedy


@pytest.mark.parametrize(
    ("backend", "device", "error", "expected"),
    [
        ("openvino", "cpu", ChildLost("build child was killed by SIGILL", "crashed"), Result.WRONG),
        ("openvino", "cpu", Unsuitable("no"), Result.WRONG),
        ("onnxruntime", "cuda:0", Unsuitable("libcudnn.so.9 is missing"), Result.WRONG),
        ("openvino", "intel-gpu:0", BuildFailed("no"), Result.WRONG),
        # OpenVINO works on the CPU; only the part for Intel's GPUs lacks a driver of the system.
        ("openvino", "intel-gpu:0", Unsuitable("OpenVINO does not see it"), Result.WARNING),
    ],
)
def test_failed_is_wrong_unless_an_additional_device_lacks_a_driver(
    backend: str, device: str, error: EdgedError, expected: Result
) -> None:
    check = self_check.failed(backend, device, "1", error)
    assert (check.result, str(error) in check.message, bool(check.remedy)) == (expected, True, True)


def test_failed_after_a_timeout_asks_for_an_idle_box_and_not_for_another_installation() -> None:
    check = self_check.failed("openvino", "cpu", "1", ChildLost("make child took longer than 300 s", "late"))
    assert check.result is Result.WRONG
    assert "idle" in check.remedy
    assert "install" not in check.remedy


def test_unanswered_is_wrong_unless_it_was_only_loaded() -> None:
    loaded = unknown(Name.SELF_CHECK, "loads; no device", "tensorrt")
    hung = unknown(Name.SELF_CHECK, "it did not answer within 600 s", "openvino on cpu")
    rest = [ok(Name.SELF_CHECK, "fine", "reference"), warning(Name.SELF_CHECK, "no", "do", "openvino on intel-gpu:0")]
    found = self_check.unanswered([loaded, hung, *rest], [loaded])
    assert [check.result for check in found] == [Result.UNKNOWN, Result.WRONG, Result.OK, Result.WARNING]
    assert found[1].remedy
