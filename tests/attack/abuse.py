"""What an abuse is, and all of them by name. `python -m tests.attack.abuse NAME TARGET SECONDS` does one."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TypeAlias

import msgspec

# The model that multiplies FP32[n,4] `x` by three into `y`, and the embedded detector, which the good camera asks.
NUMBERS, DETECTOR = "numbers", "shapes"


class Target(msgspec.Struct, frozen=True):
    """A daemon under attack: gRPC on a unix socket and on TCP, HTTP and metrics as HOST:PORT, and its process."""

    unix: str
    tcp: str
    http: str
    metrics: str
    pid: int


# Abuses the daemon until about `until` (time.monotonic()). What it is refused is no error.
Work: TypeAlias = Callable[[Target, float], None]


class Abuse(msgspec.Struct, frozen=True):
    """One thing that clients do. `goal` is the most that the good camera's p99 may be, in its idle p99s; None if only a
    firewall can hold it (docs/security.md)."""

    name: str
    work: Work
    goal: float | None = 3.0
    seconds: float = 10.0


def abuses() -> dict[str, Abuse]:
    """Every abuse by its name, in the order in which they are done."""
    from tests.attack import early_close, headers, messages, web

    return {each.name: each for module in (messages, headers, web, early_close) for each in module.ABUSES}


def main() -> None:
    name, target, seconds = sys.argv[1:]
    found = msgspec.json.decode(target, type=Target)
    abuses()[name].work(found, time.monotonic() + float(seconds))


if __name__ == "__main__":
    main()
