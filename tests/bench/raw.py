"""The row of raw frames: pixels as bytes and in shared memory, against a loop in one process on the same runtime."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.shapes import MODEL_PATH, Scene
from tests.bench.loads import ByHand, processor_seconds, program
from tests.bench.table import Figures, Line, compare, in_rounds, steady
from tests.integration.daemon import Daemon

if TYPE_CHECKING:
    from tests.bench.rows import Bench

_SETTLES = 300.0  # seconds until the engines are built
_WIDTH, _HEIGHT = 1280, 720
_CLIENT = Path(__file__).with_name("raw_client.py")
_BARE = {"bare, 1 x 1 thread": (1, 1), "bare, 1 x 2 threads": (1, 2), "bare, 2 x 1 thread": (2, 1)}
# Name, cameras, and the arguments of their streams.
_LOADS: tuple[tuple[str, int, dict[str, bool]], ...] = (
    ("1 in flight", 1, {"lossless": True}),
    ("every frame of 1 camera", 1, {"every_frame": True}),
    ("4 in flight", 4, {"lossless": True}),
)
_GOALS = {"bytes": 0.6, "shared": 0.9}


def raw(bench: Bench) -> list[Line]:
    """Raw frames of 1280x720, as bytes and in shared memory / the best loop in one process, with ONNX Runtime."""
    scene, lines = Scene(1, _WIDTH, _HEIGHT), list[Line]()
    pictures = [np.ascontiguousarray(scene.frame(number)[0]) for number in range(8)]
    with bench.daemons(onnxruntime_only) as found, contextlib.ExitStack() as stack:
        clients: dict[str, Callable[..., Figures]] = {}
        for name, daemon in found.items():
            daemon.settled("shapes", _SETTLES)
            folder = None if name == "edged" else bench.before
            clients[name] = partial(_send, daemon, stack.enter_context(_client(daemon.unix, folder)))
        bare = {name: ByHand(MODEL_PATH, *form) for name, form in _BARE.items()}
        for load, cameras, options in _LOADS:
            ways: dict[str, Callable[[], Figures]] = {}
            for shared in (False, True):
                for name, send in clients.items():
                    request = {"cameras": cameras, "shared": shared, **options}
                    if not _refuses(send, request):
                        way = f"{name}, {'shared' if shared else 'bytes'}"
                        ways[way] = steady(partial(send, request), bench.seconds)
            several = cameras > 1 or "every_frame" in options
            fair = [name for name, (workers, _) in _BARE.items() if workers == 1 or several]
            ways |= {name: partial(_bare, bare[name], pictures, bench.seconds) for name in fair}
            measured = in_rounds(ways, bench.rounds, warm_up=False)
            for way in ways:
                if way not in _BARE:
                    goal = _GOALS[way.rpartition(" ")[2]]
                    row = f"raw {_WIDTH}x{_HEIGHT}, {load}"
                    lines.append(compare(row, measured, way, fair, "frames/s", goal))
                    for part in ("CPU ms", "daemon CPU ms", "host CPU ms", "client CPU ms"):
                        lines.append(compare(row, measured, way, fair[:1], part, None, more=False))
    return lines


def _refuses(send: Callable[..., Figures], request: dict[str, Any]) -> bool:
    """Return True if this client, which may be an older one, cannot send this way."""
    return "error" in send(request, 0.1)


def _send(daemon: Daemon, client: subprocess.Popen[str], request: dict[str, Any], seconds: float) -> Figures:
    assert client.stdin is not None
    assert client.stdout is not None
    serving, hosts = processor_seconds([daemon.pid]), processor_seconds(daemon.hosts())
    client.stdin.write(json.dumps({**request, "seconds": seconds}) + "\n")
    client.stdin.flush()
    found = json.loads(client.stdout.readline())
    if "error" in found:
        return {"error": 1.0}
    frames = found["frames"]
    parts = {
        "daemon CPU ms": (processor_seconds([daemon.pid]) - serving) / frames * 1e3,
        "host CPU ms": (processor_seconds(daemon.hosts()) - hosts) / frames * 1e3,
        "client CPU ms": found["client"] / frames * 1e3,
    }
    return {"frames/s": frames / found["seconds"], "CPU ms": sum(parts.values()), **parts}


def _bare(loop: ByHand, pictures: list[np.ndarray], seconds: float) -> Figures:
    began, used = time.perf_counter(), time.process_time()
    rate = loop.rate(pictures, seconds)["frames/s"]
    used = (time.process_time() - used) / (time.perf_counter() - began) / rate * 1e3
    return dict.fromkeys(("CPU ms", "daemon CPU ms", "host CPU ms", "client CPU ms"), used) | {"frames/s": rate}


def onnxruntime_only(daemon: Daemon) -> None:
    """Give a daemon the embedded detector, restricted to ONNX Runtime."""
    folder = daemon.models / "shapes"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.onnx").write_bytes(Path(MODEL_PATH).read_bytes())
    (folder / "edged.toml").write_text('backends = "onnxruntime"\n')


def _client(target: str, folder: Path | None) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    """Start a process with cameras, from this checkout or from `folder`."""
    python = sys.executable if folder is None else str(folder / ".venv" / "bin" / "python")
    return program([python, str(_CLIENT), target, "shapes", str(_WIDTH), str(_HEIGHT)], folder)
