"""The supervisor of camera processes: start, restart, reconfiguration, and the state that each camera reports."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from edged.cameras.camera_run import RunLimits
from edged.cameras.definitions import Definitions
from edged.cameras.supervisor import CameraSupervisor, camera_alarms
from edged.config.cameras import Camera
from edged.confinement import landlock
from edged.engines.alarms import AlarmKind
from edged.errors import AlreadyExists, InvalidInput, NotFound, NotReady, Refused
from edged.events import CameraMoved, EventLog, ZoneChanged
from edged.ipc.capture_messages import Report, State
from tests.waiting import children, descriptors, until

ROOT = Path(__file__).parents[2]
_FAKE = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import tests.fake_capture as fake; fake.main()"
LIMITS = RunLimits(
    silent=20.0,
    stop=10.0,
    pauses=(0.05,),
    command=(sys.executable, "-c", _FAKE),
)
CHECKED = msgspec.structs.replace(LIMITS, silent=5.0)  # looks for new files every 0.5 s
HURRIED = msgspec.structs.replace(LIMITS, silent=0.5, stop=0.1)


def camera(words: str, **more: object) -> Camera:
    return msgspec.convert({"source": words, "model": "m", **more}, Camera)


@asynccontextmanager
async def supervised(
    folder: Path, limits: RunLimits = LIMITS, **configured: Camera
) -> AsyncIterator[tuple[CameraSupervisor, EventLog]]:
    events = EventLog()
    supervisor = CameraSupervisor(Definitions(folder / "cameras", configured), events, folder / "events", limits)

    async def listen() -> str:
        return "unix:/run/edged/cameras.sock"

    await supervisor.start(listen)
    try:
        yield supervisor, events
    finally:
        await supervisor.stop()


async def reaches(supervisor: CameraSupervisor, name: str, state: State) -> Report:
    await until(lambda: supervisor.find(name).report.state is state)
    return supervisor.find(name).report


def moves(events: EventLog) -> Callable[[], list[str]]:
    seen: list[str] = []
    events.hearers.append(lambda event: seen.append(event.what.state) if isinstance(event.what, CameraMoved) else None)
    return lambda: seen


async def test_start_camera_reports_its_state_without_passwords(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with supervised(tmp_path, hall=camera("streaming"), yard=camera("lost")) as (supervisor, _):
        assert (await reaches(supervisor, "hall", State.STREAMING)).width == 640
        report = await reaches(supervisor, "yard", State.LOST)
        assert report.error == "rtsp://hall/ does not answer"
        assert "yard is lost" in caplog.text
        assert "secret" not in caplog.text
        (alarm,) = supervisor.alarms()
        assert (alarm.kind, alarm.camera) == (AlarmKind.CAMERA_LOST, "yard")


@pytest.mark.parametrize("kind", ["snapshots", "clips"])
async def test_start_camera_with_event_files_creates_their_folder(tmp_path: Path, kind: str) -> None:
    """Landlock lets the process write only to folders that exist when it starts."""
    hall, yard = camera("streaming", events={kind: True}), camera("streaming")
    async with supervised(tmp_path, hall=hall, yard=yard) as (supervisor, _):
        for name in ("hall", "yard"):
            await reaches(supervisor, name, State.STREAMING)
        assert os.listdir(tmp_path / "events") == ["hall"]


async def test_run_process_that_dies_is_restarted(tmp_path: Path) -> None:
    async with supervised(tmp_path, hall=camera("streaming die")) as (_, events):
        seen = moves(events)
        await until(lambda: seen().count("failed") >= 2)
        assert seen().count("streaming") >= 2


@pytest.fixture
def landlock_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "version", lambda: 1)


@pytest.mark.usefixtures("landlock_in_force")
async def test_run_lost_camera_whose_file_appears_is_started_again_and_stays_lost(tmp_path: Path) -> None:
    others = set(children())
    async with supervised(tmp_path, CHECKED, hall=camera("connecting lost")) as (supervisor, events):
        seen = moves(events)
        await reaches(supervisor, "hall", State.LOST)
        (first,) = set(children()) - others
        await asyncio.sleep(CHECKED.silent / 5)  # two checks
        assert first in children()
        (tmp_path / "events" / "hall").mkdir(parents=True)  # the process may write there
        await until(lambda: first not in children() and bool(set(children()) - others))
        await asyncio.sleep(1)
        assert supervisor.find("hall").report.state is State.LOST
        assert seen() == ["lost"]
        assert len(set(children()) - others) == 1


@pytest.mark.usefixtures("landlock_in_force")
async def test_run_streaming_camera_whose_output_fails_connects_again_if_a_file_appears(tmp_path: Path) -> None:
    async with supervised(tmp_path, CHECKED, hall=camera("unsent streaming")) as (supervisor, events):
        seen = moves(events)
        await reaches(supervisor, "hall", State.STREAMING)
        (tmp_path / "events" / "hall").mkdir(parents=True)
        await until(lambda: seen() == ["streaming", "connecting", "streaming"])


@pytest.mark.usefixtures("landlock_in_force")
async def test_run_recording_that_ended_is_not_played_again_if_a_file_appears(tmp_path: Path) -> None:
    others = set(children())
    async with supervised(tmp_path, CHECKED, hall=camera("unsent ended")) as (supervisor, _):
        await reaches(supervisor, "hall", State.ENDED)
        before = set(children()) - others
        (tmp_path / "events" / "hall").mkdir(parents=True)
        await asyncio.sleep(CHECKED.silent / 5)  # two checks
        assert set(children()) - others == before


@pytest.mark.parametrize(
    ("words", "limits"),
    [("streaming noise", LIMITS), ("streaming hang", HURRIED)],
)
async def test_run_process_that_misbehaves_is_restarted(tmp_path: Path, words: str, limits: RunLimits) -> None:
    async with supervised(tmp_path, limits, hall=camera(words)) as (_, events):
        seen = moves(events)
        await until(lambda: "failed" in seen())
        await until(lambda: "streaming" in seen()[seen().index("failed") :])


async def test_reconfigure_keeps_the_processes_of_unchanged_cameras(tmp_path: Path) -> None:
    hall, yard = camera("streaming"), camera("streaming")
    others = set(children())
    async with supervised(tmp_path, hall=hall, yard=yard) as (supervisor, _):
        await reaches(supervisor, "hall", State.STREAMING)
        await reaches(supervisor, "yard", State.STREAMING)
        before = set(children()) - others
        await supervisor.reconfigure({"hall": hall, "gate": camera("streaming")})
        await reaches(supervisor, "gate", State.STREAMING)
        assert set(supervisor.status()) == {"hall", "gate"}
        assert len(before & set(children())) == 1


async def test_add_camera_survives_a_restart_and_can_be_changed_and_removed(tmp_path: Path) -> None:
    async with supervised(tmp_path) as (supervisor, _):
        await supervisor.add("hall", {"source": "streaming", "model": "m"})
        await reaches(supervisor, "hall", State.STREAMING)
        with pytest.raises(AlreadyExists):
            await supervisor.add("hall", {"source": "streaming", "model": "m"})
    async with supervised(tmp_path) as (supervisor, _):
        await reaches(supervisor, "hall", State.STREAMING)
        await supervisor.change("hall", {"enabled": "false"})
        assert supervisor.find("hall").report.state is State.OFF
        await supervisor.remove("hall")
        assert not supervisor.status()
        with pytest.raises(NotFound):
            await supervisor.remove("hall")


async def test_remove_camera_whose_file_cannot_be_removed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    async with supervised(tmp_path) as (supervisor, _):
        await supervisor.add("hall", {"source": "streaming", "model": "m"})
        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", fail)
            with pytest.raises(Refused):
                await supervisor.remove("hall")
        await reaches(supervisor, "hall", State.STREAMING)


async def test_start_cancelled_camera_leaves_no_descriptor(tmp_path: Path) -> None:
    async with supervised(tmp_path) as (supervisor, _):
        await supervisor.add("hall", {"source": "streaming", "model": "m"})
        await supervisor.remove("hall")  # the loop's own descriptors are open now
        before = descriptors()
        for _ in range(5):
            await supervisor.add("hall", {"source": "streaming", "model": "m"})
            await supervisor.remove("hall")  # the process is about to start
        await until(lambda: descriptors() <= before)


async def test_change_camera_by_a_client_that_goes_away_is_completed(tmp_path: Path) -> None:
    others = set(children())
    async with supervised(tmp_path, msgspec.structs.replace(LIMITS, stop=0.5)) as (supervisor, _):
        await supervisor.add("hall", {"source": "streaming hang", "model": "m"})
        await reaches(supervisor, "hall", State.STREAMING)
        (old,) = set(children()) - others
        change = asyncio.create_task(supervisor.change("hall", {"source": "lost"}))
        await asyncio.sleep(0.1)  # the change waits for the end of the old process
        change.cancel()
        await asyncio.wait([change])
        assert change.cancelled()
        await reaches(supervisor, "hall", State.LOST)
        assert old not in children()


async def test_process_that_cannot_be_killed_does_not_block_other_cameras(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that waits in a driver ignores even SIGKILL."""
    others = set(children())
    async with supervised(tmp_path, msgspec.structs.replace(LIMITS, stop=0.2)) as (supervisor, _):
        await supervisor.add("hall", {"source": "streaming hang", "model": "m"})
        await reaches(supervisor, "hall", State.STREAMING)
        (stuck,) = set(children()) - others
        with monkeypatch.context() as patch:
            patch.setattr(os, "kill", lambda pid, number: None)
            await asyncio.wait_for(supervisor.remove("hall"), 20)
            await asyncio.wait_for(supervisor.add("yard", {"source": "streaming", "model": "m"}), 20)
            await reaches(supervisor, "yard", State.STREAMING)
        os.kill(stuck, signal.SIGKILL)
        await until(lambda: stuck not in children())


