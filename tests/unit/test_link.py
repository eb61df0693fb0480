"""A real engine host in a process of its own: what it answers, how it dies, and that nothing of it stays."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from edged.backends.artefact import Artefact, FileRecord
from edged.backends.contract import Order, Recipe, Signature
from edged.config.limits import HostLimits
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
from edged.raw_contents import to_bytes
from edged.serving.crash_attribution import EngineId
from edged.serving.host_process import End, ProgressTimes, end_of
from edged.serving.hosts import HostKind, Hosts, pause
from edged.serving.link import HostLink, LinkTimes, Tenant
from edged.serving.session import ServingSession
from edged.serving.slot import Slot
from edged.serving.work import Answered, FrameWork, InputTensor, TensorWork
from edged.tensors import TensorSpec
from edged.vision.family import Recognition, recognise
from tests import models
from tests.fake_link import engine_ref
from tests.waiting import children, descriptors, is_running, run, until, wait

VECTOR = Signature((TensorSpec("x", "UINT8", ("n",)),), (TensorSpec("y", "FP32", (1, 2)),))
PICTURE = Signature((TensorSpec("image", "FP32", (1, 3, 8, 8)),), (TensorSpec("scores", "FP32", (1, 4)),))
LIMITS = HostLimits(arena_mb=4, job_seconds=30)
TIMES = LinkTimes(look=0.05, grace=0.3, ending=0.5, unread=0.02, progress=ProgressTimes(0.2, 1.2, 0.4))
BYTE = m.TensorRef("x", "UINT8", (1,), None, b"1")


def recognition(signature: Signature) -> Recognition:
    return recognise(signature.inputs, signature.outputs, {}, {})


def order(signature: Signature = VECTOR, milliseconds: int = 0) -> Order:
    return Order("/nowhere", signature, Recipe("null", threads=milliseconds))


def request(*values: int) -> TensorWork:
    data = bytes(values)
    return TensorWork((InputTensor("x", "UINT8", (len(data),), data),), None)


class Box:
    """A slot and the hosts that were started for it."""

    def __init__(self, limits: HostLimits) -> None:
        self.limits, self.slot = limits, Slot("m")
        self.links: list[HostLink] = []
        self.lost: list[str] = []

    async def host(self, backend: str = "null") -> HostLink:
        link = HostLink(backend, self.limits, self._on_lost, (tempfile.gettempdir(),), TIMES)
        self.links.append(link)
        await link.start()
        return link

    async def session(self, link: HostLink, wanted: Order, key: str = "engine") -> ServingSession:
        number = await link.open(wanted, recognition(wanted.signature))
        return ServingSession(link, number, engine_ref(key, link.backend))

    async def serve(self, wanted: Order, key: str = "engine") -> HostLink:
        link = await self.host()
        self.slot.install(await self.session(link, wanted, key))
        return link

    async def ask(self, work: TensorWork) -> Answered:
        self.slot.push(work)
        return await asyncio.wait_for(work.future, 20)

    def _on_lost(self, link: HostLink, why: str) -> None:
        self.lost.append(why)
        self.slot.vacate(link)


def with_box(work: Callable[[Box], Awaitable[Any]], limits: HostLimits = LIMITS) -> None:
    """Run with hosts that are stopped in the end, all of whose memory must have come back by then."""

    async def boxed() -> None:
        box = Box(limits)
        try:
            await work(box)
            for link in box.links:
                assert link.arena.taken == 0
        finally:
            for link in box.links:
                await link.stop()
            await asyncio.gather(*(until(lambda a=link.arena: _is_closed(a.handle), "it closed") for link in box.links))

    run(boxed())


def _is_closed(handle: int) -> bool:
    try:
        return "edged-arena" not in os.readlink(f"/proc/self/fd/{handle}")
    except OSError:
        return True


def mean(answer: Answered) -> float:
    return float(np.frombuffer(answer.outputs[0].data, np.float32)[0])


def test_a_host_answers_tensor_requests() -> None:
    async def work(box: Box) -> None:
        link = await box.serve(order(), "k")
        for values in ((2, 4), (7,), ()):
            answer = await box.ask(request(*values))
            assert mean(answer) == (sum(values) / len(values) if values else 0)
            assert answer.outputs[0].shape == (1, 2)
            assert (answer.engine.key, answer.engine.backend) == ("k", "null")
        assert is_running(link.pid)
        assert link.pid in children()

    with_box(work)


def test_a_host_detects_on_raw_and_encoded_frames() -> None:
    async def work(box: Box) -> None:
        await box.serve(order(PICTURE))
        raw = FrameWork(bytes([200]) * (6 * 4 * 3), "bgr", 6, 4)
        padded = FrameWork(bytes([200]) * (32 * 4), "bgr", 6, 4, stride=32)
        assert box.slot.offer("a", raw) is None
        assert box.slot.offer("b", padded) is None
        for each in (raw, padded):
            answer = await asyncio.wait_for(each.future, 20)
            assert (answer.width, answer.height) == (6, 4)
            assert answer.detections is None  # no family: the raw outputs
            assert [o.name for o in answer.outputs] == ["scores"]
        wrong = (FrameWork(b"no picture"), FrameWork(bytes(10), "bgr", 6, 4))
        for lane, each in enumerate(wrong):
            box.slot.offer(lane, each)
            with pytest.raises(InvalidImage):
                await asyncio.wait_for(each.future, 20)

    with_box(work)


def test_a_model_that_takes_no_picture_says_so_for_a_frame() -> None:
    async def work(box: Box) -> None:
        await box.serve(order())
        frame = FrameWork(bytes(12), "bgr", 2, 2)
        box.slot.offer("c", frame)
        with pytest.raises(InvalidInput, match="takes no picture"):
            await asyncio.wait_for(frame.future, 20)

    with_box(work)


def test_every_datatype_passes_through_a_host_and_its_shared_memory(tmp_path: Path) -> None:
    async def work(box: Box) -> None:
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
            previous = box.slot.install(await box.session(link, wanted))
            if previous is not None:
                await previous.retire()
            for _ in range(2):  # the second answer travels by shared memory
                raw = bytes(to_bytes(array))
                answer = await box.ask(TensorWork((InputTensor("x", datatype, (1, 3), raw),), ("y",)))
                assert answer.outputs[0].datatype == datatype
                assert answer.outputs[0].shape == (1, 3)
                assert answer.outputs[0].data == raw

    with_box(work)


def test_a_swap_under_load_loses_nothing() -> None:
    async def work(box: Box) -> None:
        link = await box.serve(order(milliseconds=5), "first")
        works = [request(number) for number in range(40)]
        for each in works:
            box.slot.push(each)
        retired = []
        for key in ("second", "third"):
            await asyncio.wait_for(asyncio.shield(works[10 if key == "second" else 20].future), 20)
            previous = box.slot.install(await box.session(link, order(milliseconds=1), key))
            assert previous is not None
            retired.append(asyncio.ensure_future(previous.retire()))
        answers = [await asyncio.wait_for(each.future, 20) for each in works]
        assert [mean(answer) for answer in answers] == list(range(40))
        keys = [answer.engine.key for answer in answers]
        assert set(keys) == {"first", "second", "third"}
        assert keys == sorted(keys, key=["first", "second", "third"].index)
        await asyncio.wait_for(asyncio.gather(*retired), 20)
        assert box.slot.failed == 0

    with_box(work)


def test_work_in_a_host_that_is_killed_is_done_by_the_next_one() -> None:
    async def work(box: Box) -> None:
        link = await box.serve(order(milliseconds=60_000), "doomed")
        works = [request(number) for number in range(5)]
        for each in works:
            box.slot.push(each)
        os.kill(link.pid, signal.SIGKILL)
        await until(lambda: bool(box.lost), "the loss")
        assert box.lost == [link.lost] == ["died (exit status -9)"]
        assert box.slot.current is None
        await box.serve(order(), "next")
        answers = [await asyncio.wait_for(each.future, 20) for each in works]
        assert [mean(answer) for answer in answers] == list(range(5))
        assert {answer.engine.key for answer in answers} == {"next"}
        assert box.slot.failed == 0

    with_box(work)


def test_work_that_kills_two_hosts_is_answered_with_the_loss() -> None:
    async def work(box: Box) -> None:
        deadly = request(1)
        box.slot.push(deadly)
        for _ in range(2):
            link = await box.serve(order(milliseconds=60_000))
            os.kill(link.pid, signal.SIGSEGV)
            await until(lambda one=link: bool(one.lost), "the loss")
        with pytest.raises(HostLost):
            await asyncio.wait_for(deadly.future, 20)
        assert len(box.lost) == 2

    with_box(work)


def test_a_host_that_hangs_is_killed_and_what_waited_behind_is_done_by_the_next_one() -> None:
    async def work(box: Box) -> None:
        link = await box.serve(order(milliseconds=60_000))
        pid, stuck, behind = link.pid, request(3), request(4)
        box.slot.push(stuck)
        box.slot.push(behind)
        await until(lambda: bool(link.lost), "the end of the hanging host")
        assert "hung" in link.lost
        await until(lambda: not is_running(pid), "the end of the process")
        with pytest.raises(DeadlineExceeded, match=r"limits\.seconds"):
            await asyncio.wait_for(stuck.future, 20)
        assert not behind.future.done()
        await box.serve(order())
        assert mean(await asyncio.wait_for(behind.future, 20)) == 4

    with_box(work, HostLimits(arena_mb=4, job_seconds=0.5))


def test_host_crash_leaves_traceback_in_log(caplog: pytest.LogCaptureFixture) -> None:
    async def work(box: Box) -> None:
        link = await box.host()
        os.kill(link.pid, signal.SIGSEGV)
        await until(lambda: "Fatal Python error: Segmentation fault" in caplog.messages, "the traceback")

    with_box(work)


def test_who_was_at_work_in_a_host_is_known_when_it_is_lost() -> None:
    async def work(box: Box) -> None:
        link = await box.host()
        idle, busy = EngineId("idle", "1"), EngineId("busy", "2")
        await link.open(order(), recognition(VECTOR), 1, Tenant(idle))
        number = await link.open(order(milliseconds=60_000), recognition(VECTOR), 1, Tenant(busy))
        lost = link.submit(lambda job: m.Infer(job, number, (BYTE,), None, None))
        os.kill(link.pid, signal.SIGSEGV)
        await until(lambda: bool(link.lost), "the loss")
        with pytest.raises(HostLost):
            await lost
        assert link.loss.why == "died (exit status -11)"
        assert link.loss.suspects == ((busy, False),)
        assert link.loss.end is End.WORK

    with_box(work)


def test_a_model_has_a_time_limit_of_its_own_and_is_alone_to_blame_at_it() -> None:
    async def work(box: Box) -> None:
        link = await box.host()
        slow, other = EngineId("slow", "1"), EngineId("other", "2")
        hung = await link.open(
            order(milliseconds=60_000), recognition(VECTOR), 1, Tenant(slow, Bounds("slow", seconds=0.2))
        )
        patient = await link.open(order(milliseconds=60_000), recognition(VECTOR), 1, Tenant(other))
        jobs = [link.submit(lambda job, n=n: m.Infer(job, n, (BYTE,), None, None)) for n in (hung, patient)]
        with pytest.raises(DeadlineExceeded, match=r"model 'slow' may take 0\.2 s"):
            await asyncio.wait_for(jobs[0], 20)
        with pytest.raises(HostLost):
            await asyncio.wait_for(jobs[1], 20)
        assert link.loss.suspects == ((slow, False),)

    with_box(work)


def test_a_host_that_takes_too_much_memory_is_ended_before_the_box_is() -> None:
    async def work(box: Box) -> None:
        link = await box.host()
        link.memory_mb = 1  # Python and NumPy alone are more; to be limited to it the host would have to start with it
        await until(lambda: bool(link.lost), "the end of the host")
        assert "more than the 1 MiB of hosts.memory_mb" in link.lost

    with_box(work, HostLimits(arena_mb=4))


def test_a_host_goes_before_the_daemon_when_memory_runs_out() -> None:
    async def work(box: Box) -> None:
        link = await box.serve(order())
        await box.ask(request(1))
        assert int(Path(f"/proc/{link.pid}/oom_score_adj").read_text()) == 500

    with_box(work)


def test_a_host_without_work_is_not_taken_for_a_hanging_one() -> None:
    async def work(box: Box) -> None:
        link = await box.serve(order())
        assert mean(await box.ask(request(4))) == 4
        await asyncio.sleep(0.7)  # longer than a job may take
        assert not link.lost
        assert mean(await box.ask(request(5))) == 5

    with_box(work, HostLimits(arena_mb=4, job_seconds=0.5))


def test_an_engine_that_never_opens_is_a_hanging_host(tmp_path: Path) -> None:
    fifo = tmp_path / "model.onnx"
    os.mkfifo(fifo)

    async def work(box: Box) -> None:
        link = await box.host("onnxruntime")
        stuck = Order(str(fifo), VECTOR, Recipe("onnxruntime", optimization="none"))
        with pytest.raises(HostLost):
            await asyncio.wait_for(link.open(stuck, recognition(VECTOR)), 10)

    with_box(work, HostLimits(arena_mb=4, open_seconds=0.3))


def test_work_that_comes_between_a_hosts_death_and_its_notice_is_not_lost() -> None:
    async def work(box: Box) -> None:
        link = await box.serve(order())
        os.kill(link.pid, signal.SIGKILL)
        # The loop does not run meanwhile, as when it is busy with something else: it cannot notice yet.
        wait(lambda: not is_running(link.pid), "the end of the process")
        late = request(6)
        box.slot.push(late)
        await until(lambda: bool(link.lost), "the loss")
        await box.serve(order())
        assert mean(await asyncio.wait_for(late.future, 20)) == 6

    with_box(work)


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (
            Order("/x", VECTOR, Recipe("null"), Artefact("/nowhere", {"engine.null": FileRecord("0", 1)})),
            EngineDamaged,
        ),
        (Order("/x", VECTOR, Recipe("null"), Artefact("/nowhere", {})), EngineDamaged),
        (order(Signature((TensorSpec("x", "FP32", (1, 3, 8, 8)),), VECTOR.outputs)), None),
    ],
)
def test_an_engine_that_cannot_be_opened_says_why_and_the_host_goes_on(
    wanted: Order, error: type[EdgedError] | None
) -> None:
    async def work(box: Box) -> None:
        link = await box.serve(order())
        if error is None:
            await link.open(wanted, recognition(wanted.signature))
        else:
            with pytest.raises(error):
                await link.open(wanted, recognition(wanted.signature))
        assert mean(await box.ask(request(9))) == 9

    with_box(work)


def test_an_inference_that_fails_is_that_requests_answer_and_the_next_one_goes_on(tmp_path: Path) -> None:
    async def work(box: Box) -> None:
        proto = models.gather()
        path = models.save(proto, tmp_path / "model.onnx")
        link = await box.host("onnxruntime")
        wanted = Order(str(path), models.signature(proto), Recipe("onnxruntime", optimization="none"))
        box.slot.install(await box.session(link, wanted))

        def lookup(*indices: int) -> TensorWork:
            return TensorWork((InputTensor("index", "INT64", (3,), np.array(indices).tobytes()),), None)

        with pytest.raises(EngineUnusable, match="out of data bounds"):
            await box.ask(lookup(0, 1, 99))
        answer = await box.ask(lookup(0, 1, 2))
        assert np.frombuffer(answer.outputs[0].data, np.float32).tolist() == [0, 1, 2, 3, 4, 5]

    with_box(work)


def test_a_backend_that_cannot_be_loaded_is_a_lost_host_that_says_why() -> None:
    async def work(box: Box) -> None:
        with pytest.raises(HostLost, match="tensorflow"):
            await box.host("tensorflow")
        assert len(box.lost) == 1

    with_box(work)


def test_a_host_that_was_stopped_takes_nothing_more() -> None:
    async def work(box: Box) -> None:
        link = await box.host()
        await link.stop()
        with pytest.raises(HostLost):
            link.submit(lambda job: request(1).message(job, 1, [], None))
        with pytest.raises(HostLost):
            await link.open(order(), recognition(VECTOR))
        await link.close_session(1)
        await link.stop()
        assert len(box.lost) == 1

    with_box(work)


@pytest.mark.parametrize("end", ["stop", "kill -9"])
def test_nothing_of_a_host_stays(end: str) -> None:
    async def work(box: Box) -> None:
        link = await box.serve(order())
        await box.ask(request(1, 2, 3))
        if end == "kill -9":
            os.kill(link.pid, signal.SIGKILL)
            await until(lambda: bool(link.lost), "the loss")

    with_box(work)  # what a first host opens for good (the loop's child watcher) is not a leak
    before, processes = descriptors(), children()
    with_box(work)
    wait(lambda: descriptors() <= before, "the closing of every descriptor")
    assert children() == processes


# -- the hosts of a box ---------------------------------------------------------------------------------------------


def with_hosts(work: Callable[[Hosts, list[str]], Awaitable[None]]) -> None:
    async def hosted() -> None:
        lost: list[str] = []
        hosts = Hosts(LIMITS, lambda link, why: lost.append(why))
        try:
            await work(hosts, lost)
        finally:
            await hosts.stop()

    before = children()
    run(hosted())
    assert children() == before


def test_one_host_serves_all_who_ask_for_its_backend() -> None:
    async def work(hosts: Hosts, lost: list[str]) -> None:
        links = await asyncio.gather(*(hosts.get(HostKind("null")) for _ in range(3)))
        assert links[0] is links[1] is links[2] is await hosts.get(HostKind("null"))
        assert hosts.links() == [links[0]]

    with_hosts(work)


def test_who_asks_while_a_host_starts_gets_it_when_it_runs() -> None:
    async def work(hosts: Hosts, lost: list[str]) -> None:
        first = asyncio.ensure_future(hosts.get(HostKind("null")))
        for _ in range(5):
            await asyncio.sleep(0)
        try:
            second = await hosts.get(HostKind("null"))
            await asyncio.wait_for(second.open(order(), recognition(VECTOR)), 20)
        finally:
            await first

    with_hosts(work)


def test_a_host_that_died_is_started_again_and_one_that_keeps_dying_must_wait() -> None:
    async def work(hosts: Hosts, lost: list[str]) -> None:
        pids = set()
        for count in range(1, 3):
            link = await hosts.get(HostKind("null"))
            pids.add(link.pid)
            os.kill(link.pid, signal.SIGSEGV)
            await until(lambda n=count: len(lost) == n, "the loss")
        assert len(pids) == 2
        assert hosts.links() == []
        assert hosts.retry_in(HostKind("null")) > 0
        assert hosts.retry_in(HostKind("openvino")) == 0
        with pytest.raises(NotReady, match="keeps dying"):
            await hosts.get(HostKind("null"))

    with_hosts(work)


def test_hosts_killed_from_outside_are_started_again_at_once_and_forgotten() -> None:
    async def work(hosts: Hosts, lost: list[str]) -> None:
        for number in range(4):
            link = await hosts.get(HostKind("null", apart=str(number)))
            os.kill(link.pid, signal.SIGKILL)
            await until(lambda n=number: len(lost) > n, "the loss")
            assert hosts.retry_in(HostKind("null", apart=str(number))) == 0
        assert hosts._links == {}

    with_hosts(work)


@pytest.mark.parametrize(("has_room", "longest"), [(True, 2.0), (False, 30.0)])
def test_pause_grows_with_deaths_and_stays_short_while_there_is_room(has_room: bool, longest: float) -> None:
    pauses = [pause(deaths, has_room=has_room) for deaths in range(1, 20)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (0.0, longest)


@pytest.mark.parametrize(
    ("status", "is_out_of_memory", "end"),
    [
        *((-number, False, End.WORK) for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL)),
        *((-number, True, End.WORK) for number in (signal.SIGFPE, signal.SIGSYS, signal.SIGTRAP)),
        *((status, True, End.WORK) for status in (0, 1, 137, None)),
        *((-number, False, End.OUTSIDE) for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)),
        (-signal.SIGKILL, True, End.MEMORY),
        (-signal.SIGTERM, True, End.OUTSIDE),
    ],
)
def test_end_of_process_by_status_and_kernel_kills(status: int | None, is_out_of_memory: bool, end: End) -> None:
    assert end_of(status, is_out_of_memory=is_out_of_memory) is end


# -- what goes wrong between a host and its link ----------------------------------------------------------------------


def test_late_answer_of_a_job_that_did_not_stop_leaves_the_link_whole() -> None:
    async def work(box: Box) -> None:
        link = await box.serve(order(milliseconds=60_000))
        stuck = request(1)
        box.slot.push(stuck)
        connection = link._socket
        assert connection is not None
        drain = connection.drain

        def late() -> None:  # the answer comes when the host is being given up
            link._hear(msgspec.msgpack.encode(m.JobFailed(2, "EngineUnusable", "it was stopped")))
            link._hear(msgspec.msgpack.encode(m.Answer(2, (), m.Times())))
            drain()

        connection.drain = late  # type: ignore[method-assign]
        behind = request(4)
        box.slot.push(behind)
        with pytest.raises(DeadlineExceeded):
            await asyncio.wait_for(stuck.future, 20)
        await until(lambda: box.lost != [], "the loss")
        await box.serve(order())
        assert mean(await asyncio.wait_for(behind.future, 20)) == 4

    with_box(work, HostLimits(arena_mb=4, job_seconds=0.5))


def test_link_host_that_says_more_than_it_was_asked_is_lost_and_not_listened_to() -> None:
    async def work(box: Box) -> None:
        link = await box.serve(order())
        heard = 0

        def decode(data: bytes) -> m.FromHost:
            nonlocal heard
            heard += 1
            return m.Pong()

        link._decoder = SimpleNamespace(decode=decode)  # type: ignore[assignment]
        for _ in range(1000):
            link._hear(b"")
        assert box.lost != []
        assert heard < 20

    with_box(work)


@pytest.mark.parametrize(
    "message",
    [
        ["Answer", 1, [["", "", []]] * 100_000, []],
        ["Detected", 1, [[]] * 100_000],
        ["Pong", *[[]] * 100_000],
        {"type": "Pong", "more": [[]] * 100_000},
    ],
)
def test_messages_one_that_takes_long_to_decode_is_refused_at_once(message: object) -> None:
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


class Wire:
    """A daemon's end of a socket whose other end the test has."""

    def __init__(self, most_bulk: int = 0) -> None:
        self.heard: list[tuple[bytes, bytes]] = []
        self.gone: list[str] = []
        self.socket = HostSocket(self._hear, lambda: most_bulk, self.gone.append)
        self.host = self.socket.child.dup()
        self.socket.started()

    def _hear(self, message: bytes, bulk: memoryview) -> None:
        self.heard.append((message, bytes(bulk)))

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            await asyncio.to_thread(self.host.sendall, piece)


