"""A daemon stops in its time, whatever hangs, and at once after a second signal."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import edged
from edged.errors import EdgedError
from edged.shapes import MODEL_PATH
from tests import models
from tests.integration.daemon import Daemon, job_server, wait_for
from tests.waiting import is_running

_PICTURE = Path(__file__).parents[2] / "docs" / "demo.jpg"
_GRACE, _CLOSING = 1.0, 10.0  # stop_seconds, and the additional time of the daemon


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "edged.toml"
    path.write_text(f"stop_seconds = {_GRACE}\n")
    return path


@contextlib.contextmanager
def mute(path: str) -> Iterator[None]:
    """Connect a client that sends an HTTP/2 preface, and then neither sends nor reads."""
    with socket.socket(socket.AF_UNIX) as way:
        way.connect(path)
        way.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
        yield


def test_stop_with_a_hung_host_a_mute_client_and_a_build_is_in_time(config: Path) -> None:
    with Daemon("--model", f"shapes={MODEL_PATH}", "--config", str(config)) as daemon:
        daemon.ready("shapes")

        def builds() -> list[int]:
            return [pid for pid, line in daemon.children().items() if "edged.jobs.server" in line]

        building, hosts = wait_for("a build runs", builds), daemon.hosts()
        for pid in hosts:
            os.kill(pid, signal.SIGSTOP)
        with mute(daemon.unix.removeprefix("unix:")), daemon.client() as client:
            threading.Thread(target=_ask, args=(client,), daemon=True).start()
            events = client.events(follow=True)
            next(events)  # and read no further
            assert daemon.stop(_GRACE + 2 * _CLOSING) == 0
            events.close()
        wait_for("no child process runs", lambda: not any(is_running(pid) for pid in (*building, *hosts)), 10)


@pytest.mark.parametrize("killed", [False, True])
def test_job_server_ends_with_its_daemon(killed: bool) -> None:
    with Daemon("--model", f"shapes={MODEL_PATH}", builds=False, is_fresh=True) as daemon:
        daemon.ready("shapes")
        server = job_server(daemon.pid)
        assert server is not None
        daemon.kill() if killed else daemon.stop()
        # After SIGKILL the kernel ends it, which takes a moment.
        wait_for("the job server has ended", lambda: not is_running(server), 5.0 if killed else 0.1)


def test_killed_job_server_costs_no_model_and_is_started_again() -> None:
    with Daemon("--model", f"shapes={MODEL_PATH}", builds=False, is_fresh=True) as daemon:
        daemon.ready("shapes")
        for name in ("one", "two"):
            server = job_server(daemon.pid)
            assert server is not None
            models.save(models.matmul(5, 4), daemon.models / f"{name}.onnx")
            wait_for("a child reads the model", lambda: set(daemon.children()) - set(daemon.hosts()))
            os.kill(server, signal.SIGKILL)
            daemon.ready(name)
        assert "unexpected" not in daemon.log.read_text()


def test_second_signal_stops_at_once(tmp_path: Path) -> None:
    config = tmp_path / "edged.toml"
    config.write_text("stop_seconds = 3000.0\n")
    with Daemon("--model", f"shapes={MODEL_PATH}", "--config", str(config), builds=False) as daemon:
        daemon.ready("shapes")
        hosts = daemon.hosts()
        with daemon.client() as client:
            _ask(client)  # so that the next request starts at once
            for pid in hosts:
                os.kill(pid, signal.SIGSTOP)
            threading.Thread(target=_ask, args=(client,), daemon=True).start()
            time.sleep(1.0)  # until the request has started
            os.kill(daemon.pid, signal.SIGTERM)
            wait_for("the daemon stops", lambda: "stopping" in daemon.log.read_text())
            assert daemon.stop(20) == -signal.SIGTERM
        wait_for("no host runs", lambda: not any(is_running(pid) for pid in hosts), 10)


def test_hung_process_ends_within_its_time() -> None:
    """A thread that cannot be stopped would keep the interpreter alive forever."""
    script = """
        import threading, time
        from edged.process import end_within
        threading.Thread(target=time.sleep, args=(1000,)).start()
        end_within(0.3, lambda: print("last words", flush=True))
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "last words\n")


def _ask(client: edged.Client) -> None:
    with contextlib.suppress(EdgedError):
        client.infer("shapes", _PICTURE)
