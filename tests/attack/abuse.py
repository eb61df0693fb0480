"""The abuse type, and all abuses by name. `python -m tests.attack.abuse NAME TARGET SECONDS` runs one."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TypeAlias

import msgspec

# A model that multiplies FP32[n,4] `x` by three into `y`, and the embedded detector, which the good camera uses.
NUMBERS, DETECTOR = "numbers", "shapes"


class Target(msgspec.Struct, frozen=True):
    """A daemon under attack: gRPC on a unix socket and on TCP, HTTP and metrics as HOST:PORT, and its process."""

    unix: str
    tcp: str
    http: str
    metrics: str
    pid: int


# Abuses the daemon until about `until` (time.monotonic()). A refused call is not an error.
Work: TypeAlias = Callable[[Target, float], None]


class Abuse(msgspec.Struct, frozen=True):
    """One kind of abuse. `goal` is the highest accepted p99 of the good camera, as a multiple of its idle p99; None if
    only a firewall can limit the abuse (docs/security.md)."""

    name: str
    work: Work
    goal: float | None = 3.0
    seconds: float = 10.0


def abuses() -> dict[str, Abuse]:
    """Return every abuse by name, in the order in which they run."""
    from tests.attack import early_close, headers, messages, web

    return {each.name: each for module in (messages, headers, web, early_close) for each in module.ABUSES}


def main() -> None:
    name, target, seconds = sys.argv[1:]
    found = msgspec.json.decode(target, type=Target)
    abuses()[name].work(found, time.monotonic() + float(seconds))


if __name__ == "__main__":
    main()
