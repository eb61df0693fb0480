"""The audit log: whole lines in rotated files, writes that never block a call, and the names it takes from requests."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from pathlib import Path
from typing import Any, cast

import pytest
from google.protobuf.message import Message

from edged.api.auth.audit import FILE, AuditLog, Line, about
from edged.api.auth.guard import Guard
from edged.api.grpc.rpc import Service
from edged.api.http.exchange import HttpRequest
from edged.api.http.handlers import Calls
from edged.api.http.routes import Dispatcher
from edged.config import Access, Tls
from edged.proto import open_inference_pb2 as inference
from edged.proto import operations_pb2 as operations


def line(number: int = 0) -> Line:
    roles, peer = ("operate",), "ipv4:1.2.3.4:5"
    return Line("2026-01-01T00:00:00Z", f"token {number}", "/a/B", "OK", roles, peer, {"name": "m"}, "", 1.5)


def written(folder: Path, *numbers: int) -> AuditLog:
    """Write these lines to a log and close it."""
    log = AuditLog(folder, 4000)
    for number in numbers:
        log.write(line(number))
    log.close()
    return log


def test_write_many_lines_rotates_files_of_json(tmp_path: Path) -> None:
    log = written(tmp_path / "audit", *range(100))
    files = sorted((tmp_path / "audit").iterdir())
    assert [file.name for file in files] == [FILE, *(f"{FILE}.{number}" for number in range(1, len(files)))]
    assert 3 <= len(files) <= 4
    assert sum(file.stat().st_size for file in files) <= 4000
    lines = [json.loads(text) for file in files for text in file.read_text().splitlines()]
    numbers = {int(each["who"].split()[1]) for each in lines}
    assert numbers == set(range(min(numbers), 100))  # only the oldest lines are missing
    assert lines[0].keys() == {"time", "who", "method", "outcome", "roles", "peer", "about", "milliseconds"}
    assert log.lost == 0


def test_write_to_an_unusable_folder_counts_lost_lines(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    folder.write_text("in the way")
    log = written(folder, 1)
    assert log.lost == 1
    assert str(folder) in log.problem
    folder.unlink()
    log.write(line(2))
    log.close()
    assert (log.lost, log.problem) == (1, "")


def test_write_to_a_full_disk_leaves_no_partial_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, real = written(tmp_path, 1), os.write
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, data[:10]))
    log.write(line(2))
    log.close()
    assert log.lost == 1
    assert [json.loads(text)["who"] for text in (tmp_path / FILE).read_text().splitlines()] == ["token 1"]


def test_write_if_rotation_fails_continues_in_the_same_file_up_to_the_limit(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"{FILE}.{number}").touch()
    obstacle = tmp_path / f"{FILE}.3"
    obstacle.mkdir()
    log = written(tmp_path, *range(10))
    assert (log.lost, len((tmp_path / FILE).read_text().splitlines())) == (0, 10)
    assert str(tmp_path) in log.problem
    for number in range(10, 50):
        log.write(line(number))
    log.close()
    kept = (tmp_path / FILE).read_text().splitlines()
    assert len((tmp_path / FILE).read_bytes()) <= 4000
    assert 10 < len(kept) == 50 - log.lost
    assert log.problem
    lost = log.lost
    obstacle.rmdir()
    log.write(line(50))
    log.close()
    assert (log.lost, log.problem) == (lost, "")
    assert (tmp_path / f"{FILE}.1").read_text().splitlines() == kept
    assert json.loads((tmp_path / FILE).read_text())["who"] == "token 50"


def test_rotate_after_a_failure_keeps_older_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, *range(100))
    oldest, real = (tmp_path / f"{FILE}.2").read_bytes(), os.replace

    def replace(source: Path, target: Path) -> None:
        if source.name == FILE:
            raise PermissionError(1, "not permitted")
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    written(tmp_path, *range(100, 110))
    assert (tmp_path / f"{FILE}.3").read_bytes() == oldest


def test_write_while_the_disk_hangs_loses_lines_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FILE)  # the thread that writes waits for a reader
    log = AuditLog(tmp_path, 4000, waiting=3)
    for number in range(10):
        log.write(line(number))
    assert log.lost >= 6
    assert log.problem
    os.close(os.open(tmp_path / FILE, os.O_RDONLY | os.O_NONBLOCK))


def test_refused_call_is_logged_once_a_second_for_each_host(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    log = AuditLog(tmp_path, 1 << 20, clock=lambda: now[0])
    with caplog.at_level(logging.WARNING, "edged.access"):
        for _ in range(50):
            log.refused(line(), "1.2.3.4")
        log.refused(line(), "9.9.9.9")
        now[0] += 1.0
        log.refused(line(), "1.2.3.4")
    assert len(caplog.records) == 3
    log.close()


def load_request() -> inference.RepositoryModelLoadRequest:
    request = inference.RepositoryModelLoadRequest(model_name="m" * 500)
    request.parameters["file:1/model.onnx"].bytes_param = b"contents"
    return request


@pytest.mark.parametrize(
    ("request_", "names"),
    [
        (
            operations.AddModelRequest(header=operations.ModelHeader(name="door", settings={"threads": "1", "a": "2"})),
            {"name": "door", "settings": "a, threads"},
        ),
        (operations.AddModelRequest(chunk=b"secret"), {}),
        (
            operations.RebuildRequest(selector=operations.Selector(model="door", everything=True), force=True),
            {"model": "door", "everything": "true", "force": "true"},
        ),
        (load_request(), {"model_name": "m" * 200}),
    ],
)
def test_about_request_returns_names_without_contents(request_: Message, names: dict[str, str]) -> None:
    assert about(request_) == names


@pytest.mark.parametrize(
    ("path", "body", "names"),
    [
        ("/v2/logging", b'{"log_verbose_level": 1, "log_info": false}', {"settings": "log_info, log_verbose_level"}),
        ("/v2/models/door/trace/setting", b'{"trace_file": "x"}', {"model": "door", "settings": "trace_file"}),
        ("/v2/logging", b"", None),
        ("/v2/logging", b"[" * 5000, None),
        ("/v2/logging", b'{"log\xff": 1}', None),
        ("/v2/repository/models/door/load", b'{"parameters": {"config": "x"}}', {"model": "door"}),
    ],
)
def test_http_command_is_recorded_as_the_same_command_over_grpc(
    tmp_path: Path, path: str, body: bytes, names: dict[str, str] | None
) -> None:
    guard = Guard(Access(loopback=("infer", "read", "operate")), Tls(), tmp_path)
    service = Service(inference.DESCRIPTOR.services_by_name["GRPCInferenceService"])
    calls = Calls(service, cast(Any, None), cast(Any, None), cast(Any, None))
    asyncio.run(Dispatcher(calls, guard, "localhost:8000").answer(HttpRequest("POST", path, body=body)))
    guard.audit.close()
    (text,) = (tmp_path / "audit" / FILE).read_text().splitlines()
    assert json.loads(text).get("about") == names
