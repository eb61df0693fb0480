"""Which pictures int8 is calibrated on, and which are set aside to compare it with float32."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import cv2
import msgspec
import numpy as np
import pytest

from edged.backends.contract import INT8_ASYMMETRIC, Recipe
from edged.engines import child
from edged.engines.desired import complete
from edged.errors import Superseded, Unsuitable
from edged.ipc import job_messages as jobs
from edged.jobs import int8_pictures
from edged.jobs.inspect import inspect
from edged.models.collected import Collected
from edged.models.entries import plain_entry
from edged.models.model import Model
from edged.shapes import MODEL_PATH, Scene
from edged.store.record import Verdict
from edged.tensors import Array
from edged.verification import user_samples
from edged.verification.pictures import COUNT
from edged.verification.probes import Pictures
from edged.verification.standard import TOLERANCES, Tolerance, tolerance

INT8 = Recipe("onnxruntime", precision="int8")


def scenes(folder: Path, count: int) -> dict[str, str]:
    """Write small pictures; return paths with the digests of the files."""
    folder.mkdir()
    found = {}
    for number in range(count):
        path = folder / f"{number:04}.png"
        cv2.imwrite(str(path), Scene(number, 160, 120, shapes=3).frame(0)[0])
        found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def model(samples: Sequence[str] = (), collected: Collected | None = None) -> Model:
    entry = msgspec.structs.replace(plain_entry("m", MODEL_PATH, {}), samples=tuple(samples))
    return msgspec.structs.replace(Model.of(entry, inspect(MODEL_PATH)), collected=collected)


def job(of: Model, tolerance: Tolerance | None = TOLERANCES["int8"]) -> jobs.Build:
    recipe, problem = complete(INT8, of, {})
    assert problem == ""
    return jobs.Build(
        *(of.order(recipe), "out", of.recognition, of.samples),
        tolerance=tolerance,
        collected=user_samples.calibration_frames(of.collected),
    )


def planned(of: Model) -> tuple[list[bytes], list[bytes], list[str]]:
    """Return the inputs that a model is calibrated on, those set aside, and the notes."""
    notes: list[str] = []
    calibration, comparison = int8_pictures.plan(job(of), notes)
    assert comparison is not None

    def content(inputs: dict[str, Array]) -> bytes:
        return b"".join(array.tobytes() for array in inputs.values())

    return [content(inputs) for inputs in calibration], [content(each.inputs) for each in comparison.samples], notes


def prepared(of: Model, paths: Sequence[str]) -> set[bytes]:
    pictures = Pictures(of.inspection.signature, of.recognition)
    return {array.tobytes() for path in paths for array in pictures.sample(Path(path)).inputs.values()}


def test_plan_without_pictures_of_the_user_uses_three_sets_of_drawn_ones() -> None:
    of = model()
    used, aside, notes = planned(of)
    judged = {a.tobytes() for p in Pictures(of.inspection.signature, of.recognition).drawn() for a in p.inputs.values()}
    assert (len(used), len(aside), notes) == (COUNT, COUNT, [])
    assert len({*used, *aside, *judged}) == 3 * COUNT


def test_plan_sets_every_fourth_picture_of_the_user_aside(tmp_path: Path) -> None:
    of = model([*scenes(tmp_path / "samples", 18)])
    used, aside, _ = planned(of)
    calibrated = prepared(of, [*user_samples.calibration_pictures(of.samples).values()])
    assert (len(calibrated), len(used), len(aside)) == (9, 7 + COUNT, 2 + COUNT)
    assert len(calibrated & set(used)) == 7
    assert len(calibrated & set(aside)) == 2


def test_plan_with_collected_frames_uses_drawn_pictures_too_because_engines_are_verified_on_them(
    tmp_path: Path,
) -> None:
    frames = scenes(tmp_path / "frames", 12)
    judged = scenes(tmp_path / "judged", 1)
    of = model(collected=Collected("c0ffee", frames, judged))
    used, aside, notes = planned(of)
    assert {*used, *aside} > prepared(of, [*frames])
    assert (len(used), len(aside), notes) == (9 + COUNT, 3 + COUNT, [])
    with_own = model([*scenes(tmp_path / "own", 2)], Collected("c0ffee", frames, judged))
    assert set(planned(with_own)[0]) > prepared(with_own, with_own.samples)


def test_plan_frames_that_are_gone_are_left_out_and_without_any_it_is_unsuitable(tmp_path: Path) -> None:
    frames = scenes(tmp_path / "frames", 4)
    of = model(collected=Collected("c0ffee", frames))
    Path(next(iter(frames))).unlink()
    used, aside, notes = planned(of)
    assert len(used) + len(aside) == 3 + 2 * COUNT
    assert notes == ["1 of 4 collected frames are gone: their retention ended"]
    for path in list(frames)[1:]:
        Path(path).unlink()
    for gone in (of, model(collected=Collected("c0ffee"))):
        with pytest.raises(Unsuitable, match=r"edged samples collect"):
            int8_pictures.plan(job(gone), [])


def test_plan_frame_that_was_altered_is_superseded(tmp_path: Path) -> None:
    frames = scenes(tmp_path / "frames", 2)
    calibration, _ = int8_pictures.plan(job(model(collected=Collected("c0ffee", frames))), [])
    Path(next(iter(frames))).write_bytes(b"another")
    with pytest.raises(Superseded):
        list(calibration)


def test_calibration_digest_depends_on_the_collection_but_not_on_its_files(tmp_path: Path) -> None:
    frames = scenes(tmp_path / "frames", 2)
    names = [
        complete(INT8, model(collected=collected), {})[0].calibration
        for collected in (None, Collected("one", frames), Collected("one"), Collected("two", frames))
    ]
    assert names[1] == names[2], "engines stay valid when the retention of the frames ends"
    assert len(set(names)) == 3


@pytest.mark.parametrize(("count", "used"), [(0, 0), (1, 1), (128, 128), (129, 128), (1000, 128)])
def test_calibration_frames_are_bounded_and_spread_over_time_and_cameras(count: int, used: int) -> None:
    cameras = ("door", "gate")
    frames = {
        f"/frames/{number:05}-{cameras[number % 2]}.jpg": hashlib.sha256(str(number).encode()).hexdigest()
        for number in range(count)
    }
    found = user_samples.calibration_frames(Collected("id", frames, {"/judge.jpg": "0" * 64}))
    assert found is not None
    assert (len(found.calibrate), found.judge, found.id) == (used, {}, "id")
    assert list(found.calibrate) == sorted(found.calibrate)
    assert found.calibrate.items() <= frames.items()
    if count == 1000:
        places = [int(Path(path).name[:5]) for path in found.calibrate]
        assert np.diff(places).max() < 2 * count / used + 1
        shares = [sum(camera in path for path in found.calibrate) / used for camera in cameras]
        assert min(shares) > 0.3
    assert user_samples.calibration_frames(None) is None


def test_build_job_without_a_tolerance_has_no_comparison() -> None:
    assert int8_pictures.plan(job(model(), None), [])[1] is None


def test_comparison_on_frames_of_cameras_counts_what_is_decoded_from_them(tmp_path: Path) -> None:
    of = model(collected=Collected("c0ffee", scenes(tmp_path / "frames", 12)))
    held = tolerance(of.entry.settings | {"precisions": "int8"}, "int8", judged_on_frames=True)
    loose = msgspec.structs.replace(held, boxes=-1.0, box_score=2.0)  # of the golden answers
    _, comparison = int8_pictures.plan(job(of, loose), [])
    assert comparison is not None
    answers = {sample.inputs["images"].tobytes(): sample.outputs["output0"] for sample in comparison.samples}

    def outcome(seen: float, unseen: float) -> Verdict:
        """Compare with answers whose boxes are moved by these shares of the picture."""

        def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
            answer = answers[inputs["images"].tobytes()].copy()
            is_seen = answer[0, 4:].max(axis=0) > 0.05
            answer[0, :2] += 320 * np.where(is_seen, seen, unseen)
            return {"output0": answer}

        return comparison.of(run).verdict

    assert outcome(0, 0.2).accepted
    assert outcome(0, 0.2).figures["relative_l2"] > TOLERANCES["int8"].relative_l2
    assert re.search(r"recall 0 is below .* on 3 frames of cameras", outcome(0.5, 0).reason)


def test_child_of_a_build_may_read_the_frames_to_calibrate_on_only(tmp_path: Path) -> None:
    frames, judged = scenes(tmp_path / "frames", 2), scenes(tmp_path / "judged", 1)
    reach = child.reach_of(job(model(collected=Collected("id", frames, judged))), "")
    assert set(frames) <= set(reach.reads)
    assert not set(judged) & set(reach.reads)
    assert str(tmp_path / "frames") not in reach.reads


def test_with_margin_every_bound_is_stricter() -> None:
    tolerance = TOLERANCES["int8"]
    strict = int8_pictures.with_margin(tolerance)
    assert strict.relative_l2 == pytest.approx(0.12)
    assert strict.cosine == pytest.approx(0.988)
    assert strict.finite == 1.0
    for figure in ("boxes", "top1", "text"):
        assert getattr(strict, figure) > getattr(tolerance, figure)


def test_recipes_of_int8_have_keys_of_their_own() -> None:
    one, other = (msgspec.structs.replace(INT8, options=options) for options in ("", INT8_ASYMMETRIC))
    assert one.parts() != other.parts()
