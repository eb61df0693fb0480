"""Access control in a running daemon: changes of certificates and tokens, limits, the audit log, HTTP."""

from __future__ import annotations

import contextlib
import json
import queue
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

import edged
from edged.errors import Forbidden, NotFound
from edged.proto import open_inference_pb2 as pb
from edged.proto import operations_pb2
from tests.certificates import Authority
from tests.integration.daemon import wait_for
from tests.integration.guarded import LOCAL, Guarded, bearer, code, outcome
from tests.integration.web import ask

_MODELS = "/edged.v1.Operations/ListModels"
_REMOVE = "/edged.v1.Operations/RemoveModel"
_WATCH = "/edged.v1.Operations/WatchEvents"
_METADATA = "/inference.GRPCInferenceService/ServerMetadata"
_WRONG = "edged_" + "y" * 43


@pytest.fixture(scope="module")
def daemon() -> Iterator[Guarded]:
    with Guarded(certificates={"camera.lan": ["infer", "read"]}) as started:
        assert isinstance(started, Guarded)
        yield started


def _served(daemon: Guarded) -> bytes:
    """Return the certificate that the daemon presents."""
    host, port = daemon.tls.rsplit(":", 1)
    context = ssl.create_default_context(cafile=str(daemon.authority.ca))
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((host, int(port)), 10) as plain,
        context.wrap_socket(plain, server_hostname=host) as tls,
    ):
        found = tls.getpeercert(binary_form=True)
    assert found is not None
    return found


def _replace(daemon: Guarded, made: Path) -> None:
    """Replace the daemon's certificate, then its key."""
    for suffix in (".pem", ".key"):
        new = daemon.server.with_suffix(f"{suffix}.new")
        shutil.copy(made.with_suffix(suffix), new)
        new.rename(daemon.server.with_suffix(suffix))


def _alarms(daemon: Guarded) -> list[str]:
    with edged.Client(daemon.operate_socket) as client:
        return [alarm.message for alarm in client.status().alarms]


def test_socket_modes_allow_owner_and_group_only(daemon: Guarded) -> None:
    modes = [stat.S_IMODE(Path(a.removeprefix("unix:")).stat().st_mode) for a in daemon.addresses[:2]]
    assert all(mode in (0o660, 0o600) for mode in modes), modes


def test_operator_call_at_the_inference_socket_names_the_operators_socket(daemon: Guarded) -> None:
    words = r"RemoveModel needs the role operate.*operate\.sock"
    with edged.Client(daemon.infer_socket) as client, pytest.raises(Forbidden, match=words):
        client.remove_model("m")
    with edged.Client(daemon.operate_socket) as client, pytest.raises(NotFound):
        client.remove_model("m")


def test_new_certificate_is_presented_without_a_restart(daemon: Guarded) -> None:
    before, token = _served(daemon), daemon.token("rotation", "read")
    with daemon.channel(daemon.tls) as old:
        assert code(old, _MODELS, token) == "OK"
        _replace(daemon, daemon.authority.sign("second", *LOCAL)[0])
        wait_for("the new certificate is presented", lambda: _served(daemon) != before, 15)
        assert code(old, _MODELS, token) == "OK"  # existing connections continue
        with daemon.channel(daemon.tls) as new:
            assert code(new, _MODELS, token) == "OK"


def test_reload_unusable_certificate_reports_it_and_changes_nothing(daemon: Guarded) -> None:
    before, key = _served(daemon), daemon.server.with_suffix(".key").read_bytes()
    shutil.copy(daemon.authority.sign("other")[1], daemon.server.with_suffix(".key"))
    try:
        (message,) = wait_for("the alarm is raised", lambda: [m for m in _alarms(daemon) if "does not match" in m], 15)
        assert "tls.key" in message
        assert _served(daemon) == before
    finally:
        daemon.server.with_suffix(".key").write_bytes(key)
    wait_for("the alarm is cleared", lambda: not _alarms(daemon), 15)


