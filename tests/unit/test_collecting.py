"""Collected frames: which ones are taken, what they are used for, which look alike, and how long they are kept."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from edged.models.collected import Collected, Collection, Frame, folder_of, id_of
from edged.serving.collecting import Clock, Pacer, dated, is_known, retained
from edged.shapes.scene import Scene
from edged.vision.likeness import NEAR, distance, likeness

HOUR, DAY = 3600.0, 86400.0
YEAR = 365 * DAY


def frame(offset_s: float = 0.0, camera: str = "door", hash_: int = 0, boot: str = "b", uptime_s: float = 0.0) -> Frame:
    return Frame(f"{offset_s}.jpg", camera, offset_s, 1e9 + uptime_s, boot, uptime_s, hash_, "0" * 64, 1000)


def collection(wanted: int = 100, over_s: float = 1000.0, cameras: tuple[str, ...] = ()) -> Collection:
    return Collection(cameras, wanted, over_s, 1e9)


def taken(
    pacer: Pacer, rates: dict[str, float], until: float, dropped: float = 0.0, have: float = 0.0
) -> list[tuple[float, str]]:
    """Play cameras with these frames per second; return when frames were taken, and from which camera. A share of the
    frames is dropped once it was examined."""
    found = list[tuple[float, str]]()
    frames = sorted((n / fps, name) for name, fps in rates.items() for n in range(int(until * fps)))
    for now, camera in frames:
        if pacer.wants(camera, now):
            found.append((now, camera))
            have += 1 - dropped
            pacer.plan(round(have))
    return found


# -- pacing ------------------------------------------------------------------------------------------------------------


def test_pacer_spreads_frames_over_time_and_cameras() -> None:
    found = taken(Pacer(collection(), 0.0), {"a": 10.0, "b": 10.0, "c": 2.0}, 1000.0)
    assert 95 <= len(found) <= 100
    quarters = Counter(int(now // 250) for now, _ in found)
    assert all(20 <= quarters[each] <= 30 for each in range(4))
    assert all(25 <= count <= 41 for count in Counter(camera for _, camera in found).values())


def test_pacer_takes_no_frame_that_would_not_be_used() -> None:
    spec = collection()
    pacer = Pacer(spec, 0.0)
    offsets = [pacer.offset(now) for now, _ in taken(pacer, {"a": 25.0}, 1000.0)]
    assert {spec.use_at(offset) for offset in offsets} == {"calibrate", "judge"}


def test_pacer_tries_more_often_if_frames_are_dropped_but_not_much() -> None:
    found = taken(Pacer(collection(), 0.0), {"a": 25.0}, 1000.0, dropped=0.9)
    assert 200 < len(found) <= 400
    assert min(b - a for (a, _), (b, _) in itertools.pairwise(found)) >= 2.5


def test_pacer_takes_only_the_cameras_that_are_asked_for() -> None:
    found = taken(Pacer(collection(cameras=("yard",)), 0.0), {"a": 10.0, "yard": 1.0}, 100.0)
    assert {camera for _, camera in found} == {"yard"}


def test_pacer_time_begins_with_the_first_frame() -> None:
    pacer = Pacer(collection(), 0.0)
    assert pacer.offset(5000.0) == 0
    assert not pacer.is_over(5000.0, 0)
    assert pacer.wants("a", 5000.0)
    assert pacer.offset(5000.0) < 10
    assert not pacer.is_over(5900.0, 1)
    assert pacer.is_over(6000.0, 1)


def test_pacer_continues_after_a_restart() -> None:
    spec = replace(collection(), frames=tuple(frame(10.0 * n) for n in range(50)), spent_s=500.0)
    pacer = Pacer(spec, 77.0)
    assert pacer.offset(77.0) == 500
    assert not pacer.wants("a", 77.0)
    assert len(taken(Pacer(spec, 0.0), {"a": 5.0}, 500.0, have=50)) in range(45, 52)


def test_pacer_that_rests_takes_nothing_until_then() -> None:
    pacer = Pacer(collection(), 0.0)
    pacer.rest(60.0)
    pacer.plan(0)
    assert not pacer.wants("a", 59.0)
    assert pacer.wants("a", 61.0)


def test_pacer_does_not_wait_for_cameras_that_are_gone() -> None:
    pacer = Pacer(collection(wanted=400), 0.0)
    many = {f"camera {n}": 0.02 for n in range(200)}  # each sends a frame at 0 and at 50 s
    before = taken(pacer, many, 60.0)
    assert before
    pacer.plan(len(before))
    after = [now for now in np.arange(61.0, 400.0, 0.1) if pacer.wants("alive", now)]
    assert len(after) > 100


# -- the split by time -----------------------------------------------------------------------------------------------


@given(st.floats(1.0, 30 * DAY), st.floats(0.0, 1.0))
def test_split_never_puts_neighbours_on_both_sides(over_s: float, share: float) -> None:
    spec = collection(over_s=over_s)
    offset = share * over_s
    use = spec.use_at(offset)
    near = [spec.use_at(max(0.0, offset + step * spec.block_s)) for step in (-0.09, -0.01, 0.01, 0.09)]
    if use != "gap":
        assert set(near) <= {use, "gap"}


def test_split_alternates_hours_of_a_day() -> None:
    spec = collection(over_s=DAY)
    assert [spec.use_at(hour * HOUR + 1800) for hour in range(4)] == ["calibrate", "judge", "calibrate", "judge"]
    assert spec.use_at(HOUR) == spec.use_at(HOUR - 60) == "gap"


@given(st.floats(0.0, 1000.0))
def test_after_gap_is_the_next_time_that_is_used(offset: float) -> None:
    spec = collection()
    after = spec.after_gap(offset)
    assert offset <= after <= offset + 0.11 * spec.block_s
    assert spec.use_at(after + 1e-6) != "gap"


def test_collected_frames_exist_only_for_a_finished_collection(tmp_path: Path) -> None:
    frames = tuple(frame(offset) for offset in (60.0, 180.0, 300.0, 125.0))  # blocks of 125 s; the last in a gap
    running = replace(collection(), frames=frames)
    assert Collected.of(tmp_path, running) is None
    made = Collected.of(tmp_path, replace(running, finished=True, id=id_of(frames)))
    assert made is not None
    assert set(made.calibrate) == {str(tmp_path / "60.0.jpg"), str(tmp_path / "300.0.jpg")}
    assert set(made.judge) == {str(tmp_path / "180.0.jpg")}
    assert len(made.id) == 12


@pytest.mark.parametrize("name", ["faces", "../../etc", "a/b", "ünïcode:2", "."])
def test_folder_of_a_model_is_below_the_state_directory(tmp_path: Path, name: str) -> None:
    folder = folder_of(tmp_path, name)
    assert folder.parent == tmp_path / "frames" or name == "."


# -- frames that look alike --------------------------------------------------------------------------------------------


def gray(picture: np.ndarray) -> np.ndarray:
    return np.asarray(cv2.cvtColor(picture, cv2.COLOR_BGR2GRAY))


def test_likeness_ignores_noise_of_a_camera() -> None:
    rng = np.random.default_rng(1)
    scene = cv2.resize(rng.uniform(30, 200, (6, 10)).astype(np.float32), (640, 360), interpolation=cv2.INTER_CUBIC)
    noisy = [np.clip(scene + rng.normal(0, 6, scene.shape), 0, 255).astype(np.uint8) for _ in range(5)]
    assert all(distance(likeness(noisy[0]), likeness(each)) <= NEAR for each in noisy)
    plain = [np.clip(rng.normal(100, 6, (360, 640)), 0, 255).astype(np.uint8) for _ in range(2)]
    assert distance(*map(likeness, plain)) <= NEAR


def test_likeness_tells_other_scenes_and_other_light() -> None:
    one, other = (gray(Scene(seed).frame(0)[0]) for seed in (1, 2))
    assert distance(likeness(one), likeness(other)) > NEAR
    night = (one * 0.3).astype(np.uint8)
    assert distance(likeness(one), likeness(night)) > NEAR


@pytest.mark.parametrize("shape", [(1, 1), (1, 500), (500, 1), (3, 7), (8, 8), (9, 1000)])
def test_likeness_of_any_size_has_64_bits(shape: tuple[int, int]) -> None:
    picture = np.random.default_rng(0).integers(0, 255, shape).astype(np.uint8)
    assert 0 <= likeness(picture) < 1 << 64
    assert likeness(picture) == likeness(picture.copy())


def test_frame_is_known_only_among_frames_of_its_camera() -> None:
    kept = [frame(hash_=0b1111, camera="door")]
    assert is_known(0b1110, "door", kept)
    assert not is_known(0b1100, "door", kept)
    assert not is_known(0b1111, "yard", kept)


# -- retention --------------------------------------------------------------------------------------------------------


def clock(boot: str = "b", uptime_s: float = 0.0, unix_s: float = 1e9) -> Clock:
    return Clock(uptime_s, boot, uptime_s, unix_s)


@pytest.mark.parametrize("jump", [-50 * YEAR, -DAY, 0.0, DAY, 50 * YEAR])
def test_retention_within_a_boot_does_not_depend_on_the_wall_clock(jump: float) -> None:
    frames = (frame(uptime_s=0.0), frame(uptime_s=5 * DAY))
    now = clock(uptime_s=11 * DAY, unix_s=1e9 + 11 * DAY + jump)
    kept = retained(frames, now, 10 * DAY)
    assert [each.uptime_s for each in kept] == [5 * DAY]
    assert abs(kept[0].taken_unix_s - (now.unix_s - 6 * DAY)) < 1  # its date follows the wall clock


def test_retention_counts_the_age_of_frames_of_an_earlier_boot() -> None:
    old, new = frame(boot="a", uptime_s=0.0), frame(boot="a", uptime_s=5 * DAY)
    now = clock("b", 60.0, 1e9 + 11 * DAY)
    (kept,) = retained((old, new), now, 10 * DAY)
    assert (kept.boot, kept.uptime_s) == ("b", 60.0 - 6 * DAY)
    later = clock("b", 60.0 + 5 * DAY, 0.0)  # from here on, the wall clock may jump
    assert not retained((kept,), later, 10 * DAY)


def test_retention_with_a_clock_that_was_set_back_keeps_frames_but_not_for_ever() -> None:
    made = frame(boot="a")
    early = clock("b", 60.0, 0.0)  # 1970: the clock of the box is not set yet
    assert retained((made,), early, DAY) == (made,)
    late = clock("b", 2 * HOUR, 0.0)
    (kept,) = retained((made,), late, DAY)
    assert (kept.boot, kept.uptime_s, kept.taken_unix_s) == ("b", 2 * HOUR, 0.0)
    assert not retained((kept,), clock("b", 2 * HOUR + DAY + 1, 0.0), DAY)


def test_dated_frame_of_this_boot_is_unchanged_while_the_clock_is_right() -> None:
    made = frame(uptime_s=100.0)
    assert dated(made, clock(uptime_s=500.0, unix_s=1e9 + 530)) is made
