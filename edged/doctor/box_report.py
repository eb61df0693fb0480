"""`edged report`: describes a box and what works on it, in one file that its owner may show to others.

The file is Markdown, because people paste it into bug reports and should be able to read what they publish. A block of
JSON at the end of the file has the same contents. `make verified` reads this block and adds rows to jetson/VERIFIED.md.
Text and JSON are made from one redacted `BoxReport`.
"""

from __future__ import annotations

import asyncio
import platform
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from edged.backends import registry
from edged.client.address import host_of, is_here
from edged.decoding import explain, ready
from edged.device.fingerprint import Fingerprint, probe
from edged.device.root import Root
from edged.doctor.check import Check, Name, Result, Tell
from edged.doctor.redaction import Identity, Redactor
from edged.doctor.run import CheckOptions, run_checks
from edged.doctor.self_check import Tried, run_self_check
from edged.errors import InvalidInput
from edged.files import NOT_JSON
from edged.version import __version__

FORMAT = 1
_SECONDS = 120.0  # for the checks of the box
# The report leaves out these checks, because their texts name models and cameras of the owner.
_PRIVATE = frozenset({Name.ALARM, Name.HOSTS})
_PRIVATE_LEFT_OUT = "models, alarms and hosts, because their names are private; see: edged doctor"
# Facts that the report leaves out: a card's PCI address, and a digest of what `cpu.features` lists.
_NEEDLESS = re.compile(r"gpu\.\d+\.pci|cpu\.isa")
_ADDRESS_LIKE = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")
_VERSION_FACT = re.compile(r"runtime\..*|.*\.(?:version|driver|driver_version|kernel_module|runtime)")
_BLOCK = re.compile(r"^```json\n(.*?)\n```\s*$", re.DOTALL | re.MULTILINE)
NAME = r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,39}"


