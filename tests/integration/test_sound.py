"""Models that take sound through a real daemon and engine: windows, state, recordings, the command line."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import wave
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest

from edged.client import Client, Samples
from edged.errors import InvalidInput
from edged.verification.sounds import voice
from tests import models
from tests.integration.daemon import Daemon

RATE, WINDOW, CONTEXT = 16000, 512, 64
PACKAGE = importlib.util.find_spec("silero_vad")
CLASSES = 10


def counting_voice() -> onnx.ModelProto:
    """Return a model with the tensors of Silero VAD whose score is the number of windows before, over 100, and the
    loudest sample of the context."""
    return models.parse(
        """(float[n,s] input, float[2,n,128] state, int64 sr) => (float[n,1] output, float[2,n,128] stateN) {
            one = Constant<value_float = 1.0>()
            stateN = Add(state, one)
            counted = ReduceMax<keepdims = 0>(state)
            hundred = Constant<value_float = 100.0>()
            share = Div(counted, hundred)
            starts = Constant<value_ints = [0]>()
            ends = Constant<value_ints = [64]>()
            axes = Constant<value_ints = [1]>()
            context = Slice(input, starts, ends, axes)
            loudest = ReduceMax<keepdims = 1>(context, axes)
            output = Add(loudest, share)
        }"""
    )


def tagger() -> onnx.ModelProto:
    """Return a model of ten classes: the score of class 3 is the loudest of 800 samples."""
    picked = np.zeros((1, CLASSES), np.float32)
    picked[0, 3] = 1
    return models.parse(
        """(float[1,800] audio) => (float[1,10] scores) {
            axes = Constant<value_ints = [1]>()
            loudest = ReduceMax<keepdims = 1>(audio, axes)
            scores = MatMul(loudest, picked)
        }""",
        {"picked": picked},
    )


def model_file(name: str) -> Path:
    assert PACKAGE is not None
    assert PACKAGE.origin is not None
    return Path(PACKAGE.origin).parent / "data" / f"{name}.onnx"


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    arguments = [f"--model=vad={model_file('silero_vad')}"] if PACKAGE is not None else []
    daemon = Daemon(*arguments, builds=False)
    models.save(counting_voice(), daemon.models / "count.onnx")
    models.save(tagger(), daemon.models / "tags.onnx")
    settings = 'family = "audio-tags"\n[sound]\nrate = 8000\n[thresholds]\nscore = 0.25\n'
    (daemon.models / "tags.toml").write_text(settings)
    with daemon:
        daemon.ready("count")
        daemon.ready("tags")
        yield daemon


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    with Client(daemon.unix) as client:
        yield client


def chunks(samples: np.ndarray, size: int = WINDOW) -> list[Samples]:
    return [Samples(samples[at : at + size], RATE) for at in range(0, len(samples), size)]


def heard(client: Client, frames: list[Samples], model: str = "count", camera: str = "hall") -> list[float | None]:
    """Return the score of each frame, None for one without content."""
    found = list(client.stream(model, frames, camera=camera, every_frame=True, score=0.0))
    assert [each.error for each in found] == [None] * len(frames)
    return [each.classes[0].score if each.classes else None for each in found]


def test_stream_keeps_state_and_context_from_window_to_window(client: Client) -> None:
    samples = np.zeros(4 * WINDOW, np.int16)
    samples[2 * WINDOW - 1] = 16384
    assert heard(client, chunks(samples)) == pytest.approx([0.0, 0.01, 0.52, 0.03])


def test_streams_have_states_of_their_own(client: Client) -> None:
    silence = chunks(np.zeros(3 * WINDOW, np.int16))
    for camera in ("hall", "hall", "door"):
        assert heard(client, silence, camera=camera) == pytest.approx([0.0, 0.01, 0.02])


def test_frames_of_any_length_complete_windows(client: Client) -> None:
    found = heard(client, chunks(np.zeros(3 * WINDOW, np.int16), 300))
    assert found == [None, pytest.approx(0.0), None, pytest.approx(0.01), None, pytest.approx(0.02)]


def test_recording_is_answered_as_a_whole(client: Client) -> None:
    result = client.infer("count", Samples(np.zeros(3 * WINDOW + 1, np.int16), RATE), score=0.0)
    assert result.classes[0].score == pytest.approx(0.03)
    assert result.classes[0].label == "speech"


def test_tagger_has_the_classes_above_the_threshold(client: Client) -> None:
    samples = np.zeros(2000, np.float32)
    samples[1900] = 0.75
    loud = client.infer("tags", Samples(samples, 8000))
    assert [(each.class_id, each.score) for each in loud.classes] == [(3, 0.75)]
    assert client.infer("tags", Samples(samples[:1600], 8000)).classes == ()


def test_state_survives_a_killed_host(daemon: Daemon, client: Client) -> None:
    def frames() -> Iterator[Samples]:
        for number in range(4):
            if number == 2:
                for pid in daemon.hosts():
                    os.kill(pid, signal.SIGKILL)
            yield Samples(np.zeros(WINDOW, np.int16), RATE)

    found = list(client.stream("count", frames(), lossless=True, score=0.0))
    assert [each.error for each in found] == [None] * 4
    assert [each.classes[0].score for each in found] == pytest.approx([0.0, 0.01, 0.02, 0.03])


@pytest.mark.parametrize(
    ("model", "frame", "words"),
    [
        ("count", Samples(np.zeros(WINDOW, np.int16), 44100), "16000 Hz, not 44100 Hz"),
        ("count", np.zeros((8, 8, 3), np.uint8), "send samples instead"),
        ("count", Samples(np.full(WINDOW, np.nan), RATE), "NaN"),
    ],
)
def test_frames_that_the_model_cannot_take_are_refused(client: Client, model: str, frame: Samples, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        client.infer(model, frame)


def test_stream_at_another_rate_fails_as_a_call(client: Client) -> None:
    with pytest.raises(InvalidInput, match="44100"):
        list(client.stream("count", [Samples(np.zeros(WINDOW, np.int16), 44100)]))


def test_samples_for_a_region_are_refused(client: Client) -> None:
    with pytest.raises(InvalidInput, match="region"):
        client.infer("count", Samples(np.zeros(WINDOW, np.int16), RATE), region=(0, 0, 8, 8))


def test_commands_answer_a_wav_file(daemon: Daemon, tmp_path: Path) -> None:
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(bytes(2 * 3 * WINDOW))

    def run(*words: str) -> str:
        command = [sys.executable, "-m", "edged", *words, "--target", daemon.unix, "--json", "--score", "0"]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout

    said = msgspec.json.decode(run("infer", "count", str(tmp_path / "a.wav")))
    assert said["predictions"][0]["confidence"] == pytest.approx(0.02)
    (line,) = run("stream", "count", str(tmp_path / "a.wav"), "--no-pace").splitlines()
    assert msgspec.json.decode(line)["predictions"][0]["confidence"] == pytest.approx(0.02)


@pytest.mark.skipif(PACKAGE is None, reason="silero-vad is not installed")
def test_silero_hears_what_its_authors_wrapper_hears(daemon: Daemon, client: Client) -> None:
    daemon.ready("vad")
    quiet = 1e-3 * np.random.default_rng(0).standard_normal(10 * WINDOW)
    samples = np.concatenate((quiet, voice(40 * WINDOW, RATE), quiet)).astype(np.float32)
    session = onnxruntime.InferenceSession(str(model_file("silero_vad")))
    state, context, expected = np.zeros((2, 1, 128), np.float32), np.zeros((1, CONTEXT), np.float32), []
    for window in samples.reshape(-1, 1, WINDOW):
        given = np.concatenate((context, window), axis=1)
        score, state = session.run(None, {"input": given, "state": state, "sr": np.array(RATE, np.int64)})
        context = given[:, -CONTEXT:]
        expected.append(float(score[0, 0]))
    assert max(expected) > 0.9
    assert min(expected) < 0.1
    assert heard(client, chunks(samples), "vad") == pytest.approx(expected, abs=1e-4)
