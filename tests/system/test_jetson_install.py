"""jetson/install.sh against recorded boxes: what it would do on each, and which it refuses."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

EXTRAS = r"\[cuda\,media\,mqtt\,tracking\]"
HOUSE = Path(__file__).parents[2]
SCRIPT = HOUSE / "jetson" / "install.sh"
BOXES = HOUSE / "tests" / "fixtures" / "devices"
JETSONS = {
    "jetson-orin-nano": ("6 (L4T 36.4.3)", "3.10", "MAXN_SUPER of 0=15W 1=25W 2=MAXN_SUPER 3=7W"),
    "jetson-agx-orin-jp60": ("6 (L4T 36.3.0)", "3.10", "MODE_30W of 0=MAXN 1=MODE_15W 2=MODE_30W 3=MODE_50W"),
    "jetson-agx-orin-jp72": ("7 (L4T 39.2.0)", "3.12", "MAXN of 0=MAXN 1=MODE_15W 2=MODE_30W 3=MODE_50W"),
    "jetson-agx-thor-jp71": ("7 (L4T 38.4.0)", "3.12", "120W of 0=MAXN 1=120W 2=90W 3=70W"),
}
OTHERS = sorted(path.name for path in BOXES.iterdir() if path.is_dir() and path.name not in JETSONS)


def install(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT, *words], capture_output=True, text=True, timeout=30, check=False)


def plan(root: Path) -> tuple[list[str], str]:
    """The commands of a dry run, and everything that it printed."""
    done = install("--dry-run", "--root", str(root))
    assert (done.returncode, done.stderr) == (0, "")
    marked = "would run: "
    return [line.removeprefix(marked) for line in done.stdout.splitlines() if line.startswith(marked)], done.stdout


def refusal(root: Path) -> str:
    """The one line that a dry run is refused with."""
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
    units = "/etc/systemd/system"
    bindings = r"\>=12.9.1\,\<13" if jetpack.startswith("6") else r"\>=13"
    assert commands == [
        f"/usr/bin/python{python} -m venv --system-site-packages /opt/edged",
        r"/opt/edged/bin/python -m pip install --quiet --upgrade pip\>=25",
        f"/opt/edged/bin/python -m pip install --quiet {HOUSE}{EXTRAS} cuda-bindings{bindings}",
        r"/opt/edged/bin/python -m pip install --quiet --no-deps trackers\>=2.6\,\<3",
        "ln -sf /opt/edged/bin/edged /usr/local/bin/edged",
        f"install -D -m 0644 {HOUSE}/systemd/sysusers.d/edged.conf /usr/lib/sysusers.d/edged.conf",
        f"install -D -m 0644 {HOUSE}/systemd/tmpfiles.d/edged.conf /usr/lib/tmpfiles.d/edged.conf",
        "systemd-sysusers edged.conf",
        "systemd-tmpfiles --create edged.conf",
        f"install -D -m 0644 {HOUSE}/systemd/edged.service {units}/edged.service",
        f"install -D -m 0644 {HOUSE}/systemd/edged.socket {units}/edged.socket",
        f"install -D -m 0644 {HOUSE}/systemd/edged-operate.socket {units}/edged-operate.socket",
        f"install -D -m 0644 {HOUSE}/jetson/edged.service.d/jetson.conf {units}/edged.service.d/jetson.conf",
        "systemctl daemon-reload",
        "systemctl enable edged",
        "systemctl restart edged",
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
    assert len(commands) == 16
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
    assert commands[0] == "apt-get install -y --no-install-recommends python3-venv"
    assert "TensorRT is not installed, so the GPU stays unused: sudo apt install nvidia-jetpack" in output
    assert "power mode" not in output
    shutil.rmtree(box / "usr/lib/python3.12")
    assert "sudo apt install python3.12" in refusal(box)


def test_install_from_a_wheel(tmp_path: Path) -> None:
    wheel = tmp_path / "edged 1.whl"
    wheel.touch()
    done = install("--dry-run", "--root", str(BOXES / "jetson-orin-nano"), "--from", str(wheel))
    assert f"pip install --quiet {tmp_path}/edged\\ 1.whl\\[cuda\\,media" in done.stdout


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (["--bogus"], "unknown option --bogus"),
        (["--root"], "--root needs a directory"),
        (["--from"], "--from needs a wheel or a checkout"),
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
    # A path on which every command that installs something fails.
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
    assert done.stdout.startswith("Installs edged as a service on a Jetson")
    assert "set -euo" not in done.stdout


def test_jetson_unit_is_accepted_by_systemd(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here")
    unit = tmp_path / "edged.service"
    shutil.copy(HOUSE / "systemd" / "edged.service", unit)
    more = (HOUSE / "jetson/edged.service.d/jetson.conf").read_text().replace("/opt/edged/bin/edged", "/bin/true")
    (tmp_path / "edged.service.d").mkdir()
    (tmp_path / "edged.service.d" / "jetson.conf").write_text(more)
    # It returns 0 even where it does not know a key: only silence is assent.
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert [line for line in done.stderr.splitlines() if "edged" in line] == []


def test_scripts_pass_shellcheck() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run(["shellcheck", SCRIPT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
