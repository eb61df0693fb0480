"""`edged doctor` as a command: on a healthy box, and with problems of folders, runtimes and models."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import onnx
import pytest

import edged
from edged.doctor.check import Name, Result
from edged.shapes import MODEL_PATH
from edged.store.store import Store
from tests import models
from tests.integration.daemon import Daemon
from tests.unit.cuda_library import WHEEL_OF_ARM

pytestmark = pytest.mark.timeout(180)
DOCTOR = (sys.executable, "-m", "edged", "doctor", "--json")


class Seen(msgspec.Struct, forbid_unknown_fields=True):
    name: Name
    subject: str
    result: Result
    message: str
    remedy: str


class Printed(msgspec.Struct, forbid_unknown_fields=True):
    ok: bool
    checks: list[Seen]
    left_out: list[str]

    def of(self, name: Name, subject: str = "") -> list[Seen]:
        return [check for check in self.checks if check.name is name and subject in ("", check.subject)]

    def one(self, name: Name, subject: str = "") -> Seen:
        (check,) = self.of(name, subject)
        return check

    def wrong(self) -> set[str]:
        return {check.name.value for check in self.checks if check.result is Result.WRONG}


def doctor(*line: str | Path, within: Sequence[str] = (), environment: dict[str, str] | None = None) -> Printed:
    """Run the command, inside the command `within` if given; return its report. Checks that every entry has a message,
    and a remedy if one is needed."""
    done = subprocess.run(
        [*within, *DOCTOR, *map(str, line)],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        env=os.environ | (environment or {}),
    )
    assert done.stderr == ""
    found = msgspec.json.decode(done.stdout, type=Printed)
    assert done.returncode == (0 if found.ok else 1)
    for check in found.checks:
        assert check.message, check
        assert check.remedy or check.result in (Result.OK, Result.UNKNOWN), check
        assert "the check itself failed" not in check.message, check
    return found


def folders(home: Path) -> tuple[str | Path, ...]:
    return "--state", home / "state", "--cache", home / "cache"


def add(home: Path, name: str, proto: onnx.ModelProto) -> Path:
    return models.save(proto, home / "state" / "models" / f"{name}.onnx")


def namespace(*commands: str) -> tuple[str, ...]:
    """Return a command that runs a program in a mount namespace, after `commands`; skip the test if it cannot."""
    within = ("unshare", "-rm", "sh", "-c", " && ".join([*commands, 'exec "$@"']), "sh")
    if subprocess.run([*within, "true"], capture_output=True, check=False).returncode:
        pytest.skip("new namespaces are not permitted here")
    return within


# -- a healthy box --------------------------------------------------------------------------------------------------


def test_doctor_empty_box_is_ok(tmp_path: Path) -> None:
    found = doctor(*folders(tmp_path))
    assert (found.ok, found.wrong()) == (True, set())
    assert found.one(Name.RUNTIME, "onnxruntime").result is Result.OK
    assert found.one(Name.PROVIDER, "CPUExecutionProvider").result is Result.OK
    assert "opset up to " in found.one(Name.OPSET, "onnxruntime").message
    assert found.one(Name.DAEMON).result is Result.UNKNOWN
    assert [check.name for check in found.checks] == sorted((c.name for c in found.checks), key=list(Name).index)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_doctor_daemon_and_its_models(daemon: Daemon) -> None:
    found = doctor("-t", daemon.unix, "--state", daemon.state, "--cache", daemon.cache)
    for well in (Name.DAEMON_VERSION, Name.DAEMON_FACTS, Name.SOCKET, Name.HOSTS, Name.STATE_FOLDER):
        assert {check.result for check in found.of(well)} == {Result.OK}, well
    assert found.one(Name.DAEMON, daemon.unix).message.startswith("the daemon answers; ")
    assert "the daemon can open" in found.one(Name.DESCRIPTORS).message
    assert found.one(Name.MODEL, "shapes").result is Result.OK
    assert {check.result for check in found.of(Name.ENGINE, "shapes")} <= {Result.OK, Result.WARNING}
    # A model that cannot be served is wrong in the daemon's answer, in its alarm and in the check of its file.
    for name in ("truncated", "text", "unknown_operator", "lost_weights"):
        assert found.one(Name.MODEL, name).result is Result.WRONG
        assert found.one(Name.ADMISSION, name).result is Result.WRONG
    assert {"model", "admission", "alarm", "external_data"} >= found.wrong() >= {"model", "admission", "alarm"}
    assert any("shapes" in line and "--state" in line for line in found.left_out), "its file is in another folder"


# -- a box with problems --------------------------------------------------------------------------------------------


@pytest.mark.long
def test_doctor_small_folders_memory_and_descriptors(tmp_path: Path) -> None:
    for name in ("state", "cache"):
        (tmp_path / name).mkdir()
    within = namespace(
        "mount -t tmpfs -o size=1m tmpfs /dev/shm",
        f"mount --bind {tmp_path}/state {tmp_path}/state && mount -o remount,bind,ro {tmp_path}/state",
        f"mount -t tmpfs -o size=1m tmpfs {tmp_path}/cache",
        f"(dd if=/dev/zero of={tmp_path}/cache/filler bs=4k 2>/dev/null || true)",
        "ulimit -n 128",
    )
    found = doctor(*folders(tmp_path), within=within)
    assert found.wrong() == {"state_folder", "cache_folder", "disk_space", "shared_memory", "descriptors"}
    assert "Read-only file system" in found.one(Name.STATE_FOLDER).message
    assert "No space left" in found.one(Name.CACHE_FOLDER).message
    assert "the disk is full" in found.one(Name.DISK_SPACE).message
    assert found.one(Name.SHARED_MEMORY, "/dev/shm").message.startswith("a size of 1 MiB")
    assert "128 files" in found.one(Name.DESCRIPTORS).message


@pytest.mark.long
def test_doctor_missing_daemon_is_wrong_if_named(tmp_path: Path) -> None:
    named = doctor("-t", f"unix:{tmp_path}/edged.sock", *folders(tmp_path))
    assert named.wrong() == {"daemon"}
    by_environment = doctor(environment={"EDGED_TARGET": "localhost:9", "HOME": str(tmp_path)})
    assert "daemon" in by_environment.wrong()


@pytest.mark.long
@pytest.mark.parametrize(
    ("module", "error"),
    [
        ("raise ImportError('libgomp.so.1: cannot open shared object file')", "libgomp.so.1"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
    ],
    ids=["import error", "crash"],
)
def test_doctor_broken_runtime_and_hanging_package_are_reported(tmp_path: Path, module: str, error: str) -> None:
    (tmp_path / "onnxruntime.py").write_text(f"{module}\n")
    (tmp_path / "av.py").write_text("import time; time.sleep(1000)\n")
    found = doctor(*folders(tmp_path), "--seconds", "15", environment={"PYTHONPATH": str(tmp_path)})
    assert error in found.one(Name.RUNTIME, "onnxruntime").message
    assert found.one(Name.EXTRA, "media").result is Result.UNKNOWN
    assert "extra media: the time limit of all checks was reached" in found.left_out


# -- models with problems -------------------------------------------------------------------------------------------


@pytest.mark.long
def test_doctor_refused_model_and_stale_engine(tmp_path: Path) -> None:
    add(tmp_path, "new", models.identity(opset=99))
    path = add(tmp_path, "conv", models.conv())
    edged.load(path, cache=tmp_path / "cache", settings={"backends": "onnxruntime"}).close()
    of_another_box(Store(tmp_path / "cache"))
    found = doctor(*folders(tmp_path))
    assert {"admission", "model_opset"} >= found.wrong() >= {"admission"}
    assert found.one(Name.ADMISSION, "new").result is Result.WRONG
    assert found.one(Name.ADMISSION, "conv").result is Result.OK
    assert [check for check in found.of(Name.ENGINE, "conv") if " is stale" in check.message]
    assert doctor("conv", *folders(tmp_path)).ok
    assert not doctor("conv", *folders(tmp_path), "--strict").ok


def of_another_box(store: Store) -> None:
    """Change the processor in every engine's key, as if another box had built the engines."""
    for key, record in store.records().items():
        parts = record.parts | {"cpu.isa": "0" * 16}
        with store.stage() as out:
            for name in record.files:
                (out / name).write_bytes(store.artefact(key).load(name))
            store.commit(out, msgspec.structs.replace(record, parts=parts))
        store.remove(key)


