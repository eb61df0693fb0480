"""Calls that end early: every method, with every way for a client to leave, at every point of a call.

The daemon must survive, answer afterwards, and keep no resources. `sweep` runs the calls;
`python -m tests.attack.early_close COUNT` runs them against its own daemon.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from random import Random
from typing import Final, Literal, TypeAlias, get_args

import grpc
import msgspec
from google.protobuf.message import Message
from grpc_reflection.v1alpha import reflection_pb2

from edged.api.auth import policy
from edged.proto import open_inference_pb2 as inference
from edged.proto import operations_pb2 as operations
from tests.attack.abuse import Abuse, Target
from tests.fuzz import goods, http2
from tests.fuzz.goods import Method
from tests.fuzz.live import FuzzedDaemon
from tests.fuzz.tally import Figures
from tests.integration import web
from tests.integration.daemon import wait_for
from tests.waiting import is_running

# How a client leaves: it resets the stream, closes the channel, drops the socket, or is killed.
Way: TypeAlias = Literal["cancel", "close", "drop", "kill"]
# When it leaves: before or after its first message, between messages, after its last one, or waiting for the answer.
Phase: TypeAlias = Literal["begun", "first", "between", "half-closed", "awaiting"]
WAYS: Final[tuple[Way, ...]] = get_args(Way)
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)

_AT_ONCE = 12  # calls of one killed process
_CALM_SECONDS = 60.0
_MORE_DESCRIPTORS, _MORE_THREADS, _MORE_TASKS, _MORE_MIB = 6, 4, 8, 150
# Sends one part per connection, prints "sent", and waits to be killed. Input: one part per line, in hexadecimal.
_KILLED = """
import socket, sys, time
held = []
for line in sys.stdin:
    held.append(socket.socket(socket.AF_UNIX))
    held[-1].connect(sys.argv[1])
    held[-1].sendall(bytes.fromhex(line))
print("sent", flush=True)
time.sleep(600)
"""


class Plan(msgspec.Struct, frozen=True):
    """One call: its method, when and how its client leaves, and what it sends before."""

    method: Method
    phase: Phase
    way: Way
    messages: tuple[bytes, ...]
    pause: float  # seconds before it leaves

    @property
    def is_half_closed(self) -> bool:
        return self.phase in ("half-closed", "awaiting")

    @property
    def wire(self) -> bytes:
        """Return the bytes that the client sends, with the call on stream 1."""
        last = len(self.messages) - 1
        parts = [
            http2.message(1, each, ends=self.is_half_closed and at == last) for at, each in enumerate(self.messages)
        ]
        return http2.PREFACE + http2.settings() + http2.call(1, self.method.path) + b"".join(parts)


class Held(msgspec.Struct, frozen=True):
    """The resources that an idle daemon holds."""

    figures: Figures
    tasks: int
    calls: int
    waiting: int

    @classmethod
    def of(cls, daemon: FuzzedDaemon) -> Held:
        reported = _metrics(daemon)
        calls = reported["edged_calls_open"] + reported["edged_call_bytes"]
        return cls(Figures.of(daemon.pid), reported["edged_tasks"], calls, reported["edged_model_queue_depth"])

    def grown(self, before: Held) -> str:
        """Describe what grew more than chance explains; empty if nothing did."""
        now, then = self.figures, before.figures
        found = [
            ("calls", self.calls, 0),
            ("requests that wait", self.waiting, 0),
            ("tasks", self.tasks, before.tasks + _MORE_TASKS),
            ("descriptors", now.descriptors, then.descriptors + _MORE_DESCRIPTORS),
            ("threads", now.threads, then.threads + _MORE_THREADS),
            ("MiB", now.resident, then.resident + _MORE_MIB),
        ]
        return ", ".join(f"{count} {what}, {most} at most" for what, count, most in found if count > most)


def plans(count: int, random: Random) -> Iterator[Plan]:
    """Yield `count` calls: every method with every way and phase in turn, all methods equally often."""
    every = list(itertools.product(goods.methods(), WAYS, PHASES))
    for number in range(count):
        if number % len(every) == 0:
            random.shuffle(every)
        method, way, phase = every[number % len(every)]
        many = method.takes_many and phase != "first"
        messages = () if phase == "begun" else tuple(_messages(method, 4 if many else 1, random))
        yield Plan(method, phase, way, messages, random.choice((0.0, 0.001, 0.02)) if phase != "begun" else 0.0)


def sweep(daemon: FuzzedDaemon, count: int, seed: int = 0) -> str:
    """Leave `count` calls early; return a one-line summary. AssertionError if the daemon dies, gives a wrong answer
    afterwards, or keeps resources of the calls."""
    random = Random(seed)
    everything = list(plans(count, random))
    by_way = {way: [plan for plan in everything if plan.way == way] for way in WAYS}
    before = calm(daemon, None)
    began = time.monotonic()
    for way, chosen in by_way.items():
        if way == "kill":
            for at in range(0, len(chosen), _AT_ONCE):
                _be_killed(daemon.unix, chosen[at : at + _AT_ONCE])
        else:
            addresses = daemon.unix, daemon.tcp
            threads = [threading.Thread(target=_leave_all, args=(addresses, chosen[each::3])) for each in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert is_running(daemon.pid), f"the daemon died: {way}\n{daemon.log.read_text(errors='replace')[-3000:]}"
        now = calm(daemon, before)
    return f"{len(everything)} calls in {time.monotonic() - began:.0f} s; {before}; {now}"


def calm(daemon: FuzzedDaemon, before: Held | None) -> Held:
    """Wait until the daemon answers correctly and holds no more than `before`."""
    with daemon.channel() as channel, contextlib.suppress(grpc.RpcError):
        everything = operations.SelectEngines(selector=operations.Selector(everything=True))
        channel.unary_unary("/edged.v1.Operations/Cancel")(everything.SerializeToString(), timeout=20)
    wait_for("a good call is answered", daemon.is_right, _CALM_SECONDS)
    held = [Held.of(daemon)]

    def has_settled() -> bool:
        held.append(Held.of(daemon))
        if before is not None:
            return not held[-1].grown(before)
        return held[-1].calls == held[-1].waiting == 0 and held[-1].tasks <= held[-2].tasks

    try:
        wait_for("the daemon has what it had before", has_settled, _CALM_SECONDS)
    except AssertionError as error:
        raise AssertionError(f"{error}: {held[-1].grown(before) if before else held[-1]}") from None
    return held[-1]


def services(daemon: FuzzedDaemon) -> set[str]:
    """Return the names of the daemon's gRPC services, by reflection."""
    path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    asked = reflection_pb2.ServerReflectionRequest(list_services="*").SerializeToString()
    with daemon.channel() as channel:
        (answer,) = channel.stream_stream(path)(iter([asked]), timeout=20)
    reported = reflection_pb2.ServerReflectionResponse.FromString(answer)
    return {each.name for each in reported.list_services_response.service}


