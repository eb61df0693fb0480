"""One run of perf_analyzer: its options and its results."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, field

from tests.system.perf_analyzer.fetched import Program

# A few windows, each long enough for a slow box.
_MEASURE = ("-p", "1500", "-r", "3")
# The tolerated difference between windows, in per cent. An unstable run is repeated with a higher tolerance.
_STABLE = ("50", "100", "300")
_SECONDS = 240  # a longer run hangs: a busy box needs a quarter of that
_RESULT = re.compile(r"^Concurrency: (\d+), throughput: ([\d.]+) infer/sec", re.MULTILINE)
_P99 = re.compile(r"^\s*p99 latency: (\d+) usec", re.MULTILINE)
# Problems that it prints although its exit status is 0.
_TROUBLE = re.compile(r"^.*(?:error|failed|WARNING).*$", re.MULTILINE | re.IGNORECASE)
# Warnings about CUDA shared memory of each device, and about a newer version of the program.
_HARMLESS = re.compile(r"deprecat|unable to (?:get|determine).*(?:metrics|version)|genai-perf", re.IGNORECASE)
# A load that does not become stable on a busy box is not the server's fault.
_UNSTABLE = re.compile(r"Failed to obtain stable measurement|Request latency is not stabilizing", re.IGNORECASE)

MODES: dict[str, tuple[str, ...]] = {
    "sync": ("--sync",),
    "async": ("--async",),
    "streaming": ("--streaming",),
    "shared memory": ("--shared-memory", "system"),
}


@dataclass(frozen=True)
class Run:
    """The result: requests answered per second and their 99th percentile in milliseconds, by concurrency, and what went
    wrong, if anything."""

    throughput: dict[int, float]
    problem: str = ""
    p99_ms: dict[int, float] = field(default_factory=dict)


def run(program: Program, address: str, model: str, mode: str, options: tuple[str, ...], concurrency: str) -> Run:
    """Load `model` with a range of concurrency, `first:last:step`."""
    command = [str(program.path), "-m", model, "-u", address, "-i", "grpc", *MODES[mode], *options, *_MEASURE]
    command += ["--concurrency-range", concurrency]
    for stable in _STABLE:
        try:
            done = subprocess.run(
                [*command, "-s", stable], env=program.environment, capture_output=True, text=True, timeout=_SECONDS
            )
        except subprocess.TimeoutExpired:
            return Run({}, f"timed out after {_SECONDS} s")
        printed = done.stdout + done.stderr
        if not _UNSTABLE.search(printed):
            break
    found = {int(count): float(rate) for count, rate in _RESULT.findall(printed)}
    # The latencies of each concurrency appear once, in the order of the summary.
    latencies = [int(value) / 1e3 for value in _P99.findall(printed)]
    p99 = dict(zip(found, latencies, strict=False)) if len(latencies) >= len(found) else {}
    return Run(found, _problem(done.returncode, printed, found, concurrency), p99)


def _problem(status: int, printed: str, found: dict[int, float], concurrency: str) -> str:
    troubles = [line for line in _TROUBLE.findall(printed) if not _HARMLESS.search(line)]
    serious = [line.strip() for line in troubles if not _UNSTABLE.search(line)]
    if status < 0:
        return f"killed by signal {-status}: {printed.strip()[-300:]}"
    if serious or (status and not troubles):
        return f"exit status {status}: {'; '.join(serious[:3]) or printed.strip()[-300:]}"
    first, last, step = (int(part) for part in concurrency.split(":"))
    missing = [count for count in range(first, last + 1, step) if not found.get(count)]
    return f"no answers at concurrency {missing}: {printed.strip()[-300:]}" if missing else ""
