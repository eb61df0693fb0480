"""A daemon with a full, broken, read-only or missing disk: it starts, serves, and reports the problem."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from edged.errors import OutOfSpace, Refused
from tests.integration import onnx_files
from tests.integration.daemon import Daemon, wait_for
from tests.programs import edged
from tests.system import disks
from tests.system.torture_state import look

pytestmark = pytest.mark.timeout(400)
_STATE = "state_unwritable"


@pytest.fixture
def prepare(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """A function that makes a daemon, not yet started. It has one model, builds one engine besides the reference, and
    may fill the disk."""
    made = []
    (tmp_path / "config.toml").write_text("[engines]\nkeep_free_mb = 0\n")

    def one(**environment: str) -> Daemon:
        daemon = Daemon("--config", str(tmp_path / "config.toml"), environment={**os.environ, **environment})
        made.append(daemon)
        (daemon.models / "m" / "1").mkdir(parents=True)
        onnx_files.convolutions(daemon.models / "m" / "1" / "model.onnx", 6)
        (daemon.models / "m" / "edged.toml").write_text('backends = "onnxruntime"\n')
        return daemon

    yield one
    for daemon in made:
        shutil.rmtree(daemon.home, ignore_errors=True)


@pytest.fixture
def home(prepare: Callable[..., Daemon]) -> Daemon:
    return prepare()


def states(daemon: Daemon) -> dict[str, str]:
    """Return the states of both engines by their optimisation."""
    with daemon.client() as client:
        return {e.parts["recipe.optimization"]: e.state for e in client.engines("m")}


def wrong(daemon: Daemon) -> list[str]:
    """Return the messages of the daemon's alarms."""
    with daemon.client() as client:
        return [alarm.message for alarm in client.status().alarms]


def answers(daemon: Daemon) -> None:
    with daemon.client() as client:
        result = client.infer("m", np.zeros((64, 64, 3), np.uint8))
    assert result.error is None
    assert [outputs.shape for outputs in result.outputs.values()] == [(1, 8, 64, 64)]


def all_made(daemon: Daemon) -> bool:
    return sorted(states(daemon).values()) == ["ready", "serving"]


def unfinished(daemon: Daemon) -> list[list[int]]:
    """Return the counts that each start logged about the store: engines, damaged ones, strays."""
    lines = [line for line in daemon.log.read_text().splitlines() if " store: " in line]
    return [[int(word) for word in line.split(" store: ")[1].split() if word.isdigit()] for line in lines]


@pytest.mark.long
def test_daemon_killed_during_a_build_cleans_up_and_builds_again(home: Daemon) -> None:
    with home as daemon:
        for _ in range(2):
            wait_for("a build runs", lambda: list((home.cache / "staging").glob("*/engine")))
            daemon.kill()
            daemon.start()
            daemon.ready("m")
            answers(daemon)
        wait_for("all engines are built", lambda: all_made(daemon), 120)
        assert wrong(daemon) == []
        daemon.stop()
        reported = unfinished(home)
        look(home.cache)
    assert len(reported) == 3
    assert all(damaged == 0 for _, damaged, _ in reported)
    assert all(strays == 1 for _, _, strays in reported[1:])


@pytest.mark.long
@pytest.mark.parametrize("keep_free_mb", [0, 20])
def test_daemon_with_too_little_space_serves_and_builds_once_there_is_more(
    home: Daemon, tmp_path: Path, keep_free_mb: int
) -> None:
    (tmp_path / "config.toml").write_text(f"[engines]\nkeep_free_mb = {keep_free_mb}\n")
    with disks.tmpfs(home.cache, 24):
        filler = disks.fill(home.cache)
        with home as daemon:
            daemon.ready("m")
            answers(daemon)
            (message,) = wait_for("an alarm", lambda: wrong(daemon))
            assert message.startswith(f"builds stopped: {home.cache} has 0 MiB free")
            answers(daemon)
            assert not keep_free_mb or states(daemon) == {"none": "serving", "all": "absent"}
            filler.unlink()
            wait_for("all engines are built", lambda: all_made(daemon), 120)
            answers(daemon)
            assert wrong(daemon) == []
            daemon.stop()
            look(home.cache)


