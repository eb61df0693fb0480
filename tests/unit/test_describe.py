"""Rules that describe what cameras see: when a frame is due, which one, and rules whose model cannot be used."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from edged.config.tables import Describe
from edged.errors import ModelNotFound
from edged.ipc.messages import Times
from edged.language.describe import Describer, Watch
from edged.serving.taps import Tapped
from edged.serving.work import Answered, FrameWork
from edged.tasks import TaskGroup
from edged.vision.detections import Detections
from tests.fake_link import engine_ref
from tests.waiting import until

RULE = Describe(camera="gate", model="chat", seconds=2.0, every_seconds=60.0, score=0.5)


def frame(name: bytes, score: float = 0.9, camera: str = "gate") -> Tapped:
    found = Detections.of([[1, 1, 2, 2]], [score], [0]).pack()
    answer = Answered(engine_ref("key"), found, (), 4, 3, 0.0, Times())
    return Tapped("shapes", camera, name, "", 4, 3, 0, FrameWork(b""), answer)


def played(watch: Watch, scores: Sequence[float | None], start: float = 0.0, step: float = 0.5) -> list[bytes]:
    """Show frames with these scores, one each `step` seconds; return the frames to describe, by their numbers."""
    shown = (
        watch.see(frame(str(number).encode()), score, start + number * step) for number, score in enumerate(scores)
    )
    return [each.data for each in shown if each is not None]


@pytest.mark.parametrize(
    ("scores", "described"),
    [
        pytest.param([0.6, 0.7, 0.9, 0.8, 0.6, 0.6], [b"2"], id="the best frame, after two seconds"),
        pytest.param([0.6, 0.6, 0.6, 0.6], [], id="too short"),
        pytest.param([0.4] * 8, [], id="scores too low"),
        pytest.param([0.6, 0.0, 0.6, 0.0, 0.6], [b"0"], id="a short gap"),
        pytest.param([0.9, 0.6, 0, 0, 0, 0, 0.6, 0.6, 0.7, 0.6, 0.6], [b"8"], id="a long gap begins again"),
    ],
)
async def test_frame_is_described_if_a_class_is_seen_for_some_time(scores: list[float], described: list[bytes]) -> None:
    assert played(Watch(RULE), scores) == described


@pytest.mark.parametrize("step", [2.0, 5.0])
async def test_camera_with_few_frames_is_described(step: float) -> None:
    watch = Watch(RULE)
    assert played(watch, [None, 0.6, 0.7, 0.6], step=step) == [b"2"]
    assert played(watch, [0.6, None, 0.6, None, 0.6], 1000.0, step) == []
    assert played(watch, [0.6, 0.7], 2000.0, step) == [b"1"]


@pytest.mark.parametrize("times", [(0.0, 0.5, 3600.5, 7200.0), (0.0, 0.5, 50.5, 150.5)])
async def test_long_times_without_frames_are_no_usual_interval(times: tuple[float, ...]) -> None:
    watch = Watch(RULE)
    assert [at for at in times if watch.see(frame(b""), 0.6, at)] == []


async def test_time_without_frames_does_not_count() -> None:
    watch = Watch(RULE)
    assert played(watch, [0.6, 0.6]) == []
    assert played(watch, [0.6, 0.6, 0.6], start=10.0) == []
    assert played(Watch(RULE), [0.6, 0.6, 0.6], step=100.0) == []


async def test_frame_without_a_class_is_not_seen_even_if_every_score_counts() -> None:
    watch = Watch(msgspec.structs.replace(RULE, score=0.0))
    assert played(watch, [None] * 10) == []
    assert played(watch, [0.0] * 5, start=10.0) == [b"0"]


async def test_rule_waits_for_its_interval() -> None:
    watch = Watch(RULE)
    assert played(watch, [0.9] * 6)
    assert not watch.wants(10.0)
    assert played(watch, [0.9] * 20, start=20.0) == []
    assert watch.wants(61.0)
    assert not watch.wants(61.1)  # it was just looked at
    assert played(watch, [0.9] * 10, start=61.0) == [b"0"]


def make_describer() -> tuple[Describer, TaskGroup]:
    tasks = TaskGroup(lambda: None)

    def find(name: str) -> object:
        raise ModelNotFound(f"no language model {name!r}")

    return Describer(find, lambda what, model: None, tasks), tasks  # type: ignore[arg-type]  # it only raises


async def test_rule_without_its_model_is_a_trouble_until_it_is_removed() -> None:
    describer, _ = make_describer()
    describer.reconfigure({"gate": Describe(camera="gate", model="chat", seconds=0.0)})
    describer.take(frame(b"x", camera="hall"))
    describer.take(frame(b"x"))
    await until(lambda: bool(describer.problems))
    assert list(describer.troubles()) == [("gate", "rule describe.gate gives no description: no language model 'chat'")]
    describer.reconfigure({})
    assert not list(describer.troubles())


async def test_rule_that_is_removed_while_it_describes_leaves_no_trouble() -> None:
    describer, tasks = make_describer()
    describer.reconfigure({"gate": Describe(camera="gate", model="chat", seconds=0.0)})
    describer.take(frame(b"x"))  # its task has not run yet
    describer.reconfigure({})
    await asyncio.sleep(0)
    assert not describer.problems
    await tasks.stop()
    assert not list(describer.troubles())
