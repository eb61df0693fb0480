"""Doctor: checks, reports, and steps that hang, crash or take too long."""

from __future__ import annotations

import asyncio
import re
import threading
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


async def examine(steps: Sequence[Step], seconds: float = 30.0) -> tuple[list[Check], list[str]]:
    """Run the steps. Return their checks, and the texts about skipped ones."""
    examination = Examination(asyncio.get_running_loop().time() + seconds, lambda step: None)
    return await examination.run(steps), examination.left_out


def step(name: Name, *checks: Check, seconds: float = 10.0, sleep: float = 0.0) -> Step:
    async def ask() -> Sequence[Check]:
        await asyncio.sleep(sleep)
        return checks

    return Step(name, "it", ask, seconds)


def test_check_texts_become_one_line() -> None:
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
def test_report_is_ok_unless_a_result_is_wrong(results: list[Result], well: bool, strictly: bool) -> None:
    report = Report(tuple(Check(Name.CLOCK, "", result, "message") for result in results))
    assert (report.is_ok(), report.is_ok(strict=True)) == (well, strictly)
    assert sum(report.counts().values()) == len(results)


async def test_run_checks_are_in_the_order_of_the_steps() -> None:
    late, soon = ok(Name.MEMORY, "late"), warning(Name.SWAP, "soon", "rest")
    assert await examine([step(Name.MEMORY, late, sleep=0.05), step(Name.SWAP, soon)]) == ([late, soon], [])


async def test_run_step_that_fails_is_unknown() -> None:
    def fail() -> list[Check]:
        raise ZeroDivisionError("a\nbug")

    async def refuse() -> list[Check]:
        raise BuildFailed("the child was killed")

    fine = ok(Name.SWAP, "fine")
    found, _ = await examine([plain(Name.CLOCK, fail), Step(Name.RUNTIME, "ort", refuse), step(Name.SWAP, fine)])
    assert found == [
        unknown(Name.CLOCK, "the check itself failed: ZeroDivisionError: a bug"),
        unknown(Name.RUNTIME, "the child was killed", "ort"),
        fine,
    ]


async def test_run_step_that_takes_too_long_is_unknown() -> None:
    found = await examine([step(Name.CLOCK, seconds=0.05, sleep=60)])
    assert found == ([unknown(Name.CLOCK, "the check did not finish within 0.05 s", "it")], [])


async def test_in_thread_that_hangs_does_not_block_the_program() -> None:
    over = threading.Event()

    def hang() -> list[Check]:
        over.wait(300)
        return []

    (check,), _ = await examine([Step(Name.SWAP, "", lambda: in_thread(hang), 0.05)])
    assert check.result is Result.UNKNOWN
    over.set()


async def test_run_past_the_deadline_lists_the_steps_left_out() -> None:
    steps = [step(Name.LEVELS, sleep=60), step(Name.SWAP, ok(Name.SWAP, "fine"))]
    found, left_out = await examine(steps, seconds=0.2)
    assert [check.result for check in found] == [Result.UNKNOWN, Result.OK]
    assert left_out == ["levels it: the time limit of all checks was reached"]


@pytest.mark.parametrize(("is_heavy", "expected"), [(True, 2), (False, 6)])
async def test_run_heavy_steps_are_limited_to_two_at_a_time(is_heavy: bool, expected: int) -> None:
    running, most = 0, 0

    async def ask() -> list[Check]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        return []

    await examine([Step(Name.EXTRA, str(number), ask, is_heavy=is_heavy) for number in range(6)])
    assert most == expected


def test_docs_list_every_check() -> None:
    listed = DOCUMENT.read_text().partition("## Checks")[2]
    named = re.findall(r"^\| `(\w+)` \|", listed, re.MULTILINE)
    assert named == [name.value for name in Name]
