"""The process that the torture test kills: it makes steps on a store and reports the begin and end of each.

python -m tests.system.torture_peer: one JSON `Order` per line of standard input, one JSON `Outcome` per line of
standard output. It forks a child per order. Its modules are loaded, so that a child starts to work within milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import hashlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Literal

import msgspec

from edged.backends.artefact import Artefact, FileRecord
from edged.backends.contract import REFERENCE, Recipe
from edged.config.child_limits import Limits
from edged.device.fingerprint import Fingerprint
from edged.engines.builder import Builder, Task
from edged.models.entries import plain_entry
from edged.models.model import Model
from edged.store import atomic
from edged.store.key import EngineKey
from edged.store.record import BuildFacts, EngineRecord, Speed, Verdict
from edged.store.store import Store

_PATIENCE = 60.0
_SIZES = (0, 1, 4096, 70_000, 1_300_000)
_PR_SET_PTRACER = 0x59616D61
RECIPES = (REFERENCE, Recipe("onnxruntime"), Recipe("onnxruntime", optimization="basic"), Recipe("null"))

Content = tuple[str, int]  # name and number of the step that wrote it


class Step(msgspec.Struct, frozen=True):
    """One operation on a store; no operation if what it needs does not exist. `number` makes contents differ."""

    do: Literal[
        "commit", "adopt", "amend", "strip", "remove", "damaged", "pin", "unpin", "touch", "abandon", "rescan", "build"
    ]
    name: str
    number: int = 0
    source: str = ""


class Order(msgspec.Struct, frozen=True):
    """Steps for a child. The child is killed after `seconds`, or by strace at the `when`-th system call `call`;
    otherwise it exits by itself. With a `fault` the call fails with this error instead."""

    root: str
    steps: list[Step]
    seconds: float | None = None
    call: str = ""
    when: int = 0
    can_exchange: bool = True
    fault: str = ""


class Outcome(msgspec.Struct, frozen=True):
    """The result of the child `pid`: how many steps it began, how they ended (d: done, f: failed with the expected
    fault), its exit status (negative: the signal) and its traceback."""

    pid: int
    begun: int
    ends: str
    status: int
    complaint: str
    is_hit: bool  # whether strace interfered

    @property
    def done(self) -> int:
        return len(self.ends)


# -- contents -------------------------------------------------------------------------------------------------------


def files_of(content: Content) -> dict[str, bytes]:
    """Return one to three files, from empty to more than a megabyte."""
    seed = hashlib.sha256(repr(content).encode()).digest()
    sizes = [_SIZES[byte % len(_SIZES)] for byte in seed[: 1 + seed[31] % 3]]
    return {f"file{i}": ((seed + bytes([i])) * (size // 33 + 1))[:size] for i, size in enumerate(sizes)}


@functools.lru_cache(maxsize=4096)
def recorded(content: Content) -> dict[str, FileRecord]:
    """Return the record's entries for these files."""
    return {name: FileRecord(hashlib.sha256(b).hexdigest(), len(b)) for name, b in files_of(content).items()}


def record_of(name: str, files: dict[str, FileRecord], latency: float = 0.0) -> EngineRecord:
    return EngineRecord(
        parts={"format": "1", "model": name, "recipe.backend": "null"},
        model=name,
        recipe=Recipe("null"),
        files=files,
        build=BuildFacts(1.0, 2.0, 3.0, "test"),
        verdict=Verdict(True, "", {}),
        speeds=(Speed(1, 0, latency, latency, 8.0),),
    )


def key_of(name: str) -> str:
    return EngineKey(record_of(name, {}).parts).digest


# -- the child ------------------------------------------------------------------------------------------------------


def do(store: Store, step: Step) -> None:
    """Do one step."""
    key = key_of(step.name)
    record = store.records().get(key)
    if step.do == "build":
        asyncio.run(_build(store, step))
    elif step.do == "commit":
        with store.stage() as out:
            for name, content in files_of((step.name, step.number)).items():
                (out / name).write_bytes(content)
            store.commit(out, record_of(step.name, Artefact.seal(out).files, step.number))
    elif step.do == "adopt":
        _adopt(store, step)
    elif step.do == "abandon":
        with contextlib.suppress(EOFError), store.stage() as out:
            (out / "half").write_bytes(bytes(5000))
            raise EOFError
    elif step.do in ("remove", "touch", "pin", "unpin"):
        getattr(store, step.do)(key)
    elif step.do == "rescan":
        store.rescan()
    elif record is None:
        return
    elif step.do == "amend":
        store.amend(msgspec.structs.replace(record, speeds=(Speed(1, 0, step.number, step.number, 8.0),)))
    elif step.do == "strip":
        store.strip(msgspec.structs.replace(record, evicted=True))
    else:
        store.damaged(store.artefact(key))


