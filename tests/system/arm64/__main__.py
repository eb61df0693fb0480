"""`python -m tests.system.arm64 test|resolve`; see --help of each."""

from __future__ import annotations

import argparse
import fcntl
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.system.arm64 import Unavailable, resolution, suites, sysroot, turns
from tests.system.arm64.box import Box
from tests.system.arm64.earlier import Earlier

UNAVAILABLE = 77  # means "not run here" to test harnesses

_EPILOGUE = """environment:
  ARM64_CACHE     folder for downloads (XDG_CACHE_HOME/edged-arm64)
  ARM64_MIRROR    a mirror of Debian (default: the one that apt uses here)
  ARM64_RELEASE   the release of Debian whose Python runs (bookworm)
  ARM64_PATIENCE  how many times longer than usual a test may take (10)
  ARM64_JOBS      parts of the suites to run at a time (one per processor and 4 GiB)
  ARM64_CONTINUE  1: leave out the parts that an interrupted run of the same code has passed
  ARM64_LIMIT     time limit for all suites, in seconds (14400)
  QEMU_CPU        the emulated processor (cortex-a76, as good as an Orin's)

exit status: 0 success, 1 a failure, 77 not possible here; the reason is printed
"""


def main() -> int:
    arguments = _parse()
    try:
        if arguments.command == "resolve":
            return resolution.show(cache_folder())
        with _alone(cache_folder()):
            return _test(arguments)
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
    commands.add_parser("resolve", help="check that every dependency has a wheel for each aarch64 box")
    test = commands.add_parser("test", help="run the tests as aarch64 programs")
    test.add_argument("--suite", action="append", choices=suites.SUITES, help="default: all")
    test.add_argument(
        "tests", nargs="*", metavar="TEST", help="files or node ids to run instead, such as a/test_b.py::c"
    )
    words = sys.argv[1:]
    own = words[: words.index("--")] if "--" in words else words
    return parser.parse_args(own, argparse.Namespace(options=words[len(own) + 1 :]))


def _test(arguments: argparse.Namespace) -> int:
    if platform.machine() == "aarch64":
        raise Unavailable("this machine is an aarch64 itself; run make test")
    start = time.monotonic()
    cache, setting = cache_folder(), os.environ.get
    mirror = setting("ARM64_MIRROR") or sysroot.mirror_of_this_machine()
    system = sysroot.prepare(cache, setting("ARM64_RELEASE") or "bookworm", mirror)
    manner = suites.Manner(
        jobs=int(setting("ARM64_JOBS") or _jobs()),
        patience=float(setting("ARM64_PATIENCE") or 10),
        seconds=float(setting("ARM64_LIMIT") or 14400),
        named=bool(arguments.tests),
        options=arguments.options,
    )
    processor = setting("QEMU_CPU") or "cortex-a76"
    with tempfile.TemporaryDirectory(prefix="edged-arm64-") as scratch:
        box = Box(system, cache, processor, Path(scratch) / "tree")
        box.install()
        print(f"{sysroot.version_of(system.emulator)}, as {processor}", flush=True)
        box.tell()
        chosen = suites.parts(arguments.suite or list(suites.SUITES), arguments.tests)
        # Named tests, and tests that pytest's options select, are not whole parts.
        earlier = None if arguments.tests or manner.options else Earlier(cache / "outcomes", box.digest(manner))
        outcomes = turns.take(box, chosen, manner, earlier, is_continued=setting("ARM64_CONTINUE") == "1")
    print("\non aarch64:", *suites.summary(outcomes), sep="\n")
    print(f"all: {time.monotonic() - start:.0f} s, {manner.jobs} at a time")
    return int(not all(outcome.is_good for outcome in outcomes))


def _jobs() -> int:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(len(os.sched_getaffinity(0)), memory >> 32))


def cache_folder() -> Path:
    """Return the folder for everything that is downloaded."""
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
            raise Unavailable(f"another run uses {cache}: wait for it, or set ARM64_CACHE to another folder") from None
        yield


if __name__ == "__main__":
    sys.exit(main())
