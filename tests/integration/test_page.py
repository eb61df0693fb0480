"""The page of a real daemon: files, sign-in, events, pictures, trying and adding a model, and refusals."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edged.api.page.app import COOKIE
from edged.client import Client
from edged.errors import ErrorCode
from edged.shapes import MODEL_PATH, Scene
from edged.vision.image import decode
from tests.certificates import Authority
from tests.integration import web
from tests.integration.daemon import wait_for
from tests.integration.page_box import PageBox

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def box() -> Iterator[PageBox]:
    with PageBox() as found:
        yield found
        assert found.stop(30) == 0


@pytest.fixture(scope="module")
def client(box: PageBox) -> Iterator[Client]:
    with box.client() as found:
        yield found


@pytest.fixture(scope="module")
def operator(box: PageBox) -> str:
    return f"{COOKIE}={box.token('operator', 'read', 'operate')}"


def told(answer: web.Told) -> Any:
    status, _, body = answer
    assert status == 200, body
    return json.loads(body)


def events(box: PageBox, rounds: int, **headers: str) -> dict[str, Any]:
    """Return the newest parts of the page after `rounds` rounds of events."""
    parts: dict[str, Any] = {}
    with contextlib.closing(web.connection(box.url)) as connection:
        connection.request("GET", "/events", headers=headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        name = ""
        while rounds:
            line = answer.readline().decode().strip()
            kind, _, value = line.partition(": ")
            if kind == "event":
                name = value
            elif kind == "data":
                parts[name] = json.loads(value)
            elif not line and name == "log":
                rounds -= 1
                name = ""
    return parts


def test_page_files_have_a_strict_policy_and_an_etag(box: PageBox) -> None:
    for path, kind in (("/", "text/html"), ("/page.js", "text/javascript"), ("/page.css", "text/css")):
        status, headers, body = box.ask("GET", path)
        assert (status, headers["content-type"].partition(";")[0]) == (200, kind)
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert int(headers["content-length"]) == len(body)
        assert box.ask("GET", path, if_none_match=headers["etag"])[0] == 304
    assert box.ask("HEAD", "/")[2] == b""


def test_page_events_have_every_part(box: PageBox) -> None:
    box.streaming()
    parts = events(box, 1)
    assert set(parts) == {"summary", "cameras", "models", "alarms", "device", "log"}
    assert parts["summary"]["level"] in ("good", "busy")
    assert [(each["name"], each["state"]) for each in parts["cameras"]] == [("hall", "streaming"), ("off", "off")]
    assert parts["models"][0]["serves"].startswith("ONNX Runtime")
    assert any("shapes was read" in line["text"] for line in parts["log"])


def test_page_serves_stills_and_video(box: PageBox) -> None:
    found = box.streaming()
    status, headers, still = box.ask("GET", "/cameras/hall/still?fps=20&width=320")
    assert (status, headers["content-type"]) == (200, "image/jpeg")
    assert decode(still).shape == (320 * found.height // found.width, 320, 3)
    with contextlib.closing(web.connection(box.url)) as connection:
        connection.request("GET", "/cameras/hall/video?fps=20")
        answer = connection.getresponse()
        assert answer.headers.get_content_type() == "multipart/x-mixed-replace"
        shapes = []
        # The first pictures may be those that the camera's process made for the still.
        while shapes.count((found.height, found.width, 3)) < 3 and len(shapes) < 40:
            assert answer.readline() == b"--edged-picture\r\n"
            assert answer.readline() == b"content-type: image/jpeg\r\n"
            size = int(answer.readline().split()[1])
            assert answer.readline() == b"\r\n"
            shapes.append(decode(answer.read(size)).shape)
            assert answer.readline() == b"\r\n"
        assert shapes[-1] == (found.height, found.width, 3)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/cameras/nothing/still", 404),
        ("/cameras/off/still", 503),
        ("/cameras/off/video", 503),
        ("/cameras/hall/still?fps=-1", 400),
        ("/cameras/hall/still?width=1e9", 400),
        ("/page.py", 404),
        ("/../edged.toml", 404),
    ],
)
def test_page_wrong_path_is_refused_with_one_line(box: PageBox, path: str, status: int) -> None:
    found, _, body = box.ask("GET", path)
    assert found == status
    assert "\n" not in json.loads(body)["error"]


def test_commands_need_the_role_and_the_page_of_this_origin(box: PageBox, operator: str) -> None:
    command = json.dumps({"name": "nothing"}).encode()
    status, _, body = box.ask("POST", "/call/RemoveCamera", command)
    assert (status, json.loads(body)["code"]) == (403, ErrorCode.PERMISSION_DENIED.value)
    status, _, body = box.ask("POST", "/call/RemoveCamera", command, cookie=operator)
    assert (status, json.loads(body)["code"]) == (404, ErrorCode.NOT_FOUND.value)
    assert box.ask("POST", "/call/RemoveCamera", command, cookie=operator, origin="http://elsewhere")[0] == 403
    assert box.ask("POST", "/call/RemoveCamera", command, cookie=operator, host="elsewhere")[0] == 403
    assert box.ask("POST", "/call/Evict", b"{}", cookie=operator)[0] == 404
    assert box.ask("POST", "/call/AddCamera", b'{"name": 7', cookie=operator)[0] == 400
    assert box.ask("PUT", "/call/AddCamera", b"{}", cookie=operator)[0] == 405


def test_report_needs_the_role_operate_and_is_not_stored(box: PageBox, operator: str, client: Client) -> None:
    engine = next(each for each in client.engines("shapes") if each.is_reference)
    path = f"/engines/{engine.key}/report"
    status, _, body = box.ask("GET", path)
    assert (status, json.loads(body)["code"]) == (403, ErrorCode.PERMISSION_DENIED.value)
    assert box.ask("GET", f"/engines/{'f' * 64}/report", cookie=operator)[0] == 404
    assert box.ask("GET", f"/engines/{engine.key[:3]}/report", cookie=operator)[0] == 400
    status, headers, body = box.ask("GET", path, cookie=operator)
    assert (status, headers["cache-control"]) == (200, "no-store")
    assert f"Engine {engine.key[:12]} of shapes" in body.decode()


def test_sign_in_sets_an_http_only_cookie(box: PageBox) -> None:
    token = box.token("reader", "read")
    status, headers, _ = box.ask("POST", "/session", json.dumps({"token": token}).encode())
    cookie = headers["set-cookie"]
    assert status == 200
    assert {"HttpOnly", "SameSite=Strict"} <= set(cookie.split("; "))
    who = told(box.ask("GET", "/session", cookie=cookie.partition(";")[0]))
    assert (who["name"], "operate" in who["roles"]) == ("token reader", False)
    assert box.ask("POST", "/session", b'{"token": "edged_wrong"}')[0] == 401
    assert "Max-Age=0" in box.ask("POST", "/session", b'{"token": ""}')[1]["set-cookie"]
    assert told(box.ask("GET", "/session", cookie=f"{COOKIE}=edged_wrong"))["problem"]


def test_model_is_tried_on_a_picture_and_added(box: PageBox, client: Client, operator: str) -> None:
    model = MODEL_PATH.read_bytes()
    scene = Scene(11).frame(0)[0]
    picture = cv2.imencode(".jpg", scene)[1].tobytes()
    tried = told(box.ask("POST", f"/try/doors?picture={len(picture)}", model + picture, cookie=operator))
    assert (tried["problem"], tried["width"], tried["height"], tried["picture"]) == ("", *scene.shape[1::-1], "")
    strong = [each for each in tried["detections"] if each["score"] >= tried["score"]]
    expected = client.infer("shapes", picture)
    assert sorted(each["label"] for each in strong) == sorted(each.label for each in expected.detections)
    boxes = np.array([[each["x1"], each["y1"], each["x2"], each["y2"]] for each in strong])
    np.testing.assert_allclose(boxes, expected.boxes().boxes, atol=2.0)

    drawn = told(box.ask("POST", "/try/doors", model, cookie=operator))
    assert decode(base64.b64decode(drawn["picture"])).shape[:2] == (drawn["height"], drawn["width"])
    assert "doors" not in {each.name for each in client.models()}  # nothing is kept

    added = told(box.ask("POST", "/models/doors?thresholds.score=0.4", model, cookie=operator))
    assert added["name"] == "doors"
    found = next(each for each in client.models() if each.name == "doors")
    assert found.settings == {"thresholds.score": "0.4"}
    assert box.ask("POST", "/models/doors", model, cookie=operator)[0] == 409
    told(box.ask("POST", "/call/RemoveModel", b'{"name": "doors"}', cookie=operator))
    assert "doors" not in {each.name for each in client.models()}


def test_try_invalid_model_returns_a_problem(box: PageBox, operator: str) -> None:
    tried = told(box.ask("POST", "/try/doors", os.urandom(5000), cookie=operator))
    assert tried["problem"]
    assert tried["stage"] in ("file", "parse")
    assert box.ask("POST", "/models/doors", os.urandom(5000), cookie=operator)[0] == 400
    assert box.ask("POST", "/try/doors?picture=99999", b"short", cookie=operator)[0] == 400
    assert box.ask("POST", "/try/bad%2Fname", b"short", cookie=operator)[0] == 400
    bad_picture = told(box.ask("POST", "/try/doors", MODEL_PATH.read_bytes(), cookie=operator))
    assert not bad_picture["problem"]
    assert box.ask("POST", "/try/doors?picture=4", MODEL_PATH.read_bytes() + b"1234", cookie=operator)[0] == 400


def test_camera_is_added_changed_and_removed(box: PageBox, client: Client, operator: str) -> None:
    add = {"name": "gate", "settings": {"source": "scene:9", "model": "shapes", "enabled": "false"}}
    told(box.ask("POST", "/call/AddCamera", json.dumps(add).encode(), cookie=operator))
    zone = {"name": "gate", "settings": {"zones.door.points": "[[0,0],[1,0],[1,1]]"}}
    told(box.ask("POST", "/call/SetCamera", json.dumps(zone).encode(), cookie=operator))
    found = next(each for each in client.cameras() if each.camera == "gate")
    assert set(found.zones) == {"door"}
    assert box.ask("POST", "/call/SetCamera", b'{"name": "hall"}', cookie=operator)[0] == 400  # not changeable
    told(box.ask("POST", "/call/RemoveCamera", b'{"name": "gate"}', cookie=operator))
    assert "gate" not in {each.camera for each in client.cameras()}


def test_page_closed_connections_leave_no_descriptors(box: PageBox, operator: str) -> None:
    box.streaming()
    host, _, port = box.url.partition("//")[2].rpartition(":")
    before = len(os.listdir(f"/proc/{box.pid}/fd"))
    head = f"HTTP/1.1\r\nHost: {host}:{port}\r\nOrigin: {box.url}\r\nCookie: {operator}\r\n"
    asked = [f"GET {path} {head}\r\n" for path in ("/events", "/cameras/hall/video", "/cameras/hall/still")]
    asked += [f"POST /{verb}/doors {head}Content-Length: 1000000\r\n\r\nstart" for verb in ("models", "try")]
    for _ in range(5):
        open_ = [socket.create_connection((host, int(port)), 10) for _ in asked]
        for each, text in zip(open_, asked, strict=True):
            each.sendall(text.encode())
        time.sleep(0.3)
        for each in open_:
            each.close()
    wait_for("the files are closed", lambda: len(os.listdir(f"/proc/{box.pid}/fd")) <= before + 1, 20)
    wait_for("the unfinished models are removed", lambda: not list((box.state / "models").glob(".adding-*")), 20)
    assert events(box, 1)["summary"]


def test_page_on_a_public_address_has_tls_and_needs_a_token(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("localhost", "DNS:localhost,IP:127.0.0.1")
    tls = f'[tls]\ncertificate = "{certificate}"\nkey = "{key}"\n'
    with PageBox(more=tls) as box:
        assert box.url.startswith("https://")
        context = ssl.create_default_context(cafile=authority.ca)
        assert web.ask(box.url, "GET", "/", context=context)[0] == 200
        assert web.ask(box.url, "GET", "/cameras/hall/still", context=context)[0] == 401
        assert web.ask(box.url, "GET", "/events", context=context)[0] == 401
        cookie = {"cookie": f"{COOKIE}={box.token('reader', 'read')}"}
        assert told(web.ask(box.url, "GET", "/session", headers=cookie, context=context))["name"] == "token reader"