def _adopt(store: Store, step: Step) -> None:
    """Link the files of another engine under this key, as a trial does."""
    source = store.records().get(key_of(step.source))
    if source is None or source.evicted:
        return
    with store.stage() as out:
        for name in source.files:
            os.link(store.root / "engines" / key_of(step.source) / name, out / name)
        store.commit(out, record_of(step.name, source.files, step.number))


async def _build(store: Store, step: Step) -> None:
    """Build one engine of a model, with golden answers, in child processes."""
    builder = Builder(store, store.root, Limits(seconds=_PATIENCE, memory_mb=4096))
    path = Path(step.source)
    model = Model.of(plain_entry(step.name, path, {}), await builder.inspect(path))
    recipe = RECIPES[step.number]
    task = Task(model, recipe, EngineKey.of(model.digest, recipe, Fingerprint()))

    async def room(need: int) -> int:
        return 0

    await builder.make(task, lambda progress: None, room)


def _child(order: Order, output: int, go: int) -> None:
    if not order.can_exchange:
        atomic.exchange = lambda one, other: False
    # If only a parent may trace its children: strace is a sibling of this process.
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1))
    os.readv(go, [bytearray(1)])
    store = Store(Path(order.root))
    for step in order.steps:
        os.writev(output, [b"b"])  # writev, which the store never calls, so that the report itself cannot fail
        try:
            do(store, step)
        except OSError:
            if not order.fault:
                raise
            os.writev(output, [b"f"])
        else:
            os.writev(output, [b"d"])
    disks = [Store(Path(order.root)).records() for _ in range(2)]  # the failing call may be in one of these
    wrong = [r.model for key, r in store.records().items() if all(r != disk.get(key) for disk in disks)]
    assert not wrong, f"memory and disk differ: {wrong}"


# -- the parent -----------------------------------------------------------------------------------------------------


def run(order: Order) -> Outcome:
    """Do the steps in a child process; wait until it has exited or was killed."""
    output, output_end = os.pipe()
    complaint, complaint_end = os.pipe()
    go_end, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            for handle in (output, complaint, go):  # so that the child notices if the parent dies
                os.close(handle)
            _child(order, output_end, go_end)
            status = 0
        except BaseException:
            os.write(complaint_end, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(status)
    for handle in (output_end, complaint_end, go_end):
        os.close(handle)
    with os.fdopen(output, "rb") as hear, os.fdopen(complaint, "rb") as complaints:
        tracer = _Tracer(pid, order) if order.call else None
        os.write(go, b"g")
        if order.seconds is not None:
            time.sleep(order.seconds)
            os.kill(pid, signal.SIGKILL)
        status = _wait(pid)
        os.close(go)
        received = hear.read().decode()
        is_hit = tracer is not None and "(INJECTED)" in tracer.end()
        return Outcome(pid, received.count("b"), received.replace("b", ""), status, complaints.read().decode(), is_hit)


class _Tracer:
    """strace, attached to a process. It injects its signal before the system call runs."""

    def __init__(self, pid: int, order: Order) -> None:
        what = f"error={order.fault}" if order.fault else "signal=KILL"
        inject = f"inject={order.call}:{what}:when={order.when}"
        command = ["strace", "-q", "-e", f"trace={order.call}", "-e", inject, "-p", str(pid)]
        # A file, because a pipe that is not read could fill up.
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in `end`
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=self._output)
        deadline = time.monotonic() + _PATIENCE
        while "TracerPid:\t0\n" in Path(f"/proc/{pid}/status").read_text():
            if self._process.poll() is not None or time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                raise RuntimeError(f"strace did not attach: {self.end()}")
            time.sleep(0.001)

    def end(self) -> str:
        """Return strace's output, after the traced process has exited."""
        self._process.wait(_PATIENCE)
        self._output.seek(0)
        with self._output:
            return self._output.read()


def _wait(pid: int) -> int:
    handle = os.pidfd_open(pid)
    try:
        if not select.select([handle], [], [], _PATIENCE)[0]:
            os.kill(pid, signal.SIGKILL)
    finally:
        os.close(handle)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> None:
    for line in sys.stdin.buffer:
        outcome = run(msgspec.json.decode(line, type=Order))
        sys.stdout.buffer.write(msgspec.json.encode(outcome) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
