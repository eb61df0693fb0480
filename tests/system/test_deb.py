"""The Debian package in real systems: install, upgrade and downgrade under load, remove, purge."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edged.store import sealed, state_format
from tests.integration.daemon import wait_for
from tests.system.arm64 import Unavailable as NoEmulator
from tests.system.arm64 import sysroot
from tests.system.arm64.__main__ import cache_folder
from tests.system.arm64.machine import Machine
from tests.system.packages import Unavailable, debs
from tests.system.packages.chroot import Chroot
from tests.system.systemd import Unavailable as NoSystemd
from tests.system.systemd.box import SHARED, Box
from tests.system.systemd.service import PYTHON, shared

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]
_CONFIG = "etc/edged/edged.toml"
_SELF_CHECK = ("edged", "self-check", "--quick")
_PROGRAMS, _CHECKS = debs.ROOT / "tests/system/packages", ("imports", "opencv_calls")
# What a package without extras does not have.
_EXTRAS = {"cuda", "nacl", "obstore", "onnxslim", "openvino", "supervision", "trackers"}
_EXTRAS |= {"onnxruntime_genai", "openvino_genai"}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The package for Debian 12, and the same package with a higher version."""
    out = tmp_path_factory.mktemp("packages")
    try:
        return [debs.build(out, "--python", "3.11", "--revision", str(number)) for number in (1, 2)]
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def debian(tmp_path: Path) -> Chroot:
    try:
        return Chroot("bookworm", tmp_path / "root")
    except Unavailable as error:
        pytest.skip(str(error))


def release(debian: Chroot) -> str:
    """Return the version that the command `edged` starts."""
    return Path(debian.root, "opt/edged/current").readlink().name.rpartition(".")[0]


def has_what_edged_uses(debian: Chroot) -> None:
    """Assert that the package's Python imports all that edged imports, and has OpenCV's functions that edged calls."""
    printed = {}
    for name in _CHECKS:
        shutil.copy(_PROGRAMS / f"{name}.py", debian.root / "root")
        done = debian.run("/opt/edged/current/bin/python3", f"/root/{name}.py")
        assert done.stderr == ""
        printed[name] = done.stdout.strip()
    assert set(printed["imports"].split()) <= _EXTRAS
    assert printed["opencv_calls"] == "all calls returned"


def test_build_twice_gives_equal_bytes(packages: list[Path], tmp_path: Path) -> None:
    again = debs.build(tmp_path, "--python", "3.11", "--revision", "1")
    assert again.read_bytes() == packages[0].read_bytes()


def test_install_upgrade_downgrade_remove_and_purge(debian: Chroot, packages: list[Path]) -> None:
    before = debian.files()
    old, new = packages
    debian.install(old)
    assert debian.run("edged", "--version").stdout.startswith("edged ")
    assert release(debian).endswith("-1")
    # Enabled, although systemd does not run here.
    assert (debian.root / "etc/systemd/system/multi-user.target.wants/edged.service").is_symlink()
    has_what_edged_uses(debian)
    assert debian.run("runuser", "-u", "edged", "--", "edged", "device", "--json").returncode in (0, 1)
    demo = debian.run("runuser", "-u", "edged", "--", "edged", "demo", "--seconds", "10", check=False)
    print(demo.stdout[-1500:])
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert debian.run("find", "/opt/edged", "-user", "edged").stdout == "", "the service cannot change its program"

    config = debian.root / _CONFIG
    config.write_text("stop_seconds = 3.0\n")
    models = debian.root / "var/lib/edged/models/doors"
    models.mkdir(parents=True)
    (models / "model.onnx").write_bytes(b"onnx")
    debian.install(new)
    assert release(debian).endswith("-2")
    assert len(list((debian.root / "opt/edged/releases").iterdir())) == 1
    assert config.read_text() == "stop_seconds = 3.0\n"

    sealed.write(debian.root / "var/lib/edged" / state_format.FILE, state_format.Mark(state_format.FORMAT + 1, "9.0"))
    refused = debian.install(old, check=False)
    assert refused.returncode != 0
    assert "written by edged 9.0" in refused.stdout + refused.stderr
    assert release(debian).endswith("-2"), "the installed release stays"
    (debian.root / "var/lib/edged" / state_format.FILE).unlink()
    debian.install(old)
    assert release(debian).endswith("-1")

    debian.run("apt-get", "remove", "-y", "edged")
    assert not (debian.root / "opt/edged").exists()
    assert (models / "model.onnx").exists()
    assert config.read_text() == "stop_seconds = 3.0\n"
    debian.run("apt-get", "purge", "-y", "edged")
    left = {name for name in debian.files() - before if not name.startswith("etc/")}
    assert left == set()
    assert not (debian.root / "etc/edged").exists()
    assert list((debian.root / "etc/systemd").rglob("*edged*")) == []
    for folder in ("var/lib/edged", "var/cache/edged", "run/edged"):
        assert not (debian.root / folder).exists()
    assert "edged" not in (debian.root / "etc/passwd").read_text() + (debian.root / "etc/group").read_text()


