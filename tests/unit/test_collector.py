"""The collector: which frames it keeps on disk, its limits, what happens if the disk or a child fails, and restarts."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from edged.config import Collect, Config, Frames
from edged.daemon import locations
from edged.errors import BuildFailed, InvalidInput, NotFound, OutOfSpace, Overloaded, Refused
from edged.events import CollectionFinished, CollectionStarted
from edged.ipc import job_messages as jobs
from edged.ipc.messages import Times
from edged.models.collected import INDEX, Collected, Collection, Frame
from edged.serving.candidates import Pace
from edged.serving.collecting import Clock
from edged.serving.collector import Collector
from edged.serving.frame_files import FrameFiles
from edged.serving.taps import Tapped
from edged.serving.work import Answered, FrameWork
from edged.store import sealed
from tests.fake_link import engine_ref
from tests.waiting import until

DAY = 86400.0
BIG = 3 << 20


class Box:
    """A state directory, clocks that the test sets, and a collector with a child that the test plays: files that begin
    with `bad` cannot be decoded, and those with `crash` end the child."""

    def __init__(self, folder: Path, files: FrameFiles | None = None) -> None:
        self.now, self.sifted, self.events = Clock(1000.0, "boot", 1000.0, 1e9), list[int](), list[object]()
        self.changed: list[str] = []
        self.full_child = self.busy_box = False
        self.files = files or FrameFiles(folder / "frames")
        self.settings = Frames()
        self.collector = self.open()

    def open(self) -> Collector:
        made = Collector(
            self.files, self.sift, lambda what, model: self.events.append(what), lambda: self.now, Pace(5, 1)
        )
        made.kept.on_change = self.changed.append
        made.reconfigure(self.settings)
        return made

    async def sift(self, job: jobs.Sift) -> jobs.Sifted:
        self.sifted.append(len(job.candidates))
        contents = [(Path(job.out) / each.name).read_bytes() for each in job.candidates]
        if self.busy_box:
            raise Overloaded("the sift child cannot be started")
        if self.full_child:
            raise OutOfSpace("the disk is full")
        if any(each.startswith(b"fault") for each in contents):
            raise RuntimeError("a fault of the daemon")
        if any(each.startswith(b"crash") for each in contents):
            raise BuildFailed("the sift child was killed by SIGSEGV")
        for each, content in zip(job.candidates, contents, strict=True):
            if each.pixel_format:
                (Path(job.out) / f"{each.name}.jpg").write_bytes(b"jpeg of " + content)
        return jobs.Sifted(tuple(map(_sifted, contents)))

    def pass_time(self, seconds: float, jump: float = 0.0) -> None:
        now = self.now
        self.now = Clock(now.mono_s + seconds, now.boot, now.uptime_s + seconds, now.unix_s + seconds + jump)

    def reboot(self) -> None:
        """Start the clocks of a new boot; the wall clock goes on."""
        self.now = Clock(10.0, f"{self.now.boot}+", 10.0, self.now.unix_s + 60)

    def frame(self, data: bytes, camera: str = "door", model: str = "m", pixel_format: str = "") -> bool:
        """Let a camera send a frame that is answered; return whether the collector took it."""
        work = FrameWork(b"")
        work.received = self.now.mono_s
        if not self.collector.wants(model, camera, work.received):
            return False
        answer = Answered(engine_ref("key"), b"", (), 4, 3, 0.0, Times())
        self.collector.take(Tapped(model, camera, data, pixel_format, 4, 3, 0, work, answer))
        return True

    async def quiet(self, seconds: float = 0.0) -> None:
        """Pass time, and wait until the collector has examined all that it has."""
        self.pass_time(seconds)
        self.collector.reconfigure(self.settings)
        found = self.collector.kept.gatherings.values()
        await until(lambda: not any(each.waiting for each in found if not each.collection.finished))

    async def play(self, count: int, step: float, camera: str = "door", same: bool = False) -> int:
        """Let a camera send frames, `step` seconds apart; return how many were taken."""
        taken = 0
        for number in range(count):
            data = b"the same" if same else f"{camera} {self.now.mono_s} {number}".encode()
            taken += self.frame(data, camera)
            await asyncio.sleep(0)
            self.pass_time(step)
        return taken

    def kept(self, model: str = "m") -> tuple[Frame, ...]:
        return self.collector.kept.gatherings[model].collection.frames

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Collector]:
        task = asyncio.ensure_future(self.collector.run())
        try:
            yield self.collector
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _sifted(content: bytes) -> jobs.SiftedFrame:
    if content.startswith(b"bad"):
        return jobs.SiftedFrame(problem="the picture is damaged")
    return jobs.SiftedFrame(int.from_bytes(hashlib.sha256(content).digest()[:8], "big"), ".jpg")


def index(folder: Path, model: str = "m") -> Collection:
    return sealed.unseal((folder / "frames" / model / INDEX).read_bytes(), Collection)


async def test_collector_finishes_with_the_frames_that_were_asked_for(tmp_path: Path) -> None:
    box = Box(tmp_path)
    async with box.running() as collector:
        await collector.start("m", ["yard", "door"], 20, 200.0)
        for _ in range(400):
            for camera in ("door", "yard", "other"):
                box.frame(f"{camera} {box.now.mono_s}".encode(), camera)
            box.pass_time(0.5)
            await asyncio.sleep(0)
            if len(box.kept()) == 20:
                break
        await box.quiet(10)
        await until(lambda: collector.kept.collected("m") is not None)
    found = collector.kept.collected("m")
    assert found is not None
    assert len(box.kept()) == len(found.calibrate) + len(found.judge) == 20
    assert min(len(found.calibrate), len(found.judge)) >= 5
    assert {each.camera for each in box.kept()} == {"door", "yard"}
    assert all(hashlib.sha256(Path(path).read_bytes()).hexdigest() == digest for path, digest in found.judge.items())
    assert box.events == [CollectionStarted(20, 200.0), CollectionFinished(20)]
    assert box.changed == ["m"]
    assert len(box.sifted) < 20 / 2
    assert not list((tmp_path / "frames" / ".candidates").iterdir())


async def test_collector_files_can_be_read_by_this_user_only(tmp_path: Path) -> None:
    box = Box(tmp_path)
    before = os.umask(0)
    try:
        async with box.running() as collector:
            await collector.start("a/b:2", (), 5, 50.0)
            box.frame(b"one", model="a/b:2")
            await until(lambda: any((tmp_path / "frames" / ".candidates").glob("*/*")))
            waiting = [*(tmp_path / "frames").rglob("*")]
            assert all(not each.stat().st_mode & 0o077 for each in waiting)
            await box.quiet(10)
    finally:
        os.umask(before)
    found = [tmp_path / "frames", *(tmp_path / "frames").rglob("*")]
    assert len(box.kept("a/b:2")) == 1
    assert {stat.S_IMODE(each.stat().st_mode) for each in found if each.is_dir()} == {0o700}
    assert {stat.S_IMODE(each.stat().st_mode) for each in found if each.is_file()} == {0o600}
    assert tmp_path / "frames" in locations.private(Config(state=str(tmp_path)))


async def test_collector_drops_frames_that_look_the_same_and_tries_again(tmp_path: Path) -> None:
    box = Box(tmp_path)
    async with box.running() as collector:
        await collector.start("m", (), 10, 100.0)
        await box.play(150, 0.5, same=True)
        await box.quiet(10)
        (found,) = collector.kept.gatherings.values()
        assert len(box.kept()) == 1
        assert found.collection.duplicates >= 5
        assert await box.play(20, 0.5)
        await box.quiet(10)
        assert len(box.kept()) > 1


async def test_collector_finishes_in_time_if_all_frames_look_the_same(tmp_path: Path) -> None:
    box = Box(tmp_path)
    async with box.running() as collector:
        await collector.start("m", (), 20, 10.0)
        for _ in range(200):
            await box.play(1, 0.1, same=True)
            await asyncio.sleep(0.005)
            collector.reconfigure(box.settings)
        await until(lambda: collector.kept.collected("m") is not None)
        assert len(box.kept()) == 1


async def test_collector_counts_frames_that_cannot_be_used(tmp_path: Path) -> None:
    box = Box(tmp_path)
    async with box.running() as collector:
        await collector.start("m", (), 10, 100.0)
        for data in (b"bad", b"good", b"crash", b"fault", b"fine"):
            assert box.frame(data)
            await box.quiet(15)
        await box.quiet(10)
        (found,) = collector.kept.gatherings.values()
        assert (len(box.kept()), found.collection.unusable, found.collection.duplicates) == (2, 3, 0)


async def test_collector_frames_that_a_busy_box_cannot_examine_are_not_called_unusable(tmp_path: Path) -> None:
    box = Box(tmp_path)
    async with box.running() as collector:
        await collector.start("m", (), 4, 400.0)
        box.busy_box = True
        await box.play(20, 1.0)
        await box.quiet(40)
        found = collector.kept.gatherings["m"]
        assert (found.problem, found.collection.unusable) == ("the sift child cannot be started", 0)
        assert len(box.sifted) <= 5, "a batch is not halved"
        box.busy_box = False
        box.pass_time(70)
        await box.play(20, 10.0)
        await box.quiet(40)
        assert box.kept()
        assert found.problem == ""


async def test_collector_keeps_raw_pixels_as_jpeg(tmp_path: Path) -> None:
    box = Box(tmp_path)
    async with box.running() as collector:
        await collector.start("m", (), 10, 100.0)
        box.frame(b"pixels", pixel_format="bgr")
        await box.quiet(10)
    (frame,) = box.kept()
    assert (tmp_path / "frames" / "m" / frame.name).read_bytes() == b"jpeg of pixels"


async def test_collector_continues_after_a_restart(tmp_path: Path) -> None:
    box = Box(tmp_path)
    async with box.running() as collector:
        await collector.start("m", ("door",), 10, 100.0)
        await box.play(50, 1.0)
        await box.quiet(6)
        kept, spent = box.kept(), collector.kept.spent_s(collector.kept.gatherings["m"])
        assert 2 <= len(kept) < 10
    box.pass_time(9 * DAY)
    stray = tmp_path / "frames" / "m" / ".12.jpg.x.part"
    stray.write_bytes(b"half")
    (tmp_path / "frames" / ".candidates" / "old").mkdir()
    box.collector = box.open()
    assert not stray.exists()
    assert not (tmp_path / "frames" / ".candidates").exists()
    async with box.running() as collector:
        (found,) = collector.kept.gatherings.values()
        assert found.collection.frames == kept
        assert abs(collector.kept.spent_s(found) - spent) < 1
        await box.play(80, 1.0)
        await box.quiet(10)
        await until(lambda: collector.kept.collected("m") is not None)
    assert box.kept()[: len(kept)] == kept
    assert [each.offset_s for each in box.kept()] == sorted(each.offset_s for each in box.kept())


async def test_collector_that_is_stopped_finishes_with_what_it_has(tmp_path: Path) -> None:
    box = Box(tmp_path)
    async with box.running() as collector:
        await collector.start("m", (), 500, 5000.0)
        box.frame(b"one")
        collector.stop("m")
        await until(lambda: collector.kept.collected("m") is not None)
        assert len(box.kept()) == 1
        assert not box.frame(b"two")
        with pytest.raises(NotFound):
            collector.stop("m")
        with pytest.raises(Refused):
            await collector.start("m", (), 5, 50.0)
        await collector.start("n", (), 5, 50.0)
        collector.stop("n")
        await until(lambda: "n" not in collector.kept.gatherings)
    assert not (tmp_path / "frames" / "n").exists()


async def test_collector_remove_deletes_all_files_and_tells_it(tmp_path: Path) -> None:
    box = Box(tmp_path)
    async with box.running() as collector:
        for model in ("m", "m:2", "n"):
            await collector.start(model, (), 1, 10.0)
            box.frame(model.encode(), model=model)
        await box.quiet(10)
        await until(lambda: all(collector.kept.collected(model) is not None for model in ("m", "m:2", "n")))
        await collector.forget("m")
        assert list(collector.kept.gatherings) == ["n"]
        await collector.remove("n")
        assert not [each for each in (tmp_path / "frames").iterdir() if each.name != ".candidates"]
        with pytest.raises(NotFound):
            await collector.remove("n")
    assert sorted(box.changed) == ["m", "m", "m:2", "m:2", "n", "n"]


async def test_collector_frames_whose_removal_was_interrupted_are_removed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box, place = Box(tmp_path), tmp_path / "frames"
    async with box.running() as collector:
        await collector.start("m", (), 3, 30.0)
        await box.play(60, 1.0)
        await box.quiet(10)
        with monkeypatch.context() as patch:
            patch.setattr("shutil.rmtree", _killed)
            with pytest.raises(InvalidInput):
                await collector.remove("m")
        assert list(place.glob("**/*.jpg")), "nothing was removed yet"
        await collector.remove("m")
        assert not list(place.glob("**/*.jpg"))
        await collector.start("m", (), 3, 30.0)
        box.frame(b"one")
        await box.quiet(10)
        with monkeypatch.context() as patch:
            patch.setattr("shutil.rmtree", _killed)
            with pytest.raises(InvalidInput):
                await collector.remove("m")
    box.collector = box.open()
    assert not box.collector.kept.damaged
    assert not list(place.iterdir())


def _killed(place: Path, **options: bool) -> None:
    raise OSError(errno.EIO if place.exists() else errno.ENOENT, "interrupted")


async def test_collector_frames_that_are_removed_while_they_are_examined_are_not_kept(tmp_path: Path) -> None:
    box = Box(tmp_path)
    async with box.running() as collector:
        await collector.start("m", (), 10, 100.0)
        assert box.frame(b"one")
        await until(lambda: any((tmp_path / "frames" / ".candidates").glob("*/*")))
        await collector.remove("m")
        await box.quiet(10)
        await until(lambda: not any((tmp_path / "frames" / ".candidates").iterdir()))
    assert not (tmp_path / "frames" / "m").exists()


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["limit_mb", "model_mb"])
async def test_collector_budget_holds_and_collection_goes_on_when_it_grows(tmp_path: Path, key: str) -> None:
    box = Box(tmp_path)
    box.settings = replace(box.settings, **{key: 8})
    async with box.running() as collector:
        await collector.start("m", (), 200, 1000.0)
        for number in range(12):
            box.frame(bytes([number]) * BIG)
            await box.quiet(6)
        (found,) = collector.kept.gatherings.values()
        assert found.collection.bytes <= 8 << 20
        assert f"frames.{key}" in found.problem
        box.settings = Frames()
        await box.quiet(61)
        assert box.frame(b"fits again")
        await box.quiet(10)
        assert found.problem == ""
        assert box.kept()[-1].size == len(b"fits again")


@pytest.mark.parametrize("jump", [-20 * 365 * DAY, -3 * DAY, 0.0, 3 * DAY, 20 * 365 * DAY])
async def test_collector_retention_holds_when_the_clock_jumps(tmp_path: Path, jump: float) -> None:
    box = Box(tmp_path)
    box.settings = replace(box.settings, keep_days=10.0)
    async with box.running() as collector:
        await collector.start("m", (), 2, 20.0)
        await box.play(30, 1.0)
        await box.quiet(10)
        await until(lambda: collector.kept.collected("m") is not None)
        found = collector.kept.collected("m")
        assert found is not None
        paths = [*found.calibrate, *found.judge]
        box.pass_time(9 * DAY, jump)
        await box.quiet()
        assert len(box.kept()) == 2
        await box.quiet(1.1 * DAY)
        # Engines that were calibrated on them remain valid.
        await until(lambda: collector.kept.collected("m") == Collected(found.id))
        await until(lambda: not any(Path(path).exists() for path in paths))
    assert box.changed == ["m", "m"]


@pytest.mark.parametrize("configured", [False, True])
async def test_collector_begins_again_after_retention_and_keeps_the_id_until_the_end(
    tmp_path: Path, configured: bool
) -> None:
    box = Box(tmp_path)
    box.settings = replace(box.settings, keep_days=10.0)
    async with box.running() as collector:
        await collector.start("m", (), 2, 20.0)
        await box.play(30, 1.0)
        await box.quiet(10)
        await until(lambda: collector.kept.collected("m") is not None)
        first = collector.kept.gatherings["m"].collection.id
        if configured:
            box.settings = replace(box.settings, collect={"m": Collect(frames=2, over_hours=0.01)})
        await box.quiet(11 * DAY)
        await until(lambda: not box.kept())
        if configured:
            await box.quiet()
        else:
            await collector.start("m", (), 2, 20.0)
        await until(lambda: "m" in collector.kept.running)
        assert collector.kept.collected("m") == Collected(first)
    box.changed.clear()
    box.collector = box.open()
    async with box.running() as collector:
        assert collector.kept.collected("m") == Collected(first)
        await box.play(80, 1.0)
        await box.quiet(10)
        await until(lambda: "m" not in collector.kept.running)
        assert collector.kept.gatherings["m"].collection.id != first
        assert len(box.kept()) == 2
    assert box.changed == ["m"]


async def test_collector_that_is_stopped_without_frames_keeps_the_id_of_the_frames_before(tmp_path: Path) -> None:
    box = Box(tmp_path)
    box.settings = replace(box.settings, keep_days=10.0)
    async with box.running() as collector:
        await collector.start("m", (), 1, 10.0)
        box.frame(b"one")
        await box.quiet(10)
        await until(lambda: collector.kept.collected("m") is not None)
        found = collector.kept.gatherings["m"].collection
        await box.quiet(11 * DAY)
        await until(lambda: not box.kept())
        await collector.start("m", (), 1, 10.0)
        collector.stop("m")
        await until(lambda: "m" not in collector.kept.running)
        assert collector.kept.collected("m") == Collected(found.id)


async def test_collector_retention_goes_on_over_a_reboot(tmp_path: Path) -> None:
    box = Box(tmp_path)
    box.settings = replace(box.settings, keep_days=10.0)
    async with box.running() as collector:
        await collector.start("m", (), 1, 10.0)
        box.frame(b"one")
        await box.quiet(10)
        await until(lambda: collector.kept.collected("m") is not None)
    box.pass_time(9 * DAY)
    box.reboot()
    box.collector = box.open()
    async with box.running():
        await until(lambda: box.kept()[0].boot == box.now.boot)
        box.pass_time(1.1 * DAY, jump=-5 * DAY)
        await box.quiet()
        await until(lambda: not box.kept())


# -- failing disks, files and children --------------------------------------------------------------------------------


class FailingFiles(FrameFiles):
    """Files on a disk that becomes full at a chosen step."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.fails = ""

    def _require(self, step: str) -> None:
        if self.fails == step:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def save(self, model: str, collection: Collection) -> None:
        self._require("save")
        super().save(model, collection)

    def add_candidate(self, batch: Path, name: str, data: bytes, keep_free: int = 0) -> None:
        self._require("add")
        super().add_candidate(batch, name, data, keep_free)

    def adopt(self, *about: object) -> object:  # type: ignore[override]
        self._require("adopt")
        return super().adopt(*about)  # type: ignore[arg-type]


