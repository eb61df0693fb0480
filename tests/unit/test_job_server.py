"""The job server: real processes, forked and reaped."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from edged.confinement.rules import Reach
from edged.engines.job_server import SERVER, JobProcess, JobServer
from tests.waiting import children, descriptors, is_running, run, until

ARGUMENTS = ("1024", "1024", "0", Reach("off").argument())
SLEEP = ("/bin/sleep", "60")


@pytest.fixture
def server() -> Iterator[JobServer]:
    found = JobServer()
    yield found
    found.close()


async def output(server: JobServer, program: str, job: bytes = b"") -> str:
    """Return what a Python program prints that runs as a child."""
    async with server.child(job, (), (sys.executable, "-c", program)) as child:
        text = await asyncio.to_thread(child.stdout.read)
        assert await asyncio.to_thread(child.stderr.read) == b""
    assert child.returncode == 0
    return text.decode()


def pid_of(server: JobServer) -> int:
    """Return the pid of the server, which runs."""
    pid = server.pid
    assert pid is not None
    return pid


async def test_child_reads_its_job_and_leads_its_own_session(server: JobServer) -> None:
    program = "import os, sys; print(os.getsid(0) == os.getpid(), os.getcwd(), sys.argv[1:], sys.stdin.read())"
    async with server.child(b"the job", ("one", "two"), (sys.executable, "-c", program)) as child:
        assert child.stdout.read() == f"True / ['{server.pid}', 'one', 'two'] the job\n".encode()
    assert child.returncode == 0


async def test_child_has_no_descriptors_of_its_server_or_of_other_children(server: JobServer) -> None:
    program = "import os; print(*(n for n in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{n}')))"
    async with server.child(b"", (), SLEEP):
        assert (await output(server, program)).split() == ["0", "1", "2"]


async def test_large_job_arrives_whole(server: JobServer) -> None:
    job = bytes(range(256)) * (1 << 14)
    program = "import sys, zlib; print(zlib.crc32(sys.stdin.buffer.read()) == int(sys.argv[-1]))"
    arguments = ("x" * (1 << 17), str(zlib.crc32(job)))
    async with server.child(job, arguments[1:], (sys.executable, "-c", program)) as child:
        assert child.stdout.read() == b"True\n"
    async with server.child(job, arguments, SLEEP) as child:
        await until(child.has_ended, "the end of the child, whose argument is too long for a program")
    assert child.returncode == 1


async def test_server_has_one_thread(server: JobServer) -> None:
    """With a second thread, a fork could copy a lock that no thread of the child ever releases."""
    for _ in range(2):
        await output(server, "pass")
        assert len(os.listdir(f"/proc/{server.pid}/task")) == 1


async def test_server_keeps_no_descriptor(server: JobServer) -> None:
    for _ in range(2):
        await output(server, "pass")
        assert len(os.listdir(f"/proc/{server.pid}/fd")) == 4  # three standard ones, and the socket


async def test_server_has_imported_what_children_need_but_no_runtime(server: JobServer) -> None:
    async with server.child(b"nonsense", ARGUMENTS) as child:
        assert b"DecodeError" in child.stderr.read()
        maps = Path(f"/proc/{server.pid}/maps").read_text()
    assert "numpy" in maps
    assert "onnx_cpp2py" in maps
    for runtime in ("onnxruntime", "openvino"):
        assert runtime not in maps


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
async def test_returncode_of_a_killed_child_is_its_signal(server: JobServer, number: signal.Signals) -> None:
    async with server.child(b"", (), SLEEP) as child:
        assert not child.has_ended()
        os.kill(child.pid, number)
        await until(child.has_ended, "the end of the child")
    assert child.returncode == -number


async def test_child_has_not_ended_while_one_of_its_threads_runs(server: JobServer) -> None:
    program = """
        import ctypes, threading, time
        threading.Thread(target=lambda: (time.sleep(1.0), print("late", flush=True)), daemon=True).start()
        ctypes.CDLL(None).pthread_exit(None)
    """
    async with server.child(b"", (), (sys.executable, "-c", "if True:" + program)) as child:
        stat = Path(f"/proc/{child.pid}/stat")
        await until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z", "the end of the first thread")
        assert not child.has_ended()
        await until(child.has_ended, "the end of the child")
    assert child.returncode is not None


async def test_child_is_killed_and_reaped_after_its_block(server: JobServer) -> None:
    with pytest.raises(ZeroDivisionError):
        async with server.child(b"", (), SLEEP) as child:
            raise ZeroDivisionError
    assert child.returncode == -signal.SIGKILL
    assert not os.path.exists(f"/proc/{child.pid}")
    assert child.stdout.closed
    assert child.stderr.closed


async def test_ended_child_is_a_zombie_until_its_block_ends(server: JobServer) -> None:
    async with server.child(b"", (), ("/bin/true",)) as child:
        await until(child.has_ended, "the end of the child")
        await output(server, "pass")
        assert os.path.exists(f"/proc/{child.pid}"), "its number may be used for another process"
    assert not os.path.exists(f"/proc/{child.pid}")


async def test_children_that_start_together_run_together(server: JobServer) -> None:
    answers = await asyncio.gather(*(output(server, "print(input())", str(n).encode()) for n in range(8)))
    assert answers == [f"{number}\n" for number in range(8)]


async def test_new_environment_starts_another_server_and_keeps_the_children_of_the_old_one(
    server: JobServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGED_TRIED", "first")
    program = "import os; print(os.environ['EDGED_TRIED'])"
    async with server.child(b"", (), SLEEP) as child:
        assert await output(server, program) == "first\n"
        before = pid_of(server)
        monkeypatch.setenv("EDGED_TRIED", "second")
        assert await output(server, program) == "second\n"
        assert server.pid != before
        assert not child.has_ended()
    assert child.returncode == -signal.SIGKILL
    server.close()
    assert not is_running(before)


async def test_secrets_in_the_environment_do_not_reach_children(
    server: JobServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "ROBOFLOW_API_KEY", "EDGED_MQTT_PASSWORD", "HF_TOKEN"):
        monkeypatch.setenv(name, "hidden")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/lib")
    variables = await output(server, "import os; print(dict(os.environ))")
    assert "hidden" not in variables
    assert "/opt/lib" in variables


async def test_environment_that_is_not_text_is_kept(server: JobServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environb, b"EDGED_TRIED", b"\xff=\n")
    assert await output(server, "import os; print(os.environb[b'EDGED_TRIED'])") == "b'\\xff=\\n'\n"


async def test_changed_library_starts_another_server_and_keeps_the_children_of_the_old_one(
    server: JobServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").touch()  # Python imports it
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    async with server.child(b"", (), SLEEP) as child:
        first = pid_of(server)
        await output(server, "pass")
        assert server.pid == first
        (tmp_path / "new.py").touch()
        await output(server, "pass")
        assert server.pid != first
        assert not child.has_ended()
    await until(lambda: not is_running(first), "the end of the old server, after its last child")


async def test_library_that_cannot_be_imported_is_tried_again_by_the_next_server(
    server: JobServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "__init__.py").write_text("raise ImportError('half of it is missing')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert await output(server, "print(1)") == "1\n"
    first = pid_of(server)
    assert await output(server, "print(1)") == "1\n"
    assert server.pid != first


async def test_killed_server_takes_its_children_with_it_and_another_one_starts(server: JobServer) -> None:
    async with server.child(b"nonsense", ARGUMENTS) as child:
        assert child.stderr.read()  # it has asked for a signal when its parent dies
        os.kill(pid_of(server), signal.SIGKILL)
        await until(child.has_ended, "the end of the child")
        assert await output(server, "print(1)") == "1\n"
    assert child.returncode == -signal.SIGKILL


async def test_child_that_vanishes_while_it_is_closed_is_no_error(server: JobServer) -> None:
    """If the server is killed, another process reaps its children, perhaps just before `close` kills the child."""

    class Seen(JobProcess):
        def has_ended(self) -> bool:
            os.kill(pid_of(server), signal.SIGKILL)
            while os.path.exists(f"/proc/{self.pid}"):
                time.sleep(0.01)
            vars(self)["has_ended"] = super().has_ended
            return False

    async with server.child(b"nonsense", ARGUMENTS) as child:
        assert child.stderr.read()
        child.__class__ = Seen
    assert child.returncode == -signal.SIGKILL


async def test_server_that_cannot_start_is_an_error_with_its_last_line(
    server: JobServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os; os.write(2, b'no room'); os._exit(7)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    before, processes = descriptors(), children()
    with pytest.raises(ConnectionError, match=r"the job server, .* ended with status 7: no room"):
        async with server.child(b"", ARGUMENTS):
            pass
    server.close()
    assert descriptors() <= before
    assert children() <= processes
    monkeypatch.delenv("PYTHONPATH")
    assert await output(server, "print(1)") == "1\n"


async def test_slow_start_of_the_server_can_be_cancelled(
    server: JobServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import time; time.sleep(60)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(output(server, "pass"), 0.5)
    monkeypatch.delenv("PYTHONPATH")
    assert await output(server, "print(1)") == "1\n"


async def test_child_that_waits_for_a_server_which_is_closed_gets_another_one(
    server: JobServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import time; time.sleep(60)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    waiting = asyncio.ensure_future(output(server, "print(1)"))
    await until(lambda: server.pid is not None, "the start of the server")
    await asyncio.sleep(0.05)  # it waits
    monkeypatch.delenv("PYTHONPATH")
    server.close()
    assert await waiting == "1\n"


async def test_fork_that_fails_is_the_error_of_the_system_call(server: JobServer) -> None:
    async with server.child(b"", (), SLEEP) as sleeping:
        before = descriptors()
        resource.prlimit(pid_of(server), resource.RLIMIT_NOFILE, (6, 6))
        with pytest.raises(OSError) as raised:
            async with server.child(b"", ARGUMENTS):
                pass
        assert raised.value.errno == errno.EMFILE
        assert descriptors() <= before
        assert not sleeping.has_ended()


async def test_descriptors_that_do_not_arrive_are_an_error_and_the_other_children_live_on(server: JobServer) -> None:
    async with server.child(b"", (), SLEEP) as sleeping:
        resource.prlimit(pid_of(server), resource.RLIMIT_NOFILE, (4, 4))
        with pytest.raises(OSError):
            async with server.child(b"", ARGUMENTS):
                pass
        assert not sleeping.has_ended()


async def test_no_thread_left_is_an_error_of_the_box(server: JobServer, monkeypatch: pytest.MonkeyPatch) -> None:

    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "job server":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(OSError) as raised:
        async with server.child(b"", ARGUMENTS):
            pass
    assert raised.value.errno == errno.EAGAIN


async def test_close_ends_server_and_children_and_the_next_child_starts_it(server: JobServer) -> None:
    before = children()
    async with server.child(b"nonsense", ARGUMENTS) as child:
        assert child.stderr.read()
        server.close()
        await until(child.has_ended, "the end of the child")
        assert server.pid is None
    assert children() <= before
    assert await output(server, "print(1)") == "1\n"


def test_server_outlives_the_loop_and_the_thread_that_started_it(server: JobServer) -> None:
    """The kernel sends the signal of a parent's death when the thread that forked the child ends."""
    run(output(server, "pass"))
    before = pid_of(server)
    time.sleep(0.1)
    run(output(server, "pass"))
    assert server.pid == before


async def test_forked_copy_of_the_process_leaves_the_server_alone() -> None:
    async with SERVER.child(b"", (), SLEEP) as child:
        copy = os.fork()
        if copy == 0:
            SERVER.close()
            os._exit(0)
        assert (await asyncio.to_thread(os.waitpid, copy, 0))[1] == 0
        assert not child.has_ended()
        assert await output(SERVER, "print(1)") == "1\n"