def test_debian_13_install_demo_and_purge(tmp_path: Path) -> None:
    try:
        debian = Chroot("trixie", tmp_path / "root")
        package = debs.build(tmp_path, "--python", "3.13")
    except Unavailable as error:
        pytest.skip(str(error))
    debian.install(package)
    has_what_edged_uses(debian)
    demo = debian.run("runuser", "-u", "edged", "--", "edged", "demo", "--seconds", "6", "--cameras", "1", check=False)
    assert demo.returncode == 0, demo.stdout + demo.stderr
    debian.run("apt-get", "purge", "-y", "edged")
    assert [name for name in debian.files() if "edged" in name] == []


def test_failed_self_check_keeps_the_old_release_serving(debian: Chroot, packages: list[Path], tmp_path: Path) -> None:
    debian.install(packages[0])
    launcher = '#!/bin/sh\necho "no runtime" >&2\nexit 1\n'
    broken = _changed(packages[1], tmp_path, "opt/edged/dist/bin/edged", lambda _: launcher)
    done = debian.install(broken, check=False)
    assert done.returncode != 0
    assert "no runtime" in done.stdout + done.stderr
    assert "continues to serve" in done.stdout + done.stderr
    assert release(debian).endswith("-1")
    assert debian.run("edged", "--version").stdout.startswith("edged ")
    debian.install(packages[0])
    assert "ok installed" in debian.run("dpkg-query", "-Wf", "${Status}", "edged").stdout


# Starts a daemon of the release $1, installs the package $2 while it runs and the package $3 afterwards. Prints the
# releases after each installation.
_RUNNING = """
runuser -u edged -- edged serve >/dev/null 2>&1 &
until grep -qsF "/releases/$1/" /proc/[0-9]*/cmdline; do sleep 0.1; done
for package in "$2" "$3"; do
    apt-get install -y --allow-downgrades "$package" >&2
    ls /opt/edged/releases
    for daemon in $(grep -lsF "/releases/$1/" /proc/[0-9]*/cmdline | cut -d/ -f3); do kill -KILL $daemon || true; done
done
"""


def test_release_of_a_running_daemon_stays_until_a_later_installation(debian: Chroot, packages: list[Path]) -> None:
    """systemd does not run here, so nothing restarts the daemon."""
    old, new = packages
    debian.install(old)
    shutil.copy(new, debian.root / "root")
    used = Path(debian.root, "opt/edged/current").readlink().name
    later = debian.run("sh", "-ec", _RUNNING, "run", used, f"/root/{new.name}", f"/root/{old.name}").stdout.split()
    assert len(later) == 3
    assert used in later[:2]
    assert used != later[2]


def _changed(package: Path, folder: Path, file: str, change: Callable[[str], str]) -> Path:
    """Return the package in which the text of a file is changed."""
    tree, changed = folder / "tree", folder / "changed" / package.name
    changed.parent.mkdir(parents=True)
    subprocess.run(["dpkg-deb", "-R", str(package), str(tree)], check=True)
    (tree / file).write_text(change((tree / file).read_text()))
    command = ["dpkg-deb", "--root-owner-group", "-Zzstd", "-z1", "--build", str(tree), str(changed)]
    subprocess.run(command, check=True, capture_output=True)
    return changed