@pytest.mark.long
def test_doctor_one_model_compares_levels(tmp_path: Path) -> None:
    add(tmp_path, "drifts", models.scaled_matmul())
    add(tmp_path, "other", models.conv())
    found = doctor("drifts", *folders(tmp_path))
    check = found.one(Name.LEVELS, "drifts")
    assert check.result is Result.WARNING
    assert check.message.startswith("from level extended, the optimiser changes the answers: finite ")
    assert found.of(Name.ADMISSION, "other") == []
    assert found.ok, "it is served nevertheless, at a lower level"


@pytest.mark.long
def test_doctor_model_by_its_file(tmp_path: Path) -> None:
    found = doctor(MODEL_PATH, *folders(tmp_path))
    assert found.one(Name.LEVELS).result is Result.OK
    assert found.one(Name.ADMISSION).result is Result.OK


def test_doctor_missing_model_is_a_usage_error(tmp_path: Path) -> None:
    line = [*DOCTOR, "missing", *map(str, folders(tmp_path))]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, json.loads(done.stdout)["code"]) == (2, "INVALID_REQUEST")
    assert "missing" in done.stderr


def test_doctor_recorded_orin_with_the_wheel_for_other_gpus_names_the_right_package(tmp_path: Path) -> None:
    recorded = Path(__file__).parents[1] / "fixtures" / "devices" / "jetson-orin-nano"
    shutil.copytree(recorded, tmp_path, dirs_exist_ok=True, symlinks=True)
    site = tmp_path / "opt/edged/lib/python3.10/site-packages"
    (site / "onnxruntime_gpu-1.31.1.dist-info").mkdir(parents=True)
    (site / "onnxruntime" / "capi").mkdir(parents=True)
    (site / "onnxruntime" / "capi" / "libonnxruntime_providers_cuda.so").write_bytes(WHEEL_OF_ARM)
    check = next(each for each in doctor("--root", tmp_path).of(Name.RUNTIME, "packages") if "has code" in each.message)
    assert check.result is Result.WARNING
    assert "sm_89 sm_90a sm_120a sm_121a" in check.message
    assert "compute capability 8.7" in check.message
    assert "onnxruntime" in check.remedy
    shown = subprocess.run(
        [sys.executable, "-m", "edged", "device", "--root", str(tmp_path), "--json"],
        capture_output=True,
        check=True,
    )
    facts = msgspec.json.decode(shown.stdout)["facts"]
    assert facts["runtime.onnxruntime_gpu_code"] == "sm_89 sm_90a sm_120a sm_121a"
