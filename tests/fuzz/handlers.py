"""A whole daemon in this process. Its handlers are called directly, which is far faster than calls over a socket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from random import Random
from typing import Any, cast

from google.protobuf import text_format
from google.protobuf.message import Message

from edged.api.auth.policy import INFERENCE
from edged.api.grpc.call_guard import CallGuard
from edged.api.grpc.server import GrpcServers
from edged.api.http2.call import Call
from edged.config import Config
from edged.daemon import main as composition
from edged.proto import open_inference_pb2 as pb
from tests.fake_call import FakeCall
from tests.fuzz import PATIENCE, goods
from tests.fuzz.goods import Method
from tests.fuzz.messages import Writer, smaller
from tests.fuzz.statuses import ALLOWED
from tests.fuzz.tally import Figures, Tally
from tests.waiting import until

_AT_ONCE = 8
_LISTENS = 0.02  # seconds to listen to an endless stream
_MOST_PARTS = 8  # messages of one stream

# How often each method is called; the default is 1. Methods that start children or probe the box are called less often.
_WEIGHTS = {"ModelInfer": 14, "ModelStreamInfer": 8, "DetectOne": 2, "Detect": 2, "SystemSharedMemoryRegister": 2}
_WEIGHTS |= {"AddModel": 0.3, "RepositoryModelLoad": 0.1, "Rebuild": 0.03, "Verify": 0.03, "RefreshDevice": 0.01}
_WEIGHTS |= {"Reload": 0.05, "Evict": 0.2, "GetLoad": 0.1}


class World:
    """Calls every method of a daemon with random messages, and counts the answers."""

    def __init__(self, servers: GrpcServers, models: Path, tally: Tally) -> None:
        (address,) = servers.addresses
        self._guard = CallGuard(servers.guard, address, servers.services)
        self._models, self._tally = models, tally
        self.methods: list[Method] = []
        registered = {path for service in servers.services for path in service.methods}
        for method in goods.methods():
            if method.path in registered:
                self.methods.append(method)
            else:
                tally.fail(f"{method.path} is not registered")

    async def run(self, count: int) -> None:
        """Send `count` messages, several calls at a time. Each worker has its own generator, for replay by seed."""
        weights = [_WEIGHTS.get(method.name, 1) for method in self.methods]

        async def work(seed: str) -> None:
            random = Random(seed)
            number = 0
            while self._tally.total < count:
                method = random.choices(self.methods, weights)[0]
                await self.call(method, Random(f"{seed}.{number}"))
                number += 1

        ticking = asyncio.create_task(self._keep_victim())
        await asyncio.gather(*(work(f"{self._tally.seed}.{each}") for each in range(_AT_ONCE)))
        ticking.cancel()

    async def every(self) -> None:
        """Call every method once, whatever its weight, so that a short run covers all."""
        for method in self.methods:
            await self.call(method, Random(f"{self._tally.seed}.every.{method.path}"))

    async def call(self, method: Method, random: Random) -> None:
        """Make one call with random messages."""
        writer, good = Writer(random, goods.words(method)), goods.good(method)
        parts = random.randint(0, _MOST_PARTS) if method.takes_many else 1
        sent = [writer.message(method.request, good) for _ in range(parts)]
        strict = (("triton_grpc_error", "true"),) if random.random() < 0.2 else ()
        seconds = random.choice((None, 30.0, 5.0))
        self._tally.messages[method.path] += max(1, len(sent))
        code, details = await self._ask(method, sent, seconds, strict)
        self._tally.statuses[method.path][code] += 1
        if _is_right(method, code, details):
            return
        what = f"{method.path}: {code} {details[:300]}"
        if what in self._tally.failures:
            return
        if len(sent) == 1:

            async def again(trial: Message) -> bool:
                return (await self._ask(method, [trial], seconds, strict))[0] == code

            sent = [await _smallest(sent[0], again)]
        reported = "\n--\n".join(text_format.MessageToString(each)[:1500] for each in sent)
        self._tally.fail(what, f"{reported}\n{[each.SerializeToString().hex()[:400] for each in sent]}")

    async def truth(self) -> None:
        """Check that a real inference still has the right answer."""
        wanted = goods.truth(3)
        reported = pb.ModelInferResponse.FromString(await self.answer("ModelInfer", wanted))
        if list(reported.raw_output_contents) != list(wanted.raw_input_contents):
            self._tally.fail("an inference has a wrong answer", str(reported)[:500])

    async def answer(self, name: str, request: Message) -> bytes:
        """Return the answer of a method of the inference protocol; empty if the call fails."""
        call = FakeCall(INFERENCE + name, [request.SerializeToString()], seconds=30.0)
        await asyncio.wait_for(self._guard.run(cast(Call, call)), PATIENCE)
        return b"".join(call.written)

    async def _ask(
        self,
        method: Method,
        sent: Sequence[Message],
        seconds: float | None,
        metadata: tuple[tuple[str, str], ...],
    ) -> tuple[str, str]:
        """Return the name and message of a call's status; `hung` without a status, or the type of an exception."""
        call = FakeCall(method.path, [each.SerializeToString() for each in sent], metadata, seconds=seconds)
        # A feed continues for as long as it has a client.
        is_endless = method.gives_many and not method.takes_many
        try:
            await asyncio.wait_for(self._guard.run(cast(Call, call)), _LISTENS if is_endless else PATIENCE)
        except asyncio.TimeoutError:
            return ("OK", "") if is_endless else ("hung", f"no answer within {PATIENCE:g} s")
        except Exception as error:
            return type(error).__name__, str(error)
        if call.ended is None:
            return "hung", "the call ended without a status"
        status, message, _ = call.ended
        return status.name, message

    async def _keep_victim(self) -> None:
        """Restore the victim model whenever it was removed."""
        while True:
            await asyncio.sleep(1.0)
            if not list(self._models.glob(f"{goods.VICTIM}*")):
                await asyncio.to_thread(goods.write_victim, self._models)


