"""The results of a run: messages and statuses of every method, failures, and the resources of the process."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from pathlib import Path

import msgspec

_MOST_FAILURES = 20


class Figures(msgspec.Struct, frozen=True):
    """A process's resident memory in MiB, open descriptors and threads."""

    resident: int
    descriptors: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> Figures:
        """Read the present figures. ProcessLookupError or FileNotFoundError if the process does not exist."""
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        output = {key: value.split()[0] for key, _, value in (line.partition(":") for line in lines) if value.split()}
        if "VmRSS" not in output:  # it has ended, and its parent has not noticed yet
            raise ProcessLookupError(pid)
        return cls(int(output["VmRSS"]) >> 10, len(os.listdir(f"/proc/{pid}/fd")), int(output["Threads"]))

    def __str__(self) -> str:
        return f"{self.resident} MiB, {self.descriptors} descriptors, {self.threads} threads"


class Tally:
    """Counts messages and statuses, and collects failures."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.messages: Counter[str] = Counter()
        self.statuses: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.failures: dict[str, str] = {}

    def fail(self, what: str, how: str = "") -> None:
        """Add a failure; `how` helps to replay it. The same failure counts once."""
        if len(self.failures) < _MOST_FAILURES:
            self.failures.setdefault(what, how)

    @property
    def total(self) -> int:
        return sum(self.messages.values())

    def reported(self) -> list[str]:
        """Return lines: every method's messages and statuses, then the sums, then the failures."""
        lines = []
        for name in sorted(self.messages):
            statuses = ", ".join(f"{code} {count}" for code, count in self.statuses[name].most_common())
            lines.append(f"  {name.rpartition('/')[2]:<30} {self.messages[name]:>8}  {statuses}")
        together: Counter[str] = Counter()
        for each in self.statuses.values():
            together.update(each)
        statuses = ", ".join(f"{code} {count}" for code, count in together.most_common())
        lines.append(f"  {'all':<30} {self.total:>8}  {statuses}")
        for what, how in self.failures.items():
            lines.append(f"FAILED (SEED={self.seed}): {what}")
            lines += [f"    {line}" for line in how.splitlines()[:40]]
        return lines
