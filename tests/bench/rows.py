"""The rows of the table. A row starts its daemons, measures the alternatives in turns and returns lines."""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import cv2
import grpc
import numpy as np

from edged.proto import cameras_pb2
from edged.shapes import MODEL_PATH, Scene
from tests.bench import alone
from tests.bench.choices import choices
from tests.bench.frames import frames
from tests.bench.loads import BARE, ByHand, cameras, processor_seconds, program, pss_mb
from tests.bench.nets import NETS, save
from tests.bench.pipelines import pipelines, reading
from tests.bench.raw import onnxruntime_only, raw
from tests.bench.starts import starts
from tests.bench.table import Figures, Line, Skipped, best, compare, in_rounds, steady
from tests.bench.triton import FORMS, Triton
from tests.bench.triton import fetch as fetch_triton
from tests.integration import onnx_files
from tests.integration.daemon import Daemon
from tests.integration.inference_calls import Calls, request
from tests.integration.test_http import HttpDaemon
from tests.overload import jain, offer
from tests.system.perf_analyzer.__main__ import cache_folder
from tests.system.perf_analyzer.fetched import Program, fetch
from tests.system.perf_analyzer.runs import run

_SETTLES = 300.0  # seconds until the engines are built
_FORMS = ((1, 1), (1, 2), (2, 1))  # workers and threads per worker, by hand


@dataclass(frozen=True)
class Bench:
    """How to measure: `seconds` per measurement. `before` is another checkout with its own .venv."""

    rounds: int
    seconds: float
    before: Path | None = None

    @contextlib.contextmanager
    def daemons(self, prepare: Callable[[Daemon], None], *arguments: str) -> Iterator[dict[str, Daemon]]:
        """Start the daemon of this tree and the one of `before`; `prepare` fills each one's models folder."""
        with contextlib.ExitStack() as stack:
            found = {"edged": Daemon(*arguments)}
            if self.before is not None:
                python = self.before / ".venv" / "bin" / "python"
                found["before"] = Daemon(*arguments, python=python, folder=self.before)
            for daemon in found.values():
                prepare(daemon)
                stack.enter_context(daemon)
            yield found


