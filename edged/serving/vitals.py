"""How an engine that serves has fared lately: what requests and probes found."""

from __future__ import annotations

import time

from edged.errors import DeadlineExceeded, EdgedError, EngineUnusable

_SUSPECT = 3  # failures of requests in a row after which it is asked something that it is known to answer


class Vitals:
    """Of one session. A runtime's refusal of a request is nearly always for its values, so requests alone prove nothing
    against an engine: many in a row make it suspect, and a probe decides.

    `unproven` says why it has not answered anything yet; empty once it has. `heard` is when it last answered, `asked`
    when a probe last did its asking, both of time.monotonic().
    """

    def __init__(self, unproven: str = "") -> None:
        self.unproven = unproven
        self.failures = 0  # of requests, in a row
        self.misses = 0  # of probes, in a row
        self.reason = ""  # of the last failure
        self.heard = self.asked = time.monotonic()

    def answered(self, now: float) -> None:
        """It answered a request or a probe."""
        self.heard = now
        if self.failures or self.misses or self.unproven:
            self.failures = self.misses = 0
            self.unproven = self.reason = ""

    def failed(self, error: BaseException) -> None:
        """A request failed in it, or took too long. What was wrong with the request itself counts for nothing."""
        if isinstance(error, EngineUnusable | DeadlineExceeded) or not isinstance(error, EdgedError):
            self.failures += 1
            self.reason = str(error)

    def missed(self, error: BaseException) -> None:
        """A probe failed."""
        self.misses += 1
        self.reason = str(error)

    @property
    def is_suspect(self) -> bool:
        """Whether to find out now what is wrong."""
        return self.failures >= _SUSPECT or self.misses > 0

    def is_failing(self, most: int) -> bool:
        """Whether it does not answer any more: `most` probes in a row failed, or the one that requests gave rise to."""
        return self.misses >= most or (self.misses > 0 and self.failures >= _SUSPECT)
