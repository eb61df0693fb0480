"""A real daemon on real sockets, in phases of different nonsense. After each phase, answers and memory are checked."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import grpc

from edged.proto import open_inference_pb2 as pb
from tests.fuzz import PATIENCE, goods
from tests.fuzz.goods import Method
from tests.fuzz.messages import Writer
from tests.fuzz.spoiling import spoiled
from tests.fuzz.statuses import ALLOWED, OF_A_CONNECTION
from tests.fuzz.tally import Figures, Tally
from tests.integration.daemon import Daemon, wait_for

Phase: TypeAlias = "Callable[[FuzzedDaemon, Random, int, Tally], None]"

_CHANNELS = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]


class FuzzedDaemon(Daemon):
    """A daemon with every kind of listener."""

    def __init__(self) -> None:
        super().__init__(
            builds=False,
            config='max_message_mb = 32\n[http]\nlisten = "unix:HOME/http.sock"\nbody_mb = 8\n'
            '[metrics]\nlisten = "unix:HOME/metrics.sock"\n[zmq]\nframes = "ipc://HOME/frames"\n'
            f'[frigate]\nendpoint = "ipc://HOME/frigate"\nmodel = "{goods.SHAPES}"\nuploads = true\n'
            f'[pipelines.{goods.TWICE}]\ndetect = "{goods.SHAPES}"\nthen = "{goods.SHAPES}"\n',
        )
        self.http, self.metrics = self.home / "http.sock", self.home / "metrics.sock"
        self.frames, self.frigate = f"ipc://{self.home}/frames", f"ipc://{self.home}/frigate"
        goods.write_models(self.models)

    def run_by(self, command: str) -> None:
        """Run a shell command in the daemon's process before the daemon starts, for example to set a limit."""
        script = self.home / "python"
        script.write_text(f'#!/bin/sh\n{command} && exec {sys.executable} "$@"\n')
        script.chmod(0o755)
        self._python = script

    @contextlib.contextmanager
    def channel(self, address: str = "") -> Iterator[grpc.Channel]:
        """Open a new connection."""
        with grpc.insecure_channel(address or self.unix, options=_CHANNELS) as channel:
            yield channel

    def is_right(self) -> bool:
        """Return `truth()`, or False if a call fails."""
        with contextlib.suppress(grpc.RpcError):
            return self.truth()
        return False

    def truth(self, rows: int = 3, address: str = "") -> bool:
        """Return True if the daemon is live and an inference has the right answer."""
        request = goods.truth(rows)
        with self.channel(address) as channel:
            live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"", timeout=PATIENCE)
            infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            reported = pb.ModelInferResponse.FromString(infer(request.SerializeToString(), timeout=PATIENCE))
        return bool(live) and list(reported.raw_output_contents) == list(request.raw_input_contents)


def run(count: int, tally: Tally) -> list[str]:
    """Run all phases, about `count` messages in total. Return a line about the process after each."""
    from tests.fuzz import garbage, rest, zmq_messages

    phases: Sequence[tuple[str, float, Phase]] = (
        ("spoiled messages", 0.55, spoiled_messages),
        ("spoiled streams", 0.12, spoiled_streams),
        ("oversize", 0.005, oversize),
        ("HTTP/2 garbage", 0.06, garbage.frames),
        ("resets", 0.1, garbage.resets),
        ("garbage everywhere", 0.02, garbage.everywhere),
        ("HTTP", 0.09, rest.requests),
        ("ZeroMQ frames", 0.04, zmq_messages.frames),
        ("Frigate", 0.02, zmq_messages.frigate),
    )
    segment, lines = Path("/dev/shm") / goods.SEGMENT.lstrip("/"), []
    segment.write_bytes(bytes(1 << 16))
    try:
        with FuzzedDaemon() as daemon:
            for name in (goods.NUMBERS, goods.TEXTS, goods.SHAPES):
                daemon.ready(name)
            if count >= 5000:  # a short run checks no figures that take long to settle
                daemon.settled(goods.SHAPES, 200)
            for name, _, phase in phases:  # warm up: code that runs first is loaded first
                phase(daemon, Random(f"{tally.seed}.first.{name}"), 4, tally)
            start = Figures.of(daemon.pid)
            lines.append(f"  at the start: {start}")
            for name, share, phase in phases:
                began = time.monotonic()
                phase(daemon, Random(f"{tally.seed}.{name}"), max(6, int(count * share)), tally)
                lines.append(f"  {name}: {_calm(daemon, name, start, tally)}; {time.monotonic() - began:.0f} s")
            pid = daemon.pid
            _see_log(daemon, tally)
            if daemon.stop() != 0:
                tally.fail("the daemon exited with an error", daemon.log.read_text()[-2000:])
            if Path(f"/proc/{pid}").exists():
                tally.fail("the daemon is still running")
    finally:
        segment.unlink(missing_ok=True)
    return lines


def _calm(daemon: FuzzedDaemon, name: str, start: Figures, tally: Tally) -> Figures:
    """Wait until the daemon is idle; return its figures. Grown memory or descriptors count as failures."""
    if not Path(f"/proc/{daemon.pid}/fd").exists():
        tally.fail(f"the daemon died of {name}", daemon.log.read_text()[-4000:])
        raise SystemExit("\n".join(tally.reported()))
    try:
        wait_for("the daemon answers", daemon.is_right, 30)
    except AssertionError:
        tally.fail(f"after {name} an inference has a wrong answer", daemon.log.read_text()[-4000:])
    with contextlib.suppress(AssertionError):
        wait_for("few descriptors", lambda: Figures.of(daemon.pid).descriptors <= start.descriptors + 8, 15)
    now = Figures.of(daemon.pid)
    if now.descriptors > start.descriptors + 16:
        tally.fail(f"after {name} the daemon has {now.descriptors} descriptors, {start.descriptors} at the start")
    if now.resident > start.resident + 200:
        tally.fail(f"after {name} the daemon takes {now.resident} MiB, {start.resident} at the start")
    return now