@pytest.mark.parametrize("step", ["add", "adopt", "save", "child"])
async def test_collector_full_disk_is_reported_and_leaves_nothing_half_written(tmp_path: Path, step: str) -> None:
    files = FailingFiles(tmp_path / "frames")
    box = Box(tmp_path, files)
    async with box.running() as collector:
        await collector.start("m", (), 100, 1000.0)
        box.frame(b"before")
        await box.quiet(15)
        files.fails, box.full_child = step, step == "child"
        assert box.frame(b"lost")
        await box.quiet(15)
        (found,) = collector.kept.gatherings.values()
        assert "full" in found.problem or "space" in found.problem
        on_disk = {each.name for each in (tmp_path / "frames" / "m").iterdir()}
        assert on_disk == {INDEX, box.kept()[0].name}
        assert index(tmp_path).frames == box.kept()
        assert not box.frame(b"too soon")
        files.fails, box.full_child = "", False
        await box.quiet(70)
        assert box.frame(b"after")
        await box.quiet(15)
        assert (len(box.kept()), found.problem) == (2, "")


async def test_collector_leaves_space_free_on_the_disk(tmp_path: Path) -> None:
    box = Box(tmp_path)
    async with box.running() as collector:
        collector.keep_free_mb = 1 << 40
        await collector.start("m", (), 100, 1000.0)
        box.frame(b"one")
        await box.quiet(15)
        (found,) = collector.kept.gatherings.values()
        assert found.problem
        assert not box.kept()