def with_wire(work: Callable[[Wire], Awaitable[None]], most_bulk: int = 0) -> None:
    async def wired() -> None:
        wire = Wire(most_bulk)
        try:
            await work(wire)
        finally:
            wire.socket.close()
            wire.host.close()

    run(wired())


def frame(message: bytes, bulk: bytes = b"") -> bytes:
    return HEADER.pack(len(message), len(bulk)) + message + bulk


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_host_socket_frames_in_any_pieces_arrive_whole(step: int) -> None:
    sent = [(b"", b""), (b"one", b""), (b"two", b"bulk"), (b"x" * 300, b"y" * 70_000), (b"z" * 70_000, b"")]

    async def work(wire: Wire) -> None:
        data = b"".join(frame(*each) for each in sent[: 3 if step < 100 else None] * 3)
        await wire.send(*(data[at : at + step] for at in range(0, len(data), step)))
        wire.host.close()
        await until(lambda: wire.gone == [""], "the end")
        assert wire.heard == sent[: 3 if step < 100 else None] * 3

    with_wire(work, 1 << 20)


@pytest.mark.parametrize(
    "announced", [(LARGEST_MESSAGE + 1, 0), (3, 1001), (3, (1 << 64) - 1), ((1 << 32) - 1, 0)], ids=str
)
def test_host_socket_frame_beyond_its_limits_ends_the_connection(announced: tuple[int, int]) -> None:
    async def work(wire: Wire) -> None:
        await wire.send(HEADER.pack(*announced))
        await until(lambda: len(wire.gone) == 1, "the end")
        assert wire.gone[0] != ""
        assert wire.heard == []

    with_wire(work, 1000)


