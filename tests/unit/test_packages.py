"""Remedies that install packages: commands that are valid in this environment."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import pytest

import edged
from edged import packages

ROOT = Path(__file__).parents[2]


def declared(extra: str) -> tuple[str, ...]:
    """Return the requirements of an extra in pyproject.toml, without markers."""
    text = (ROOT / "pyproject.toml").read_text()
    found = re.search(rf"^{extra} = \[(.*?)\]$", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    wanted = [line.partition(";")[0].strip() for line in re.findall(r'"([^"]+)"', found[1])]
    inner = [each for name in wanted if (m := re.match(r"edged\[(\w+)\]", name)) for each in declared(m[1])]
    return (*inner, *(name for name in wanted if not name.startswith("edged[")))


@pytest.mark.parametrize("extra", packages.EXTRAS)
def test_extras_equal_those_of_pyproject(extra: str) -> None:
    assert packages.EXTRAS[extra] == declared(extra)


def test_install_uses_the_running_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: True)
    assert shlex.split(packages.install("av>=12")) == [sys.executable, "-m", "pip", "install", "av>=12"]
    assert packages.install_extra("tracking").endswith(" -m pip install --no-deps 'trackers>=2.6'")


@pytest.mark.parametrize(
    ("backend", "names"),
    [
        ("openvino", ["openvino"]),
        ("tensorrt", ["tensorrt", "cuda-bindings"]),
        # The package `tensorrt_rtx` is a script that downloads, and has no wheel for many systems.
        ("tensorrt_rtx", list(packages.EXTRAS["tensorrt-rtx"])),
    ],
)
def test_runtime_is_installed_from_the_packages_that_its_backend_uses(backend: str, names: list[str]) -> None:
    assert shlex.split(packages.install_runtime(backend))[-len(names) :] == names
    assert shlex.split(packages.reinstall_runtime(backend))[-len(names) - 1 :] == ["--force-reinstall", *names]


def test_install_into_a_folder_of_root_uses_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert packages.install("av").startswith("sudo ")


def test_install_in_the_debian_package_names_the_package_instead_of_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", "/opt/edged/releases/0.1.0.abc")
    remedies = packages.install("onnxruntime>=1.23", option="--force-reinstall"), packages.install_extra("tracking")
    assert all("Debian package edged" in remedy and "pip" not in remedy for remedy in remedies)
    assert "onnxruntime" in remedies[0]


def test_install_is_the_only_source_of_pip_commands() -> None:
    # `edged family new` writes a project, which its author installs in another environment; a training framework is
    # installed in the user's own Python.
    package = Path(edged.__file__).parent
    others = {package / "cli/family.py", package / "export/run.py", *(package / "shapes").rglob("*.py")}
    sources = {*package.rglob("*.py")} - others
    assert [str(path) for path in sources if "pip install" in path.read_text()] == []
