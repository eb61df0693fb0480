"""Everything that was looked at, and whether anything is wrong."""

from __future__ import annotations

import msgspec

from edged.doctor.check import Check, Result

_BAD = {False: (Result.WRONG,), True: (Result.WRONG, Result.WARNING)}


class Report(msgspec.Struct, frozen=True):
    """The checks in the order of their names. `left_out` says in a line each what was not looked at, and why."""

    checks: tuple[Check, ...]
    left_out: tuple[str, ...] = ()

    def is_ok(self, *, strict: bool = False) -> bool:
        """Whether nothing is wrong; with `strict` warnings count as well. What is unknown never does."""
        return not any(check.result in _BAD[strict] for check in self.checks)

    def counts(self) -> dict[str, int]:
        """How many checks there are of each result."""
        return {result.value: sum(check.result is result for check in self.checks) for result in Result}