@pytest.mark.long
def test_serve_with_no_free_inodes_alarms_and_builds_once_there_are_some(home: Daemon) -> None:
    home.cache.mkdir(exist_ok=True)
    with disks.tmpfs(home.cache, 24, "nr_inodes=300"):
        fillers = []
        with contextlib.suppress(OSError):
            for number in range(300):
                fillers.append(home.cache / f"filler-{number}")
                fillers[-1].touch()
        with home as daemon:
            daemon.ready("m")
            answers(daemon)
            (message,) = wait_for("an alarm", lambda: wrong(daemon))
            assert "inodes" in message
            assert states(daemon)["all"] not in ("failed", "quarantined")
            for filler in fillers:
                filler.unlink(missing_ok=True)
            wait_for("all engines are built", lambda: all_made(daemon), 120)
            assert wrong(daemon) == []
            daemon.stop()


@pytest.mark.long
def test_daemon_on_a_read_only_disk_serves_stored_engines_and_no_altered_one(home: Daemon) -> None:
    with home as daemon:
        wait_for("all engines are built", lambda: all_made(daemon), 120)
        daemon.stop()
        with disks.read_only(home.cache):
            daemon.start()
            daemon.ready("m")
            answers(daemon)
            expected = f"builds stopped: {home.cache}/engines is on a read-only file system"
            assert [message.partition(";")[0] for message in wrong(daemon)] == [expected]
            assert all_made(daemon)
            daemon.stop()
        blobs = list((home.cache / "engines").glob("*/[!r]*"))
        for blob in blobs:
            with blob.open("r+b") as file:
                file.seek(blob.stat().st_size // 2)
                byte = file.read(1)
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte[0] ^ 0x10]))
        with disks.read_only(home.cache):
            daemon.start()
            daemon.ready("m")
            answers(daemon)
            assert states(daemon)["none"] == "serving"
            daemon.stop()
        daemon.start()
        wait_for("all engines are built", lambda: all_made(daemon), 120)
        assert wrong(daemon) == []
        if states(daemon)["all"] == "serving":  # otherwise the daemon may not have opened it
            assert "does not match its record" in daemon.log.read_text()
        daemon.stop()


def test_start_with_read_only_state_and_cache_serves_stored_engines_and_alarms(home: Daemon, tmp_path: Path) -> None:
    extra = onnx_files.scale(tmp_path / "extra.onnx", 2)
    with home as daemon:
        daemon.ready("m")
        daemon.stop()
        with disks.read_only(home.state), disks.read_only(home.cache):
            daemon.start()
            daemon.ready("m")
            answers(daemon)
            with daemon.client() as client:
                wait_for("alarms", lambda: {a.kind for a in client.status().alarms} >= {_STATE, "builds_paused"})
                with pytest.raises(OutOfSpace):
                    client.add_model("extra", extra)
                with pytest.raises(Refused):
                    client.remove_model("m")
            answers(daemon)
            assert daemon.stop() == 0
        daemon.start()
        daemon.ready("m")
        with daemon.client() as client:
            assert _STATE not in {alarm.kind for alarm in client.status().alarms}


def test_start_with_an_unwritable_runtime_folder_reports_it_in_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with disks.read_only(folder):
        words = ["serve", "--state", f"{tmp_path}/s", "--cache", f"{tmp_path}/c", "--listen", f"unix:{folder}/s"]
        ended = edged(*words)
    assert ended.returncode != 0
    (line,) = [line for line in ended.stderr.splitlines() if "cannot listen" in line]
    assert "Read-only file system" in line


def test_daemon_without_a_cache_folder_serves_the_reference(home: Daemon) -> None:
    (home.home / "file").write_text("not a folder")
    home.cache = home.home / "file" / "cache"
    with home as daemon:
        daemon.ready("m")
        answers(daemon)
        (message,) = wait_for("an alarm", lambda: wrong(daemon))
        assert message.startswith(f"builds stopped: {home.cache}/engines cannot be used: Not a directory")
        assert message in daemon.log.read_text()
        daemon.stop()


@pytest.mark.long
def test_daemon_with_a_failing_disk_serves_and_builds_once_it_works_again(
    prepare: Callable[..., Daemon], tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    (disk / "failing").touch()
    daemon = prepare(LD_PRELOAD=disks.library("failing_disk", tmp_path), FAILING_DISK=str(disk))
    daemon.cache = disk / "cache"
    with daemon:
        daemon.ready("m")
        answers(daemon)
        wait_for("a build fails", lambda: "Input/output error" in daemon.log.read_text())
        assert not list((daemon.cache / "engines").iterdir())
        (disk / "failing").unlink()
        wait_for("all engines are built", lambda: all_made(daemon), 120)
        answers(daemon)
        daemon.stop()
        look(daemon.cache)
