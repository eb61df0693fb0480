"""No network access, and no files outside the daemon's folders: a daemon and all its children under strace.

A model is added and gets an engine of every installed runtime, requests are answered, and a camera is tracked.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edged.shapes import MODEL_PATH, Scene
from tests import models
from tests.integration.daemon import Daemon, wait_for

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(400),
]  # the fixture does everything, slowed down by strace

_CALLS = (
    "socket,connect,sendto,sendmsg,bind,openat,open,creat,mkdir,mkdirat,rename,renameat,renameat2,symlink,symlinkat"
)
# Runs in every Python process of the daemon. Reports the environment at the import of ONNX Runtime by opening a path
# that does not exist, which strace records: most of these processes may write no file of the test.
_WATCHER = """
import os, sys
def say(words):
    try:
        os.close(os.open("/imported/" + words, os.O_RDONLY))
    except OSError:
        pass
class Watcher:
    def find_spec(self, name, path=None, target=None):
        if name == "onnxruntime":
            module = sys.orig_argv[sys.orig_argv.index("-m") + 1] if "-m" in sys.orig_argv else "?"
            say(f"{module} {os.environ.get('ORT_DISABLE_TELEMETRY')}")
        if name.partition(".")[0] == "openvino_telemetry":
            say("openvino_telemetry is imported")
        return None
sys.meta_path.insert(0, Watcher())
"""


class Followed:
    """A daemon that has done all its work, and the records of strace and the watcher."""

    def __init__(self, folder: Path, own: Path) -> None:
        self.folder, self.own = folder, own
        self.trace = (folder / "trace").read_text(errors="replace")
        self.imports = re.findall(r'"/imported/([^"]*)"', self.trace)


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Followed]:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    folder = tmp_path_factory.mktemp("followed")
    tried = subprocess.run([strace, "-f", "-o", "/dev/null", "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"strace cannot trace here: {tried.stderr.strip()}")
    home = folder / "home"
    home.mkdir()
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(_WATCHER)
    # -D: the daemon remains the test's child; strace is a detached process.
    python = folder / "python"
    options = f"-D -f -qq --seccomp-bpf -y -s 256 -e trace={_CALLS} -o {folder}/trace"
    python.write_text(f'#!/bin/sh\nexec {strace} {options} {sys.executable} "$@"\n')
    python.chmod(0o755)
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(home),
        "PYTHONPATH": f"{folder}/site:{Path(__file__).parent.parent.parent}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with Daemon(python=python, environment=environment) as daemon:
        with daemon.client() as client:
            client.add_model("small", models.save(models.matmul(5, 4), folder / "small.onnx"), {"threads": "1"})
            daemon.settled("small", 200)
            client.add_model("shapes", MODEL_PATH, {"backends": "tensorrt"})  # the reference only
            daemon.ready("shapes")
            pictures = [Scene(3).frame(number)[0] for number in range(8)]
            wait_for(
                "objects have tracker ids",
                lambda: any(
                    found.tracker_id is not None
                    for result in client.stream("shapes", pictures, camera="door", track=True)
                    for found in result.detections
                ),
                60,
            )
        daemon.stop()
        yield Followed(folder, daemon.home)


def test_trace_covers_hosts_children_and_tracker(followed: Followed) -> None:
    """Otherwise the other tests would prove nothing."""
    assert len({line.split()[0] for line in followed.trace.splitlines()}) > 10
    modules = {line.split()[0] for line in followed.imports}
    assert {"edged.host.main", "edged.jobs.server"} <= modules
    for library in ("openvino", "supervision"):
        assert f"site-packages/{library}/" in followed.trace
    assert "socket(AF_UNIX" in followed.trace


def test_telemetry_is_off_before_any_process_imports_onnxruntime(followed: Followed) -> None:
    assert {line.split()[-1] for line in followed.imports} == {"1"}, set(followed.imports)


def test_sockets_are_all_local(followed: Followed) -> None:
    kinds = set(re.findall(r"\bsocket\((AF_\w+)", followed.trace))
    assert kinds <= {"AF_UNIX", "AF_NETLINK", "AF_INET", "AF_INET6"}
    # Loopback, and the wildcard address, to which gRPC binds a socket to test for IPv6.
    elsewhere = [
        line
        for line in followed.trace.splitlines()
        if re.search(r"\b(connect|sendto|sendmsg|bind)\(", line)
        and (reached := re.findall(r'(?:inet_addr\(|inet_pton\(AF_INET6, )"([^"]*)"', line))
        and not set(reached) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
        and not (re.search(r"\bbind\(", line) and set(reached) <= {"::", "0.0.0.0"})
    ]
    assert not elsewhere, elsewhere[:5]
    assert "resolv.conf" not in "".join(line for line in followed.trace.splitlines() if "sendto(" in line)


def test_files_are_written_to_state_and_cache_only(followed: Followed) -> None:
    assert not list((followed.folder / "home").rglob("*"))
    written = {
        path
        for line in followed.trace.splitlines()
        if re.search(r"\b(open|openat|creat|mkdir|mkdirat)\(", line)
        and ("O_WRONLY" in line or "O_RDWR" in line or "O_CREAT" in line or "mkdir" in line or "creat(" in line)
        and " = -1 " not in line
        for path in re.findall(r'"([^"]*)"', line)[:1]
    }
    assert any(path.startswith(str(followed.own)) for path in written)
    trace = str(followed.folder / "trace")  # strace's own output
    allowed = (str(followed.own), trace, "/tmp/edged-", "/dev/", "/proc/")
    probe = re.compile(r"/tmp/[a-z0-9_]{8}")  # Python's tempfile tests whether a folder is writable
    elsewhere = [path for path in written if path.startswith("/") and not path.startswith(allowed)]
    assert not [path for path in elsewhere if not probe.fullmatch(path)]
