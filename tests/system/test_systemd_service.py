"""The service under a real systemd: it starts, reports its status, survives crashes of its parts, reloads, stops."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edged.confinement import confine
from tests.system.systemd import Unavailable
from tests.system.systemd.box import SHARED, Box
from tests.system.systemd.service import CONFIG, MAKE, UNIT, Service, shared

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(400)]
_STOP_SECONDS = 20.0  # the unit's TimeoutStopSec
_SOCKETS = ("edged.socket", "edged-operate.socket")
_UNITS = ("edged.service", *_SOCKETS, "edged-refresh.service", "edged-refresh.path")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The installed and running service, with a model."""
    try:
        wheels = tmp_path_factory.mktemp("wheels")
        _write_hog(wheels / "hog.onnx")
        with Box(shared(wheels)) as box:
            service = Service(box)
            box.run("systemctl", "start", UNIT)
            service.add("shapes")
            service.wait("shapes answers", lambda: service.sees("shapes"))
            yield service
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def settled(service: Service) -> None:
    """Make sure that the service runs before each test, whatever the previous test did."""
    service.wait("the service is up", lambda: service.show("ActiveState") == "active" and service.pid)
    service.wait("shapes answers", lambda: service.sees("shapes"))


def test_units_pass_systemd_analyze(service: Service) -> None:
    done = service.box.run("systemd-analyze", "verify", "--man=no", *_UNITS, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_unit_has_a_low_systemd_exposure_score(service: Service) -> None:
    done = service.box.run("systemd-analyze", "security", "--no-pager", "--threshold=20", UNIT, check=False)
    print(done.stdout.splitlines()[-1])
    assert done.returncode == 0, done.stdout


def test_service_runs_as_a_user_with_device_groups(service: Service) -> None:
    (line,) = [
        line for line in service.box.run("cat", f"/proc/{service.pid}/status").stdout.splitlines() if "Uid" in line
    ]
    assert "0" not in line.split()[1:]
    groups = service.box.run("id", "-nG", "edged").stdout.split()
    assert set(groups) >= {"edged", "edged-operate", "video", "render"}
    assert service.show("StateDirectoryMode") == "0750"


@pytest.mark.skipif(bool(confine.lacking()), reason="this kernel cannot confine all")
def test_service_unit_lets_the_daemon_confine_its_hosts(service: Service) -> None:
    log = service.box.log(UNIT)
    assert "confined to their files" in log
    (host, *_) = service.box.run("pgrep", "-P", str(service.pid), "-f", "edged.host.main").stdout.split()
    assert _filters(service, host) == _filters(service, service.pid) + 1


def _filters(service: Service, pid: str | int) -> int:
    """Return the number of a process's seccomp filters: those of its unit plus its own."""
    lines = service.box.run("cat", f"/proc/{pid}/status").stdout.splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("Seccomp_filters:")))


def test_journal_entries_have_model_event_and_priority(service: Service) -> None:
    asked = ("-u", UNIT, "EDGED_MODEL=shapes", "EDGED_EVENT=engine_serves", "-o", "json", "--no-pager")
    lines = service.box.run("journalctl", *asked).stdout.splitlines()
    assert lines
    entry = json.loads(lines[0])
    assert (entry["PRIORITY"], entry["_TRANSPORT"], entry["SYSLOG_IDENTIFIER"]) == ("6", "journal", "edged")
    assert entry["MESSAGE"].startswith("model shapes: engine ")
    assert "model shapes: engine " in service.edged("logs", "--model", "shapes").stdout


def test_sockets_belong_to_two_groups(service: Service) -> None:
    assert _owners(service) == ["660 edged edged", "660 edged edged-operate"]


def test_unit_status_counts_the_serving_models(service: Service) -> None:
    service.wait("the status has the count", lambda: service.status.startswith("1 of 1 models answer"), 20)
    assert service.edged("status", check=False).stdout.startswith("edged")


def test_killed_daemon_restarts_with_its_engines(service: Service) -> None:
    service.wait("all engines are built", lambda: _made(service, "shapes"), 180)
    before, made = service.pid, {engine["key"]: engine["created_unix_s"] for engine in service.engines("shapes")}
    service.signal("KILL", before)
    service.wait("the daemon is restarted", lambda: service.pid not in (0, before))
    service.wait("shapes answers", lambda: service.sees("shapes"))
    assert {engine["key"]: engine["created_unix_s"] for engine in service.engines("shapes")} == made
    assert int(service.show("NRestarts")) >= 1


def test_killed_host_is_replaced(service: Service) -> None:
    daemon, hosts = service.pid, service.wait("a host runs", service.hosts)
    service.signal("KILL", *hosts)
    service.wait("new hosts run", lambda: service.hosts() and not set(hosts) & set(service.hosts()))
    service.wait("shapes answers", lambda: service.sees("shapes"))
    assert service.pid == daemon