def test_host_socket_others_have_turns_while_a_host_floods() -> None:
    async def work(wire: Wire) -> None:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while not wire.gone:
                turns += 1
                await asyncio.sleep(0)

        flood = frame(b"x") * 500_000
        sending = asyncio.ensure_future(wire.send(flood))
        waiting = asyncio.ensure_future(other())
        await sending
        wire.host.close()
        await waiting
        assert len(wire.heard) == 500_000
        assert turns > 5

    with_wire(work)


def test_host_socket_host_that_does_not_read_gets_all_later() -> None:
    async def work(wire: Wire) -> None:
        messages = [bytes([number]) * 50_000 for number in range(20)]
        assert all(wire.socket.send(each) for each in messages)
        host = HostEnd(wire.host)
        for each in messages:
            assert await asyncio.to_thread(host.receive) == each
        wire.host.shutdown(socket.SHUT_RDWR)
        assert await asyncio.to_thread(host.receive) is None
        await until(lambda: wire.gone == [""], "the end")
        assert not wire.socket.send(b"late")

    with_wire(work)


def test_link_host_that_sends_more_outputs_than_it_may_is_lost_and_no_request() -> None:
    async def work(box: Box) -> None:
        link = await box.serve(order(milliseconds=60_000))
        assert link._most_bulk() == 0
        waiting = request(7)
        box.slot.push(waiting)
        await until(lambda: link._most_bulk() > LIMITS.output_mb << 20, "the job")
        link._be_cut_off("sent too much")
        assert box.lost == ["sent too much"]
        await box.serve(order())
        assert mean(await asyncio.wait_for(waiting.future, 20)) == 7

    with_box(work)