async def test_collector_on_a_disk_that_is_really_full(small_disk: Path, fill: Callable[[Path], Path]) -> None:
    box = Box(small_disk)
    async with box.running() as collector:
        await collector.start("m", (), 100, 1000.0)
        box.frame(b"before" * 1000)
        await box.quiet(15)
        filler = fill(small_disk)
        assert box.frame(b"lost" * 10_000)
        await box.quiet(15)
        (found,) = collector.kept.gatherings.values()
        assert found.problem
        filler.unlink()
        await box.quiet(70)
        assert box.frame(b"after" * 1000)
        await box.quiet(15)
        assert (len(box.kept()), found.problem) == (2, "")
    assert index(small_disk).frames == box.kept()


async def test_collector_damaged_index_is_reported_and_its_files_stay_until_removed(tmp_path: Path) -> None:
    box = Box(tmp_path)
    async with box.running() as collector:
        await collector.start("m", (), 1, 10.0)
        box.frame(b"one")
        await box.quiet(10)
        await until(lambda: collector.kept.collected("m") is not None)
    place = tmp_path / "frames" / "m" / INDEX
    place.write_bytes(place.read_bytes().replace(b"door", b"dxxr"))
    (tmp_path / "frames" / "n").mkdir()
    (tmp_path / "frames" / "n" / "frame.jpg").write_bytes(b"without an index")
    box.collector = box.open()
    async with box.running() as collector:
        assert collector.kept.collected("m") is None
        assert sorted(collector.kept.damaged) == ["m", "n"]
        assert len(list(place.parent.iterdir())) == 2
        with pytest.raises(Refused):
            await collector.start("m", (), 1, 10.0)
        await collector.remove("m")
        assert not place.parent.exists()
        await collector.start("m", (), 1, 10.0)