@pytest.mark.long
def test_reload_applies_changes_and_rejects_mistakes(service: Service) -> None:
    daemon, hosts = service.pid, service.hosts()
    service.write(CONFIG, '[http]\nlisten = "unix:/run/edged/http.sock"\n')
    service.box.run("systemctl", "reload", UNIT)
    service.wait(
        "HTTP listens", lambda: service.box.run("test", "-S", "/run/edged/http.sock", check=False).returncode == 0
    )
    service.write(CONFIG, "[http]\nlissen = 5\n")
    done = service.edged("reload", check=False)
    assert done.returncode == 2
    assert "did you mean `listen`?" in done.stderr
    service.wait("the refusal is shown", lambda: "configuration refused: configuration /etc" in service.status, 20)
    service.box.run("systemctl", "reload", UNIT)
    assert service.box.run("test", "-S", "/run/edged/http.sock", check=False).returncode == 0
    service.write(CONFIG, "")
    assert service.edged("reload").stdout == "http.listen: unix:/run/edged/http.sock → none\n"
    service.wait("the status has no refusal", lambda: "refused" not in service.status, 20)
    assert (service.pid, service.hosts()) == (daemon, hosts)


@pytest.mark.long
def test_stop_with_a_stopped_host_ends_in_time(service: Service) -> None:
    service.signal("STOP", *service.wait("a host runs", service.hosts))
    began = time.monotonic()
    service.box.run("systemctl", "stop", UNIT)
    assert time.monotonic() - began < _STOP_SECONDS
    assert service.show("Result") == "success"
    assert service.box.run("test", "-e", "/run/edged/edged.sock", check=False).returncode == 1
    assert service.box.run("test", "-d", "/run/edged", check=False).returncode == 0
    service.box.run("systemctl", "start", UNIT)


@pytest.mark.long
def test_socket_unit_starts_the_daemon_and_refuses_no_call(service: Service) -> None:
    found = service.box.run
    found("systemctl", "stop", UNIT)
    found("systemctl", "enable", "--now", "edged.socket")
    assert [service.box.show(unit, "SubState") for unit in _SOCKETS] == ["listening"] * 2
    assert _owners(service) == ["660 edged edged", "660 edged edged-operate"]
    for end in (("stop", UNIT), ("restart", UNIT), ("kill", "--signal=KILL", "--kill-whom=main", UNIT), ("stop", UNIT)):
        assert service.edged("status").stdout.startswith("edged")
        assert service.show("ActiveState") == "active"
        assert _owners(service) == ["660 edged edged", "660 edged edged-operate"]
        found("systemctl", *end)
        if "kill" in end:
            service.wait("the daemon has been killed", lambda: service.show("SubState") == "auto-restart", 20)
    found("systemctl", "disable", "--now", "edged.socket")
    assert [service.box.show(unit, "SubState") for unit in _SOCKETS] == ["dead"] * 2
    found("systemctl", "start", UNIT)
    assert _owners(service) == ["660 edged edged", "660 edged edged-operate"]


# Calls with wait_for_ready for so many seconds; prints the failures and the longest time between two answers.
_CALLS = """
import json, sys, time
import grpc
failed, gap, last, end = [], 0.0, time.monotonic(), time.monotonic() + float(sys.argv[1])
ask = grpc.insecure_channel("unix:/run/edged/edged.sock").unary_unary("/inference.GRPCInferenceService/ServerLive")
while time.monotonic() < end:
    try:
        ask(b"", timeout=40, wait_for_ready=True)
        gap, last = max(gap, time.monotonic() - last), time.monotonic()
    except grpc.RpcError as error:
        failed.append(error.code().name)
    time.sleep(0.01)
print(json.dumps([failed, gap]))
"""


@pytest.mark.long
def test_socket_unit_calls_that_wait_for_ready_survive_a_restart_and_a_kill(service: Service) -> None:
    run = service.box.run
    run("systemctl", "stop", UNIT)
    run("systemctl", "enable", "--now", "edged.socket")
    run("systemctl", "start", UNIT)
    with ThreadPoolExecutor(1) as pool:
        calls = pool.submit(run, "/opt/edged/bin/python", "-c", _CALLS, "20")
        time.sleep(3)
        run("systemctl", "restart", UNIT)
        time.sleep(3)
        run("systemctl", "kill", "--signal=KILL", "--kill-whom=main", UNIT)
        failed, gap = json.loads(calls.result().stdout)
    print(f"failed: {failed}; longest gap {gap:.2f} s")
    assert len(failed) <= 4, "only calls in the ending daemon may fail"
    assert set(failed) <= {"CANCELLED", "UNAVAILABLE"}
    assert gap < 15
    run("systemctl", "disable", "--now", "edged.socket")
    run("systemctl", "restart", UNIT)


@pytest.mark.long
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_runtime_serves_within_the_unit(service: Service, backend: str) -> None:
    service.add(backend, "--set", f"backends={backend}")
    service.wait(f"an engine of {backend} serves", lambda: _served_by(service, backend, backend), 180)
    assert service.sees(backend)
    service.edged("models", "remove", backend)


