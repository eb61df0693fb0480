"""Samples that a user adds with a model: stored with it, used to verify its engines, and refused if broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import cv2
import grpc
import pytest

from edged.api_types import Verdict
from edged.errors import EdgedError
from edged.proto import operations_pb2 as pb
from edged.shapes import MODEL_PATH, Scene
from tests import models
from tests.integration import onnx_files
from tests.integration.daemon import Daemon, wait_for
from tests.unit.test_user_samples import choosy, npz


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with Daemon() as daemon:
        yield daemon


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder with three scenes for the embedded detector."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for seed, name in enumerate(("hall.jpg", "door.png", "yard.jpeg")):
        cv2.imwrite(str(folder / name), Scene(seed).frame(0)[0])
    return folder


def edged_command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "edged", *words], capture_output=True, text=True, timeout=90)


def leftovers(models: Path, name: str) -> list[str]:
    return [path.name for path in models.iterdir() if name in path.name or path.name.startswith(".")]


def verdicts(daemon: Daemon, model: str) -> list[Verdict]:
    """Wait until every engine of a model has a verdict; return the verdicts."""
    with daemon.client() as client:

        def found() -> list[Verdict]:
            engines = client.engines(model)
            known = [engine.verdict for engine in engines if engine.verdict is not None]
            return known if len(known) == len(engines) else []

        return wait_for(f"engines of {model} have verdicts", found, 90.0)


def golden_files(daemon: Daemon) -> set[str]:
    return {path.name for path in (daemon.cache / "golden").glob("*.golden")}


@pytest.mark.long
def test_engines_are_verified_with_uploaded_samples(daemon: Daemon, pictures: Path) -> None:
    with daemon.client() as client:
        client.add_model("sampled", MODEL_PATH, samples=pictures)
    stored = daemon.models / "sampled" / "samples"
    assert {path.name: path.read_bytes() for path in stored.iterdir()} == {
        path.name: path.read_bytes() for path in pictures.iterdir()
    }
    found = verdicts(daemon, "sampled")
    assert any(verdict.accepted for verdict in found)  # an engine of lower precision may be rejected
    for verdict in found:
        assert verdict.figures["boxes"] == 1.0
        assert "skipped_samples" not in verdict.figures
    assert len(golden_files(daemon)) == 1


@pytest.mark.long
def test_model_that_accepts_few_values_only_serves_with_uploaded_tensors(daemon: Daemon, tmp_path: Path) -> None:
    model, ask = models.save(choosy(50, 70), tmp_path / "choosy.onnx"), npz(tmp_path / "ask.npz", x=[50, 70])
    with daemon.client() as client:
        with pytest.raises(EdgedError, match=r"none of its test inputs \(golden inputs\): .*--samples INPUTS\.npz"):
            client.add_model("choosy", model)
        before = golden_files(daemon)
        client.add_model("choosy", model, samples=ask, settings={"backends": "onnxruntime"})
    for verdict in verdicts(daemon, "choosy"):
        assert verdict.accepted, verdict.reason
    daemon.ready("choosy")  # requires an answer of its host
    assert len(golden_files(daemon) - before) == 1


@pytest.mark.long
def test_unreadable_sample_is_reported_and_engines_are_built(daemon: Daemon, pictures: Path) -> None:
    folder = daemon.models / "marred"
    (folder / "samples").mkdir(parents=True)
    (folder / "samples" / "hall.jpg").write_bytes((pictures / "hall.jpg").read_bytes())
    (folder / "samples" / "half.jpg").write_bytes((pictures / "hall.jpg").read_bytes()[:900])
    onnx_files.convolutions(daemon.home / "next.onnx", layers=3)
    (folder / "1").mkdir()
    (daemon.home / "next.onnx").rename(folder / "1" / "model.onnx")
    with daemon.client() as client:
        wait_for("the model is seen", lambda: any(m.name == "marred" for m in client.models()))
    for verdict in verdicts(daemon, "marred"):
        assert verdict.accepted, verdict.reason
        assert verdict.figures["skipped_samples"] == 1.0
    # After the repair of the sample, the engines are verified again, and new golden answers replace the old ones.
    before = golden_files(daemon)
    (folder / "samples" / "half.jpg").write_bytes((pictures / "door.png").read_bytes())
    with daemon.client() as client:
        wait_for(
            "every engine is verified with the repaired sample",
            lambda: all(
                engine.verdict and "skipped_samples" not in engine.verdict.figures
                for engine in client.engines("marred")
                if engine.parts["recipe.optimization"] != "none"  # the reference is not verified again
            ),
        )
    assert len(golden_files(daemon)) == len(before)
    assert golden_files(daemon) != before


def test_add_model_broken_sample_is_refused_and_leaves_nothing(daemon: Daemon, pictures: Path) -> None:
    (pictures / "broken.png").write_bytes((pictures / "door.png").read_bytes()[:2000])
    with daemon.client() as client, pytest.raises(EdgedError, match=r"broken\.png") as raised:
        client.add_model("broken", MODEL_PATH, samples=[pictures])
    assert "\n" not in str(raised.value)
    assert leftovers(daemon.models, "broken") == []


def test_models_add_samples_option_uploads_to_a_daemon(daemon: Daemon, pictures: Path) -> None:
    words = ["models", "add", "commanded", str(MODEL_PATH), "--samples", str(pictures / "hall.jpg")]
    added = edged_command(*words, "--samples", str(pictures / "door.png"), "--target", daemon.unix)
    assert added.returncode == 0, added.stderr
    stored = daemon.models / "commanded" / "samples"
    assert sorted(path.name for path in stored.iterdir()) == ["door.png", "hall.jpg"]


def test_models_add_samples_option_works_without_a_daemon(tmp_path: Path, pictures: Path) -> None:
    words = ("--samples", str(pictures), "--state", str(tmp_path / "state"))
    added = edged_command("models", "add", "local", str(MODEL_PATH), "--json", *words)
    assert added.returncode == 0, added.stderr
    assert json.loads(added.stdout)["name"] == "local"
    stored = tmp_path / "state" / "models" / "local" / "samples"
    assert sorted(path.name for path in stored.iterdir()) == ["door.png", "hall.jpg", "yard.jpeg"]
    (pictures / "hall.jpg").write_bytes(b"no picture")
    refused = edged_command("models", "add", "other", str(MODEL_PATH), *words)
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "sample hall.jpg cannot be used" in refused.stderr
    assert os.listdir(tmp_path / "state" / "models") == ["local"]


def file(path: str, content: bytes, *, sample: bool = True, size: int | None = None) -> list[pb.AddModelRequest]:
    announced = pb.ModelFile(path=path, size=len(content) if size is None else size, sample=sample)
    return [pb.AddModelRequest(file=announced), pb.AddModelRequest(chunk=content)]


MODEL = file("m.onnx", MODEL_PATH.read_bytes(), sample=False)
HOSTILE: dict[str, tuple[list[pb.AddModelRequest], str]] = {
    "a sample first": (file("a.jpg", b"x") + MODEL, "the upload begins with a sample"),
    "only samples": (file("a.jpg", b"x"), "the upload begins with a sample"),
    "out of the folder": (MODEL + file("../a.jpg", b"x"), "invalid file name"),
    "in another folder": (MODEL + file("sub/a.jpg", b"x"), "invalid sample name"),
    "no picture by its name": (MODEL + file("a.txt", b"x"), "invalid sample name"),
    "hidden": (MODEL + file(".a.jpg", b"x"), "invalid sample name"),
    "twice": (MODEL + file("a.jpg", b"x") + file("a.jpg", b"y"), "two files with the name"),
    "too large": (MODEL + file("a.jpg", b"x", size=1 << 40), "at most 16 MiB"),
    "a model too large": (file("m.onnx", b"x", sample=False, size=3 << 30), "limit of"),
    "larger than announced": (MODEL + file("a.jpg", b"xyz", size=1), "longer than announced"),
    "too many": (MODEL + [part for n in range(33) for part in file(f"{n}.jpg", b"x")], "too many samples"),
}


def upload(daemon: Daemon, name: str, parts: list[pb.AddModelRequest]) -> None:
    """Send the messages of an upload unchanged; grpc.RpcError on refusal."""
    header = pb.AddModelRequest(header=pb.ModelHeader(name=name))
    with grpc.insecure_channel(daemon.unix) as channel:
        call = channel.stream_unary("/edged.v1.Operations/AddModel", pb.AddModelRequest.SerializeToString)
        call(iter([header, *parts]), timeout=30)


@pytest.mark.parametrize("what", HOSTILE)
def test_upload_invalid_samples_are_refused_and_leave_nothing(daemon: Daemon, what: str) -> None:
    parts, words = HOSTILE[what]
    with pytest.raises(grpc.RpcError) as raised:
        upload(daemon, "hostile", parts)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert words in (raised.value.details() or "")
    wait_for("no file is left", lambda: leftovers(daemon.models, "hostile") == [])


@pytest.mark.long
def test_upload_external_data_may_have_the_name_of_a_sample(daemon: Daemon, pictures: Path, tmp_path: Path) -> None:
    """The two files do not conflict, neither during the upload nor in the repository."""
    path = onnx_files.convolutions(tmp_path / "big.onnx", external=True)
    parts = file("big.onnx", path.read_bytes(), sample=False)
    parts += file("weights.bin", (tmp_path / "weights.bin").read_bytes(), sample=False)
    parts += file("samples/hall.jpg", b"weights of another layer", sample=False)
    parts += file("hall.jpg", (pictures / "hall.jpg").read_bytes())
    upload(daemon, "meeting", parts)
    folder = daemon.models / "meeting"
    assert (folder / "1" / "samples" / "hall.jpg").read_bytes() == b"weights of another layer"
    assert (folder / "samples" / "hall.jpg").read_bytes() == (pictures / "hall.jpg").read_bytes()
