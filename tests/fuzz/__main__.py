"""`make fuzz`: send nonsense to every call of a daemon, to its handlers and over its sockets. Exit status 1 after a
failure; the printed seed replays it."""

from __future__ import annotations

import argparse
import random
import sys
import time

import uvloop

from tests.fuzz.tally import Tally


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument(
        "--handlers", type=int, default=200_000, metavar="N", help="messages for handlers in this process"
    )
    parser.add_argument("--live", type=int, default=20_000, metavar="N", help="messages for a live daemon")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}: replay with make fuzz SEED={arguments.seed}", flush=True)
    is_right = True
    if arguments.live:
        from tests.fuzz import live

        is_right &= _reported("a live daemon", live.run, arguments.live, arguments.seed)
    if arguments.handlers:
        from tests.fuzz import handlers

        is_right &= _reported(
            "handlers", lambda n, tally: uvloop.run(handlers.run(n, tally)), arguments.handlers, arguments.seed
        )
    return 0 if is_right else 1


def _reported(what: str, work: object, count: int, seed: int) -> bool:
    """Do the work and print its figures; return True if there was no failure."""
    tally, began = Tally(seed), time.monotonic()
    lines = work(count, tally)  # type: ignore[operator]
    print(f"{what}: {tally.total} messages in {time.monotonic() - began:.0f} s")
    print("\n".join([*tally.reported(), *lines]), flush=True)
    return not tally.failures


if __name__ == "__main__":
    sys.exit(main())