@pytest.mark.parametrize(
    "change", [{"wanted": 0}, {"wanted": 10**400}, {"over_s": 0.0}, {"over_s": 1e308}, {"spent_s": 1e308}]
)
def test_collector_index_with_impossible_numbers_is_damaged(tmp_path: Path, change: dict[str, float]) -> None:
    spec = {"cameras": [], "wanted": 5, "over_s": 10.0, "started_unix_s": 0.0, **change}
    made = msgspec.defstruct("Other", [(name, object) for name in spec], namespace={})
    sealed.write(tmp_path / "frames" / "m" / INDEX, made(**spec))
    box = Box(tmp_path)
    assert sorted(box.collector.kept.damaged) == ["m"]
    assert not box.collector.wants("m", "door", 1000.0)


def test_collector_begins_again_if_it_was_killed_before_the_first_index(tmp_path: Path) -> None:
    (tmp_path / "frames" / "m").mkdir(parents=True)
    (tmp_path / "frames" / "m" / f".{INDEX}.abc.part").write_bytes(b"half")
    box = Box(tmp_path)
    assert not box.collector.kept.damaged
    assert not (tmp_path / "frames" / "m").exists()


@pytest.mark.parametrize("name", ["lost+found", "%2E%2E", "a%0Ab", "%ff", os.fsdecode(b"\xff"), "file"])
def test_collector_ignores_what_is_no_folder_of_a_model(tmp_path: Path, name: str) -> None:
    place = tmp_path / "frames" / name
    place.mkdir(parents=True)
    if name == "file":
        place.rmdir()
        place.write_bytes(b"no folder")
    kept = Box(tmp_path).collector.kept
    assert not kept.damaged
    assert not kept.gatherings
    assert place.exists()


