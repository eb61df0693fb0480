"""Socket activation: calls before a daemon with passed sockets runs, while it runs, and after it ends."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

import edged
from edged.errors import NotReady
from tests.waiting import wait

# Moves the given descriptors to 3 and up, as systemd does, then runs the command.
_PASS = """
import os, sys
passed, *command = sys.argv[1:]
passed = [int(each) for each in passed.split(",")]
for number, each in enumerate(passed, 3):
    os.dup2(each, number)
os.environ.update(LISTEN_FDS=str(len(passed)), LISTEN_PID=str(os.getpid()))
os.execv(command[0], command)
"""


class Manager:
    """Takes systemd's part: listens on two paths, and starts the daemon with these sockets."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="edt-"))
        self.first, self.second = self.home / "first", self.home / "second"
        self._sockets = [self._listen(path) for path in (self.first, self.second)]
        self._process: subprocess.Popen[str] | None = None
        self.listens(self.first)

    def listens(self, *paths: Path) -> None:
        """Write a configuration that listens on these paths."""
        named = ", ".join(f'"unix:{path}"' for path in paths)
        new = self.home / "edged.toml.new"
        new.write_text(f"listen = [{named}]\n")
        new.rename(self.home / "edged.toml")

    def start(self) -> None:
        daemon = [sys.executable, "-m", "edged", "serve", "--config", str(self.home / "edged.toml")]
        daemon += ["--state", str(self.home / "state"), "--cache", str(self.home / "cache")]
        copies = [fcntl.fcntl(each, fcntl.F_DUPFD, 3 + len(self._sockets)) for each in self._sockets]
        with (self.home / "log").open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PASS, ",".join(map(str, copies)), *daemon],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                pass_fds=copies,
            )
        for copy in copies:
            os.close(copy)

    def wait(self) -> None:
        """Wait until the daemon listens."""
        assert self._process is not None
        assert self._process.stdout is not None
        assert self._process.stdout.readline().startswith("listening on "), self.log()

    def end(self, how: signal.Signals) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        self._process.send_signal(how)
        self._process.wait(20)
        self._process.stdout.close()
        self._process = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def log(self) -> str:
        return (self.home / "log").read_text()

    def close(self) -> None:
        if self._process is not None:
            self.end(signal.SIGKILL)
        for each in self._sockets:
            each.close()
        shutil.rmtree(self.home)

    @staticmethod
    def _listen(path: Path) -> socket.socket:
        found = socket.socket(socket.AF_UNIX)
        found.bind(str(path))
        found.listen(16)
        return found


@pytest.fixture
def manager() -> Iterator[Manager]:
    found = Manager()
    yield found
    found.close()


class Call:
    """A client that calls ServerLive on its own connection, before a daemon runs."""

    def __init__(self, path: Path) -> None:
        options = (("grpc.use_local_subchannel_pool", 1),)
        self._channel = grpc.insecure_channel(f"unix:{path}", options=options)
        self._ask = self._channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
        self._answer = self._ask.future(b"", timeout=30)

    def require(self) -> None:
        """Check that the call and the next one are answered."""
        assert self._answer.result()
        assert self._ask(b"", timeout=30)
        self._channel.close()


class Callers:
    """Clients that call all the time with `wait_for_ready`, one connection each."""

    def __init__(self, path: Path, count: int = 4) -> None:
        self.answered: list[float] = []  # start times of the calls
        self.failed: list[tuple[float, grpc.StatusCode]] = []
        self._path, self._is_done = path, threading.Event()
        self._threads = [threading.Thread(target=self._call) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._is_done.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a call hangs"

    def _call(self) -> None:
        with grpc.insecure_channel(f"unix:{self._path}", (("grpc.use_local_subchannel_pool", 1),)) as channel:
            ask = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            while not self._is_done.is_set():
                began = time.monotonic()
                try:
                    ask(b"", timeout=40, wait_for_ready=True)
                    self.answered.append(began)
                except grpc.RpcError as error:
                    self.failed.append((began, error.code()))
                time.sleep(0.002)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_activation_call_that_waits_for_ready_fails_only_if_the_daemon_had_it(
    manager: Manager, how: signal.Signals
) -> None:
    manager.start()
    manager.wait()
    callers = Callers(manager.first)
    wait(lambda: len(callers.answered) > 50, "calls are answered")
    manager.end(how)
    gone = time.monotonic()
    time.sleep(0.1)
    manager.start()
    manager.wait()
    wait(lambda: sum(began > gone for began in callers.answered) > 50, "calls are answered again")
    callers.end()
    assert [code for began, code in callers.failed if began > gone] == []
    assert {code for _, code in callers.failed} <= {grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE}


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_activation_call_without_a_daemon_is_answered_by_the_next(manager: Manager, how: signal.Signals) -> None:
    early = Call(manager.first)
    manager.start()
    early.require()
    manager.wait()
    manager.end(how)
    assert sorted(path.name for path in manager.home.iterdir() if path.is_socket()) == ["first", "second"]
    early = Call(manager.first)
    manager.start()
    early.require()


def is_served(client: edged.Client) -> bool:
    try:
        client.models()
    except NotReady:
        return False
    return True


def test_activation_unconfigured_address_refuses_until_a_reload_adds_it(manager: Manager) -> None:
    manager.start()
    manager.wait()
    assert f"systemd listens on {manager.second}, which is not configured" in manager.log()
    with edged.Client(f"unix:{manager.first}") as client, edged.Client(f"unix:{manager.second}") as other:
        with pytest.raises(NotReady):
            other.models()
        manager.listens(manager.first, manager.second)
        assert [(each.change, each.problem) for each in client.reload()] == [
            (f"listen: unix:{manager.second} added", "")
        ]
        wait(lambda: is_served(other), "the added address is served")
        manager.listens(manager.first)
        assert [each.problem for each in client.reload()] == [""]
        with socket.socket(socket.AF_UNIX) as raw:
            raw.settimeout(10)
            raw.connect(str(manager.second))
            assert raw.recv(1) == b""