def _messages(method: Method, most: int, random: Random) -> list[bytes]:
    known: list[Message] = [*goods.good(method), *_commands(method)] or [method.request()]
    return [each.SerializeToString() for each in (known * most)[:most]] or [random.choice(known).SerializeToString()]


def _commands(method: Method) -> list[Message]:
    """Return further requests; some start work that continues after the call."""
    victim = operations.Selector(model=goods.VICTIM)
    known: list[Message] = [
        operations.WatchEventsRequest(follow=True),
        inference.ModelReadyRequest(name=goods.NUMBERS),
        operations.ListEnginesRequest(model=goods.NUMBERS),
        operations.ExplainEngineRequest(model=goods.NUMBERS),
        operations.RebuildRequest(selector=victim, force=True),
    ]
    return [each for each in known if isinstance(each, method.request)]


def _leave_all(addresses: tuple[str, str], chosen: Sequence[Plan]) -> None:
    """Call over the unix socket, or over TCP if the plan has a pause and the method is open to anyone over TCP."""
    for plan in chosen:
        address = addresses[1 if plan.pause and not policy.is_audited(plan.method.path) else 0]
        if plan.way == "drop":
            _drop(address, plan)
        else:
            _leave(address, plan)


def _leave(address: str, plan: Plan) -> None:
    """Leave as gRPC's own client does: cancel the call or close the channel."""
    left = threading.Event()

    def requests() -> Iterator[bytes]:
        yield from plan.messages
        if not plan.is_half_closed:
            left.wait(60)

    with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        grpc.channel_ready_future(channel).result(20)
        call = channel.stream_stream(plan.method.path)(requests())
        time.sleep(plan.pause)
        if plan.phase == "awaiting" and plan.method.gives_many:
            with contextlib.suppress(grpc.RpcError, StopIteration):
                threading.Timer(1.0, call.cancel).start()
                next(call)
        if plan.way == "cancel":
            call.cancel()
        left.set()


def _drop(address: str, plan: Plan) -> None:
    """Leave as a client whose machine disappears: over TCP, with a reset."""
    with contextlib.suppress(OSError), http2.connect(address) as connection:
        connection.sendall(plan.wire)
        time.sleep(plan.pause)
        if plan.phase == "awaiting":
            connection.settimeout(0.05)
            with contextlib.suppress(OSError):
                connection.recv(1 << 16)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def _be_killed(unix: str, chosen: Sequence[Plan]) -> None:
    """Leave as a process that receives SIGKILL with several calls under way."""
    command = [sys.executable, "-S", "-E", "-c", _KILLED, unix.removeprefix("unix:")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write("".join(f"{plan.wire.hex()}\n" for plan in chosen))
            process.stdin.close()
        assert process.stdout.readline() in ("sent\n", "")
        time.sleep(max(plan.pause for plan in chosen))
        process.kill()


def _abuse(target: Target, until: float) -> None:
    """As `sweep`, until `until`, without operators' commands: those start work that continues after the call."""
    random = Random(0)
    chosen = [plan for plan in plans(2000, random) if not policy.is_audited(plan.method.path)]
    for at in itertools.cycle(range(0, len(chosen), _AT_ONCE)):
        if time.monotonic() > until:
            return
        some = chosen[at : at + _AT_ONCE]
        _leave_all((target.unix, target.tcp), [plan for plan in some if plan.way != "kill"])
        if killed := [plan for plan in some if plan.way == "kill"]:
            _be_killed(target.unix, killed)


ABUSES = (Abuse("calls that end early", _abuse),)


def _metrics(daemon: FuzzedDaemon) -> dict[str, int]:
    """Return each metric's sum over all labels, by name."""
    text = web.ask(f"http+unix:{daemon.metrics}", "GET", "/metrics")[2].decode()
    found: dict[str, int] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            name = name.partition("{")[0]
            found[name] = found.get(name, 0) + (int(float(value)) if float(value) < 1e18 else 0)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack.early_close", description=__doc__)
    parser.add_argument("count", nargs="?", type=int, default=5000, help="how many calls")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with FuzzedDaemon() as daemon:
        for name in (goods.NUMBERS, goods.TEXTS, goods.SHAPES):
            daemon.ready(name)
        sweep(daemon, 200, arguments.seed)  # warm up: code that runs first is loaded first
        print(sweep(daemon, arguments.count, arguments.seed + 1))
        return daemon.stop()


if __name__ == "__main__":
    sys.exit(main())