def test_link_outputs_that_never_fit_in_shared_memory_arrive_whole() -> None:
    large = Signature(VECTOR.inputs, (TensorSpec("y", "FP32", (1, 5 << 20)), TensorSpec("z", "FP32", (1, 3))))

    async def work(box: Box) -> None:
        await box.serve(order(large))
        for value in (3, 9):
            answer = await box.ask(request(value))
            assert [output.data for output in answer.outputs] == [
                np.full(count, value, np.float32).tobytes() for count in (5 << 20, 3)
            ]

    with_box(work)


@pytest.mark.parametrize(
    "make",
    [
        lambda job: m.Detected(job, (m.Seen(error="annotations", message="odd"),)),
        lambda job: m.JobFailed(job, "annotations", "odd"),
        lambda job: m.Answer(job, (), m.Times(infer_ms=float("inf"))),
    ],
    ids=["picture failed with no error of ours", "job failed with no error of ours", "took for ever"],
)
def test_slot_answer_that_makes_no_sense_is_an_error_of_the_request(make: Callable[[int], m.FromHost]) -> None:
    async def work(box: Box) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        link = await box.serve(order(milliseconds=60_000))
        waiting = request(7)
        box.slot.push(waiting)
        link._hear(msgspec.msgpack.encode(make(next(iter(link._jobs)))))
        with pytest.raises(EngineUnusable):
            await asyncio.wait_for(waiting.future, 20)

    with_box(work)


