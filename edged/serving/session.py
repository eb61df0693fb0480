"""An engine that is open in a host, as its slot sees it: its health, recent latencies and amount of work."""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections import deque

from edged.backends.contract import ONE_INSTANCE, Parallelism
from edged.errors import DeadlineExceeded, EdgedError, EngineUnusable
from edged.serving.link import HostLink
from edged.serving.work import EngineRef

_NEWEST = 128  # inferences that are remembered
_FEWEST = 5  # answers needed for a median
_MOMENT = 1e-9  # seconds: what `slow_for` returns when the median has only just become slow
_OLD_SECONDS = 30.0  # older inferences do not count


class LatencyWindow:
    """The newest inference times of one session, in milliseconds. Adding costs one append."""

    def __init__(self) -> None:
        self._times: deque[tuple[float, float]] = deque(maxlen=_NEWEST)
        self._slow_since: float | None = None

    def add(self, milliseconds: float, now: float) -> None:
        """Record one inference; `now` is the value of time.monotonic()."""
        self._times.append((now, milliseconds))

    def median(self, now: float) -> float | None:
        """Return the median of the last 30 s in milliseconds; None if there were fewer than five inferences."""
        recent = [milliseconds for moment, milliseconds in self._times if now - moment <= _OLD_SECONDS]
        return statistics.median(recent) if len(recent) >= _FEWEST else None

    def slow_for(self, now: float, limit_ms: float) -> float:
        """Return for how many seconds the median has been above a limit without a break; 0 if the median is not above
        it now.

        Call this method regularly. Without new inferences the result does not change.
        """
        median = self.median(now)
        if median is not None and median <= limit_ms:
            self._slow_since = None
        elif median is not None and self._slow_since is None:
            self._slow_since = now
        if self._slow_since is None:
            return 0.0
        return max(self._times[-1][0] - self._slow_since, _MOMENT)


_SUSPECT = 3  # after this many failed requests in a row, a probe is sent
_SILENT_SECONDS = 60.0  # if the engine answers nothing for so long, requests that clients cancelled count as failed


class SessionHealth:
    """Health of one session, from the outcomes of requests and probes.

    A runtime usually rejects a request because of its values, so failed requests alone do not prove a faulty engine.
    Several failures in a row make the engine suspect. A probe then shows whether the engine still works. `unproven`
    says why the engine must first prove that it works; it is empty after the first answer. `known` identifies the probe
    that the engine answered last; None if the engine has answered no probe. `answered_at` and `probed_at` are times of
    the last answer and probe (time.monotonic()).
    """

    def __init__(self, unproven: str = "", known: object = None) -> None:
        self.unproven, self.known = unproven, known
        self.failures = 0  # failed requests in a row
        self.misses = 0  # failed probes in a row
        self.reason = ""  # of the last failure
        self._cancelled_at = math.inf  # when a client first cancelled a request after the last answer
        self.answered_at = self.probed_at = time.monotonic()

    def answered(self, now: float) -> None:
        """Record an answer to a request or a probe."""
        self.answered_at = now
        self._cancelled_at = math.inf
        if self.failures or self.misses or self.unproven:
            self.failures = self.misses = 0
            self.unproven = self.reason = ""

    def failed(self, error: BaseException) -> None:
        """Record a request that failed or reached the model's time limit. Errors that the request itself caused do not
        count."""
        if isinstance(error, EngineUnusable | DeadlineExceeded) or not isinstance(error, EdgedError):
            self.failures += 1
            self.reason = str(error)

    def cancelled(self, error: BaseException, now: float) -> None:
        """Record a request that ended with an error after its client had cancelled it, or after the client's deadline.

        The host then stops the request, so the error usually proves nothing. But clients may also give up because the
        engine hangs. So such a request counts as failed if the first one was a minute ago, and none was answered since.
        """
        self._cancelled_at = min(self._cancelled_at, now)
        if now - self._cancelled_at >= _SILENT_SECONDS:
            self.failed(error)

    def missed(self, error: BaseException) -> None:
        """Record a failed probe."""
        self.misses += 1
        self.reason = str(error)

    @property
    def is_suspect(self) -> bool:
        """Whether a probe should be sent now."""
        return self.failures >= _SUSPECT or self.misses > 0

    def is_failing(self, most: int) -> bool:
        """Whether the engine no longer answers: `most` probes in a row failed, or one probe and several requests
        failed."""
        return self.misses >= most or (self.misses > 0 and self.failures >= _SUSPECT)


class ServingSession:
    """An open engine and its state between batches."""

    def __init__(
        self,
        link: HostLink,
        number: int,
        engine: EngineRef,
        apart: str = "",
        parallelism: Parallelism = ONE_INSTANCE,
    ) -> None:
        """`apart` names the separate host that opened the engine; empty for the shared host."""
        self.link, self.number, self.engine, self.apart = link, number, engine, apart
        self.parallelism = parallelism
        self.most_in_flight = parallelism.instances + 1  # batches: one is prepared or sent while the others run
        self.in_flight = 0
        self.runs_suspect = False  # the batch in flight may have killed an earlier host
        self.batching, self.rows = engine.batching, engine.rows
        self.latency = LatencyWindow()
        self.health = SessionHealth()
        self.reply_bytes = 0  # the size of the largest answer so far; this much is reserved for the next one
        self.idle = asyncio.Event()
        self.idle.set()

    async def retire(self) -> None:
        """Finish the work in flight, then close the engine."""
        await self.idle.wait()
        await self.link.close_session(self.number)


_MEAN_SECONDS = 1.0  # time constant of the exponential mean
_MANY, _FEW = 1.5, 1.1  # mean pieces of work, waiting or in progress
_CALM_SECONDS = 10.0  # after this time with a mean below _FEW, demand counts as low again


class Demand:
    """Measures the mean amount of work that a slot has, waiting or in progress. Times are monotonic seconds.

    A single client that waits for each answer causes a mean of at most one. If the mean is larger, some work waits for
    other work.
    """

    __slots__ = ("_count", "_few_since", "_is_high", "_mean", "_then")

    def __init__(self) -> None:
        self._count, self._mean, self._then = 0, 0.0, 0.0
        self._is_high, self._few_since = False, math.inf

    def note(self, count: int, now: float) -> None:
        """Record that `count` frames and requests wait or are in progress from `now` on."""
        self._advance(now)
        self._count = count

    def is_high(self, now: float) -> bool:
        """Whether there is enough work for several inferences at a time. Call this method regularly. The result becomes
        true when the mean number of frames and requests reaches 1.5, and false only after the mean has been below 1.1
        for ten seconds."""
        self._advance(now)
        if self._mean >= _MANY:
            self._is_high = True
        if self._mean >= _FEW:
            self._few_since = math.inf
        else:
            self._few_since = min(self._few_since, now)
            if now - self._few_since >= _CALM_SECONDS:
                self._is_high = False
        return self._is_high

    def _advance(self, now: float) -> None:
        passed = now - self._then
        if passed > 0:
            self._mean = self._count + (self._mean - self._count) * math.exp(-passed / _MEAN_SECONDS)
            self._then = now