def tensors(bench: Bench) -> list[Line]:
    """ModelInfer of an identity model / a call of an empty grpc.aio server, with messages of the same size."""
    lines: list[Line] = []
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="eb-"))
        address = f"unix:{folder}/s"
        command = [sys.executable, "-m", "tests.bench.empty_server", address]
        server = stack.enter_context(program(command))
        found = stack.enter_context(bench.daemons(lambda d: onnx_files.identity(d.models / "id.onnx", "FP32")))
        for floats in (4, 256 * 1024):
            values = np.ones((floats // 4, 4), np.float32)
            message = request("id", values).SerializeToString()
            ways: dict[str, Callable[[], Figures]] = {}
            for name, daemon in found.items():
                daemon.settled("id", _SETTLES)
                channel = stack.enter_context(_channel(daemon.unix))
                call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
                ways[name] = partial(_calls, call, message, [daemon.pid, *daemon.hosts()], bench.seconds)
            empty = stack.enter_context(_channel(address)).unary_unary("/bench.Empty/Same")
            ways["empty grpc.aio call"] = partial(_calls, empty, message, [server.pid], bench.seconds)
            measured = in_rounds(ways, bench.rounds)
            row = f"tensors, {values.nbytes} bytes"
            for name in found:
                lines.append(compare(row, measured, name, ["empty grpc.aio call"], "p50 ms", 1.8, more=False))
                lines.append(compare(row, measured, name, ["empty grpc.aio call"], "CPU ms", None, more=False))
    return lines


def cameras_jpeg(bench: Bench) -> list[Line]:
    """JPEGs of 640x480 from cameras with one frame in flight each / the best loop by hand, in the same rounds."""
    scene, lines = Scene(1), list[Line]()
    pictures = [cv2.imencode(".jpg", scene.frame(number)[0])[1].tobytes() for number in range(20)]
    with bench.daemons(lambda _: None, "--model", f"shapes={MODEL_PATH}") as found, contextlib.ExitStack() as stack:
        clients = {name: stack.enter_context(daemon.client()) for name, daemon in found.items()}
        for daemon in found.values():
            daemon.settled("shapes", _SETTLES)
        forms = {f"by hand, {w} x {t} threads": ByHand(MODEL_PATH, w, t) for w, t in _FORMS}
        for count in (1, 4):
            ways: dict[str, Callable[[], Figures]] = {
                name: steady(partial(cameras, client, "shapes", pictures, count, False), bench.seconds)
                for name, client in clients.items()
            }
            ways |= {name: partial(form.rate, pictures, bench.seconds) for name, form in forms.items()}
            measured = in_rounds(ways, bench.rounds, warm_up=False)
            # A single frame in flight keeps one worker busy, so it is compared with one worker.
            fair = [name for name, (w, _) in zip(forms, _FORMS, strict=True) if w <= count]
            row = f"cameras, JPEG 640x480, {count} in flight"
            lines += [compare(row, measured, name, fair, "frames/s", 0.8) for name in found]
    return lines


def overload(bench: Bench) -> list[Line]:
    """32 cameras that offer ten times the capacity in JPEGs of 640x480. The capacity is measured in the same round."""
    count, times = 32, 10.0
    jpeg = cv2.imencode(".jpg", Scene(1).frame(0)[0])[1].tobytes()
    with bench.daemons(lambda _: None, "--model", f"shapes={MODEL_PATH}") as found:
        for daemon in found.values():
            daemon.settled("shapes", _SETTLES)

        def measure(daemon: Daemon) -> Figures:
            with daemon.client() as client:
                capacity = cameras(client, "shapes", [jpeg], 4, False, bench.seconds)["frames/s"]
            options = {f"camera {number}": cameras_pb2.StreamOptions(weight=1.0) for number in range(count)}
            fps = times * capacity / count
            began = time.monotonic()
            seen = asyncio.run(offer(daemon.unix, "shapes", options, fps, 3 * bench.seconds, jpeg)).values()
            elapsed = time.monotonic() - began
            sent, answered = sum(camera.sent for camera in seen), sum(camera.answered for camera in seen)
            ages = [age for camera in seen for age in camera.ages_ms]
            return {
                "offered": sent / (3 * bench.seconds) / capacity,
                "accounted": sum(camera.accounted for camera in seen) / sent,
                "answered/s": answered / elapsed / capacity,
                "age p99": float(np.quantile(ages, 0.99)) / 1e3 * capacity / count,
                "Jain": jain([camera.answered for camera in seen]),
            }

        measured = in_rounds({name: partial(measure, daemon) for name, daemon in found.items()}, bench.rounds)
    goals = {
        "offered": (0.95 * times, True),
        "accounted": (1.0, True),
        "answered/s": (0.8, True),
        "age p99": (2.0, False),
        "Jain": (0.99, True),
    }
    units = {"offered": "capacity", "accounted": "sent", "answered/s": "capacity", "age p99": "round of all cameras"}
    return [
        _absolute("overload", measured, name, figure, units.get(figure, "1"), goal, more)
        for name in found
        for figure, (goal, more) in goals.items()
    ]


def many(bench: Bench) -> list[Line]:
    """CPU time of the daemon and its hosts per 640x480 JPEG, with 64 cameras / with one, at the same total rate."""
    jpeg, fps = cv2.imencode(".jpg", Scene(1).frame(0)[0])[1].tobytes(), 64.0
    with bench.daemons(lambda _: None, "--model", f"shapes={MODEL_PATH}") as found:

        def measure(daemon: Daemon, count: int) -> Figures:
            options = {f"camera {number}": cameras_pb2.StreamOptions(weight=1.0) for number in range(count)}
            pids = [daemon.pid, *daemon.hosts()]
            used = processor_seconds(pids)
            sending = offer(daemon.unix, "shapes", options, fps / count, 2 * bench.seconds, jpeg, spread=True)
            seen = asyncio.run(sending).values()
            return {"CPU ms": (processor_seconds(pids) - used) / sum(camera.answered for camera in seen) * 1e3}

        ways: dict[str, Callable[[], Figures]] = {}
        for name, daemon in found.items():
            daemon.settled("shapes", _SETTLES)
            for count in (1, 64):
                ways[f"{name}, {count}"] = partial(measure, daemon, count)
        measured = in_rounds(ways, bench.rounds)
    return [
        compare("cost of a frame", measured, f"{name}, 64", [f"{name}, 1"], "CPU ms", 1.1, more=False) for name in found
    ]


def memory(bench: Bench) -> list[Line]:
    """PSS with one model and four cameras: the daemon and the host / a bare program with the same runtime and model."""
    jpeg = cv2.imencode(".jpg", Scene(1).frame(0)[0])[1].tobytes()
    with program([sys.executable, "-c", BARE, str(MODEL_PATH)]) as bare, bench.daemons(onnxruntime_only) as found:
        for daemon in found.values():
            daemon.settled("shapes", _SETTLES)

        def measure(daemon: Daemon) -> Figures:
            with daemon.client() as client:
                cameras(client, "shapes", [jpeg], 4, False, bench.seconds)
            hosts = sum(pss_mb(pid) for pid in daemon.hosts())
            return {"daemon MiB": pss_mb(daemon.pid), "host MiB": hosts}

        def runtime() -> Figures:
            return {"daemon MiB": pss_mb(bare.pid), "host MiB": pss_mb(bare.pid)}

        ways: dict[str, Callable[[], Figures]] = {name: partial(measure, daemon) for name, daemon in found.items()}
        measured = in_rounds({**ways, "bare runtime": runtime}, bench.rounds)
    return [
        compare("memory", measured, name, ["bare runtime"], figure, None, more=False)
        for name in found
        for figure in ("daemon MiB", "host MiB")
    ]


def http(bench: Bench) -> list[Line]:
    """An identity model over HTTP, with JSON and with binary tensors / the same over gRPC."""
    values, lines = np.ones((1024, 4), np.float32), list[Line]()
    head = {"name": "x", "datatype": "FP32", "shape": list(values.shape)}
    text = json.dumps({"inputs": [{**head, "data": values.ravel().tolist()}]}).encode()
    sized = {**head, "parameters": {"binary_data_size": values.nbytes}}
    binary = json.dumps({"inputs": [sized], "parameters": {"binary_data_output": True}}).encode()
    message = request("id", values).SerializeToString()
    daemon = HttpDaemon("127.0.0.1:0", body_mb=64)
    onnx_files.identity(daemon.models / "id.onnx", "FP32")
    with daemon, _channel(daemon.unix) as channel:
        daemon.settled("id", _SETTLES)
        connection = daemon.connection()

        def post(body: bytes, timeout: float, **headers: str) -> bytes:
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request("POST", "/v2/models/id/infer", body, names)
            answer = connection.getresponse()
            content = answer.read()
            assert answer.status == 200, content
            return content

        by_binary = partial(post, Inference_Header_Content_Length=str(len(binary)))
        by_grpc = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        bodies = {"HTTP, JSON": (post, text), "HTTP, binary": (by_binary, binary + values.tobytes())}
        calls = {**bodies, "gRPC": (by_grpc, message)}
        pids = [daemon.pid, *daemon.hosts()]
        measured = in_rounds(
            {k: partial(_calls, c, m, pids, bench.seconds) for k, (c, m) in calls.items()}, bench.rounds
        )
    for name in bodies:
        lines.append(compare(f"HTTP, {values.nbytes} bytes", measured, name, ["gRPC"], "p50 ms", None, more=False))
    return lines


def tracing(bench: Bench) -> list[Line]:
    """Requests with one in 1000 traced, and with all traced / without tracing."""
    message = request("id", np.ones((2, 4), np.float32)).SerializeToString()
    levels = {"off": ([], []), "one in 1000 traced": (["TIMESTAMPS"], ["1000"]), "each traced": (["TIMESTAMPS"], ["1"])}
    with Daemon() as daemon:
        onnx_files.identity(daemon.models / "id.onnx", "FP32")
        daemon.settled("id", _SETTLES)
        with Calls(daemon.unix) as operator, _channel(daemon.unix) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")

            def measure(level: list[str], rate: list[str]) -> Figures:
                operator.trace(trace_level=level, trace_rate=rate, trace_file=["bench.json"])
                return _calls(call, message, [daemon.pid], bench.seconds)

            measured = in_rounds({name: partial(measure, *level) for name, level in levels.items()}, bench.rounds)
    return [compare("tracing", measured, name, ["off"], "p50 ms", None, more=False) for name in list(levels)[1:]]


def triton(bench: Bench) -> Iterator[Line]:
    """perf_analyzer against edged with its own choice of engines / against the best variant of Triton.

    Triton's Python backend runs ONNX Runtime with the same model; every variant is measured in each round. The fastest
    runtime without a server / Triton shows how far a server of these runtimes can get ahead of it."""
    program, folder = fetch(cache_folder()), fetch_triton(cache_folder() / "triton")
    with tempfile.TemporaryDirectory(prefix="eb-") as home, contextlib.ExitStack() as stack:
        peer = Triton(folder)
        for net in NETS:
            save(net, Path(home) / f"{net.name}.onnx")
            peer.add(net.name, Path(home) / f"{net.name}.onnx", net.size, net.out)

        def prepare(daemon: Daemon) -> None:
            for net in NETS:
                save(net, daemon.models / f"{net.name}.onnx")

        found = stack.enter_context(bench.daemons(prepare))
        for daemon in found.values():
            for net in NETS:
                daemon.settled(net.name, _SETTLES)
        stack.enter_context(peer)
        for net in NETS:
            shape = ("--shape", f"images:1,3,{net.size},{net.size}")
            runtimes = alone.sessions(Path(home) / f"{net.name}.onnx", net)
            for mode, count in (("sync", 1), ("async", 4), ("async", 8), ("streaming", 4)):
                ways: dict[str, Callable[[], Figures]] = {
                    name: partial(_analyzed, program, daemon.tcp, net.name, mode, shape, count)
                    for name, daemon in found.items()
                }
                for form in FORMS:
                    served = peer.name(net.name, form)
                    ways[form] = partial(_analyzed, program, peer.address, served, mode, shape, count)
                for name, instances in runtimes.items():
                    ways[name] = partial(alone.rate, instances, net, count, bench.seconds)
                measured = in_rounds(ways, min(bench.rounds, 3), warm_up=False)  # perf_analyzer warms up
                goal = 0.7 if net.name == "tiny" else 1.15
                for name in found:
                    row = f"{net.name}, {mode}, {count} in flight"
                    yield compare(row, measured, name, list(FORMS), "inferences/s", goal)
                    yield compare(row, measured, name, list(FORMS), "p99 ms", 0.9, more=False)
                for figure, more in (("inferences/s", True), ("p99 ms", False)):
                    fastest = best(measured, list(runtimes), figure, more)
                    yield compare(row, measured, fastest, list(FORMS), figure, None, more)


def _analyzed(program: Program, address: str, model: str, mode: str, options: tuple[str, ...], count: int) -> Figures:
    done = run(program, address, model, mode, options, f"{count}:{count}:1")
    if done.problem:
        raise RuntimeError(f"{model} at {address}: {done.problem}")
    return {"inferences/s": done.throughput[count], "p99 ms": done.p99_ms[count]}


ROWS: Mapping[str, Callable[[Bench], Iterable[Line | Skipped]]] = {
    "tensors": tensors,
    "cameras": cameras_jpeg,
    "raw": raw,
    "overload": overload,
    "many": many,
    "memory": memory,
    "starts": starts,
    "http": http,
    "tracing": tracing,
    "choices": choices,
    "frames": frames,
    "pipelines": pipelines,
    "pipelines-ocr": reading,
    "triton": triton,
}


def _absolute(row: str, measured: object, way: str, figure: str, unit: str, goal: float, more: bool) -> Line:
    """Make a line of a figure that is a ratio already."""
    values = [turn[figure] for turn in measured[way]]  # type: ignore[index]
    middle = statistics.median(values)
    return Line(row, way, figure, unit, middle, 1.0, middle, min(values), max(values), len(values), goal, more)


def _calls(call: Callable[..., bytes], message: bytes, pids: list[int], seconds: float) -> Figures:
    """Make calls one after another; return the median, and the processor time of the serving processes per call."""
    for _ in range(20):
        call(message, timeout=60)
    taken, used, until = list[float](), processor_seconds(pids), time.perf_counter() + seconds
    while (began := time.perf_counter()) < until:
        call(message, timeout=60)
        taken.append(time.perf_counter() - began)
        # At least one tick of the kernel's clock, to avoid a ratio of zero.
    used = max(processor_seconds(pids) - used, 0.01)
    return {"p50 ms": statistics.median(taken) * 1e3, "CPU ms": used / len(taken) * 1e3}


def _channel(address: str) -> grpc.Channel:
    return grpc.insecure_channel(
        address, [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    )