async def test_change_camera_of_the_configuration_file_is_refused(tmp_path: Path) -> None:
    async with supervised(tmp_path, hall=camera("streaming")) as (supervisor, _):
        for attempt in (supervisor.change("hall", {"max_fps": "5"}), supervisor.remove("hall")):
            with pytest.raises(InvalidInput):
                await attempt


@pytest.mark.parametrize(
    "settings",
    [
        {"source": "gst:filesrc location=/etc/shadow ! fakesink"},
        {"source": '"gst:filesrc location=/etc/shadow ! fakesink"'},
        {"source": "'gst:filesrc location=/etc/shadow ! fakesink'"},
        {"sinks.lines": "/tmp/x"},
        {"events.folder": "/tmp"},
        {"sinks.mqtt_password_file": "/etc/shadow"},
        {"sinks.zmq": "ipc:///tmp/x"},
    ],
    ids=lambda settings: next(iter(settings)),
)
async def test_add_settings_that_name_files_of_the_box_are_refused(tmp_path: Path, settings: dict[str, str]) -> None:
    async with supervised(tmp_path) as (supervisor, _):
        with pytest.raises(InvalidInput):
            await supervisor.add("hall", {"source": "streaming", "model": "m", **settings})
        assert not supervisor.status()
        await supervisor.add("hall", {"source": "streaming", "model": "m", "enabled": "false"})
        with pytest.raises(InvalidInput):
            await supervisor.change("hall", settings)