def test_expired_or_foreign_client_certificate_is_refused(daemon: Guarded, tmp_path: Path) -> None:
    good, _ = daemon.authority.sign("camera", "DNS:camera.lan")
    expired, _ = daemon.authority.sign("expired", "DNS:camera.lan", days=-1)
    foreign, _ = Authority(tmp_path, "foreign").sign("camera", "DNS:camera.lan")
    for certificate, expected in ((good, "OK"), (expired, "UNAVAILABLE"), (foreign, "UNAVAILABLE")):
        with daemon.channel(daemon.mtls, certificate) as channel:
            assert code(channel, _MODELS) == expected, certificate


def test_revoked_token_is_refused_and_its_streams_end(daemon: Guarded) -> None:
    secret = daemon.token("doomed", "read")
    with daemon.channel(daemon.tls) as channel:
        request = operations_pb2.WatchEventsRequest(follow=True).SerializeToString()
        stream = channel.unary_stream(_WATCH)(request, metadata=bearer(secret), timeout=60)
        ended: queue.SimpleQueue[grpc.StatusCode] = queue.SimpleQueue()
        stream.add_done_callback(lambda call: ended.put(call.code()))
        with contextlib.suppress(StopIteration):
            assert stream.initial_metadata() is not None
        assert code(channel, _MODELS, secret) == "OK"
        daemon.tokens.revoke("doomed")
        with pytest.raises(grpc.RpcError):
            for _ in stream:
                pass
        assert ended.get(timeout=20) is grpc.StatusCode.UNAUTHENTICATED
        assert code(channel, _MODELS, secret) == "UNAUTHENTICATED"