def _is_right(method: Method, code: str, details: str) -> bool:
    """Return True if a method may answer so: an allowed status and, for an error, a one-line message."""
    allowed = {each.name for each in ALLOWED[method.path]}
    return code in allowed and (code == "OK" or (0 < len(details) < 2000 and "\n" not in details))


async def _smallest(message: Message, is_still: Callable[[Message], Coroutine[Any, Any, bool]]) -> Message:
    """As `smaller`, for an asynchronous check: run one check at a time and start over with its answer."""
    answers: dict[bytes, bool] = {}

    def known(trial: Message) -> bool:
        data = trial.SerializeToString()
        if data not in answers:
            raise _Unknown(trial)
        return answers[data]

    for _ in range(100):
        try:
            return smaller(message, known)
        except _Unknown as unknown:
            answers[unknown.trial.SerializeToString()] = await is_still(unknown.trial)
    return message


class _Unknown(Exception):
    def __init__(self, trial: Message) -> None:
        super().__init__()
        self.trial = trial


class _Overheard(logging.Handler):
    """Counts errors that the daemon logs as failures."""

    def __init__(self, tally: Tally) -> None:
        super().__init__(logging.ERROR)
        self._tally = tally

    def emit(self, record: logging.LogRecord) -> None:
        lines = record.exc_info and logging.Formatter().formatException(record.exc_info)  # type: ignore[arg-type]
        self._tally.fail(f"logged as an error: {record.getMessage()[:200]}", lines or "")


@contextlib.asynccontextmanager
async def world(tally: Tally) -> AsyncIterator[World]:
    """Run a daemon in this process, with its hosts and children, until the end of the `async with`."""
    made: list[GrpcServers] = []

    class Kept(GrpcServers):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            made.append(self)

    with tempfile.TemporaryDirectory(prefix="edf-") as home, _segment():
        models = Path(home) / "state" / "models"
        models.mkdir(parents=True)
        goods.write_models(models)
        config = Config(
            listen=(f"unix:{home}/edged.sock",),
            state=f"{home}/state",
            cache=f"{home}/cache",
            model_control="explicit",
            startup_models=("*",),
        )
        forwarded = _Overheard(tally)
        logging.getLogger().addHandler(forwarded)
        ready = asyncio.Event()
        original, composition.GrpcServers = composition.GrpcServers, Kept  # type: ignore[attr-defined, misc]
        try:
            serving = asyncio.create_task(composition.serve(config, lambda _: ready.set()))
            await asyncio.wait([serving, asyncio.create_task(ready.wait())], return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
            found = World(made[0], models, tally)
            await _until_all_serve(found)
            yield found
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(serving, PATIENCE)
        finally:
            composition.GrpcServers = original  # type: ignore[attr-defined]
            logging.getLogger().removeHandler(forwarded)


async def _until_all_serve(found: World) -> None:
    async def is_ready(name: str) -> bool:
        data = await found.answer("ModelReady", pb.ModelReadyRequest(name=name))
        return pb.ModelReadyResponse.FromString(data).ready

    for name in (goods.NUMBERS, goods.TEXTS, goods.SHAPES, goods.VICTIM):
        end = time.monotonic() + PATIENCE
        while not await is_ready(name):
            assert time.monotonic() < end, f"{name} is not served within {PATIENCE:g} s"
            await asyncio.sleep(0.1)


@contextlib.contextmanager
def _segment() -> Any:
    """Create the shared memory that requests may name."""
    path = Path("/dev/shm") / goods.SEGMENT.lstrip("/")
    path.write_bytes(bytes(1 << 16))
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


async def run(count: int, tally: Tally) -> list[str]:
    """Call handlers with `count` messages. Return lines about the process; failures are in the tally."""
    lines = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, what: tally.fail(f"unhandled: {what['message']}", repr(what.get("exception"))))
    async with world(tally) as found:
        await found.truth()
        await found.every()
        await found.run(max(count // 4, 1))  # fills caches and pools
        before, began = Figures.of(os.getpid()), time.monotonic()
        await found.run(count)
        await found.truth()
        await asyncio.sleep(1.0)
        after = Figures.of(os.getpid())
        lines.append(f"  after a quarter: {before}; at the end: {after}; {time.monotonic() - began:.0f} s for the rest")
        if after.descriptors > before.descriptors + 24:
            tally.fail(f"descriptors grew from {before.descriptors} to {after.descriptors}")
        if after.resident > before.resident * 1.3 + 64:
            tally.fail(f"memory grew from {before.resident} to {after.resident} MiB")
        await until(lambda: True)
    return lines
