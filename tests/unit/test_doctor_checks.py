"""Doctor: what a finding is, when a report is well, and that no question can hang, crash or fill the report."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from edged.doctor.check import (
    Check,
    Examination,
    Name,
    Report,
    Result,
    Step,
    in_thread,
    ok,
    plain,
    unknown,
    warning,
    wrong,
)
from edged.errors import BuildFailed

DOCUMENT = Path(__file__).parents[2] / "docs" / "doctor.md"


def examine(steps: Sequence[Step], seconds: float = 30.0) -> tuple[list[Check], Examination]:
    async def main() -> tuple[list[Check], Examination]:
        examination = Examination(asyncio.get_running_loop().time() + seconds, lambda step: None)
        return await examination.run(steps), examination

    return asyncio.run(main())


def step(name: Name, *checks: Check, seconds: float = 10.0, sleep: float = 0.0, heavy: bool = False) -> Step:
    async def ask() -> Sequence[Check]:
        await asyncio.sleep(sleep)
        return checks

    return Step(name, "it", ask, seconds, heavy)


def test_what_others_say_becomes_one_line() -> None:
    found = wrong(Name.RUNTIME, "Traceback:\n  \x1b[31mno\x00 such\tlibrary\r\n", "do\nthis", "ort\n")
    assert (found.message, found.remedy, found.subject) == ("Traceback: [31mno such library", "do this", "ort")


@pytest.mark.parametrize(
    ("results", "well", "strictly"),
    [
        ([], True, True),
        ([Result.OK, Result.UNKNOWN], True, True),
        ([Result.OK, Result.WARNING], True, False),
        ([Result.WRONG, Result.OK], False, False),
    ],
)
def test_only_what_is_wrong_makes_a_report_bad(results: list[Result], well: bool, strictly: bool) -> None:
    report = Report(tuple(Check(Name.CLOCK, "", result, "said") for result in results))
    assert (report.is_ok(), report.is_ok(strict=True)) == (well, strictly)
    assert sum(report.counts().values()) == len(results)


def test_answers_come_in_the_order_of_the_questions() -> None:
    late, soon = ok(Name.MEMORY, "late"), warning(Name.SWAP, "soon", "rest")
    found, examination = examine([step(Name.MEMORY, late, sleep=0.05), step(Name.SWAP, soon)])
    assert found == [late, soon]
    assert examination.left_out == []


def test_a_question_that_fails_is_unknown_and_the_others_are_answered() -> None:
    def fail() -> list[Check]:
        raise ZeroDivisionError("a\nbug")

    async def refuse() -> list[Check]:
        raise BuildFailed("the child was killed")

    found, _ = examine(
        [plain(Name.CLOCK, fail), Step(Name.RUNTIME, "ort", refuse), step(Name.SWAP, ok(Name.SWAP, "fine"))]
    )
    assert found == [
        unknown(Name.CLOCK, "the check itself failed: ZeroDivisionError: a bug"),
        unknown(Name.RUNTIME, "the child was killed", "ort"),
        ok(Name.SWAP, "fine"),
    ]


def test_a_question_that_takes_too_long_is_unknown() -> None:
    found, examination = examine([step(Name.CLOCK, seconds=0.05, sleep=60)])
    assert found == [unknown(Name.CLOCK, "it did not answer within 0.05 s", "it")]
    assert examination.left_out == []


def test_what_hangs_in_the_kernel_does_not_keep_the_program() -> None:
    def hang() -> list[Check]:
        time.sleep(300)
        return []

    started = time.monotonic()
    found, _ = examine([Step(Name.SWAP, "", lambda: in_thread(hang), 0.05)])
    assert [check.result for check in found] == [Result.UNKNOWN]
    assert time.monotonic() - started < 60


def test_the_whole_report_ends_in_time_and_says_what_it_left_out() -> None:
    found, examination = examine([step(Name.LEVELS, sleep=60), step(Name.SWAP, ok(Name.SWAP, "fine"))], seconds=0.2)
    assert [check.result for check in found] == [Result.UNKNOWN, Result.OK]
    assert examination.left_out == ["levels it: the time for the whole report was over"]


def test_two_heavy_questions_at_a_time_and_any_number_of_others() -> None:
    running, most = 0, 0

    async def ask() -> list[Check]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        return []

    examine([Step(Name.EXTRA, str(number), ask, is_heavy=True) for number in range(6)])
    assert most == 2
    most = 0
    examine([Step(Name.EXTRA, str(number), ask) for number in range(6)])
    assert most == 6


def test_the_document_names_every_check_and_no_other() -> None:
    listed = DOCUMENT.read_text().partition("## Checks")[2]
    named = re.findall(r"^\| `(\w+)` \|", listed, re.MULTILINE)
    assert named == [name.value for name in Name]
