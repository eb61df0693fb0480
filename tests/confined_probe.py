"""Try what a confined process can reach; print the outcome of each attempt as one line of JSON.

`python -m tests.confined_probe REACH TARGETS`. This process is confined like engine hosts, the tracker and one-shot
children, so it shows what a compromised runtime could do. `only` in TARGETS names the attempts to make: some do harm in
a process that is not confined.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from edged.confinement import confine
from edged.confinement.rules import Reach

_CPUS = os.sched_getaffinity(0)
_TIOCSTI, _PTRACE_ATTACH = 0x5412, 16


def attempts(t: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """Return the attempts by name; a refused attempt raises OSError."""
    daemon, other = t["daemon"], t["sibling"]
    return {
        "memory of the daemon": lambda: open(f"/proc/{daemon}/mem", "rb").read(1),
        "environment of the daemon": lambda: Path(f"/proc/{daemon}/environ").read_bytes(),
        "files of the daemon": lambda: os.listdir(f"/proc/{daemon}/fd"),
        "memory of a sibling": lambda: open(f"/proc/{other}/mem", "rb").read(1),
        "tokens": lambda: Path(t["tokens"]).read_bytes(),
        "key of TLS": lambda: Path(t["key"]).read_bytes(),
        "/etc/shadow": lambda: Path("/etc/shadow").read_bytes(),
        "write to the audit": lambda: open(t["audit"], "ab").close(),
        "write a model": lambda: (Path(t["models"]) / "new.onnx").write_bytes(b"x"),
        "remove a model": lambda: (Path(t["models"]) / "m.onnx").unlink(),
        "write an engine": lambda: (Path(t["engines"]) / "other" / "record.json").write_bytes(b"x"),
        "cut off an engine": lambda: os.truncate(Path(t["engines"]) / "other" / "record.json", 0),
        "open tokens to all": lambda: os.chmod(t["tokens"], 0o666),
        "give tokens away": lambda: os.chown(t["tokens"], 65534, 65534),
        "age tokens": lambda: os.utime(t["tokens"]),
        "unix socket": lambda: socket.socket(socket.AF_UNIX).connect(t["socket"]),
        "abstract socket": lambda: socket.socket(socket.AF_UNIX).connect("\0" + t["abstract"]),
        "TCP": lambda: socket.create_connection(("127.0.0.1", t["port"]), 1),
        "UDP": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9)),
        "netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
        "signal to the daemon": lambda: os.kill(daemon, 0),
        "end a sibling": lambda: os.kill(other, signal.SIGKILL),
        "signal to all": lambda: os.kill(-1, 0),
        "trace a sibling": lambda: _call({"x86_64": 101, "aarch64": 117}, _PTRACE_ATTACH, other, 0, 0),
        "read a sibling": lambda: _call({"x86_64": 310, "aarch64": 270}, other, 0, 0, 0, 0, 0),
        "file of the daemon": lambda: _call({"x86_64": 438, "aarch64": 438}, -1, 0, 0),
        "limit the daemon": lambda: _call({"x86_64": 302, "aarch64": 261}, daemon, 7, struct.pack("QQ", 0, 0), 0),
        "nice the daemon": lambda: os.setpriority(os.PRIO_PROCESS, daemon, 19),
        "nice the user's processes": lambda: _call({"x86_64": 141, "aarch64": 140}, 2, 0, 19),
        "schedule the daemon": lambda: os.sched_setscheduler(daemon, os.SCHED_IDLE, os.sched_param(0)),
        "bind the daemon": lambda: os.sched_setaffinity(daemon, os.sched_getaffinity(0)),
        "keep the disk from the daemon": lambda: _call({"x86_64": 251, "aarch64": 30}, 1, daemon, 3 << 13),
        "have the kernel signal the daemon": lambda: fcntl.fcntl(0, fcntl.F_SETOWN, daemon),
        "choose the kernel's signal": lambda: fcntl.fcntl(0, 10, signal.SIGKILL),
        "outlive the daemon": lambda: _call({"x86_64": 157, "aarch64": 167}, 1, 0, 0, 0, 0),
        "process": _fork,
        "shell": lambda: subprocess.run(["/bin/sh", "-c", "true"], check=True),
        "namespace": lambda: _call({"x86_64": 272, "aarch64": 97}, 0x10000000),
        "namespace by clone": lambda: _call({"x86_64": 56, "aarch64": 220}, 0x10000000 | 17, 0, 0, 0, 0),
        "io_uring": lambda: _call({"x86_64": 425, "aarch64": 425}, 1, bytes(120)),
        "bpf": lambda: _call({"x86_64": 321, "aarch64": 280}, 0, bytes(64), 64),
        "keys": lambda: _call({"x86_64": 250, "aarch64": 219}, 0, -3, 1),
        "mount": lambda: _call({"x86_64": 165, "aarch64": 40}, b"none", b"/mnt", b"tmpfs", 0, 0),
        "type into a terminal": lambda: _call({"x86_64": 16, "aarch64": 29}, 0, _TIOCSTI, b"x"),
        "another's shared memory": lambda: os.listdir("/dev/shm"),
        "temporary files of others": lambda: os.listdir("/tmp"),
        "shorten the arena": lambda: os.ftruncate(t["arena"], 0),
    }


def own_work(t: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """Return operations that must continue to work."""
    return {
        "read the model": lambda: Path(t["model"]).read_bytes(),
        "write the stage": lambda: (Path(t["stage"]) / "engine").write_bytes(b"x") if t["stage"] else None,
        "threads": lambda: _joined(threading.Thread(target=os.getpid)),
        "priorities of its own": lambda: (
            os.setpriority(0, 0, os.getpriority(0, 0)),
            os.sched_setaffinity(0, {*_CPUS}),
        ),
        "priorities of a thread": lambda: ThreadPoolExecutor(1).submit(_settle_this_thread).result(),
        "memory that is run": lambda: __import__("mmap").mmap(-1, 4096, prot=7).close(),
        "facts of the box": lambda: Path("/proc/cpuinfo").read_bytes() + Path("/proc/self/status").read_bytes(),
        "libraries": lambda: __import__("onnxruntime"),
        "random": lambda: open("/dev/urandom", "rb").read(1),
    }


def _fork() -> None:
    if os.fork() == 0:
        os._exit(0)


def _settle_this_thread() -> None:
    number = threading.get_native_id()
    os.sched_setaffinity(number, {*_CPUS})
    os.sched_setscheduler(number, os.SCHED_OTHER, os.sched_param(0))  # as ZeroMQ does, which aborts on failure


def _joined(thread: threading.Thread) -> None:
    thread.start()
    thread.join()


def _call(numbers: dict[str, int], *arguments: int | bytes) -> None:
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    if ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(numbers[os.uname().machine]), *words) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _outcome(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except PermissionError:
        return "denied"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "allowed"


def main() -> None:
    targets: dict[str, Any] = json.loads(sys.argv[2])
    confine.everything(Reach.parsed(sys.argv[1]))
    tried = attempts(targets)
    found = {name: _outcome(tried[name]) for name in targets.get("only", tried)}
    works = {name: _outcome(each) for name, each in own_work(targets).items()}
    print(json.dumps([found, works]))


if __name__ == "__main__":
    main()
