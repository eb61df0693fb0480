"""edged's verdict on a model file, in the terms of the manifest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edged.cli.local import LocalBox
from edged.errors import ModelRefused
from edged.models.finding import Category, Finding
from tests.zoo.exhibit import SERVED, Ending


@dataclass(frozen=True)
class Verdict:
    """How a model ended, the warnings of a served one, and the line for people, if any."""

    ending: Ending
    warnings: tuple[Category, ...]
    line: str


def judge(box: LocalBox, path: Path) -> Verdict:
    """As `edged inspect` does it, in this process and its children. Whatever else it raises is edged's own failure."""
    try:
        admission = box.examine(path, {})
    except ModelRefused as error:
        finding = Finding.of(error)
        if finding is None:
            raise
        return Verdict(Ending(finding.stage, finding.category), (), finding.line())
    warnings = tuple(each.category for each in admission.warnings)
    found = admission.finding
    if found is None:
        return Verdict(SERVED, warnings, "")
    return Verdict(Ending(found.stage, found.category), warnings, found.line())
