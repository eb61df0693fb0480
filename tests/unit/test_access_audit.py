"""What is written down: whole lines, in files that give way, and never at a call's cost."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from pathlib import Path
from typing import Any, cast

import pytest

from edged.api.auth import audit
from edged.api.auth.audit import AuditLog, Line, about
from edged.api.auth.guard import Guard
from edged.api.grpc.rpc import Service
from edged.api.http.exchange import HttpRequest
from edged.api.http.handlers import Calls
from edged.api.http.routes import Dispatcher
from edged.config import Access, Tls
from edged.proto import open_inference_pb2 as inference
from edged.proto import operations_pb2 as operations


def _line(number: int = 0, peer: str = "ipv4:1.2.3.4:5") -> Line:
    return Line("2026-01-01T00:00:00Z", f"token {number}", "/a/B", "OK", ("operate",), peer, {"name": "m"}, "", 1.5)


def test_lines_are_json_and_files_give_way(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit", 4000)
    for number in range(100):
        log.write(_line(number))
    log.close()
    files = sorted((tmp_path / "audit").iterdir())
    assert [file.name for file in files] == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2", "audit.jsonl.3"][
        : len(files)
    ]
    assert len(files) >= 3
    assert sum(file.stat().st_size for file in files) <= 4000 + 200 * 4
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    numbers = {int(line["who"].split()[1]) for line in lines}
    assert numbers == set(range(min(numbers), 100))  # the oldest are gone, and none in between
    assert lines[0].keys() == {"time", "who", "method", "outcome", "roles", "peer", "about", "milliseconds"}
    assert log.lost == 0


def test_a_disk_that_takes_nothing_is_counted_and_recovered_from(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    folder.write_text("in the way")
    log = AuditLog(folder, 4000)
    log.write(_line())
    log.close()
    assert log.lost == 1
    assert str(folder) in log.problem
    folder.unlink()
    log = AuditLog(folder, 4000)
    log.write(_line())
    log.close()
    assert (log.lost, log.problem) == (0, "")


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AuditLog(tmp_path, 4000)
    log.write(_line(1))
    log.close()
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, data[:10]))
    log._thread = None
    log.write(_line(2))
    log.close()
    assert log.lost == 1
    assert "No space left" in log.problem
    assert [json.loads(line)["who"] for line in (tmp_path / audit.FILE).read_text().splitlines()] == ["token 1"]


def test_a_disk_that_hangs_costs_lines_and_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "_WAITING", 3)
    log = AuditLog(tmp_path, 4000)
    monkeypatch.setattr(log, "_run", lambda: None)  # a thread that takes nothing off
    for number in range(10):
        log.write(_line(number))
    assert log.lost == 7
    assert log.problem


def test_who_is_turned_away_is_told_of_once_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [100.0]
    monkeypatch.setattr("edged.api.auth.audit.time.monotonic", lambda: now[0])
    monkeypatch.setattr(audit, "_HOSTS", 5)
    log = AuditLog(tmp_path, 1 << 20)
    with caplog.at_level(logging.WARNING, "edged.access"):
        for _ in range(50):
            log.refused(_line(), "1.2.3.4")
        log.refused(_line(), "9.9.9.9")
        now[0] += 1.0
        log.refused(_line(), "1.2.3.4")
    assert len(caplog.records) == 3
    for number in range(100):
        log.refused(_line(), str(number))
    assert len(log._refusals) <= 5
    log.close()


def test_what_a_request_is_about() -> None:
    header = operations.ModelHeader(name="door", settings={"threads": "1", "score": "0.5"})
    assert about(operations.AddModelRequest(header=header)) == {"name": "door", "settings": "score, threads"}
    assert about(operations.AddModelRequest(chunk=b"secret")) == {}
    selector = operations.Selector(model="door", everything=True)
    rebuild = operations.RebuildRequest(selector=selector, force=True)
    assert about(rebuild) == {"model": "door", "everything": "true", "force": "true"}
    load = inference.RepositoryModelLoadRequest(model_name="m" * 500)
    load.parameters["file:1/model.onnx"].bytes_param = b"contents"
    assert about(load) == {"model_name": "m" * 200}


@pytest.mark.parametrize(
    ("path", "body", "about"),
    [
        ("/v2/logging", b'{"log_verbose_level": 1, "log_info": false}', {"settings": "log_info, log_verbose_level"}),
        ("/v2/models/door/trace/setting", b'{"trace_file": "x"}', {"model": "door", "settings": "trace_file"}),
        ("/v2/logging", b"", None),
        ("/v2/logging", b"[" * 5000, None),
        ("/v2/logging", b'{"log\xff": 1}', None),
        ("/v2/repository/models/door/load", b'{"parameters": {"config": "x"}}', {"model": "door"}),
    ],
)
def test_http_command_is_recorded_as_over_grpc(
    tmp_path: Path, path: str, body: bytes, about: dict[str, str] | None
) -> None:
    guard = Guard(Access(loopback=("infer", "read", "operate")), Tls(), tmp_path)
    service = Service(inference.DESCRIPTOR.services_by_name["GRPCInferenceService"])
    calls = Calls(service, cast(Any, None), cast(Any, None))
    asyncio.run(Dispatcher(calls, guard, "localhost:8000").answer(HttpRequest("POST", path, body=body)))
    guard.audit.close()
    (line,) = (tmp_path / "audit" / audit.FILE).read_text().splitlines()
    assert json.loads(line).get("about") == about
