"""Galleries in a real daemon: names in every interface, other versions of a model, restarts, roles."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from edged.client import Client
from edged.client.credentials import Credentials
from edged.errors import InvalidInput, NotFound
from edged.vision.content import Embedding
from tests.integration import onnx_files
from tests.integration.daemon import Daemon, wait_for
from tests.integration.onnx_files import write

SIDE = 112
# Colours of pictures as blue, green, red; their embeddings are far apart.
RED, GREEN, BLUE = (0, 0, 255), (0, 255, 0), (255, 0, 0)
ORANGE = (0, 128, 255)  # similar to red
GRAPH = """(float[n,3,112,112] data) => (float[n,12] embedding) {
    pooled = AveragePool<kernel_shape = [56, 56], strides = [56, 56]>(data)
    embedding = Flatten(pooled)
}"""
# As GRAPH, but with other vectors.
NEWER = GRAPH.replace("embedding = Flatten(pooled)", "rows = Flatten(pooled) embedding = Neg(rows)")


def jpeg(colour: tuple[int, int, int], noise: int = 0) -> bytes:
    """A picture of one colour with a little noise."""
    pixels = np.full((SIDE, SIDE, 3), colour, np.int16)
    pixels += np.random.default_rng(noise).integers(-9, 10, pixels.shape, np.int16)
    return cv2.imencode(".png", np.clip(pixels, 0, 255).astype(np.uint8))[1].tobytes()


def seen(client: Client, colour: tuple[int, int, int], model: str = "faces", **more: float) -> Embedding:
    found = client.infer(model, jpeg(colour, 9), **more).content
    assert isinstance(found, Embedding)
    return found


@pytest.fixture(scope="module")
def box() -> Iterator[Daemon]:
    daemon = Daemon(config='[http]\nlisten = "localhost:0"', endpoints=1, builds=False)
    with daemon, daemon.client() as client:
        onnx_files.identity(daemon.models / "plain.onnx", "FP32")
        for name in ("faces", "other", "changing"):
            client.add_model(name, write(daemon.home / "faces.onnx", GRAPH))
            daemon.ready(name)
        daemon.ready("plain")
        yield daemon


@pytest.fixture
def client(box: Daemon) -> Iterator[Client]:
    with box.client() as client:
        for each in client.galleries():
            client.remove_from_gallery(each.model, everything=True)
        yield client


def test_gallery_names_embeddings_in_every_interface(box: Daemon, client: Client, tmp_path: Path) -> None:
    assert client.models()[0].notes == ()
    before = seen(client, RED)
    assert (before.label, before.similarity) == ("", 0)
    client.add_to_gallery("faces", "Rosa", [jpeg(RED, 1), jpeg(RED, 2)])
    info = client.add_to_gallery("faces", "Verde", [jpeg(GREEN)])
    assert (info.names, info.problem, info.bytes) == ({"Rosa": 2, "Verde": 1}, "", 3 * 12 * 4)
    red = seen(client, RED)
    assert red.label == "Rosa"
    assert red.similarity > 0.9
    blue = seen(client, BLUE)
    assert (blue.label, blue.similarity < 0.5) == ("", True)
    orange = seen(client, ORANGE)
    assert (orange.label, orange.similarity) == ("Rosa", pytest.approx(0.816, abs=0.02))
    assert seen(client, ORANGE, score=0.9).label == ""
    assert seen(client, RED, "other").label == ""
    with client.stream("faces", [jpeg(GREEN, 5)], lossless=True) as results:
        (result,) = results
    assert isinstance(result.content, Embedding)
    assert result.content.label == "Verde"
    request = urllib.request.Request(f"{box.addresses[2]}/edged/v1/detect/faces", jpeg(RED), method="POST")
    request.add_header("Content-Type", "image/png")
    with urllib.request.urlopen(request) as answer:
        found = json.load(answer)
    assert (found["label"], len(found["embedding"])) == ("Rosa", 12)


def test_gallery_region_of_a_picture_is_embedded(client: Client) -> None:
    both = cv2.imencode(".png", np.hstack([np.full((64, 64, 3), each, np.uint8) for each in (RED, GREEN)]))[1].tobytes()
    client.add_to_gallery("faces", "Verde", [both], region=(64, 0, 0, 0))
    assert seen(client, GREEN).label == "Verde"
    with pytest.raises(InvalidInput, match="picture 1"):
        client.add_to_gallery("faces", "Verde", [both], region=(500, 0, 9, 9))
    with pytest.raises(InvalidInput):
        client.add_to_gallery("faces", "Verde", [both], region=(-1, 0, 9, 9))


def test_gallery_takes_large_pictures(client: Client) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (900, 900, 3), np.uint8)
    noise[:, :, 2] = 255
    large = cv2.imencode(".png", noise)[1].tobytes()
    assert len(large) > 1 << 20
    assert client.add_to_gallery("faces", "Rosa", [large] * 3).names == {"Rosa": 3}


def test_gallery_add_with_one_bad_picture_adds_none(client: Client) -> None:
    with pytest.raises(InvalidInput, match="picture 2"):
        client.add_to_gallery("faces", "Rosa", [jpeg(RED), b"no picture"])
    assert client.galleries() == []


def test_gallery_invalid_requests_are_refused(client: Client) -> None:
    with pytest.raises(InvalidInput, match="1 to 32"):
        client.add_to_gallery("faces", "Rosa", [])
    with pytest.raises(InvalidInput, match="1 to 32"):
        client.add_to_gallery("faces", "Rosa", [b"x"] * 33)
    with pytest.raises(InvalidInput, match="invalid name"):
        client.add_to_gallery("faces", "a\nb", [jpeg(RED)])
    with pytest.raises(NotFound):
        client.add_to_gallery("missing", "Rosa", [jpeg(RED)])
    with pytest.raises(InvalidInput, match="takes no pictures"):
        client.add_to_gallery("plain", "Rosa", [jpeg(RED)])
    with pytest.raises(NotFound):
        client.remove_from_gallery("faces", "Rosa")
    with pytest.raises(InvalidInput):
        client.remove_from_gallery("faces")
    with pytest.raises(InvalidInput):
        client.remove_from_gallery("faces", "Rosa", everything=True)


def test_gallery_of_another_version_or_preprocessing_is_not_used_and_says_so(box: Daemon, client: Client) -> None:
    def notes() -> tuple[str, ...]:
        return next(each.notes for each in client.models() if each.name == "changing")

    client.add_to_gallery("changing", "Rosa", [jpeg(RED)])
    client.set_model("changing", {"thresholds.score": "0.7", "names": ""})
    assert notes() == ()
    wait_for("the new threshold is used", lambda: seen(client, RED, "changing").label == "Rosa")
    client.set_model("changing", {"preprocess.color": "bgr"})
    wait_for("the note is shown", lambda: any("gallery is not used" in note for note in notes()))
    wait_for("the name is gone", lambda: seen(client, RED, "changing").label == "")
    client.set_model("changing", {"preprocess.color": ""})
    wait_for("the name is back", lambda: seen(client, RED, "changing").label == "Rosa")
    client.add_model("changing", write(box.home / "newer.onnx", NEWER), replace=True)
    wait_for("the name of the old version is gone", lambda: seen(client, RED, "changing").label == "")
    (info,) = client.galleries()
    assert "another version" in info.problem
    assert any("add its pictures again" in note for note in notes())
    info = client.add_to_gallery("changing", "Verde", [jpeg(GREEN)])
    assert (info.names, info.problem, notes()) == ({"Verde": 1}, "", ())
    assert seen(client, GREEN, "changing").label == "Verde"


def test_gallery_survives_a_restart_and_is_deleted_with_its_model() -> None:
    with Daemon(builds=False) as daemon:
        with daemon.client() as client:
            client.add_model("faces", write(daemon.home / "faces.onnx", GRAPH))
            daemon.ready("faces")
            client.add_to_gallery("faces", "Rosa", [jpeg(RED)])
        daemon.kill()
        daemon.start()
        with daemon.client() as client:
            daemon.ready("faces")
            assert seen(client, RED).label == "Rosa"
            client.remove_model("faces")
            (info,) = client.galleries()
            assert "no model" in info.problem
            client.add_model("faces", daemon.home / "faces.onnx")
            daemon.ready("faces")
            assert seen(client, RED).label == "Rosa"
            client.remove_model("faces", delete=True)
            assert client.galleries() == []
            assert not list((daemon.state / "gallery").iterdir())


def test_gallery_of_the_default_version_is_the_same_under_both_names(box: Daemon, client: Client) -> None:
    version = box.models / "versioned" / "1"
    version.mkdir(parents=True)
    write(version / "model.onnx", GRAPH)
    box.ready("versioned")
    assert client.add_to_gallery("versioned:1", "Rosa", [jpeg(RED)]).model == "versioned"
    assert seen(client, RED, "versioned").label == "Rosa"
    assert client.remove_from_gallery("versioned:1", "Rosa").model == "versioned"
    assert client.galleries() == []


def test_gallery_command_line(box: Daemon, client: Client, tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = box.command("gallery", *arguments, "--target", box.unix)
        return subprocess.run(command, capture_output=True, text=True, check=False)

    for number in (1, 2):
        (tmp_path / f"{number}.png").write_bytes(jpeg(RED, number))
    files = [str(tmp_path / f"{number}.png") for number in (1, 2)]
    assert "no names yet" in run("list").stdout
    added = run("add", "faces", "Rosa", *files, "--region", "0,0,100,100")
    assert "added 2 pictures of Rosa" in added.stdout
    assert "Rosa (2)" in run("list").stdout
    assert json.loads(run("list", "faces", "--json").stdout)[0]["names"] == {"Rosa": 2}
    assert json.loads(run("list", "other", "--json").stdout) == []
    assert run("remove", "faces").returncode == 2
    assert "removed Rosa" in run("remove", "faces", "Rosa").stdout
    assert client.galleries() == []
    assert run("add", "faces", "Rosa", *files).returncode == 0
    assert "removed all names" in run("remove", "faces", "--all").stdout


def test_gallery_changes_need_the_operators_role_and_are_audited(box: Daemon, client: Client) -> None:
    with Client(box.tcp, credentials=Credentials(token=box.token("reader", "read"))) as reader:
        client.add_to_gallery("faces", "Rosa", [jpeg(RED)])
        assert reader.galleries()[0].names == {"Rosa": 1}
    lines = [json.loads(each) for each in (box.state / "audit" / "audit.jsonl").read_text().splitlines()]
    added = [each for each in lines if each["method"].endswith("AddToGallery") and each["outcome"] == "OK"]
    assert added[-1]["about"] == {"model": "faces", "name": "Rosa"}
