"""Boxes that share engines: real daemons, and an S3 server (rclone) or a web server that holds the engines."""

from __future__ import annotations

import functools
import http.server
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from edged.api_types import EngineInfo
from edged.fleet.keys import Keys
from edged.shapes import MODEL_PATH
from tests.integration.daemon import Daemon, wait_for

pytest.importorskip("obstore")
pytest.importorskip("nacl")
RCLONE = Path(sys.executable).with_name("rclone")
SECRET = {"AWS_ACCESS_KEY_ID": "edged", "AWS_SECRET_ACCESS_KEY": "secret-of-the-store", "AWS_REGION": "us-east-1"}
pytestmark = [
    pytest.mark.skipif(not RCLONE.exists(), reason="rclone is not installed: make .venv/.dev"),
    pytest.mark.timeout(600),
]


class Store:
    """An S3 server over a folder, which can be stopped and started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "engines").mkdir(parents=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [str(RCLONE), "serve", "s3", str(self.folder), "--addr", f"127.0.0.1:{self.port}"]
        command += ["--auth-key", f"{SECRET['AWS_ACCESS_KEY_ID']},{SECRET['AWS_SECRET_ACCESS_KEY']}", "--config", ""]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for("the S3 server answers", self._is_up)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)

    def _is_up(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0

    def environment(self, **more: str) -> dict[str, str]:
        address = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false"}
        return {**os.environ, **SECRET, **address, **more}

    @contextmanager
    def web(self) -> Iterator[str]:
        """A web server that only reads the same folder."""
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(self.folder / "engines"))
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{server.server_port}/jetson"
            server.shutdown()

    def files(self, folder: str) -> list[Path]:
        place = self.folder / "engines" / "jetson" / folder
        return sorted(path for path in place.iterdir() if path.is_file()) if place.exists() else []


@pytest.fixture
def store() -> Iterator[Store]:
    with tempfile.TemporaryDirectory(prefix="edt-") as folder:
        found = Store(Path(folder))
        found.start()
        try:
            yield found
        finally:
            found.stop()


CONFIG = """
[fleet]
store = "s3://engines/jetson"
publish = true
"""
# One recipe, so that each box needs one engine besides the reference.
SETTINGS = {"backends": "openvino", "precisions": "fp32", "threads": "1"}


@contextmanager
def boxes(
    store: Store, *names: str, unequal: str = "", reader: str = "", **environment: str
) -> Iterator[dict[str, Daemon]]:
    """Start daemons that trust each other. `unequal` is on another processor; `reader` only reads, at a web server."""
    with ExitStack() as stack:
        made = {}
        for name in names:
            other = {"PYTHONPATH": str(Path(__file__).parents[1] / "other_processor")} if name == unequal else {}
            config = f'fleet.store = "{stack.enter_context(store.web())}"' if name == reader else CONFIG
            made[name] = Daemon(config=config, environment=store.environment(**environment, **other))
        publics = {name: Keys(daemon.state).generate() for name, daemon in made.items()}
        for daemon in made.values():
            for name, public in publics.items():
                Keys(daemon.state).trust(name, public)
        yield {name: stack.enter_context(daemon) for name, daemon in made.items()}


def add(daemon: Daemon) -> None:
    with daemon.client() as client:
        client.add_model("shapes", MODEL_PATH, settings=SETTINGS)


def built(daemon: Daemon) -> EngineInfo:
    """Wait until the engine that is not the reference has its outcome; return it."""

    def found() -> EngineInfo | None:
        with daemon.client() as client:
            engines = [each for each in client.engines("shapes") if not each.is_reference]
        return next((each for each in engines if each.state in ("serving", "ready", "rejected")), None)

    return wait_for("the engine is there", found, 180)


@contextmanager
def asked(daemon: Daemon) -> Iterator[list[int]]:
    """Send pictures all the time; each must be answered. The list grows with each answer."""
    answers: list[int] = []
    failures: list[Exception] = []
    is_over = threading.Event()

    def ask() -> None:
        picture = np.zeros((240, 320, 3), np.uint8)
        with daemon.client() as client:
            while not is_over.is_set():
                try:
                    answers.append(len(client.infer("shapes", picture).detections))
                except Exception as error:
                    failures.append(error)
                    return

    asking = threading.Thread(target=ask)
    asking.start()
    yield answers
    is_over.set()
    asking.join(30)
    assert not failures, failures


def alarms(daemon: Daemon) -> str:
    with daemon.client() as client:
        return "; ".join(each.message for each in client.status().alarms if each.kind == "fleet")


@pytest.mark.long
def test_one_of_three_equal_boxes_builds_and_an_unequal_one_builds_its_own(store: Store) -> None:
    with boxes(store, "dock1", "dock2", "dock3", "yard", unequal="yard") as daemons:
        for daemon in daemons.values():
            add(daemon)
        engines = {name: built(daemon) for name, daemon in daemons.items()}
        equal = [engines[name] for name in ("dock1", "dock2", "dock3")]
        assert len({each.key for each in equal}) == 1
        assert engines["yard"].key != equal[0].key
        assert engines["yard"].shared_by == ""
        own = [each for each in equal if not each.shared_by]
        assert len(own) == 1, [each.shared_by for each in equal]
        assert len(store.files("engines")) == 2
        assert all(each.verdict is not None and each.verdict.accepted for each in equal)
        assert not any(alarms(daemon) for daemon in daemons.values())
        wait_for("all leases are given up", lambda: not store.files("leases"))
        listed = subprocess.run(
            daemons["dock1"].command("fleet", "list", "--store", "s3://engines/jetson", "--json"),
            env={**store.environment(), "EDGED_STATE": str(daemons["dock1"].state)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert listed.returncode == 0, listed.stderr
        assert listed.stdout.count('"model":"shapes"') == 2


@contextmanager
def published(store: Store) -> Iterator[dict[str, Daemon]]:
    """Two boxes; the first has published its engine, the second has no model yet."""
    with boxes(store, "dock1", "dock2") as daemons:
        add(daemons["dock1"])
        assert not built(daemons["dock1"]).shared_by
        wait_for("it is published", lambda: store.files("engines"))
        yield daemons


@pytest.mark.long
def test_box_that_only_reads_a_web_server_uses_the_engine(store: Store) -> None:
    with boxes(store, "dock1", "dock2", reader="dock2") as daemons:
        add(daemons["dock1"])
        assert not built(daemons["dock1"]).shared_by
        wait_for("it is published", lambda: store.files("engines"))
        add(daemons["dock2"])
        assert built(daemons["dock2"]).shared_by == "dock1"
        assert not alarms(daemons["dock2"])


@pytest.mark.long
def test_altered_file_is_refused_and_the_engine_is_built(store: Store) -> None:
    with published(store) as daemons:
        for blob in store.files("blobs"):
            blob.write_bytes(blob.read_bytes()[:-1] + b"\0")
        add(daemons["dock2"])
        assert built(daemons["dock2"]).shared_by == ""
        assert "of the shared store was altered" in daemons["dock2"].log.read_text()


@pytest.mark.long
def test_engine_of_an_untrusted_box_is_refused(store: Store) -> None:
    with published(store) as daemons:
        Keys(daemons["dock2"].state).untrust("dock1")
        add(daemons["dock2"])
        assert built(daemons["dock2"]).shared_by == ""
        assert "is not trusted" in daemons["dock2"].log.read_text()


@pytest.mark.long
def test_store_that_goes_away_or_refuses_does_not_disturb_serving(store: Store) -> None:
    with boxes(store, "dock1") as daemons:
        store.stop()
        add(daemons["dock1"])
        daemons["dock1"].ready("shapes")
        with asked(daemons["dock1"]) as answers:
            assert built(daemons["dock1"]).state in ("serving", "ready")
            assert "cannot be shared" in alarms(daemons["dock1"])
        assert answers, "it was served meanwhile"
    store.start()
    with boxes(store, "dock1", AWS_SECRET_ACCESS_KEY="wrong") as daemons:
        add(daemons["dock1"])
        assert built(daemons["dock1"]).state in ("serving", "ready")
        assert alarms(daemons["dock1"])
        assert "wrong" not in daemons["dock1"].log.read_text()
    assert not store.files("engines")


@pytest.mark.long
def test_fetching_an_engine_takes_no_longer_than_building_it(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """Prints the time from adding a model to its verified engine: fetched, as a share of built."""
    seconds = {}
    with boxes(store, "dock1", "dock2") as daemons:
        for name, daemon in daemons.items():
            began = time.monotonic()
            add(daemon)
            engine = built(daemon)
            seconds[name] = time.monotonic() - began
            wait_for("it is published", lambda: store.files("engines"))
        assert engine.shared_by == "dock1"
    with capsys.disabled():
        print(f"\nfetched and verified / built and verified: {seconds['dock2'] / seconds['dock1']:.2f}", seconds)