def test_tokens_by_command(daemon: Guarded) -> None:
    def tokens(*words: str, status: int = 0) -> str:
        command = [sys.executable, "-m", "edged", "tokens", *words, "--state", str(daemon.state)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr if status else done.stdout

    secret = tokens("new", "yard", "--role", "infer,read", "--days", "30").strip()
    with daemon.channel(daemon.tls) as channel:
        wait_for("the token is known", lambda: code(channel, _MODELS, secret) == "OK", 20)
        listed = tokens("list")
        assert "yard" in listed
        assert secret not in listed
        assert "token yard already exists" in tokens("new", "yard", "--role", "read", status=1)
        assert "role 'root'" in tokens("new", "gate", "--role", "root", status=2)
        tokens("revoke", "yard")
        wait_for("the token is refused", lambda: code(channel, _MODELS, secret) == "UNAUTHENTICATED", 20)
        assert "token 'yard' does not exist" in tokens("revoke", "yard", status=1)
    assert stat.S_IMODE(daemon.tokens.path.stat().st_mode) == 0o600


def test_operator_calls_are_audited(daemon: Guarded) -> None:
    secret = daemon.token("keeper", "operate")
    with daemon.channel(daemon.tls) as channel:
        request = operations_pb2.RemoveModelRequest(name="nothing-there").SerializeToString()
        assert code(channel, _REMOVE, secret, request) == "NOT_FOUND"
        load = pb.RepositoryModelLoadRequest(model_name="nothing-there").SerializeToString()
        code(channel, "/inference.GRPCInferenceService/RepositoryModelLoad", secret, load)
        assert code(channel, _MODELS, secret) == "OK"  # a read is not audited

    def lines() -> list[dict[str, object]]:
        found = [line for line in daemon.audited() if line["who"] == "token keeper"]
        return found if len(found) >= 2 else []

    removed, loaded = wait_for("both are in the audit log", lines, 10)
    assert removed["method"] == _REMOVE
    assert removed["outcome"] == "NOT_FOUND"
    assert removed["about"] == {"name": "nothing-there"}
    assert removed["roles"] == ["operate"]
    assert str(removed["peer"]).startswith("ipv4:127.0.0.1:")
    assert float(str(removed["milliseconds"])) > 0
    assert loaded["about"] == {"model_name": "nothing-there"}


def test_no_secret_is_in_any_log(daemon: Guarded) -> None:
    good = daemon.token("quiet", "infer")
    shown = [_WRONG, good, "Bearer-like", good[:-1], f"{good} {good}"]
    with daemon.channel(daemon.tls) as channel:
        for secret in shown:
            code(channel, _REMOVE, secret)
            code(channel, _MODELS, secret)
        for header in (good, f"Basic {good}", f"bearer  {good}x"):
            with contextlib.suppress(grpc.RpcError):
                channel.unary_unary(_MODELS)(b"", metadata=(("authorization", header),), timeout=10)
        error = outcome(channel, _MODELS, _WRONG)
        assert error is not None
        assert _WRONG not in str(error.details())
    wait_for("it is audited", lambda: any(line["outcome"] == "UNAUTHENTICATED" for line in daemon.audited()), 10)
    reported = daemon.log.read_text() + (daemon.state / "audit" / "audit.jsonl").read_text()
    kept = daemon.tokens.path.read_text()
    for secret in (_WRONG, good, good[:-1]):
        assert secret not in reported
        assert secret not in kept
    assert "refused" in reported


class HttpGuarded(Guarded):
    """Also listens for HTTP, gives no role to anonymous clients, and limits the requests per second of each client."""

    def __init__(self) -> None:
        limits = ("loopback = []", "client_per_second = 40")
        super().__init__("[http]", 'listen = "localhost:0"', "[access]", *limits, endpoints=1)

    @property
    def web(self) -> str:
        return self.addresses[4]


@pytest.fixture(scope="module")
def limited() -> Iterator[HttpGuarded]:
    with HttpGuarded() as started:
        assert isinstance(started, HttpGuarded)
        yield started


def test_http_has_the_same_roles(limited: HttpGuarded) -> None:
    infer, operate = (limited.token(f"http-{role}", role) for role in ("infer", "operate"))
    load = "/v2/repository/models/nothing-there/load"

    def status(method: str, path: str, secret: str = "") -> int:
        headers = {"authorization": f"Bearer {secret}"} if secret else {}
        return ask(limited.web, method, path, None, headers)[0]

    assert status("GET", "/v2/health/live") == 200
    assert status("GET", "/v2") == 401
    assert status("GET", "/v2", _WRONG) == 401
    assert status("GET", "/v2", infer) == 200
    assert status("POST", load, infer) == 403
    assert status("POST", load, operate) not in (401, 403)
    _, headers, body = ask(limited.web, "GET", "/v2")
    assert headers["www-authenticate"].startswith("Bearer")
    assert "token" in json.loads(body)["error"]

    def loaded() -> list[object]:
        return [line["about"] for line in limited.audited() if line["who"] == "token http-operate"]

    assert wait_for("the call is in the audit log", loaded, 10) == [{"model": "nothing-there"}]
    assert infer not in limited.log.read_text()


def test_client_rate_limit_refuses_one_client_and_not_another(limited: HttpGuarded) -> None:
    secret, other = limited.token("eager", "read"), limited.token("patient", "read")
    with limited.channel(limited.tls) as channel:
        began = time.monotonic()
        found = [code(channel, _METADATA, secret) for _ in range(200)]
        passed = time.monotonic() - began
        assert "RESOURCE_EXHAUSTED" in found
        assert 40 <= found.count("OK") <= 41 + 40 * passed
        assert code(channel, _METADATA, other) == "OK"
        wait_for("the client is served again", lambda: code(channel, _METADATA, secret) == "OK", 10)
    status, headers, _ = ask(limited.web, "GET", "/v2/health/live")
    assert status == 200
    for _ in range(300):
        status, headers, _ = ask(limited.web, "GET", "/v2", None, {"authorization": f"Bearer {secret}"})
        if status == 429:
            break
    assert status == 429
    assert int(headers["retry-after"]) >= 1
