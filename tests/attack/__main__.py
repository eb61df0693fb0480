"""`make attack`: measure the answer times of a well-behaved camera while clients abuse the daemon, one abuse at a time.

The camera's p50 and p99 are compared with its own values on an idle daemon. The exit status is 1 if the daemon dies, an
answer fails, or a p99 is more than twice its goal. A failed abuse is tried a second time, because the abuser shares the
processors with the daemon and one ratio proves little. A goal of - means that only a firewall can limit the flood
(docs/security.md). Uses loopback and unix sockets only.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence

import msgspec

from edged.shapes import MODEL_PATH
from tests.attack.abuse import DETECTOR, NUMBERS, Abuse, Target, abuses
from tests.fuzz.tally import Figures
from tests.integration import onnx_files
from tests.integration.daemon import Daemon
from tests.waiting import is_running

_IDLE_SECONDS = 12.0
_TIMES_GOAL = 2.0  # up to this multiple of its goal, a ratio may be noise
_LEAST_IDLE_MS = 10.0  # below this, the machine's clock counts more than the daemon
_LOOK_SECONDS = 0.1
_HEADER = f"{'abuse':34} {'p50 ms':>8} {'p99 ms':>8} {'ratio':>6} {'goal':>5} {'failed':>6} {'RSS MiB':>8}"


class AttackedDaemon(Daemon):
    """A daemon that serves gRPC, HTTP and metrics with the default limits."""

    def __init__(self) -> None:
        config = '[http]\nlisten = "127.0.0.1:0"\n[metrics]\nlisten = "127.0.0.1:0"\n'
        super().__init__("--model", f"{DETECTOR}={MODEL_PATH}", builds=False, config=config, endpoints=2)
        onnx_files.scale(self.models / f"{NUMBERS}.onnx", 3.0)

    @property
    def target(self) -> Target:
        web = {each.partition("://")[2].partition("/")[0] for each in self.addresses[2:] if "/metrics" not in each}
        metrics = {each.partition("://")[2].partition("/")[0] for each in self.addresses[2:] if "/metrics" in each}
        return Target(self.unix, self.tcp, *web, *metrics, self.pid)


class Seen(msgspec.Struct, frozen=True):
    """What the camera measured in one period, and the daemon's largest resident memory in MiB."""

    p50: float
    p99: float
    answers: int
    failed: tuple[str, ...]
    resident: int


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("names", nargs="*", help="the abuses (all)", metavar="ABUSE")
    parser.add_argument("--list", action="store_true", help="print the names and exit")
    arguments = parser.parse_args()
    known = abuses()
    if arguments.list:
        print("\n".join(known))
        return 0
    chosen = [known[name] for name in arguments.names or known]
    failures: list[str] = []
    with AttackedDaemon() as daemon:
        for model in (NUMBERS, DETECTOR):
            daemon.ready(model)
        watch(daemon, 3.0)  # warm up: code that runs first is loaded first
        idle = watch(daemon, _IDLE_SECONDS)
        print(f"{_HEADER}\n{_row('idle', idle, idle, 1.0)}", flush=True)
        for abuse in chosen:
            found = attack(daemon, abuse)
            problems = _problems(daemon, abuse, found, idle)
            if problems and is_running(daemon.pid):
                print(_row(f"{abuse.name} (first)", found, idle, abuse.goal), flush=True)
                found = attack(daemon, abuse)
                problems = _problems(daemon, abuse, found, idle)
            print(_row(abuse.name, found, idle, abuse.goal), flush=True)
            failures += [f"{abuse.name}: {problem}" for problem in problems]
            if not is_running(daemon.pid):
                print(daemon.log.read_text()[-3000:])
                break
        else:
            status = daemon.stop()
            failures += [f"the daemon ended with status {status}"] if status else []
    print("\n".join(failures) if failures else f"{len(chosen)} abuses: no answer failed")
    return 1 if failures else 0


def attack(daemon: AttackedDaemon, abuse: Abuse) -> Seen:
    """Run an abuse; return what the camera measured during it."""
    command = [sys.executable, "-m", "tests.attack.abuse", abuse.name, msgspec.json.encode(daemon.target).decode()]
    # At a low priority: in the field the abuser runs on another machine.
    client = subprocess.Popen(["nice", "-n", "10", *command, str(abuse.seconds)], stderr=subprocess.PIPE, text=True)
    try:
        return watch(daemon, abuse.seconds)
    finally:
        client.kill()
        _, output = client.communicate()
        if output.strip():
            print(f"  {abuse.name}: {output.strip().splitlines()[-1][:200]}", file=sys.stderr)
        time.sleep(1.0)  # the daemon cleans up after the abuser


def watch(daemon: Daemon, seconds: float) -> Seen:
    """Return what a camera measures during `seconds`."""
    command = [sys.executable, "-m", "tests.attack.camera", daemon.tcp, DETECTOR, str(seconds)]
    resident = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as camera:
        while camera.poll() is None:
            if is_running(daemon.pid):
                resident = max(resident, Figures.of(daemon.pid).resident)
            time.sleep(_LOOK_SECONDS)
        assert camera.stdout is not None
        lines = [line.split(maxsplit=2) for line in camera.stdout]
    taken = sorted(float(milliseconds) for _, milliseconds, _ in lines)
    failed = tuple(outcome.strip() for *_, outcome in lines if outcome.strip() != "ok")
    if not taken:
        return Seen(0.0, 0.0, 0, ("the camera received no answer",), resident)
    return Seen(_at(taken, 0.5), _at(taken, 0.99), len(taken), failed, resident)


def _problems(daemon: Daemon, abuse: Abuse, found: Seen, idle: Seen) -> list[str]:
    """Return what went wrong during an abuse."""
    if not is_running(daemon.pid):
        return ["the daemon died"]
    problems = [f"{len(found.failed)} answers failed: {found.failed[0]}"] if found.failed else []
    if abuse.goal is not None and _ratio(found, idle) > _TIMES_GOAL * abuse.goal:
        problems.append(f"p99 is {_ratio(found, idle):.1f} times the idle one, the goal is {abuse.goal:g}")
    return problems


def _ratio(found: Seen, idle: Seen) -> float:
    return found.p99 / max(idle.p99, _LEAST_IDLE_MS)


def _row(name: str, found: Seen, idle: Seen, goal: float | None) -> str:
    ratio, failed, aim = _ratio(found, idle), len(found.failed), "-" if goal is None else f"{goal:.1f}"
    return f"{name:34} {found.p50:8.1f} {found.p99:8.1f} {ratio:6.1f} {aim:>5} {failed:6} {found.resident:8}"


def _at(taken: Sequence[float], share: float) -> float:
    """Return the quantile `share` of sorted values."""
    return taken[min(len(taken) - 1, int(share * len(taken)))]


if __name__ == "__main__":
    sys.exit(main())
