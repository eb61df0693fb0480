"""Check that everything that edged needs has a wheel for each aarch64 box and its Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.system.arm64 import wheels
from tests.system.arm64.wheels import Resolved, Target

# The C library of a box decides which wheels it can load. CONTRIBUTING.md promises Python 3.10 to 3.12.
TARGETS = (
    Target("JetPack 6, Ubuntu 22.04", "3.10", 35),
    Target("Debian 12, Raspberry Pi OS", "3.11", 36),
    Target("JetPack 7, Ubuntu 24.04", "3.12", 39),
    Target("Debian 13, Raspberry Pi OS", "3.13", 41),
)
_RUN = ("openvino", "media")  # the extras of a box that only runs edged
_WHOLE = f"edged[{','.join(_RUN)}]"
_NOT_ASKED = {
    "tensorrt": "a Jetson has TensorRT from JetPack",
}


def show(cache: Path) -> int:
    """Print what pip selects for each box, and the glibc that it needs; return 1 if something has no wheel."""
    wheel = wheels.build(cache / "resolved")
    chosen: dict[Target, list[Resolved]] = {}
    lines: list[str] = []
    failed = 0
    for target in TARGETS:
        lines.append(f"{target.name}: Python {target.python}, glibc 2.{target.glibc}")
        for title, wanted, constraints in _questions(wheel, target):
            try:
                found = wheels.resolve(target, f"{wanted} @ {wheel.as_uri()}", constraints)
            except wheels.Unresolved as error:
                failed = 1
                lines.append(f"  {title}: NOT RESOLVED: {error}")
            else:
                lines.append(f"  {title}: {_described(found)}")
                chosen.setdefault(target, found)
    lines += [f"edged[{extra}] is not checked: {reason}" for extra, reason in _NOT_ASKED.items()]
    print(*_table(chosen), "", *lines, sep="\n")
    return failed


def _questions(wheel: Path, target: Target) -> Iterator[tuple[str, str, list[str]]]:
    """Yield each resolution's title, requirement and constraints."""
    yield _WHOLE, _WHOLE, []
    yield "edged", "edged", []
    for extra in wheels.extras_of(wheel):
        if extra not in (*_RUN, *_NOT_ASKED):
            yield f"edged[{extra}]", f"edged[{extra}]", []
    if target is TARGETS[0]:  # pyproject.toml promises that the lowest versions work
        needed = wheels.requirements_of(wheel, target, "openvino") + wheels.requirements_of(wheel, target, "media")
        yield f"{_WHOLE}, the oldest releases allowed", _WHOLE, wheels.floors(needed)


def _described(found: Sequence[Resolved]) -> str:
    newest = max(package.glibc for package in found)
    because = ", ".join(sorted(package.name for package in found if package.glibc == newest))
    return f"{len(found)} packages, a wheel for each; glibc 2.{newest} or newer because of {because}"


def _table(chosen: dict[Target, list[Resolved]]) -> Iterator[str]:
    """Yield a line per package with compiled code: its version for each box and the glibc that its wheel needs."""
    columns = [{package.name: package for package in found} for found in chosen.values()]
    names = sorted({name for column in columns for name, package in column.items() if package.glibc})
    yield f"{_WHOLE} on aarch64: packages with compiled code (and the glibc they need)"
    yield _row("", [f"Python {target.python}" for target in chosen])
    for name in names:
        yield _row(name, [_cell(column.get(name)) for column in columns])


def _cell(package: Resolved | None) -> str:
    if package is None:
        return "-"
    return f"{package.version} (2.{package.glibc})" if package.glibc else f"{package.version} (any)"


def _row(name: str, cells: Sequence[str]) -> str:
    return f"  {name:24}" + "".join(f"{cell:22}" for cell in cells).rstrip()
