"""When the pictures of a camera count as changed: statistics of drawn cameras over hours and days."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from edged.engines.drift_cameras import Past, Seen, after
from edged.shapes import Scene
from edged.vision.image import Image
from edged.vision.picture_statistics import STEPS, PictureStatistics, measure

Change = Callable[[Image], Image]
DAY, STEP = 86400.0, 600.0  # a check every ten minutes


def still(seed: int) -> Image:
    """Return a fixed view."""
    return Scene(seed, 96, 64, shapes=0).frame(0)[0]  # small, because tests look at thousands


def noisy(picture: Image, rng: np.random.Generator, strength: float = 6.0) -> Image:
    found: Image = np.clip(picture + rng.normal(0, strength, picture.shape), 0, 255).astype(np.uint8)
    return found


def lit(picture: Image, light: float) -> Image:
    found: Image = np.clip(picture * light, 0, 255).astype(np.uint8)
    return found


def inverted(picture: Image) -> Image:
    return np.bitwise_not(picture)


def upside_down(picture: Image) -> Image:
    return np.ascontiguousarray(picture[::-1, ::-1])


def covered(picture: Image) -> Image:
    return np.full_like(picture, 30)


def moved(picture: Image) -> Image:
    return still(41)


def night(picture: Image) -> Image:
    return lit(picture, 0.08)


CHANGES: dict[str, Change] = {
    "inverted": inverted,
    "upside down": upside_down,
    "covered": covered,
    "moved": moved,
    "night": night,
}


class Camera:
    """A camera that is checked every ten minutes, and what is known about it."""

    def __init__(self, learn_s: float = DAY) -> None:
        self.past, self.now, self.learn_s = Past(), 0.0, learn_s
        self.raised = 0  # how often the alarm was raised

    def check(self, picture: Image, objects: int = 0, score: float = 0.0, *, hour: int | None = None) -> None:
        self.now += STEP
        at = int(self.now // 3600) % 24 if hour is None else hour
        before = self.past.tally.is_raised
        seen = Seen(measure(picture), objects, score)
        self.past = after(self.past, seen, at if hour != -1 else None, STEP, self.now, self.learn_s)
        self.raised += self.past.tally.is_raised and not before


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("seed", [3, 8])
def test_changed_picture_raises_the_alarm_after_five_checks(name: str, seed: int) -> None:
    rng, camera, view = np.random.default_rng(1), Camera(learn_s=6 * 3600), still(seed)
    for _ in range(100):
        camera.check(noisy(view, rng), hour=12)
    assert camera.raised == 0
    for _ in range(5):
        assert not camera.past.problem
        camera.check(CHANGES[name](noisy(view, rng)), hour=12)
    assert camera.past.problem, camera.past
    for _ in range(3):
        camera.check(noisy(view, rng), hour=12)
    assert not camera.past.problem, "the picture is as before"


def test_unchanged_camera_with_noise_and_weather_has_no_alarm_in_a_month() -> None:
    rng, camera, view = np.random.default_rng(2), Camera(), still(3)
    for _ in range(int(30 * DAY / STEP)):
        camera.check(noisy(lit(view, float(rng.uniform(0.75, 1.25))), rng, 12.0))
    assert camera.raised == 0


def test_dusk_raises_no_alarm_on_any_day() -> None:
    """Day and night, the lamp of the camera that makes the picture grey, and a dusk that moves with season and
    weather."""
    rng, camera, view = np.random.default_rng(3), Camera(), still(8)
    grey = np.repeat(view.mean(axis=2, keepdims=True), 3, axis=2).astype(np.uint8)
    rows, columns = np.mgrid[: view.shape[0], : view.shape[1]]
    middle = np.exp(-(((rows - 32) / 28) ** 2 + ((columns - 48) / 38) ** 2))[:, :, None]
    for check in range(int(20 * DAY / STEP)):
        clock = camera.now % DAY / 3600
        dusk = 18 + check * STEP / DAY / 20 + rng.normal(0, 0.2)
        height = 1 / (1 + math.exp(-4 * (clock - 6))) * 1 / (1 + math.exp(4 * (clock - dusk)))
        picture = lit(view, float(0.15 + 0.85 * height)) if height > 0.2 else (grey * 0.5 * middle).astype(np.uint8)
        camera.check(noisy(picture, rng))
    assert camera.raised == 0


def test_night_at_noon_raises_the_alarm_although_nights_are_usual() -> None:
    rng, camera, view = np.random.default_rng(4), Camera(), still(3)
    while camera.now < 3 * DAY + 12 * 3600:
        is_day = 6 <= camera.now % DAY / 3600 < 18
        camera.check(noisy(view if is_day else night(view), rng))
    assert camera.raised == 0
    for _ in range(6):
        camera.check(noisy(night(view), rng))
    assert camera.past.problem


def test_camera_that_turns_all_the_time_is_not_judged_by_its_layout() -> None:
    rng, camera, views = np.random.default_rng(5), Camera(learn_s=3600), [still(seed) for seed in range(20, 28)]
    for _ in range(2000):
        camera.check(noisy(views[rng.integers(len(views))], rng), hour=12)
    assert camera.raised == 0


def test_lower_scores_raise_the_alarm() -> None:
    rng, camera, view = np.random.default_rng(6), Camera(learn_s=3600), still(3)
    for _ in range(50):
        camera.check(noisy(view, rng), 4, float(rng.normal(0.8, 0.02)), hour=12)
    for _ in range(5):
        camera.check(noisy(view, rng), 4, 0.45, hour=12)
    assert "scores differs by" in camera.past.problem


def test_new_view_that_lasts_becomes_usual() -> None:
    rng, camera, view = np.random.default_rng(7), Camera(learn_s=DAY), still(3)
    for turned in (view, upside_down(view)):
        began = camera.now
        while camera.now < began + 2 * DAY:
            camera.check(noisy(turned, rng))
    assert camera.raised == 1
    assert not camera.past.problem


def test_camera_without_a_clock_is_judged_by_all_its_pictures() -> None:
    rng, camera, view = np.random.default_rng(8), Camera(learn_s=3600), still(3)
    for count in range(60):
        camera.check(noisy(view if count % 2 else night(view), rng), hour=-1)
    for _ in range(5):
        camera.check(inverted(noisy(view, rng)), hour=-1)
    assert camera.raised == 1


def test_camera_is_not_judged_before_it_was_seen_long_enough() -> None:
    rng, camera, view = np.random.default_rng(9), Camera(), still(3)
    for count in range(100):
        camera.check(noisy(view, rng) if count < 50 else night(view), hour=12)
    assert camera.raised == 0


def test_measure_gives_light_contrast_colour_and_layout() -> None:
    picture = np.zeros((80, 120, 3), np.uint8)
    picture[:, 60:] = (200, 100, 50)
    found = measure(picture)
    assert isinstance(found, PictureStatistics)
    assert len(found.light) == STEPS
    assert sum(found.light) == pytest.approx(1, abs=1e-3)
    assert found.light[0] == pytest.approx(0.5, abs=0.01)
    assert found.colour == pytest.approx((50, -25), abs=1)
    assert found.layout[:6] == (0.0,) * 6
    assert found.brightness == pytest.approx(found.layout[-1] / 2, abs=1)
