"""References: what they name, downloads from stand-ins on loopback, and that the files are kept."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edged.errors import (
    ConfigError,
    DaemonUnavailable,
    EdgedError,
    InvalidInput,
    NotFound,
    OutOfSpace,
    Refused,
    Unauthenticated,
)
from edged.references import kept, transfer
from edged.references.reference import parse
from edged.references.transfer import Location
from tests.stand_in import Page, StandIn, stand_in

MODEL = b"a model" * 1000
DIGEST = hashlib.sha256(MODEL).hexdigest()


@pytest.fixture
def server() -> Iterator[StandIn]:
    with stand_in() as found:
        yield found


def fetched(text: str, state: Path) -> bytes:
    return kept.local(text, state).path.read_bytes()


def left_behind(state: Path) -> list[str]:
    return sorted(path.name for path in (state / kept.FOLDER).iterdir() if path.suffix != ".lock")


# -- what a reference says -------------------------------------------------------------------------------------------


def test_path_is_no_reference() -> None:
    assert kept.local("models/door.onnx", Path("/nowhere")) == (Path("models/door.onnx"), None)
    assert parse("C:/models/door.onnx") is None


def test_digest_is_taken_from_the_fragment() -> None:
    found = parse(f"HTTPS://host/door.onnx?key=secret#sha256={DIGEST.upper()}")
    assert found is not None
    assert (found.scheme, found.digest) == ("https", DIGEST)
    assert "secret" not in found.text


@pytest.mark.parametrize(
    "text", ["https://host:99999/a.onnx", "https://[::1/a.onnx", "https://user:secret@host/a.onnx", "ftp://host/a.onnx"]
)
def test_address_that_is_invalid_or_has_a_password(text: str) -> None:
    with pytest.raises(InvalidInput) as found:
        parse(text)
    assert "secret" not in str(found.value)


@pytest.mark.parametrize("text", ["https://host/a.onnx#sha256=12", "https://host/a.onnx#main", "http://host/a.onnx"])
def test_reference_that_cannot_be_used(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse(text)


def test_plain_http_needs_a_digest() -> None:
    assert parse(f"http://host/a.onnx#sha256={DIGEST}") is not None


@pytest.mark.parametrize("text", ["hf://owner/name", "hf://a/b/../../c", "roboflow://a/b", "oci://host"])
def test_incomplete_reference_shows_its_form(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROBOFLOW_API_KEY", "k")
    with pytest.raises(InvalidInput, match="give "):
        kept.local(text, tmp_path)


# -- fetched once, kept for ever -------------------------------------------------------------------------------------


def test_file_is_fetched_once_and_used_without_network(server: StandIn, tmp_path: Path) -> None:
    server.pages["/models/door.onnx"] = MODEL
    text = f"{server.address}/models/door.onnx"
    local = kept.local(text, tmp_path)
    assert local.path.name == "door.onnx"
    assert local.path.read_bytes() == MODEL
    assert local.pin is not None
    assert local.pin.model == ("door.onnx", DIGEST)
    server.pages.clear()
    assert kept.local(text, tmp_path) == local
    assert kept.local(f"{text}#sha256={DIGEST}", tmp_path) == local
    assert server.paths() == ["/models/door.onnx"]


def test_other_file_than_the_digest_names_is_refused_and_not_kept(server: StandIn, tmp_path: Path) -> None:
    server.pages["/door.onnx"] = MODEL
    with pytest.raises(Refused, match="check the digest"):
        kept.local(f"{server.address}/door.onnx#sha256={'0' * 64}", tmp_path)
    assert not left_behind(tmp_path)


def test_damaged_file_is_fetched_again_and_must_be_the_same(server: StandIn, tmp_path: Path) -> None:
    server.pages["/door.onnx"] = MODEL
    text = f"{server.address}/door.onnx"
    path = kept.local(text, tmp_path).path
    path.write_bytes(b"damaged")
    assert fetched(text, tmp_path) == MODEL
    path.write_bytes(b"damaged")
    server.pages["/door.onnx"] = b"another model"
    with pytest.raises(Refused, match="the file has changed; to accept it, remove"):
        kept.local(text, tmp_path)
    other = hashlib.sha256(b"another model").hexdigest()
    assert fetched(f"{text}#sha256={other}", tmp_path) == b"another model"


def test_daemon_gets_no_path_of_another_file(server: StandIn, tmp_path: Path) -> None:
    server.pages["/door.onnx"] = MODEL
    text = f"{server.address}/door.onnx"
    path = kept.local(text, tmp_path).path
    assert kept.place_of(text, tmp_path) == (path, True)
    other, is_kept = kept.place_of(f"{text}#sha256={'0' * 64}", tmp_path)
    assert not is_kept
    assert not other.exists()
    path.write_bytes(b"altered")
    other, is_kept = kept.place_of(text, tmp_path)
    assert not is_kept
    assert not other.exists()


def test_files_that_no_pin_describes_are_fetched_again(server: StandIn, tmp_path: Path) -> None:
    server.pages["/door.onnx"] = MODEL
    text = f"{server.address}/door.onnx"
    pin = kept.local(text, tmp_path).path.parents[1] / "pin.json"
    for broken in (b"", b"{}", b'{"reference": "a", "digests": {}}', b"[" * 100_000):
        pin.write_bytes(broken)
        assert fetched(text, tmp_path) == MODEL


def test_pin_survives_a_kill_while_the_file_is_replaced(server: StandIn, tmp_path: Path) -> None:
    server.pages["/door.onnx"] = MODEL
    text = f"{server.address}/door.onnx"
    place = kept.local(text, tmp_path).path.parents[1]
    left = place.with_name(f".{place.name}-killed")
    left.mkdir()
    place.rename(left / "old")
    server.pages["/door.onnx"] = b"another model"
    assert fetched(text, tmp_path) == MODEL
    assert not left.exists()


def test_several_processes_fetch_a_reference_once(server: StandIn, tmp_path: Path) -> None:
    server.pages["/door.onnx"] = MODEL * 100
    threads = [threading.Thread(target=fetched, args=(f"{server.address}/door.onnx", tmp_path)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.paths() == ["/door.onnx"]


# -- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "kind"),
    [
        ((404, {}, b""), NotFound),
        ((403, {}, b""), Unauthenticated),
        ((500, {}, b""), Refused),
        ((206, {}, MODEL), Refused),
        ((200, {}, b""), Refused),
        ((200, {}, b"<!DOCTYPE html><title>Log in</title>"), Refused),
        ((200, {"Content-Length": "20000"}, MODEL), DaemonUnavailable),
        ((302, {"Location": "file:///etc/passwd"}, b""), EdgedError),
        ((302, {"Location": "http://elsewhere.invalid/x"}, b""), Refused),
        ((200, {"Content-Length": "1000000000000000"}, b""), OutOfSpace),
    ],
)
def test_bad_answer_is_one_line_and_leaves_nothing(
    server: StandIn, tmp_path: Path, page: Page, kind: type[EdgedError]
) -> None:
    server.pages["/door.onnx"] = page
    with pytest.raises(kind) as found:
        kept.local(f"{server.address}/door.onnx?key=secret", tmp_path)
    assert "secret" not in str(found.value)
    assert not left_behind(tmp_path)


def test_host_that_does_not_answer(tmp_path: Path) -> None:
    with pytest.raises(DaemonUnavailable, match="cannot be reached"):
        kept.local("http://127.0.0.1:9/door.onnx", tmp_path)


def test_server_that_never_ends_its_headers(server: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edged.references.transfer._ANSWER_S", 0.5)
    server.pages["/door.onnx"] = (200, {"X": "x\r\n" + "Y: y\r\n" * 10}, MODEL)
    server.slow = True
    with pytest.raises(DaemonUnavailable, match="does not answer within"):
        kept.local(f"{server.address}/door.onnx", tmp_path)


def test_full_disk_is_found_before_the_download(
    server: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.pages["/door.onnx"] = MODEL
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(OutOfSpace):
        kept.local(f"{server.address}/door.onnx", tmp_path)


def test_state_that_cannot_be_written(server: StandIn, tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    with pytest.raises(Refused):
        kept.local(f"{server.address}/door.onnx", tmp_path / "state")
    assert not server.asked


# -- Hugging Face ----------------------------------------------------------------------------------------------------


def test_hugging_face_brings_what_belongs_to_the_model(
    server: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = "/owner/name/resolve/v1.0/"
    server.pages |= {f"{base}onnx/model.onnx": MODEL, f"{base}onnx/model.onnx_data": b"weights"}
    server.pages[f"{base}config.json"] = b"{}"
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    local = kept.local("hf://owner/name/onnx/model.onnx@v1.0", tmp_path)
    assert local.path.read_bytes() == MODEL
    assert local.path.with_name("model.onnx_data").read_bytes() == b"weights"
    assert (local.path.parents[1] / "config.json").exists()
    assert {headers["Authorization"] for _, headers in server.asked} == {"Bearer hf_secret"}


@pytest.mark.parametrize("token", ["hf_se\ncret", "hf_secré"])
def test_token_that_cannot_be_sent_is_not_shown(
    server: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(ConfigError) as found:
        kept.local("hf://owner/name/a.onnx", tmp_path)
    assert "hf_se" not in str(found.value)


def test_token_is_not_sent_without_encryption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with pytest.raises(Refused, match="is not https"):
        kept.local(f"hf://owner/name/a.onnx#sha256={DIGEST}", tmp_path)


def test_token_is_not_sent_to_another_host(server: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = f"http://localhost:{server.server_port}/cdn"
    server.pages |= {"/owner/name/resolve/main/a.onnx": (302, {"Location": there}, b""), "/cdn": MODEL}
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert fetched("hf://owner/name/a.onnx", tmp_path) == MODEL
    sent = next(headers for path, headers in server.asked if path == "/cdn")
    assert "Authorization" not in sent


# -- registries of the Open Container Initiative ---------------------------------------------------------------------


def manifest(**titles: bytes) -> bytes:
    layers = [
        {
            "digest": f"sha256:{hashlib.sha256(data).hexdigest()}",
            "annotations": {"org.opencontainers.image.title": title.replace("_dot_", ".")},
        }
        for title, data in titles.items()
    ]
    return json.dumps({"schemaVersion": 2, "layers": layers}).encode()


def offer(server: StandIn, text: bytes, tag: str = "v1") -> str:
    server.pages |= {f"/v2/a/b/manifests/{tag}": text, f"/v2/a/b/blobs/sha256:{DIGEST}": MODEL}
    return f"oci://127.0.0.1:{server.server_port}/a/b"


def test_artefact_is_fetched_by_tag_and_by_digest(server: StandIn, tmp_path: Path) -> None:
    text = manifest(readme_dot_md=MODEL, door_dot_onnx=MODEL)
    digest = f"sha256:{hashlib.sha256(text).hexdigest()}"
    reference = offer(server, text)
    offer(server, text, digest)
    local = kept.local(f"{reference}:v1", tmp_path)
    assert (local.path.name, local.path.read_bytes()) == ("door.onnx", MODEL)
    assert fetched(f"{reference}@{digest}", tmp_path) == MODEL
    offer(server, manifest(other_dot_onnx=MODEL), digest.replace(digest[-1], "x"))
    with pytest.raises(Refused, match="manifest does not have the digest"):
        kept.local(f"{reference}@{digest.replace(digest[-1], 'x')}", tmp_path)


def test_artefact_with_a_login(server: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    login = base64.b64encode(b"user:password").decode()
    host = f"127.0.0.1:{server.server_port}"
    (tmp_path / "config.json").write_text(json.dumps({"auths": {host: {"auth": login}}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    reference = offer(server, manifest(door_dot_onnx=MODEL))
    server.pages["/token"] = json.dumps({"token": "t0k"}).encode()
    server.token = "t0k"
    assert fetched(f"{reference}:v1", tmp_path) == MODEL
    path, headers = next(each for each in server.asked if each[0].startswith("/token"))
    assert path == "/token?service=box&scope=repository%3Aa%2Fb%3Apull"
    assert headers["Authorization"] == f"Basic {login}"


def test_token_that_expires_between_two_layers_is_renewed(
    server: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readme = b"read me"
    reference = offer(server, manifest(door_dot_onnx=MODEL, readme_dot_md=readme))
    server.pages |= {
        f"/v2/a/b/blobs/sha256:{hashlib.sha256(readme).hexdigest()}": readme,
        "/token": json.dumps({"token": "t0k"}).encode(),
    }
    server.token, save = "t0k", transfer.save

    def save_and_expire(location: Location, *more: Any) -> None:
        save(location, *more)
        if location.digest == DIGEST:
            server.token = "new"
            server.pages["/token"] = json.dumps({"token": "new"}).encode()

    monkeypatch.setattr(transfer, "save", save_and_expire)
    local = kept.local(f"{reference}:v1", tmp_path)
    assert local.path.read_bytes() == MODEL
    assert (local.path.parent / "readme.md").read_bytes() == readme


def test_artefact_that_changes_while_it_is_fetched_is_refused(
    server: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = offer(server, manifest(door_dot_onnx=MODEL, readme_dot_md=b"read me"))
    server.pages["/token"] = json.dumps({"token": "t0k"}).encode()
    server.token, save = "t0k", transfer.save

    def save_and_change(*arguments: Any) -> None:
        save(*arguments)
        offer(server, manifest(door_dot_onnx=MODEL))
        server.token = "new"
        server.pages["/token"] = json.dumps({"token": "new"}).encode()

    monkeypatch.setattr(transfer, "save", save_and_change)
    with pytest.raises(Refused, match="changed"):
        kept.local(f"{reference}:v1", tmp_path)
    assert not left_behind(tmp_path)


def test_artefact_without_the_login_that_it_needs(
    server: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    server.token = "t0k"
    server.pages["/token"] = b"{}"
    with pytest.raises(Unauthenticated):
        kept.local(f"{offer(server, b'')}:v1", tmp_path)


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", manifest(), manifest(a_dot_onnx=MODEL, b_dot_onnx=MODEL), manifest(**{"../door_dot_onnx": MODEL})],
)
def test_artefact_without_one_model_is_refused(server: StandIn, tmp_path: Path, text: bytes) -> None:
    with pytest.raises(Refused):
        kept.local(f"{offer(server, text)}:v1", tmp_path)
    assert not left_behind(tmp_path)


def test_layer_that_is_not_the_announced_one_is_refused(server: StandIn, tmp_path: Path) -> None:
    reference = offer(server, manifest(door_dot_onnx=MODEL))
    server.pages[f"/v2/a/b/blobs/sha256:{DIGEST}"] = b"altered"
    with pytest.raises(Refused, match="does not have the SHA-256 that the source announces"):
        kept.local(f"{reference}:v1", tmp_path)


# -- Roboflow --------------------------------------------------------------------------------------------------------


def roboflow(server: StandIn, monkeypatch: pytest.MonkeyPatch, **ort: object) -> None:
    steps = {"resize": {"format": "Fit (grey edges) in"}, "contrast": {"enabled": True, "type": "Contrast Stretching"}}
    described = {"model": f"{server.address}/weights", "environment": f"{server.address}/environment", **ort}
    server.pages |= {
        "/ort/doors/3": json.dumps({"ort": {"classes": ["door", "gate"], **described}}).encode(),
        "/environment": json.dumps({"PREPROCESSING": json.dumps(steps)}).encode(),
        "/weights": MODEL,
    }
    monkeypatch.setenv("ROBOFLOW_API_HOST", server.address)
    monkeypatch.setenv("ROBOFLOW_API_KEY", "rf_secret")


def test_roboflow_gives_the_model_with_classes_and_preprocessing(
    server: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roboflow(server, monkeypatch)
    local = kept.local("roboflow://workspace/doors/3", tmp_path)
    assert (local.path.name, local.path.read_bytes()) == ("doors-3.onnx", MODEL)
    assert local.pin is not None
    assert local.pin.settings == {"names": "door,gate", "preprocess.fit": "letterbox", "preprocess.pad": "114"}
    assert local.pin.notes == ["Roboflow applies contrast to each picture; edged does not"]
    assert "api_key=rf_secret" in server.paths()[0]
    assert "rf_secret" not in next(tmp_path.rglob("pin.json")).read_text()


def test_roboflow_key_from_a_file(server: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roboflow(server, monkeypatch)
    (tmp_path / "key").write_text("from_file\n")
    monkeypatch.setenv("ROBOFLOW_API_KEY", "")
    with pytest.raises(ConfigError, match="set ROBOFLOW_API_KEY"):
        kept.local("roboflow://workspace/doors/3", tmp_path)
    monkeypatch.setenv("ROBOFLOW_API_KEY_FILE", str(tmp_path / "key"))
    assert fetched("roboflow://workspace/doors/3", tmp_path) == MODEL
    assert "api_key=from_file" in server.paths()[0]


@pytest.mark.parametrize("model", [None, 5, "file:///etc/passwd", "http://elsewhere.invalid/x"])
def test_roboflow_answer_without_a_usable_model(
    server: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: object
) -> None:
    roboflow(server, monkeypatch, model=model)
    with pytest.raises(NotFound, match="has no ONNX model"):
        kept.local("roboflow://workspace/doors/3", tmp_path)


@pytest.mark.parametrize("page", [b"<html>", b"[]", b"{}", b'{"ort": 1}', (401, {}, b""), b"x" * (5 << 20)])
def test_roboflow_answer_of_another_kind(
    server: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: Page
) -> None:
    roboflow(server, monkeypatch)
    server.pages["/ort/doors/3"] = page
    with pytest.raises(EdgedError) as found:
        kept.local("roboflow://workspace/doors/3", tmp_path)
    assert "rf_secret" not in str(found.value)


# -- object stores ---------------------------------------------------------------------------------------------------


def test_object_is_read_with_the_credentials_of_the_store(
    server: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore")
    server.pages["/bucket/models/door.onnx"] = (
        200,
        {"ETag": '"1"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"},
        MODEL,
    )
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.address)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3_secret")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert fetched("s3://bucket/models/door.onnx", tmp_path) == MODEL
    _, headers = server.asked[0]
    assert "key/" in headers["authorization"]
    with pytest.raises(NotFound):
        kept.local("s3://bucket/models/gate.onnx", tmp_path)


def test_object_store_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore", None)
    with pytest.raises(EdgedError, match=r"needs the package obstore; install it: .*obstore"):
        kept.local("s3://bucket/door.onnx", tmp_path)
