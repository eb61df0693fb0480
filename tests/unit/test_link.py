"""Links to real engine hosts: answers, losses, and cleanup."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edged.backends.artefact import Artefact, FileRecord
from edged.backends.contract import Order, Recipe, Signature
from edged.config.child_limits import HostLimits
from edged.confinement import landlock
from edged.decoding import ready
from edged.errors import (
    DeadlineExceeded,
    EdgedError,
    EngineDamaged,
    EngineUnusable,
    HostLost,
    InvalidImage,
    InvalidInput,
    NotReady,
)
from edged.ipc import messages as m
from edged.ipc.frames import HEADER, LARGEST_MESSAGE, HostEnd
from edged.ipc.sockets import HostSocket
from edged.models.limits import Bounds
from edged.serving.crash_attribution import EngineId
from edged.serving.host_process import HOST_MODULE, End, ProgressTimes
from edged.serving.hosts import HostKind, Hosts
from edged.serving.link import HostLink, LinkTimes, Tenant
from edged.serving.session import ServingSession
from edged.serving.slot import Slot
from edged.serving.work import Answered, FrameWork, InputTensor, TensorWork
from edged.tensors import TensorSpec, to_bytes
from edged.vision.family import Recognition, recognise
from tests import models, rogue_host
from tests.fake_link import engine_ref
from tests.waiting import children, descriptors, is_running, run, until, wait, within

VECTOR = Signature((TensorSpec("x", "UINT8", ("n",)),), (TensorSpec("y", "FP32", (1, 2)),))
PICTURE = Signature((TensorSpec("image", "FP32", (1, 3, 8, 8)),), (TensorSpec("scores", "FP32", (1, 4)),))
LIMITS = HostLimits(arena_mb=4, job_seconds=30)
IMPATIENT = HostLimits(arena_mb=4, job_seconds=0.5)
TIMES = LinkTimes(look=0.05, grace=0.3, ending=0.5, gone=0.5, unread=0.02, progress=ProgressTimes(0.2, 1.2, 0.4))
BYTE = m.TensorRef("x", "UINT8", (1,), None, b"1")
ENDLESS = 60_000  # milliseconds per inference


def recognition(signature: Signature = VECTOR) -> Recognition:
    return recognise(signature.inputs, signature.outputs, {}, {})


def order(signature: Signature = VECTOR, milliseconds: int = 0) -> Order:
    return Order("/nowhere", signature, Recipe("null", threads=milliseconds))


def request(*values: int) -> TensorWork:
    data = bytes(values)
    return TensorWork((InputTensor("x", "UINT8", (len(data),), data),), None)


def mean(answer: Answered) -> float:
    return float(np.frombuffer(answer.outputs[0].data, np.float32)[0])


class Box:
    """A slot, and the hosts that were started for it."""

    def __init__(self, limits: HostLimits) -> None:
        self.limits, self.slot = limits, Slot("m")
        self.links: list[HostLink] = []
        self.lost: list[str] = []

    async def host(self, backend: str = "null", module: str = HOST_MODULE) -> HostLink:
        link = HostLink(backend, self.limits, self.lose, (tempfile.gettempdir(),), TIMES, module)
        self.links.append(link)
        await link.start()
        return link

    async def install(self, link: HostLink, wanted: Order) -> ServingSession | None:
        number = await link.open(wanted, recognition(wanted.signature))
        return self.slot.install(ServingSession(link, number, engine_ref("engine", link.backend)))

    async def serve(self, milliseconds: int = 0, signature: Signature = VECTOR) -> HostLink:
        """Start a host with an engine that takes this time for a request."""
        link = await self.host()
        await self.install(link, order(signature, milliseconds))
        return link

    def push(self, *works: TensorWork) -> list[TensorWork]:
        for work in works:
            self.slot.push(work)
        return list(works)

    async def ask(self, work: TensorWork) -> Answered:
        self.slot.push(work)
        return await asyncio.wait_for(work.future, 20)

    def lose(self, link: HostLink, why: str) -> None:
        self.lost.append(why)
        self.slot.vacate(link)


@asynccontextmanager
async def hosted(limits: HostLimits = LIMITS) -> AsyncIterator[Box]:
    """A box. At the end, check that its hosts released all memory, and stop them."""
    box = Box(limits)
    try:
        yield box
        for link in box.links:
            assert link.arena.taken == 0
    finally:
        for link in box.links:
            await link.stop()
        for link in box.links:
            await until(lambda handle=link.arena.handle: _is_closed(handle), "the arena is closed")


def _is_closed(handle: int) -> bool:
    try:
        return "edged-arena" not in os.readlink(f"/proc/self/fd/{handle}")
    except OSError:
        return True


async def lost(link: HostLink) -> None:
    await until(lambda: link.loss.why != "", "the loss")


async def answered(work: TensorWork) -> float:
    return mean(await asyncio.wait_for(work.future, 20))


# -- answers ----------------------------------------------------------------------------------------------------------


@within(hosted)
async def test_host_answers_tensor_requests(box: Box) -> None:
    link = await box.serve()
    for values in ((2, 4), (7,), ()):
        answer = await box.ask(request(*values))
        assert mean(answer) == (sum(values) / len(values) if values else 0)
        assert answer.outputs[0].shape == (1, 2)
        assert (answer.engine.key, answer.engine.backend) == ("engine", "null")
    assert is_running(link.pid)
    assert link.pid in children()


@within(hosted)
async def test_host_answers_raw_frames_and_refuses_damaged_ones(box: Box) -> None:
    await box.serve(signature=PICTURE)
    raw = FrameWork(bytes([200]) * (6 * 4 * 3), "bgr", 6, 4)
    padded = FrameWork(bytes([200]) * (32 * 4), "bgr", 6, 4, stride=32)
    wrong = (FrameWork(b"no picture"), FrameWork(bytes(10), "bgr", 6, 4))
    for camera, frame in enumerate((raw, padded, *wrong)):
        box.slot.offer(camera, frame)
    for frame in (raw, padded):
        answer = await asyncio.wait_for(frame.future, 20)
        assert (answer.width, answer.height) == (6, 4)
        assert answer.detections is None  # no family: the raw outputs
        assert [output.name for output in answer.outputs] == ["scores"]
    for frame in wrong:
        with pytest.raises(InvalidImage):
            await asyncio.wait_for(frame.future, 20)


@within(hosted)
async def test_host_refuses_frames_for_a_model_without_pictures(box: Box) -> None:
    await box.serve()
    frame = FrameWork(bytes(12), "bgr", 2, 2)
    box.slot.offer("c", frame)
    with pytest.raises(InvalidInput):
        await asyncio.wait_for(frame.future, 20)


@within(hosted)
async def test_host_passes_on_every_datatype_by_message_and_by_shared_memory(box: Box, tmp_path: Path) -> None:
    link = await box.host("onnxruntime")
    for datatype, array in {
        "FP32": np.float32([[1.5, -2, 3]]),
        "BF16": np.array([[0x3F80, 0xFFFF, 1]], np.uint16),
        "BYTES": np.array([[b"one", b"", "drei€".encode()]], np.object_),
        "BOOL": np.array([[True, False, True]]),
        "INT64": np.array([[2**63 - 1, -1, 0]]),
    }.items():
        proto = models.identity(datatype, ["n", 3])
        path = models.save(proto, tmp_path / f"{datatype}.onnx")
        wanted = Order(str(path), models.signature(proto), Recipe("onnxruntime", optimization="none"))
        if (previous := await box.install(link, wanted)) is not None:
            await previous.retire()
        for _ in range(2):  # the second answer travels by shared memory
            raw = bytes(to_bytes(array))
            (output,) = (await box.ask(TensorWork((InputTensor("x", datatype, (1, 3), raw),), ("y",)))).outputs
            assert (output.datatype, output.shape, output.data) == (datatype, (1, 3), raw)


@within(hosted)
async def test_host_answers_with_outputs_larger_than_the_shared_memory(box: Box) -> None:
    large = Signature(VECTOR.inputs, (TensorSpec("y", "FP32", (1, 5 << 20)), TensorSpec("z", "FP32", (1, 3))))
    await box.serve(signature=large)
    for value in (3, 9):
        answer = await box.ask(request(value))
        sizes = (5 << 20, 3)
        assert [output.data for output in answer.outputs] == [np.full(n, value, np.float32).tobytes() for n in sizes]


@within(hosted)
async def test_host_continues_after_an_inference_that_fails(box: Box, tmp_path: Path) -> None:
    proto = models.gather()
    path = models.save(proto, tmp_path / "model.onnx")
    link = await box.host("onnxruntime")
    await box.install(link, Order(str(path), models.signature(proto), Recipe("onnxruntime", optimization="none")))

    def lookup(*indices: int) -> TensorWork:
        return TensorWork((InputTensor("index", "INT64", (3,), np.array(indices).tobytes()),), None)

    with pytest.raises(EngineUnusable, match="out of data bounds"):
        await box.ask(lookup(0, 1, 99))
    answer = await box.ask(lookup(0, 1, 2))
    assert np.frombuffer(answer.outputs[0].data, np.float32).tolist() == [0, 1, 2, 3, 4, 5]


# -- opening and closing ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("files", [{"engine.null": FileRecord("0", 1)}, {}])
@within(hosted)
async def test_open_damaged_engine_raises_and_the_host_continues(box: Box, files: dict[str, FileRecord]) -> None:
    link = await box.serve()
    with pytest.raises(EngineDamaged):
        await link.open(Order("/x", VECTOR, Recipe("null"), Artefact("/nowhere", files)), recognition())
    assert mean(await box.ask(request(9))) == 9


@within(hosted)
async def test_open_that_is_cancelled_closes_the_session(box: Box) -> None:
    link = await box.host()
    opening = asyncio.ensure_future(link.open(order(), recognition()))
    await asyncio.sleep(0)
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    await until(lambda: not link.sessions, "the session is closed")
    assert not link.lost


@within(hosted, limits=HostLimits(arena_mb=4, open_seconds=0.3))
async def test_open_that_never_ends_loses_the_host(box: Box, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.onnx")
    link = await box.host("onnxruntime")
    stuck = Order(str(tmp_path / "model.onnx"), VECTOR, Recipe("onnxruntime", optimization="none"))
    with pytest.raises(HostLost):
        await asyncio.wait_for(link.open(stuck, recognition()), 10)


@within(hosted)
async def test_start_unknown_backend_loses_the_host_with_the_reason(box: Box) -> None:
    with pytest.raises(HostLost, match="tensorflow"):
        await box.host("tensorflow")
    assert len(box.lost) == 1


@within(hosted)
async def test_stopped_host_refuses_everything(box: Box) -> None:
    link = await box.host()
    await link.stop()
    with pytest.raises(HostLost):
        link.submit(lambda job: request(1).message(job, 1, [], None))
    with pytest.raises(HostLost):
        await link.open(order(), recognition())
    await link.close_session(1)
    await link.stop()
    assert len(box.lost) == 1


@within(hosted)
async def test_stop_of_a_host_that_cannot_be_killed_ends(box: Box) -> None:
    """A process that waits in a driver ignores even SIGKILL."""
    link = await box.host()
    os.kill(link.pid, signal.SIGSTOP)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "kill", lambda pid, number: None)
        await asyncio.wait_for(link.stop(), 20)
    assert link.lost
    os.kill(link.pid, signal.SIGKILL)


@within(hosted)
async def test_host_gets_a_long_reach_and_no_secret(box: Box) -> None:
    reads = tuple(f"/srv/pictures/{number:0100}.jpg" for number in range(4096))  # 0.5 MB
    link = HostLink("null", LIMITS, box.lose, reads, TIMES)
    box.links.append(link)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
        patch.setenv("EDGED_TRIED", "shown")
        await link.start()
    variables = Path(f"/proc/{link.pid}/environ").read_bytes()
    assert b"shown" in variables
    assert b"hidden" not in variables


@pytest.mark.parametrize("is_killed", [False, True])
def test_host_that_ended_leaves_no_process_descriptor_or_memory(is_killed: bool) -> None:
    async def work() -> None:
        async with hosted() as box:
            link = await box.serve()
            await box.ask(request(1, 2, 3))
            if is_killed:
                os.kill(link.pid, signal.SIGKILL)
                await lost(link)

    run(work())  # the first host opens descriptors that stay, such as the loop's child watcher
    before, processes = descriptors(), children()
    run(work())
    wait(lambda: descriptors() <= before, "the closing of every descriptor")
    assert children() <= processes


@within(hosted)
async def test_host_has_a_higher_oom_score_and_no_output_of_the_daemon(box: Box) -> None:
    link = await box.serve()
    await box.ask(request(1))
    assert int(Path(f"/proc/{link.pid}/oom_score_adj").read_text()) == 500
    outputs = [os.readlink(f"/proc/{link.pid}/fd/{number}") for number in (1, 2)]
    assert outputs[0] == outputs[1] != os.readlink("/proc/self/fd/1")


# -- losses -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "hosts"), [(signal.SIGSEGV, 2), (signal.SIGKILL, 4)], ids=["crashes", "kills"])
@within(hosted)
async def test_request_that_loses_hosts_is_refused_after_two_crashes_but_not_after_kills(
    box: Box, number: int, hosts: int
) -> None:
    work, *others = box.push(*map(request, range(6, 10)))
    for _ in range(hosts):
        link = await box.serve(ENDLESS)
        os.kill(link.pid, number)
        await lost(link)
        assert (box.lost[-1], box.slot.current) == (f"died (exit status {-number})", None)
    assert len(box.lost) == hosts
    if number == signal.SIGSEGV:
        with pytest.raises(HostLost):
            await asyncio.wait_for(work.future, 20)
    else:
        await box.serve()
        assert [await answered(each) for each in (work, *others)] == [6, 7, 8, 9]


@within(hosted)
async def test_request_between_the_death_of_a_host_and_its_notice_is_answered(box: Box) -> None:
    link = await box.serve()
    os.kill(link.pid, signal.SIGKILL)
    wait(lambda: not is_running(link.pid), "the end of the process")  # the loop is blocked and notices nothing
    (late,) = box.push(request(6))
    await lost(link)
    await box.serve()
    assert await answered(late) == 6


@within(hosted)
async def test_submit_to_a_closed_session_is_refused_and_the_host_continues(box: Box) -> None:
    link = await box.serve()
    number = await link.open(order(), recognition())
    closing = asyncio.create_task(link.close_session(number))
    await asyncio.sleep(0)
    for _ in range(2):  # while the session closes, and after that
        with pytest.raises(NotReady):
            link.submit(lambda job: m.Infer(job, number, (BYTE,), None, None))
        await closing
    assert await answered(*box.push(request(4))) == 4
    assert not link.lost


@within(hosted, limits=IMPATIENT)
async def test_host_with_a_request_that_ignores_its_limit_is_replaced(box: Box) -> None:
    link = await box.serve(ENDLESS)
    stuck, behind = box.push(request(3), request(4))
    await lost(link)
    assert "hung" in link.lost
    await until(lambda: not is_running(link.pid), "the end of the process")
    with pytest.raises(DeadlineExceeded, match=r"limits\.seconds"):
        await asyncio.wait_for(stuck.future, 20)
    assert not behind.future.done()
    await box.serve()
    assert await answered(behind) == 4


@within(hosted, limits=IMPATIENT)
async def test_host_without_work_does_not_hang(box: Box) -> None:
    link = await box.serve()
    await asyncio.sleep(0.7)  # longer than the limit of a job
    assert not link.lost
    assert mean(await box.ask(request(5))) == 5


@within(hosted)
async def test_host_that_waits_for_a_device_answers_pings_and_is_kept(box: Box) -> None:
    link = await box.serve(1800)  # the null backend sleeps, as if a device worked
    assert mean(await box.ask(request(5))) == 5
    assert not link.lost


@within(hosted, limits=HostLimits(arena_mb=4))
async def test_host_that_uses_too_much_memory_is_ended(box: Box) -> None:
    link = await box.host()
    link.memory_mb = 1  # less than Python needs; set after the start, which it would prevent
    await lost(link)
    assert "hosts.memory_mb" in link.lost


@within(hosted)
async def test_host_that_crashes_logs_a_traceback(box: Box, caplog: pytest.LogCaptureFixture) -> None:
    link = await box.host()
    os.kill(link.pid, signal.SIGSEGV)
    await until(lambda: "Fatal Python error: Segmentation fault" in caplog.messages, "the traceback")


@within(hosted)
async def test_loss_names_the_engines_with_work(box: Box) -> None:
    link = await box.host()
    idle, busy = EngineId("idle", "1"), EngineId("busy", "2")
    await link.open(order(), recognition(), 1, Tenant(idle))
    number = await link.open(order(milliseconds=ENDLESS), recognition(), 1, Tenant(busy))
    job = link.submit(lambda job: m.Infer(job, number, (BYTE,), None, None))
    os.kill(link.pid, signal.SIGSEGV)
    await lost(link)
    with pytest.raises(HostLost):
        await job
    assert (link.loss.why, link.loss.suspects) == ("died (exit status -11)", ((busy, False),))
    assert link.loss.end is End.WORK


@within(hosted)
async def test_loss_by_a_request_over_its_models_limit_names_only_that_model(box: Box) -> None:
    link = await box.host()
    slow, endless = EngineId("slow", "1"), order(milliseconds=ENDLESS)
    family = "family tiles of package p 1.0"
    hung = await link.open(endless, recognition(), 1, Tenant(slow, Bounds("slow", seconds=0.2), family))
    patient = await link.open(endless, recognition(), 1, Tenant(EngineId("other", "2")))
    jobs = [link.submit(lambda job, n=n: m.Infer(job, n, (BYTE,), None, None)) for n in (hung, patient)]
    with pytest.raises(DeadlineExceeded, match=rf"model 'slow' ran longer than its limit of 0\.2 s;.*{family}"):
        await asyncio.wait_for(jobs[0], 20)
    with pytest.raises(HostLost, match=family):
        await asyncio.wait_for(jobs[1], 20)
    assert link.loss.suspects == ((slow, False),)


@pytest.mark.parametrize("is_busy", [True, False], ids=["busy", "opening"])
@within(hosted)
async def test_loss_of_a_stopped_host_names_no_engine(box: Box, is_busy: bool) -> None:
    link = await box.serve()
    os.kill(link.pid, signal.SIGSTOP)
    work = request(3)
    if is_busy:
        box.push(work)
        await lost(link)
    else:
        with pytest.raises(HostLost):
            await asyncio.wait_for(link.open(order(), recognition()), 20)
    assert (link.loss.suspects, link.loss.end) == ((), End.OUTSIDE)
    if is_busy:
        await box.serve()
        assert await answered(work) == 3


# -- hosts under control of a hostile model ---------------------------------------------------------------------------


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let children import the tests."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


async def rogue(box: Box, how: str) -> TensorWork:
    """Send a request to a host that misbehaves on requests. Return it."""
    await box.install(await box.host(how, rogue_host.__name__), order())
    (work,) = box.push(request(7))
    return work


@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize("how", ["sends garbage", "floods", "announces too many outputs", "closes a busy session"])
@within(hosted)
async def test_rogue_host_that_breaks_the_protocol_is_lost_but_its_request_is_not(box: Box, how: str) -> None:
    work = await rogue(box, how)
    await until(lambda: box.lost != [], "the loss")
    await box.serve()
    assert await answered(work) == 7


@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("fails with an unknown error", EngineUnusable),
        ("fails at a picture with an unknown error", EngineUnusable),
        ("takes for ever", EngineUnusable),
        ("answers twice", InvalidInput),
    ],
)
@within(hosted)
async def test_rogue_host_with_an_invalid_answer_fails_only_that_request(
    box: Box, how: str, error: type[EdgedError]
) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    for _ in range(2):
        work = await rogue(box, how) if not box.links else box.push(request(7))[0]
        with pytest.raises(error):
            await asyncio.wait_for(work.future, 20)
    assert not box.lost


@pytest.mark.parametrize(
    "message",
    [
        ["Answer", 1, [["", "", []]] * 100_000, []],
        ["Detected", 1, [[]] * 100_000],
        ["Pong", *[[]] * 100_000],
        {"type": "Pong", "more": [[]] * 100_000},
    ],
)
def test_message_that_is_invalid_and_large_is_refused_quickly(message: object) -> None:
    decoder, data = msgspec.msgpack.Decoder(ready(m.FromHost)), msgspec.msgpack.encode(message)
    small = msgspec.msgpack.encode(m.Answer(1, (m.TensorRef("y", "FP32", (1,)),) * 4000, m.Times()))
    times: dict[bytes, float] = {}
    for each in (small, data):
        began = time.process_time()
        with contextlib.suppress(msgspec.ValidationError):
            decoder.decode(each)
            assert each is small
        times[each] = time.process_time() - began
    assert times[data] < times[small]


# -- the hosts of a box -----------------------------------------------------------------------------------------------


@asynccontextmanager
async def all_hosts() -> AsyncIterator[tuple[Hosts, list[str]]]:
    """The hosts of a box, and the reasons of losses. At the end, check that no process is left."""
    before, losses = children(), list[str]()
    hosts = Hosts(LIMITS, lambda link, why: losses.append(why))
    try:
        yield hosts, losses
    finally:
        await hosts.stop()
    assert children() <= before


NULL = HostKind("null")


@within(all_hosts)
async def test_hosts_get_starts_one_host_for_all_callers(world: tuple[Hosts, list[str]]) -> None:
    hosts, _ = world
    first = asyncio.ensure_future(hosts.get(NULL))
    for _ in range(5):
        await asyncio.sleep(0)
    second = await hosts.get(NULL)  # while the host starts
    await asyncio.wait_for(second.open(order(), recognition()), 20)
    assert await first is second is await hosts.get(NULL)
    assert hosts.links() == [second]


@pytest.mark.parametrize("is_replaced", [True, False], ids=["replaced", "created"])
async def test_hosts_get_for_a_folder_newer_than_the_host_starts_another_host(
    is_replaced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Landlock's rules are for inodes: the first host could not read engines in the new folder."""
    monkeypatch.setattr(landlock, "version", lambda: 1)
    models, engines = tmp_path / "models", tmp_path / "engines"
    model, engine = models / "m.onnx", engines / "e1"
    models.mkdir()
    model.touch()
    if is_replaced:
        engine.mkdir(parents=True)
    known = [str(models), *([str(engines)] if is_replaced else [])]
    hosts = Hosts(LIMITS, lambda link, why: None, lambda: tuple(known))
    try:
        first = await hosts.get(NULL, model)
        if is_replaced:
            assert await hosts.get(NULL, model, engine) is first
            engines.rename(tmp_path / "old")  # keeps its inode
        engine.mkdir(parents=True)
        known[1:] = [str(engines)]
        second = await hosts.get(NULL, model, engine)
        assert second is not first
        assert await hosts.get(NULL, model, engine) is second
        assert await hosts.get(NULL, model) is first
        engines.rename(tmp_path / "older")
        engine.mkdir(parents=True)
        third = await hosts.get(NULL, model, engine)
        assert third not in (first, second)
        engines.rename(tmp_path / "oldest")
        assert await hosts.get(NULL, model, engine) in hosts.links()  # without the folder there is an end, too
    finally:
        await hosts.stop()


