"""Kill a daemon's processes at random moments while 13 models answer: `python -m tests.attack.kills`.

In each round an engine host, a build child or the tracker gets SIGKILL, or a host gets SIGSTOP. Twelve models receive
requests at a steady rate and every answer is checked; a camera streams with object tracking. The exit status is 1 if
the daemon dies, a request fails or has a wrong answer, a model pauses for too long, or anything stays behind.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator

import grpc
import msgspec
import numpy as np

from edged.client import AsyncClient
from edged.errors import EdgedError
from edged.shapes import MODEL_PATH, Scene
from tests.integration import onnx_files
from tests.integration.daemon import Daemon, children, job_server
from tests.integration.inference_calls import method, request
from tests.waiting import is_running

DETECTOR = "detector"
_PATIENCE = 30.0  # timeout of a request
_PERIOD = 0.075  # between two requests for a model
_FPS = 5
# The shared host, and a host for suspects after two kills in a row, of which an old and a new one may overlap.
_MOST_HOSTS = 3
_CHILD, _JOB_SERVER = "edged.jobs.server", "job server"  # a child has the command line of its job server
_VICTIMS = {"edged.host.main": 12, "edged.tracker.main": 3, _CHILD: 3, _JOB_SERVER: 1, "stopped host": 1}


class Seen(msgspec.Struct):
    """What the clients saw. Times are in seconds."""

    answers: int = 0
    frames: int = 0
    longest: float = 0.0  # between two answers of one model
    failures: list[str] = msgspec.field(default_factory=list)
    kills: Counter[str] = msgspec.field(default_factory=Counter)
    hosts: int = 0  # most at one time

    def problems(self, longest: float) -> list[str]:
        found = self.failures[:10]
        if self.longest > longest:
            found.append(f"a model paused for {self.longest:.1f} s, {longest:g} s are the most")
        if self.hosts > _MOST_HOSTS:
            found.append(f"{self.hosts} hosts ran at a time")
        return found

    def line(self) -> str:
        kills = ", ".join(f"{count} x {victim}" for victim, count in sorted(self.kills.items()))
        return (
            f"{self.answers} answers and {self.frames} frames, {len(self.failures)} failed; longest pause"
            f" {self.longest:.2f} s; {self.hosts} hosts at most; killed: {kills}"
        )


def prepared(models: int = 12) -> Daemon:
    """Return a daemon with `models` small models and the detector. It builds no engines by itself."""
    daemon = Daemon("--model", f"{DETECTOR}={MODEL_PATH}", builds=False)
    for number in range(models):
        onnx_files.scale(daemon.models / f"m{number}.onnx", number + 2.0)
    return daemon


async def torture(daemon: Daemon, rounds: int, period: float, seed: int = 1) -> Seen:
    """Kill a process in each of `rounds` rounds, on average `period` seconds apart, while clients send requests."""
    seen, over = Seen(), asyncio.Event()
    models = [file.stem for file in sorted(daemon.models.glob("m*.onnx"))]
    async with grpc.aio.insecure_channel(daemon.unix) as channel:
        asking = [asyncio.create_task(_ask(channel, name, seen, over)) for name in models]
        asking.append(asyncio.create_task(_watch(daemon, seen, over)))
        await asyncio.sleep(2.0)
        try:
            await _kill(daemon, models[0], rounds, period, random.Random(seed), seen)
            await asyncio.sleep(5.0)
        finally:
            over.set()
            await asyncio.gather(*asking)
    return seen


def left_behind(daemon: Daemon) -> list[str]:
    """Stop the daemon with a signal; return what should not be left."""
    family = daemon.children()
    status = daemon.stop()
    log = daemon.log.read_text(errors="replace")
    found = [f"the daemon ended with status {status}"] if status else []
    found += [f"left: {line}" for pid, line in family.items() if is_running(pid)]
    found += [line for line in log.splitlines() if "unexpected" in line or "quarantined" in line or "Traceback" in line]
    return found


async def _ask(channel: grpc.aio.Channel, name: str, seen: Seen, over: asyncio.Event) -> None:
    infer = method(channel, "ModelInfer")
    factor, dice, last = int(name[1:]) + 2, random.Random(name), time.monotonic()
    while not over.is_set():
        values = np.array([dice.randrange(1000) for _ in range(4)], np.float32)
        asked = request(name, values[None])
        try:
            answer = np.frombuffer((await infer(asked, timeout=_PATIENCE)).raw_output_contents[0], np.float32)
        except grpc.RpcError as error:
            seen.failures.append(f"{name}: {error.code().name} {error.details()}")
        else:
            seen.answers += 1
            if not np.array_equal(answer, values * factor):
                seen.failures.append(f"{name}: a wrong answer")
        now = time.monotonic()
        seen.longest, last = max(seen.longest, now - last), now
        await asyncio.sleep(_PERIOD * (0.5 + dice.random()))


async def _watch(daemon: Daemon, seen: Seen, over: asyncio.Event) -> None:
    """Stream from a camera with tracking."""
    frame = Scene(5).frame(1)[0]

    async def frames() -> AsyncIterator[np.ndarray]:
        while not over.is_set():
            yield frame
            await asyncio.sleep(1 / _FPS)

    async with AsyncClient(daemon.unix) as client:
        try:
            async for result in client.stream(DETECTOR, frames(), camera="door", track=True):
                seen.frames += 1
                if result.error is not None:
                    seen.failures.append(f"camera: {result.error}")
        except EdgedError as error:
            seen.failures.append(f"camera: {error}")


async def _kill(daemon: Daemon, built: str, rounds: int, period: float, dice: random.Random, seen: Seen) -> None:
    async with AsyncClient(daemon.unix) as client:
        for _ in range(rounds):
            victim = dice.choices([*_VICTIMS], [*_VICTIMS.values()])[0]
            until = time.monotonic() + period * dice.uniform(0.3, 1.7)
            if victim in (_CHILD, _JOB_SERVER):
                with contextlib.suppress(EdgedError):  # a build is under way
                    await (await client.rebuild(built, force=True, follow=False)).aclose()
            while time.monotonic() < until and is_running(daemon.pid):
                await asyncio.sleep(0.05)
                seen.hosts = max(seen.hosts, len(_found(daemon, "edged.host.main")))
            if not _found(daemon, victim):  # no build or tracker runs
                victim = "edged.host.main"
            if not is_running(daemon.pid):
                seen.failures.append("the daemon died")
                return
            if found := _found(daemon, victim):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(dice.choice(found), signal.SIGSTOP if victim == "stopped host" else signal.SIGKILL)
                    seen.kills[victim.removeprefix("edged.").removesuffix(".main")] += 1


def _found(daemon: Daemon, victim: str) -> list[int]:
    if victim == _JOB_SERVER:
        server = job_server(daemon.pid)
        return [] if server is None else [server]
    wanted = "edged.host.main" if victim == "stopped host" else victim
    return [pid for pid, line in children(daemon.pid).items() if wanted in line]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack.kills", description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--period", type=float, default=2.0, help="seconds between two rounds, on the average")
    parser.add_argument("--longest", type=float, default=_PATIENCE, help="longest accepted pause of a model in s")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with prepared() as daemon:
        for file in sorted(daemon.models.glob("m*.onnx")):
            daemon.ready(file.stem)
        daemon.ready(DETECTOR)
        seen = asyncio.run(torture(daemon, arguments.rounds, arguments.period, arguments.seed))
        print(f"{arguments.rounds} rounds: {seen.line()}", flush=True)
        problems = [*seen.problems(arguments.longest), *left_behind(daemon)]
        print("\n".join(problems) or "no failure")
        if problems:
            log = daemon.log.read_text(errors="replace")
            begin = max(0, log.find("Traceback") - 500)
            print(log[begin : begin + 4000] if begin else "", log[-6000:], sep="\n[...]\n", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
