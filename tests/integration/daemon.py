"""A real daemon process on real sockets, for tests. It is started and stopped as systemd does."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import edged
from edged.api.auth.policy import parse_roles
from edged.api.auth.tokens import TokenFile, make
from edged.engines.views import EXACT, LEAST_GAIN
from edged.errors import NotFound
from edged.shapes import MODEL_PATH
from tests.integration.detector_cache import DetectorCache
from tests.waiting import is_job_server
from tests.waiting import is_running as is_running

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")
# For a model to be read, examined and opened on a busy machine.
_READY_SECONDS = 180.0


def wait_for(what: str, probe: Callable[[], T], seconds: float = 60.0) -> T:
    """Poll until `probe` returns a true value, and return it; fail with `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := probe():
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds:g} s: {what}")


class Daemon:
    """`edged serve` in its own folders. Use it in a `with`; it may be started again after it was stopped or killed."""

    known: DetectorCache | None = None  # what daemons before have learned about the embedded detector

    def __init__(
        self,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        python: Path = Path(sys.executable),
        builds: bool = True,
        folder: Path | None = None,
        config: str = "",
        listen: Sequence[str] = ("unix:HOME/edged.sock", "localhost:0"),
        endpoints: int = 0,
        is_fresh: bool = False,
    ) -> None:
        """`builds`: whether the daemon builds engines by itself; many tests do not need them, and builds slow down all
        tests. A daemon that does not build knows the embedded detector from other daemons, unless `is_fresh`. `folder`
        is the working directory; together with the `python` of another checkout, that checkout's code runs. `config` is
        the text of a configuration file, `listen` has the addresses of gRPC; HOME in them stands for the daemon's
        folder. `endpoints` is the number of further addresses that the daemon prints."""
        # Not pytest's tmp_path: a socket's path must stay below 108 bytes.
        self.home = Path(tempfile.mkdtemp(prefix="edt-"))
        self.state, self.cache = self.home / "state", self.home / "cache"
        self.models = self.state / "models"
        self.models.mkdir(parents=True)
        self.log = self.home / "log"
        self.config = self.home / "edged.toml"
        if config:
            self.config.write_text(config.replace("HOME", str(self.home)))
            arguments = (*arguments, "--config", str(self.config))
        self._arguments, self._python, self.folder = arguments, python, folder
        self._listen = [word for each in listen for word in ("--listen", each.replace("HOME", str(self.home)))]
        self._endpoints = endpoints
        self._environment = {**(os.environ if environment is None else environment)}
        self._environment["XDG_CONFIG_HOME"] = str(self.home)  # not the configuration of the user who runs the tests
        self._builds, self._is_fresh = builds, is_fresh
        # Operators use the socket; tests of the protocols need every role over TCP as well.
        self._environment.setdefault("EDGED_ACCESS_LOOPBACK", "infer,read,operate")
        if not builds:
            self._environment["EDGED_ENGINES_BUILD"] = "command"
        self._config_text = config
        self._process: subprocess.Popen[str] | None = None
        self.addresses: list[str] = []
        self.killed = 0  # process id of the last killed process

    def start(self) -> Self:
        if self.known is not None and not (self._builds or self._is_fresh or self.cache.exists()) and self._has_it():
            self.known.copy("reference", learn_reference, self.cache)
        command = self.command("serve", "--state", str(self.state), "--cache", str(self.cache))
        command += [*self._listen, *self._arguments]
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=self._environment, cwd=self.folder
            )
        assert self._process.stdout is not None
        lines = [self._process.stdout.readline() for _ in range(len(self._listen) // 2 + self._endpoints)]
        if not all(line.startswith("listening on ") for line in lines):
            self.kill()
            raise AssertionError(self.log.read_text())
        self.addresses = [line.split()[-1] for line in lines]
        return self

    def _has_it(self) -> bool:
        """Whether the daemon has the embedded detector from the start."""
        size = MODEL_PATH.stat().st_size
        given = any(str(MODEL_PATH) in text for text in (*self._arguments, self._config_text))
        return given or any(file.stat().st_size == size for file in self.models.rglob("*.onnx"))

    def command(self, *arguments: str) -> list[str]:
        """Return a command line of the same edged."""
        return [str(self._python), "-m", "edged", *arguments]

    @property
    def unix(self) -> str:
        return self.addresses[0]

    @property
    def tcp(self) -> str:
        return self.addresses[1]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_started(self) -> bool:
        return self._process is not None

    def client(self) -> edged.Client:
        return edged.Client(self.unix)

    def children(self) -> dict[int, str]:
        """Return the command lines of the daemon's children by pid."""
        return children(self.pid)

    def hosts(self) -> list[int]:
        return [pid for pid, line in self.children().items() if "edged.host.main" in line]

    def ready(self, model: str) -> None:
        """Wait until a model is served."""
        with self.client() as client:
            wait_for(
                f"model {model} is ready",
                lambda: any(m.name == model and m.state == "ready" for m in client.models()),
                _READY_SECONDS,
            )

    def settled(self, model: str, seconds: float = 180.0) -> list[edged.api_types.EngineInfo]:
        """Wait until every engine of a model has its outcome and the best one serves; return the engines."""
        ends = {"ready", "serving", "failed", "rejected", "unsuitable", "quarantined", "evicted", "stale"}
        ends |= set() if self._builds else {"absent"}
        with self.client() as client:

            def done() -> list[edged.api_types.EngineInfo] | None:
                try:
                    engines = list(client.engines(model))
                except NotFound:  # the daemon has not scanned the repository yet
                    return None
                return engines if all(e.state in ends for e in engines) and _best_serves(engines) else None

            return wait_for(f"engines of {model} are built and the best serves", done, seconds)

    @property
    def tokens(self) -> TokenFile:
        return TokenFile(self.state / "access" / "tokens.json")

    def token(self, name: str, *roles: str, days: float = 0.0) -> str:
        """Add a token and return its secret. A running daemon has loaded it when this returns."""
        token, secret = make(name, parse_roles(roles), days)
        seen = self._looks()
        self.tokens.add(token)
        if self.is_started:
            wait_for("the daemon knows the token", lambda: self._looks() > seen)
        return secret

    def _looks(self) -> int:
        return self.log.read_text().count("tokens changed") if self.log.exists() else 0

    def stop(self, seconds: float = 20.0) -> int:
        """Send SIGTERM, as systemd does; return the exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        status = self._process.wait(seconds)
        self._close()
        return status

    def forget(self) -> None:
        """Delete all engines, and the known facts about models, of a stopped daemon."""
        assert self._process is None
        shutil.rmtree(self.cache, ignore_errors=True)

    def kill(self) -> None:
        assert self._process is not None
        self.killed = self._process.pid
        self._process.kill()
        self._process.wait(10)
        self._close()

    def _close(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.stop()
        if self._process is not None:
            self.kill()
        if error is not None and self.log.exists():
            print(self.log.read_text()[-6000:])
        shutil.rmtree(self.home, ignore_errors=True)


def is_of_the_past(engine: edged.api_types.EngineInfo) -> bool:
    """Return True if the engine serves although it was built for an earlier state of the device."""
    return "until its successor" in engine.reason


def _best_serves(engines: list[edged.api_types.EngineInfo]) -> bool:
    """Return True if no swap is due: the serving engine is within the margin (5 %) of the lowest cost.

    The daemon decides by present demand and the model's settings. A client knows neither, so any combination will do.
    """
    able = [e for e in engines if e.state in ("ready", "serving")]
    serving = [e.key for e in able if e.state == "serving" and not is_of_the_past(e)]

    def is_best(is_busy: bool, inexact: float) -> bool:
        costs = {
            e.key: min((speed.cost(is_busy=is_busy) for speed in e.speeds), default=0.0)
            * (1.0 if e.precision == EXACT else inexact)
            for e in able
        }
        return all(costs[key] * 0.95 <= min(costs.values()) for key in serving)

    return bool(serving) and any(is_best(busy, gain) for busy in (False, True) for gain in (1.0, LEAST_GAIN))


def children(pid: int) -> dict[int, str]:
    """Return the command lines of a process's children by pid. Its job server does not count, because it stays for a
    while; the job server's children do, and have its command line."""
    found = _children(pid)
    for server in filter(is_job_server, list(found)):
        del found[server]
        found |= _children(server)
    return found


def job_server(pid: int) -> int | None:
    """Return the pid of a process's job server; None if none runs."""
    return next(filter(is_job_server, _children(pid)), None)


def _children(pid: int) -> dict[int, str]:
    found: dict[int, str] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid and fields[0] != "Z":
                line = (stat.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(stat.parent.name)] = line
    return found


@contextlib.contextmanager
def learn_reference() -> Iterator[Path]:
    """Make the cache of a daemon that has examined the embedded detector, and verified and timed its reference."""
    with Daemon("--model", f"shapes={MODEL_PATH}", builds=False, is_fresh=True) as daemon:
        with daemon.client() as client:
            wait_for("the reference is verified", lambda: any(each.created_unix_s for each in client.engines()), 180)
        daemon.stop()
        yield daemon.cache


@contextlib.contextmanager
def learn_all() -> Iterator[Path]:
    """Make the cache of a daemon that has built every engine of the embedded detector."""
    with Daemon("--model", f"shapes={MODEL_PATH}") as daemon:
        daemon.settled("shapes")
        daemon.stop()
        yield daemon.cache
