"""jetson/install.sh against recorded boxes: its steps on each, and its refusals."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HOUSE = Path(__file__).parents[2]
SCRIPT = HOUSE / "jetson" / "install.sh"
BOXES = HOUSE / "tests" / "fixtures" / "devices"
JETSONS = {
    "jetson-orin-nano": ("6 (L4T 36.4.3)", "3.10", "MAXN_SUPER of 0=15W 1=25W 2=MAXN_SUPER 3=7W"),
    "jetson-agx-orin-jp60": ("6 (L4T 36.3.0)", "3.10", "MODE_30W of 0=MAXN 1=MODE_15W 2=MODE_30W 3=MODE_50W"),
    "jetson-agx-orin-jp72": ("7 (L4T 39.2.0)", "3.12", "MAXN of 0=MAXN 1=MODE_15W 2=MODE_30W 3=MODE_50W"),
    "jetson-agx-thor-jp71": ("7 (L4T 38.4.0)", "3.12", "120W of 0=MAXN 1=120W 2=90W 3=70W"),
}
_APT = "apt-get install -y --allow-downgrades --reinstall -o Dpkg::Options::=--force-confold"
OTHERS = sorted(path.name for path in BOXES.iterdir() if path.is_dir() and path.name not in JETSONS)


def install(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT, *words], capture_output=True, text=True, timeout=30, check=False)


def plan(root: Path) -> tuple[list[str], str]:
    """Return the commands of a dry run, and its whole output."""
    done = install("--dry-run", "--root", str(root))
    assert (done.returncode, done.stderr) == (0, "")
    marked = "would run: "
    return [line.removeprefix(marked) for line in done.stdout.splitlines() if line.startswith(marked)], done.stdout


def refusal(root: Path) -> str:
    """Return the one-line error of a refused dry run."""
    done = install("--dry-run", "--root", str(root))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("install.sh: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def copy(box: str, to: Path) -> Path:
    return Path(shutil.copytree(BOXES / box, to / box, symlinks=True))


def release(root: Path, line: str) -> Path:
    path = root / "etc" / "nv_tegra_release"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(line)
    return root


@pytest.mark.parametrize("box", JETSONS)
def test_install_steps_on_a_jetson(box: str) -> None:
    jetpack, python, modes = JETSONS[box]
    commands, output = plan(BOXES / box)
    extras = "jetson,media,mqtt,tracking"
    extras, dist = extras.replace(",", r"\,"), f"{HOUSE}/dist/jetson"
    assert commands == [
        f"rm -rf {dist}",
        f"make -C {HOUSE} deb ARCH=arm64 PY={python} EXTRAS={extras} PYTHON=/usr/bin/python{python} DIST={dist}",
        f"{_APT} {dist}/PACKAGE.deb",
    ]
    assert f": JetPack {jetpack}, Python {python}\n" in output
    assert f"power mode {modes}: " in output
    assert "TensorRT is not installed" not in output


@pytest.mark.parametrize("box", OTHERS)
def test_install_on_another_box_is_refused(box: str) -> None:
    assert "this is not a Jetson" in refusal(BOXES / box)


@pytest.mark.parametrize(
    "line",
    [
        "# R35 (release), REVISION: 4.1, GCID: 33958178, BOARD: t186ref, EABI: aarch64, DATE: Tue Aug  1 2023\n",
        "# R32 (release), REVISION: 7.1, GCID: 29818004, BOARD: t210ref, EABI: aarch64, DATE: Sat Feb 19 2022\n",
    ],
)
def test_jetpack_5_and_older_are_refused_by_name(tmp_path: Path, line: str) -> None:
    output = refusal(release(tmp_path, line))
    assert "is too old: JetPack 5 and older" in output
    assert "flash JetPack 6 or 7" in output


def test_unknown_release_continues_with_a_note_and_invalid_text_fails(tmp_path: Path) -> None:
    box = copy("jetson-agx-thor-jp71", tmp_path)
    commands, output = plan(release(box, "# R40 (release), REVISION: 1.0, GCID: 1\n"))
    assert "does not know L4T 40.1.0" in output
    assert len(commands) == 3
    (box / "etc/nv_tegra_release").unlink()
    dpkg = box / "var/lib/dpkg/status"
    dpkg.write_text("Package: nvidia-l4t-core\nStatus: install ok installed\nVersion: unknown\n")
    assert "unknown release of Jetson Linux" in refusal(box)


def test_jetpack_without_a_release_file_is_read_from_the_package(tmp_path: Path) -> None:
    box = copy("jetson-orin-nano", tmp_path)
    (box / "etc/nv_tegra_release").unlink()
    assert "JetPack 6 (L4T 36.4.3), Python 3.10" in plan(box)[1]


def test_missing_packages_are_installed_or_named(tmp_path: Path) -> None:
    box = copy("jetson-agx-orin-jp72", tmp_path)
    shutil.rmtree(box / "usr/lib/python3.12/ensurepip")
    shutil.rmtree(box / "usr/lib/python3.12/dist-packages")
    (box / "var/lib/nvpmodel/status").unlink()
    commands, output = plan(box)
    assert commands[0] == "apt-get install -y --no-install-recommends python3-venv make"
    assert "TensorRT is not installed, so the GPU stays unused: sudo apt install nvidia-jetpack" in output
    assert "power mode" not in output
    shutil.rmtree(box / "usr/lib/python3.12")
    assert "sudo apt install python3.12" in refusal(box)


def test_install_with_a_given_package_builds_nothing(tmp_path: Path) -> None:
    package = tmp_path / "edged 1.deb"
    package.touch()
    done = install("--dry-run", "--root", str(BOXES / "jetson-orin-nano"), "--deb", str(package))
    assert f"{_APT} {tmp_path}/edged\\ 1.deb\n" in done.stdout
    assert "make" not in done.stdout


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (["--bogus"], "unknown option --bogus"),
        (["--root"], "--root needs a directory"),
        (["--deb"], "--deb needs a package"),
        (["--deb", "/nowhere.deb"], "/nowhere.deb does not exist"),
        (["--root", str(BOXES / "jetson-orin-nano")], "--root is for --dry-run"),
    ],
)
def test_invalid_command_line_is_refused(words: list[str], output: str) -> None:
    done = install(*words)
    assert done.returncode == 2
    assert output in done.stderr


def test_dry_run_changes_nothing_without_root(tmp_path: Path) -> None:
    box = copy("jetson-orin-nano", tmp_path)
    before = sorted(path.relative_to(box) for path in box.rglob("*"))
    # Stand-ins that fail, for all commands that install something.
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("apt-get", "install", "ln", "groupadd", "systemctl", "pip"):
        (tools / name).write_text("#!/bin/sh\nexit 9\n")
        (tools / name).chmod(0o755)
    done = subprocess.run(
        [SCRIPT, "--dry-run", "--root", str(box)],
        env={"PATH": f"{tools}:/usr/bin:/bin"},
        capture_output=True,
        check=True,
    )
    assert done.stderr == b""
    assert sorted(path.relative_to(box) for path in box.rglob("*")) == before


def test_help_is_the_head_of_the_script() -> None:
    done = install("--help")
    assert done.returncode == 0
    assert done.stdout.startswith("Installs edged's Debian package on a Jetson")
    assert "set -euo" not in done.stdout


def test_scripts_pass_shellcheck() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run(["shellcheck", SCRIPT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