# Calls DetectOne until a line arrives, with a new channel for every 50th call. Calls wait for the daemon.
_LOAD = """
import json, select, sys, time
import grpc
from edged.proto import cameras_pb2 as pb
failed, calls, gap, last = [], 0, 0.0, time.monotonic()
frame = pb.Frame(model="shapes", camera="gate", encoded=open(sys.argv[1], "rb").read())
while not select.select([sys.stdin], [], [], 0.01)[0]:
    if calls % 50 == 0:
        channel = grpc.insecure_channel("unix:/run/edged/edged.sock")
        ask = channel.unary_unary("/edged.v1.Cameras/DetectOne", pb.Frame.SerializeToString, pb.Result.FromString)
    calls += 1
    try:
        ask(frame, timeout=60, wait_for_ready=True)
        now = time.monotonic()
        gap, last = max(gap, now - last), now
    except grpc.RpcError as error:
        failed.append(error.code().name + " " + error.details())
print(json.dumps([failed, calls, gap]))
"""


@pytest.fixture
def box(packages: list[Path], tmp_path: Path) -> Iterator[Box]:
    try:
        with Box(shared(tmp_path) | {"packages": packages[0].parent}) as box:
            yield box
    except (Unavailable, NoSystemd) as error:
        pytest.skip(str(error))


def test_upgrade_and_downgrade_under_load_fail_no_call(box: Box, packages: list[Path]) -> None:
    inside = [str(SHARED / "packages" / package.name) for package in packages]
    # On a machine made from a container image, this file forbids packages to start services.
    box.run("rm", "-f", "/usr/sbin/policy-rc.d")
    box.run("dpkg", "-i", inside[0])
    assert box.show("edged.service", "ActiveState") == "active"
    assert box.show("edged.socket", "ActiveState") == "active"
    box.run("edged", "models", "add", "shapes", str(SHARED / "checkout/edged/shapes/shapes.onnx"))
    picture = str(SHARED / "checkout/docs/demo.jpg")

    def answers() -> bool:
        return box.run("edged", "infer", "shapes", picture, check=False).returncode == 0

    wait_for("shapes answers", answers, 90)
    wait_for("all engines are built", lambda: _settled(box), 300)
    made = _engines(box)
    environment = ("env", f"PYTHONPATH={SHARED}/checkout:{SHARED}/libraries", str(PYTHON), "-c", _LOAD, picture)
    peer, pids = box.start(*environment), []
    for package in (inside[1], inside[0]):
        pids.append(box.show("edged.service", "MainPID"))
        box.run("dpkg", "-i", package, seconds=300)
        wait_for(
            "shapes answers", lambda: box.run("edged", "infer", "shapes", picture, check=False).returncode == 0, 90
        )
    out, err = peer.communicate("end\n", timeout=90)
    assert out, err
    failed, calls, gap = json.loads(out)
    print(f"{calls} calls, failed: {failed}; longest gap {gap:.2f} s")
    assert box.show("edged.service", "MainPID") not in pids
    assert failed == []
    assert calls > 100
    assert made.items() <= _engines(box).items(), "engines are kept, not built again"
    box.run("dpkg", "--remove", "edged")
    assert box.show("edged.service", "ActiveState") == "inactive"
    box.run("find", "/var/cache/edged", "-mindepth", "1", "-delete")
    box.run("mount", "-t", "tmpfs", "tmpfs", "/var/cache/edged")
    box.run("dpkg", "-i", inside[0], seconds=300)
    assert box.show("edged.service", "ActiveState") == "active", "a removed package is installed as a new one"
    box.run("dpkg", "--purge", "edged")
    assert box.run("ls", "-A", "/var/cache/edged").stdout == ""
    box.run("umount", "/var/cache/edged")
    box.run("rmdir", "/var/cache/edged")
    for path in ("/opt/edged", "/var/lib/edged", "/var/cache/edged", "/run/edged", "/etc/edged"):
        assert box.run("test", "-e", path, check=False).returncode == 1, path


