"""Two users of one machine: neither reaches the other's shared memory or sequences."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import triton_models
from tests.integration.daemon import Daemon

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
_OTHER = 65534
_SHM = Path("/dev/shm")

# Runs as another user. Prints the result of each call, one per line.
_CALLS = """
import os, sys
import grpc  # before the process drops the rights that it may need to read it
from edged.proto import open_inference_pb2 as pb
address, uid, calls = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
os.setgroups([]); os.setgid(uid); os.setuid(uid)
channel = grpc.insecure_channel(address)
def call(method, request, response):
    made = channel.unary_unary("/inference.GRPCInferenceService/" + method, type(request).SerializeToString,
        response.FromString)
    try:
        return made(request, timeout=60)
    except grpc.RpcError as error:
        return error.code().name
def step(start, end):
    request = pb.ModelInferRequest(model_name="simple_sequence")
    request.inputs.add(name="INPUT", datatype="INT32", shape=[1, 1])
    request.raw_input_contents.append((5).to_bytes(4, "little"))
    request.parameters["sequence_id"].int64_param = 7
    request.parameters["sequence_start"].bool_param = start
    request.parameters["sequence_end"].bool_param = end
    return request
for each in calls:
    kind, _, key = each.partition(":")
    if kind == "register":
        request = pb.SystemSharedMemoryRegisterRequest(name="r", key=key, byte_size=64)
        found = call("SystemSharedMemoryRegister", request, pb.SystemSharedMemoryRegisterResponse)
    elif kind == "list":
        request = pb.SystemSharedMemoryStatusRequest()
        found = ",".join(call("SystemSharedMemoryStatus", request, pb.SystemSharedMemoryStatusResponse).regions)
    elif kind == "forget":
        found = call("SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterRequest(),
            pb.SystemSharedMemoryUnregisterResponse)
    else:
        found = call("ModelInfer", step(kind == "start", kind == "end"), pb.ModelInferResponse)
    print(found if isinstance(found, str) else "OK")
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    file = tmp_path_factory.mktemp("configuration") / "edged.toml"
    file.write_text("allow_shared_memory_over_tcp = true\n")
    daemon = Daemon(f"--config={file}", builds=False)
    triton_models.write_all(daemon.models)
    with daemon:
        daemon.ready("simple_sequence")
        yield daemon


@pytest.fixture
def objects() -> Iterator[dict[int, str]]:
    """A private shared memory object for each user."""
    found = {uid: f"edt-{uuid.uuid4().hex}" for uid in (0, _OTHER)}
    for uid, name in found.items():
        (_SHM / name).write_bytes(bytes(64))
        (_SHM / name).chmod(0o600)
        os.chown(_SHM / name, uid, -1)
    yield found
    for name in found.values():
        with contextlib.suppress(FileNotFoundError):
            (_SHM / name).unlink()


def calls(daemon: Daemon, uid: int, *wanted: str) -> list[str]:
    command = [sys.executable, "-c", _CALLS, daemon.addresses[1], str(uid), *wanted]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert not ended.returncode, ended.stderr
    return ended.stdout.splitlines()


def test_shared_memory_of_another_user_cannot_be_registered_listed_or_unregistered(
    daemon: Daemon, objects: dict[int, str]
) -> None:
    assert calls(daemon, 0, f"register:{objects[0]}", "list:") == ["OK", "r"]
    wanted = (f"register:{objects[0]}", "list:", "forget:", f"register:{objects[_OTHER]}", "list:")
    assert calls(daemon, _OTHER, *wanted) == ["INVALID_ARGUMENT", "", "OK", "OK", "r"]
    assert calls(daemon, 0, "list:", "forget:") == ["r", "OK"]
    assert calls(daemon, _OTHER, "list:") == ["r"]


def test_sequence_of_another_user_is_neither_read_nor_ended(daemon: Daemon) -> None:
    assert calls(daemon, 0, "start") == ["OK"]
    assert calls(daemon, _OTHER, "step", "end") == ["INVALID_ARGUMENT", "INVALID_ARGUMENT"]
    assert calls(daemon, 0, "step", "end") == ["OK", "OK"]
