"""The job server: real processes, forked and reaped."""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edged.confinement.rules import Reach
from edged.engines.job_server import JobServer
from tests.waiting import children, descriptors, is_running, together, wait

ARGUMENTS = ("1024", "1024", "0", Reach("off").argument())


@pytest.fixture
def server() -> Iterator[JobServer]:
    found = JobServer()
    yield found
    found.close()


def output(server: JobServer, program: str, job: bytes = b"") -> str:
    """Return what a Python program prints that runs as a child."""
    with server.child(job, (), (sys.executable, "-c", program)) as child:
        text = child.stdout.read().decode()
        assert child.stderr.read() == b""
    assert child.returncode == 0
    return text


def pid_of(server: JobServer) -> int:
    """Return the pid of the server, which runs."""
    pid = server.pid
    assert pid is not None
    return pid


def test_child_reads_its_job_and_leads_its_own_session(server: JobServer) -> None:
    program = "import os, sys; print(os.getsid(0) == os.getpid(), os.getcwd(), sys.argv[1:], sys.stdin.read())"
    with server.child(b"the job", ("one", "two"), (sys.executable, "-c", program)) as child:
        assert child.stdout.read() == f"True / ['{server.pid}', 'one', 'two'] the job\n".encode()
    assert child.returncode == 0


def test_child_has_no_descriptors_of_its_server_or_of_other_children(server: JobServer) -> None:
    program = "import os; print(*(n for n in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{n}')))"
    with server.child(b"", (), ("/bin/sleep", "60")):
        assert output(server, program).split() == ["0", "1", "2"]


def test_server_has_one_thread_and_keeps_no_descriptor(server: JobServer) -> None:
    """With a second thread, a fork could copy a lock that no thread of the child ever releases."""
    for _ in range(2):
        output(server, "pass")
        assert len(os.listdir(f"/proc/{server.pid}/task")) == 1
        assert len(os.listdir(f"/proc/{server.pid}/fd")) == 4  # three standard ones, and the socket


def test_server_has_imported_what_children_need_but_no_runtime(server: JobServer) -> None:
    with server.child(b"nonsense", ARGUMENTS) as child:
        assert b"DecodeError" in child.stderr.read()
        maps = Path(f"/proc/{server.pid}/maps").read_text()
    assert "numpy" in maps
    assert "onnx_cpp2py" in maps
    for runtime in ("onnxruntime", "openvino"):
        assert runtime not in maps


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_returncode_of_a_killed_child_is_its_signal(server: JobServer, number: signal.Signals) -> None:
    with server.child(b"", (), ("/bin/sleep", "60")) as child:
        assert not child.has_ended()
        os.kill(child.pid, number)
        wait(child.has_ended, "the end of the child")
    assert child.returncode == -number


def test_child_is_killed_and_reaped_after_its_block(server: JobServer) -> None:
    with pytest.raises(ZeroDivisionError), server.child(b"", (), ("/bin/sleep", "60")) as child:
        raise ZeroDivisionError
    assert child.returncode == -signal.SIGKILL
    assert not os.path.exists(f"/proc/{child.pid}")
    assert child.stdout.closed
    assert child.stderr.closed


def test_ended_child_is_a_zombie_until_its_block_ends(server: JobServer) -> None:
    with server.child(b"", (), ("/bin/true",)) as child:
        wait(child.has_ended, "the end of the child")
        output(server, "pass")
        assert os.path.exists(f"/proc/{child.pid}"), "its number may be used for another process"
    assert not os.path.exists(f"/proc/{child.pid}")


def test_children_of_several_threads_run_at_once(server: JobServer) -> None:
    answers = list[str]()
    together(lambda number: answers.append(output(server, "print(input())", str(number).encode())), 8)
    assert sorted(answers) == [f"{number}\n" for number in range(8)]


def test_server_starts_again_with_a_new_environment_and_keeps_its_children(
    server: JobServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGED_TRIED", "first")
    program = "import os; print(os.environ['EDGED_TRIED'])"
    with server.child(b"", (), ("/bin/sleep", "60")) as child:
        assert output(server, program) == "first\n"
        before = pid_of(server)
        monkeypatch.setenv("EDGED_TRIED", "second")
        assert output(server, program) == "second\n"
        assert server.pid == before
        assert not child.has_ended()
    assert child.returncode == -signal.SIGKILL


def test_environment_that_is_not_text_is_kept(server: JobServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environb, b"EDGED_TRIED", b"\xff=\n")
    assert output(server, "import os; print(os.environb[b'EDGED_TRIED'])") == "b'\\xff=\\n'\n"


def test_server_starts_again_if_a_library_changes(
    server: JobServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    output(server, "pass")
    first = _program(pid_of(server))
    output(server, "pass")
    assert _program(pid_of(server)) == first
    (tmp_path / "new_library.py").touch()
    output(server, "pass")
    assert _program(pid_of(server)) != first
    assert len(os.listdir(f"/proc/{server.pid}/fd")) == 4


def _program(pid: int) -> str:
    """Return the address of a process's stack, which is random for each program that it executes."""
    return next(line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if line.endswith("[stack]"))


def test_killed_server_takes_its_children_with_it_and_another_one_starts(server: JobServer) -> None:
    with server.child(b"", (), ("/bin/sleep", "60")) as sleeping, server.child(b"nonsense", ARGUMENTS) as child:
        assert child.stderr.read()  # it has asked for a signal when its parent dies
        os.kill(pid_of(server), signal.SIGKILL)
        wait(child.has_ended, "the end of the child")
        assert output(server, "print(1)") == "1\n"
    assert child.returncode == -signal.SIGKILL
    assert not is_running(sleeping.pid)


def test_server_that_is_killed_again_and_again_is_an_error(
    server: JobServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os; os._exit(7)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    before = descriptors(), children()
    with pytest.raises(ConnectionError, match="the job server ended with status 7"), server.child(b"", ARGUMENTS):
        pass
    assert (descriptors(), children()) == before
    monkeypatch.delenv("PYTHONPATH")
    assert output(server, "print(1)") == "1\n"


def test_fork_that_fails_is_the_error_of_the_system_call(server: JobServer) -> None:
    output(server, "pass")
    before = descriptors()
    resource.prlimit(pid_of(server), resource.RLIMIT_NOFILE, (6, 6))
    with pytest.raises(OSError) as raised, server.child(b"", ARGUMENTS):
        pass
    assert raised.value.errno == errno.EMFILE
    assert descriptors() == before


def test_close_ends_server_and_children_and_the_next_child_starts_it(server: JobServer) -> None:
    before = children()
    with server.child(b"nonsense", ARGUMENTS) as child:
        assert child.stderr.read()
        server.close()
        wait(child.has_ended, "the end of the child")
        assert server.pid is None
    assert children() == before
    assert output(server, "print(1)") == "1\n"


def test_server_outlives_the_thread_that_started_it(server: JobServer) -> None:
    """The kernel sends the signal of a parent's death when the thread that forked the child ends."""
    starting = threading.Thread(target=output, args=(server, "pass"))
    starting.start()
    starting.join()
    before = pid_of(server)
    time.sleep(0.1)
    output(server, "pass")
    assert server.pid == before