def test_postinst_killed_after_the_switch_loses_nothing(box: Box, packages: list[Path]) -> None:
    switch = '        switch_to "$new"\n'
    stop = switch + "        [ ! -e /run/stop-here ] || kill -9 $$\n"
    folder = packages[0].parent / "killed"
    killed = _changed(packages[1], folder, "DEBIAN/postinst", lambda text: text.replace(switch, stop))
    picture = str(SHARED / "checkout/docs/demo.jpg")
    box.run("rm", "-f", "/usr/sbin/policy-rc.d")
    box.run("dpkg", "-i", str(SHARED / "packages" / packages[0].name))
    box.run("edged", "models", "add", "shapes", str(SHARED / "checkout/edged/shapes/shapes.onnx"))

    def answers() -> bool:
        return box.run("edged", "infer", "shapes", picture, check=False).returncode == 0

    wait_for("shapes answers", answers, 90)
    wait_for("all engines are made", lambda: _settled(box), 300)
    made, pid = _engines(box), box.show("edged.service", "MainPID")
    box.run("touch", "/run/stop-here")
    done = box.run(
        "dpkg", "-i", str(SHARED / "packages" / killed.relative_to(packages[0].parent)), check=False, seconds=300
    )
    assert done.returncode != 0
    assert answers(), "the old daemon serves"
    assert box.show("edged.service", "MainPID") == pid
    box.run("rm", "/run/stop-here")
    box.run("dpkg", "--configure", "-a", seconds=300)
    assert "ok installed" in box.run("dpkg-query", "-Wf", "${Status}", "edged").stdout
    assert box.run("sh", "-c", "ls /opt/edged/releases | wc -l").stdout.strip() == "1"
    assert box.show("edged.service", "MainPID") not in ("0", pid)
    wait_for("shapes answers", answers, 90)
    assert made.items() <= _engines(box).items(), "engines are kept, not built again"


def test_service_that_does_not_start_goes_back_to_the_old_release(box: Box, packages: list[Path]) -> None:
    folder, launcher = packages[0].parent / "unable", "opt/edged/dist/bin/edged"
    refusal = '#!/bin/sh\n[ "$1" != serve ] || { echo "this release cannot start" >&2; exit 2; }\n'
    unable = _changed(packages[1], folder, launcher, lambda text: text.replace("#!/bin/sh\n", refusal))
    box.run("rm", "-f", "/usr/sbin/policy-rc.d")
    box.run("dpkg", "-i", str(SHARED / "packages" / packages[0].name))
    pid = box.show("edged.service", "MainPID")
    done = box.run(
        "dpkg", "-i", str(SHARED / "packages" / unable.relative_to(packages[0].parent)), check=False, seconds=300
    )
    assert done.returncode != 0
    assert "this release cannot start" in done.stdout + done.stderr
    assert "continues to serve" in done.stdout + done.stderr
    assert box.show("edged.service", "ActiveState") == "active"
    assert box.show("edged.service", "MainPID") != pid
    assert box.run("edged", "status").returncode == 0
    assert box.run("readlink", "/opt/edged/current").stdout.strip().rpartition(".")[0].endswith("-1")
    box.run("dpkg", "-i", str(SHARED / "packages" / packages[1].name), seconds=300)
    assert box.run("readlink", "/opt/edged/current").stdout.strip().rpartition(".")[0].endswith("-2")


def _engines(box: Box) -> dict[str, float]:
    listed = json.loads(box.run("edged", "engines", "list", "shapes", "--json").stdout)["engines"]
    return {engine["key"]: engine["created_unix_s"] for engine in listed if engine["state"] in ("serving", "ready")}


def _settled(box: Box) -> bool:
    listed = json.loads(box.run("edged", "engines", "list", "shapes", "--json").stdout)["engines"]
    return all(engine["state"] in ("serving", "ready", "rejected", "unsuitable") for engine in listed)


def test_arm64_package_runs_as_an_aarch64_program(tmp_path: Path) -> None:
    try:
        system = sysroot.prepare(cache_folder(), "bookworm", sysroot.mirror_of_this_machine())
        package = debs.build(tmp_path, "--arch", "arm64", "--python", system.python)
    except (Unavailable, NoEmulator) as error:
        pytest.skip(str(error))
    tree, output = tmp_path / "tree", tmp_path / "output"
    subprocess.run(["dpkg-deb", "-x", str(package), str(tree)], check=True)
    for library in (*tree.rglob("*.so"), *tree.rglob("*.so.*")):
        assert library.read_bytes()[18:20] == b"\xb7\x00", f"{library} is not for aarch64 (EM_AARCH64)"
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "QEMU_CPU": "cortex-a76"}
    copies = {"/work/edged": tree / "opt/edged/dist", "/work/programs": _PROGRAMS}
    machine = Machine(system.root, system.emulator, environment, copies=copies)
    state, programs = ("--state", "/tmp/state"), [("python3", f"/work/programs/{name}.py") for name in _CHECKS]
    for command, *words in (("edged", "--version"), ("edged", "models", "list", *state), _SELF_CHECK, *programs):
        with output.open("w") as file:
            status = machine.run([f"/work/edged/bin/{command}", *words], 600, file.fileno())
        text = output.read_text()
        print(text)
        assert status == 0, text
