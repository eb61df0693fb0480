"""`make soak`: run a daemon for minutes or days under all kinds of activity, and check that it does not grow.

In each round cameras connect and leave, models and configurations change, engines are rebuilt, hosts and clients are
killed. After each round the daemon becomes idle, and its resources are recorded. The exit status is 1 if a figure
grows, an answer is wrong, a client gets an unexpected error, or something is left after the daemon has stopped.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from edged.shared_layout import FOLDER
from tests.soak.box import DETECTOR, STEADY, Box
from tests.soak.deeds import churn
from tests.soak.figures import Figures, descendants
from tests.soak.journal import Journal
from tests.soak.verdict import HEADER, Stretch, growths, row
from tests.waiting import is_running


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="total duration (10)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}, {arguments.minutes:g} minutes", flush=True)
    journal = Journal()
    rounds = soak(arguments.minutes * 60, arguments.seed, journal)
    for line in growths(rounds):
        journal.fail(line)
    print("\n".join(journal.reported()))
    print("FAILED" if journal.failures else f"nothing grew in {len(rounds)} rounds")
    return 1 if journal.failures else 0


def soak(seconds: float, seed: int, journal: Journal) -> list[Figures]:
    """Return the figures after each round. Rounds of the warm-up are only printed."""
    stretch, rounds = Stretch.of(seconds), list[Figures]()
    with Box() as box:
        began, number = time.monotonic(), 0
        for model in (STEADY, DETECTOR):
            box.settled(model)
        print(HEADER, flush=True)
        while time.monotonic() - began < seconds and box.lives():
            is_warm = time.monotonic() - began >= stretch.warming
            number += 1
            with churn(box, f"{seed}.{number}", journal):
                time.sleep(stretch.round)
            if not box.lives():
                break
            box.calm()
            figures = box.figures()
            minute = f"{(time.monotonic() - began) / 60:.1f}" + ("" if is_warm else " warm-up")
            print(row(minute, figures), flush=True)
            if is_warm:
                rounds.append(figures)
        _end(box, journal)
    return rounds


def _end(box: Box, journal: Journal) -> None:
    """Stop the daemon as systemd does; check that it stops in time and that nothing of it is left."""
    if not box.lives():
        journal.fail(f"the daemon died: {box.log.read_text()[-2000:]}")
        return
    family, pid = descendants(box.pid), box.pid
    status = box.stop()
    if status != 0:
        journal.fail(f"the daemon ended with status {status}")
    if left := [each for each in (pid, *family) if is_running(each)]:
        journal.fail(f"{len(left)} processes are left")
    if left_files := _files(box.temporary):
        journal.fail(f"temporary files are left: {', '.join(left_files)}")
    if segments := [entry.name for entry in os.scandir(FOLDER) if entry.name.startswith(f"edged-{pid}-")]:
        journal.fail(f"shared memory is left: {', '.join(segments)}")
    for line in box.log.read_text(errors="replace").splitlines():
        if "Traceback" in line or "unexpected error" in line:
            journal.fail(f"in the log: {line[:200]}")


def _files(folder: Path) -> Sequence[str]:
    return [str(file.relative_to(folder)) for file in folder.rglob("*")]


if __name__ == "__main__":
    sys.exit(main())