@pytest.mark.parametrize("model", [".", "..", ".candidates", "../other"])
async def test_collector_name_of_a_model_never_leads_out_of_its_folder(tmp_path: Path, model: str) -> None:
    other = tmp_path / "other" / "file"
    other.parent.mkdir()
    other.write_bytes(b"of the daemon")
    box = Box(tmp_path)
    async with box.running() as collector:
        await collector.start("m", (), 5, 10.0)
        await collector.start(model, (), 5, 10.0)
        await collector.remove(model)
    assert other.exists()
    assert index(tmp_path).wanted == 5


async def test_collector_frames_whose_files_are_missing_are_left_out(tmp_path: Path) -> None:
    box = Box(tmp_path)
    async with box.running() as collector:
        await collector.start("m", (), 2, 20.0)
        await box.play(30, 1.0)
        await box.quiet(10)
        await until(lambda: collector.kept.collected("m") is not None)
    first, second = box.kept()
    (tmp_path / "frames" / "m" / first.name).unlink()
    box.collector = box.open()
    assert box.kept() == (second,)


# -- the configuration ------------------------------------------------------------------------------------------------


async def test_collector_collects_what_the_configuration_says(tmp_path: Path) -> None:
    box = Box(tmp_path)
    box.settings = Frames(collect={"m": Collect(frames=5, over_hours=0.01)})
    async with box.running() as collector:
        await box.quiet()
        await until(lambda: "m" in collector.kept.gatherings)
        await box.play(10, 1.0)
        await box.quiet(10)
        box.settings = Frames(collect={"m": Collect(cameras=("yard",), frames=7, over_hours=0.02)})
        await box.quiet()
        await until(lambda: collector.kept.gatherings["m"].collection.wanted == 7)
        with pytest.raises(Refused):  # it waits for the end of the turn
            await collector.start("m", (), 1, 1.0)
        assert box.kept()
        assert not box.frame(b"door")
        box.settings = Frames()
        await box.quiet()
        await until(lambda: collector.kept.collected("m") is not None)
        box.settings = Frames(collect={"m": Collect()})
        await box.quiet()
        assert collector.kept.collected("m") is not None  # the model has frames already
        await collector.remove("m")
        await until(lambda: "m" in collector.kept.gatherings)
        assert not box.kept()


