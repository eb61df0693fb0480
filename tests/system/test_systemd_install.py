"""`make install` into a folder that stands in for a box, and `make uninstall`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from edged.config import Config, load
from tests.system.systemd.service import PYTHON
from tests.system.systemd.wheel import CHECKOUT, make_wheel

FILES = {
    "usr/lib/systemd/system/edged.service",
    "usr/lib/systemd/system/edged.socket",
    "usr/lib/systemd/system/edged-operate.socket",
    "usr/lib/systemd/system/edged-refresh.service",
    "usr/lib/systemd/system/edged-refresh.path",
    "usr/lib/sysusers.d/edged.conf",
    "usr/lib/tmpfiles.d/edged.conf",
    "etc/edged/edged.toml",
    "usr/bin/edged",
}


class Tree:
    """The target folder, and make with its settings."""

    def __init__(self, home: Path) -> None:
        self.root, self.wheels = home / "root", home / "wheels"
        self.wheels.mkdir()
        make_wheel(self.wheels)

    def make(self, target: str, **settings: object) -> subprocess.CompletedProcess[str]:
        given = {"DESTDIR": self.root, "WHEELS": self.wheels, "EXTRAS": "", "PYTHON": PYTHON, **settings}
        words = [f"{name}={value}" for name, value in given.items()]
        # The installation must not need this environment.
        clean = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(self.root.parent)}
        return subprocess.run(
            ["make", "-C", str(CHECKOUT), "--no-print-directory", target, *words],
            env=clean,
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )

    def files(self) -> set[str]:
        """Return the installed files, without the virtual environment."""
        found = (Path(folder) / name for folder, _, names in os.walk(self.root) for name in names)
        return {str(path.relative_to(self.root)) for path in found if "opt" not in path.relative_to(self.root).parts}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    if not PYTHON.exists() or subprocess.run([PYTHON, "-c", "import ensurepip"], check=False).returncode:
        pytest.skip(f"{PYTHON} is missing or has no ensurepip")
    return Tree(tmp_path)


@pytest.mark.long
def test_install_twice_and_uninstall_in_a_tree(tree: Tree) -> None:
    done = tree.make("install")
    assert done.returncode == 0, done.stdout + done.stderr
    assert tree.files() == FILES
    assert os.readlink(tree.root / "usr/bin/edged") == "/opt/edged/bin/edged"
    config = tree.root / "etc/edged/edged.toml"
    assert load(config) == Config()
    scripts = [path for path in (tree.root / "opt/edged/bin").iterdir() if not path.is_symlink()]
    named = [path.name for path in [*scripts, tree.root / "opt/edged/pyvenv.cfg"] if str(tree.root) in path.read_text()]
    assert named == []
    assert (tree.root / "opt/edged/bin/edged").read_text().startswith("#!/opt/edged/bin/python")
    compiled = next((tree.root / "opt/edged/lib").rglob("edged/daemon/__pycache__/main.*.pyc"))
    assert str(tree.root).encode() not in compiled.read_bytes()

    config.write_text("stop_seconds = 3.0\n")
    (next((tree.root / "opt/edged/lib").glob("*/site-packages/edged")) / "daemon" / "main.py").unlink()
    assert tree.make("install").returncode == 0
    assert config.read_text() == "stop_seconds = 3.0\n"
    assert list((tree.root / "opt/edged/lib").glob("*/site-packages/edged/daemon/main.py")), (
        "the same version is installed again, complete"
    )

    models = tree.root / "var/lib/edged/models"
    models.mkdir(parents=True)
    assert tree.make("uninstall").returncode == 0
    assert tree.files() == {"etc/edged/edged.toml"}
    assert not (tree.root / "opt/edged").exists()
    assert models.exists()
    assert tree.make("uninstall", PURGE=1).returncode == 0
    assert tree.files() == set()
    assert not models.exists()


@pytest.mark.long
def test_install_with_another_prefix_writes_it_into_the_units(tree: Tree) -> None:
    done = tree.make("install", PREFIX="/usr/local", APP="/usr/local/lib/edged")
    assert done.returncode == 0, done.stdout + done.stderr
    unit = (tree.root / "usr/local/lib/systemd/system/edged.service").read_text()
    assert "ExecStart=/usr/local/bin/edged serve\n" in unit
    assert os.readlink(tree.root / "usr/local/bin/edged") == "/usr/local/lib/edged/bin/edged"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"PYTHON": "/usr/bin/false"}, "/usr/bin/false is not Python 3.10 or newer"),
        ({"WHEELS": "/nowhere"}, "folder WHEELS=/nowhere does not exist"),
        ({"DESTDIR": "here"}, "DESTDIR=here is not an absolute path"),
        ({"APP": "opt"}, "APP=opt is not an absolute path"),
        ({"APP": "/taken"}, "is not a virtual environment"),
    ],
)
def test_failed_install_step_is_one_line(tree: Tree, settings: dict[str, str], words: str) -> None:
    (tree.root / "taken").mkdir(parents=True)
    (tree.root / "taken/file").touch()
    done = tree.make("install", **settings)
    assert done.returncode != 0
    output = [line for line in done.stderr.splitlines() if not line.startswith("make: ")]
    assert len(output) == 1
    assert words in output[0]
    assert (tree.root / "taken/file").exists()


# Stands in for PYTHON and for the interpreter of its virtual environment; records the calls of pip.
_PYTHON = """#!/bin/sh
case "$*" in
    -c*) echo '(3, 12)' ;;
    *' venv '*) for last; do :; done; mkdir -p "$last/bin"; cp "$0" "$last/bin/python"; touch "$last/pyvenv.cfg" ;;
    *' pip '*) echo "$*" >>"$ASKED" ;;
esac
"""


def test_default_install_has_the_media_mqtt_http_and_tracking_extras(tmp_path: Path) -> None:
    python, asked = tmp_path / "python3", tmp_path / "asked"
    python.write_text(_PYTHON)
    python.chmod(0o755)
    settings = {"PYTHON": str(python), "DESTDIR": str(tmp_path / "root"), "ASKED": str(asked)}
    script = str(CHECKOUT / "systemd" / "install.sh")
    subprocess.run(["sh", script, "install"], env=os.environ | settings, check=True, timeout=60)
    package, trackers = asked.read_text().splitlines()
    assert package.endswith("[openvino,media,mqtt,tracking]")
    assert trackers.endswith("--no-deps trackers>=2.6,<3")
