"""edged's verdict on a model file, in terms of the manifest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edged.cli.local import LocalBox
from edged.errors import ModelRefused
from edged.models.finding import Category, Finding
from tests.zoo.exhibit import SERVED, Ending


@dataclass(frozen=True)
class Verdict:
    """The outcome of a model, the warnings if it is served, and the message for users, if any."""

    ending: Ending
    warnings: tuple[Category, ...]
    line: str


def judge(box: LocalBox, path: Path) -> Verdict:
    """Examine a file as `edged inspect` does, in this process and its children. Other exceptions are edged's bugs."""
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
