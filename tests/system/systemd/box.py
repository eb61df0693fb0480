"""The box: it boots in a second, runs commands as its root, and leaves nothing when it is shut down."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.system.systemd import Unavailable

_NEEDED = ("unshare", "nsenter", "mount", "systemctl", "systemd-analyze")
_BOOT = Path(__file__).with_name("boot.sh")
_INIT = Path("/lib/systemd/systemd")
_CGROUPS = Path("/sys/fs/cgroup")
_LIMITING = ("memory", "pids", "cpu", "cpuacct", "blkio", "devices", "freezer", "cpuset")
_ENVIRONMENT = ("env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "COLUMNS=400")
_BOOT_SECONDS = 30.0
SHARED = Path("/srv/edged-test")


class Box:
    """A box, for use in a `with`. It has folders of this machine, by name, below `SHARED`."""

    def __init__(self, shared: Mapping[str, Path]) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="edt-box-"))
        self._binds = "\n".join(f"{name}={folder}" for name, folder in shared.items())
        self._shell: subprocess.Popen[bytes] | None = None
        self._init = 0
        self._groups: list[Path] = []

    def run(
        self, *command: str, check: bool = True, seconds: float = 120.0, to: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as the box's root; it must succeed unless `check` is False."""
        entered = ("nsenter", "-t", str(self._init), "-a", *_ENVIRONMENT, *command)
        done = subprocess.run(entered, capture_output=True, text=True, timeout=seconds, check=False, input=to)
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(command)}: status {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Start a command as the box's root, with pipes for its input and output."""
        entered = ("nsenter", "-t", str(self._init), "-a", *_ENVIRONMENT, *command)
        pipe = subprocess.PIPE
        return subprocess.Popen(entered, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def show(self, unit: str, key: str) -> str:
        """Return a property of a unit."""
        return self.run("systemctl", "show", "-P", key, unit).stdout.strip()

    def log(self, unit: str) -> str:
        """Return the journal of a unit, including systemd's lines about it."""
        return self.run("journalctl", "-o", "cat", "--no-pager", "-u", unit).stdout

    def __enter__(self) -> Box:
        self._require()
        name = f"edged-box-{os.getpid()}"
        limiting = [kind for kind in _LIMITING if (_CGROUPS / kind / "cgroup.procs").exists()]
        for kind in ("", "unified", "systemd", *limiting):
            if (_CGROUPS / kind / "cgroup.procs").exists():
                self._groups.append(_CGROUPS / kind / name)
        unshare = ("unshare", "--fork", "--pid", "--mount", "--cgroup", "--ipc", "--uts", "--kill-child")
        with (self._home / "console").open("wb") as console:
            self._shell = subprocess.Popen(
                [
                    *("bash", "-euc", _JOIN, "join", *map(str, self._groups), "--", *unshare),
                    *("--propagation", "private", "bash", str(_BOOT), str(self._home), self._binds, *limiting),
                ],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )
        try:
            self._wait_until_up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._shell is not None
        if self._init:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.run("systemctl", "poweroff", check=False, seconds=30)
                self._shell.wait(30)
        if self._shell.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._shell.pid, signal.SIGKILL)
            self._shell.wait(10)
        for group in self._groups:
            for folder in sorted(group.glob("**/"), key=lambda each: -len(each.parts)):
                with contextlib.suppress(OSError):
                    folder.rmdir()
        shutil.rmtree(self._home, ignore_errors=True)

    @staticmethod
    def _require() -> None:
        if os.geteuid() != 0:
            raise Unavailable("needs root, to create namespaces for systemd")
        for name in _NEEDED:
            if shutil.which(name) is None:
                raise Unavailable(f"{name} is not installed")
        if not _INIT.exists():
            raise Unavailable(f"{_INIT} is not installed")

    def _wait_until_up(self) -> None:
        assert self._shell is not None
        for _ in _until(_BOOT_SECONDS):
            if self._shell.poll() is not None:
                break
            self._init = self._init or _systemd_below(self._shell.pid)
            if self._init and self.run("systemctl", "is-active", "edged-test.target", check=False).returncode == 0:
                return
        output = (self._home / "console").read_text(errors="replace").strip()
        raise Unavailable(f"systemd does not start here: {output.splitlines()[-1] if output else 'no output'}")


# Separate groups in every hierarchy, so that no process of the box is in the machine's groups.
_JOIN = """
while [ "$1" != -- ]; do
    mkdir -p "$1"
    case $1 in
        */cpuset/*) for file in cpuset.cpus cpuset.mems; do cat "${1%/*}/$file" >"$1/$file"; done ;;
    esac
    echo $$ >"$1/cgroup.procs"
    shift
done
shift
exec "$@"
"""


def _systemd_below(pid: int) -> int:
    """Return the child of a process once it has become systemd; 0 until then."""
    with contextlib.suppress(OSError, IndexError):
        child = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        if Path(f"/proc/{child}/comm").read_text().strip() == "systemd":
            return child
    return 0


def _until(seconds: float) -> Iterator[None]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(0.1)