@within(all_hosts)
async def test_hosts_get_of_a_host_that_keeps_crashing_is_not_ready(world: tuple[Hosts, list[str]]) -> None:
    hosts, losses = world
    pids = set()
    for count in range(1, 3):
        link = await hosts.get(NULL)
        pids.add(link.pid)
        os.kill(link.pid, signal.SIGSEGV)
        await until(lambda n=count: len(losses) == n, "the loss")
    assert len(pids) == 2
    assert hosts.links() == []
    assert hosts.retry_in(NULL) > 0
    assert hosts.retry_in(HostKind("openvino")) == 0
    with pytest.raises(NotReady):
        await hosts.get(NULL)


@within(all_hosts)
async def test_hosts_get_of_a_killed_host_starts_it_at_once(world: tuple[Hosts, list[str]]) -> None:
    hosts, losses = world
    for number in range(4):
        link = await hosts.get(NULL)
        os.kill(link.pid, signal.SIGKILL)
        await until(lambda n=number: len(losses) > n, "the loss")
        assert hosts.retry_in(NULL) == 0


# -- the socket to a host ---------------------------------------------------------------------------------------------


class Wire:
    """A host socket. `socket` is the daemon's end, `host` the host's end, which the test uses."""

    def __init__(self, most_bulk: int = 0) -> None:
        self.received: list[tuple[bytes, bytes]] = []
        self.gone: list[str] = []
        self.socket = HostSocket(self._receive, lambda: most_bulk, self.gone.append)
        self.host = self.socket.child.dup()
        self.socket.started()

    def _receive(self, message: bytes, bulk: memoryview) -> None:
        self.received.append((message, bytes(bulk)))

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            await asyncio.to_thread(self.host.sendall, piece)


