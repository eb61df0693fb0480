"""What happens to a daemon in the field, one kind of activity per function. All run repeatedly and at the same time."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from random import Random
from typing import Final, TypeAlias

import grpc
import msgspec
import numpy as np

from edged.client import Client
from edged.errors import EdgedError, InvalidInput, NotReady
from edged.proto import open_inference_pb2 as pb
from edged.shapes import Scene
from tests.integration import onnx_files
from tests.soak.box import COMING, DETECTOR, DROPPED, STEADY, Box
from tests.soak.journal import Journal

_FRAMES: Final = [Scene(5).frame(number)[0] for number in range(8)]
_PATIENCE = 30.0
_FACTORS: Final = range(2, 8)  # few, so that models return: the daemon remembers a thousand others


class Doing(msgspec.Struct, frozen=True):
    """The context of an activity: the box, the random source, the journal, and the event that ends the round."""

    box: Box
    random: Random
    journal: Journal
    over: threading.Event

    def client(self) -> Client:
        return self.box.client()


Deed: TypeAlias = Callable[[Doing], None]


def camera(doing: Doing) -> None:
    """Connect a camera, stream for a while, and leave in one of several ways."""
    random = doing.random
    name = random.choice(("door", "yard", "gate", f"passing-{random.randrange(10_000)}"))
    leaves = random.choice(("ends", "hangs up", "vanishes"))
    count = random.randrange(1, 40)
    with doing.client() as client:
        frames = _frames(doing, count, fps=random.choice((5, 20, 100)))
        shared = random.choice((None, False))
        stream = client.stream(
            DETECTOR, frames, camera=name, shared=shared, track=random.random() < 0.3, max_fps=random.choice((0, 5))
        )
        try:
            for number, result in enumerate(stream):
                doing.journal.did("frames answered" if result.error is None else "frames failed")
                if leaves != "ends" and number >= count // 2:
                    break
            if leaves == "hangs up":
                stream.close()
        except NotReady as error:
            doing.journal.did(f"streams ended: {type(error).__name__}")
    doing.journal.did("cameras")


def killed_client(doing: Doing) -> None:
    """Kill a program in the middle of its stream: its call and its shared memory are left."""
    command = [sys.executable, "-m", "tests.soak.peer", doing.box.unix, DETECTOR]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        program.stdout.readline()  # the stream runs
        doing.over.wait(doing.random.random())
        program.kill()
    doing.journal.did("clients killed")
    doing.over.wait(4)


def truth(doing: Doing) -> None:
    """Send many requests with known answers over one connection."""
    with grpc.insecure_channel(doing.box.tcp) as channel:
        infer = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelInferResponse.FromString,
        )
        for _ in range(200):
            values = np.array([doing.random.randrange(1000) for _ in range(4)], np.float32)
            tensor = pb.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1, 4])
            request = pb.ModelInferRequest(model_name=STEADY, inputs=[tensor], raw_input_contents=[values.tobytes()])
            try:
                answer = np.frombuffer(infer(request, timeout=_PATIENCE).raw_output_contents[0], np.float32)
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    doing.journal.fail(f"a request was answered {error.code().name}: {error.details()}")
                doing.journal.did("requests refused for a while")
            else:
                doing.journal.did("requests")
                if not np.array_equal(answer, values * 3):
                    doing.journal.fail("an answer was wrong")
            if doing.over.wait(0.01):
                return


def model(doing: Doing) -> None:
    """Add a model, by upload or as a file, replace it with other weights, and remove it."""
    with doing.client() as client:
        for factor in doing.random.sample(_FACTORS, 2):
            file = onnx_files.scale(doing.box.at(f"{COMING}.onnx"), float(factor))
            try:
                client.add_model(COMING, file)
            except EdgedError as error:
                if "killed" not in str(error):  # the child that inspected the model was killed
                    raise
                if COMING in (each.name for each in client.models()):
                    doing.journal.fail("a model whose upload failed is listed")
                continue
            doing.over.wait(doing.random.random())
            client.remove_model(COMING)
            doing.journal.did("models uploaded")
    place = doing.box.models / f"{DROPPED}.onnx"
    for factor in doing.random.sample(_FACTORS, 2):
        onnx_files.scale(doing.box.at(place.name), float(factor)).replace(place)
        doing.journal.did("models dropped in")
        doing.over.wait(doing.random.random() * 4)
    place.unlink()


def command(doing: Doing) -> None:
    """Rebuild or verify engines; cancel some of it."""
    model = DETECTOR if doing.random.random() < 0.15 else STEADY
    with doing.client() as client:
        verify = doing.random.random() < 0.3
        made = client.verify(model) if verify else client.rebuild(model, force=True)
        with made:
            cancels = doing.random.random() < 0.3
            for progress in made:
                if cancels or doing.over.is_set():
                    client.cancel(model)
                    cancels = False
                if progress.done and progress.succeeded:
                    doing.journal.did("engines verified" if verify else "engines built")
    doing.over.wait(doing.random.random() * 3)


def configuration(doing: Doing) -> None:
    """Change the configuration, sometimes to an invalid one."""
    with doing.client() as client:
        if doing.random.random() < 0.3:
            doing.box.configure("stop_secnds = 3")
            try:
                client.reload()
                doing.journal.fail("an invalid configuration was accepted")
            except InvalidInput:
                doing.journal.did("configurations refused")
        else:
            keys = [f"health.probe_seconds = {doing.random.randrange(5, 60)}"]
            if doing.random.random() < 0.5:
                keys.append('log.level = "info"')
            if doing.random.random() < 0.5:
                address = f"unix:{doing.box.at('second.sock')}"
                keys.insert(0, f'listen = ["{doing.box.unix}", "localhost:0", "{address}"]')
            doing.box.configure(*keys)
            client.reload()
            doing.journal.did("configurations taken")
    doing.over.wait(1 + doing.random.random() * 2)


def onlooker(doing: Doing) -> None:
    """Read events, status, load and metrics."""
    with doing.client() as client:
        with client.events(follow=True) as events:
            closing = threading.Timer(doing.random.random() * 2, events.close)
            closing.start()
            doing.journal.did("events seen", sum(1 for _ in events))
            closing.join()
        client.status(), client.load(), client.engines(), client.explain(STEADY), client.device()
    with contextlib.closing(_unix(doing.box)) as connection:
        connection.request("GET", "/metrics")
        body = connection.getresponse().read()
        if b"edged_model_requests_total" not in body:
            doing.journal.fail("metrics lack a model's requests")
    doing.journal.did("looks")


def death(doing: Doing) -> None:
    """Kill an engine host, or a child that builds."""
    doing.over.wait(2 + doing.random.random() * 4)
    victims = doing.box.victims(doing.random.choice(("host", "worker", "worker")))
    if victims and not doing.over.is_set():
        pid = doing.random.choice(victims)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, doing.random.choice((signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM)))
            doing.journal.did("children killed")


DEEDS: Final[tuple[tuple[Deed, int], ...]] = (
    (truth, 1),
    (camera, 3),
    (killed_client, 1),
    (model, 1),
    (command, 1),
    (configuration, 1),
    (onlooker, 1),
    (death, 1),
)
"""Each activity, and how many threads run it."""


@contextlib.contextmanager
def churn(box: Box, seed: str, journal: Journal) -> Iterator[None]:
    """Run all activities while the block lasts."""
    over = threading.Event()
    threads = [
        threading.Thread(target=_again, args=(deed, Doing(box, Random(f"{seed}.{deed.__name__}.{at}"), journal, over)))
        for deed, count in DEEDS
        for at in range(count)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(2 * _PATIENCE)
        if any(thread.is_alive() for thread in threads):
            journal.fail("a client got no answer")


def _again(deed: Deed, doing: Doing) -> None:
    while not doing.over.is_set():
        try:
            deed(doing)
        except Exception as error:
            doing.journal.fail(f"{deed.__name__}: {type(error).__name__}: {error}")
            doing.over.wait(1)


def _frames(doing: Doing, count: int, fps: float) -> Iterator[np.ndarray]:
    for number in range(count):
        if doing.over.wait(1 / fps):
            return
        yield _FRAMES[number % len(_FRAMES)]


def _unix(box: Box) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("localhost", timeout=_PATIENCE)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(_PATIENCE)
    connection.sock.connect(str(box.metrics))
    return connection
