"""`edged family`: the package that it writes is good, and the list shows what a daemon would use."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from edged.cli.app import app
from edged.cli.family import write_project
from edged.errors import InvalidInput
from edged.vision.family import FAMILIES
from tests.family_package import environment, install

NAME = "car-plates"


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["family", *words])


@pytest.mark.parametrize("name", [NAME, "t", "my_family", "x" * 40])
def test_new_package_passes_its_own_checks(tmp_path: Path, name: str) -> None:
    project = tmp_path / "made" / "here"
    result = call("new", name, "--into", str(project))
    assert (result.exit_code, result.stderr) == (0, "")
    checks = [["ruff", "check"], ["ruff", "format", "--check"], ["pytest", "-q", "-p", "no:cacheprovider"]]
    if name == NAME:  # takes seconds
        checks.append(["mypy", "--cache-dir", str(tmp_path / "cache")])
    for check in checks:
        command = [sys.executable, "-m", *check]
        done = subprocess.run(
            command, cwd=project, env=environment(project), capture_output=True, text=True, check=False, timeout=100
        )
        assert done.returncode == 0, f"{check}: {done.stdout}{done.stderr}"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("none", "NoneFamily"), ("claim", "ClaimFamily"), ("engine-unusable", "EngineUnusableFamily"), ("tiles", "Tiles")],
)
def test_new_class_name_is_no_word_of_python_or_of_the_template(tmp_path: Path, name: str, expected: str) -> None:
    project = write_project(name, tmp_path / "p")
    (module,) = project.glob("edged_family_*/__init__.py")
    compile(module.read_text(), module, "exec")
    assert f"class {expected}(Family, frozen=True):" in module.read_text()


def test_new_package_declares_its_family_as_entry_point(tmp_path: Path) -> None:
    project = write_project("my_family", tmp_path / "p")
    about = (project / "pyproject.toml").read_text()
    assert '[project.entry-points."edged.families"]\nmy_family = "edged_family_my_family:MyFamily"' in about
    assert 'name = "edged-family-my-family"' in about
    assert (project / "edged_family_my_family" / "py.typed").exists()
    assert not [file for file in project.rglob("*") if file.is_file() and "@" in file.read_text().replace("@class", "")]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "A",
        "Car",
        "car plates",
        "3d",
        "-a",
        "a-",
        "_a",
        "a--b",
        "a.b",
        "a/b",
        "../a",
        "é",
        "x" * 41,
        "raw",
        "yolov5",
    ],
)
def test_new_invalid_name_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    result = call("new", "--into", str(tmp_path / "p"), "--", name)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "p").exists()
    with pytest.raises(InvalidInput):
        write_project(name, tmp_path / "p")


def test_new_existing_folder_is_not_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "file").write_text("mine")
    for place in ("p", "file"):
        result = call("new", NAME, "--into", str(tmp_path / place))
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
        assert "already exists" in result.stderr
    assert list((tmp_path / "p").iterdir()) == []
    result = call("new", NAME, "--into", str(tmp_path / "file" / "inner"))
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    monkeypatch.chdir(tmp_path)
    assert call("new", NAME).exit_code == 0
    assert (tmp_path / "edged-family-car-plates" / "README.md").exists()


def test_list_shows_packages_and_what_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, config = tmp_path / "site", tmp_path / "edged.toml"
    site.mkdir()
    install(site, NAME)
    install(site, "closed", code="1 / 0")
    install(site, "broken", code="1 / 0", version="2.0")
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", environment(site)["PYTHONPATH"])
    config.write_text(f'[families]\nallow = ["{NAME}", "broken", "absent"]\n')
    result = call("list", "--json", "--config", str(config))
    assert result.exit_code == 1, "an allowed family cannot be used"
    rows = {row["family"]: row for row in json.loads(result.stdout)}
    assert rows[NAME] == {
        "family": NAME,
        "package": "edged-family-car-plates",
        "version": "0.1.0",
        "allowed": True,
        "problem": "",
    }
    assert (rows["closed"]["allowed"], rows["closed"]["problem"]) == (False, "")
    assert (rows["broken"]["version"], rows["broken"]["allowed"]) == ("2.0", True)
    assert "ZeroDivisionError" in rows["broken"]["problem"]
    assert "no package offers family 'absent'" in rows["absent"]["problem"]
    assert set(FAMILIES) <= set(rows)
    config.write_text(f'[families]\nallow = ["{NAME}"]\n')
    result = call("list", "--config", str(config))
    assert result.exit_code == 0
    (line,) = (line.split() for line in result.stdout.splitlines() if line.startswith(NAME))
    assert line == [NAME, "edged-family-car-plates", "0.1.0", "yes"]