class BoxReport(msgspec.Struct, frozen=True):
    """A report. `day` is in UTC, such as 2026-11-25. `by` is the name that the report's author entered.
    `hardware_tests` are the tests of `make test-gpu` that could run on this box; the report does not run them."""

    format: int
    edged: str
    python: str
    day: Annotated[str, Meta(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    by: Annotated[str, Meta(pattern=f"^(?:{NAME})?$")]
    facts: dict[str, str]
    doctor: tuple[Check, ...]
    self_check: tuple[Check, ...]
    engines: tuple[Tried, ...]
    left_out: tuple[str, ...]
    hardware_tests: tuple[str, ...]

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks with the result `wrong`."""
        return tuple(check for check in (*self.self_check, *self.doctor) if check.result is Result.WRONG)


async def make(options: CheckOptions, by: str, tell: Tell) -> BoxReport:
    """Check this box and its runtimes, which takes seconds to minutes, and return the redacted report. `tell` is called
    with each step when it begins."""
    fingerprint = await asyncio.to_thread(probe)
    checked = await run_checks(msgspec.structs.replace(options, with_models=False, seconds=_SECONDS), tell)
    outcome = await run_self_check(fingerprint, tell, is_quick=False)
    hosts = [] if is_here(options.target) else [host_of(options.target)]
    identity = await asyncio.to_thread(lambda: Identity.of(Root(), (options.state, options.cache), hosts))
    plain = BoxReport(
        format=FORMAT,
        edged=__version__,
        python=platform.python_version(),
        day=datetime.now(timezone.utc).date().isoformat(),
        by=by,
        facts=fingerprint.facts,
        doctor=tuple(check for check in checked.checks if check.name not in _PRIVATE),
        self_check=outcome.report.checks,
        engines=outcome.tried,
        left_out=(*checked.left_out, *outcome.report.left_out, _PRIVATE_LEFT_OUT),
        hardware_tests=hardware_tests(fingerprint, Path(__file__).parents[2] / "tests" / "gpu"),
    )
    return redacted(plain, identity)


def redacted(report: BoxReport, identity: Identity) -> BoxReport:
    """Return the report without secrets. Names of facts, checks, runtimes and devices stay, since they are edged's own
    words; `by` stays, since the user gave it to be shown."""
    facts = {name: value for name, value in report.facts.items() if not _NEEDLESS.fullmatch(name)}
    versions = {
        found
        for name, value in facts.items()
        if _VERSION_FACT.fullmatch(name)
        for found in _ADDRESS_LIKE.findall(value)
        if value.startswith(found)
    }
    redactor = Redactor(identity, versions)

    def check(each: Check) -> Check:
        texts = (redactor.text(text) for text in (each.subject, each.message, each.remedy))
        subject, message, remedy = texts
        return msgspec.structs.replace(each, subject=subject, message=message, remedy=remedy)

    def engine(each: Tried) -> Tried:
        version, description = redactor.text(each.version), redactor.text(each.description)
        return msgspec.structs.replace(each, version=version, description=description)

    return msgspec.structs.replace(
        report,
        facts=redactor.all(facts),
        doctor=tuple(map(check, report.doctor)),
        self_check=tuple(map(check, report.self_check)),
        engines=tuple(map(engine, report.engines)),
        left_out=tuple(map(redactor.text, report.left_out)),
    )


def hardware_tests(fingerprint: Fingerprint, folder: Path) -> tuple[str, ...]:
    """Return the names of the tests of `make test-gpu`; empty without an NVIDIA GPU, or without a checkout."""
    if not any(fact.startswith("gpu.") for fact in fingerprint.facts):
        return ()
    files = sorted(folder.glob("test_*.py"))
    return tuple(
        f"{file.name}::{name}"
        for file in files
        for name in re.findall(r"^def (test_\w+)\(", file.read_text(), re.MULTILINE)
    )


def render(report: BoxReport) -> str:
    """Return the file: Markdown, with the report as JSON at its end."""
    return "\n".join((*_markdown(report), "```json", _json(report), "```", ""))


def _json(report: BoxReport) -> str:
    return msgspec.json.format(msgspec.json.encode(report), indent=1).decode()


def read(text: str) -> BoxReport:
    """Read a report from the text of its file, or from its JSON alone. Raises InvalidInput if the report is incomplete
    or has another format."""
    block = _BLOCK.search(text)
    try:
        found = msgspec.json.decode(block[1] if block else text, type=ready(BoxReport))
    except NOT_JSON as error:
        raise InvalidInput(f"the text is not a complete report of edged: {explain(error)}") from error
    if found.format != FORMAT:
        raise InvalidInput(
            f"the report has format {found.format}, but this edged reads only format {FORMAT};"
            " use the version of edged that made the report"
        )
    return found


def _markdown(report: BoxReport) -> Iterator[str]:
    by = f", by {report.by}" if report.by else ""
    yield f"# edged {report.edged} on {_cell(_box(report.facts))}"
    yield ""
    yield f"{report.day}{by}, Python {report.python}. Made by `edged report`: names, addresses and serial numbers were"
    yield "removed."
    yield ""
    yield from _section("Runtimes", ("result", "runtime", "found"), map(_row, report.self_check))
    if any(each.speed is not None for each in report.engines):
        head = ("runtime", "device", "precision", "frames/s", "reference's frames/s", "one frame", "many frames")
        yield from _section("Short bench", head, map(_speeds, report.engines))
        yield "Frames per second are inferences of the embedded detector alone. The last two columns are multiples of"
        yield "the unoptimised reference's speed; both were timed alternately."
        yield ""
    problems = [check for check in report.doctor if check.result in (Result.WRONG, Result.WARNING)]
    yield from _section("Problems of the box", ("result", "check", "found"), map(_row, problems))
    yield from _section("Facts", ("fact", "value"), report.facts.items())
    if report.hardware_tests:
        yield "## Hardware tests"
        yield ""
        yield "Not run by this report; in the checkout `make test-gpu` runs them on this GPU:"
        yield ""
        yield from (f"- {name}" for name in report.hardware_tests)
        yield ""
    yield from ("## Left out", "", *(f"- {_cell(line)}" for line in report.left_out), "")
    yield from ("## For make verified", "")


def _section(title: str, head: tuple[str, ...], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    lines = [f"| {' | '.join(map(_cell, row))} |" for row in rows]
    yield from (f"## {title}", "")
    if lines:
        yield from (f"| {' | '.join(head)} |", "|" + "---|" * len(head), *lines, "")
    else:
        yield from ("None.", "")


def _row(check: Check) -> tuple[str, str, str]:
    about = check.subject if check.name is Name.SELF_CHECK else f"{check.name.value} {check.subject}".strip()
    return check.result.value, about, f"{check.message}; remedy: {check.remedy}" if check.remedy else check.message


def _speeds(each: Tried) -> tuple[str, ...]:
    figures = (each.frames_per_s, each.reference_frames_per_s, each.speed, each.throughput)
    return (
        registry.TITLES.get(each.runtime, each.runtime),
        each.device,
        each.precision,
        *(f"{figure:g}" if figure is not None else "" for figure in figures),
    )


def _box(facts: Mapping[str, str]) -> str:
    """Return a short name for the box: the name of its board, otherwise of its GPU, otherwise of its processor."""
    names = ("jetson.model", "board.model", "gpu.0.name", "cpu.model", "cpu.arch")
    return next((facts[name] for name in names if facts.get(name)), "an unknown box")


def _cell(text: str) -> str:
    """Return a text in one line for a cell of a Markdown table, with Markdown's special characters escaped."""
    return re.sub(r"([\\|`*\[\]<>#])", r"\\\1", " ".join(text.split()))
