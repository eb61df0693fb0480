"""One run of the program: how it asks, and what it printed."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, field

from tests.system.perf_analyzer.fetched import Program

# A window long enough for a slow box, and few of them.
_MEASURE = ("-p", "1500", "-r", "3")
# Per cent that the windows may differ by. Where a busy box is not so stable it is tried again, with more.
_STABLE = ("50", "100", "300")
_SECONDS = 240  # a run that takes longer hangs: it needs a quarter of that on a busy box
_RESULT = re.compile(r"^Concurrency: (\d+), throughput: ([\d.]+) infer/sec", re.MULTILINE)
_P99 = re.compile(r"^\s*p99 latency: (\d+) usec", re.MULTILINE)
# What it prints while its exit status is 0 all the same.
_TROUBLE = re.compile(r"^.*(?:error|failed|WARNING).*$", re.MULTILINE | re.IGNORECASE)
# It tells of every device that it cannot share memory by CUDA, and of itself that a newer program exists.
_HARMLESS = re.compile(r"deprecat|unable to (?:get|determine).*(?:metrics|version)|genai-perf", re.IGNORECASE)
# A load that does not settle on a box that has other work is no fault of the server.
_UNSTABLE = re.compile(r"Failed to obtain stable measurement|Request latency is not stabilizing", re.IGNORECASE)

MODES: dict[str, tuple[str, ...]] = {
    "sync": ("--sync",),
    "async": ("--async",),
    "streaming": ("--streaming",),
    "shared memory": ("--shared-memory", "system"),
}


@dataclass(frozen=True)
class Run:
    """What came of it: requests answered per second and their 99th percentile in milliseconds, by concurrency, and what
    went wrong, if anything."""

    throughput: dict[int, float]
    problem: str = ""
    p99_ms: dict[int, float] = field(default_factory=dict)


def run(program: Program, address: str, model: str, mode: str, options: tuple[str, ...], concurrency: str) -> Run:
    """Loads `model` at a range of concurrency, `first:last:step`."""
    command = [str(program.path), "-m", model, "-u", address, "-i", "grpc", *MODES[mode], *options, *_MEASURE]
    command += ["--concurrency-range", concurrency]
    for stable in _STABLE:
        try:
            done = subprocess.run(
                [*command, "-s", stable], env=program.environment, capture_output=True, text=True, timeout=_SECONDS
            )
        except subprocess.TimeoutExpired:
            return Run({}, f"it hung: no end within {_SECONDS} s")
        printed = done.stdout + done.stderr
        if not _UNSTABLE.search(printed):
            break
    found = {int(count): float(rate) for count, rate in _RESULT.findall(printed)}
    # The latencies of a concurrency are printed once, in the order of the summary.
    latencies = [int(value) / 1e3 for value in _P99.findall(printed)]
    p99 = dict(zip(found, latencies, strict=False)) if len(latencies) >= len(found) else {}
    return Run(found, _problem(done.returncode, printed, found, concurrency), p99)


def _problem(status: int, printed: str, found: dict[int, float], concurrency: str) -> str:
    troubles = [line for line in _TROUBLE.findall(printed) if not _HARMLESS.search(line)]
    serious = [line.strip() for line in troubles if not _UNSTABLE.search(line)]
    if status < 0:
        return f"it died of signal {-status}: {printed.strip()[-300:]}"
    if serious or (status and not troubles):
        return f"exit status {status}: {'; '.join(serious[:3]) or printed.strip()[-300:]}"
    first, last, step = (int(part) for part in concurrency.split(":"))
    missing = [count for count in range(first, last + 1, step) if not found.get(count)]
    return f"nothing was answered at concurrency {missing}: {printed.strip()[-300:]}" if missing else ""
