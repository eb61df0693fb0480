"""constraints.txt, which pins the versions of a checkout, agrees with pyproject.toml."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_ROOT = Path(__file__).resolve().parents[2]
_PROJECT = tomllib.loads((_ROOT / "pyproject.toml").read_text())
_PYTHONS = ("3.10", "3.11", "3.12", "3.13")


def _requirements(name: str) -> list[Requirement]:
    lines = (line.partition("#")[0].strip() for line in (_ROOT / name).read_text().splitlines())
    return [Requirement(line) for line in lines if line]


def _direct() -> list[Requirement]:
    extras = _PROJECT["project"]["optional-dependencies"]
    names = ("openvino", "cuda", "media", "mqtt", "convert", "tracking", "dev")
    written = [*_PROJECT["project"]["dependencies"], *(each for name in names for each in extras[name])]
    return [each for each in map(Requirement, written) if each.name != "edged"]


@pytest.mark.parametrize("python", _PYTHONS)
@pytest.mark.parametrize("processor", ["x86_64", "aarch64"])
def test_constraints_direct_dependency_has_one_version_that_pyproject_allows(python: str, processor: str) -> None:
    box = {
        "python_version": python,
        "python_full_version": f"{python}.1",
        "platform_machine": processor,
        "sys_platform": "linux",
    }
    pinned: dict[str, list[str]] = {}
    for pin in _requirements("constraints.txt"):
        if pin.marker is None or pin.marker.evaluate(box):
            (version,) = pin.specifier
            pinned.setdefault(canonicalize_name(pin.name), []).append(version.version)
    for needed in _direct():
        if needed.marker is None or needed.marker.evaluate(box):
            (version,) = pinned.get(canonicalize_name(needed.name), ["missing"])
            assert needed.specifier.contains(version), f"run `make lock`: {needed} and {version}"


def test_constraints_build_requirements_are_those_of_pyproject() -> None:
    built = {(each.name, str(each.specifier)) for each in map(Requirement, _PROJECT["build-system"]["requires"])}
    assert built <= {(each.name, str(each.specifier)) for each in _requirements("constraints.in")}