def _see_log(daemon: FuzzedDaemon, tally: Tally) -> None:
    lines = daemon.log.read_text(errors="replace").splitlines()
    for at, line in enumerate(lines):
        if "Traceback" in line or "unexpected error" in line or " error " in line.lower()[:48]:
            tally.fail(f"in the log: {line[:200]}", "\n".join(lines[max(0, at - 2) : at + 30]))


# -- gRPC, with its own client --------------------------------------------------------------------------------------


def spoiled_messages(daemon: FuzzedDaemon, random: Random, count: int, tally: Tally) -> None:
    """Send corrupted messages to every method that takes a single message."""
    methods = [each for each in goods.methods() if not each.takes_many]
    weights = [
        {"ModelInfer": 8.0, "DetectOne": 4.0, "Reload": 0.1, "RefreshDevice": 0.02}.get(m.name, 1.0) for m in methods
    ]
    rare = {"RepositoryModelLoad": 0.1, "Rebuild": 0.02, "Verify": 0.02, "Evict": 0.1}
    weights = [rare.get(method.name, weight) for method, weight in zip(methods, weights, strict=True)]
    with daemon.channel() as unix, daemon.channel(daemon.tcp) as tcp:
        for number in range(count):
            method = methods[number] if number < len(methods) else random.choices(methods, weights)[0]
            channel = random.choice((unix, unix, tcp))
            data = spoiled(random, _bytes(method, random))
            code, details = _ask_one(channel, method, data, _metadata(random))
            _see(tally, method, code, details, [data])


def spoiled_streams(daemon: FuzzedDaemon, random: Random, count: int, tally: Tally) -> None:
    """Open streams that carry corrupted messages, end early, or are not read to the end."""
    methods = [each for each in goods.methods() if each.takes_many]
    with daemon.channel() as unix, daemon.channel(daemon.tcp) as tcp:
        sent = 0
        while sent < count:
            method, channel = random.choice(methods), random.choice((unix, tcp))
            parts = [_bytes(method, random) for _ in range(random.randrange(1, 7))]
            parts = [spoiled(random, data) if random.random() < 0.4 else data for data in parts]
            sent += len(parts)
            code, details = _ask_many(channel, method, parts, random.random() < 0.2)
            _see(tally, method, code, details, parts)


def oversize(daemon: FuzzedDaemon, random: Random, count: int, tally: Tally) -> None:
    """Send messages and metadata that are too large, and some just below the limit."""
    with daemon.channel() as channel:
        for _ in range(count):
            method = random.choice([each for each in goods.methods() if not each.gives_many])
            size = random.choice((31 << 20, (32 << 20) + 1, 40 << 20))
            metadata: tuple[tuple[str, str], ...] = ()
            if random.random() < 0.5:
                size, metadata = 10, (("x-large", "v" * random.choice((7000, 20_000, 100_000, 1_000_000))),)
            data = bytes(size)
            if method.takes_many:
                code, details = _ask_many(channel, method, [data], False)
            else:
                code, details = _ask_one(channel, method, data, metadata)
            _see(tally, method, code, details, [data[:16]])


def _bytes(method: Method, random: Random) -> bytes:
    return Writer(random, goods.words(method)).message(method.request, goods.good(method)).SerializeToString()


def _metadata(random: Random) -> tuple[tuple[str, str | bytes], ...]:
    """Return metadata that a client may add to a call; mostly none."""
    if random.random() < 0.9:
        return ()
    return random.choice(
        (
            (("authorization", random.choice(("Bearer x", "Basic x", "Bearer ", "x" * 3000))),),
            (("x-bin", random.randbytes(50)),),
            tuple((f"x-{number}", "v") for number in range(60)),
            (("triton_grpc_error", "true"),),
        )
    )


def _ask_one(channel: grpc.Channel, method: Method, data: bytes, metadata: Any) -> tuple[str, str]:
    try:
        if method.gives_many:
            call = channel.unary_stream(method.path)(data, timeout=PATIENCE, metadata=metadata)
            next(call, None)  # the rest may take long
            call.cancel()
        else:
            channel.unary_unary(method.path)(data, timeout=PATIENCE, metadata=metadata)
    except grpc.RpcError as error:
        return error.code().name, error.details() or ""
    except ValueError as error:  # metadata that no client sends
        return "unsent", str(error)
    return "OK", ""


def _ask_many(channel: grpc.Channel, method: Method, parts: Sequence[bytes], leaves: bool) -> tuple[str, str]:
    try:
        if not method.gives_many:
            channel.stream_unary(method.path)(iter(parts), timeout=PATIENCE)
        else:
            call = channel.stream_stream(method.path)(iter(parts), timeout=PATIENCE)
            for _ in call:
                if leaves:
                    call.cancel()
                    return "CANCELLED", "by this client"
    except grpc.RpcError as error:
        return error.code().name, error.details() or ""
    return "OK", ""


def _see(tally: Tally, method: Method, code: str, details: str, parts: Sequence[bytes]) -> None:
    tally.messages[method.path] += len(parts)
    tally.statuses[method.path][code] += 1
    allowed = {each.name for each in ALLOWED[method.path] | OF_A_CONNECTION} | {"unsent"}
    if code not in allowed or (code not in ("OK", "unsent") and not details):
        tally.fail(f"{method.path}: {code} {details[:300]}", str([data.hex()[:400] for data in parts]))
