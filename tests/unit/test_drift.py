"""The monitor of live answers: whose frame is checked and when, what a check leaves behind, and when it alarms."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from edged.backends.contract import Recipe
from edged.config import Drift
from edged.config.child_limits import AdmissionLimits, Limits
from edged.engines.alarms import Alarm
from edged.engines.drift import DriftMonitor, Watched
from edged.engines.drift_answers import Tally
from edged.engines.drift_cameras import Past, Spread
from edged.engines.drift_files import DriftFiles, History
from edged.engines.engine import PlannedEngine
from edged.engines.plan import PlannedModel
from edged.errors import BuildFailed, InvalidImage, Superseded
from edged.events import EventLog, ModelRemoved
from edged.ipc import job_messages as jobs
from edged.ipc.messages import Times
from edged.models.model import Model
from edged.serving.taps import Tapped
from edged.serving.work import Answered, FrameWork
from edged.store.sealed import Background
from edged.tasks import TaskGroup
from edged.verification.served import Comparison
from edged.vision.picture_statistics import STEPS, PictureStatistics
from tests.unit.control_room import key_of, model, planned_model, serve
from tests.waiting import until

OFTEN = Drift(every_seconds=0.001, cpu_percent=100.0, learn_hours=1e-9)
RECIPE = Recipe("openvino")
LAYOUT = tuple(float(cell * 37 % 97) for cell in range(96))
PICTURE = PictureStatistics((1.0,) + (0.0,) * (STEPS - 1), 40.0, LAYOUT)
TURNED = msgspec.structs.replace(PICTURE, layout=LAYOUT[::-1], light=PICTURE.light[::-1])
GOOD = jobs.Shadowed(Comparison({"boxes": 1.0, "box_score": 0.0}, 3), PICTURE, 3, 0.8, 0.0)
BAD = msgspec.structs.replace(GOOD, comparison=Comparison({"boxes": 0.3, "box_score": 0.2}, 1, 0.2))


def detector(name: str = "m", content: str = "content") -> Model:
    found = model(name, content)
    return msgspec.structs.replace(found, recognition=msgspec.structs.replace(found.recognition, family="yolov5"))


class Box:
    """What the monitor asks about the box."""

    busy: float = 0.1


class Builds:
    busy: frozenset[str] = frozenset()


class World:
    """A monitor of models `m` and `n`, with a scripted child. `now` is the time of frames, in monotonic seconds."""

    def __init__(self, root: Path, settings: Drift = OFTEN) -> None:
        self.files, self.events, self.disk = DriftFiles(root / "drift"), EventLog(), Background()
        self.box, self.builds, self.tasks = Box(), Builds(), TaskGroup(lambda: None)
        self.models: dict[str, PlannedModel] = {}
        self.stored = ["m", "n"]
        self.answer: jobs.Shadowed | Exception = GOOD
        self.jobs: list[jobs.Shadow] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.now = asyncio.get_running_loop().time() + 1000.0
        for name in self.stored:
            self.put(name, detector(name))
        self.monitor = DriftMonitor(
            self.models,
            lambda: dict.fromkeys(self.stored),
            AdmissionLimits,
            self.files,
            self.box,
            self.builds,
            self.events,
            self.tasks,
            self.disk,
            self.run,
        )
        self.monitor.reconfigure(settings)

    def put(self, name: str, content: Model, edition: str = "") -> None:
        planned = self.models[name] = planned_model(name)
        planned.model = content
        key = key_of(content, RECIPE)
        planned.engines = {key.digest: PlannedEngine(key, RECIPE)}
        serve(planned, key.digest, edition=edition, backend="openvino")
        planned.serve(content)

    async def run(self, job: jobs.Shadow, limits: Limits) -> jobs.Shadowed:
        self.jobs.append(job)
        await self.gate.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        if job.keeps:
            Path(job.out, "picture.jpg").write_bytes(Path(job.picture).read_bytes())
            Path(job.out, "answers.json").write_bytes(b"{}")
        return self.answer

    async def opened(self) -> World:
        self.monitor.look()
        await until(lambda: set(self.monitor.watched) == set(self.models))
        return self

    def watched(self, name: str = "m") -> Watched:
        return self.monitor.watched[name]

    def offer(self, camera: str = "hall", name: str = "m") -> bool:
        """Send a frame of a camera, and its answer if the frame is wanted. Return whether it was."""
        self.now += 10.0
        if not self.monitor.wants(name, camera, self.now):
            return False
        self.give(camera, name)
        return True

    def give(self, camera: str = "hall", name: str = "m", data: bytes = b"jpeg") -> None:
        current = self.models[name].slot.current
        assert current is not None
        answer = Answered(current.engine, b"", (), 4, 3, 0.0, Times())
        self.monitor.take(Tapped(name, camera, data, "", 0, 0, 0, FrameWork(b""), answer))

    async def check(self, camera: str = "hall", times: int = 1) -> None:
        """Check frames of a camera one after the other."""
        for _ in range(times):
            before = self.watched().counts.total()
            await until(lambda: self.offer(camera))
            await self.idle()
            assert self.watched().counts.total() == before + 1

    async def idle(self) -> None:
        """Wait until no check runs."""
        await until(lambda: not self.monitor.checking)

    @property
    def alarms(self) -> list[Alarm]:
        return list(self.monitor.alarms())

    async def written(self) -> History:
        """Return the history on the disk, as a daemon that stops leaves it."""
        self.monitor.stop()
        assert await asyncio.to_thread(self.disk.flush, 10.0)
        return self.files.read("m")


# -- when -----------------------------------------------------------------------------------------------------------


async def test_off_by_default(tmp_path: Path) -> None:
    world = World(tmp_path, Drift())
    world.monitor.look()
    assert not world.monitor.watched
    assert not world.offer()
    assert world.monitor.report("m") is None


async def test_interval_of_one_model_replaces_the_general_one(tmp_path: Path) -> None:
    world = World(tmp_path, Drift(every_seconds=600.0, models={"n": 0.0}))
    world.monitor.look()
    await until(lambda: "m" in world.monitor.watched)
    assert "n" not in world.monitor.watched
    world.monitor.reconfigure(Drift(models={"n": 5.0}))
    world.monitor.look()
    await until(lambda: set(world.monitor.watched) == {"n"})


async def test_cameras_take_turns_and_a_camera_that_vanished_is_not_waited_for(tmp_path: Path) -> None:
    world = await World(tmp_path).opened()
    checked = []
    for _ in range(12):
        for camera in ("a", "b", "c"):
            if world.offer(camera):
                checked.append(camera)
                await world.idle()
    assert {camera: checked.count(camera) for camera in "abc"} == {"a": 12, "b": 12, "c": 12}
    world.now += 60.0
    assert world.offer("b"), "a and c have sent nothing for a minute"
    await world.idle()


async def test_frame_that_was_skipped_is_asked_for_again_later(tmp_path: Path) -> None:
    world = await World(tmp_path).opened()
    world.now += 10.0
    assert world.monitor.wants("m", "hall", world.now)
    assert not world.monitor.wants("m", "hall", world.now + 0.1), "its answer may still come"
    assert world.monitor.wants("m", "hall", world.now + 5.0)


async def test_only_one_check_runs_at_a_time_on_the_box(tmp_path: Path) -> None:
    world = await World(tmp_path).opened()
    world.gate.clear()
    assert world.offer("hall", "m")
    assert not world.offer("yard", "n")
    await until(lambda: bool(world.jobs))
    world.gate.set()
    await world.idle()
    assert world.offer("yard", "n")
    await world.idle()


def _build(world: World) -> None:
    world.builds.busy = frozenset({"cpu"})


def _load(world: World) -> None:
    world.box.busy = 0.97


@pytest.mark.parametrize(("hinder", "word"), [(_build, "built"), (_load, "busy")])
async def test_no_check_starts_while_engines_are_built_or_the_box_is_busy(
    tmp_path: Path, hinder: Callable[[World], None], word: str
) -> None:
    world = await World(tmp_path).opened()
    hinder(world)
    world.monitor.look()
    assert not world.offer()
    report = world.monitor.report("m")
    assert report is not None
    assert word in report.waiting
    world.builds.busy, world.box.busy = frozenset(), 0.1
    world.monitor.look()
    assert world.offer()
    await world.idle()


async def test_slow_reference_is_checked_less_often(tmp_path: Path) -> None:
    world = await World(tmp_path).opened()
    settings = Drift(every_seconds=60.0, cpu_percent=1.0)
    assert world.watched().interval(settings, "m") == 60.0
    world.answer = msgspec.structs.replace(GOOD, cpu_s=9.0)
    await world.check()
    assert world.watched().interval(settings, "m") == 900.0, "9 s of processor time are 1 % of 900 s"
    assert world.watched().cpu_s == 9.0


async def test_ids_of_cameras_take_bounded_memory(tmp_path: Path) -> None:
    world = await World(tmp_path).opened()
    for number in range(2000):
        world.monitor.wants("m", f"camera {number}", world.now)
    assert len(world.watched().seen) <= 256


# -- what a check leaves behind ---------------------------------------------------------------------------------------


async def test_job_has_the_served_answer_and_how_the_frame_was_asked(tmp_path: Path) -> None:
    world = await World(tmp_path).opened()
    await world.check()
    (job,) = world.jobs
    assert (job.detections, job.content, job.order.digest) == (b"", None, detector().digest)
    assert job.order.recipe.threads == 1
    assert not Path(job.picture).parent.exists(), "the copy of the frame is removed"


async def test_unchanged_answers_raise_nothing_and_keep_no_frame(tmp_path: Path) -> None:
    world = await World(tmp_path).opened()
    await world.check(times=30)
    assert not world.alarms
    assert await asyncio.to_thread(world.disk.flush, 10.0)
    assert world.files.read("m").answers.checks == 1, "a write in ten minutes spares flash memory"
    history = await world.written()
    assert history.answers.agreement == 1.0
    assert [path.name for path in (tmp_path / "drift" / "m").iterdir()] == ["history.json"]


async def test_differing_answers_raise_an_alarm_with_the_frame_until_they_agree_again(tmp_path: Path) -> None:
    world = await World(tmp_path).opened()
    await world.check(times=5)
    world.answer = BAD
    await world.check("hall", 3)
    (alarm,) = world.alarms
    current = world.models["m"].slot.current
    assert current is not None
    assert (alarm.kind.value, alarm.model, alarm.engine) == ("answers_drift", "m", current.engine.key)
    place = Path(world.watched().history.frame)
    assert str(place) in alarm.message
    assert sorted(path.name for path in place.iterdir()) == ["answers.json", "picture.jpg"]
    for path, mode in ((place.parents[1], 0o700), (place.parent, 0o700), (place, 0o700)):
        assert path.stat().st_mode & 0o777 == mode
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in place.iterdir())
    world.answer = GOOD
    await world.check(times=20)
    assert not world.alarms
    assert place.exists(), "people look at it later"


async def test_camera_whose_pictures_changed_raises_an_alarm_about_that_camera(tmp_path: Path) -> None:
    world = await World(tmp_path).opened()
    for _ in range(20):
        await world.check("hall")
        await world.check("yard")
    world.answer = msgspec.structs.replace(GOOD, picture=TURNED)
    await world.check("yard", 1)
    assert not world.alarms
    for _ in range(5):
        world.answer = GOOD
        await world.check("hall")
        world.answer = msgspec.structs.replace(GOOD, picture=TURNED)
        await world.check("yard")
    (alarm,) = world.alarms
    assert (alarm.model, alarm.engine, alarm.camera) == ("m", "", "yard")
    assert Path(world.watched().history.frames["yard"], "picture.jpg").read_bytes() == b"jpeg"
    world.answer = GOOD
    await world.check("yard", 4)
    assert not world.alarms


async def test_restart_keeps_history_and_alarm(tmp_path: Path) -> None:
    world = await World(tmp_path).opened()
    world.answer = BAD
    await world.check(times=4)
    before = world.watched().history
    assert await world.written() == before
    again = await World(tmp_path).opened()
    assert again.watched().history == before
    assert [alarm.message for alarm in again.alarms] == [alarm.message for alarm in world.alarms]


async def test_damaged_history_is_begun_again(tmp_path: Path) -> None:
    world = await World(tmp_path).opened()
    await world.check(times=2)
    await world.written()
    (tmp_path / "drift" / "m" / "history.json").write_text("{}")
    again = await World(tmp_path).opened()
    assert again.watched().history == History()


async def test_cameras_that_were_checked_last_are_remembered_if_the_clock_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edged.engines.drift_check._MOST_PASTS", 3)
    world = await World(tmp_path).opened()
    clock = itertools.count(10**9, -1)
    world.monitor._clock = lambda: float(next(clock))
    for number in range(6):
        await world.check(f"camera {number}")
    assert list(world.watched().history.cameras) == ["camera 3", "camera 4", "camera 5"]


async def test_alarm_names_no_frame_that_made_room_for_another(tmp_path: Path) -> None:
    world = await World(tmp_path).opened()
    names = [f"camera {number}" for number in range(5)]
    paths = {name: world.files.keep("m", name, evidence(tmp_path / "out"), 1, 30.0) for name in names[:4]}
    world.watched().history = msgspec.structs.replace(
        world.watched().history, frames=paths, cameras=dict.fromkeys(names, Past())
    )
    world.answer = BAD
    await world.check("camera 4", 4)
    history = world.watched().history
    assert Path(history.frame).is_dir()
    assert len(history.frames) == 3
    assert all(Path(path).is_dir() for path in history.frames.values())


@pytest.mark.parametrize("layout", [(1.0, 2.0), (0.0,) * 96])
async def test_history_with_other_numbers_is_begun_again(tmp_path: Path, layout: tuple[float, ...]) -> None:
    """Another version of edged may have kept more cells, or fewer."""
    world = await World(tmp_path).opened()
    await world.check(times=4)
    history = world.watched().history
    past = history.cameras["hall"]
    usual = {hour: msgspec.structs.replace(each, layout=layout, count=9) for hour, each in past.usual.items()}
    spreads = {"light": Spread(9, 1e300, 1e300)}
    tally = Tally(1.0, is_raised=True)
    past = msgspec.structs.replace(past, usual=usual, spreads=spreads, tally=tally, cause="of another version")
    world.watched().history = msgspec.structs.replace(history, cameras={"hall": past})
    assert "are unusual" in world.alarms[0].message
    await world.check()
    assert world.watched().history.last.outcome == "agreed"
    assert world.watched().history.answers.checks == 1


async def test_another_engine_begins_without_the_history_of_the_old_one(tmp_path: Path) -> None:
    world = await World(tmp_path).opened()
    world.answer = BAD
    await world.check(times=4)
    assert world.alarms
    world.put("m", detector(), edition="rebuilt")
    assert not world.alarms, "nothing is known about the new engine"
    world.answer = GOOD
    await world.check()
    history = world.watched().history
    assert history.answers.checks == 1
    assert history.cameras["hall"].usual, "the camera is still the same"


# -- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [InvalidImage("damaged"), BuildFailed("the child was killed"), OSError(28, "No space left on device")]
)
async def test_failed_check_is_counted_and_delays_the_next(tmp_path: Path, error: Exception) -> None:
    world = await World(tmp_path).opened()
    world.answer = error
    await world.check(times=3)
    report = world.monitor.report("m")
    assert report is not None
    assert (report.checks, report.failed, report.outcome) == (3, 3, "failed")
    assert report.reason
    assert world.watched().failures == 3
    assert not world.alarms
    world.answer = GOOD
    await world.check()
    assert world.watched().failures == 0


async def test_model_replaced_during_a_check_makes_it_void(tmp_path: Path) -> None:
    world = await World(tmp_path).opened()
    world.gate.clear()
    assert world.offer()
    await until(lambda: bool(world.jobs))
    world.put("m", detector(content="new"))
    world.answer = BAD
    world.gate.set()
    await world.idle()
    assert world.watched().counts.total() == 0
    await world.check()


async def test_superseded_check_has_no_outcome(tmp_path: Path) -> None:
    world = await World(tmp_path).opened()
    world.answer = Superseded("the file changed")
    assert world.offer()
    await world.idle()
    assert world.watched().counts.total() == 0


async def test_removed_model_leaves_nothing(tmp_path: Path) -> None:
    world = await World(tmp_path).opened()
    world.answer = BAD
    await world.check(times=4)
    del world.models["m"]
    world.stored.remove("m")
    world.events.emit(ModelRemoved(), "m")
    assert await asyncio.to_thread(world.disk.flush, 10.0)
    assert not (tmp_path / "drift" / "m").exists()
    assert not world.alarms


async def test_model_removed_during_a_check_leaves_nothing(tmp_path: Path) -> None:
    world = await World(tmp_path).opened()
    world.gate.clear()
    assert world.offer()
    await until(lambda: bool(world.jobs))
    del world.models["m"]
    world.stored.remove("m")
    world.events.emit(ModelRemoved(), "m")
    world.gate.set()
    await world.idle()
    assert await asyncio.to_thread(world.disk.flush, 10.0)
    assert not (tmp_path / "drift" / "m").exists()


async def test_full_disk_raises_the_alarm_without_a_frame(small_disk: Path, fill: Callable[[Path], Path]) -> None:
    world = await World(small_disk).opened()
    fill(small_disk)
    world.answer = BAD
    await world.check(times=3)
    (alarm,) = world.alarms
    assert world.watched().history.frame == ""
    assert "both answers" not in alarm.message


# -- files ------------------------------------------------------------------------------------------------------------


def evidence(folder: Path, size: int = 10) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "picture.jpg").write_bytes(bytes(size))
    return folder


def test_kept_frames_are_few_and_bounded_in_size(tmp_path: Path) -> None:
    files, found = DriftFiles(tmp_path / "drift"), evidence(tmp_path / "out")
    for number in range(7):
        assert files.keep("m", f"camera {number}", found, 1, 30.0)
    kept = [path.name for path in (tmp_path / "drift" / "m").iterdir()]
    assert len(kept) == 4
    evidence(found, 900 << 10)
    assert files.keep("m", "large", found, 1, 30.0)
    assert files.keep("m", "larger", found, 1, 30.0)
    sizes = [path.stat().st_size for path in (tmp_path / "drift" / "m").rglob("*.jpg")]
    assert sum(sizes) <= 1 << 20
    assert files.keep("m", "none", evidence(found, 2 << 20), 1, 30.0) == ""
    assert files.keep("m", "none", found, 0, 30.0) == ""


def test_links_of_a_child_are_not_followed(tmp_path: Path) -> None:
    files, found = DriftFiles(tmp_path / "drift"), evidence(tmp_path / "out")
    secret = tmp_path / "secret"
    secret.write_bytes(b"of another folder")
    (found / "answers.json").symlink_to(secret)
    place = Path(files.keep("m", "hall", found, 1, 30.0))
    assert [path.name for path in place.iterdir()] == ["picture.jpg"]


def test_folder_that_cannot_be_read_does_not_keep_old_frames_of_others(tmp_path: Path) -> None:
    files, found = DriftFiles(tmp_path / "drift"), evidence(tmp_path / "out")
    places = {files.keep(model, "hall", found, 1, 30.0) for model in ("a", "b", "c", "d")}
    (tmp_path / "drift" / "file").write_bytes(b"")
    (tmp_path / "drift" / "a2").write_bytes(b"")
    assert files.tidy(1, -1.0) == places


def test_old_frames_and_frames_of_removed_models_are_removed(tmp_path: Path) -> None:
    files, found = DriftFiles(tmp_path / "drift"), evidence(tmp_path / "out")
    place = files.keep("m", "../../hall", found, 1, 30.0)
    assert Path(place).parent == tmp_path / "drift" / "m"
    assert files.tidy(1, 30.0) == set()
    assert files.tidy(1, -1.0) == {place}
    assert not Path(place).exists()
    assert History(frame=place, frames={"hall": place}).without({place}) == History()
    assert files.keep("gone", "hall", found, 1, 30.0)
    files.sweep(["m"])
    assert [path.name for path in (tmp_path / "drift").iterdir()] == ["m"]
