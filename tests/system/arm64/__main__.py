"""`python -m tests.system.arm64 test|resolve|run`; see --help of each."""

from __future__ import annotations

import argparse
import fcntl
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.system.arm64 import Unavailable, resolution, suites, sysroot

UNAVAILABLE = 77  # what a test harness takes for "not run here"

_EPILOGUE = """environment:
  ARM64_CACHE     where what was fetched is kept (XDG_CACHE_HOME/edged-arm64)
  ARM64_MIRROR    a mirror of Debian (the one that apt uses here)
  ARM64_RELEASE   the release of Debian whose Python runs (bookworm)
  ARM64_PATIENCE  how many times longer than usual a test may take (6)
  ARM64_LIMIT     seconds that one suite may take in all (5400)
  QEMU_CPU        the processor that is emulated (cortex-a76, as good as an Orin's)

exit status: 0 all is well, 1 something failed, 77 it cannot be done here, for the reason told
"""


def main() -> int:
    arguments = _parse()
    try:
        if arguments.command == "resolve":
            return resolution.show(cache_folder())
        with _alone(cache_folder()):
            return _test(arguments.suite or list(suites.SUITES), arguments.rest)
    except Unavailable as error:
        print(f"not run: {error}", file=sys.stderr)
        return UNAVAILABLE
    except KeyboardInterrupt:
        return 130


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.system.arm64",
        description=__doc__,
        epilog=_EPILOGUE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("resolve", help="is there a wheel of everything for each aarch64 box")
    test = commands.add_parser("test", help="run the tests as aarch64 programs")
    test.add_argument("--suite", action="append", choices=suites.SUITES, help="all of them when none is named")
    test.add_argument("rest", nargs="*", metavar="PYTEST", help="what follows -- goes to pytest")
    return parser.parse_args()


def _test(names: list[str], rest: list[str]) -> int:
    if platform.machine() == "aarch64":
        raise Unavailable("this machine is an aarch64 itself: run make test")
    cache, setting = cache_folder(), os.environ.get
    mirror = setting("ARM64_MIRROR") or sysroot.mirror_of_this_machine()
    system = sysroot.prepare(cache, setting("ARM64_RELEASE") or "bookworm", mirror)
    box = suites.Box(system, cache, setting("QEMU_CPU") or "cortex-a76")
    box.install()
    print(sysroot.version_of(system.emulator))
    box.tell()
    patience, limit = float(setting("ARM64_PATIENCE") or 6), float(setting("ARM64_LIMIT") or 5400)
    outcomes = [box.run(name, rest, patience, limit) for name in names]
    print("\non aarch64:", *suites.summary(outcomes), sep="\n")
    return int(any(outcome.status for outcome in outcomes))


def cache_folder() -> Path:
    """Where everything is kept that was fetched."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cache = Path(os.environ.get("ARM64_CACHE") or Path(base) / "edged-arm64").absolute()
    cache.mkdir(parents=True, exist_ok=True)
    return cache


@contextmanager
def _alone(cache: Path) -> Iterator[None]:
    with (cache / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unavailable(f"another run uses {cache}: wait for it, or name another folder by ARM64_CACHE") from None
        yield


if __name__ == "__main__":
    sys.exit(main())