@asynccontextmanager
async def wired(most_bulk: int = 0) -> AsyncIterator[Wire]:
    wire = Wire(most_bulk)
    try:
        yield wire
    finally:
        wire.socket.close()
        wire.host.close()


def frame(message: bytes, bulk: bytes = b"") -> bytes:
    return HEADER.pack(len(message), len(bulk)) + message + bulk


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
@within(wired, most_bulk=1 << 20)
async def test_socket_frames_in_pieces_of_any_size_arrive_complete(wire: Wire, step: int) -> None:
    sent = [(b"", b""), (b"one", b""), (b"two", b"bulk"), (b"x" * 300, b"y" * 70_000), (b"z" * 70_000, b"")]
    sent = sent[: 3 if step < 100 else None] * 3
    data = b"".join(frame(*each) for each in sent)
    await wire.send(*(data[at : at + step] for at in range(0, len(data), step)))
    wire.host.close()
    await until(lambda: wire.gone == [""], "the end")
    assert wire.received == sent


@pytest.mark.parametrize(
    "announced", [(LARGEST_MESSAGE + 1, 0), (3, 1001), (3, (1 << 64) - 1), ((1 << 32) - 1, 0)], ids=str
)
@within(wired, most_bulk=1000)
async def test_socket_frame_over_its_limits_ends_the_connection(wire: Wire, announced: tuple[int, int]) -> None:
    await wire.send(HEADER.pack(*announced))
    await until(lambda: len(wire.gone) == 1, "the end")
    assert wire.gone[0] != ""
    assert wire.received == []


@within(wired)
async def test_socket_lets_other_tasks_run_while_a_host_floods(wire: Wire) -> None:
    turns = 0
    sending = asyncio.ensure_future(wire.send(frame(b"x") * 500_000))
    while not wire.gone:
        turns += 1
        await asyncio.sleep(0)
        if sending.done():
            wire.host.close()
    assert len(wire.received) == 500_000
    assert turns > 5


@within(wired)
async def test_socket_keeps_messages_for_a_host_that_does_not_read(wire: Wire) -> None:
    messages = [bytes([number]) * 50_000 for number in range(20)]
    assert all(wire.socket.send(each) for each in messages)
    host = HostEnd(wire.host)
    for each in messages:
        assert await asyncio.to_thread(host.receive) == each
    wire.host.shutdown(socket.SHUT_RDWR)
    assert await asyncio.to_thread(host.receive) is None
    await until(lambda: wire.gone == [""], "the end")
    assert not wire.socket.send(b"late")
