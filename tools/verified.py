"""Add the results of `edged report` on a device to the table of jetson/VERIFIED.md: a row for each device and backend.

Reports come from other people, so cells are short and contain no Markdown characters.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timezone
from pathlib import Path
from typing import NamedTuple

from edged.backends import registry
from edged.doctor import box_report
from edged.doctor.box_report import BoxReport
from edged.doctor.self_check import Tried
from edged.errors import EdgedError, InvalidInput

PAGE = Path(__file__).parents[1] / "jetson" / "VERIFIED.md"
HEAD = "| date | device | software | backend | tests | by |\n|---|---|---|---|---|---|\n"
_FOREIGN = re.compile(r"[^A-Za-z0-9 .,:;+()/_-]")
_LONGEST, _LONGEST_VERSION = 240, 40  # characters of a cell, and of a version in it
# Facts that the table shows, with their names in the table.
_SOFTWARE = {
    "jetson.l4t": "L4T",
    "nvidia.driver": "driver",
    "cuda.runtime": "CUDA",
    "cudnn.version": "cuDNN",
    "intel.opencl": "OpenCL",
    "intel.level_zero_gpu": "Level Zero",
    "intel.level_zero_npu": "NPU driver",
}
_FOR = {"cuda": ("jetson.", "nvidia.", "cuda", "cudnn"), "intel": ("intel.",)}
_NEEDED = ("cpu.arch", "os.name", "os.version")


class Row(NamedTuple):
    date: str
    device: str
    software: str
    backend: str
    tests: str
    by: str

    def __str__(self) -> str:
        return f"| {' | '.join(self)} |"


def rows(report: BoxReport, today: date) -> tuple[Row, ...]:
    """Return the rows that a report proves; InvalidInput if it proves nothing."""
    require(report, today)
    return tuple(_row(report, engine) for engine in report.engines)


def require(report: BoxReport, today: date) -> None:
    """Raise InvalidInput for a report that failed its checks, lacks what a row needs, or contradicts itself."""
    if report.failures:
        worst = report.failures[0]
        raise InvalidInput(
            f"the report has {len(report.failures)} failed checks, such as {worst.name.value} {worst.subject}:"
            f" {worst.message}; fix them and run edged report again"
        )
    lacking = [name for name in _NEEDED if not report.facts.get(name)]
    if lacking:
        raise InvalidInput(f"the report lacks the facts {', '.join(lacking)}; run edged report again")
    try:
        day = date.fromisoformat(report.day)
    except ValueError:
        raise InvalidInput(f"{report.day!r} is not a day; run edged report again") from None
    if day > today:
        raise InvalidInput(f"the report has the date {report.day}, which is in the future; set the clock of that box")
    _require_engines(report)


def _require_engines(report: BoxReport) -> None:
    if not report.engines or not any(check.subject == "reference" for check in report.self_check):
        raise InvalidInput("no runtime was compared with the reference; run edged report on a box with a runtime")
    for engine in report.engines:
        about = f"{engine.runtime} on {engine.device}"
        if not engine.accepted or not any(check.subject == about for check in report.self_check):
            raise InvalidInput(f"the report does not show that {about} gives the same answers as the reference")
        if engine.runtime not in registry.TITLES or not engine.version or engine.speed is None:
            raise InvalidInput(f"the report lacks the name, version or speed of {about}; run edged report again")


def _row(report: BoxReport, engine: Tried) -> Row:
    facts, kind = report.facts, engine.device.partition(":")[0].partition("-")[0]
    board = facts.get("jetson.model") or facts.get("board.model") or ""
    device = engine.description if not board or board in engine.description else f"{board}: {engine.description}"
    versions = [
        f"edged {report.edged}",
        f"{registry.TITLES[engine.runtime]} {_plain(engine.version, _LONGEST_VERSION)}",
    ]
    versions += [
        f"{title} {_plain(facts[fact], _LONGEST_VERSION)}"
        for fact, title in _SOFTWARE.items()
        if fact in facts and fact.startswith(_FOR.get(kind, ("-",)))
    ]
    versions.append(f"{facts['os.name']} {facts['os.version']} {facts['cpu.arch']}, Python {report.python}")
    tests = f"edged report: answers as the reference, {engine.speed:g} times as fast"
    backend = f"{registry.TITLES[engine.runtime]} {engine.precision} on {engine.device}"
    cells = (report.day, device, ", ".join(versions), backend, tests, report.by or "an owner")
    return Row(*map(_plain, cells))


def _plain(text: str, longest: int = _LONGEST) -> str:
    """Return text of another box as a table cell, without Markdown characters."""
    words = " ".join(_FOREIGN.sub(" ", text).split())
    return words if len(words) <= longest else f"{words[: longest - 3]}..."


def added(page: str, new: Iterable[Row]) -> str:
    """Return the page with the rows that it lacks at the end of its table; InvalidInput if it has no table."""
    before, head, after = page.partition(HEAD)
    if not head:
        raise InvalidInput(f"{PAGE.name} has no table that begins with {HEAD.splitlines()[0]!r}; restore it")
    table = re.match(r"(?:\|.*\n)*", after)
    assert table is not None  # it matches nothing, too
    there = table[0].splitlines()
    lines = [*there, *(line for line in map(str, new) if line not in there)]
    return before + head + "".join(f"{line}\n" for line in lines) + after[table.end() :]


def main(arguments: Sequence[str], page: Path = PAGE) -> int:
    """Add the rows of one report; print them, or why there are none. Return the exit status."""
    if len(arguments) != 1:
        print("usage: python -m tools.verified REPORT", file=sys.stderr)
        return 2
    try:
        new = rows(box_report.read(Path(arguments[0]).read_text()), datetime.now(timezone.utc).date())
        page.write_text(added(page.read_text(), new))
    except (EdgedError, OSError, UnicodeDecodeError) as error:
        print(f"{arguments[0]}: {error}", file=sys.stderr)
        return 1
    print("\n".join(map(str, new)))
    print(f"{page.name} has these rows; check that README.md and docs/proven.md are still correct", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