@pytest.mark.long
def test_hung_daemon_is_restarted_by_the_watchdog(service: Service) -> None:
    service.configure(WatchdogSec="4s", TimeoutAbortSec="2s")
    service.box.run("systemctl", "restart", UNIT)
    service.wait("shapes answers", lambda: service.sees("shapes"))
    time.sleep(8)  # twice the watchdog's timeout
    before, restarts = service.pid, int(service.show("NRestarts"))
    assert restarts == 0, "the watchdog fired although nothing hung"
    service.signal("STOP", before)
    service.wait("the daemon is restarted", lambda: service.pid not in (0, before), 60)
    assert "Watchdog timeout" in service.box.log(UNIT)
    service.configure()
    service.box.run("systemctl", "restart", UNIT)


@pytest.mark.long
def test_host_out_of_memory_is_killed_and_the_daemon_survives(service: Service) -> None:
    service.configure(MemoryMax="1500M")
    # The host's own memory limit, which would fail only the request, is out of reach.
    service.write(CONFIG, '[http]\nlisten = "unix:/run/edged/http.sock"\n[hosts]\nmemory_mb = 100000\n')
    service.box.run("systemctl", "restart", UNIT)
    service.edged("models", "add", "hog", str(SHARED / "wheels/hog.onnx"))
    service.wait("hog answers", lambda: _ask_hog(service, 2))
    service.wait("all engines are built", lambda: _made(service, "hog") and _made(service, "shapes"), 180)
    daemon, hosts = service.pid, service.hosts()
    assert not _ask_hog(service, 200_000)  # takes 3 GiB
    service.wait("a host is killed", lambda: set(hosts) - set(service.hosts()))
    assert _killed_for_memory(service)
    service.wait("shapes answers", lambda: service.sees("shapes"))
    service.wait("hog answers", lambda: _ask_hog(service, 2))
    assert service.pid == daemon
    service.edged("models", "remove", "hog")
    service.configure()
    service.write(CONFIG, "")
    service.box.run("systemctl", "restart", UNIT)


@pytest.mark.long
def test_uninstall_keeps_state_until_purge(service: Service) -> None:
    kept = ("/var/lib/edged/models", "/var/cache/edged/engines", str(CONFIG))
    service.box.run(*MAKE, "uninstall")
    assert service.show("LoadState") == "not-found"
    assert service.box.run("test", "-e", "/opt/edged", check=False).returncode == 1
    service.box.run("ls", *kept)
    service.box.run(*MAKE, "install")
    service.box.run(*MAKE, "uninstall", "PURGE=1")
    for path in (*kept, "/usr/bin/edged", "/opt/edged"):
        assert service.box.run("test", "-e", path, check=False).returncode == 1, path
    assert service.box.run("id", "edged", check=False).returncode == 1


def _owners(service: Service) -> list[str]:
    """Return mode, user and group of the sockets for frames and for operators."""
    done = service.box.run("stat", "-c", "%a %U %G", "/run/edged/edged.sock", "/run/edged/operate.sock")
    return done.stdout.splitlines()


def _killed_for_memory(service: Service) -> int:
    """Return how many processes of the unit the kernel has killed for lack of memory, with cgroups v1 or v2."""
    group = service.show("ControlGroup")
    files = (f"/sys/fs/cgroup/memory{group}/memory.oom_control", f"/sys/fs/cgroup{group}/memory.events")
    lines = service.box.run("cat", *files, check=False).stdout.splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


def _made(service: Service, model: str) -> bool:
    return all(engine["state"] in ("serving", "ready", "rejected", "unsuitable") for engine in service.engines(model))


def _served_by(service: Service, model: str, backend: str) -> bool:
    serving = [engine for engine in service.engines(model) if engine["state"] == "serving"]
    return bool(serving) and all(engine["backend"] == backend and engine["bytes"] for engine in serving)


def _ask_hog(service: Service, rows: int) -> bool:
    """Return True if the model answers a request of so many rows, each of which takes 16 KiB of memory."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [rows, 1], "data": [1.0] * rows}
    url = "http://localhost/v2/models/hog/infer"
    command = ("curl", "-s", "-f", "--max-time", "100", "--unix-socket", "/run/edged/http.sock", "-d", "@-", url)
    done = service.box.run(*command, to=json.dumps({"inputs": [tensor]}), check=False)
    return done.returncode == 0


def _write_hog(path: Path) -> None:
    """Write y = row sums of x w, with x FP32 [n, 1] and w [1, 4096]: the intermediate result is large."""
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["p"]),
            helper.make_node("ReduceSum", ["p", "axis"], ["y"], keepdims=0),
        ],
        "hog",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
        [
            numpy_helper.from_array(np.ones((1, 4096), np.float32), "w"),
            numpy_helper.from_array(np.array([1], np.int64), "axis"),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
