"""The cost of a change of the device for clients: time to the first answer, time to the new engine, failures.

python tests/bench/lifecycle.py

The change is a real one for the daemon: the metadata of another runtime package appears on its path, which is a fact
that all engines of ONNX Runtime depend on. Seconds are of this box, with a ratio to compare.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import edged
from edged.models.repository import Repository
from edged.shapes import MODEL_PATH, Scene
from tests.integration.daemon import Daemon, is_of_the_past, wait_for
from tests.system.load import Load

_PICTURE = Scene(1).frame(0)[0]


def first_answer(client: edged.Client) -> float:
    """Seconds until a picture is answered, asked from now on."""
    started = time.monotonic()
    while True:
        try:
            client.infer("shapes", _PICTURE)
        except edged.EdgedError:
            time.sleep(0.005)
        else:
            return time.monotonic() - started


def serving(client: edged.Client) -> edged.api_types.EngineInfo | None:
    """The engine that serves and was built for the device as it is now."""
    return next((e for e in client.engines("shapes") if e.state == "serving" and not is_of_the_past(e)), None)


def change(packages: Path, version: str) -> None:
    """Installs only the metadata of a package."""
    folder = packages / f"onnxruntime_gpu-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: onnxruntime-gpu\nVersion: {version}\n")


def main() -> None:
    environment = dict(os.environ)
    daemon = Daemon(environment=environment)
    packages = daemon.home / "packages"
    packages.mkdir()
    environment["PYTHONPATH"] = os.pathsep.join([str(packages), *_path()])
    # Only engines that the change affects; another one would go on serving.
    Repository(daemon.models).add("shapes", {"model.onnx": MODEL_PATH}, {"backends": "onnxruntime"})
    started = time.monotonic()
    with daemon:
        with daemon.client() as client:
            cold = time.monotonic() - started + first_answer(client)
        built = time.monotonic()
        daemon.settled("shapes")
        built = time.monotonic() - built
        print(f"start with an empty cache: first answer after {cold:.2f} s, best engine after {built:.1f} s more")

        with Load(daemon) as load, daemon.client() as client:
            time.sleep(1)
            change(packages, "9.9.9")
            changed = time.monotonic()
            client.refresh_device()
            noticed = time.monotonic() - changed
            gap = first_answer(client)
            wait_for("the new engines serve", lambda: serving(client), 120)
            swapped = time.monotonic() - changed
            daemon.settled("shapes")
        answered = sum(load.cameras.answered) + load.asked
        print(
            f"change under load: noticed after {noticed:.2f} s, next answer after {gap * 1000:.0f} ms"
            f" ({gap / cold:.3f} of a cold start's), an engine for it serves after {swapped:.1f} s;"
            f" {answered} requests answered, {len(load.failures)} failed"
        )
        for failure in load.failures[:5]:
            print(f"  {failure}")

        daemon.stop()
        change(packages, "9.9.10")
        (packages / "onnxruntime_gpu-9.9.9.dist-info" / "METADATA").unlink()
        (packages / "onnxruntime_gpu-9.9.9.dist-info").rmdir()
        started = time.monotonic()
        daemon.start()
        with daemon.client() as client:
            stopped = time.monotonic() - started + first_answer(client)
        print(f"change while stopped: first answer {stopped:.2f} s after the start ({stopped / cold:.2f} of cold)")

        daemon.settled("shapes")
        daemon.stop()
        started = time.monotonic()
        daemon.start()
        with daemon.client() as client:
            warm = time.monotonic() - started + first_answer(client)
        print(f"start with nothing changed: first answer after {warm:.2f} s ({warm / cold:.2f} of cold)")


def _path() -> list[str]:
    return [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


if __name__ == "__main__":
    main()