async def test_collector_tells_once_that_a_collection_of_the_configuration_cannot_begin(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "frames").write_bytes(b"no folder")
    box = Box(tmp_path)
    box.settings = Frames(collect={"m": Collect()})
    async with box.running():
        for _ in range(3):
            await box.quiet(1)
            await asyncio.sleep(0.01)
    assert caplog.text.count("frames of model m cannot be collected") == 1


async def test_collector_of_no_model_wants_nothing(tmp_path: Path) -> None:
    box = Box(tmp_path)
    async with box.running():
        assert not box.frame(b"one")
    assert not (tmp_path / "frames").exists()


@pytest.mark.parametrize("camera", ["../../etc/passwd", "a/b", "ünïcode ☃", ".", "x" * 200])
async def test_collector_names_of_cameras_are_no_names_of_files(tmp_path: Path, camera: str) -> None:
    box = Box(tmp_path)
    async with box.running() as collector:
        await collector.start("m", (camera,), 5, 50.0)
        assert box.frame(b"one", camera)
        await box.quiet(10)
    (frame,) = box.kept()
    assert frame.camera == camera
    assert {each.name for each in (tmp_path / "frames" / "m").iterdir()} == {INDEX, frame.name}


async def test_collector_with_ten_thousand_cameras_stays_fast_and_fair(tmp_path: Path) -> None:
    box = Box(tmp_path)
    async with box.running() as collector:
        await collector.start("m", (), 50, 50.0)
        taken = set()
        for number in range(10_000):
            if box.frame(f"{number}".encode(), f"camera {number}"):
                taken.add(number)
            box.pass_time(0.01)
            await asyncio.sleep(0)
        await box.quiet(10)
    assert 45 <= len(box.kept()) <= 50
    assert len({each.camera for each in box.kept()}) == len(box.kept())