def test_link_host_prints_into_the_log_and_has_no_file_of_the_daemon() -> None:
    async def work(box: Box) -> None:
        link = await box.host()
        assert os.readlink(f"/proc/{link.pid}/fd/1") == os.readlink(f"/proc/{link.pid}/fd/2")
        assert os.readlink(f"/proc/{link.pid}/fd/1") != os.readlink("/proc/self/fd/1")

    with_box(work)


def test_answer_that_cannot_be_read_loses_the_host_and_no_request() -> None:
    async def work(box: Box) -> None:
        link = await box.serve(order(milliseconds=60_000))
        waiting = request(7)
        box.slot.push(waiting)
        link._hear(b"nonsense")
        assert box.lost == ["sent an answer that cannot be read"]
        await box.serve(order())
        assert mean(await asyncio.wait_for(waiting.future, 20)) == 7

    with_box(work)


@pytest.mark.parametrize("state", ["busy", "opening"])
def test_stopped_host_is_replaced_and_blames_no_engine(tmp_path: Path, state: str) -> None:
    async def work(box: Box) -> None:
        link = await box.serve(order())
        os.kill(link.pid, signal.SIGSTOP)
        waiting = request(3)
        if state == "busy":
            box.slot.push(waiting)
            await until(lambda: bool(link.lost), "the loss")
        else:
            with pytest.raises(HostLost):
                await asyncio.wait_for(link.open(order(), recognition(VECTOR)), 20)
        assert link.loss.suspects == ()
        assert link.loss.end is End.OUTSIDE
        await box.serve(order())
        if state == "busy":
            assert mean(await asyncio.wait_for(waiting.future, 20)) == 3

    with_box(work)


def test_host_that_waits_for_long_without_using_the_processor_answers_pings_and_lives() -> None:
    async def work(box: Box) -> None:
        link = await box.serve(order(milliseconds=1800))  # as an inference on a device: the host only waits
        assert mean(await box.ask(request(5))) == 5
        assert not link.lost

    with_box(work)


def test_opening_that_is_cancelled_is_closed_once_it_is_open() -> None:
    async def work(box: Box) -> None:
        link = await box.host()
        opening = asyncio.ensure_future(link.open(order(), recognition(VECTOR)))
        await asyncio.sleep(0)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        await until(lambda: not link.sessions, "the session is closed")
        assert not link.lost

    with_box(work)


def test_request_that_loses_hosts_to_kills_from_outside_is_answered_by_the_next() -> None:
    async def work(box: Box) -> None:
        waiting = request(6)
        box.slot.push(waiting)
        for _ in range(4):
            link = await box.serve(order(milliseconds=60_000))
            os.kill(link.pid, signal.SIGKILL)
            await until(lambda one=link: bool(one.lost) and box.slot.current is None, "the loss")
        await box.serve(order())
        assert mean(await asyncio.wait_for(waiting.future, 20)) == 6

    with_box(work)