async def test_pictures_of_a_streaming_camera_arrive_and_others_raise(tmp_path: Path) -> None:
    async with supervised(tmp_path, hall=camera("streaming"), yard=camera("streaming", enabled=False)) as (
        supervisor,
        _,
    ):
        await reaches(supervisor, "hall", State.STREAMING)
        async with aclosing(supervisor.pictures("hall", 5.0, 320)) as pictures:
            first = await asyncio.wait_for(anext(pictures), 20)
            assert first.jpeg == b"5 320"
            async with aclosing(supervisor.pictures("hall", 2.0, 640)) as others:
                assert (await asyncio.wait_for(anext(others), 20)).jpeg in (b"5 320", b"5 640")
            async with aclosing(supervisor.pictures("hall", 2.0, 0)) as whole:
                async for picture in whole:
                    if picture.jpeg == b"5 0":  # the picture's own width, the largest
                        break
        with pytest.raises(NotReady):
            await anext(supervisor.pictures("yard", 5.0, 320))
        with pytest.raises(NotFound):
            await anext(supervisor.pictures("gate", 5.0, 320))


async def test_zone_that_becomes_occupied_emits_an_event(tmp_path: Path) -> None:
    seen: list[ZoneChanged] = []
    async with supervised(tmp_path) as (supervisor, events):
        events.hearers.append(lambda event: seen.append(event.what) if isinstance(event.what, ZoneChanged) else None)
        await supervisor.add("hall", {"source": "occupied", "model": "m"})
        await until(lambda: bool(seen))
    assert seen == [ZoneChanged("hall", "door", True, "door.jpg")]


async def test_process_is_told_if_its_camera_was_removed_but_not_if_it_ends_for_another_reason(tmp_path: Path) -> None:
    seen: list[str] = []
    async with supervised(tmp_path, hall=camera("streaming"), yard=camera("streaming")) as (supervisor, events):
        events.hearers.append(
            lambda event: seen.append(event.what.camera) if isinstance(event.what, ZoneChanged) else None
        )
        await supervisor.add("gate", {"source": "streaming", "model": "m"})
        for name in ("hall", "yard", "gate"):
            await reaches(supervisor, name, State.STREAMING)
        await supervisor.reconfigure({"hall": camera("streaming", max_fps=5), "yard": camera("x", enabled=False)})
        await reaches(supervisor, "hall", State.STREAMING)
        assert seen == []
        await supervisor.remove("gate")
        assert seen == ["gate"]
        await supervisor.reconfigure({"yard": camera("x", enabled=False)})
        assert seen == ["gate", "hall"]
        await supervisor.add("gate", {"source": "streaming", "model": "m"})
        await reaches(supervisor, "gate", State.STREAMING)
    assert seen == ["gate", "hall"]


def test_camera_alarms_of_a_dark_or_frozen_picture() -> None:
    hall = camera("x", dark_seconds=10, frozen_seconds=20)

    def kinds(report: Report) -> list[AlarmKind]:
        return [alarm.kind for alarm in camera_alarms("hall", hall, report)]

    assert kinds(Report(State.STREAMING, dark_s=9.0, frozen_s=19.0)) == []
    assert kinds(Report(State.STREAMING, dark_s=10.0, frozen_s=30.0)) == [AlarmKind.CAMERA_DARK]
    assert kinds(Report(State.STREAMING, frozen_s=20.0)) == [AlarmKind.CAMERA_FROZEN]
    assert kinds(Report(State.FAILED, dark_s=99.0)) == [AlarmKind.CAMERA_LOST]
